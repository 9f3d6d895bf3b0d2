//! A peer that dies is noticed at once, at every step of a link, and leaves nothing behind.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::census::Census;
use crate::support::other::{
    Other, listen_for, over_threads_and_processes, say, wait_for_death, wait_until_asleep,
};
use crate::support::raw::{self, Hello, RawPeer};
use crate::support::{Stage, pair, pair_of, soon, trim, unique_name, wait_until};
use slipring::error::{Fault, TryRecvError, TrySendError};
use slipring::options::Spin;
use slipring::{Address, Connection, Context, Error, ErrorKind, Options};

/// The longest time from the death of a peer to its notice on a busy machine. On an idle one it takes less than a
/// millisecond.
const SEEN: Duration = Duration::from_secs(5);

/// The kind of a record that says that packets wait on the socket.
const PACKETS: u64 = 6;

/// In the other process: a link to the test.
fn connect(name: &str) -> Connection {
    Context::new().unwrap().connect_retry(name, soon()).unwrap()
}

/// A link to the other process.
fn accept(name: &str, options: Options) -> Connection {
    let context = Context::with_options(options).unwrap();
    let link = context.listen(name).unwrap().accept_deadline(soon()).unwrap();
    assert_ne!(link.peer().pid(), Some(std::process::id()));
    link
}

fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

/// A header, and the payload behind it.
type Filler<'a> = (u64, &'a [u8]);

/// Receives once, by one of the ways to receive. Returns whether something may follow.
type Receive = fn(&mut Connection) -> Result<bool, Error>;

#[test]
fn a_dead_peer_whose_ring_is_all_records_is_found_dead() {
    let message = (raw::message(8), &[7u8; 8][..]);
    let ways: [(&str, Filler<'_>, Receive); 7] = [
        ("recv", message, |link| Ok(link.recv()?.is_some())),
        ("recv_deadline", message, |link| Ok(link.receiver().recv_deadline(soon())?.is_some())),
        ("try_recv", message, |link| match link.receiver().try_recv() {
            Ok(message) => Ok(message.is_some()),
            Err(TryRecvError::Empty) => Ok(true),
            Err(TryRecvError::Failed(error)) => Err(error),
        }),
        ("peek", message, |link| {
            let Some(received) = link.receiver().peek()? else { return Ok(false) };
            received.release().map(|()| true)
        }),
        ("drain", message, |link| link.receiver().drain(1000, |_, _| ()).map(|_| true)),
        ("recv_request", (raw::header(raw::REQUEST, 16), &[7; 16]), |link| {
            Ok(link.recv_request()?.is_some())
        }),
        // One receive takes all records that say that packets wait.
        ("packets", (raw::header(PACKETS, 0), &[]), |link| {
            Ok(link.receiver().recv_deadline(soon())?.is_some())
        }),
    ];
    for (way, (header, payload), receive) in ways {
        let mut stage = Stage::new(Options::new());
        let (mut link, peer) = stage.link();
        let capacity = peer.hello.ring_capacity;
        peer.fill_ring(header, payload);
        drop(peer);
        let deadline = soon();
        let end = loop {
            match receive(&mut link) {
                Ok(true) => assert!(Instant::now() < deadline, "{way}: the end is not seen"),
                Ok(false) => panic!("{way}: the peer has not closed"),
                Err(error) => break error,
            }
        };
        match *end.kind() {
            ErrorKind::Fault(Fault::RecordsAfterEnd { len, capacity: holds }) => {
                assert!(holds == capacity && len <= capacity / 8 * 9, "{way}: {end}");
            }
            // No packet came for them.
            ErrorKind::Fault(Fault::PacketsAfterEnd { records, packets: 0 }) => {
                assert!(way == "packets" && records <= 2048, "{way}: {end}");
            }
            _ => panic!("{way}: {end:?}"),
        }
        assert_eq!(kind(link.recv()), *end.kind(), "{way}: the end is not the same");
        stage.is_undisturbed();
    }
}

#[test]
fn what_a_peer_has_published_before_its_death_is_received_to_the_last_record() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    // All that fits: an honest ring keeps two lines free.
    let records = peer.hello.ring_capacity / 64 - 2;
    for number in 0..records {
        peer.say(&number.to_le_bytes());
    }
    drop(peer);
    // The receiver has seen the end before it reads.
    wait_until("the end", || link.send(b"there?").is_err());
    for number in 0..records {
        assert_eq!(link.recv().unwrap().unwrap(), number.to_le_bytes());
    }
    assert_eq!(kind(link.recv()), ErrorKind::PeerDied);
    stage.is_undisturbed();
}

