//! A reactor survives callbacks that panic or that drop their own link, peers that die or lie, and its own end.

#![allow(unsafe_code)]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::callbacks::{diary, hear, kind, receive, settle};
use crate::support::census::{Census, threads};
use crate::support::other::{Other, fork, say, wait_for_death};
use crate::support::raw;
use crate::support::{HANG, Stage, pair, pair_of, soon, unique_name, wait_until};
use slipring::error::{Fault, TrySendError};
use slipring::message::MessageKind;
use slipring::options::Spin;
use slipring::{Connection, Context, Error, ErrorKind, EventLoop, Link, Options, Reactor};

fn spins() -> [Options; 3] {
    [
        Spin::Never,
        Spin::Adaptive { max: Duration::from_micros(50) },
        // A link stays hot for as long as a test takes.
        Spin::Forever,
    ]
    .map(|spin| Options::new().spin(spin))
}

fn echo(link: &Link) {
    link.on_message(|link, message| match message.kind() {
        MessageKind::Request(id) => link.respond(id, message.to_vec()),
        _ => link.write(message.to_vec()),
    });
}

fn comes_back(far: &mut Connection) {
    far.send(b"there?").unwrap();
    assert_eq!(receive(far), b"there?");
}

/// How a link ended, told once.
fn end_of(link: &Link) -> mpsc::Receiver<Result<(), Error>> {
    let (say, said) = diary();
    link.on_closed(move |_, result| say(result));
    said
}

/// Asserts that the end was told once: its callback is dropped.
fn nothing_more<T: std::fmt::Debug>(said: &mpsc::Receiver<T>) {
    let more = said.recv_timeout(HANG);
    assert!(matches!(more, Err(mpsc::RecvTimeoutError::Disconnected)), "{more:?}");
}

#[test]
fn a_record_that_was_promised_and_is_missing_ends_a_link_that_is_otherwise_silent() {
    for options in spins() {
        let mut stage = Stage::new(options);
        let reactor = Reactor::spawn(&stage.context).unwrap();
        // One record, as many as a link is served at a time, and more.
        for count in [1, 2, 4, 8, 9] {
            let (link, mut peer) = stage.link();
            let link = reactor.adopt(link).unwrap();
            let (say, said) = diary();
            link.on_message(move |_, message| say(message.len()));
            let ended = end_of(&link);
            for _ in 1..count {
                peer.say(b"whole");
            }
            peer.publish(raw::header(raw::MESSAGE | raw::MORE, 5), b"first");
            peer.wake_loop();
            (0..count).for_each(|_| assert_eq!(hear(&said), 5));
            let end = ended.recv_timeout(Duration::from_millis(100));
            let error = end.expect("it is reported within 100 ms").unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Fault(Fault::RecordMissing));
        }
        stage.is_undisturbed();
    }
}

/// The callbacks that belong to a link.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Message,
    Request,
    Read,
    Write,
    WaitingWrite,
    Call,
    UnsentCall,
    Token,
}

const KINDS: [Kind; 8] = [
    Kind::Message,
    Kind::Request,
    Kind::Read,
    Kind::Write,
    Kind::WaitingWrite,
    Kind::Call,
    Kind::UnsentCall,
    Kind::Token,
];

impl Kind {
    /// Has `act` run once in a callback of this kind.
    fn provoke(self, link: &Link, far: &mut Connection, act: impl Fn(&Link) + Send + 'static) {
        match self {
            Self::Message => {
                link.on_message(move |link, _| act(link));
                far.send(b"message").unwrap();
            }
            Self::Request => {
                link.on_message(move |link, _| act(link));
                far.submit(b"request").unwrap();
            }
            Self::Read => {
                link.read_with(move |link, _| act(link));
                far.send(b"message").unwrap();
            }
            Self::Write => link.write_with(*b"message", move |link, _| act(link)),
            Self::WaitingWrite => {
                while link.try_send(&[0; 500]).is_ok() {}
                link.write_with([0; 500], move |link, _| act(link));
                // The end of the link is checked elsewhere.
                while far.receiver().try_recv().is_ok_and(|message| message.is_some()) {}
            }
            Self::Call => {
                link.call_with(*b"question", move |link, _| act(link));
                let request = far.recv_request().unwrap().unwrap();
                far.respond(request.id, b"answer").unwrap();
            }
            Self::UnsentCall => {
                let too_long = vec![0; link.max_message() as usize + 1];
                link.call_with(too_long, move |link, answer| {
                    assert!(answer.is_err());
                    act(link);
                });
            }
            Self::Token => {
                let token = link.register(move |link| act(link)).unwrap();
                far.sender().trigger(token).unwrap();
            }
        }
    }
}

