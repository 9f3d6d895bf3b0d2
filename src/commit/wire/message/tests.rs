//! Unit tests of `commit::wire::message`.

use proptest::prelude::*;

use super::*;
use crate::commit::{BufferInfo, RegionInfo};
use crate::error::Direction;
use crate::tensor::DType;

fn requests() -> Vec<Request> {
    let piece =
        |region, descriptor, object| Memory { region, descriptor, object, offset: 7, len: 9 };
    let passed = Passed { first: 1 << 40, count: 2 };
    let memory = vec![piece(0, 1, Object::Memfd), piece(4095, 0, Object::Dmabuf)];
    vec![
        Request::LoadDescriptor { passed: 3, offset: 4, len: u64::MAX },
        Request::Commit { model: 1, passed, memory: memory.clone() },
        Request::Commit { model: 1, passed: Passed { first: 0, count: 0 }, memory: vec![] },
        Request::Update { id: u64::MAX, passed, memory },
        Request::Execute { ids: vec![1] },
        Request::Execute { ids: (1..=MOST_IDS as u64).collect() },
        Request::Release { id: 2 },
        Request::Unload { model: 3 },
        Request::Discard { before: 4 },
    ]
}

fn answers() -> Vec<Answer> {
    let image = BufferInfo::new("IFM", Direction::In, DType::Uint8, [1, 299, 299, 3]).updatable();
    let description = Description::new()
        .with_own_region(image.buffer_type(3))
        .with_region(RegionInfo::new(1).attributes(9).name("weights"))
        .with_buffer(BufferInfo::new("é", Direction::Ext, DType::Bf16, []).region(1, 5));
    vec![
        Answer::Loaded { model: 1, description },
        Answer::Loaded { model: 2, description: Description::new() },
        Answer::Committed { id: 3 },
        Answer::Executed { failures: vec![] },
        Answer::Executed { failures: vec![(1, CommitFault::Panicked), (2, CommitFault::Busy)] },
        Answer::Done,
        Answer::Failed(CommitFault::Refused { code: 5, why: "no".into() }),
    ]
}

#[test]
fn a_message_is_decoded_as_it_was_encoded() {
    for request in requests() {
        let bytes = request.encode(77);
        assert_eq!(Request::decode(&bytes).unwrap(), (77, request, &[][..]));
    }
    let mut load = Request::Load.encode(78);
    load.extend_from_slice(b"model");
    assert_eq!(Request::decode(&load).unwrap(), (78, Request::Load, &b"model"[..]));
    for answer in answers() {
        assert_eq!(Answer::decode(&answer.encode(79)).unwrap(), (79, answer));
    }
}

/// Bytes that are aligned as a record of a ring is.
#[repr(align(8))]
struct Aligned<const N: usize>([u8; N]);

#[test]
fn the_short_codec_of_one_execution_agrees_with_the_general_one() {
    let (one, done) = (execute_one(5, 6), executed(7));
    assert_eq!(Request::Execute { ids: vec![6] }.encode(5), one);
    assert_eq!(Answer::Executed { failures: vec![] }.encode(7), done);
    let (mut one, mut done) = (Aligned(one), Aligned(done));
    assert_eq!(is_execute_one(Bytes::of(&one.0)), Some((5, 6)));
    assert_eq!(is_executed(Bytes::of(&done.0)), Some(7));
    assert_eq!(is_execute_one(Bytes::of(&done.0)), None);
    assert_eq!(is_executed(Bytes::of(&one.0)), None);
    for at in 0..8 {
        one.0[at] ^= 1;
        done.0[at] ^= 1;
        assert_eq!(is_execute_one(Bytes::of(&one.0)), None);
        assert_eq!(is_executed(Bytes::of(&done.0)), None);
        one.0[at] ^= 1;
        done.0[at] ^= 1;
    }
}

#[test]
fn a_truncated_or_lengthened_message_is_refused() {
    for request in requests() {
        let bytes = request.encode(1);
        for len in 0..bytes.len() {
            assert!(Request::decode(&bytes[..len]).is_err(), "{request:?} at {len}");
        }
        assert!(Request::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
    for answer in answers() {
        let bytes = answer.encode(1);
        for len in 0..bytes.len() {
            assert!(Answer::decode(&bytes[..len]).is_err(), "{answer:?} at {len}");
        }
        assert!(Answer::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}

#[test]
fn a_count_that_lies_is_refused() {
    for request in requests().into_iter().skip(1) {
        let honest = request.encode(1);
        let is = u32::from_le_bytes(honest[4..8].try_into().unwrap());
        for count in [0, 1, 2, 3, 1023, 1024, 1025, 4096, 4097, 1 << 31, u32::MAX] {
            let mut bytes = honest.clone();
            bytes[4..8].copy_from_slice(&count.to_le_bytes());
            assert_eq!(Request::decode(&bytes).is_ok(), count == is, "{count} in {request:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (Request::decode(&bytes), Answer::decode(&bytes));
    }

    #[test]
    fn a_message_with_any_byte_changed_is_decoded_or_refused(
        which in 0..7usize,
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let mut request = requests().swap_remove(which).encode(1);
        let at_request = at.index(request.len());
        request[at_request] = with;
        if let Ok((ticket, decoded, rest)) = Request::decode(&request) {
            prop_assert_eq!([&decoded.encode(ticket)[..], rest].concat(), request);
        }
        let mut answer = answers().swap_remove(which).encode(1);
        let at_answer = at.index(answer.len());
        answer[at_answer] = with;
        let _ = Answer::decode(&answer);
    }
}
