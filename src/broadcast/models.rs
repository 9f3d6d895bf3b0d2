//! loom models of the broadcast: a copy is one message, and memory is used anew only behind its readers.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! They run [`SlotWriter`], [`SlotReader`], [`Cursor`], the pool, and the store of a hold as they ship. The publisher's
//! loads of a position and of holds are those of `Seat::position` and `State::sweep`; the store that gives a hold back is
//! that of `Session::return_loan`.
//!
//! Visibility is checked by value. Exclusion is checked by loom's account of plain memory, because loom executes loads in
//! order and never shows a value from the future.
//!
//! Not modelled: the join and the leave of a subscriber, payload as bytes, and a lying peer.

use loom::thread;

use crate::broadcast::cursor::Cursor;
use crate::broadcast::layout::{Geometry, NEWEST};
use crate::broadcast::slots::{Look, SlotReader, SlotWriter};
use crate::channel::hold;
use crate::handshake::Policy;
use crate::pool::{LoanLimit, Pool, PoolOptions};
use crate::shm::{Backing, LoomWords, OwnWords, PeerWords, page_size};
use crate::sync::{Edge, Ordering, failure_without};

/// The bytes of a slot.
const SLOT: u32 = 64;
/// The bytes in front of the slots, where the model keeps `newest` alone.
const HEAD: usize = 8;
/// The words of a payload.
const WORDS: usize = 2;

/// The message of a failed model of visibility.
const MIX: &str = "a copy is one message";
/// The same.
const BLAME: &str = "an evicted subscriber finds a fault";
/// loom's message about plain memory that is accessed without an order.
const RACE: &str = "Causality violation";

/// The words of a topic, without the rest of its first page.
#[derive(Debug, Clone)]
struct Topic(LoomWords);

impl Topic {
    fn place(offset: usize) -> usize {
        match offset.checked_sub(page_size()) {
            Some(in_slots) => HEAD + in_slots,
            None => offset - NEWEST,
        }
    }
}

impl OwnWords for Topic {
    type Ring = <LoomWords as OwnWords>::Ring;

    fn ring(&self, start: usize, len: u64) -> Self::Ring {
        OwnWords::ring(&self.0, Self::place(start), len)
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.0.store(Self::place(offset), value, order);
    }

    fn add(&self, offset: usize, value: u64) {
        self.0.add(Self::place(offset), value);
    }
}

impl PeerWords for Topic {
    type Ring = <LoomWords as PeerWords>::Ring;

    fn ring(&self, start: usize, len: u64) -> Self::Ring {
        PeerWords::ring(&self.0, Self::place(start), len)
    }

    fn load(&self, offset: usize) -> u64 {
        self.0.load(Self::place(offset))
    }
}

struct Writer {
    slots: SlotWriter<Topic>,
    words: LoomWords,
}

struct Reader {
    slots: SlotReader<Topic>,
    words: LoomWords,
}

/// Returns both ends of a topic.
fn ends(slots: u32) -> (Writer, Reader) {
    let geometry = Geometry::new(slots, SLOT);
    let words = LoomWords::new(HEAD + geometry.data_len() as usize);
    let topic = Topic(words.clone());
    let writer = Writer { slots: SlotWriter::new(topic.clone(), geometry), words: words.clone() };
    (writer, Reader { slots: SlotReader::new(topic, geometry), words })
}

impl Writer {
    /// Publishes a message, all of whose words are its number.
    fn send(&mut self) {
        self.write();
        self.slots.publish(self.slots.next());
    }

    /// Writes the payload of the next message.
    fn write(&self) {
        let offset = HEAD + self.slots.begin();
        for word in 0..WORDS {
            self.words.store(offset + 8 * word, self.slots.next(), Ordering::Relaxed);
        }
    }
}

impl Reader {
    /// Returns the header and the payload of a message, if it is there and whole.
    fn read(&self, message: u64, load: fn(&LoomWords, usize) -> u64) -> Option<[u64; WORDS + 1]> {
        let Look::Message(header) = self.slots.look(message) else { return None };
        let place = Topic::place(self.slots.payload(message));
        let payload = [0, 1].map(|word| load(&self.words, place + 8 * word));
        self.slots.is_whole(message).then_some([header, payload[0], payload[1]])
    }

    /// Checks a message if it is there and whole. Returns whether it was.
    fn check(&self, message: u64, load: fn(&LoomWords, usize) -> u64) -> bool {
        let copy = self.read(message, load);
        assert!(copy.is_none_or(|copy| copy == [message; WORDS + 1]), "a copy is one message");
        copy.is_some()
    }
}

/// A slot that is overwritten while a reader copies it: every execution.
fn overwritten() {
    loom::model(|| {
        let (mut writer, reader) = ends(2);
        writer.send();
        let writing = thread::spawn(move || (0..2).for_each(|_| writer.send()));
        reader.check(1, LoomWords::load);
        reader.check(3, LoomWords::load);
        writing.join().unwrap();
        assert!(reader.check(3, LoomWords::load), "the last message is there");
    });
}