fn small(options: Options) -> Options {
    options.ring_capacity(4096).max_message(100_000)
}

#[test]
fn a_panic_in_a_callback_ends_its_link_and_no_other() {
    for options in spins() {
        let context = Context::with_options(small(options)).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let (near, mut witness) = pair_of(&context, &context);
        echo(&reactor.adopt(near).unwrap());
        for kind_of in KINDS {
            let (near, mut far) = pair_of(&context, &context);
            let link = reactor.adopt(near).unwrap();
            let end = end_of(&link);
            kind_of.provoke(&link, &mut far, |_| panic!("on purpose"));
            assert_eq!(kind(hear(&end)), ErrorKind::CallbackPanicked, "{kind_of:?}");
            nothing_more(&end);
            assert!(!link.is_open());
            let late = link.try_send(b"late").unwrap_err();
            let TrySendError::Failed(late) = late else { panic!("{late:?}") };
            assert_eq!(*late.kind(), ErrorKind::CallbackPanicked);
            assert_eq!(kind(link.register(|_| ())), ErrorKind::CallbackPanicked);
            while far.receiver().recv_deadline(soon()).unwrap().is_some() {}
            comes_back(&mut witness);
        }
    }
}

#[test]
fn messages_behind_a_panic_reach_no_callback() {
    for options in spins() {
        let context = Context::with_options(options).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let (near, mut far) = pair_of(&context, &context);
        let link = reactor.adopt(near).unwrap();
        let end = end_of(&link);
        // They wait together until there is a callback.
        for message in [b"1", b"2", b"3"] {
            far.send(message).unwrap();
        }
        let (say, said) = diary();
        link.on_message(move |_, message| {
            say(message.to_vec());
            assert_eq!(message.to_vec(), b"1", "on purpose");
        });
        assert_eq!(kind(hear(&end)), ErrorKind::CallbackPanicked);
        assert_eq!([hear(&said), hear(&said)], [b"1", b"2"]);
        nothing_more(&said);
    }
}

#[test]
fn panics_that_belong_to_no_link_cost_nothing() {
    for options in spins() {
        let context = Context::with_options(options).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let (near, mut witness) = pair_of(&context, &context);
        echo(&reactor.adopt(near).unwrap());
        reactor.defer(|| panic!("on purpose"));
        comes_back(&mut witness);
        // The end of a link.
        let (near, far) = pair_of(&context, &context);
        let link = reactor.adopt(near).unwrap();
        let (say, said) = diary();
        link.on_closed(move |_, _| {
            say(());
            panic!("on purpose");
        });
        far.close().unwrap();
        hear(&said);
        comes_back(&mut witness);
        // Answers that come after the end of a link.
        let (say, said) = diary();
        let read = say.clone();
        link.read_with(move |_, _| {
            read(());
            panic!("on purpose");
        });
        link.write_with(*b"late", move |_, _| {
            say(());
            panic!("on purpose");
        });
        hear(&said);
        hear(&said);
        comes_back(&mut witness);
        // The listener continues to accept.
        let name = unique_name();
        let serving = reactor.clone();
        let mut number = 0;
        let listener = context.listen(&name).unwrap();
        reactor
            .accept_with(listener, move |accepted| {
                number += 1;
                assert!(number % 2 == 0, "on purpose");
                echo(&serving.adopt(accepted.unwrap()).unwrap());
                ControlFlow::Continue(())
            })
            .unwrap();
        for _ in 0..3 {
            let mut dropped = context.connect_deadline(&name, soon()).unwrap();
            assert_eq!(dropped.receiver().recv_deadline(soon()).unwrap(), None);
            comes_back(&mut context.connect_deadline(&name, soon()).unwrap());
        }
        comes_back(&mut witness);
    }
}

