//! A receiver copies a long message out while the sender still copies it in. The sender announces its progress,
//! and a peer may lie about it.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::raw::*;
use crate::support::{HANG, Stage, pair, soon};
use slipring::error::TryRecvError;
use slipring::options::Spin;
use slipring::{Connection, ErrorKind, Options};

/// A segment of a raw peer, and the message that it tells of: as long as the library tells of any.
const SEGMENT: u64 = 1 << 20;
const LEN: u64 = 256 << 10;
const LENT: Lent = Lent { segment: 1, slot: 7, offset: 4096, len: LEN, generation: 9 };

/// A receiver that polls for as long as it waits, so that it sees each announcement.
fn watching() -> Options {
    Options::new().spin(Spin::Forever)
}

/// The time in which a waiting receiver copies what it is told of.
const TOLD: Duration = Duration::from_millis(5);

/// How a message is received.
type Receive = fn(&mut Connection);
type Take = fn(&mut Connection) -> Vec<u8>;

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(10)
}

/// Stops the thread that watches, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A link to a raw peer whose segment the library has at hand.
fn link(stage: &mut Stage) -> (Connection, RawPeer) {
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, SEGMENT);
    fill(&peer, b'a');
    peer.lend(Lent { slot: 0, ..LENT });
    assert!(link.receiver().recv_deadline(soon()).unwrap().unwrap() == vec![b'a'; LEN as usize]);
    (link, peer)
}

/// Overwrites the bytes that [`LENT`] names.
fn fill(peer: &RawPeer, byte: u8) {
    peer.pool[0].1.write(LENT.offset as usize, &vec![byte; LEN as usize]);
}

/// Tells of a message as a sender of the library does, behind an id or not.
fn tell(peer: &RawPeer, lent: Lent, told: u64) {
    let behind = 8 * (told & 1);
    peer.write(peer.head + 8 + behind, &lent.encode());
    peer.own.store(FILLED, told);
}

/// The bytes of a message whose first half a peer told of, before it overwrote all of them and published. Whether the
/// half was copied at once, or with the rest, is up to who runs when; this goes on until it was.
fn copied_ahead(stage: &mut Stage, told: u64, kind: u64, receive: fn(&mut Connection) -> Vec<u8>) {
    let deadline = soon();
    let half = LEN as usize / 2;
    loop {
        let (mut link, mut peer) = link(stage);
        let received = thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&mut link));
            tell(&peer, LENT, told);
            thread::sleep(Duration::from_millis(5));
            fill(&peer, b'b');
            peer.own.store(FILLED, 0);
            let mut payload = vec![0; 8 * (told as usize & 1)];
            payload.extend(LENT.encode());
            peer.publish(header(kind | POOLED, payload.len() as u64), &payload);
            receiver.join().unwrap()
        });
        assert_eq!(received.len(), 2 * half);
        assert!(received[half..].iter().all(|byte| *byte == b'b'), "nothing was told of the rest");
        if received[..half].iter().all(|byte| *byte == b'a') {
            return;
        }
        assert!(Instant::now() < deadline, "what is told of is not copied");
    }
}

#[test]
fn what_is_told_of_is_copied_before_it_is_a_message() {
    let mut stage = Stage::new(watching());
    copied_ahead(&mut stage, LEN / 2, MESSAGE, |link| {
        link.receiver().recv_deadline(soon()).unwrap().unwrap()
    });
    copied_ahead(&mut stage, LEN / 2, MESSAGE, |link| {
        let mut message = vec![0; 3];
        link.receiver().recv_into_deadline(&mut message, soon()).unwrap();
        message
    });
    copied_ahead(&mut stage, (LEN / 2) | 1, REQUEST, |link| {
        link.receiver().recv_request_deadline(soon()).unwrap().unwrap().body
    });
    stage.is_undisturbed();
}

#[test]
fn a_poll_sees_the_bytes_that_are_there_at_that_moment() {
    let mut stage = Stage::new(watching());
    let (mut link, mut peer) = link(&mut stage);
    let seen = thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let received = link.receiver().peek_deadline(soon()).unwrap().unwrap();
            let seen = received.bytes().to_vec();
            received.release().unwrap();
            seen
        });
        tell(&peer, LENT, LEN / 2);
        thread::sleep(Duration::from_millis(5));
        fill(&peer, b'b');
        peer.lend(LENT);
        looking.join().unwrap()
    });
    assert!(seen == vec![b'b'; LEN as usize]);
    stage.is_undisturbed();
}

