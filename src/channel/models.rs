//! loom models of the end of a link and of the pipelined copy. At the end of a link each sleeper wakes up, each record
//! that was published before is delivered, and nothing of the link stays.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! They run [`HealthWord`], [`LinkRegistry`], the pool and `wake` as they ship; the loop around them is that of
//! `Inbox::await_record` and `Waiter::wait`. `futex_waitv` is modelled by what the kernel promises: it compares
//! both words and queues the sleeper under locks that the wakers take, too. That a peer's end comes
//! after all that the peer has done is the kernel's matter: in a model one thread is the peer, and
//! then the watcher that hears of it.
//!
//! Not modelled: the sockets, deadlines, and the handshake.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::channel::pipeline::{tell, told};
use crate::error::ErrorKind;
use crate::link::health::{Health, HealthWord};
use crate::link::registry::{LinkRegistry, PeerEnd};
use crate::pool::{Borrower, Holder, LoanLimit, Pool, PoolOptions};
use crate::ring::{Consumer, Header, Kind, Producer};
use crate::shm::{Backing, LoomWords, OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, failure_without};
use crate::wake::{Attention, Sleeper, Waker, is_gone};

/// Bytes of the ring, at the start of the peer's segment.
const CAPACITY: u64 = 256;
/// Words of the peer's segment behind the ring, in bytes.
const BELL: usize = 256;
const PEER_STATE: usize = 264;
/// Words of our segment, in bytes.
const POSITION: usize = 0;
const STATE: usize = 8;

/// A link as its receiving half sees it.
#[derive(Clone)]
struct Link {
    own: LoomWords,
    peer: LoomWords,
    health_word: Arc<HealthWord>,
    /// The threads that sleep on the bell and on the health word.
    queue: Arc<(Mutex<()>, Condvar)>,
}

impl Link {
    fn new() -> Self {
        Self {
            own: LoomWords::new(16),
            peer: LoomWords::new(272),
            health_word: Arc::new(HealthWord::new()),
            queue: Arc::default(),
        }
    }