/// Runs an operation until it sleeps, kills the peer, and returns the answer of the operation.
fn kill_while_asleep<T: Send>(other: &mut Other, operation: impl FnOnce() -> T + Send) -> T {
    let (tell, told) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            answer.send(operation()).unwrap();
        });
        wait_until_asleep(told.recv().unwrap());
        other.kill();
        match answered.recv_timeout(SEEN) {
            Ok(answer) => answer,
            Err(_) => {
                // The scope would wait for the sleeper, for ever.
                eprintln!("the death is not seen after {SEEN:?}");
                std::process::exit(101);
            }
        }
    })
}

#[test]
fn two_sides_that_stop_reading_before_they_stop_sending_have_not_died() {
    for has_noticed in [false, true] {
        let (near, far) = pair(Options::new());
        let ((mut near, near_reader), (mut far, far_reader)) = (near.split(), far.split());
        drop((near_reader, far_reader));
        if has_noticed {
            // The message after which a sender sees that nobody reads counts as sent.
            let _ = near.send(b"unread");
            assert_eq!(kind(near.send(b"unread")), ErrorKind::PeerClosed);
        }
        drop(near);
        let _ = far.send(b"unread");
        assert_eq!(kind(far.send(b"unread")), ErrorKind::PeerClosed);
        thread::sleep(Duration::from_millis(20)); // The end of the socket is seen.
        assert_eq!(kind(far.send(b"unread")), ErrorKind::PeerClosed);
    }
}

#[test]
fn a_peer_killed_while_we_sleep_in_recv_is_seen() {
    let name = unique_name();
    let test = "a_peer_killed_while_we_sleep_in_recv_is_seen";
    let mut other = Other::start(test, &name, |name| {
        let _link = connect(name);
        wait_for_death();
    });
    let mut link = accept(&name, Options::new().spin(Spin::Never));
    let answer = kill_while_asleep(&mut other, || link.recv());
    assert_eq!(kind(answer), ErrorKind::PeerDied);
    assert_eq!(kind(link.recv()), ErrorKind::PeerDied);
    assert_eq!(kind(link.send(b"late")), ErrorKind::PeerDied);
    assert_eq!(kind(link.close()), ErrorKind::PeerDied);
}

#[test]
fn a_peer_killed_while_we_watch_for_it_is_seen() {
    let name = unique_name();
    let test = "a_peer_killed_while_we_watch_for_it_is_seen";
    let mut other = Other::start(test, &name, |name| {
        let _link = connect(name);
        wait_for_death();
    });
    let mut link = accept(&name, Options::new().spin(Spin::Forever));
    let watcher = thread::spawn(move || kind(link.recv()));
    other.kill();
    wait_until("the end", || watcher.is_finished());
    assert_eq!(watcher.join().unwrap(), ErrorKind::PeerDied);
}

#[test]
fn a_peer_killed_while_we_wait_for_room_is_seen() {
    let name = unique_name();
    let test = "a_peer_killed_while_we_wait_for_room_is_seen";
    let mut other = Other::start(test, &name, |name| {
        let _link = connect(name);
        wait_for_death();
    });
    let mut link = accept(&name, Options::new().spin(Spin::Never));
    while link.sender().try_send(b"fill").is_ok() {}
    let answer = kill_while_asleep(&mut other, || link.sender().send_deadline(b"more", soon()));
    assert_eq!(kind(answer), ErrorKind::PeerDied);
    assert_eq!(kind(link.send(b"late")), ErrorKind::PeerDied);
    assert_eq!(kind(link.recv()), ErrorKind::PeerDied);
}

