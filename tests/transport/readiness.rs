//! A connection has a descriptor for the event loop of the user. The loop misses no message and does not spin, with
//! level- and edge-triggered readiness.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{HANG, pair, raw, soon, unique_name};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use slipring::error::{TryRecvError, TrySendError};
use slipring::{Connection, Context, ErrorKind, Listener, Options};

/// A loop over one descriptor.
#[derive(Debug)]
struct Loop {
    epoll: OwnedFd,
    wakeups: u32,
}

impl Loop {
    fn new(fd: impl AsFd, edge: bool) -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let mut events = EventFlags::IN | EventFlags::RDHUP;
        if edge {
            events |= EventFlags::ET;
        }
        epoll::add(&epoll, fd, EventData::new_u64(1), events).unwrap();
        Self { epoll, wakeups: 0 }
    }

    /// Sleeps until the descriptor is readable. Returns `false` after the time limit.
    fn sleep(&mut self, most: Duration) -> bool {
        let mut events = [MaybeUninit::<Event>::uninit(); 1];
        let timeout =
            Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        let (ready, _) = epoll::wait(&self.epoll, &mut events, Some(&timeout)).unwrap();
        self.wakeups += 1;
        !ready.is_empty()
    }
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(30);

fn drain(link: &mut Connection) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    loop {
        match link.receiver().try_recv() {
            Ok(Some(message)) => messages.push(message),
            Err(TryRecvError::Empty) => return messages,
            other => panic!("{other:?} after {} messages", messages.len()),
        }
    }
}

fn fill(link: &mut Connection, message: &[u8]) -> usize {
    let mut sent = 0;
    loop {
        match link.sender().try_send(message) {
            Ok(()) => sent += 1,
            Err(TrySendError::Full { .. }) => return sent,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn every_message_wakes_and_silence_lets_sleep() {
    for edge in [false, true] {
        let (mut near, mut far) = pair(Options::new());
        let mut events = Loop::new(&near, edge);
        assert!(drain(&mut near).is_empty());
        for round in 0..100u32 {
            assert!(!events.sleep(Duration::ZERO), "edge {edge}, round {round}: nothing was sent");
            far.send(&round.to_le_bytes()).unwrap();
            assert!(events.sleep(LONG), "edge {edge}, round {round}: the message is missed");
            assert_eq!(drain(&mut near), [round.to_le_bytes()]);
        }
        assert!(!events.sleep(SHORT), "edge {edge}: readable for nothing");
    }
}

#[test]
fn what_came_before_the_descriptor_was_asked_for_is_found_by_looking() {
    let (mut near, mut far) = pair(Options::new());
    far.send(b"early").unwrap();
    let mut events = Loop::new(&near, true);
    assert_eq!(drain(&mut near), [b"early"]);
    far.send(b"late").unwrap();
    assert!(events.sleep(LONG));
    assert_eq!(drain(&mut near), [b"late"]);
}

#[test]
fn room_for_a_long_message_is_told_of_behind_many_short_ones() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(1 << 20).loan_slots(1));
    let mut events = Loop::new(&near, false);
    let long = vec![7; 2 << 20];
    assert_eq!(fill(&mut near, &long), 1, "the peer lends one slot");
    // So many that a half which is awake would be hot.
    (0..200).for_each(|_| near.sender().try_send(&[1; 1000]).unwrap());
    assert_eq!(drain(&mut far).len(), 201);
    assert!(events.sleep(LONG), "the room is missed");
    near.sender().try_send(&long).unwrap();
}

#[test]
fn long_messages_wake_and_their_segments_do_not_spin() {
    for edge in [false, true] {
        let (mut near, mut far) = pair(Options::new());
        let mut events = Loop::new(&near, edge);
        for len in [10_000, 100_000, 1 << 20, 5 << 20] {
            assert!(drain(&mut near).is_empty());
            far.send(&vec![7; len]).unwrap();
            assert!(events.sleep(LONG));
            assert_eq!(drain(&mut near), [vec![7; len]]);
            assert!(!events.sleep(SHORT), "edge {edge}: readable for nothing");
        }
    }
}

#[test]
fn room_wakes_only_a_side_that_polled_for_it() {
    for (edge, len) in [(false, 1000), (true, 1000), (false, 100_000), (true, 100_000)] {
        let (mut near, mut far) = pair(Options::new().loan_slots(8));
        let mut events = Loop::new(&near, edge);
        assert!(drain(&mut near).is_empty());
        for round in 0..20 {
            let message = vec![round; len];
            assert!(fill(&mut near, &message) > 0);
            assert!(!events.sleep(Duration::ZERO), "no room yet");
            while far.receiver().recv_deadline(soon()).unwrap().unwrap() == message {
                if events.sleep(Duration::ZERO) {
                    break;
                }
            }
            // A little more room than the first edge told of does no harm.
            while far.receiver().try_recv().is_ok() {}
            assert!(drain(&mut near).is_empty());
        }
    }
}

#[test]
fn room_is_told_whichever_direction_is_served_first() {
    // A wake-up for room that is taken from the socket while data is looked for must not be lost for
    // a sender that polled for room before.
    for edge in [false, true] {
        for writes_first in [false, true] {
            let (mut near, mut far) = pair(Options::new());
            let mut events = Loop::new(&near, edge);
            assert!(drain(&mut near).is_empty());
            let peer = thread::spawn(move || {
                for round in 0..300u32 {
                    // Not until it is empty: the other side fills it as fast.
                    for _ in 0..20 {
                        let _ = far.receiver().try_recv();
                    }
                    far.send(&round.to_le_bytes()).unwrap();
                    assert!(far.receiver().recv_deadline(soon()).unwrap().is_some());
                }
                // Everything has been sent when this is.
                far.send(b"end").unwrap();
                while far.recv().unwrap().is_some() {}
            });
            let mut received = 0;
            let mut full = false;
            let deadline = Instant::now() + LONG;
            'serve: loop {
                for write in [writes_first, !writes_first] {
                    if write {
                        full = fill(&mut near, &[1; 4000]) > 0 || full;
                    } else {
                        for message in drain(&mut near) {
                            if message == b"end" {
                                break 'serve;
                            }
                            received += 1;
                        }
                    }
                }
                assert!(events.sleep(LONG), "edge {edge}, writes first {writes_first}: lost");
                assert!(Instant::now() < deadline, "{received} {events:?}");
            }
            assert_eq!(received, 300);
            assert!(full);
            near.close().unwrap();
            peer.join().unwrap();
        }
    }
}

