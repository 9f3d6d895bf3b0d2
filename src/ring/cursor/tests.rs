//! Unit tests of `ring::cursor`.

use super::*;
use crate::ring::Kind;

const CAPACITY: u64 = 4096;

fn message(len: u64) -> Header {
    Header::new(Kind::Message, len as u32)
}

#[test]
fn a_ring_keeps_a_line_for_the_next_header_and_one_for_closing() {
    let mut cursor = ProducerCursor::new(CAPACITY, 0);
    let mut records = 0;
    while let Ok(next) = cursor.fits(message(56)) {
        cursor.advance(next);
        records += 1;
    }
    assert_eq!(records, CAPACITY / LINE - 2);
    assert_eq!(cursor.fits(message(56)), Err(Full { free: 0, needed: 64 }));
    cursor.admit(LINE).unwrap();
    assert_eq!(cursor.fits(message(56)), Ok(CAPACITY - LINE));
    cursor.advance(CAPACITY - LINE);
    cursor.advance_to_end(Header::new(Kind::Close, 0));
    assert_eq!(cursor.head(), CAPACITY);
}

#[test]
fn the_short_way_leads_where_any_other_does() {
    // Lengths of all three forms.
    const LONGEST: u64 = BESIDE + 128;
    let (mut taken, mut random) = (0, 1u64);
    for start in [0, 1 << 32, 0u64.wrapping_sub(CAPACITY)] {
        let (mut short, mut any) =
            (ProducerCursor::new(CAPACITY, start), ProducerCursor::new(CAPACITY, start));
        for round in 0..60_000u64 {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            // Long runs of one length, and all lengths; a reader far behind, or near.
            let len = if round % 128 < 64 { round / 128 } else { random >> 33 } % LONGEST;
            let room = any.fits(message(len)).ok();
            let bytes = |next: &u64| next.wrapping_sub(any.head());
            let beside = room.filter(|next| bytes(next) == any.clear);
            assert_eq!(short.fits_plain(len), beside, "room, and a next header that is zero");
            let Some(next) = room else {
                let behind = any.tail().wrapping_add(LINE);
                let position = if random >> 63 == 0 { any.head() } else { behind };
                any.admit(position).unwrap();
                short.admit(position).unwrap();
                continue;
            };
            let clearing = any.advance(next);
            if beside.is_some() {
                assert_eq!(short.advance_plain(next), clearing);
                taken += 1;
            } else {
                assert_eq!(short.advance(next), clearing);
            }
            assert_eq!((short.head(), short.clear), (any.head(), any.clear));
        }
    }
    assert!(taken > 60_000, "{taken}");
}

#[test]
fn both_ends_agree_on_every_record_past_2_to_the_32_and_2_to_the_64() {
    for start in [(1u64 << 32) - CAPACITY, 0u64.wrapping_sub(CAPACITY)] {
        let mut writer = ProducerCursor::new(CAPACITY, start);
        let mut reader = ConsumerCursor::new(CAPACITY, start);
        for round in 0..1000u64 {
            let header = message(round * 37 % 900);
            writer.advance(writer.fits(header).unwrap());
            reader.release(header);
            assert_eq!(reader.position(), writer.head());
            writer.admit(reader.position()).unwrap();
        }
    }
}

#[test]
fn a_record_like_the_one_before_leads_where_any_other_does() {
    let lens = [0, 8, 56, 57, 64, 512, 513, 1000];
    let headers: Vec<_> =
        lens.iter().flat_map(|len| [message(*len), message(*len).with_more()]).collect();
    let count = headers.len();
    for sequence in 0..count.pow(4) {
        let mut consumer = ConsumerCursor::new(1 << 16, 0);
        let (mut position, mut promised) = (0, false);
        for at in 0..4 {
            let header = headers[sequence / count.pow(at) % count];
            position = next(position, header, promised);
            promised = header.more();
            let is_like_the_last =
                at > 0 && header == headers[sequence / count.pow(at - 1) % count];
            if sequence % 2 == 0 || !is_like_the_last {
                assert!(is_like_the_last || !consumer.release_quietly(header));
                consumer.release(header);
            } else {
                assert!(consumer.release_quietly(header));
            }
            assert_eq!((consumer.position(), consumer.is_promised()), (position, promised));
        }
    }
}

