//! loom models of the ring: publish and peek, release and reuse.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! They run the shipped [`Producer`] and [`Consumer`] over [`LoomWords`]: a ring of 256 bytes, which holds 128
//! bytes of records and which a first lap has filled before the threads start. Each model runs twice:
//! unchanged, through every execution that loom knows, and with one edge weakened, where it must fail for the
//! reason that it names.
//!
//! Visibility (publish, peek) is checked by value: payload words are relaxed atomics, and the first lap's
//! payload has the form of headers. Exclusion (release, reuse) is checked by loom's account of plain memory,
//! because loom executes loads in order and never shows a value from the future.
//!
//! Not modelled: the mirror, payload as bytes, a lying peer, and the order of clearing and payload through two
//! addresses, which only a compiler could break (`Producer::store`).

use loom::thread;

use crate::ring::{BatchSlot, Consumer, Header, Kind, PlainRoom, Producer};
use crate::shm::{LoomWords, OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, failure_without};

/// Bytes of the ring, at the start of the writer's segment.
const CAPACITY: u64 = 256;
/// The offset of the reader's position in its segment.
const POSITION: usize = 0;
/// The longest payload that the ring takes: words that look like the header of a record with one word of
/// payload.
const FORGED: [u64; 8] = [1 | 8 << 32; 8];

/// The message of a failed model of visibility.
const TORN: &str = "is seen with";
/// loom's message about plain memory that is accessed without an order.
const RACE: &str = "Causality violation";

/// The words of payload in a record besides the header's word.
type Payload = Vec<u64>;

struct Writer {
    producer: Producer<LoomWords, LoomWords>,
    ring: LoomWords,
}

struct Reader {
    consumer: Consumer<LoomWords, LoomWords>,
    ring: LoomWords,
}

/// Returns both ends of a new ring.
fn ends() -> (Writer, Reader) {
    let (ring, control) = (LoomWords::new(CAPACITY as usize), LoomWords::new(8));
    let producer = Producer::new(ring.clone(), control.clone(), 0, POSITION, CAPACITY, 0);
    let consumer = Consumer::new(control, ring.clone(), 0, POSITION, CAPACITY, 0);
    (Writer { producer, ring: ring.clone() }, Reader { consumer, ring })
}

/// Returns both ends of a ring that a first lap has filled: records of 8 words whose payload looks like
/// headers, and two empty ones up to the start of a line. Such payload or such a header stands wherever the
/// next records start.
fn ends_on_second_lap() -> (Writer, Reader) {
    let (mut writer, mut reader) = ends();
    for payload in [&FORGED[..], &FORGED, &FORGED, &FORGED, &[], &[]] {
        writer.send(payload);
        assert_eq!(reader.receive().as_deref(), Some(payload));
    }
    (writer, reader)
}

fn header(words: usize) -> Header {
    Header::new(Kind::Message, 8 * words as u32)
}

/// Returns the position of a word past the ring's end: the mirror is the same memory.
fn mirrored(offset: usize) -> usize {
    offset % CAPACITY as usize
}

impl Writer {
    /// Sends a message for which there must be room.
    fn send(&mut self, payload: &[u64]) {
        assert!(self.try_send(payload), "there is room");
    }

    /// Sends a message if there is room.
    fn try_send(&mut self, payload: &[u64]) -> bool {
        let len = 8 * payload.len() as u32;
        if let Some(PlainRoom { offset, next }) = self.producer.plain_room(len) {
            self.write(offset, payload);
            self.producer.publish_plain(header(payload.len()), next);
            return true;
        }
        match self.producer.reserve(header(payload.len())).expect("the reader is honest") {
            Ok(offset) => {
                self.write(offset, payload);
                self.producer.publish(header(payload.len()));
                true
            }
            Err(_) => false,
        }
    }

    /// Writes a message that is never published.
    fn give_up(&mut self, payload: &[u64]) {
        let room = self.producer.reserve(header(payload.len()));
        let offset = room.expect("the reader is honest").expect("there is room");
        self.write(offset, payload);
    }

    /// Adds a message to a batch.
    fn push(&mut self, batch: &mut BatchSlot, payload: &[u64]) {
        let room = self.producer.push(batch, header(payload.len()));
        let offset = room.expect("the reader is honest").expect("there is room");
        self.write(offset, payload);
    }

    fn write(&self, offset: usize, payload: &[u64]) {
        for (index, word) in payload.iter().enumerate() {
            self.ring.store(mirrored(offset + 8 * index), *word, Ordering::Relaxed);
        }
    }
}

impl Reader {
    /// Receives the next message by value and releases it.
    fn receive(&mut self) -> Option<Payload> {
        self.take(LoomWords::load)
    }

