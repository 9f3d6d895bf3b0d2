//! The messages between client and server, as bytes. No I/O.
//!
//! ```text
//!   0     2      4       8                16
//!   │ act │ zero │ count │ ticket         │ body
//!     u16   u16    u32     u64
//! ```
//!
//! All numbers are little-endian; `docs/wire.md` has the bodies. The client chooses a ticket for each request, and the
//! answer repeats it. An execution of one id is 24 bytes and its answer 16, so that each lies in one cache line with the
//! header of its record.

use crate::commit::description::Description;
use crate::commit::wire::encoding::{Reader, Writer, at_most, lie};
use crate::error::{CommitFault, Fault};
use crate::shm::Bytes;

/// Bytes before the body.
pub(in crate::commit) const HEAD: usize = 16;

/// The largest number of ids in one execute message, and so of sessions of one model.
pub(in crate::commit) const MOST_IDS: usize = 1024;

/// The kinds of messages. Their numbers never change.
mod act {
    pub(super) const LOAD: u16 = 1;
    pub(super) const LOAD_DESCRIPTOR: u16 = 2;
    pub(super) const COMMIT: u16 = 3;
    pub(super) const UPDATE: u16 = 4;
    pub(super) const EXECUTE: u16 = 5;
    pub(super) const RELEASE: u16 = 6;
    pub(super) const UNLOAD: u16 = 7;
    pub(super) const DISCARD: u16 = 8;
    pub(super) const LOADED: u16 = 65;
    pub(super) const COMMITTED: u16 = 66;
    pub(super) const EXECUTED: u16 = 67;
    pub(super) const DONE: u16 = 68;
    pub(super) const FAILED: u16 = 69;
}

/// The kind of memory object that the client says a descriptor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commit) enum Object {
    /// A memfd or another file on tmpfs.
    Memfd = 1,
    Dmabuf = 2,
}

/// The memory of one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commit) struct Memory {
    pub region: u32,
    /// The position among the descriptors that the message names.
    pub descriptor: u32,
    pub object: Object,
    /// The region's start, in bytes of the object.
    pub offset: u64,
    /// The region's length in bytes.
    pub len: u64,
}

/// The descriptors that a message names: the client has sent them over the socket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commit) struct Passed {
    /// The number of the first one, counted on the link from 0.
    pub first: u64,
    pub count: u32,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commit) enum Request {
    /// Load a model from the bytes that follow in the message.
    Load,
    /// Load a model from `len` bytes at `offset` of the object behind a descriptor.
    LoadDescriptor {
        passed: u64,
        offset: u64,
        len: u64,
    },
    Commit {
        model: u64,
        passed: Passed,
        memory: Vec<Memory>,
    },
    Update {
        id: u64,
        passed: Passed,
        memory: Vec<Memory>,
    },
    Execute {
        ids: Vec<u64>,
    },
    Release {
        id: u64,
    },
    Unload {
        model: u64,
    },
    /// No message will name descriptors before this number.
    Discard {
        before: u64,
    },
}

/// An answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commit) enum Answer {
    Loaded {
        model: u64,
        description: Description,
    },
    Committed {
        id: u64,
    },
    /// The executions that failed: positions among the ids, ascending, and the faults.
    Executed {
        failures: Vec<(u32, CommitFault)>,
    },
    /// A release, an unload or an update has ended.
    Done,
    Failed(CommitFault),
}

/// Returns the message that requests one execution.
pub(in crate::commit) fn execute_one(ticket: u64, id: u64) -> [u8; HEAD + 8] {
    let mut message = [0; HEAD + 8];
    message[..HEAD].copy_from_slice(&head(act::EXECUTE, 1, ticket));
    message[HEAD..].copy_from_slice(&id.to_le_bytes());
    message
}

/// Returns the answer that every execution went well.
pub(in crate::commit) fn executed(ticket: u64) -> [u8; HEAD] {
    head(act::EXECUTED, 0, ticket)
}

/// Returns the ticket and the id, if this record of a ring requests one execution.
#[inline]
pub(in crate::commit) fn is_execute_one(message: Bytes<'_>) -> Option<(u64, u64)> {
    let [word, ticket, id] =
        (message.len() == HEAD + 8).then(|| message.words())??.map(u64::from_le);
    (word == u64::from(act::EXECUTE) | 1 << 32).then_some((ticket, id))
}

/// Returns the ticket, if this record of a ring answers that every execution went well.
#[inline]
pub(in crate::commit) fn is_executed(message: Bytes<'_>) -> Option<u64> {
    let [word, ticket] = (message.len() == HEAD).then(|| message.words())??.map(u64::from_le);
    (word == u64::from(act::EXECUTED)).then_some(ticket)
}

fn head(act: u16, count: u32, ticket: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..2].copy_from_slice(&act.to_le_bytes());
    head[4..8].copy_from_slice(&count.to_le_bytes());
    head[8..].copy_from_slice(&ticket.to_le_bytes());
    head
}