#[test]
fn a_sender_that_finds_room_for_another_message_is_told_of_the_room_that_it_waits_for() {
    for edge in [false, true] {
        let (mut near, mut far) = pair(Options::new());
        let mut events = Loop::new(&near, edge);
        assert!(drain(&mut near).is_empty());
        assert!(fill(&mut near, &[1; 4000]) > 0);
        // Its record is short.
        near.sender().try_send(&[2; 100_000]).unwrap();
        assert!(!events.sleep(Duration::ZERO), "no room yet");
        while far.receiver().recv_deadline(soon()).unwrap().unwrap().len() == 4000 {}
        assert!(events.sleep(LONG), "the room is missed");
        near.sender().try_send(&[1; 4000]).unwrap();
    }
}

#[test]
fn data_is_told_however_often_there_is_no_room() {
    for edge in [false, true] {
        for len in [1000, 100_000] {
            let (mut near, mut far) = pair(Options::new());
            let mut events = Loop::new(&near, edge);
            assert!(fill(&mut near, &[1; 10]) > 0);
            assert!(drain(&mut near).is_empty());
            far.send(b"data").unwrap();
            for _ in 0..10 {
                assert!(near.sender().try_send(&vec![2; len]).is_err());
            }
            assert!(events.sleep(LONG), "edge {edge}, {len} bytes: lost");
            assert_eq!(drain(&mut near), [b"data"]);
        }
    }
}

#[test]
fn room_that_nobody_uses_does_not_spin() {
    let (mut near, mut far) = pair(Options::new());
    let mut events = Loop::new(&near, false);
    assert!(drain(&mut near).is_empty());
    fill(&mut near, &[1; 4000]);
    while far.receiver().try_recv().is_ok() {}
    // The descriptor is readable for the room. A caller that only receives sleeps after a few polls.
    events.wakeups = 0;
    while events.sleep(SHORT) {
        assert!(drain(&mut near).is_empty());
        assert!(events.wakeups < 10, "the loop spins");
    }
}