    /// Receives the next message as plain memory and releases it.
    fn receive_plain(&mut self) -> Option<Payload> {
        self.take(LoomWords::read)
    }

    fn take(&mut self, load: fn(&LoomWords, usize) -> u64) -> Option<Payload> {
        let record = match self.consumer.plain(self.consumer.word(), CAPACITY) {
            Some(record) => record,
            None => self.consumer.peek().expect("a header is seen with the one before it")?,
        };
        assert_eq!(record.header.kind(), Kind::Message, "the writer sends messages");
        let words = record.header.len() as usize / 8;
        let payload = (0..words).map(|index| load(&self.ring, mirrored(record.offset + 8 * index)));
        let payload = payload.collect();
        self.consumer.release(record.header);
        Some(payload)
    }

    /// Returns the messages that up to `looks` polls find.
    fn receive_some(&mut self, looks: usize) -> Vec<Payload> {
        (0..looks).filter_map(|_| self.receive()).collect()
    }
}

/// A record of one line and its successor, whose header was cleared one publication ahead.
fn records() {
    loom::model(|| {
        let (mut writer, mut reader) = ends_on_second_lap();
        let messages = [vec![10, 11], vec![20]];
        let sent = messages.clone();
        let sending = thread::spawn(move || sent.iter().for_each(|message| writer.send(message)));
        let mut received = reader.receive_some(3);
        sending.join().unwrap();
        received.extend(reader.receive_some(2));
        assert_eq!(received, messages, "every payload is seen with its header");
    });
}

#[test]
fn a_record_is_visible_with_its_payload() {
    records();
}

#[test]
fn a_record_fails_without_publish() {
    assert!(failure_without(Edge::Publish, records).contains(TORN));
}

#[test]
fn a_record_fails_without_peek() {
    assert!(failure_without(Edge::Peek, records).contains(TORN));
}

/// Headers alone: every header that the reader accepts is one that the writer published.
fn headers() {
    loom::model(|| {
        let (mut writer, mut reader) = ends_on_second_lap();
        // The place after the next record was cleared ahead. A longer record that is given up leaves payload
        // there.
        writer.give_up(&FORGED);
        let sending = thread::spawn(move || (0..2).for_each(|_| writer.send(&[])));
        for _ in 0..3 {
            if let Ok(Some(record)) = reader.consumer.peek() {
                assert_eq!(record.header, header(0), "no payload passes for a header");
                reader.consumer.release(record.header);
            }
        }
        sending.join().unwrap();
    });
}

#[test]
fn old_payload_never_passes_for_a_header() {
    headers();
}

#[test]
fn a_header_fails_without_publish() {
    assert!(failure_without(Edge::Publish, headers).contains("no payload passes"));
}

#[test]
fn a_header_fails_without_peek() {
    assert!(failure_without(Edge::Peek, headers).contains("no payload passes"));
}

/// A batch that fills the ring: its first record promises the others.
fn batch() {
    loom::model(|| {
        let (mut writer, mut reader) = ends_on_second_lap();
        let messages = [vec![10; 7], vec![20; 3], vec![30; 3]];
        let pushed = messages.clone();
        let sending = thread::spawn(move || {
            let mut batch = BatchSlot::default();
            writer.producer.start(&mut batch);
            pushed.iter().for_each(|message| writer.push(&mut batch, message));
            writer.producer.publish_batch(&mut batch);
        });
        let mut received = reader.receive_some(1);
        if received.len() == 1 {
            received.extend(reader.receive_some(3));
            assert_eq!(received, messages, "a batch is seen with all its records");
        }
        sending.join().unwrap();
        received.extend(reader.receive_some(4 - received.len()));
        assert_eq!(received, messages);
    });
}

#[test]
fn a_batch_is_visible_whole() {
    batch();
}

#[test]
fn a_batch_fails_without_publish() {
    assert!(failure_without(Edge::Publish, batch).contains(TORN));
}

#[test]
fn a_batch_fails_without_peek() {
    assert!(failure_without(Edge::Peek, batch).contains(TORN));
}

