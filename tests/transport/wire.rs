//! `tests/peer.py`, an independent peer written from `docs/wire.md` alone, talks to the library. It checks a listener
//! that echoes, and echoes the messages of the library.
//!
//! Without `python3` each test prints that it skips.

// The peer knows the orderings of this architecture only.
#![cfg(target_arch = "x86_64")]

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use slipring::error::{TryRecvError, TrySendError};
use slipring::message::MessageKind;
use slipring::options::{PeerPolicy, Spin};
use slipring::stats::Stats;
use slipring::{Connection, ErrorKind, Options, Result, Sender, meta};

use crate::support::python::{Echo, body, called, in_time};
use crate::support::{Witness, soon, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Lengths that differ in layout: an empty body, the lines and limits of records, the ring and the pool.
const LENGTHS: [usize; 14] =
    [0, 1, 8, 55, 56, 57, 64, 512, 513, 4 << 10, (4 << 10) + 1, 16 << 10, 1 << 20, 57];

/// Longer than anything takes.
const LONG: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

fn smallest_rings() -> Options {
    Options::new().ring_capacity(4096)
}

/// Sends back what comes until the peer closes, each body as `reply` makes it.
fn echo(link: &mut Connection, reply: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<()> {
    while let Some(received) = in_time(|deadline| link.receiver().peek_deadline(deadline))? {
        let (kind, body) = (received.kind(), reply(received.bytes().to_vec()));
        received.release()?;
        match kind {
            MessageKind::Message => {
                in_time(|deadline| link.sender().send_deadline(&body, deadline))?
            }
            MessageKind::Request(id) => in_time(|_| link.respond(id, &body))?,
            other => panic!("{other:?}, and nothing was asked"),
        }
    }
    Ok(())
}

/// As [`echo`], in an event loop that sleeps on the connection's descriptor. Returns how often it slept.
fn echo_in_a_loop(link: &mut Connection) -> Result<u32> {
    // Asked for before anything is looked for: from now on finding nothing arms.
    let _ = link.as_fd();
    let mut unsent: VecDeque<Vec<u8>> = VecDeque::new();
    for sleeps in 0.. {
        let mut progress = true;
        while progress {
            progress = false;
            while let Some(body) = unsent.front() {
                match link.sender().try_send(body) {
                    Ok(()) => progress = unsent.pop_front().is_some(),
                    Err(TrySendError::Full { .. }) => break,
                    Err(TrySendError::Failed(error)) => return Err(error),
                }
            }
            match link.receiver().try_peek() {
                Ok(Some(received)) => {
                    let (kind, body) = (received.kind(), received.bytes().to_vec());
                    received.release()?;
                    match kind {
                        MessageKind::Request(id) => in_time(|_| link.respond(id, &body))?,
                        _ => unsent.push_back(body),
                    }
                    progress = true;
                }
                Ok(None) => return Ok(sleeps),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Failed(error)) => return Err(error),
            }
        }
        let ready = poll(&mut [PollFd::new(link, PollFlags::IN)], Some(&LONG)).unwrap();
        assert_eq!(ready, 1, "nobody woke it");
    }
    unreachable!()
}

/// Lets peer.py check an echoing listener: all of its steps.
fn is_checked(options: Options) {
    let Some((mut listener, python)) = called(options, "requests") else { return };
    let mut link = listener.accept_deadline(soon()).unwrap();
    assert_eq!(link.peer().pid(), Some(python.child.id()));
    echo(&mut link, |body| body).unwrap();
    let stats = link.stats();
    link.close().unwrap();
    python.succeeds();
    moved_in_every_way(stats);
}

/// Asserts that both halves moved messages in rings and pools, slept, and woke the other side.
fn moved_in_every_way(Stats { sent, received, .. }: Stats) {
    assert_eq!(sent.messages, received.messages);
    assert_eq!(sent.bytes, received.bytes);
    assert!(sent.pooled > 0 && sent.sleeps > 0 && sent.wakes > 0, "{sent:?}");
    assert!(received.pooled > 0 && received.sleeps > 0 && received.wakes > 0, "{received:?}");
}

#[test]
fn a_listener_keeps_every_rule() {
    is_checked(Options::new());
}

#[test]
fn a_listener_with_the_smallest_rings_and_one_loan_keeps_every_rule() {
    is_checked(smallest_rings().loan_slots(1).spin(Spin::Never));
}

#[test]
fn a_listener_with_large_rings_keeps_every_rule() {
    is_checked(Options::new().ring_capacity(1 << 20).inline_max(256 << 10));
}

#[test]
fn a_listener_in_an_event_loop_keeps_every_rule() {
    for options in [Options::new(), smallest_rings().loan_slots(1).spin(Spin::Never)] {
        let Some((mut listener, python)) = called(options, "requests") else { return };
        let mut link = listener.accept_deadline(soon()).unwrap();
        assert!(echo_in_a_loop(&mut link).unwrap() > 10);
        let stats = link.stats();
        link.close().unwrap();
        python.succeeds();
        moved_in_every_way(stats);
    }
}

#[test]
fn peer_py_finds_a_wrong_byte() {
    let Some((mut listener, python)) = called(Options::new(), "") else { return };
    let mut link = listener.accept_deadline(soon()).unwrap();
    let wrong = |mut body: Vec<u8>| {
        if body.len() == 513 {
            body[512] ^= 1;
        }
        body
    };
    let end = echo(&mut link, wrong).unwrap_err();
    assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    python.fails("513 bytes: 513 bytes came back");
}

#[test]
fn peer_py_is_refused() {
    let nobody = PeerPolicy::Custom(Arc::new(|_| false));
    let Some((mut listener, mut python)) = called(Options::new().peer_policy(nobody), "") else {
        return;
    };
    wait_until("the end of peer.py", || {
        assert!(listener.try_accept().unwrap().is_none());
        !python.is_running()
    });
    python.fails("refused: versions 1 to 1, code 1");
}

#[test]
fn a_listener_sees_that_peer_py_died() {
    let Some((mut listener, mut python)) = called(Options::new(), "") else { return };
    let mut link = listener.accept_deadline(soon()).unwrap();
    // It has published its first message, which is empty, and waits for the echo.
    assert!(
        in_time(|deadline| link.receiver().peek_deadline(deadline)).unwrap().unwrap().is_empty()
    );
    python.kill();
    assert_eq!(
        in_time(|deadline| link.receiver().recv_deadline(deadline)).unwrap(),
        Some(Vec::new())
    );
    is_dead(&mut link);
}

/// Asserts that nothing comes and nothing can be sent, because the peer died.
fn is_dead(link: &mut Connection) {
    let end = in_time(|deadline| link.receiver().recv_deadline(deadline)).unwrap_err();
    assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    for late in [&b"late"[..], &[0; 20_000]] {
        let end = in_time(|deadline| link.sender().send_deadline(late, deadline)).unwrap_err();
        assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    }
}

#[test]
fn every_length_comes_back() {
    for options in [Options::new(), smallest_rings(), Options::new().inline_max(0)] {
        let Some(mut echo) = Echo::new(options) else { return };
        for (seed, len) in LENGTHS.into_iter().enumerate() {
            echo.round_trip(&body(len, seed));
        }
        echo.close();
    }
}

#[test]
fn metadata_comes_back() {
    let Some(mut echo) = Echo::new(Options::new()) else { return };
    let long = "x".repeat(255);
    let all = [
        meta! { "stamp" => SystemTime::now(), "frame" => -7, "exposure" => 0.25, "camera" => "große", "yes" => true },
        meta! { "a" => &long, "b" => &long[..246] },
        meta! {},
    ];
    for metadata in all.map(Result::unwrap) {
        for (seed, len) in LENGTHS.into_iter().enumerate() {
            let body = body(len, seed);
            echo.link.sender().send_with(&body, &metadata).unwrap();
            let came = in_time(|deadline| echo.link.receiver().recv_with_deadline(deadline));
            assert_eq!(came.unwrap(), Some((body.clone(), metadata.clone())));
            assert_eq!(echo.link.call_with(&body, &metadata).unwrap(), (body, metadata.clone()));
        }
    }
    echo.close();
}

#[test]
fn rings_wrap_around() {
    let Some(mut echo) = Echo::new(smallest_rings()) else { return };
    let message = |i: usize| body(i * 37 % 900, i);
    // Three are on their way.
    for i in 0..2003 {
        if i < 2000 {
            echo.send(&message(i));
        }
        if i >= 3 {
            echo.comes_back(&message(i - 3));
        }
    }
    assert!(echo.link.stats().sent.bytes > 100 * 4096);
    echo.close();
}

#[test]
fn batches_come_back() {
    let Some(mut echo) = Echo::new(Options::new()) else { return };
    let lengths = [0, 3, 56, 57, 64, 200, 512, 513, 1000, 8, 4 << 10, 0];
    for turn in 0..50 {
        let bodies = lengths.map(|len| body(len.max(turn) - turn % 8, turn));
        let mut batch = echo.link.sender().batch().unwrap();
        bodies.iter().for_each(|body| batch.push(body).unwrap());
        batch.publish().unwrap();
        bodies.iter().for_each(|body| echo.comes_back(body));
    }
    echo.close();
}

/// Sends until both rings are full, long enough for peer.py to go to sleep for room.
fn fill(sender: &mut Sender, sent: &mut Vec<Vec<u8>>) {
    let deadline = soon();
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(100) {
        assert!(Instant::now() < deadline, "the rings do not get full");
        let message = body(100 + sent.len() % 5, sent.len());
        if sender.try_send(&message).is_ok() {
            sent.push(message);
            last = Instant::now();
        }
        thread::yield_now();
    }
}

#[test]
fn full_rings_put_both_sides_to_sleep_and_wake_them() {
    let Some(echo) = Echo::new(smallest_rings().spin(Spin::Never)) else { return };
    let (mut sender, mut receiver) = echo.link.split();
    // Once is enough, unless a side was late to go to sleep.
    wait_until("both sides sleep for room", || {
        let mut sent = Vec::new();
        fill(&mut sender, &mut sent);
        thread::scope(|scope| {
            let sends =
                scope.spawn(|| in_time(|deadline| sender.send_deadline(b"one more", deadline)));
            thread::sleep(Duration::from_millis(20));
            for message in sent.iter().map(Vec::as_slice).chain([&b"one more"[..]]) {
                assert_eq!(
                    in_time(|deadline| receiver.recv_deadline(deadline)).unwrap().as_deref(),
                    Some(message)
                );
            }
            sends.join().unwrap().unwrap();
        });
        sender.stats().sleeps > 0 && receiver.stats().wakes > 0
    });
    drop((sender, receiver));
    echo.python.succeeds();
}

#[test]
fn both_sides_sleep_for_a_record_and_wake_up() {
    for spin in [Spin::Never, Spin::Adaptive { max: Duration::from_micros(200) }] {
        let Some(mut echo) = Echo::new(Options::new().spin(spin)) else { return };
        // A side that is not woken lets the round trip run into its deadline.
        for round in 0..50 {
            thread::sleep(Duration::from_millis(round % 3));
            echo.round_trip(&body(20, round as usize));
        }
        wait_until("both sides sleep for a record", || {
            thread::sleep(Duration::from_millis(10));
            echo.round_trip(b"wake up");
            let Stats { sent, received, .. } = echo.link.stats();
            sent.wakes > 0 && received.sleeps > 0
        });
        echo.close();
    }
}

#[test]
fn requests_are_answered_in_any_order() {
    let Some(mut echo) = Echo::new(Options::new()) else { return };
    let bodies = [0, 10, 48, 49, 300, 5000, 100_000, 1 << 20].map(|len| body(len, len));
    for _ in 0..3 {
        let asked = bodies.each_ref().map(|body| echo.link.submit(body).unwrap());
        echo.send(b"a message between them");
        for (request, body) in asked.into_iter().zip(&bodies).rev() {
            let answer = in_time(|deadline| echo.link.wait_deadline(request, deadline)).unwrap();
            assert!(answer == *body, "{} bytes instead of {}", answer.len(), body.len());
        }
        echo.comes_back(b"a message between them");
        assert_eq!(
            in_time(|deadline| echo.link.call_deadline(b"question", deadline)).unwrap(),
            b"question"
        );
    }
    echo.close();
}

#[test]
fn pool_segments_that_peer_py_has_no_room_for_are_retired_and_sent_again() {
    // As few blocks as can be, so that the same ones are lent again.
    let options = Options::new().pool_footprint(1).pool_far_footprint(1);
    let Some(mut echo) = Echo::new(options) else { return };
    // Together they need more than the 24 MiB that peer.py maps.
    let messages = [16 << 20, 8 << 20, 4 << 20, 20_000].map(|len| body(len, len));
    for _ in 0..3 {
        messages.iter().for_each(|message| echo.round_trip(message));
    }
    echo.context.trim();
    echo.round_trip(&messages[3]);
    let said = echo.close();
    assert!(!said.contains(", 0 pool segments came again"), "{said}");
}

#[test]
fn a_half_that_closed_still_receives_all_and_the_orderly_end() {
    let Some(echo) = Echo::new(Options::new()) else { return };
    let (mut sender, mut receiver) = echo.link.split();
    for i in 0..100 {
        in_time(|deadline| sender.send_deadline(&body(50 + i, i), deadline)).unwrap();
    }
    drop(sender);
    for i in 0..100 {
        assert_eq!(
            in_time(|deadline| receiver.recv_deadline(deadline)).unwrap(),
            Some(body(50 + i, i))
        );
    }
    for _ in 0..2 {
        assert_eq!(in_time(|deadline| receiver.recv_deadline(deadline)).unwrap(), None);
    }
    drop(receiver);
    echo.python.succeeds();
}

#[test]
fn a_link_that_closes_unread_tells_peer_py_so() {
    let Some(mut echo) = Echo::new(Options::new()) else { return };
    echo.round_trip(b"hello");
    let (mut sender, receiver) = echo.link.split();
    drop(receiver);
    in_time(|deadline| sender.send_deadline(b"nobody reads the echo", deadline)).unwrap();
    echo.python.fails("the peer has closed");
    wait_until("writing fails", || {
        in_time(|deadline| sender.send_deadline(b"late", deadline)).is_err()
    });
}

#[test]
fn a_kill_wakes_a_wait_for_a_record() {
    let Some(mut echo) = Echo::new(Options::new()) else { return };
    echo.round_trip(b"hello");
    let link = &mut echo.link;
    thread::scope(|scope| {
        let waits = scope.spawn(|| in_time(|deadline| link.receiver().recv_deadline(deadline)));
        thread::sleep(Duration::from_millis(50));
        echo.python.kill();
        let end = waits.join().unwrap().unwrap_err();
        assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    });
    is_dead(&mut echo.link);
}

#[test]
fn a_kill_wakes_a_wait_for_room() {
    let Some(mut echo) = Echo::new(smallest_rings()) else { return };
    let mut sent = Vec::new();
    fill(echo.link.sender(), &mut sent);
    let link = &mut echo.link;
    thread::scope(|scope| {
        // On a busy machine there may have been room for some more.
        let waits = scope.spawn(|| {
            loop {
                sent.push(body(100, sent.len()));
                let message = sent.last().unwrap();
                if let Err(end) = in_time(|deadline| link.sender().send_deadline(message, deadline))
                {
                    return end;
                }
            }
        });
        thread::sleep(Duration::from_millis(50));
        echo.python.kill();
        let end = waits.join().unwrap();
        assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    });
    // The messages that peer.py had published are there. Only peer.py knew how many.
    let mut sent = sent.into_iter();
    let end = loop {
        match in_time(|deadline| echo.link.receiver().recv_deadline(deadline)) {
            Ok(message) => assert_eq!(message, sent.next()),
            Err(end) => break end,
        }
    };
    assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    is_dead(&mut echo.link);
}

#[test]
fn what_peer_py_had_sent_outlives_it_and_other_links_do_not_notice() {
    for len in [100, 1 << 20] {
        let Some(mut echo) = Echo::new(Options::new()) else { return };
        let mut witness = Witness::new(&echo.context);
        let message = body(len, len);
        echo.send(&message);
        let received =
            in_time(|deadline| echo.link.receiver().peek_deadline(deadline)).unwrap().unwrap();
        echo.python.kill();
        witness.check();
        assert!(received.bytes().to_vec() == message);
        received.release().unwrap();
        is_dead(&mut echo.link);
        witness.check();
    }
}