#[test]
fn a_side_that_only_sends_for_a_while_keeps_its_link() {
    for edge in [false, true] {
        let (mut near, mut far) = pair(Options::new());
        let mut events = Loop::new(&near, edge);
        assert!(drain(&mut near).is_empty());
        far.send(b"for later").unwrap();
        // Each round asks for a wake-up for room, and gets one behind that for the message.
        for round in 0..300 {
            assert!(fill(&mut near, &[1; 4000]) > 0, "round {round}");
            assert!(!drain(&mut far).is_empty());
            assert!(events.sleep(LONG), "edge {edge}, round {round}: the room is missed");
        }
        assert_eq!(drain(&mut near), [b"for later"]);
        for _ in 0..10 {
            assert!(drain(&mut near).is_empty());
        }
        far.send(b"the last").unwrap();
        assert!(events.sleep(LONG));
        assert_eq!(drain(&mut near), [b"the last"]);
    }
}

#[test]
fn a_close_and_a_death_wake() {
    for edge in [false, true] {
        let (mut near, far) = pair(Options::new());
        let mut events = Loop::new(&near, edge);
        assert!(drain(&mut near).is_empty());
        far.close().unwrap();
        assert!(events.sleep(LONG));
        assert_eq!(near.receiver().try_recv().unwrap(), None);
        // The first may have been read before the peer left.
        let _ = near.send(b"late");
        assert_eq!(*near.send(b"late").unwrap_err().kind(), ErrorKind::PeerClosed);
    }
}

#[test]
fn blocking_and_polling_take_turns() {
    let (mut near, mut far) = pair(Options::new());
    let mut events = Loop::new(&near, true);
    for round in 0..50u32 {
        assert!(drain(&mut near).is_empty());
        far.send(&round.to_le_bytes()).unwrap();
        assert_eq!(near.receiver().recv_deadline(soon()).unwrap().unwrap(), round.to_le_bytes());
        assert!(drain(&mut near).is_empty());
        far.send(&round.to_le_bytes()).unwrap();
        assert!(events.sleep(LONG));
        assert_eq!(drain(&mut near), [round.to_le_bytes()]);
    }
}

#[test]
fn no_wake_up_is_lost_between_a_sleeping_and_an_awake_side() {
    for edge in [false, true] {
        let (mut near, mut far) = pair(Options::new());
        let mut events = Loop::new(&near, edge);
        const ROUNDS: u32 = 30_000;
        let peer = thread::spawn(move || {
            for round in 0..ROUNDS {
                far.send(&round.to_le_bytes()).unwrap();
                if round % 3 == 0 {
                    // Sometimes the other side is about to sleep, sometimes it does.
                    for _ in 0..round % 1000 {
                        std::hint::spin_loop();
                    }
                }
                if round % 7 == 0 {
                    far.receiver().recv_deadline(soon()).unwrap().unwrap();
                }
            }
            while far.recv().unwrap().is_some() {}
        });
        let mut next = 0u32;
        while next < ROUNDS {
            for message in drain(&mut near) {
                assert_eq!(message, next.to_le_bytes());
                if next.is_multiple_of(7) {
                    near.send(b"go on").unwrap();
                }
                next += 1;
            }
            assert!(next == ROUNDS || events.sleep(LONG), "edge {edge}: lost after {next}");
        }
        near.close().unwrap();
        peer.join().unwrap();
    }
}

#[test]
fn a_listener_whose_queue_never_empties_rests_between_its_turns() {
    fn is_readable(listener: &Listener, patience: Duration) -> bool {
        let fds = &mut [PollFd::new(listener, PollFlags::IN)];
        rustix::event::poll(fds, Some(&patience.try_into().unwrap())).unwrap() > 0
    }
    let context = Context::new().unwrap();
    let name = unique_name();
    let mut listener = context.listen(&name).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let end = soon();
                while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
                    drop(raw::try_dial(&name));
                }
            });
        }
        let deadline = soon();
        let mut rested = false;
        while !rested && Instant::now() < deadline {
            let start = Instant::now();
            assert!(listener.try_accept().unwrap().is_none());
            // It left peers in the queue. After its rest the descriptor tells of them.
            rested = start.elapsed() >= Duration::from_micros(500)
                && !is_readable(&listener, Duration::ZERO)
                && is_readable(&listener, HANG);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(rested, "it stays readable");
    });
    // Its last rest does not keep a peer from connecting.
    let dialing = thread::spawn(move || context.connect(&name).map(drop));
    listener.accept_deadline(soon()).unwrap();
    dialing.join().unwrap().unwrap();
}