#[test]
fn a_peer_killed_while_we_wait_for_its_loans_is_seen() {
    let name = unique_name();
    let test = "a_peer_killed_while_we_wait_for_its_loans_is_seen";
    let mut other = Other::start(test, &name, |name| {
        let _link = connect(name);
        wait_for_death();
    });
    let mut link = accept(&name, Options::new().pool_quota(64 << 10));
    link.send(&[1; 64 << 10]).unwrap();
    let (ended, end) = mpsc::channel();
    let sender = thread::spawn(move || {
        ended.send(kind(link.sender().send_deadline(&[2; 64 << 10], soon()))).unwrap();
    });
    thread::sleep(Duration::from_millis(20));
    other.kill();
    assert_eq!(end.recv_timeout(SEEN).unwrap(), ErrorKind::PeerDied);
    sender.join().unwrap();
}

#[test]
fn a_peer_killed_during_a_call_is_seen() {
    let name = unique_name();
    let test = "a_peer_killed_during_a_call_is_seen";
    let mut other = Other::start(test, &name, |name| {
        let _link = connect(name);
        wait_for_death();
    });
    let mut link = accept(&name, Options::new().spin(Spin::Never));
    let answer = kill_while_asleep(&mut other, || link.call_deadline(b"question", soon()));
    assert_eq!(kind(answer), ErrorKind::PeerDied);
}

#[test]
fn both_halves_see_the_death_of_their_peer() {
    let name = unique_name();
    let test = "both_halves_see_the_death_of_their_peer";
    let mut other = Other::start(test, &name, |name| {
        let _link = connect(name);
        wait_for_death();
    });
    let link = accept(&name, Options::new().spin(Spin::Never));
    let (mut outbox, mut inbox) = link.split();
    while outbox.try_send(b"fill").is_ok() {}
    let receiver = thread::spawn(move || kind(inbox.recv()));
    let answer = kill_while_asleep(&mut other, || outbox.send_deadline(b"more", soon()));
    assert_eq!(kind(answer), ErrorKind::PeerDied);
    assert_eq!(receiver.join().unwrap(), ErrorKind::PeerDied);
}

#[test]
fn a_death_is_seen_although_a_forked_child_holds_the_socket() {
    let name = unique_name();
    let test = "a_death_is_seen_although_a_forked_child_holds_the_socket";
    let mut other = Other::start(test, &name, |name| {
        let _link = connect(name);
        // SAFETY: the child calls nothing but what async-signal-safety allows.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above. It ends some time, whatever becomes of the test.
            unsafe { libc::sleep(60) };
            // SAFETY: `_exit` runs no handlers.
            unsafe { libc::_exit(0) };
        }
        say(&child.to_string());
        wait_for_death();
    });
    let mut link = accept(&name, Options::new().spin(Spin::Never));
    let child: i32 = other.hear().parse().unwrap();
    let sockets = |pid: i32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count()
    };
    let held = sockets(child);
    let answer = kill_while_asleep(&mut other, || link.recv());
    assert_eq!(kind(answer), ErrorKind::PeerDied);
    assert!(held > 0 && sockets(child) == held, "the child still holds the socket");
    assert_eq!(kind(link.send(b"late")), ErrorKind::PeerDied);
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

/// A message of a stream: its number, and bytes that follow from it.
fn numbered(number: u64) -> Vec<u8> {
    let len = match number % 50 {
        0 => 30_000,
        49 => 600,
        rest => rest as usize * 3,
    };
    let mut message = number.to_le_bytes().to_vec();
    message.resize(8 + len, number as u8);
    message
}

#[test]
fn what_was_published_before_a_death_is_delivered() {
    let name = unique_name();
    let test = "what_was_published_before_a_death_is_delivered";
    let mut other = Other::start(test, &name, |name| {
        let mut link = connect(name);
        (0..101).for_each(|number| link.send(&numbered(number)).unwrap());
        let mut batch = link.sender().batch().unwrap();
        (101..110).for_each(|number| batch.push(&numbered(number)).unwrap());
        batch.publish().unwrap();
        // A message that was never published is lost.
        let mut room = link.sender().reserve(8).unwrap();
        room.copy_from_slice(b"not sent");
        say("sent");
        wait_for_death();
    });
    let mut link = accept(&name, Options::new());
    other.expect("sent");
    other.kill();
    other.wait();
    // The end is known by now, and what came before it still stands.
    wait_until("the end", || link.send(b"late").is_err());
    for number in 0..110 {
        assert_eq!(link.recv().unwrap().unwrap(), numbered(number));
    }
    assert_eq!(kind(link.receiver().recv_deadline(soon())), ErrorKind::PeerDied);
    assert_eq!(kind(link.receiver().recv_deadline(soon())), ErrorKind::PeerDied);
}