#[test]
fn a_copy_of_a_slot_is_one_message() {
    overwritten();
}

#[test]
fn a_copy_fails_without_publish() {
    assert!(failure_without(Edge::Publish, overwritten).contains(MIX));
}

#[test]
fn a_copy_fails_without_peek() {
    assert!(failure_without(Edge::Peek, overwritten).contains(MIX));
}

#[test]
fn a_copy_fails_without_overwrite() {
    assert!(failure_without(Edge::Overwrite, overwritten).contains(MIX));
}

#[test]
fn a_copy_fails_without_overrun() {
    assert!(failure_without(Edge::Overrun, overwritten).contains(MIX));
}

/// Holds a message, reads its memory if the hold counts, and gives the hold back.
fn read_held(reader: &Reader, message: u64, holds: &LoomWords, memory: &LoomWords) {
    if reader.slots.look(message) != Look::Message(message) {
        return;
    }
    hold::store(holds, 0, message);
    if reader.slots.is_held(message) {
        assert_eq!(memory.read(0), message);
    }
    holds.store(0, 0, Edge::Return.store());
}

/// Uses the memory of a withdrawn message anew, unless it is held. Returns whether it did.
fn reuse(message: u64, holds: &LoomWords, memory: &LoomWords) -> bool {
    let is_free = holds.load(0) != message;
    Edge::Reclaim.acquire();
    if is_free {
        memory.store(0, 9, Ordering::Relaxed);
    }
    is_free
}

/// The writer takes the memory of the first of `sent` messages back while a reader holds it, reads it, and gives it back. Then the
/// reader does `then` with its words. Every execution.
fn taken_back((slots, sent): (u32, u32), then: fn(&LoomWords)) {
    loom::model(move || {
        let (mut writer, reader) = ends(slots);
        let [holds, memory] = [(); 2].map(|()| LoomWords::new(8));
        memory.store(0, 1, Ordering::Relaxed);
        (0..sent).for_each(|_| writer.send());
        let reading = {
            let (holds, memory) = (holds.clone(), memory.clone());
            thread::spawn(move || {
                read_held(&reader, 1, &holds, &memory);
                then(&holds);
            })
        };
        writer.slots.withdraw(1);
        writer.slots.look_for_holders();
        let is_reused = reuse(1, &holds, &memory);
        reading.join().unwrap();
        assert!(is_reused || reuse(1, &holds, &memory), "the hold was given back");
    });
}

fn held() {
    taken_back((2, 1), |_| {});
}

#[test]
fn memory_is_not_used_anew_while_a_reader_holds_it() {
    held();
}

#[test]
fn a_hold_fails_without_withdraw() {
    assert!(failure_without(Edge::Withdraw, held).contains(RACE));
}

#[test]
fn a_hold_fails_without_hold() {
    assert!(failure_without(Edge::Hold, held).contains(RACE));
}

#[test]
fn a_hold_fails_without_return() {
    assert!(failure_without(Edge::Return, held).contains(RACE));
}

#[test]
fn a_hold_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, held).contains(RACE));
}

/// The reader holds the next message in the same word. The writer may load the second number alone.
fn held_in_turn() {
    taken_back((4, 2), |holds| hold::store(holds, 0, 2));
}

#[test]
fn a_later_hold_tells_that_an_earlier_one_was_given_back() {
    held_in_turn();
}

#[test]
fn a_later_hold_fails_without_return() {
    assert!(failure_without(Edge::Return, held_in_turn).contains(RACE));
}

#[test]
fn a_later_hold_fails_without_reclaim() {
    assert!(failure_without(Edge::Reclaim, held_in_turn).contains(RACE));
}

/// A subscriber that wants every message: its position lets the writer overwrite the slot.
fn every() {
    loom::model(|| {
        let (mut writer, reader) = ends(2);
        let position = LoomWords::new(8);
        writer.send();
        let reading = {
            let position = position.clone();
            thread::spawn(move || {
                let mut cursor = Cursor::new(Policy::Every, 1, 1);
                assert!(reader.check(cursor.next(), LoomWords::read), "the writer waits");
                cursor.take();
                let next = cursor.tell(true).expect("a message was taken");
                position.store(0, next, Edge::Release.store());
                reader
            })
        };
        let mut try_send = || {
            let read = position.load(0);
            Edge::Reuse.acquire();
            let has_room = writer.slots.next() < read + 1;
            if has_room {
                writer.send();
                // In the slot of the first message.
                writer.write();
            }
            has_room
        };
        let is_sent = try_send();
        let reader = reading.join().unwrap();
        assert!(is_sent || try_send(), "what was read is room");
        assert!(reader.check(2, LoomWords::read), "the writer waits");
    });
}