/// A record, a move to another ring, and a record there.
fn moved() {
    loom::model(|| {
        let (mut writer, mut reader) = ends_on_second_lap();
        let second = LoomWords::new(CAPACITY as usize);
        let messages = [vec![10; 2], vec![20; 2]];
        let (sent, ring) = (messages.clone(), second.clone());
        let sending = thread::spawn(move || {
            writer.send(&sent[0]);
            writer.producer.move_to(&ring, 0, CAPACITY);
            writer.ring = ring;
            writer.send(&sent[1]);
        });
        let mut received = Vec::new();
        for _ in 0..4 {
            match reader.consumer.peek().expect("a header is seen with the one before it") {
                Some(record) if record.header == Header::MOVED => {
                    reader.consumer.release(record.header);
                    reader.consumer.move_to(&second, 0, CAPACITY);
                    reader.ring = second.clone();
                }
                Some(_) => received.extend(reader.receive()),
                None => {}
            }
        }
        sending.join().unwrap();
        assert_eq!(received, messages[..received.len()], "every payload is seen with its header");
    });
}

#[test]
fn a_record_in_the_second_ring_is_visible_with_its_payload() {
    moved();
}

#[test]
fn a_record_in_the_second_ring_fails_without_publish() {
    assert!(failure_without(Edge::Publish, moved).contains(TORN));
}

#[test]
fn a_record_in_the_second_ring_fails_without_peek() {
    assert!(failure_without(Edge::Peek, moved).contains(TORN));
}

/// Records that share lines: two tight ones, the second over the ring's end.
fn tight_records() {
    loom::model(|| {
        let (mut writer, mut reader) = ends();
        for _ in 0..2 {
            writer.send(&FORGED);
            reader.receive();
        }
        writer.producer.refresh().expect("the reader is honest");
        assert!(writer.producer.plain_room(8 * 8).is_some(), "the short way");
        let messages = [vec![3; 8], vec![4; 8]];
        let sent = messages.clone();
        let sending = thread::spawn(move || {
            writer.send(&sent[0]);
            // There is room for the second only after the first is released.
            writer.try_send(&sent[1])
        });
        let mut received = reader.receive_some(3);
        let count = if sending.join().unwrap() { 2 } else { 1 };
        received.extend(reader.receive_some(1));
        received.extend(reader.receive_some(1));
        assert_eq!(received, messages[..count], "every payload is seen with its header");
    });
}

#[test]
fn a_tight_record_is_visible_with_its_payload() {
    tight_records();
}

#[test]
fn a_tight_record_fails_without_publish() {
    assert!(failure_without(Edge::Publish, tight_records).contains(TORN));
}

#[test]
fn a_tight_record_fails_without_peek() {
    assert!(failure_without(Edge::Peek, tight_records).contains(TORN));
}

/// The end: a message, and the closing record.
fn closing() {
    loom::model(|| {
        let (mut writer, mut reader) = ends_on_second_lap();
        let sending = thread::spawn(move || {
            writer.send(&[10]);
            writer.producer.close();
        });
        let mut seen = Vec::new();
        for _ in 0..3 {
            if let Some(record) = reader.consumer.peek().expect("a header of the writer") {
                seen.push(record.header.kind());
                reader.consumer.release(record.header);
            }
        }
        assert!([Kind::Message, Kind::Close].starts_with(&seen), "nothing follows a close");
        sending.join().unwrap();
    });
}

#[test]
fn a_close_is_the_last_record() {
    closing();
}

#[test]
fn a_close_fails_without_publish() {
    assert!(failure_without(Edge::Publish, closing).contains("nothing follows a close"));
}

#[test]
fn a_close_fails_without_peek() {
    assert!(failure_without(Edge::Peek, closing).contains("nothing follows a close"));
}

/// Reuse: while the reader reads, the writer stores as much as it may.
///
/// The ring is full with a record of 8 words and an empty one. When the first is released, the writer's next
/// record clears the word where the one after it may start: inside of the first. When the second is released,
/// too, both get payload.
fn reuse() {
    loom::model(|| {
        let (mut writer, mut reader) = ends();
        writer.send(&FORGED);
        writer.send(&[]);
        assert!(!writer.try_send(&[]), "the ring is full");
        let reading = thread::spawn(move || {
            assert_eq!(reader.receive_plain(), Some(FORGED.to_vec()));
            assert_eq!(reader.receive_plain(), Some(vec![]));
            reader
        });
        let sent = (0..2).filter(|_| writer.try_send(&[7; 8])).count();
        let mut reader = reading.join().unwrap();
        for _ in 0..sent {
            assert_eq!(reader.receive_plain(), Some(vec![7; 8]));
        }
        assert!(sent == 2 || writer.try_send(&[]), "what was given back is room");
    });
}

#[test]
fn a_later_lap_never_reaches_a_record_that_is_read() {
    reuse();
}

#[test]
fn reuse_fails_without_release() {
    assert!(failure_without(Edge::Release, reuse).contains(RACE));
}

#[test]
fn reuse_fails_without_reuse() {
    assert!(failure_without(Edge::Reuse, reuse).contains(RACE));
}