impl Request {
    pub(in crate::commit) fn encode(&self, ticket: u64) -> Vec<u8> {
        let start = |act, count: usize| Writer::new(&head(act, count as u32, ticket));
        let writer = match self {
            Self::Load => start(act::LOAD, 0),
            Self::LoadDescriptor { passed, offset, len } => {
                start(act::LOAD_DESCRIPTOR, 0).u64(*passed).u64(*offset).u64(*len)
            }
            Self::Commit { model, passed, memory } => {
                start(act::COMMIT, memory.len()).u64(*model).memory(*passed, memory)
            }
            Self::Update { id, passed, memory } => {
                start(act::UPDATE, memory.len()).u64(*id).memory(*passed, memory)
            }
            Self::Execute { ids } => {
                ids.iter().fold(start(act::EXECUTE, ids.len()), |writer, id| writer.u64(*id))
            }
            Self::Release { id } => start(act::RELEASE, 0).u64(*id),
            Self::Unload { model } => start(act::UNLOAD, 0).u64(*model),
            Self::Discard { before } => start(act::DISCARD, 0).u64(*before),
        };
        writer.into_bytes()
    }

    /// Decodes a message: the ticket, the request, and the bytes of a model that follow.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the message is malformed.
    pub(in crate::commit) fn decode(message: &[u8]) -> Result<(u64, Self, &[u8]), Fault> {
        let (Head { act, count, ticket }, mut reader) = Head::read(message)?;
        let request = match act {
            act::LOAD => {
                no_count(count)?;
                return Ok((ticket, Self::Load, reader.rest()));
            }
            act::LOAD_DESCRIPTOR => {
                no_count(count)?;
                let (passed, offset, len) = (reader.u64()?, reader.u64()?, reader.u64()?);
                Self::LoadDescriptor { passed, offset, len }
            }
            act::COMMIT => {
                let (model, (passed, memory)) = (reader.u64()?, reader.memory(count)?);
                Self::Commit { model, passed, memory }
            }
            act::UPDATE => {
                let (id, (passed, memory)) = (reader.u64()?, reader.memory(count)?);
                Self::Update { id, passed, memory }
            }
            act::EXECUTE => {
                let count = at_most(count, 1, MOST_IDS)?;
                let ids = (0..count).map(|_| reader.u64()).collect::<Result<_, _>>()?;
                Self::Execute { ids }
            }
            act::RELEASE => {
                no_count(count)?;
                Self::Release { id: reader.u64()? }
            }
            act::UNLOAD => {
                no_count(count)?;
                Self::Unload { model: reader.u64()? }
            }
            act::DISCARD => {
                no_count(count)?;
                Self::Discard { before: reader.u64()? }
            }
            act => return Err(lie("commit.act", act)),
        };
        reader.end()?;
        Ok((ticket, request, &[]))
    }
}

impl Answer {
    pub(in crate::commit) fn encode(&self, ticket: u64) -> Vec<u8> {
        let start = |act, count: usize| Writer::new(&head(act, count as u32, ticket));
        let writer = match self {
            Self::Loaded { model, description } => {
                let regions = description.regions.len() as u64;
                let writer = start(act::LOADED, description.buffers.len()).u64(*model).u64(regions);
                writer.description(description)
            }
            Self::Committed { id } => start(act::COMMITTED, 0).u64(*id),
            Self::Executed { failures } => {
                let writer = start(act::EXECUTED, failures.len());
                failures.iter().fold(writer, |writer, (at, fault)| writer.u32(*at).fault(fault))
            }
            Self::Done => start(act::DONE, 0),
            Self::Failed(fault) => start(act::FAILED, 0).fault(fault),
        };
        writer.into_bytes()
    }

    /// Decodes a message: the ticket and the answer.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the message is malformed.
    pub(in crate::commit) fn decode(message: &[u8]) -> Result<(u64, Self), Fault> {
        let (Head { act, count, ticket }, mut reader) = Head::read(message)?;
        let answer = match act {
            act::LOADED => {
                let (model, regions) = (reader.u64()?, reader.u64()?);
                Self::Loaded { model, description: reader.description(count, regions)? }
            }
            act::COMMITTED => {
                no_count(count)?;
                Self::Committed { id: reader.u64()? }
            }
            act::EXECUTED => {
                let count = at_most(count, 0, MOST_IDS)?;
                let failures = (0..count).map(|_| Ok((reader.u32()?, reader.fault()?)));
                Self::Executed { failures: failures.collect::<Result<_, Fault>>()? }
            }
            act::DONE => {
                no_count(count)?;
                Self::Done
            }
            act::FAILED => {
                no_count(count)?;
                Self::Failed(reader.fault()?)
            }
            act => return Err(lie("commit.act", act)),
        };
        reader.end()?;
        Ok((ticket, answer))
    }
}

struct Head {
    act: u16,
    count: u32,
    ticket: u64,
}

impl Head {
    fn read(message: &[u8]) -> Result<(Self, Reader<'_>), Fault> {
        let mut reader = Reader::new(message);
        let act = reader.u32()?;
        let (count, ticket) = (reader.u32()?, reader.u64()?);
        let zero = act >> 16;
        if zero != 0 {
            return Err(lie("commit.zero", zero));
        }
        Ok((Self { act: act as u16, count, ticket }, reader))
    }
}

fn no_count(count: u32) -> Result<(), Fault> {
    at_most(count, 0, 0).map(drop)
}

#[cfg(test)]
mod tests {
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
        let image =
            BufferInfo::new("IFM", Direction::In, DType::Uint8, [1, 299, 299, 3]).updatable();
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
}