#[test]
fn what_was_told_of_counts_for_no_other_message() {
    let mut stage = Stage::new(watching());
    let others = [
        Lent { offset: 2 * 4096, ..LENT },
        Lent { len: LEN - 1, ..LENT },
        Lent { slot: 8, ..LENT },
        Lent { generation: 10, ..LENT },
    ];
    let publications: [&dyn Fn(&mut RawPeer); 3] = [
        &|peer| peer.say(b"short"),
        &|peer| peer.publish(header(MESSAGE, 3000), &[3; 3000]),
        &|peer| peer.publish(CLOSE, &[]),
    ];
    let expected: [Option<Vec<u8>>; 3] = [Some(b"short".to_vec()), Some(vec![3; 3000]), None];
    let received = |stage: &mut Stage, publish: &dyn Fn(&mut RawPeer)| {
        let (mut link, mut peer) = link(stage);
        thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut message = vec![1; 5];
                let len = link.receiver().recv_into_deadline(&mut message, soon()).unwrap();
                (len, message)
            });
            tell(&peer, LENT, LEN);
            thread::sleep(Duration::from_millis(5));
            fill(&peer, b'b');
            publish(&mut peer);
            receiver.join().unwrap()
        })
    };
    for other in others {
        let (len, message) = received(&mut stage, &|peer| peer.lend(other));
        assert_eq!(len, Some(other.len as usize));
        let from = (other.offset - LENT.offset) as usize;
        let all = [vec![b'b'; LEN as usize], vec![0; from]].concat();
        assert!(message == all[from..][..other.len as usize], "{other:?}");
    }
    for (publish, expected) in publications.into_iter().zip(expected) {
        let (len, message) = received(&mut stage, publish);
        assert_eq!(len, expected.as_ref().map(Vec::len));
        assert!(message == expected.unwrap_or_default() || len.is_none() && message == [1; 5]);
    }
    stage.is_undisturbed();
}

#[test]
fn lies_about_what_is_there_are_ignored() {
    let mut stage = Stage::new(watching().max_message(SEGMENT));
    let descriptors = [
        LENT,
        Lent { segment: 2, ..LENT },
        Lent { segment: u32::MAX, ..LENT },
        Lent { slot: 256, ..LENT },
        Lent { slot: u32::MAX, ..LENT },
        Lent { offset: 4097, ..LENT },
        Lent { offset: SEGMENT, ..LENT },
        Lent { offset: u64::MAX - 63, ..LENT },
        Lent { len: 0, ..LENT },
        Lent { len: SEGMENT, ..LENT },
        Lent { len: SEGMENT + 1, ..LENT },
        Lent { len: u64::MAX, ..LENT },
    ];
    let told = [1, 2, 63, 64, 65, LEN - 64, LEN, LEN + 64, 1 << 40, u64::MAX - 1, u64::MAX];
    for lent in descriptors {
        let (mut link, mut peer) = link(&mut stage);
        let mut message = Vec::new();
        for told in told {
            tell(&peer, lent, told);
            let error = link.receiver().recv_into_deadline(&mut message, shortly()).unwrap_err();
            assert!(error.is_timeout() && message.is_empty(), "{lent:?} {told}: {error}");
            assert!(matches!(link.receiver().try_recv(), Err(TryRecvError::Empty)));
        }
        // A false announcement changes nothing, and the message that is sent arrives.
        peer.say(b"honest");
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"honest");
        peer.lend(LENT);
        assert!(
            link.receiver().recv_deadline(soon()).unwrap().unwrap() == vec![b'a'; LEN as usize]
        );
    }
    stage.is_undisturbed();
}

#[test]
fn a_peer_that_tells_again_and_again_delays_no_deadline() {
    for spin in [Spin::Forever, Spin::Adaptive { max: Duration::from_micros(400) }, Spin::Never] {
        let mut stage = Stage::new(Options::new().spin(spin));
        let (mut link, peer) = link(&mut stage);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                let (mut told, end) = (0, soon() + HANG);
                while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                    told = (told + 64) % (2 * LEN);
                    let offset = 64 * (told % 5);
                    tell(&peer, Lent { offset, ..LENT }, told);
                    if spin != Spin::Forever {
                        peer.own.ring(DATA_BELL);
                    }
                }
            });
            for _ in 0..5 {
                let start = Instant::now();
                let deadline = start + Duration::from_millis(20);
                assert!(link.receiver().recv_deadline(deadline).unwrap_err().is_timeout());
                assert!(start.elapsed() < HANG);
            }
        });
        stage.is_undisturbed();
    }
}