#[test]
fn completions_come_before_the_end_also_of_a_link_whose_callback_panicked() {
    let context = Context::new().unwrap();
    let (near, mut far) = pair_of(&context, &context);
    let reactor = Reactor::spawn(&context).unwrap();
    let link = reactor.adopt(near).unwrap();
    let (say, said) = diary();
    let closed = say.clone();
    link.on_closed(move |_, result| closed(format!("closed: {}", kind(result))));
    link.on_message(move |link, _| {
        let (write, read) = (say.clone(), say.clone());
        link.write_with(*b"answer", move |_, result| write(format!("write {:?}", result.is_ok())));
        link.read_with(move |_, answer| read(format!("read: {}", kind(answer))));
        panic!("on purpose");
    });
    far.send(b"question").unwrap();
    assert_eq!(hear(&said), "write true");
    let panicked = ErrorKind::CallbackPanicked;
    assert_eq!(hear(&said), format!("read: {panicked}"));
    assert_eq!(hear(&said), format!("closed: {panicked}"));
    assert_eq!(receive(&mut far), b"answer");
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
}

#[test]
fn a_link_is_closed_from_inside_of_its_own_callbacks() {
    for options in spins() {
        let context = Context::with_options(small(options)).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let (near, mut witness) = pair_of(&context, &context);
        echo(&reactor.adopt(near).unwrap());
        for kind_of in KINDS {
            let (near, mut far) = pair_of(&context, &context);
            let link = reactor.adopt(near).unwrap();
            let end = end_of(&link);
            kind_of.provoke(&link, &mut far, |link| {
                link.close();
                link.close();
                let late = link.try_send(b"late").unwrap_err();
                let TrySendError::Failed(late) = late else { panic!("{late:?}") };
                assert_eq!(*late.kind(), ErrorKind::LinkClosed);
            });
            hear(&end).unwrap();
            nothing_more(&end);
            while far.receiver().recv_deadline(soon()).unwrap().is_some() {}
        }
        // From the last of them, too, and from one's that were deferred or accepted.
        let (near, far) = pair_of(&context, &context);
        let link = reactor.adopt(near).unwrap();
        let (say, said) = diary();
        link.on_closed(move |link, _| {
            link.close();
            say(());
        });
        far.close().unwrap();
        hear(&said);
        let (near, mut far) = pair_of(&context, &context);
        let link = reactor.adopt(near).unwrap();
        reactor.defer(move || link.close());
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
        comes_back(&mut witness);
    }
}

