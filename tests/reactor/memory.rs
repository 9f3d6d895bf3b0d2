//! A peer chooses how long a message is. Where this process has no memory for a copy, the callback that asked for the
//! copy or the link gets `OutOfMemory`, and the loop and its other links go on.

use std::sync::mpsc;

use crate::support::callbacks::{diary, hear, kind, receive, settle};
use crate::support::census::short_of_memory;
use crate::support::other::alone;
use crate::support::pair_of;
use slipring::{Connection, Context, ErrorKind, Link, Reactor};

/// Longer than what the allocator may have at hand.
const LEN: usize = 64 << 20;

struct Scene {
    /// The link that long messages come by. Its loop has mapped the peer's segments.
    link: Link,
    far: Connection,
    bytes: Vec<u8>,
    /// The other end of a link that the same loop echoes on.
    bystander: Connection,
    ended: mpsc::Receiver<Result<(), ErrorKind>>,
    _reactor: Reactor,
}

impl Scene {
    fn new() -> Self {
        let context = Context::new().unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let (near, bystander) = pair_of(&context, &context);
        reactor.adopt(near).unwrap().on_message(|link, message| link.write(message.to_vec()));
        let (near, mut far) = pair_of(&context, &context);
        let link = reactor.adopt(near).unwrap();
        let ((say, ended), bytes) = (diary(), vec![7; LEN]);
        link.on_closed(move |_, result| say(result.map_err(|error| error.kind().clone())));
        // The sender keeps a block ready for the next message, which may lie in another segment.
        for _ in 0..4 {
            far.send(&bytes).unwrap();
            let (read, came) = diary();
            link.read_with(move |_, message| read(message.unwrap().unwrap().len()));
            assert_eq!(hear(&came), LEN);
        }
        // The last copy is free.
        settle(&reactor);
        Self { link, far, bytes, bystander, ended, _reactor: reactor }
    }

    fn bystander_works(&mut self) {
        self.bystander.send(b"there?").unwrap();
        assert_eq!(receive(&mut self.bystander), b"there?");
    }
}

/// More memory than the loop needs for all but a copy.
const MORE: u64 = LEN as u64 / 2;

const SHORT: ErrorKind = ErrorKind::OutOfMemory { bytes: LEN as u64 };

#[test]
fn a_read_and_a_call_are_told_that_there_is_no_memory() {
    alone("a_read_and_a_call_are_told_that_there_is_no_memory", || {
        let mut scene = Scene::new();
        let (say, said) = diary();
        let (tell, told) = (say.clone(), say);
        short_of_memory(MORE, || {
            scene.link.read_with(move |_, message| tell(kind(message)));
            scene.far.send(&scene.bytes).unwrap();
            assert_eq!(hear(&said), SHORT);
            scene.link.call_with(*b"question", move |_, response| told(kind(response)));
            let request = scene.far.recv_request().unwrap().unwrap();
            scene.far.respond(request.id, &scene.bytes).unwrap();
            assert_eq!(hear(&said), SHORT);
            scene.bystander_works();
        });
        assert!(scene.link.is_open());
        let (read, came) = diary();
        scene.link.read_with(move |_, message| read(message.unwrap()));
        scene.far.send(b"after").unwrap();
        assert_eq!(hear(&came).as_deref(), Some(&b"after"[..]));
    });
}

#[test]
fn a_message_that_cannot_be_deferred_ends_its_link() {
    alone("a_message_that_cannot_be_deferred_ends_its_link", || {
        let mut scene = Scene::new();
        let (say, said) = diary();
        short_of_memory(MORE, || {
            scene.link.call_with(*b"question", move |_, response| say(response.is_err()));
            let request = scene.far.recv_request().unwrap().unwrap();
            // It stands before the response, and nobody wants it.
            scene.far.send(&scene.bytes).unwrap();
            assert_eq!(hear(&scene.ended), Err(SHORT));
            assert!(hear(&said));
            let _ = scene.far.respond(request.id, b"late");
            scene.bystander_works();
        });
    });
}

#[test]
fn a_callback_that_has_no_memory_for_a_copy_ends_its_link_alone() {
    alone("a_callback_that_has_no_memory_for_a_copy_ends_its_link_alone", || {
        let mut scene = Scene::new();
        let (say, said) = diary();
        scene.link.on_message(move |link, message| match message.bytes().try_to_vec() {
            Ok(copy) => link.write(copy),
            Err(error) => {
                say(error.kind().clone());
                link.write(message.to_vec());
            }
        });
        short_of_memory(MORE, || {
            scene.far.send(&scene.bytes).unwrap();
            assert_eq!(hear(&said), SHORT);
            assert_eq!(hear(&scene.ended), Err(ErrorKind::CallbackPanicked));
            scene.bystander_works();
        });
    });
}