    /// `Link::sleep`: while the bell is as it was and the link alive.
    fn sleep(&self, bell: u32) {
        let queue = self.queue.0.lock().unwrap();
        if self.peer.load(BELL) as u32 == bell && self.health_word.is_alive() {
            drop(self.queue.1.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        let _queue = self.queue.0.lock().unwrap();
        self.queue.1.notify_all();
    }

    /// `Link::hang_up` and `Link::die`.
    fn raise(&self, health: Health) {
        self.health_word.raise(health);
        self.wake();
    }

    /// `Waiter::wait`, behind its watching.
    fn wait(&self, sleeper: &mut Sleeper, mut ready: impl FnMut() -> bool) {
        let mut ready = || ready() || !self.health_word.is_alive();
        loop {
            sleeper.sleep(&self.own, &self.peer, &mut ready, |bell| self.sleep(bell));
            if ready() {
                return sleeper.unpark(&self.own);
            }
        }
    }

    /// `Inbox::await_record`, up to the end of the link: how many records came, and how it ended.
    fn receive_all(&self) -> (u32, Health) {
        let (own, peer) = (self.own.clone(), self.peer.clone());
        let mut consumer = Consumer::new(own, peer, 0, POSITION, CAPACITY, 0);
        let mut sleeper = Sleeper::new(STATE, BELL);
        let mut records = 0;
        loop {
            let (health, next) = self.health_word.before(|| consumer.peek());
            match next.expect("the peer is honest") {
                Some(record) => {
                    consumer.release(record.header);
                    records += 1;
                }
                None if health != Health::Alive => return (records, health),
                None => self.wait(&mut sleeper, || consumer.is_ready()),
            }
        }
    }
}

/// A peer that dies right after it has published a record, before it looks for sleepers.
fn death() {
    loom::model(|| {
        let link = Link::new();
        let dying = link.clone();
        let dying = thread::spawn(move || {
            let (own, peer) = (dying.own.clone(), dying.peer.clone());
            let mut producer = Producer::new(peer, own, 0, POSITION, CAPACITY, 0);
            producer.publish(Header::new(Kind::Message, 0));
            dying.raise(Health::Dead);
        });
        assert_eq!(link.receive_all(), (1, Health::Dead), "the last record is delivered");
        dying.join().unwrap();
    });
}

#[test]
fn what_a_peer_sent_before_it_died_is_delivered_before_its_end_is_told() {
    death();
}

#[test]
fn death_fails_without_end() {
    assert!(failure_without(Edge::End, death).contains("the last record"));
}

#[test]
fn death_fails_without_ended() {
    assert!(failure_without(Edge::Ended, death).contains("the last record"));
}

#[test]
fn death_fails_without_a_last_look() {
    assert!(failure_without(Edge::LastLook, death).contains("the last record"));
}

/// One half sleeps, the other finds the peer at fault, and the watcher sees it die.
fn failure() {
    loom::model(|| {
        let link = Link::new();
        let (failing, dying) = (link.clone(), link.clone());
        let failing = thread::spawn(move || {
            failing.health_word.fail(&ErrorKind::PeerClosed);
            failing.wake();
        });
        let dying = thread::spawn(move || dying.raise(Health::Dead));
        link.wait(&mut Sleeper::new(STATE, BELL), || false);
        if link.health_word.health() == Health::Failed {
            assert_eq!(
                link.health_word.failure(),
                Some(&ErrorKind::PeerClosed),
                "the reason is known"
            );
        }
        failing.join().unwrap();
        dying.join().unwrap();
        assert_eq!(link.health_word.health(), Health::Failed, "it only rises");
        assert_eq!(link.health_word.failure(), Some(&ErrorKind::PeerClosed));
    });
}

#[test]
fn a_link_that_failed_says_why_to_the_half_that_slept() {
    failure();
}

#[test]
fn a_failure_fails_without_its_reason() {
    assert!(failure_without(Edge::Reason, failure).contains("the reason"));
}

/// The peer's receiver leaves in order, and then its process ends, while a half of ours sleeps for room:
/// the half wakes up, and knows that the peer left before it knows of the end.
#[test]
fn a_half_that_sleeps_hears_of_a_peer_that_leaves_and_ends() {
    loom::model(|| {
        let link = Link::new();
        let leaving = link.clone();
        let leaving = thread::spawn(move || {
            Sleeper::new(PEER_STATE, BELL).leave(&leaving.peer);
            let look = Waker::new(STATE, BELL).look(&leaving.peer, &leaving.own);
            if look == Ok(Some(Attention::Wake)) {
                leaving.wake();
            }
            leaving.raise(Health::HungUp);
        });
        let left = || is_gone(link.peer.load(PEER_STATE));
        link.wait(&mut Sleeper::new(STATE, BELL), left);
        assert!(link.health_word.health() == Health::Alive || left(), "it closed, and did not die");
        leaving.join().unwrap();
    });
}

const HOLDER: Holder = Holder { uid: 0, pid: None };

/// The array of a borrower's returns.
struct Returns(LoomWords);

impl Borrower for Returns {
    fn holder(&self) -> Holder {
        Holder { uid: 0, pid: None }
    }

    fn returned(&self, slot: u32) -> u64 {
        self.0.load(8 * slot as usize)
    }
}

/// The user of a link goes while the peer holds a loan, returns it or not, and ends.
fn end(returns_first: bool, end: PeerEnd) {
    loom::model(move || {
        const BLOCK: usize = 4096;
        let backing = Backing::default();
        let quota = BLOCK as u64;
        let pool = Pool::new(PoolOptions {
            quota,
            loans: LoanLimit::NONE,
            footprint: 0,
            far_footprint: 0,
            backing,
        });
        let words = LoomWords::new(8);
        let borrower = pool.open(Arc::new(Returns(words.clone())), 1);
        let mut block = pool.alloc(BLOCK).expect("memory").expect("a block is free");
        let loan = pool.lend(&mut block, borrower).expect("a slot is free");
        let (registry, health_word) =
            (Arc::new(LinkRegistry::new(pool.clone(), None)), Arc::new(HealthWord::new()));
        registry.enter(borrower, HOLDER, Arc::new(()));
        let ending = {
            let (registry, health_word) = (registry.clone(), health_word.clone());
            thread::spawn(move || {
                if returns_first {
                    words.store(0, loan.generation, Edge::Return.store());
                }
                let health = match end {
                    PeerEnd::Process => Health::Dead,
                    PeerEnd::Released | PeerEnd::Cut => Health::HungUp,
                };
                health_word.raise(health);
                registry.ended(borrower, &health_word, end, Instant::now()).is_some()
            })
        };
        let here = registry.retire(borrower, &health_word).is_some();
        let there = ending.join().unwrap();
        assert!(here != there, "the link is let go once");
        assert!(registry.find(borrower.number()).is_none());
        assert!(pool.alloc(BLOCK).expect("memory").is_ok(), "the block came back");
    });
}

fn hang_up() {
    end(false, PeerEnd::Released);
}

#[test]
fn a_link_is_let_go_by_whoever_comes_last() {
    hang_up();
    end(true, PeerEnd::Released);
    end(true, PeerEnd::Cut);
    end(false, PeerEnd::Process);
}

/// The user of a link goes while its deadline comes, and the peer keeps its loan or returns it.
fn deadline(returns: bool) {
    loom::model(move || {
        const BLOCK: usize = 4096;
        let (backing, quota, loans) = (Backing::default(), BLOCK as u64, LoanLimit::NONE);
        let options = PoolOptions { quota, footprint: 0, far_footprint: 0, loans, backing };
        let pool = Pool::new(options);
        let words = LoomWords::new(8);
        let borrower = pool.open(Arc::new(Returns(words.clone())), 1);
        let mut block = pool.alloc(BLOCK).expect("memory").expect("a block is free");
        let loan = pool.lend(&mut block, borrower).expect("a slot is free");
        let grace = Some(Duration::ZERO);
        let (registry, health_word) =
            (Arc::new(LinkRegistry::new(pool.clone(), grace)), Arc::new(HealthWord::new()));
        registry.enter(borrower, HOLDER, health_word.clone());
        let now = Instant::now();
        assert!(registry.limit(borrower, now, || 1), "it is the first");
        let watching = {
            let registry = registry.clone();
            thread::spawn(move || {
                if returns {
                    words.store(0, loan.generation, Edge::Return.store());
                }
                registry.revoke_due(now, 1, HealthWord::is_retired).len()
            })
        };
        let here = usize::from(registry.retire(borrower, &health_word).is_some());
        let there = watching.join().unwrap();
        assert_eq!(here + there, 1, "the link is let go once");
        assert!(registry.find(borrower.number()).is_none() && registry.next_deadline().is_none());
        assert!(pool.alloc(BLOCK).expect("memory").is_ok(), "the block came back");
    });
}

fn revoked_link() {
    deadline(false);
}

#[test]
fn a_link_is_let_go_at_its_deadline_or_by_its_session() {
    revoked_link();
    deadline(true);
}

#[test]
fn a_deadline_fails_where_the_loans_are_counted_first() {
    assert!(failure_without(Edge::Retire, revoked_link).contains("let go once"));
}

#[test]
fn letting_go_fails_where_the_loans_are_counted_first() {
    assert!(failure_without(Edge::Retire, hang_up).contains("let go once"));
}

/// Words of the writer's segment behind its ring: what it tells, and two blocks of as many words each.
const FILLED: usize = 256;
const BLOCKS: usize = 264;
/// Words of a block, in bytes.
const BLOCK: usize = 16;

/// One end of a link over which two long messages go, each in a block of its own, named by its number.
struct Copying<E> {
    end: E,
    segment: LoomWords,
}

impl Copying<Producer<LoomWords, LoomWords>> {
    /// `Sender::fill`, and what publishes.
    fn send(&mut self, number: u64) {
        let header = Header::POOLED_MESSAGE;
        let room = self.end.reserve(header).expect("the reader is honest");
        let offset = room.expect("there is room");
        self.segment.store(offset, number, Ordering::Relaxed);
        for (word, pieces) in [(0, 1), (8, 0)] {
            let place = BLOCKS + BLOCK * (number as usize - 1) + word;
            self.segment.store(place, 10 * number, Ordering::Relaxed);
            tell(&self.segment, FILLED, pieces);
        }
        self.end.publish(header);
    }
}

impl Copying<Consumer<LoomWords, LoomWords>> {
    fn word(&self, number: u64, word: usize) -> u64 {
        self.segment.load(BLOCKS + BLOCK * (number as usize - 1) + word)
    }

    /// `Inbox::copy_ahead`: the number of a message, and its first word.
    fn copy_ahead(&self) -> Option<(u64, u64)> {
        if told(&self.segment, FILLED) == 0 || self.end.is_ready() {
            return None;
        }
        let number = self.segment.load(self.end.payload(Header::POOLED_MESSAGE));
        (number > 0).then(|| (number, self.word(number, 0)))
    }

    /// The next message, if there is one: its number and words, the first one of them as it was copied ahead.
    fn receive(&mut self, ahead: Option<(u64, u64)>) -> Option<[u64; 3]> {
        let record = self.end.peek().expect("the writer is honest")?;
        let number = self.segment.load(record.offset);
        let first = match ahead {
            Some((copied, word)) if copied == number => word,
            _ => self.word(number, 0),
        };
        let message = [number, first, self.word(number, 8)];
        self.end.release(record.header);
        Some(message)
    }
}

/// Two messages, of which the reader copies what it is told of.
fn copies() {
    loom::model(|| {
        let (segment, control) = (LoomWords::new(BLOCKS + 2 * BLOCK), LoomWords::new(8));
        let (ring, words) = (segment.clone(), control.clone());
        let producer = Producer::new(ring, words, 0, POSITION, CAPACITY, 0);
        let mut sending = Copying { end: producer, segment: segment.clone() };
        let consumer = Consumer::new(control, segment.clone(), 0, POSITION, CAPACITY, 0);
        let mut receiving = Copying { end: consumer, segment };
        let sending = thread::spawn(move || {
            sending.send(1);
            sending.send(2);
        });
        let mut received = Vec::new();
        for _ in 0..2 {
            let ahead = receiving.copy_ahead();
            received.extend(receiving.receive(ahead));
        }
        let ahead = receiving.copy_ahead();
        sending.join().unwrap();
        received.extend(receiving.receive(ahead));
        while let Some(message) = receiving.receive(None) {
            received.push(message);
        }
        assert_eq!(received, [[1, 10, 10], [2, 20, 20]], "what was told of is there");
    });
}

#[test]
fn what_is_copied_ahead_is_what_the_message_says() {
    copies();
}

#[test]
fn copies_fail_without_fill() {
    assert!(failure_without(Edge::Fill, copies).contains("is there"));
}

#[test]
fn copies_fail_without_follow() {
    assert!(failure_without(Edge::Follow, copies).contains("is there"));
}

#[test]
fn copies_fail_without_publish() {
    assert!(failure_without(Edge::Publish, copies).contains("is there"));
}

#[test]
fn copies_fail_without_peek() {
    assert!(failure_without(Edge::Peek, copies).contains("is there"));
}