#[test]
fn only_a_wait_for_a_copy_sleeps_eagerly() {
    let mut stage = Stage::new(Options::new().spin(Spin::For(Duration::ZERO)));
    let (mut link, mut peer) = stage.link();
    let receptions: [(Receive, u64, u64); 4] = [
        (|link| drop(link.receiver().recv_deadline(soon()).unwrap()), MESSAGE, 5),
        (|link| drop(link.receiver().recv_request_deadline(soon()).unwrap()), REQUEST, 5),
        (
            |link| link.receiver().peek_deadline(soon()).unwrap().unwrap().release().unwrap(),
            MESSAGE,
            1,
        ),
        (|link| drop(link.receiver().recv_deadline(soon()).unwrap()), MESSAGE, 5),
    ];
    for (receive, kind, state) in receptions {
        thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&mut link));
            let mut seen = 0;
            crate::support::wait_until("it sleeps", || {
                seen = peer.theirs().load(RECEIVER_STATE);
                seen & 3 == 1
            });
            assert_eq!(seen & 7, state);
            peer.publish(header(kind, 8), &[0; 8]);
            receiver.join().unwrap();
        });
    }
    stage.is_undisturbed();
}

#[test]
fn a_receiver_whose_time_is_up_begins_anew() {
    let mut stage = Stage::new(watching());
    let (mut link, mut peer) = link(&mut stage);
    let mut message = Vec::new();
    for round in 0..20 {
        fill(&peer, b'a');
        tell(&peer, LENT, LEN / 2);
        let error = link.receiver().recv_into_deadline(&mut message, shortly()).unwrap_err();
        assert!(error.is_timeout() && message.is_empty(), "{error}");
        peer.own.store(FILLED, 0);
        fill(&peer, b'b');
        thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                link.receiver().recv_into_deadline(&mut message, soon()).unwrap();
            });
            tell(&peer, Lent { generation: 10 + round, ..LENT }, LEN / 2);
            thread::sleep(Duration::from_millis(1));
            peer.own.store(FILLED, 0);
            peer.lend(Lent { generation: 10 + round, ..LENT });
            receiver.join().unwrap();
        });
        assert!(message == vec![b'b'; LEN as usize], "round {round}");
    }
    stage.is_undisturbed();
}

#[test]
fn what_is_told_of_another_kind_is_left_until_it_comes() {
    let mut stage = Stage::new(watching());
    for (told, published) in [(1, REQUEST), (0, REQUEST), (1, MESSAGE)] {
        let (mut link, mut peer) = link(&mut stage);
        let (first, second) = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut message = b"before".to_vec();
                let receiver = link.receiver();
                let received = receiver.recv_into_deadline(&mut message, soon());
                if published != REQUEST {
                    received.unwrap().unwrap();
                    return (message, receiver.recv_deadline(soon()).unwrap().unwrap());
                }
                let met = received.unwrap_err();
                assert!(matches!(met.kind(), ErrorKind::OtherKind { .. }), "{met}");
                let request = receiver.recv_request_deadline(soon()).unwrap().unwrap();
                receiver.recv_into_deadline(&mut message, soon()).unwrap().unwrap();
                (request.body, message)
            });
            tell(&peer, LENT, LEN / 2 + told);
            thread::sleep(Duration::from_millis(5));
            peer.own.store(FILLED, 0);
            let id: &[u8] = if published == REQUEST { &[1, 0, 0, 0, 0, 0, 0, 0] } else { &[] };
            let payload = [id, &LENT.encode()].concat();
            peer.publish(header(published | POOLED, payload.len() as u64), &payload);
            peer.say(b"plain");
            receiver.join().unwrap()
        });
        assert!(first == vec![b'a'; LEN as usize]);
        assert_eq!(second, b"plain");
    }
    stage.is_undisturbed();
}

#[test]
fn a_telling_of_which_nothing_comes_wakes_a_sleeper_once() {
    let mut stage = Stage::new(Options::new().spin(Spin::For(Duration::ZERO)));
    let (mut link, mut peer) = stage.link();
    // It has never named this segment: the library does not look for it before it is a message.
    peer.send_segment(1, SEGMENT);
    fill(&peer, b'a');
    let is_parked = |peer: &RawPeer, state| peer.theirs().load(RECEIVER_STATE) & 7 == state;
    thread::scope(|scope| {
        let receiver = scope.spawn(|| link.receiver().recv_deadline(soon()).unwrap().unwrap());
        crate::support::wait_until("it sleeps", || is_parked(&peer, 5));
        for told in (64..LEN).step_by(LEN as usize / 32) {
            tell(&peer, LENT, told);
            if is_parked(&peer, 5) {
                peer.own.ring(DATA_BELL);
            }
            crate::support::wait_until("it sleeps, and is not eager", || is_parked(&peer, 1));
        }
        assert_eq!(peer.own.load(DATA_BELL), 1);
        peer.own.store(FILLED, 0);
        peer.lend(LENT);
        assert!(receiver.join().unwrap() == vec![b'a'; LEN as usize]);
    });
    stage.is_undisturbed();
}

