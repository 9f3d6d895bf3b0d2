//! A callback of the user may panic when it runs or when it is dropped. The panic ends the link, call
//! or handshake that the callback belongs to, and nothing else.

use std::ops::ControlFlow;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::callbacks::{diary, hear, kind, receive, settle};
use crate::support::{pair_of, soon, unique_name, wait_until};
use slipring::options::PeerPolicy;
use slipring::{Connection, Context, ErrorKind, Link, Options, Reactor};

/// A value of the user's whose drop panics, and so does the drop of that panic's payload.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic_any(Self);
        }
    }
}

/// A reactor, and a link of it that must not notice what happens to others.
struct Bystander {
    reactor: Reactor,
    far: Connection,
}

impl Bystander {
    fn new(context: &Context) -> Self {
        let reactor = Reactor::spawn(context).unwrap();
        let (near, far) = pair_of(context, context);
        reactor.adopt(near).unwrap().on_message(|link, message| link.write(message.to_vec()));
        Self { reactor, far }
    }

    fn goes_on(&mut self) {
        self.far.send(b"there?").unwrap();
        assert_eq!(receive(&mut self.far), b"there?");
        settle(&self.reactor);
    }
}

/// A policy that panics as long as it is told to.
fn touchy() -> (Arc<AtomicBool>, Options) {
    let panics = Arc::new(AtomicBool::new(true));
    let asked = panics.clone();
    let policy = PeerPolicy::Custom(Arc::new(move |_| {
        if asked.load(Ordering::Relaxed) {
            panic!("on purpose");
        }
        true
    }));
    (panics, Options::new().peer_policy(policy))
}

#[test]
fn an_admission_policy_that_panics_refuses_that_peer_and_no_other() {
    let (panics, options) = touchy();
    let context = Context::with_options(options).unwrap();
    let peers = Context::new().unwrap();

    // Of a listener that somebody waits at.
    let name = unique_name();
    let mut listener = context.listen(&name).unwrap();
    let connect = || peers.connect_deadline(&name, soon());
    std::thread::scope(|scope| {
        let refused = scope.spawn(connect);
        wait_until("a refusal", || {
            assert!(listener.try_accept().unwrap().is_none());
            listener.stats().refused == 1
        });
        assert_eq!(kind(refused.join().unwrap()), ErrorKind::NotAdmittedByPeer);
        panics.store(false, Ordering::Relaxed);
        let admitted = scope.spawn(connect);
        let mut near = listener.accept_deadline(soon()).unwrap();
        let mut far = admitted.join().unwrap().unwrap();
        far.send(b"hello").unwrap();
        assert_eq!(receive(&mut near), b"hello");
    });

    // Of a side that connects.
    panics.store(true, Ordering::Relaxed);
    let (near, _far) = crate::support::raw::socketpair();
    assert!(matches!(
        context.connect_socket(near).unwrap_err().kind(),
        ErrorKind::PeerNotAdmitted { .. }
    ));
}

#[test]
fn an_admission_policy_that_panics_costs_a_reactor_no_link() {
    let (panics, options) = touchy();
    panics.store(false, Ordering::Relaxed);
    let context = Context::with_options(options).unwrap();
    let peers = Context::new().unwrap();
    let mut bystander = Bystander::new(&context);
    let name = unique_name();
    let (say, said) = diary();
    let serving = bystander.reactor.clone();
    let listener = context.listen(&name).unwrap();
    bystander
        .reactor
        .accept_with(listener, move |accepted| {
            say(accepted.and_then(|connection| serving.adopt(connection)));
            ControlFlow::Continue(())
        })
        .unwrap();
    for _ in 0..3 {
        panics.store(true, Ordering::Relaxed);
        let refused = peers.connect_deadline(&name, soon());
        assert_eq!(kind(refused), ErrorKind::NotAdmittedByPeer);
        bystander.goes_on();
        panics.store(false, Ordering::Relaxed);
        let _admitted = peers.connect_deadline(&name, soon()).unwrap();
        hear(&said).unwrap();
    }
}

/// Where a callback that panics with a [`Bomb`] may stand.
const PLACES: [fn(&Link, &mut Connection); 4] = [
    |link, far| {
        link.on_message(|_, _| panic_any(Bomb));
        far.send(b"message").unwrap();
    },
    |link, far| {
        link.on_tensors(|_, _| panic_any(Bomb));
        far.send_tensor(slipring::Tensor::from_slice([1], &[1u8]).unwrap()).unwrap();
    },
    |link, far| {
        let token = link.register(|_| panic_any(Bomb)).unwrap();
        far.sender().trigger(token).unwrap();
    },
    |link, _| link.write_with(*b"message", |_, _| panic_any(Bomb)),
];

#[test]
fn a_panic_whose_payload_panics_ends_its_link_and_no_other() {
    let context = Context::new().unwrap();
    let mut bystander = Bystander::new(&context);
    for provoke in PLACES {
        let (near, mut far) = pair_of(&context, &context);
        let link = bystander.reactor.adopt(near).unwrap();
        let (say, said) = diary();
        link.on_closed(move |_, result| say(result));
        provoke(&link, &mut far);
        assert_eq!(kind(hear(&said)), ErrorKind::CallbackPanicked);
        bystander.goes_on();
    }
    // Work that belongs to no link.
    bystander.reactor.defer(|| panic_any(Bomb));
    bystander.goes_on();
}

#[test]
fn callbacks_whose_drop_panics_hinder_no_shutdown() {
    let context = Context::new().unwrap();
    let mut bystander = Bystander::new(&context);
    let mut ends = Vec::new();
    let mut fars = Vec::new();
    for _ in 0..3 {
        let (near, far) = pair_of(&context, &context);
        let link = bystander.reactor.adopt(near).unwrap();
        let (bomb, other, third) = (Bomb, Bomb, Bomb);
        link.on_message(move |_, _| {
            let _kept = &bomb;
        });
        link.read_with(move |_, _| drop(other));
        link.register(move |_| {
            let _kept = &third;
        })
        .unwrap();
        let (say, said) = diary();
        link.on_closed(move |_, result| say(result));
        ends.push(said);
        fars.push(far);
        let bomb = Bomb;
        let listener = context.listen(unique_name()).unwrap();
        bystander
            .reactor
            .accept_with(listener, move |_| {
                let _kept = &bomb;
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    bystander.goes_on();
    bystander.reactor.shutdown();
    for end in ends {
        hear(&end).unwrap();
    }
    for mut far in fars {
        assert_eq!(
            far.receiver().recv_deadline(soon()).unwrap(),
            None,
            "every link is closed in order"
        );
    }
    assert_eq!(bystander.far.receiver().recv_deadline(soon()).unwrap(), None);
    // A stopped reactor drops the refused closure on this thread.
    let (bomb, other) = (Bomb, Bomb);
    bystander.reactor.defer(move || drop(bomb));
    let listener = context.listen(unique_name()).unwrap();
    let _ = bystander.reactor.accept_with(listener, move |_| {
        let _kept = &other;
        ControlFlow::Continue(())
    });
}