#[test]
fn a_stream_cut_by_a_death_has_neither_gaps_nor_torn_messages() {
    let name = unique_name();
    let test = "a_stream_cut_by_a_death_has_neither_gaps_nor_torn_messages";
    let mut others: Vec<_> = (0..6)
        .map(|round| {
            Other::start(test, &format!("{name}-{round}"), |name| {
                let mut link = connect(name);
                for number in 0.. {
                    link.send(&numbered(number)).unwrap();
                }
            })
        })
        .collect();
    for (round, other) in others.iter_mut().enumerate() {
        let mut link = accept(&format!("{name}-{round}"), Options::new());
        let mut number = 0;
        let end = loop {
            if number == 1000 + 777 * round as u64 {
                other.kill();
            }
            match link.receiver().recv_deadline(soon()) {
                Ok(Some(message)) => assert_eq!(message, numbered(number)),
                Ok(None) => panic!("a killed peer has not closed in order"),
                Err(error) => break error,
            }
            number += 1;
        };
        assert_eq!(*end.kind(), ErrorKind::PeerDied);
        assert!(number >= 1000 + 777 * round as u64);
    }
}

#[test]
fn an_exit_without_a_close_is_a_death_and_a_close_is_none() {
    let name = unique_name();
    let test = "an_exit_without_a_close_is_a_death_and_a_close_is_none";
    let mut others: Vec<_> = ["exit", "close", "drop", "halves", "panic"]
        .map(|how| {
            let other = Other::start(test, &format!("{name} {how}"), |argument| {
                let (name, how) = argument.split_once(' ').unwrap();
                let mut link = connect(&format!("{name}-{how}"));
                link.send(b"last words").unwrap();
                match how {
                    "exit" => std::process::exit(0),
                    "close" => link.close().unwrap(),
                    "drop" => drop(link),
                    "halves" => drop(link.split()),
                    // A panic, without its text.
                    _ => std::panic::resume_unwind(Box::new(())),
                }
            });
            (how, other)
        })
        .into();
    for (how, other) in &mut others {
        let mut link = accept(&format!("{name}-{how}"), Options::new());
        other.wait();
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"last words");
        let end = link.receiver().recv_deadline(soon());
        match *how {
            "exit" => assert_eq!(kind(end), ErrorKind::PeerDied),
            _ => assert_eq!(end.unwrap(), None, "{how}"),
        }
    }
}

#[test]
fn a_listener_survives_a_peer_killed_at_every_step_of_the_handshake() {
    let name = unique_name();
    let test = "a_listener_survives_a_peer_killed_at_every_step_of_the_handshake";
    let steps = ["connected", "half a hello", "hello", "answered", "record"];
    let mut others: Vec<_> = steps
        .map(|step| {
            let other = Other::start(test, &format!("{name} {step}"), |argument| {
                let (name, step) = argument.split_once(' ').unwrap();
                listen_for("go");
                let socket = raw::dial(name);
                let mut _peer = None;
                match step {
                    "connected" => {}
                    "half a hello" => raw::send(&socket, &[0; 64], &[]).unwrap(),
                    _ => {
                        let mut peer = RawPeer::greet(socket.try_clone().unwrap(), Hello::honest());
                        if step != "hello" {
                            peer.meet();
                        }
                        if step == "record" {
                            peer.say(b"last words");
                        }
                        _peer = Some(peer);
                    }
                }
                say(step);
                wait_for_death();
            });
            (step, other)
        })
        .into();
    let context = Context::new().unwrap();
    let mut listener = context.listen(&name).unwrap();
    for (step, other) in &mut others {
        other.tell("go");
        let mut link = None;
        if matches!(*step, "answered" | "record") {
            link = Some(listener.accept_deadline(soon()).unwrap());
        }
        other.expect(step);
        other.kill();
        other.wait();
        if *step == "hello" {
            // A Hello in the queue is as good as its peer was when it said it.
            link = listener.accept_deadline(Instant::now() + Duration::from_secs(1)).ok();
        }
        if let Some(link) = &mut link {
            if *step == "record" {
                assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"last words");
            }
            assert_eq!(kind(link.receiver().recv_deadline(soon())), ErrorKind::PeerDied, "{step}");
        }
        let connector = thread::spawn({
            let (context, name) = (context.clone(), name.clone());
            move || context.connect_deadline(&name, soon()).unwrap()
        });
        let mut honest = listener.accept_deadline(soon()).unwrap();
        connector.join().unwrap().send(b"honest").unwrap();
        assert_eq!(
            honest.receiver().recv_deadline(soon()).unwrap().unwrap(),
            b"honest",
            "after {step}"
        );
    }
}

