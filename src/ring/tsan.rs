//! Both ends of a ring in one process, for ThreadSanitizer: every payload access must be ordered.
//!
//! ```text
//! TSAN_OPTIONS="suppressions=$PWD/.ci/tsan.supp" RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/tsan-rustc \
//! cargo test --lib tsan
//! ```
//!
//! The writer writes its payload as plain memory. The reader copies it with the library's one copy, whose
//! atomic loads race with plain stores unless they are ordered. Laps follow each other closely, so that the
//! writer reuses room as soon as it is released.
//!
//! Both ends share one mapping, and no record runs into the mirror: ThreadSanitizer takes memory that is
//! mapped twice for two memories. It does not know fences either, so with `--cfg slipring_tsan` loads of a
//! peer's words acquire by themselves (`shm/mapping.rs`). The models check the places of the fences
//! (`ring/models.rs`). The standard library is not instrumented, so reports about its locks are suppressed.
//! Nor are dependencies, none of which accesses the ring here. Without the sanitizer this is a plain stress
//! test.

use std::thread;

use crate::ring::{BatchSlot, Consumer, Header, Kind, Producer};
use crate::shm::{Area, Backing, Mapping, Segment, page_size};

/// Messages of a run.
const MESSAGES: u64 = 20_000;

/// Bytes before the ring: the reader's position, which in a link stands in another segment.
fn control() -> usize {
    page_size()
}

/// Bytes of the ring.
fn capacity() -> usize {
    page_size()
}

struct Writer {
    producer: Producer<Mapping, Mapping>,
    ring: Area,
}

struct Reader {
    consumer: Consumer<Mapping, Mapping>,
    ring: Mapping,
    payload: Vec<u8>,
}

/// Returns both ends of a ring in one mapping without a mirror.
fn ends() -> (Writer, Reader) {
    let len = control() + capacity();
    let segment = Segment::create("slipring.test", (len, len), Backing::default()).expect("memory");
    let (mapping, ring, _descriptor) = segment.into_parts(control());
    let capacity = capacity() as u64;
    let (own, peer) = (mapping.clone(), mapping.clone());
    let producer = Producer::new(own, peer, control(), 0, capacity, 0);
    let consumer = Consumer::new(mapping.clone(), mapping.clone(), control(), 0, capacity, 0);
    (Writer { producer, ring }, Reader { consumer, ring: mapping, payload: Vec::new() })
}

/// Returns the length of a message's payload in bytes: in one line, tight, and in lines of its own. A message
/// that takes the short path follows one with a record of the same length.
fn len(number: u64) -> usize {
    [8, 56, 200, 193, 16, 505, 512, 600][number as usize % 8]
}

fn message(number: u64) -> Header {
    Header::new(Kind::Message, len(number) as u32)
}

/// A record without payload fills the lap where a message would run into the mirror.
fn filler() -> Header {
    Header::new(Kind::Response, 0)
}

impl Writer {
    fn fill(&mut self, offset: usize, number: u64) {
        self.ring.bytes_mut(offset, len(number)).fill(number as u8);
    }

    fn send(&mut self, number: u64) {
        // The short path where it exists, and now and then the other one all the same.
        if number % 16 < 12 {
            let room = self.producer.plain_room(len(number) as u32);
            if let Some(room) = room.filter(|room| room.offset + len(number) <= capacity()) {
                self.fill(room.offset, number);
                self.producer.publish_plain(message(number), room.next);
                return;
            }
        }
        loop {
            match self.producer.reserve(message(number)).expect("the reader is honest") {
                Ok(offset) if offset + len(number) > capacity() => {
                    self.producer.publish(filler());
                }
                Ok(offset) => {
                    self.fill(offset, number);
                    return self.producer.publish(message(number));
                }
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// Sends messages from `number` on as a batch. Returns the number after them.
    fn send_batch(&mut self, number: u64) -> u64 {
        let mut batch = BatchSlot::default();
        self.producer.start(&mut batch);
        let mut next = number;
        while next < MESSAGES && batch.count() < 5 {
            let place = self.producer.place(message(next));
            if batch.count() == 0 && place + 3072 > capacity() {
                self.send(next);
                return next + 1;
            }
            match self.producer.push(&mut batch, message(next)).expect("the reader is honest") {
                Ok(offset) => self.fill(offset, next),
                Err(_) if batch.count() > 0 => break,
                Err(_) => {
                    thread::yield_now();
                    continue;
                }
            }
            next += 1;
        }
        self.producer.publish_batch(&mut batch);
        next
    }
}

impl Reader {
    /// Receives a message and returns its number's last byte, if all of its payload has this value.
    fn receive(&mut self, number: u64) {
        loop {
            let plain = self.consumer.plain(self.consumer.word(), capacity() as u64);
            let record = plain.or_else(|| self.consumer.peek().expect("a header of the writer"));
            let Some(record) = record else {
                self.consumer.publish();
                thread::yield_now();
                continue;
            };
            let is_filler = record.header == filler();
            if !is_filler {
                assert_eq!(record.header.len(), len(number) as u64);
                self.payload.resize(len(number), 0);
                self.ring.bytes(record.offset, len(number)).copy_to(&mut self.payload);
                assert!(self.payload.iter().all(|byte| *byte == number as u8), "{number} is whole");
            }
            self.consumer.release(record.header);
            if !is_filler {
                return;
            }
        }
    }
}

#[test]
fn every_payload_access_is_ordered() {
    let (mut writer, mut reader) = ends();
    let writing = thread::spawn(move || (0..MESSAGES).for_each(|number| writer.send(number)));
    (0..MESSAGES).for_each(|number| reader.receive(number));
    writing.join().unwrap();
}

#[test]
fn every_payload_access_of_a_batch_is_ordered() {
    let (mut writer, mut reader) = ends();
    let writing = thread::spawn(move || {
        let mut number = 0;
        while number < MESSAGES {
            number = writer.send_batch(number);
        }
    });
    (0..MESSAGES).for_each(|number| reader.receive(number));
    writing.join().unwrap();
}