#[test]
fn a_peer_that_ends_while_it_tells_leaves_no_message() {
    let mut stage = Stage::new(watching());
    let (mut link, peer) = link(&mut stage);
    let (error, message) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut message = Vec::new();
            let error = link.receiver().recv_into_deadline(&mut message, soon()).unwrap_err();
            (error, message)
        });
        tell(&peer, LENT, LEN);
        thread::sleep(Duration::from_millis(5));
        drop(peer);
        receiver.join().unwrap()
    });
    assert!(matches!(error.kind(), ErrorKind::PeerDied), "{error}");
    assert!(message.is_empty());
    stage.is_undisturbed();
}

/// A message as long as it takes to look at it while it is being copied.
const WATCHED: usize = 32 << 20;

/// Looks at the library's side of a link while that sends a long message.
fn look_while_sending(
    stage: &mut Stage,
    send: impl FnOnce(&mut Connection) + Send,
    prepare: impl FnOnce(&RawPeer),
    mut look: impl FnMut(&RawPeer, u64),
) -> u64 {
    let (mut link, peer) = stage.link();
    prepare(&peer);
    let data = 0x2000;
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            send(&mut link);
            link
        });
        let theirs = peer.theirs();
        let deadline = soon();
        loop {
            let told = theirs.load(FILLED);
            fence(Ordering::Acquire);
            match theirs.load(data) {
                0 if told > 0 => look(&peer, told),
                // Segments have come.
                0 => assert!(Instant::now() < deadline, "no message"),
                _ => break,
            }
        }
        let link = sending.join().unwrap();
        let bell = theirs.load(DATA_BELL);
        assert_eq!(theirs.load(FILLED), 0, "of what comes next nothing is told");
        drop(link);
        bell
    })
}

#[test]
fn a_sender_tells_how_much_is_there_and_where() {
    let deadline = soon();
    let mut seen = [0, 0];
    // The watching thread may be late each time.
    while seen.contains(&0) {
        let mut stage = Stage::new(Options::new());
        for (behind, seen) in [0, 1].into_iter().zip(&mut seen) {
            let send = move |link: &mut Connection| match behind {
                0 => link.send(&vec![5; WATCHED]).unwrap(),
                _ => drop(link.call_deadline(&vec![5; WATCHED], Instant::now())),
            };
            let mut last = 0;
            look_while_sending(
                &mut stage,
                send,
                |_| {},
                |peer, told| {
                    assert_eq!(told % 64, behind, "{told}");
                    assert!(
                        told > last && told < WATCHED as u64 || told == last,
                        "{told} after {last}"
                    );
                    let lent = Lent::read(peer.theirs(), 0x2000 + 8 * behind as usize);
                    let id = peer.theirs().load(0x2008);
                    assert!(behind == 0 || id == 1, "the first call's id, not {id}");
                    assert_eq!((lent.len, lent.offset % 64), (WATCHED as u64, 0));
                    assert!(lent.slot < 256 && lent.generation > 0);
                    *seen += u32::from(told > last);
                    last = told;
                },
            );
        }
        assert!(Instant::now() < deadline, "nothing is told");
    }
}

#[test]
fn a_sleeper_that_is_eager_is_rung_before_the_message_is_there() {
    let deadline = soon();
    // Parked, and eager or not.
    for (state, rung_ahead) in [(8 | 5, true), (8 | 1, false), (8 | 2, false)] {
        loop {
            let mut stage = Stage::new(Options::new());
            let (mut looks, mut ahead) = (0, 0);
            let bell = look_while_sending(
                &mut stage,
                |link| link.send(&vec![5; WATCHED]).unwrap(),
                |peer| peer.own.store(RECEIVER_STATE, state),
                |peer, told| {
                    let bell = peer.theirs().load(DATA_BELL);
                    fence(Ordering::Acquire);
                    // The first telling may be seen before the bell is rung; the last one long ago.
                    if told > LEN && peer.theirs().load(FILLED) > 0 {
                        looks += 1;
                        ahead = ahead.max(bell);
                    }
                },
            );
            assert_eq!(bell, u64::from(state & 3 == 1), "once an epoch");
            if looks > 0 {
                assert_eq!(ahead, u64::from(rung_ahead), "state {state}");
                break;
            }
            assert!(Instant::now() < deadline, "nothing is told");
        }
    }
}