#[test]
fn callbacks_adopt_write_and_close_whatever_they_like() {
    for options in spins() {
        let context = Context::with_options(options).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let (near, mut far) = pair_of(&context, &context);
        let (other_near, mut other_far) = pair_of(&context, &context);
        let (link, other) = (reactor.adopt(near).unwrap(), reactor.adopt(other_near).unwrap());
        let (say, said) = diary();
        let serving = reactor.clone();
        let spare = Mutex::new(Vec::new());
        let mut fresh = Vec::new();
        for _ in 0..10 {
            let (near, far) = pair_of(&context, &context);
            spare.lock().unwrap().push(near);
            fresh.push(far);
        }
        let mut inner = EventLoop::new(&context).unwrap();
        let (inner_near, mut inner_far) = pair_of(&context, &context);
        let inner_link = inner.reactor().adopt(inner_near).unwrap();
        let outer = link.clone();
        inner_link.on_message(move |inner, message| {
            // Of a link of the outer loop, in whose turn this one's is.
            outer.try_send(b"from the inner loop").unwrap();
            inner.write(message.to_vec());
        });
        link.on_message(move |link, message| {
            match &message.to_vec()[..] {
                b"adopt" => echo(&serving.adopt(spare.lock().unwrap().pop().unwrap()).unwrap()),
                b"send" => {
                    link.try_send(b"own").unwrap();
                    other.try_send(b"other").unwrap();
                }
                b"inner" => {
                    inner_far.send(b"through").unwrap();
                    let deadline = soon();
                    let back = loop {
                        inner.poll_once(1).unwrap();
                        match inner_far.receiver().try_recv() {
                            Ok(back) => break back.unwrap(),
                            Err(_) => assert!(std::time::Instant::now() < deadline),
                        }
                    };
                    // After the inner loop's turn this is the outer loop's again.
                    link.write(back);
                }
                b"close" => {
                    other.close();
                    link.close();
                }
                _ => unreachable!(),
            }
            say(());
        });
        while let Some(mut adopted) = fresh.pop() {
            far.send(b"adopt").unwrap();
            hear(&said);
            comes_back(&mut adopted);
        }
        far.send(b"send").unwrap();
        assert_eq!(receive(&mut far), b"own");
        assert_eq!(receive(&mut other_far), b"other");
        for _ in 0..20 {
            far.send(b"inner").unwrap();
            assert_eq!(receive(&mut far), b"from the inner loop");
            assert_eq!(receive(&mut far), b"through");
        }
        far.send(b"close").unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
        assert_eq!(other_far.receiver().recv_deadline(soon()).unwrap(), None);
    }
}

#[test]
fn a_callback_drops_the_last_handles_of_its_link_and_reactor() {
    let test = "a_callback_drops_the_last_handles_of_its_link_and_reactor";
    let mut other = Other::start(test, "", |_| {
        for options in [Spin::Never, Spin::Adaptive { max: Duration::from_micros(50) }]
            .map(|spin| Options::new().spin(spin))
        {
            let before = Census::take();
            {
                let context = Context::with_options(options).unwrap();
                let (near, mut far) = pair_of(&context, &context);
                let reactor = Reactor::spawn(&context).unwrap();
                let link = reactor.adopt(near).unwrap();
                let running = threads();
                let (say, said) = diary();
                let own = link.clone();
                let mut handles = Some((link.clone(), reactor.clone()));
                own.on_message(move |link, message| {
                    drop(handles.take());
                    say(());
                    link.write(message.to_vec());
                });
                drop((link, own, reactor));
                for _ in 0..10 {
                    comes_back(&mut far);
                    hear(&said);
                }
                assert_eq!(threads(), running, "the link lives without handles");
                far.close().unwrap();
                wait_until("the thread's end", || threads() < running);
            }
            before.comes_back();
        }
    });
    other.succeeds();
}

// Peers that die.

/// In the other process: a link to the test.
fn connect(name: &str) -> Connection {
    Context::new().unwrap().connect_retry(name, soon()).unwrap()
}

/// A link to the other process, on a reactor of its own.
fn accept(name: &str, options: Options) -> (Reactor, Link) {
    let context = Context::with_options(options).unwrap();
    let link = context.listen(name).unwrap().accept_deadline(soon()).unwrap();
    assert_ne!(link.peer().pid(), Some(std::process::id()));
    let reactor = Reactor::spawn(&context).unwrap();
    let link = reactor.adopt(link).unwrap();
    (reactor, link)
}

