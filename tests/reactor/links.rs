//! A reactor serves messages, reads, writes, calls and tokens in order, and its loop sleeps when there is nothing to do.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::support::callbacks::{diary, hear, kind, receive, settle};
use crate::support::census::processor_time;
use crate::support::other::Other;
use crate::support::raw;
use crate::support::{HANG, Stage, pair, pair_of, soon, unique_name, wait_until};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use slipring::error::{Fault, TrySendError};
use slipring::message::{MessageKind, Token};
use slipring::options::Spin;
use slipring::{Connection, Context, Error, ErrorKind, EventLoop, Link, Options, Reactor};

/// A link on a reactor's thread, and its other end.
fn served(options: Options) -> (Reactor, Link, Connection) {
    let context = Context::with_options(options).unwrap();
    let (near, far) = pair_of(&context, &context);
    let reactor = Reactor::spawn(&context).unwrap();
    let link = reactor.adopt(near).unwrap();
    (reactor, link, far)
}

fn spins() -> [Options; 3] {
    [
        Spin::Never,
        Spin::Adaptive { max: Duration::from_micros(50) },
        Spin::For(Duration::from_micros(5)),
    ]
    .map(|spin| Options::new().spin(spin))
}

fn echo(link: &Link) {
    link.on_message(|link, message| link.write(message.to_vec()));
}

fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut message = vec![number as u8; len.max(4)];
    message[..4].copy_from_slice(&number.to_le_bytes());
    message
}

// Messages.

#[test]
fn messages_of_every_length_come_back_in_order() {
    for options in spins() {
        let (_reactor, link, mut far) = served(options.ring_capacity(4096));
        echo(&link);
        let lens = [0, 1, 56, 57, 512, 513, 900, 5000, 100_000, 3 << 20];
        for round in 0..30 {
            for len in lens {
                // Two on the way at a time.
                far.send(&vec![round; len]).unwrap();
                far.send(&[round]).unwrap();
                assert_eq!(receive(&mut far), vec![round; len]);
                assert_eq!(receive(&mut far), [round]);
            }
        }
    }
}

/// A loop of the user's own over the descriptor of an event loop.
#[derive(Debug)]
struct Loop {
    epoll: OwnedFd,
    wakeups: u32,
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(30);

impl Loop {
    fn new(fd: impl AsFd, edge: bool) -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let events = if edge { EventFlags::IN | EventFlags::ET } else { EventFlags::IN };
        epoll::add(&epoll, fd, EventData::new_u64(1), events).unwrap();
        Self { epoll, wakeups: 0 }
    }

    /// Sleeps until the descriptor is readable. Returns `false` after the time limit.
    fn sleep(&mut self, most: Duration) -> bool {
        let mut events = [MaybeUninit::<Event>::uninit(); 1];
        let timeout = Timespec::try_from(most).unwrap();
        let (ready, _) = epoll::wait(&self.epoll, &mut events, Some(&timeout)).unwrap();
        self.wakeups += 1;
        !ready.is_empty()
    }
}

/// Serves everything that has come.
fn serve(events: &mut EventLoop) {
    for _ in 0..100_000 {
        if events.poll_once(1000).unwrap() == 0 {
            return;
        }
    }
    panic!("the loop finds something for ever");
}

/// A link in an event loop of this thread, and its other end.
fn own_loop(options: Options) -> (EventLoop, Link, Connection) {
    let context = Context::with_options(options).unwrap();
    let (near, far) = pair_of(&context, &context);
    let mut events = EventLoop::new(&context).unwrap();
    let link = events.reactor().adopt(near).unwrap();
    (events, link, far)
}

#[test]
fn the_descriptor_of_an_own_loop_tells_of_every_message() {
    for (options, edge) in
        spins().into_iter().flat_map(|options| [(options.clone(), false), (options, true)])
    {
        let (mut events, link, mut far) = own_loop(options);
        let mut sleeper = Loop::new(&events, edge);
        echo(&link);
        serve(&mut events);
        sleeper.sleep(Duration::ZERO);
        serve(&mut events);
        for round in 0..200u32 {
            assert!(!sleeper.sleep(Duration::ZERO), "edge {edge}, round {round}: nothing was sent");
            far.send(&round.to_le_bytes()).unwrap();
            assert!(sleeper.sleep(LONG), "edge {edge}, round {round}: the message is missed");
            serve(&mut events);
            assert_eq!(receive(&mut far), round.to_le_bytes());
        }
        assert!(!sleeper.sleep(SHORT), "edge {edge}: readable for nothing");
        // And of what other threads ask for.
        let (say, said) = diary();
        let reactor = events.reactor();
        thread::spawn(move || reactor.defer(move || say(()))).join().unwrap();
        assert!(sleeper.sleep(LONG), "the deferred work is missed");
        serve(&mut events);
        hear(&said);
    }
}