#[test]
fn a_listener_killed_at_every_step_of_the_handshake_is_seen() {
    let name = unique_name();
    let test = "a_listener_killed_at_every_step_of_the_handshake_is_seen";
    let steps = ["listening", "accepted", "heard", "answered"];
    let mut others: Vec<_> = steps
        .map(|step| {
            let other = Other::start(test, &format!("{name} {step}"), |argument| {
                let (name, step) = argument.split_once(' ').unwrap();
                let listener = raw::listen(&format!("{name}-{step}"));
                say("listening");
                listen_for("go");
                let mut _held = None;
                if step != "listening" {
                    let socket = raw::accept(&listener);
                    if step != "accepted" {
                        raw::receive(&socket).unwrap();
                    }
                    if step == "answered" {
                        RawPeer::greet(socket.try_clone().unwrap(), Hello::honest());
                    }
                    _held = Some(socket);
                }
                say(step);
                wait_for_death();
            });
            (step, other)
        })
        .into();
    for (step, other) in &mut others {
        other.expect("listening");
        let connector = thread::spawn({
            let name = format!("{name}-{step}");
            move || Context::new().unwrap().connect_deadline(&name, soon())
        });
        other.tell("go");
        other.expect(step);
        if *step == "listening" {
            // The connection waits in the queue, or is not there yet.
            thread::sleep(Duration::from_millis(20));
        }
        other.kill();
        let met = connector.join().unwrap();
        match *step {
            "answered" => {
                let mut link = met.unwrap();
                assert_eq!(kind(link.receiver().recv_deadline(soon())), ErrorKind::PeerDied);
            }
            "listening" => {
                let met = kind(met);
                let gone = matches!(met, ErrorKind::PeerClosed | ErrorKind::NobodyListens { .. });
                assert!(gone, "{met:?}");
            }
            _ => assert_eq!(kind(met), ErrorKind::PeerClosed, "{step}"),
        }
    }
}

#[test]
fn loans_of_a_dead_peer_come_back() {
    let name = unique_name();
    let test = "loans_of_a_dead_peer_come_back";
    let mut other = Other::start(test, &name, |name| {
        let mut link = connect(name);
        let _received = link.receiver().peek().unwrap().unwrap();
        say("reading");
        wait_for_death();
    });
    let block = 256 << 10;
    let context = Context::with_options(Options::new().pool_quota(block)).unwrap();
    let mut link = context.listen(&name).unwrap().accept_deadline(soon()).unwrap();
    let message = vec![3; block as usize];
    link.send(&message).unwrap();
    other.expect("reading");
    let (mut near, mut far) = pair_of(&context, &context);
    assert!(matches!(near.sender().try_send(&message), Err(TrySendError::Full { .. })));
    assert_eq!((context.trim(), context.pool_bytes()), (0, block));
    other.kill();
    near.sender().send_deadline(&message, soon()).unwrap();
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
    drop((near, far));
    wait_until("the last loan", || context.trim() == block || context.pool_bytes() == 0);
    assert_eq!(context.pool_bytes(), 0);
    assert_eq!(kind(link.send(&message)), ErrorKind::PeerDied);
}

#[test]
fn messages_stay_readable_after_their_sender_died() {
    let name = unique_name();
    let test = "messages_stay_readable_after_their_sender_died";
    let mut other = Other::start(test, &name, |name| {
        let mut link = connect(name);
        link.send(&[5; 5000]).unwrap();
        link.send(&vec![6; 3 << 20]).unwrap();
        say("sent");
        wait_for_death();
    });
    let mut link = accept(&name, Options::new());
    other.expect("sent");
    let received = link.receiver().peek().unwrap().unwrap();
    other.kill();
    other.wait();
    assert_eq!(received.bytes().to_vec(), vec![5; 5000]);
    received.release().unwrap();
    // The segment of this one was never looked at while its sender lived.
    let received = link.receiver().peek().unwrap().unwrap();
    let bytes = received.bytes();
    for at in [0, 4095, 1 << 20, (3 << 20) - 1] {
        assert_eq!(bytes.byte(at), 6);
    }
    received.release().unwrap();
    assert_eq!(kind(link.receiver().recv_deadline(soon())), ErrorKind::PeerDied);
}