#[test]
fn a_killed_peer_is_told_once_whether_the_loop_sleeps_or_watches() {
    let test = "a_killed_peer_is_told_once_whether_the_loop_sleeps_or_watches";
    let mut other = Other::start(test, "parent", |argument| {
        if argument != "parent" {
            let mut link = connect(argument);
            link.send(b"hello").unwrap();
            wait_for_death();
        }
        let round = |options: Options, wants: bool| {
            let name = unique_name();
            let mut peer = Other::spawn(test, &name);
            let (reactor, link) = accept(&name, options);
            let end = end_of(&link);
            let (say, said) = diary();
            let read = say.clone();
            link.read_with(move |_, message| read(message.map(Option::unwrap)));
            assert_eq!(hear(&said).unwrap(), b"hello");
            let (read, called) = (say.clone(), say);
            if wants {
                link.read_with(move |_, message| read(message.map(Option::unwrap)));
                link.call_with(*b"question", move |_, answer| called(answer));
            }
            settle(&reactor);
            peer.kill();
            assert_eq!(kind(hear(&end)), ErrorKind::PeerDied);
            nothing_more(&end);
            if wants {
                assert_eq!(kind(hear(&said)), ErrorKind::PeerDied);
                assert_eq!(kind(hear(&said)), ErrorKind::PeerDied);
            }
            let late = link.try_send(b"late").unwrap_err();
            let TrySendError::Failed(late) = late else { panic!("{late:?}") };
            assert_eq!(*late.kind(), ErrorKind::PeerDied);
            peer.wait();
        };
        let before = Census::take();
        for options in spins() {
            for wants in [false, true] {
                round(options.clone(), wants);
            }
        }
        before.comes_back();
    });
    other.succeeds();
}

#[test]
fn a_peer_killed_while_writes_wait_ends_all_of_them() {
    let test = "a_peer_killed_while_writes_wait_ends_all_of_them";
    let mut other = Other::start(test, "parent", |argument| {
        if argument != "parent" {
            let _link = connect(argument);
            wait_for_death();
        }
        let before = Census::take();
        for (options, len) in
            spins().into_iter().flat_map(|options| [(options.clone(), 300), (options, 50_000)])
        {
            let name = unique_name();
            let mut peer = Other::spawn(test, &name);
            let (reactor, link) = accept(&name, options.ring_capacity(4096));
            let end = end_of(&link);
            let (say, said) = diary();
            const COUNT: usize = 100;
            for _ in 0..COUNT {
                let say = say.clone();
                link.write_with(vec![0; len], move |_, result| say(result));
            }
            drop(say);
            settle(&reactor);
            peer.kill();
            assert_eq!(kind(hear(&end)), ErrorKind::PeerDied);
            let results: Vec<_> = said.iter().collect();
            assert_eq!(results.len(), COUNT);
            let sent = results.iter().take_while(|result| result.is_ok()).count();
            assert!(sent > 0 && sent < COUNT, "{sent} were sent");
            for result in results.into_iter().skip(sent) {
                assert_eq!(kind(result), ErrorKind::PeerDied);
            }
            peer.wait();
        }
        before.comes_back();
    });
    other.succeeds();
}

#[test]
fn what_a_peer_sent_before_its_death_is_received_before_the_end() {
    let name = unique_name();
    let test = "what_a_peer_sent_before_its_death_is_received_before_the_end";
    let mut other = Other::start(test, &name, |name| {
        let mut link = connect(name);
        for number in 0..500u32 {
            link.send(&number.to_le_bytes()).unwrap();
        }
        say("sent");
        wait_for_death();
    });
    let (reactor, link) = accept(&name, Options::new());
    let (note, said) = diary();
    let closed = note.clone();
    link.on_closed(move |_, result| closed(Err(kind(result))));
    other.expect("sent");
    settle(&reactor);
    other.kill();
    other.wait();
    settle(&reactor);
    link.on_message(move |_, message| note(Ok(message.to_vec())));
    for number in 0..500u32 {
        assert_eq!(hear(&said), Ok(number.to_le_bytes().to_vec()));
    }
    assert_eq!(hear(&said), Err(ErrorKind::PeerDied));
    nothing_more(&said);
}