#[test]
fn no_wake_up_is_lost_between_an_own_loop_and_its_peer() {
    const ROUNDS: u32 = 20_000;
    for (options, edge) in
        spins().into_iter().flat_map(|options| [(options.clone(), false), (options, true)])
    {
        let (mut events, link, mut far) = own_loop(options);
        let mut sleeper = Loop::new(&events, edge);
        let next = Arc::new(AtomicU64::new(0));
        let counted = next.clone();
        link.on_message(move |link, message| {
            let number = counted.fetch_add(1, Ordering::Relaxed) as u32;
            assert_eq!(message.to_vec(), number.to_le_bytes());
            if number.is_multiple_of(7) {
                link.write(*b"go on");
            }
        });
        let (say, said) = diary();
        link.on_closed(move |_, result| say(result));
        let peer = thread::spawn(move || {
            for round in 0..ROUNDS {
                far.send(&round.to_le_bytes()).unwrap();
                for _ in 0..(round * 7) % 1000 {
                    std::hint::spin_loop();
                }
                if round % 7 == 0 {
                    assert_eq!(receive(&mut far), b"go on");
                }
            }
            far.close().unwrap();
        });
        let end = loop {
            serve(&mut events);
            if let Ok(end) = said.try_recv() {
                break end;
            }
            assert!(sleeper.sleep(LONG), "edge {edge}: lost after {next:?}");
        };
        end.unwrap();
        assert_eq!(next.load(Ordering::Relaxed), u64::from(ROUNDS));
        peer.join().unwrap();
    }
}