/// A subscriber that wants every message holds one, tells its position, and reads the memory. The publisher does not
/// withdraw the message before it has loaded a position behind it.
fn held_before_the_position() {
    loom::model(|| {
        let [holds, memory, position] = [(); 3].map(|()| LoomWords::new(8));
        memory.store(0, 1, Ordering::Relaxed);
        let reading = {
            let [holds, memory, position] = [&holds, &memory, &position].map(Clone::clone);
            thread::spawn(move || {
                hold::store(&holds, 0, 1);
                position.store(0, 2, Edge::Release.store());
                assert_eq!(memory.read(0), 1);
                holds.store(0, 0, Edge::Return.store());
            })
        };
        let try_reuse = || {
            let read = position.load(0);
            Edge::Reuse.acquire();
            read == 2 && reuse(1, &holds, &memory)
        };
        let is_reused = try_reuse();
        reading.join().unwrap();
        assert!(is_reused || try_reuse(), "the hold was given back");
    });
}

#[test]
fn a_position_tells_of_the_holds_before_it() {
    held_before_the_position();
}

#[test]
fn a_hold_before_the_position_fails_without_release() {
    assert!(failure_without(Edge::Release, held_before_the_position).contains(RACE));
}

#[test]
fn a_hold_before_the_position_fails_without_reuse() {
    assert!(failure_without(Edge::Reuse, held_before_the_position).contains(RACE));
}

#[test]
fn a_slot_is_not_overwritten_before_the_position_is_behind_it() {
    every();
}

#[test]
fn a_position_fails_without_release() {
    assert!(failure_without(Edge::Release, every).contains(RACE));
}

#[test]
fn a_position_fails_without_reuse() {
    assert!(failure_without(Edge::Reuse, every).contains(RACE));
}

/// A publisher evicts a subscriber that copies a message's block. The block's next use does not wait for the copy: the copy
/// is right, or the mark says that it may be wrong.
fn evicted() {
    loom::model(|| {
        const BLOCK: usize = 4096;
        let (quota, loans, backing) = (BLOCK as u64, LoanLimit::NONE, Backing::default());
        let options = PoolOptions { quota, footprint: 0, far_footprint: 0, loans, backing };
        let pool = Pool::new(options);
        let [memory, mark] = [(); 2].map(|()| LoomWords::new(8));
        let block = pool.alloc(BLOCK).expect("memory").expect("a block is free");
        let kept = block.share().expect("it is not lent");
        memory.store(0, 1, Ordering::Relaxed);
        let copying = {
            let (memory, mark) = (memory.clone(), mark.clone());
            thread::spawn(move || {
                // `Bytes::copy_to` and `Link::check_loans`.
                let copy = memory.load(0);
                Edge::Recheck.acquire();
                assert!(copy == 1 || mark.load(0) != 0, "a wrong copy passed for a right one");
            })
        };
        // `Audience::evict`: the mark, and then the sweep.
        mark.store(0, 1, Ordering::Relaxed);
        drop(kept);
        let again = pool.alloc(BLOCK).expect("memory");
        assert!(again.is_ok(), "the block is usable at once");
        memory.store(0, 2, Ordering::Relaxed);
        copying.join().unwrap();
    });
}

#[test]
fn a_copy_of_an_evicted_subscriber_is_right_or_known_to_be_wrong() {
    evicted();
}

#[test]
fn an_eviction_fails_without_retake() {
    assert!(failure_without(Edge::Retake, evicted).contains("passed for a right one"));
}

#[test]
fn an_eviction_fails_without_recheck() {
    assert!(failure_without(Edge::Recheck, evicted).contains("passed for a right one"));
}

/// A publisher evicts a subscriber and withdraws the message that comes next there, without a wait for it.
fn withdrawn_after_an_eviction() {
    loom::model(|| {
        let (mut writer, reader) = ends(2);
        let mark = LoomWords::new(8);
        writer.send();
        let reading = {
            let mark = mark.clone();
            thread::spawn(move || {
                if !matches!(reader.slots.look(1), Look::Message(_)) {
                    // `Feed::fail`
                    Edge::Overrun.acquire();
                    assert_ne!(mark.load(0), 0, "{BLAME}");
                }
            })
        };
        // `Seat::evict`, and then `State::withdraw`.
        mark.store(0, 1, Ordering::Relaxed);
        Edge::Overwrite.release();
        writer.slots.withdraw(1);
        reading.join().unwrap();
    });
}

#[test]
fn a_subscriber_that_misses_a_message_finds_its_eviction() {
    withdrawn_after_an_eviction();
}

#[test]
fn the_cause_of_an_eviction_fails_without_overwrite() {
    assert!(failure_without(Edge::Overwrite, withdrawn_after_an_eviction).contains(BLAME));
}

#[test]
fn the_cause_of_an_eviction_fails_without_overrun() {
    assert!(failure_without(Edge::Overrun, withdrawn_after_an_eviction).contains(BLAME));
}