/// Returns bytes that differ from those of other seeds.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) ^ (at >> 9) ^ (seed * 131)) as u8).collect()
}

#[test]
fn long_messages_and_calls_arrive_as_they_were_sent() {
    let lengths =
        [32 << 10, (32 << 10) - 1, (32 << 10) + 1, 48 << 10, 100_003, (1 << 20) + 3, 2 << 20, 7];
    for options in [watching(), Options::new(), Options::new().spin(Spin::Never)] {
        let (mut near, mut far) = pair(options);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut message = Vec::new();
                for seed in 0..2 * lengths.len() {
                    let len = lengths[seed % lengths.len()];
                    assert_eq!(
                        far.receiver().recv_into_deadline(&mut message, soon()).unwrap(),
                        Some(len)
                    );
                    assert!(message == pattern(seed, len), "message {seed}");
                    let request = far.receiver().recv_request_deadline(soon()).unwrap().unwrap();
                    assert!(request.body == pattern(seed + 1, len), "request {seed}");
                    far.respond(request.id, &pattern(seed + 2, len)).unwrap();
                }
            });
            for seed in 0..2 * lengths.len() {
                let len = lengths[seed % lengths.len()];
                near.sender().send_deadline(&pattern(seed, len), soon()).unwrap();
                let answer = near.call_deadline(&pattern(seed + 1, len), soon()).unwrap();
                assert!(answer == pattern(seed + 2, len), "answer {seed}");
            }
        });
    }
}

#[test]
fn what_was_told_of_costs_a_shorter_message_no_memory() {
    const ROUNDS: usize = 20;
    let mut stage = Stage::new(watching());
    // The message is received, received into a buffer, or left by a wait for a request.
    let ways: [(u64, Take); 3] = [
        (LEN, |link| link.receiver().recv_deadline(soon()).unwrap().unwrap()),
        (LEN, |link| {
            let mut message = Vec::new();
            link.receiver().recv_into_deadline(&mut message, soon()).unwrap().unwrap();
            message
        }),
        (LEN | 1, |link| {
            let error = link.receiver().recv_request_deadline(soon()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::OtherKind { .. }), "{error:?}");
            link.receiver().try_recv().unwrap().unwrap()
        }),
    ];
    for (told, receive) in ways {
        let (mut link, mut peer) = link(&mut stage);
        for _ in 0..ROUNDS {
            tell(&peer, LENT, told);
            let message = thread::scope(|scope| {
                let receiver = scope.spawn(|| receive(&mut link));
                thread::sleep(TOLD);
                peer.say(b"short");
                receiver.join().unwrap()
            });
            assert_eq!(message, b"short");
            assert!(message.capacity() <= 4096, "{} bytes for 5", message.capacity());
        }
    }
    // A wait that ends without a message gives the memory back, too.
    let (mut link, peer) = link(&mut stage);
    let mut message = Vec::with_capacity(100);
    tell(&peer, LENT, LEN);
    let error = link.receiver().recv_into_deadline(&mut message, Instant::now() + TOLD);
    assert!(error.unwrap_err().is_timeout() && message.capacity() <= 4096);
    stage.is_undisturbed();
}

#[test]
fn what_is_copied_ahead_of_its_record_has_room_in_the_backlog() {
    let mut stage = Stage::new(watching().backlog_limit(LEN as usize));
    // Beside one message that is set aside there is no room for another one of this length.
    let (mut link, mut peer) = link(&mut stage);
    peer.say(b"aside");
    let body = thread::scope(|scope| {
        let receiver = scope.spawn(|| link.call_deadline(b"what?", soon()).unwrap());
        thread::sleep(TOLD);
        tell(&peer, LENT, (LEN / 2) | 1);
        thread::sleep(TOLD);
        fill(&peer, b'b');
        peer.own.store(FILLED, 0);
        let payload = [&1u64.to_le_bytes()[..], &LENT.encode()].concat();
        peer.publish(header(RESPONSE | POOLED, 40), &payload);
        receiver.join().unwrap()
    });
    assert!(body == vec![b'b'; LEN as usize], "copied before the record came");
    assert_eq!(link.recv().unwrap().unwrap(), b"aside");
    stage.is_undisturbed();
}