#[test]
fn the_descriptor_of_an_own_loop_tells_of_room() {
    for (edge, len) in [(false, 1000), (true, 1000), (false, 100_000), (true, 100_000)] {
        let options = Options::new().ring_capacity(4096).loan_slots(4).spin(Spin::Never);
        let (mut events, link, mut far) = own_loop(options);
        let mut sleeper = Loop::new(&events, edge);
        serve(&mut events);
        let mut sent = 0u32;
        for _ in 0..10 {
            let message = |sent| numbered(sent, len);
            loop {
                match link.try_send(&message(sent)) {
                    Ok(()) => sent += 1,
                    Err(TrySendError::Full { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let (say, said) = diary();
            link.write_with(message(sent), move |_, result| say(result));
            sent += 1;
            assert!(matches!(link.try_send(b"late"), Err(TrySendError::Full { .. })), "in order");
            serve(&mut events);
            while sleeper.sleep(Duration::ZERO) {
                assert!(sleeper.wakeups < 1000, "the loop spins");
                serve(&mut events);
            }
            assert!(said.try_recv().is_err(), "there was no room");
            assert!(events.timeout().is_some(), "room in the pool is looked for");
            for next in sent - 1 - (sent - 1).min(3)..sent - 1 {
                let got = receive(&mut far);
                assert_eq!(got.len(), len, "{next}");
            }
            let done = loop {
                assert!(sleeper.sleep(LONG), "edge {edge}, {len} bytes: the room is missed");
                serve(&mut events);
                if let Ok(done) = said.try_recv() {
                    break done;
                }
                // Not room enough.
                receive(&mut far);
            };
            done.unwrap();
            while far.receiver().try_recv().is_ok() {}
            serve(&mut events);
            assert_eq!(events.timeout(), None, "nothing waits");
        }
    }
}

#[test]
fn the_descriptor_of_an_own_loop_tells_of_an_end() {
    for edge in [false, true] {
        let (mut events, link, far) = own_loop(Options::new());
        let mut sleeper = Loop::new(&events, edge);
        let (say, said) = diary();
        link.on_closed(move |_, result| say(result));
        serve(&mut events);
        sleeper.sleep(Duration::ZERO);
        serve(&mut events);
        far.close().unwrap();
        while said.try_recv().map(Result::unwrap).is_err() {
            assert!(sleeper.sleep(LONG), "edge {edge}: the end is missed");
            serve(&mut events);
        }
        assert!(!link.is_open());
        // Nor does a loop without links spin.
        sleeper.wakeups = 0;
        while sleeper.sleep(SHORT) {
            serve(&mut events);
            assert!(sleeper.wakeups < 10, "the loop spins");
        }
    }
}

#[test]
fn small_budgets_starve_no_link() {
    let context = Context::new().unwrap();
    let mut events = EventLoop::new(&context).unwrap();
    let reactor = events.reactor();
    let (loud, mut louder) = pair_of(&context, &context);
    reactor.adopt(loud).unwrap().on_message(|_, _| ());
    let (say, said) = diary();
    let mut whisperers: Vec<_> = (0..3)
        .map(|index| {
            let (quiet, whisperer) = pair_of(&context, &context);
            let say = say.clone();
            reactor.adopt(quiet).unwrap().on_message(move |_, _| say(index));
            whisperer
        })
        .collect();
    let mut next = || {
        for _ in 0..10_000 {
            // There is always something on the first link.
            while louder.sender().try_send(b"shout").is_ok() {}
            assert!(events.poll_once(4).unwrap() > 0);
            if let Ok(index) = said.try_recv() {
                return index;
            }
        }
        panic!("the quiet links are not served");
    };
    for whisper in 0..100 {
        // All of them are looked at in turn, wherever they stand.
        for whisperer in &mut whisperers {
            whisperer.send(b"whisper").unwrap();
        }
        let heard: HashSet<usize> = (0..3).map(|_| next()).collect();
        assert_eq!(heard.len(), 3, "whisper {whisper}");
    }
}

#[test]
fn an_idle_reactor_sleeps() {
    let test = "an_idle_reactor_sleeps";
    let mut other = Other::start(test, "", |_| {
        for options in spins() {
            let context = Context::with_options(options).unwrap();
            let reactor = Reactor::spawn(&context).unwrap();
            let mut ends: Vec<_> = (0..10)
                .map(|_| {
                    let (near, far) = pair_of(&context, &context);
                    echo(&reactor.adopt(near).unwrap());
                    far
                })
                .collect();
            reactor
                .accept_with(context.listen(unique_name()).unwrap(), |_| ControlFlow::Continue(()))
                .unwrap();
            let mut exchange = || {
                for far in &mut ends {
                    far.send(b"x").unwrap();
                    assert_eq!(receive(far), b"x");
                }
            };
            exchange();
            let before = processor_time();
            thread::sleep(Duration::from_millis(500));
            let spent = processor_time() - before;
            assert!(spent < Duration::from_millis(100), "{spent:?} for nothing");
            exchange();
        }
    });
    other.succeeds();
}

#[test]
fn a_message_callback_is_replaced_also_from_inside_of_it() {
    let (reactor, link, mut far) = served(Options::new());
    for message in [b"a", b"b", b"c"] {
        far.send(message).unwrap();
    }
    let (say, said) = diary();
    let spent = Arc::new(());
    let held = spent.clone();
    link.on_message(move |link, message| {
        let _held = &held;
        say(("first", message.to_vec()));
        let say = say.clone();
        link.on_message(move |link, message| {
            say(("second", message.to_vec()));
            let say = say.clone();
            link.on_message(move |_, message| say(("third", message.to_vec())));
        });
    });
    for expected in [("first", b"a"), ("second", b"b"), ("third", b"c")] {
        assert_eq!(hear(&said), (expected.0, expected.1.to_vec()));
    }
    far.send(b"d").unwrap();
    assert_eq!(hear(&said), ("third", b"d".to_vec()));
    settle(&reactor);
    assert_eq!(Arc::strong_count(&spent), 1, "what was replaced is dropped");
}

#[test]
fn messages_wait_while_nobody_wants_them_and_the_end_comes_after_them() {
    for (options, far_lives) in
        spins().into_iter().flat_map(|options| [(options.clone(), true), (options, false)])
    {
        let (reactor, link, mut far) = served(options);
        let (say, said) = diary();
        let closed = say.clone();
        link.on_closed(move |_, result| closed(format!("closed {result:?}")));
        settle(&reactor);
        far.send(b"1").unwrap();
        far.send(b"2").unwrap();
        far.send(&[3; 30_000]).unwrap();
        far.send(b"4").unwrap();
        let mut far = Some(far);
        if !far_lives {
            far.take().unwrap().close().unwrap();
        }
        let read = say.clone();
        link.read_with(move |_, message| read(format!("read {:?}", message.unwrap())));
        assert_eq!(hear(&said), "read Some([49])");
        // Twice, so that the loop has been through its turns.
        settle(&reactor);
        settle(&reactor);
        assert!(said.try_recv().is_err());
        assert!(link.is_open(), "three messages wait");
        let read = say.clone();
        link.read_with(move |_, message| read(format!("read {:?}", message.unwrap())));
        let message = say.clone();
        link.on_message(move |_, each| message(format!("message of {}", each.len())));
        assert_eq!(hear(&said), "read Some([50])");
        assert_eq!(hear(&said), "message of 30000");
        assert_eq!(hear(&said), "message of 1");
        drop(far);
        assert_eq!(hear(&said), "closed Ok(())");
        assert!(!link.is_open());
    }
}

#[test]
fn what_a_connection_had_set_aside_comes_first() {
    for by_descriptor in [false, true] {
        let (mut near, mut far) = pair(Options::new());
        if by_descriptor {
            // As somebody's who had it in a loop of its own.
            assert!(near.as_fd().as_fd().try_clone_to_owned().is_ok());
            let _ = near.receiver().try_recv();
        }
        let peer = thread::spawn(move || {
            let request = far.recv_request().unwrap().unwrap();
            far.send(b"first").unwrap();
            let asked = far.submit(b"question").unwrap();
            far.send(b"second").unwrap();
            far.respond(request.id, b"answer").unwrap();
            far.send(b"third").unwrap();
            (far, asked)
        });
        assert_eq!(near.call_deadline(b"request", soon()).unwrap(), b"answer");
        let (mut far, asked) = peer.join().unwrap();
        let context = Context::new().unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let link = reactor.adopt(near).unwrap();
        let (say, said) = diary();
        let read = say.clone();
        link.read_with(move |_, message| read(message.unwrap().unwrap()));
        assert_eq!(hear(&said), b"first");
        link.on_message(move |link, message| {
            if let MessageKind::Request(id) = message.kind() {
                link.respond(id, *b"response");
            }
            say(message.to_vec());
        });
        assert_eq!(hear(&said), b"question");
        assert_eq!(hear(&said), b"second");
        assert_eq!(hear(&said), b"third");
        assert_eq!(far.wait_deadline(asked, soon()).unwrap(), b"response");
        for round in 0..100u32 {
            far.send(&round.to_le_bytes()).unwrap();
            assert_eq!(hear(&said), round.to_le_bytes());
        }
    }
}

// Reads and writes.

#[test]
fn reads_get_a_message_each_in_order_and_nothing_on_a_close() {
    for options in spins() {
        let (_reactor, link, mut far) = served(options);
        let (say, said) = diary();
        let read = |number: u32| {
            let say = say.clone();
            link.read_with(move |_, message| say((number, message.map_err(|e| e.kind().clone()))));
        };
        (0..3).for_each(read);
        for number in 0..6u32 {
            far.send(&number.to_le_bytes()).unwrap();
        }
        (3..8).for_each(read);
        let closed = say.clone();
        link.on_closed(move |_, result| closed((99, Ok(result.map(|()| None).unwrap()))));
        for number in 0..6u32 {
            assert_eq!(hear(&said), (number, Ok(Some(number.to_le_bytes().to_vec()))));
        }
        assert!(said.try_recv().is_err());
        far.close().unwrap();
        assert_eq!(hear(&said), (6, Ok(None)));
        assert_eq!(hear(&said), (7, Ok(None)));
        assert_eq!(hear(&said), (99, Ok(None)));
        read(8);
        assert_eq!(hear(&said), (8, Ok(None)), "the same later on");
    }
}

#[test]
fn ten_thousand_reads_each_from_inside_of_the_one_before() {
    const COUNT: u32 = 10_000;
    fn read(link: &Link, number: u32, say: impl Fn(u32) + Clone + Send + 'static) {
        link.read_with(move |link, message| {
            assert_eq!(message.unwrap().unwrap(), number.to_le_bytes());
            if number + 1 < COUNT {
                read(link, number + 1, say);
            } else {
                say(number);
            }
        });
    }
    for options in spins() {
        let (_reactor, link, mut far) = served(options.ring_capacity(4096));
        let (say, said) = diary();
        read(&link, 0, say);
        for number in 0..COUNT {
            far.send(&number.to_le_bytes()).unwrap();
        }
        assert_eq!(hear(&said), COUNT - 1);
    }
}

#[test]
fn writes_far_beyond_the_ring_arrive_in_order_and_complete_once_each_in_order() {
    const COUNT: u32 = 3000;
    let len = |number: u32| match number % 50 {
        0 => 20_000,
        25 => 9_000,
        rest => rest as usize * 11,
    };
    for options in spins() {
        let (_reactor, link, mut far) = served(options.ring_capacity(4096).loan_slots(3));
        let (say, said) = diary();
        for number in 0..COUNT {
            let say = say.clone();
            link.write_with(numbered(number, len(number)), move |_, result| say((number, result)));
        }
        // From a callback, too.
        let again = say.clone();
        link.write_with(*b"last", move |link, result| {
            again((COUNT, result));
            link.write_with(*b"from a callback", move |_, result| again((COUNT + 1, result)));
        });
        for number in 0..COUNT {
            assert_eq!(receive(&mut far), numbered(number, len(number)), "{number}");
        }
        assert_eq!(receive(&mut far), b"last");
        assert_eq!(receive(&mut far), b"from a callback");
        drop(say);
        for number in 0..COUNT + 2 {
            let (completed, result) = hear(&said);
            assert_eq!(completed, number);
            result.unwrap();
        }
        let more = said.recv_timeout(HANG);
        assert!(
            matches!(more, Err(mpsc::RecvTimeoutError::Disconnected)),
            "a write completes twice"
        );
    }
}

#[test]
fn completions_keep_their_order_while_room_comes_and_goes() {
    const COUNT: u32 = 30_000;
    let (_reactor, link, mut far) = served(Options::new().ring_capacity(4096));
    let (say, said) = diary();
    let reader = thread::spawn(move || {
        for number in 0..COUNT {
            assert_eq!(receive(&mut far)[..4], number.to_le_bytes());
        }
        far
    });
    for number in 0..COUNT {
        let say = say.clone();
        link.write_with(numbered(number, number as usize % 300), move |_, result| {
            say((number, result));
        });
    }
    for number in 0..COUNT {
        let (completed, result) = hear(&said);
        assert_eq!(completed, number);
        result.unwrap();
    }
    reader.join().unwrap();
}

#[test]
fn a_close_delivers_the_writes_that_wait_and_takes_no_more() {
    const COUNT: u32 = 500;
    let (_reactor, link, mut far) = served(Options::new().ring_capacity(4096));
    let (say, said) = diary();
    let closed = say.clone();
    link.on_closed(move |_, result| closed((u32::MAX, result)));
    for number in 0..COUNT {
        let say = say.clone();
        link.write_with(numbered(number, 300), move |_, result| say((number, result)));
    }
    link.close();
    link.close();
    let late = say.clone();
    link.write_with(*b"late", move |_, result| late((COUNT, result)));
    match link.try_send(b"late") {
        Err(TrySendError::Full { .. }) => {}
        Err(TrySendError::Failed(error)) => assert_eq!(*error.kind(), ErrorKind::LinkClosed),
        other => panic!("a closed link takes a message: {other:?}"),
    }
    for number in 0..COUNT {
        assert_eq!(receive(&mut far), numbered(number, 300));
    }
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
    let mut completed = Vec::new();
    loop {
        match hear(&said) {
            (u32::MAX, result) => break result.unwrap(),
            (COUNT, result) => assert_eq!(kind(result), ErrorKind::LinkClosed),
            (number, result) => {
                result.unwrap();
                completed.push(number);
            }
        }
    }
    assert_eq!(completed, (0..COUNT).collect::<Vec<_>>());
}

#[test]
fn each_wait_is_told_of_the_end_of_the_link_and_the_end_comes_last() {
    const COUNT: u32 = 200;
    for by_us in [false, true] {
        let (reactor, link, far) = served(Options::new().ring_capacity(4096));
        let (say, said) = diary();
        let closed = say.clone();
        link.on_closed(move |_, result| closed(("closed", 0, result)));
        for number in 0..COUNT {
            let say = say.clone();
            link.write_with(numbered(number, 300), move |_, result| say(("write", number, result)));
        }
        let called = say.clone();
        link.call_with(*b"question", move |_, answer| called(("call", 0, answer.map(drop))));
        let read = say.clone();
        link.read_with(move |_, answer| read(("read", 0, answer.map(drop))));
        settle(&reactor);
        let why = if by_us {
            reactor.shutdown();
            ErrorKind::ReactorStopped
        } else {
            drop(far);
            ErrorKind::PeerClosed
        };
        let (mut writes, mut calls, mut reads) = (Vec::new(), 0, 0);
        loop {
            let (what, number, result) = hear(&said);
            match (what, result) {
                ("write", result) => {
                    writes.push(number);
                    // A write that completed before the end has succeeded.
                    assert!(result.is_ok_and(|()| number < 20) || number >= 5, "{number}");
                }
                ("call", result) => {
                    calls += 1;
                    assert_eq!(kind(result), why);
                }
                ("read", result) => {
                    reads += 1;
                    match result {
                        Ok(()) => assert!(!by_us),
                        Err(error) => assert_eq!(*error.kind(), why),
                    }
                }
                ("closed", result) => break result.unwrap(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((calls, reads), (1, 1));
        assert_eq!(writes, (0..COUNT).collect::<Vec<_>>());
        drop(say);
        assert!(said.recv_timeout(HANG).is_err(), "nothing comes after the end");
        let late = link.try_send(b"late").unwrap_err();
        assert!(matches!(late, TrySendError::Failed(error) if *error.kind() == why));
    }
}

// Calls.

#[test]
fn several_calls_in_flight_from_both_sides_get_their_own_answers() {
    const COUNT: u32 = 200;
    for (options, ring) in
        spins().into_iter().flat_map(|each| [(each.clone(), 4096), (each, 65536)])
    {
        let context = Context::with_options(options.ring_capacity(ring)).unwrap();
        let (near, far) = pair_of(&context, &context);
        let reactor = Reactor::spawn(&context).unwrap();
        let ends = [reactor.adopt(near).unwrap(), reactor.adopt(far).unwrap()];
        let (say, said) = diary();
        for (side, link) in ends.iter().enumerate() {
            // Answers ten at a time, the last one first.
            let mut asked = Vec::new();
            link.on_message(move |link, message| {
                let MessageKind::Request(id) = message.kind() else { panic!("a plain message") };
                asked.push((id, message.to_vec()));
                if asked.len() == 10 {
                    for (id, mut body) in asked.drain(..).rev() {
                        body.push(side as u8);
                        link.respond(id, body);
                    }
                }
            });
        }
        for number in 0..COUNT {
            for (side, link) in ends.iter().enumerate() {
                let say = say.clone();
                let len = if number % 20 == 0 { 20_000 } else { 100 };
                let mut expected = numbered(number, len);
                expected.push(1 - side as u8);
                link.call_with(numbered(number, len), move |_, answer| {
                    assert!(answer.unwrap() == expected);
                    say((side, number));
                });
            }
        }
        let answered: HashSet<_> = (0..2 * COUNT).map(|_| hear(&said)).collect();
        assert_eq!(answered.len(), 2 * COUNT as usize);
        assert!(ends.iter().all(Link::is_open));
    }
}

#[test]
fn calls_and_plain_connections_understand_each_other() {
    let (_reactor, link, mut far) = served(Options::new());
    let (say, said) = diary();
    link.call_with(*b"to you", move |_, answer| say(answer.unwrap()));
    let request = far.recv_request().unwrap().unwrap();
    assert_eq!(request.body, b"to you");
    far.respond(request.id, b"from me").unwrap();
    assert_eq!(hear(&said), b"from me");
    link.on_message(|link, message| match message.kind() {
        MessageKind::Request(id) => link.respond(id, message.to_vec()),
        other => panic!("{other:?}"),
    });
    assert_eq!(far.call_deadline(b"echo", soon()).unwrap(), b"echo");
    // A read is for messages; requests go by it.
    let (say, said) = diary();
    link.read_with(move |_, message| say(message.unwrap().unwrap()));
    assert_eq!(far.call_deadline(b"again", soon()).unwrap(), b"again");
    far.send(b"plain").unwrap();
    assert_eq!(hear(&said), b"plain");
}

#[test]
fn a_response_that_nobody_asked_for_ends_the_link_and_no_other() {
    let mut stage = Stage::new(Options::new());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let (near, mut far) = pair_of(&stage.context, &stage.context);
    echo(&reactor.adopt(near).unwrap());
    for id in [0u64, 1, u64::MAX] {
        let (connection, mut peer) = stage.link();
        let link = reactor.adopt(connection).unwrap();
        let (say, said) = diary();
        link.on_closed(move |_, result| say(result));
        peer.publish(raw::header(raw::RESPONSE, 8), &id.to_le_bytes());
        peer.wake_loop();
        let expected = ErrorKind::Fault(Fault::UnknownRequest { id });
        assert_eq!(kind(hear(&said)), expected);
        let late = link.try_send(b"late").unwrap_err();
        assert!(matches!(late, TrySendError::Failed(error) if *error.kind() == expected));
    }
    // A second answer is one, too.
    let (connection, mut peer) = stage.link();
    let link = reactor.adopt(connection).unwrap();
    let (say, said) = diary();
    let answered = say.clone();
    link.call_with(*b"question", move |_, answer| answered(answer));
    link.on_closed(move |_, result| say(result.map(|()| Vec::new())));
    settle(&reactor);
    for _ in 0..2 {
        peer.publish(raw::header(raw::RESPONSE, 8), &1u64.to_le_bytes());
    }
    peer.wake_loop();
    assert_eq!(hear(&said).unwrap(), b"");
    assert_eq!(kind(hear(&said)), ErrorKind::Fault(Fault::UnknownRequest { id: 1 }));
    far.send(b"on").unwrap();
    assert_eq!(receive(&mut far), b"on");
    stage.is_undisturbed();
}

#[test]
fn calls_that_cannot_be_sent_cost_nothing() {
    let (_reactor, link, mut far) = served(Options::new().max_message(1000));
    let (say, said) = diary();
    for _ in 0..5000 {
        let say = say.clone();
        link.call_with(vec![0; 1001], move |_, answer| say(answer));
        let error = hear(&said).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::MessageTooLarge { len: 1001, max: 1000 });
    }
    link.call_with(*b"question", move |_, answer| say(answer));
    let request = far.recv_request().unwrap().unwrap();
    far.respond(request.id, b"answer").unwrap();
    assert_eq!(hear(&said).unwrap(), b"answer");
}

// Tokens.

#[test]
fn tokens_run_their_functions_in_order_with_the_messages() {
    for options in spins() {
        let (reactor, link, mut far) = served(options.ring_capacity(4096));
        let (say, said) = diary();
        let message = say.clone();
        link.on_message(move |_, each| message(format!("message {}", each.len())));
        let mut count = 0;
        let token = link
            .register(move |_| {
                count += 1;
                say(format!("token {count}"));
            })
            .unwrap();
        // Handed over as its number.
        let token = Token::from(u32::from(token));
        for round in 1..=1000usize {
            far.sender().trigger(token).unwrap();
            far.send(&vec![0; round % 100]).unwrap();
            far.sender().trigger(token).unwrap();
            assert_eq!(hear(&said), format!("token {}", 2 * round - 1));
            assert_eq!(hear(&said), format!("message {}", round % 100));
            assert_eq!(hear(&said), format!("token {}", 2 * round));
        }
        // And many at once.
        for _ in 0..5000 {
            far.sender().trigger(token).unwrap();
        }
        for count in 2001..=7000 {
            assert_eq!(hear(&said), format!("token {count}"));
        }
        settle(&reactor);
        assert_eq!(link.stale_tokens(), 0);
    }
}

#[test]
fn links_trigger_each_others_tokens_also_where_they_wait_for_room() {
    for options in spins() {
        let context = Context::with_options(options.ring_capacity(4096)).unwrap();
        let (near, far) = pair_of(&context, &context);
        let (one, two) = (Reactor::spawn(&context).unwrap(), Reactor::spawn(&context).unwrap());
        let (near, far) = (one.adopt(near).unwrap(), two.adopt(far).unwrap());
        let (say, said) = diary();
        let mut count = 0;
        let token = near
            .register(move |link| {
                count += 1;
                link.write(u32::to_le_bytes(count));
            })
            .unwrap();
        far.on_message(move |_, message| say(message.to_vec()));
        const COUNT: u32 = 3000;
        for _ in 0..COUNT {
            far.trigger(token);
        }
        for count in 1..=COUNT {
            assert_eq!(hear(&said), count.to_le_bytes());
        }
        assert_eq!(near.stale_tokens(), 0);
    }
}

#[test]
fn a_token_is_taken_back_also_by_its_own_function() {
    let (_reactor, link, mut far) = served(Options::new());
    let (say, said) = diary();
    let own = Arc::new(Mutex::new(None));
    let (seen, ran) = (own.clone(), say.clone());
    let held = Arc::new(());
    let holds = held.clone();
    let token = link
        .register(move |link| {
            let _holds = &holds;
            let token: Token = seen.lock().unwrap().unwrap();
            assert!(link.unregister(token));
            assert!(!link.unregister(token), "twice");
            ran("once");
        })
        .unwrap();
    *own.lock().unwrap() = Some(token);
    let other = say.clone();
    let stays = link.register(move |_| other("stays")).unwrap();
    far.sender().trigger(token).unwrap();
    far.sender().trigger(token).unwrap();
    far.sender().trigger(stays).unwrap();
    assert_eq!(hear(&said), "once");
    assert_eq!(hear(&said), "stays");
    assert_eq!(link.stale_tokens(), 1);
    assert_eq!(Arc::strong_count(&held), 1, "the function is dropped");
    // Its place is used again, under another name.
    let third = say.clone();
    let fresh = link.register(move |_| third("fresh")).unwrap();
    assert_ne!(fresh, token);
    far.sender().trigger(token).unwrap();
    far.sender().trigger(fresh).unwrap();
    assert_eq!(hear(&said), "fresh");
    assert_eq!(link.stale_tokens(), 2);
    assert!(link.unregister(fresh));
    far.sender().trigger(fresh).unwrap();
    far.sender().trigger(stays).unwrap();
    assert_eq!(hear(&said), "stays");
    assert_eq!(link.stale_tokens(), 3);
}

#[test]
fn foreign_and_invented_tokens_do_nothing_but_count() {
    let context = Context::new().unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let (near, mut far) = pair_of(&context, &context);
    let (foreign, _its_peer) = pair_of(&context, &context);
    let (link, other) = (reactor.adopt(near).unwrap(), reactor.adopt(foreign).unwrap());
    let (say, said) = diary();
    let ran = say.clone();
    // Not the first one of its link, so that no registration of the other has its number.
    let unused = other.register(|_| ()).unwrap();
    let foreign = other.register(move |_| ran("foreign")).unwrap();
    assert!(other.unregister(unused));
    let token = link.register(move |_| say("own")).unwrap();
    let mut stale = 0;
    for invented in [foreign, unused]
        .into_iter()
        .chain([0, 1, 0xFFFF, 0x1_FFFF, 0xFFFF_0000, u32::MAX].map(Token::from))
    {
        if invented == token {
            // The links number their tokens alike.
            continue;
        }
        stale += 1;
        far.sender().trigger(invented).unwrap();
        far.sender().trigger(token).unwrap();
        assert_eq!(hear(&said), "own", "{invented:?}");
        assert_eq!(link.stale_tokens(), stale);
    }
    assert!(stale >= 6);
    assert_eq!(other.stale_tokens(), 0);
}

#[test]
fn a_flood_of_stale_tokens_keeps_no_other_link_from_answering() {
    const FLOOD: u64 = 100_000;
    for options in spins() {
        let mut stage = Stage::new(options);
        let reactor = Reactor::spawn(&stage.context).unwrap();
        let (near, mut far) = pair_of(&stage.context, &stage.context);
        echo(&reactor.adopt(near).unwrap());
        let (connection, mut liar) = pair_of(&stage.context, &stage.context);
        let link = reactor.adopt(connection).unwrap();
        let flood = thread::spawn(move || {
            for number in 0..FLOOD {
                liar.sender().trigger(Token::from(number as u32 * 7)).unwrap();
            }
            liar
        });
        let mut answers = 0;
        while !flood.is_finished() || answers == 0 {
            far.send(b"still here?").unwrap();
            assert_eq!(receive(&mut far), b"still here?");
            answers += 1;
        }
        let _liar = flood.join().unwrap();
        wait_until("the last token", || link.stale_tokens() == FLOOD);
        assert!(link.is_open(), "stale tokens are no fault");
        stage.is_undisturbed();
    }
}

// Many links.

/// The state of the sending side of one link among many.
#[derive(Debug)]
struct Lane {
    link: Link,
    sent: u32,
    came_back: u32,
}

/// A generator of pseudo-random numbers.
fn shuffle(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn three_hundred_links_with_random_traffic_lose_nothing_and_keep_their_order() {
    const LINKS: usize = 300;
    const BALLS: usize = 40;
    const HOPS: u64 = 40_000;
    for options in [Spin::Never, Spin::Adaptive { max: Duration::from_micros(200) }]
        .map(|spin| Options::new().spin(spin).ring_capacity(4096))
    {
        let context = Context::with_options(options).unwrap();
        let (one, two) = (Reactor::spawn(&context).unwrap(), Reactor::spawn(&context).unwrap());
        let lanes: Arc<Mutex<Vec<Lane>>> = Arc::default();
        let (say, said) = diary();
        let hops = Arc::new(AtomicU64::new(0));
        let random = Arc::new(Mutex::new(0x9E37_79B9_7F4A_7C15));
        // A ball that comes back is thrown over another link.
        let throw = {
            let (lanes, random) = (lanes.clone(), random.clone());
            move || {
                let drawn = shuffle(&mut random.lock().unwrap());
                let mut lanes = lanes.lock().unwrap();
                // At times a few links have it all, so that the others cool down.
                let among = if drawn % 3000 < 1500 { LINKS } else { 5 };
                let lane = &mut lanes[(drawn >> 20) as usize % among];
                let len =
                    if drawn.is_multiple_of(97) { 9000 } else { (drawn >> 40) as usize % 200 };
                lane.link.write(numbered(lane.sent, len));
                lane.sent += 1;
            }
        };
        for index in 0..LINKS {
            let (near, far) = pair_of(&context, &context);
            let mut next = 0u32;
            two.adopt(far).unwrap().on_message(move |link, message| {
                let message = message.to_vec();
                assert_eq!(message[..4], next.to_le_bytes(), "link {index}");
                next += 1;
                link.write(message);
            });
            let link = one.adopt(near).unwrap();
            lanes.lock().unwrap().push(Lane { link: link.clone(), sent: 0, came_back: 0 });
            let (lanes, throw, hops) = (lanes.clone(), throw.clone(), hops.clone());
            let (say, failed) = (say.clone(), say.clone());
            link.on_message(move |_, message| {
                let mut number = [0; 4];
                message.bytes().slice(0, 4).copy_to(&mut number);
                {
                    let lane = &mut lanes.lock().unwrap()[index];
                    assert_eq!(u32::from_le_bytes(number), lane.came_back, "link {index}");
                    lane.came_back += 1;
                }
                if hops.fetch_add(1, Ordering::Relaxed) + (BALLS as u64) < HOPS {
                    throw();
                } else {
                    say(Ok(()));
                }
            });
            link.on_closed(move |_, result| failed(Err(result)));
        }
        for _ in 0..BALLS {
            throw();
        }
        // The last ones, each of which is not thrown again.
        for ball in 0..BALLS {
            let landed = said.recv_timeout(3 * HANG);
            let thrown = hops.load(Ordering::Relaxed);
            let landed = landed.unwrap_or_else(|_| panic!("ball {ball} is lost, {thrown} hops"));
            landed.unwrap();
        }
        let lanes = std::mem::take(&mut *lanes.lock().unwrap());
        assert!(lanes.iter().all(|lane| lane.sent == lane.came_back && lane.sent > 0));
        assert_eq!(lanes.iter().map(|lane| u64::from(lane.sent)).sum::<u64>(), HOPS);
    }
}

/// A reactor arms links that are silent while one is busy, and all of them when it sleeps; a burst over
/// all of them then wakes some, and warms the others up with them.
#[test]
fn links_that_were_silent_answer_a_burst_whether_the_loop_sleeps_or_not() {
    const LINKS: usize = 150;
    let context = Context::new().unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let mut links: Vec<Connection> = (0..LINKS)
        .map(|_| {
            let (near, far) = pair_of(&context, &context);
            echo(&reactor.adopt(far).unwrap());
            near
        })
        .collect();
    let mut drawn = 0x2545_F491_4F6C_DD1D;
    for round in 0..15u32 {
        // More turns than a silent link stays hot for, or none.
        for number in 0..if round % 3 == 0 { 12_000u32 } else { 0 } {
            links[round as usize].send(&number.to_le_bytes()).unwrap();
            assert_eq!(receive(&mut links[round as usize]), number.to_le_bytes());
        }
        thread::sleep(Duration::from_micros(shuffle(&mut drawn) % 8000));
        for _ in 0..2 {
            links.iter_mut().for_each(|link| link.send(&numbered(round, 40)).unwrap());
            for (index, link) in links.iter_mut().enumerate() {
                assert_eq!(receive(link), numbered(round, 40), "link {index}");
            }
        }
    }
}

#[test]
fn a_hundred_thousand_sleeps_are_woken_from() {
    const ROUNDS: u32 = 100_000;
    let (_reactor, link, mut far) = served(Options::new().spin(Spin::Never));
    echo(&link);
    // An honest peer's wake-ups never end a link, however many sleeps find something at once.
    let (say, end) = diary();
    link.on_closed(move |_, result| say(result));
    for round in 0..ROUNDS {
        far.send(&round.to_le_bytes()).unwrap();
        match far.receiver().recv_deadline(soon()) {
            Ok(back) => assert_eq!(back.unwrap(), round.to_le_bytes()),
            Err(error) => panic!("round {round}: {error}, {:?}", end.recv_timeout(HANG)),
        }
    }
}

#[test]
fn two_reactors_wake_each_other_from_a_hundred_thousand_sleeps() {
    const ROUNDS: u32 = 100_000;
    let context = Context::with_options(Options::new().spin(Spin::Never)).unwrap();
    let (near, far) = pair_of(&context, &context);
    let (one, two) = (Reactor::spawn(&context).unwrap(), Reactor::spawn(&context).unwrap());
    let (near, far) = (one.adopt(near).unwrap(), two.adopt(far).unwrap());
    echo(&far);
    let progress = Arc::new(AtomicU64::new(0));
    let (say, said) = diary();
    let mut next = 0u32;
    let done = progress.clone();
    near.on_message(move |link, message| {
        assert_eq!(message.to_vec(), next.to_le_bytes());
        next += 1;
        done.store(next.into(), Ordering::Relaxed);
        if next == ROUNDS {
            say(());
        } else {
            link.write(next.to_le_bytes());
        }
    });
    near.write(0u32.to_le_bytes());
    let mut before = 0;
    while said.recv_timeout(HANG).is_err() {
        let now = progress.load(Ordering::Relaxed);
        assert!(now > before, "it stands still after {now} rounds");
        before = now;
    }
}

// Accepting.

#[test]
fn many_clients_are_accepted_until_the_callback_breaks() {
    const CLIENTS: usize = 40;
    for options in spins() {
        let context = Context::with_options(options).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let name = unique_name();
        let serving = reactor.clone();
        let mut left = CLIENTS;
        let listener = context.listen(&name).unwrap();
        reactor
            .accept_with(listener, move |accepted| {
                echo(&serving.adopt(accepted.unwrap()).unwrap());
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        thread::scope(|scope| {
            for group in 0..4u8 {
                let (context, name) = (&context, &name);
                scope.spawn(move || {
                    let mut links = Vec::new();
                    for number in 0..CLIENTS as u8 / 4 {
                        let mut link = context.connect_deadline(name, soon()).unwrap();
                        link.send(&[group, number]).unwrap();
                        assert_eq!(receive(&mut link), [group, number]);
                        links.push(link);
                    }
                    for link in &mut links {
                        link.send(b"again").unwrap();
                        assert_eq!(receive(link), b"again");
                    }
                });
            }
        });
        wait_until("the listener's end", || {
            let late = context.connect_deadline(&name, soon());
            late.is_err_and(|error| matches!(error.kind(), ErrorKind::NobodyListens { .. }))
        });
    }
}

#[test]
fn a_silent_peer_is_dropped_at_its_deadline_although_nothing_else_happens() {
    let options = Options::new().handshake_timeout(Duration::from_millis(50)).spin(Spin::Never);
    let context = Context::with_options(options).unwrap();
    let name = unique_name();
    // On a thread, and in a loop of its own, which sleeps on its descriptor alone.
    let reactor = Reactor::spawn(&context).unwrap();
    let (say, said) = diary();
    let accept = move |accepted: Result<Connection, Error>| {
        say(accepted.map(drop));
        ControlFlow::Continue(())
    };
    reactor.accept_with(context.listen(&name).unwrap(), accept.clone()).unwrap();
    let silent = raw::dial(&name);
    while raw::receive(&silent).is_some() {}
    drop(context.connect_deadline(&name, soon()).unwrap());
    while hear(&said).is_err() {}

    let own = unique_name();
    let mut events = EventLoop::new(&context).unwrap();
    let mut sleeper = Loop::new(&events, false);
    events.reactor().accept_with(context.listen(&own).unwrap(), accept).unwrap();
    serve(&mut events);
    assert_eq!(events.timeout(), None, "nobody is silent");
    let silent = raw::dial(&own);
    assert!(sleeper.sleep(LONG));
    serve(&mut events);
    assert_eq!(events.timeout(), None, "the descriptor tells the end of its time");
    assert!(sleeper.sleep(LONG));
    serve(&mut events);
    while raw::receive(&silent).is_some() {}
}
