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
mod tests;