#[test]
fn a_close_leaves_lent_memory_to_its_reader() {
    over_threads_and_processes(
        "a_close_leaves_lent_memory_to_its_reader",
        Options::new,
        |mut link| {
            let message = link.receiver().recv_deadline(soon()).unwrap().unwrap();
            assert_eq!(message, b"before");
            let received = link.receiver().peek().unwrap().unwrap();
            // The sender, its context and perhaps its process are gone when this is read.
            thread::sleep(Duration::from_millis(50));
            assert_eq!(received.bytes().to_vec(), vec![8; 1 << 20]);
            received.release().unwrap();
            assert_eq!(link.receiver().recv_deadline(soon()).unwrap(), None);
        },
        |mut link| {
            link.send(b"before").unwrap();
            link.send(&vec![8; 1 << 20]).unwrap();
            link.close().unwrap();
        },
    );
}

#[test]
fn a_block_that_a_reader_holds_is_not_lent_again_after_a_close() {
    let block = 64 << 10;
    let options = Options::new().pool_quota(block).release_grace(Duration::MAX);
    let context = Context::with_options(options).unwrap();
    let reader = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &reader);
    let (mut second, mut second_far) = pair_of(&context, &reader);
    near.send(&vec![0xAA; block as usize]).unwrap();
    let received = far.receiver().peek().unwrap().unwrap();
    near.close().unwrap();
    let other = vec![0xBB; block as usize];
    for _ in 0..20 {
        assert!(matches!(second.sender().try_send(&other), Err(TrySendError::Full { .. })));
        assert_eq!(context.trim(), 0);
        assert_eq!(received.bytes().to_vec(), vec![0xAA; block as usize]);
        thread::sleep(Duration::from_millis(1));
    }
    received.release().unwrap();
    second.sender().send_deadline(&other, soon()).unwrap();
    assert_eq!(second_far.receiver().recv_deadline(soon()).unwrap().unwrap(), other);
    assert_eq!(far.receiver().recv_deadline(soon()).unwrap(), None);
}