#[test]
fn a_death_is_told_although_a_forked_child_holds_the_socket() {
    for options in spins() {
        let name = unique_name();
        let test = "a_death_is_told_although_a_forked_child_holds_the_socket";
        let mut other = Other::start(test, &name, |name| {
            let mut link = connect(name);
            // SAFETY: the child calls nothing but what async-signal-safety allows.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above. It ends some time, whatever becomes of the test.
                unsafe { libc::sleep(60) };
                // SAFETY: `_exit` runs no handlers.
                unsafe { libc::_exit(0) };
            }
            link.send(&child.to_le_bytes()).unwrap();
            wait_for_death();
        });
        let (_reactor, link) = accept(&name, options);
        let end = end_of(&link);
        let (say, said) = diary();
        link.read_with(move |_, message| say(message.unwrap().unwrap()));
        let child = i32::from_le_bytes(hear(&said).try_into().unwrap());
        other.kill();
        assert_eq!(kind(hear(&end)), ErrorKind::PeerDied);
        nothing_more(&end);
        let child = rustix::process::Pid::from_raw(child).unwrap();
        rustix::process::test_kill_process(child).expect("the child still holds the socket");
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
fn a_fault_that_writing_meets_is_told_although_nothing_came() {
    for options in spins() {
        let mut stage = Stage::new(options.ring_capacity(4096));
        let reactor = Reactor::spawn(&stage.context).unwrap();
        for by_waiting in [false, true] {
            let (connection, mut peer) = stage.link();
            let link = reactor.adopt(connection).unwrap();
            let end = end_of(&link);
            settle(&reactor);
            while link.try_send(b"fill").is_ok() {}
            let (say, said) = diary();
            if by_waiting {
                link.write_with(*b"waits", move |_, result| say(result));
                settle(&reactor);
                peer.position(12_345);
                peer.wake_loop_for_room();
                assert!(matches!(
                    kind(hear(&said)),
                    ErrorKind::Fault(Fault::Position { position: 12_345, .. })
                ));
            } else {
                peer.position(12_345);
                link.write(*b"tries");
            }
            assert!(matches!(
                kind(hear(&end)),
                ErrorKind::Fault(Fault::Position { position: 12_345, .. })
            ));
            nothing_more(&end);
        }
        stage.is_undisturbed();
    }
}

// The end of the reactor.

#[test]
fn a_shutdown_closes_every_link_in_order_and_later_use_says_so() {
    for (options, inside) in
        spins().into_iter().flat_map(|options| [(options.clone(), false), (options, true)])
    {
        let context = Context::with_options(options).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let name = unique_name();
        let listener = context.listen(&name).unwrap();
        reactor.accept_with(listener, |_| ControlFlow::Continue(())).unwrap();
        let mut ends = Vec::new();
        let mut links = Vec::new();
        for _ in 0..10 {
            let (near, far) = pair_of(&context, &context);
            let link = reactor.adopt(near).unwrap();
            echo(&link);
            ends.push((end_of(&link), far));
            links.push(link);
        }
        comes_back(&mut ends[0].1);
        if inside {
            let handle = reactor.clone();
            links[0].on_message(move |link, _| {
                link.write(*b"last words");
                handle.shutdown();
            });
            ends[0].1.send(b"stop").unwrap();
            assert_eq!(receive(&mut ends[0].1), b"last words");
        } else {
            reactor.shutdown();
        }
        for (end, far) in &mut ends {
            hear(end).unwrap();
            nothing_more(end);
            assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
        }
        wait_until("the listener's end", || {
            let late = context.connect_deadline(&name, soon());
            late.is_err_and(|error| matches!(error.kind(), ErrorKind::NobodyListens { .. }))
        });
        let is_over =
            |kind: &ErrorKind| matches!(kind, ErrorKind::ReactorStopped | ErrorKind::LinkClosed);
        for link in &links {
            assert!(!link.is_open());
            let (say, said) = diary();
            let (read, write, call, closed) = (say.clone(), say.clone(), say.clone(), say);
            link.read_with(move |_, answer| read(kind(answer)));
            link.write_with(*b"late", move |_, answer| write(kind(answer)));
            link.call_with(*b"late", move |_, answer| call(kind(answer)));
            link.on_closed(move |_, answer| closed(kind(answer)));
            for _ in 0..4 {
                let answer = hear(&said);
                assert!(is_over(&answer), "{answer}");
            }
            nothing_more(&said);
            let TrySendError::Failed(late) = link.try_send(b"late").unwrap_err() else { panic!() };
            assert!(is_over(late.kind()));
            assert!(is_over(&kind(link.register(|_| ()))));
            link.on_message(|_, _| ());
            link.write(*b"late");
            link.close();
        }
        // A link that is adopted now ends at once.
        let (near, mut far) = pair(Options::new());
        let link = reactor.adopt(near).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
        assert_eq!(kind(hear(&end_of(&link))), ErrorKind::ReactorStopped);
        assert_eq!(kind(link.register(|_| ())), ErrorKind::ReactorStopped);
        let name = unique_name();
        let listener = context.listen(&name).unwrap();
        reactor.accept_with(listener, |_| ControlFlow::Continue(())).unwrap();
        assert!(context.connect_deadline(&name, soon()).is_err(), "nobody would accept");
    }
}

#[test]
fn a_shutdown_ends_the_links_of_an_own_loop_that_lives_on() {
    for run in [false, true] {
        let context = Context::new().unwrap();
        let mut events = EventLoop::new(&context).unwrap();
        let reactor = events.reactor();
        let (near, mut far) = pair_of(&context, &context);
        let link = reactor.adopt(near).unwrap();
        let end = end_of(&link);
        while events.poll_once(1000).unwrap() > 0 {}
        reactor.shutdown();
        if run {
            events.run().unwrap();
        } else {
            while events.poll_once(1000).unwrap() > 0 {}
        }
        hear(&end).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
        assert!(!link.is_open());
        let (say, said) = diary();
        link.read_with(move |_, answer| say(kind(answer)));
        assert!(matches!(hear(&said), ErrorKind::ReactorStopped | ErrorKind::LinkClosed));
        events.run().unwrap();
        assert_eq!(events.poll_once(1000).unwrap(), 0);
    }
}

#[test]
fn the_thread_of_a_reactor_without_handles_ends_with_its_last_link() {
    let test = "the_thread_of_a_reactor_without_handles_ends_with_its_last_link";
    let mut other = Other::start(test, "", |_| {
        let before = Census::take();
        for options in [Spin::Never, Spin::Adaptive { max: Duration::from_micros(50) }]
            .map(|spin| Options::new().spin(spin))
        {
            let context = Context::with_options(options).unwrap();
            let without = threads();
            // None at all.
            drop(Reactor::spawn(&context).unwrap());
            wait_until("the thread's end", || threads() <= without);
            let reactor = Reactor::spawn(&context).unwrap();
            let mut ends: Vec<_> = (0..5)
                .map(|_| {
                    let (near, far) = pair_of(&context, &context);
                    echo(&reactor.adopt(near).unwrap());
                    far
                })
                .collect();
            let name = unique_name();
            let listener = context.listen(&name).unwrap();
            reactor.accept_with(listener, |_| ControlFlow::Break(())).unwrap();
            settle(&reactor);
            let running = threads();
            drop((reactor.clone(), reactor));
            while let Some(mut far) = ends.pop() {
                comes_back(&mut far);
                assert_eq!(threads(), running);
                drop(far);
            }
            assert_eq!(threads(), running, "a listener is left");
            drop(context.connect_deadline(&name, soon()));
            wait_until("the thread's end", || threads() < running);
        }
        before.comes_back();
    });
    other.succeeds();
}

#[test]
fn a_loop_that_is_dropped_closes_its_links_for_their_peers() {
    let test = "a_loop_that_is_dropped_closes_its_links_for_their_peers";
    let mut other = Other::start(test, "", |_| {
        let before = Census::take();
        {
            let context = Context::new().unwrap();
            let mut events = EventLoop::new(&context).unwrap();
            let reactor = events.reactor();
            let (near, mut far) = pair_of(&context, &context);
            let link = reactor.adopt(near).unwrap();
            let end = end_of(&link);
            link.write(*b"sent before");
            while events.poll_once(1000).unwrap() > 0 {}
            // One more that the loop has not even seen, and something to do for it.
            let (unseen, mut its_far) = pair_of(&context, &context);
            let unseen = reactor.adopt(unseen).unwrap();
            let unseen_end = end_of(&unseen);
            let (say, said) = diary();
            unseen.call_with(*b"question", move |_, answer| say(kind(answer)));
            drop(events);
            hear(&end).unwrap();
            assert_eq!(receive(&mut far), b"sent before");
            assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
            assert_eq!(its_far.receiver().recv_deadline(soon()).unwrap(), None);
            assert_eq!(kind(hear(&unseen_end)), ErrorKind::ReactorStopped);
            assert_eq!(hear(&said), ErrorKind::ReactorStopped);
            drop((link, unseen));
        }
        before.comes_back();
    });
    other.succeeds();
}

// Forks.

#[test]
fn after_a_fork_the_child_has_no_loop_and_its_parents_goes_on() {
    let test = "after_a_fork_the_child_has_no_loop_and_its_parents_goes_on";
    let mut other = Other::start(test, "", |_| {
        let context = Context::with_options(Options::new().spin(Spin::Never)).unwrap();
        let mut events = EventLoop::new(&context).unwrap();
        let reactor = events.reactor();
        let (near, mut far) = pair_of(&context, &context);
        let link = reactor.adopt(near).unwrap();
        let end = end_of(&link);
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        link.on_message(move |link, message| {
            counted.fetch_add(1, Ordering::Relaxed);
            link.write(message.to_vec());
        });
        while events.poll_once(1000).unwrap() > 0 {}
        let mut kept = Some((events, reactor.clone(), link.clone()));
        let status = fork(|| {
            let (mut events, reactor, link) = kept.take().unwrap();
            assert_eq!(kind(events.poll_once(1000)), ErrorKind::Forked);
            assert_eq!(kind(events.run()), ErrorKind::Forked);
            let TrySendError::Failed(late) = link.try_send(b"x").unwrap_err() else { panic!() };
            assert_eq!(*late.kind(), ErrorKind::Forked);
            let (say, said) = diary();
            link.read_with(move |_, answer| say(kind(answer)));
            assert_eq!(hear(&said), ErrorKind::Forked);
            // Connections of the child's are none of its parent's loop.
            let context = Context::new().unwrap();
            for _ in 0..5 {
                let (near, far) = pair_of(&context, &context);
                assert_eq!(kind(reactor.adopt(near)), ErrorKind::Forked);
                drop(far);
            }
            let listener = context.listen(unique_name()).unwrap();
            let accepting = reactor.accept_with(listener, |_| ControlFlow::Break(()));
            assert_eq!(kind(accepting), ErrorKind::Forked);
            link.close();
            reactor.shutdown();
            drop((events, reactor, link));
        });
        assert_eq!(status, 0, "the child failed");
        let (events, ..) = kept.as_mut().unwrap();
        for round in 0..100u32 {
            far.send(&round.to_le_bytes()).unwrap();
            let deadline = soon();
            loop {
                while events.poll_once(1000).unwrap() > 0 {}
                match far.receiver().try_recv() {
                    Ok(back) => break assert_eq!(back.unwrap(), round.to_le_bytes()),
                    Err(_) => assert!(std::time::Instant::now() < deadline),
                }
            }
        }
        assert_eq!(count.load(Ordering::Relaxed), 100);
        assert!(link.is_open() && end.try_recv().is_err());
        far.close().unwrap();
        while end.try_recv().is_err() {
            events.poll_once(1000).unwrap();
        }
        // And a thread of the parent's with its loop.
        let (near, mut far) = pair_of(&context, &context);
        let reactor = Reactor::spawn(&context).unwrap();
        echo(&reactor.adopt(near).unwrap());
        comes_back(&mut far);
        let mut kept = Some(reactor);
        assert_eq!(fork(|| drop(kept.take())), 0);
        comes_back(&mut far);
        settle(kept.as_ref().unwrap());
    });
    other.succeeds();
}