#[test]
fn a_position_that_goes_back_or_past_the_head_is_a_fault() {
    for start in [0, 1 << 32, 0u64.wrapping_sub(CAPACITY)] {
        let mut writer = ProducerCursor::new(CAPACITY, start);
        writer.advance(start.wrapping_add(128));
        writer.admit(start.wrapping_add(64)).unwrap();
        let lies = [0, 56, 65, 129, 192, 4096, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
        for lie in lies {
            let position = start.wrapping_add(lie);
            assert!(writer.admit(position).is_err(), "{position:#x} from {start:#x}");
        }
        writer.admit(start.wrapping_add(128)).unwrap();
    }
}

#[test]
fn a_length_past_the_ring_is_a_fault() {
    let reader = ConsumerCursor::new(CAPACITY, 0);
    for len in [CAPACITY - 191, CAPACITY, 1 << 31, u64::from(u32::MAX)] {
        let word = message(len).to_word();
        assert_eq!(reader.judge(word), Err(Fault::RecordLength { len, capacity: CAPACITY }));
    }
    assert!(reader.judge(message(CAPACITY - 192).to_word()).is_ok());
}

#[test]
fn a_batch_that_ends_in_nothing_is_a_fault() {
    let mut reader = ConsumerCursor::new(CAPACITY, 0);
    assert_eq!(reader.judge(0), Ok(None));
    reader.release(message(5).with_more());
    assert_eq!(reader.position(), 16);
    assert_eq!(reader.judge(0), Err(Fault::RecordMissing));
    reader.release(message(5));
    assert_eq!(reader.position(), 64);
    assert_eq!(reader.judge(0), Ok(None));
}

#[test]
fn the_word_after_a_record_is_cleared_once() {
    let mut writer = ProducerCursor::new(CAPACITY, 0);
    assert_eq!(writer.advance(64), Clearing { before: Some(64), after: Some(128) });
    assert_eq!(writer.advance(128), Clearing { before: None, after: Some(192) });
    assert_eq!(writer.advance(256), Clearing { before: Some(256), after: Some(384) });
    // Nothing is cleared beyond the bytes that the reader has released.
    let last = CAPACITY - 128;
    assert_eq!(writer.advance(last), Clearing { before: Some(last), after: None });
}

#[test]
fn what_was_claimed_is_cleared_again() {
    let mut writer = ProducerCursor::new(CAPACITY, 0);
    assert_eq!(writer.advance(64).after, Some(128));
    writer.claim(128);
    assert_eq!(writer.advance(128).before, None);
    assert_eq!(writer.clear, 64);
    writer.claim(200);
    assert_eq!(writer.advance(192).before, Some(192));
}

#[test]
fn records_take_a_line_or_few_bytes_or_lines_of_their_own() {
    let cursor = ProducerCursor::new(CAPACITY, 0);
    for (len, next, payload) in
        [(0, 64, 8), (56, 64, 8), (57, 72, 8), (64, 72, 8), (512, 520, 8), (513, 640, 64)]
    {
        assert_eq!(cursor.fits(message(len)), Ok(next), "{len}");
        assert_eq!(ProducerCursor::payload(0, message(len), false), payload, "{len}");
    }
}

#[test]
fn a_reader_looks_ahead_after_records_of_one_header_without_a_pause() {
    let mut reader = ConsumerCursor::new(1 << 16, 0);
    let (short, other) = (Header::new(Kind::Message, 64), Header::new(Kind::Message, 8));
    let release = |reader: &mut ConsumerCursor, header, count| {
        for nth in 0..count {
            assert!(!reader.is_streaming(), "after {nth} records");
            reader.release(header);
        }
    };
    // The first of its kind only tells the length.
    release(&mut reader, short, AHEAD + 1);
    assert!(reader.is_streaming());
    assert_eq!(reader.ahead(), reader.position() + (AHEAD - 1) * 72);
    reader.look_ahead_later();
    release(&mut reader, short, AHEAD - 1);
    reader.look_ahead_later();
    release(&mut reader, short, AHEAD - 1);
    release(&mut reader, other, AHEAD + 1);
    assert!(reader.is_streaming());
    // So many of these do not lie in an eighth of the ring.
    reader.look_ahead_later();
    release(&mut reader, Header::new(Kind::Message, 512), 4 * AHEAD);
}