#[test]
fn a_stopped_peer_costs_a_sender_its_deadline_and_no_more() {
    let name = unique_name();
    let test = "a_stopped_peer_costs_a_sender_its_deadline_and_no_more";
    let mut other = Other::start(test, &name, |name| {
        let mut link = connect(name);
        let mut expected = 0u64;
        while let Some(message) = link.receiver().recv_deadline(soon()).unwrap() {
            assert_eq!(message, expected.to_le_bytes());
            expected += 1;
        }
        assert!(expected > 0);
    });
    let mut link = accept(&name, Options::new());
    let pid = rustix::process::Pid::from_raw(other.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut sent = 0u64;
    let late = loop {
        let deadline = Instant::now() + Duration::from_millis(50);
        match link.sender().send_deadline(&sent.to_le_bytes(), deadline) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(late.is_timeout(), "{late}");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    link.sender().send_deadline(&sent.to_le_bytes(), soon()).unwrap();
    link.close().unwrap();
    other.succeeds();
}

/// Asserts that the operation failed because its handle belongs to the parent.
fn forked<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert_eq!(kind(answer), ErrorKind::Forked);
}

/// Runs `child` in a forked child and waits for its end.
fn fork(child: impl FnOnce()) {
    // SAFETY: no thread of this process holds a lock of the allocator's for long, and glibc takes
    // them over `fork`; the child ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
        // SAFETY: `_exit` runs no handlers, as a child of a threaded process must not.
        unsafe { libc::_exit(if done { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `pid` is our child, `status` a valid place to write to.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the forked child failed");
}

#[test]
fn after_a_fork_the_childs_handles_say_so_and_touch_nothing() {
    let test = "after_a_fork_the_childs_handles_say_so_and_touch_nothing";
    let mut other = Other::start(test, "", |_| {
        let path = std::env::temp_dir().join(unique_name());
        let context = Context::new().unwrap();
        let address = Address::path(&path).unwrap();
        let mut listener = context.listen(&address).unwrap();
        let name = unique_name();
        let (mut near, mut far) = pair_of(&context, &context);
        near.send(&[1; 20_000]).unwrap();
        far.recv().unwrap();
        let (mut outbox, mut inbox) = far.split();
        fork(move || {
            forked(near.send(b"x"));
            forked(near.send(&[1; 20_000]));
            forked(near.recv());
            forked(near.receiver().recv_deadline(soon()));
            forked(near.call(b"x"));
            forked(near.sender().reserve(1).map(drop));
            forked(near.sender().reserve(20_000).map(drop));
            forked(near.sender().batch().map(drop));
            forked(near.receiver().peek().map(drop));
            forked(near.receiver().drain(1, |_, _| ()));
            forked(outbox.send(b"x"));
            forked(inbox.recv());
            forked(listener.accept());
            forked(listener.try_accept());
            forked(context.connect(&name));
            forked(context.listen(&name));
            forked(near.close());
            drop((outbox, inbox, listener, context));
        });
        say("done");
    });
    other.expect("done");
    other.succeeds();
}

#[test]
fn the_parent_goes_on_after_a_fork() {
    let test = "the_parent_goes_on_after_a_fork";
    let mut other = Other::start(test, "", |_| {
        let path = std::env::temp_dir().join(unique_name());
        let address = Address::path(&path).unwrap();
        let context = Context::new().unwrap();
        let mut listener = context.listen(&address).unwrap();
        let (mut near, mut far) = pair_of(&context, &context);
        near.send(&[1; 20_000]).unwrap();
        far.recv().unwrap();
        let bytes = context.pool_bytes();
        // The child's copies of the handles are dropped by moving them into its body; the parent's
        // own live on, because the body never runs here.
        let mut kept = Some((context, listener, near, far));
        fork(|| drop(kept.take()));
        let (context, kept_listener, mut near, mut far) = kept.take().unwrap();
        listener = kept_listener;
        assert_eq!(context.pool_bytes(), bytes);
        for len in [0, 40, 5000, 20_000, 1 << 20] {
            near.send(&vec![len as u8; len]).unwrap();
            assert_eq!(
                far.receiver().recv_deadline(soon()).unwrap().unwrap(),
                vec![len as u8; len]
            );
            far.send(&vec![len as u8; len]).unwrap();
            let back = near.receiver().recv_deadline(soon()).unwrap().unwrap();
            assert_eq!(back, vec![len as u8; len]);
        }
        assert!(path.exists(), "the child must not remove its parent's path");
        // A child that connects anew is a peer like any other.
        let server = thread::spawn(move || {
            let mut link = listener.accept_deadline(soon()).unwrap();
            assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"from the child");
            link.peer().pid()
        });
        fork(|| {
            let mut link = Context::new().unwrap().connect(&address).unwrap();
            link.send(b"from the child").unwrap();
            link.close().unwrap();
        });
        assert_ne!(server.join().unwrap(), Some(std::process::id()));
    });
    other.succeeds();
}

/// One link that was used both ways, inline and through the pool.
fn use_and_close(near: &Context, far: &Context, how: usize) {
    let (mut near, mut far) = pair_of(near, far);
    near.send(b"short").unwrap();
    near.send(&[1; 50_000]).unwrap();
    far.send(&[2; 50_000]).unwrap();
    if how.is_multiple_of(2) {
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"short");
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 50_000);
    }
    match how % 3 {
        0 => {
            near.close().unwrap();
            let _ = far.close();
        }
        1 => drop((far, near)),
        _ => {
            let (outbox, inbox) = near.split();
            drop(outbox);
            drop(far);
            drop(inbox);
        }
    }
}

#[test]
fn two_hundred_links_leave_nothing_behind() {
    let test = "two_hundred_links_leave_nothing_behind";
    let mut other = Other::start(test, "", |_| {
        let before = Census::take();
        {
            let (near, far) = (Context::new().unwrap(), Context::new().unwrap());
            for how in 0..6 {
                use_and_close(&near, &far, how);
            }
            let settled = || {
                trim(&near);
                trim(&far);
            };
            settled();
            let warm = Census::take();
            for how in 0..200 {
                use_and_close(&near, &far, how);
            }
            settled();
            warm.comes_back_but_for_a_spare();
        }
        // And the contexts go with their threads.
        before.comes_back();
    });
    other.succeeds();
}

#[test]
fn a_context_that_is_dropped_before_its_links_goes_with_them() {
    let test = "a_context_that_is_dropped_before_its_links_goes_with_them";
    let mut other = Other::start(test, "", |_| {
        let before = Census::take();
        for how in 0..20 {
            let (near, far) = (Context::new().unwrap(), Context::new().unwrap());
            let (mut near_end, mut far_end) = pair_of(&near, &far);
            drop((near, far));
            near_end.send(&[1; 50_000]).unwrap();
            assert_eq!(far_end.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 50_000);
            far_end.send(&[1; 50_000]).unwrap();
            if how % 2 == 0 {
                drop(near_end);
                drop(far_end);
            } else {
                drop(far_end);
                drop(near_end);
            }
        }
        before.comes_back();
    });
    other.succeeds();
}

#[test]
fn killed_peers_leave_nothing_behind() {
    let test = "killed_peers_leave_nothing_behind";
    let mut other = Other::start(test, "parent", |argument| {
        if argument != "parent" {
            let mut link = connect(argument);
            link.send(&[1; 50_000]).unwrap();
            // Neither released nor returned.
            let _received = link.receiver().peek().unwrap().unwrap();
            wait_for_death();
        }
        let context = Context::new().unwrap();
        let name = unique_name();
        let mut listener = context.listen(&name).unwrap();
        let mut round = || {
            let mut peer = Other::spawn(test, &name);
            let mut link = listener.accept_deadline(soon()).unwrap();
            link.send(&[2; 50_000]).unwrap();
            let received = link.receiver().peek_deadline(soon()).unwrap().unwrap();
            peer.kill();
            assert_eq!(received.bytes().to_vec(), vec![1; 50_000]);
            // Not released.
            drop(link);
            drop(peer);
            trim(&context);
        };
        (0..2).for_each(|_| round());
        let warm = Census::take();
        (0..15).for_each(|_| round());
        warm.comes_back_but_for_a_spare();
    });
    other.succeeds();
}

#[test]
fn refused_and_faulty_peers_leave_nothing_behind() {
    let test = "refused_and_faulty_peers_leave_nothing_behind";
    let mut other = Other::start(test, "", |_| {
        let context = Context::new().unwrap();
        let name = unique_name();
        let mut listener = context.listen(&name).unwrap();
        let mut round = |number: usize| {
            // Faulty in the handshake: descriptors that are too many, or the wrong ones.
            let (fd, memory) = raw::segment(raw::page());
            let socket = raw::dial(&name);
            let hello = Hello::honest().encode();
            let fds = vec![fd.as_fd(); number % 4];
            let _ = raw::send(&socket, &hello, &fds);
            drop(fd);
            assert!(listener.try_accept().unwrap().is_none());
            drop((socket, memory));
            // Faulty later.
            let mut peer = RawPeer::greet(raw::dial(&name), Hello::honest());
            let mut link = listener.accept_deadline(soon()).unwrap();
            peer.meet();
            link.send(&[1; 50_000]).unwrap();
            peer.send_segment(1, raw::page());
            peer.send_segment(2, raw::page());
            peer.header(0xFF);
            crate::support::fault(link.receiver().recv_deadline(soon()));
            drop((link, peer));
        };
        (0..4).for_each(&mut round);
        let settled = || {
            trim(&context);
        };
        settled();
        let warm = Census::take();
        (0..100).for_each(&mut round);
        settled();
        warm.comes_back_but_for_a_spare();
    });
    other.succeeds();
}

#[test]
fn a_link_to_oneself_ends_when_one_end_is_dropped() {
    let (mut near, far) = pair(Options::new());
    drop(far);
    assert_eq!(near.receiver().recv_deadline(soon()).unwrap(), None);
    wait_until("the end", || near.send(b"to nobody").is_err());
    assert_eq!(kind(near.send(b"to nobody")), ErrorKind::PeerClosed);
    near.close().unwrap();
}
