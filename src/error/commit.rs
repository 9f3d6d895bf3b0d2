//! What can be wrong with models, their buffers, and executions of them.

use std::fmt;

/// Which way a buffer's bytes go, seen from the model. The numbers are the document's, and the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The client writes it, the model reads it.
    In = 0,
    /// The model writes it.
    Out = 1,
    /// The model uses it as it likes: scratch memory, state, further results.
    Ext = 2,
}

impl Direction {
    /// All of them, in the order in which [`Session::set_all`](crate::commit::Session::set_all) takes buffers.
    pub const ALL: [Self; 3] = [Self::In, Self::Out, Self::Ext];

    /// The direction with this number.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "input",
            Self::Out => "output",
            Self::Ext => "ext buffer",
        })
    }
}

/// What a session lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unset {
    /// Nothing was set for a buffer, or for its region.
    Buffer {
        /// The buffer's direction.
        direction: Direction,
        /// Its index in this direction.
        index: u32,
        /// Something was set, and released since.
        released: bool,
    },
    /// Nothing was set for a region without buffers.
    Region {
        /// The region's index.
        index: u32,
        /// Something was set, and released since.
        released: bool,
    },
}

impl fmt::Display for Unset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let released = match self {
            Self::Buffer { direction, index, released } => {
                write!(f, "{direction} {index}")?;
                released
            }
            Self::Region { index, released } => {
                write!(f, "region {index}")?;
                released
            }
        };
        f.write_str(if *released { " was released" } else { " is not set" })
    }
}

/// Why a model, a session or an execution cannot do what was asked. After it everything is as it was before, on
/// both sides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitFault {
    /// A model's description cannot be.
    #[error("model description: {why}")]
    Description {
        /// What is wrong with it.
        why: String,
    },
    /// The service refuses, in its own words.
    #[error("the service refuses: {why}")]
    Refused {
        /// The service's own number, 0 if it gives none.
        code: u32,
        /// Its words.
        why: String,
    },
    /// The handler panicked. The service goes on.
    #[error("the handler panicked")]
    Panicked,
    /// The model was closed.
    #[error("the model was closed")]
    ModelClosed,
    /// The model has fewer buffers of this direction.
    #[error("{direction} {index} of {count}")]
    UnknownBuffer {
        /// The direction.
        direction: Direction,
        /// The index that was asked for.
        index: u32,
        /// Buffers of this direction.
        count: u32,
    },
    /// No buffer of the model has this label.
    #[error("no buffer is labelled {label:?}")]
    UnknownLabel {
        /// The label that was asked for.
        label: String,
    },
    /// The model has fewer regions.
    #[error("region {index} of {count}")]
    UnknownRegion {
        /// The index that was asked for.
        index: u32,
        /// Regions of the model.
        count: u32,
    },
    /// The model has fewer sessions.
    #[error("session {index} of {count}")]
    UnknownSession {
        /// The index that was asked for.
        index: u32,
        /// Sessions of the model.
        count: u32,
    },
    /// The session's handle is from before the sessions were made anew.
    #[error("the session was replaced when sessions were made anew")]
    StaleSession,
    /// So many sessions cannot be.
    #[error("{count} sessions, 1 to {max} may be")]
    SessionCount {
        /// Sessions that were asked for.
        count: u32,
        /// How many may be.
        max: u32,
    },
    /// A buffer of no bytes.
    #[error("buffer of 0 bytes")]
    EmptyBuffer,
    /// The descriptor is none of memory, or cannot be read and written at a place.
    #[error("unsupported descriptor: {why}")]
    Unsupported {
        /// What is wrong with it.
        why: String,
    },
    /// The buffer was wrapped, not mapped: its bytes are not at hand.
    #[error("the buffer is not mapped")]
    NotMapped,
    /// The range is not inside of the buffer, or of its object.
    #[error("{len} bytes at {offset} go past the end at {size}")]
    Range {
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// A buffer has another size than what it is set for.
    #[error("buffer of {len} bytes where {expected} are due")]
    Size {
        /// The buffer's length in bytes.
        len: u64,
        /// The length that is due.
        expected: u64,
    },
    /// Another number of buffers was given than the model has.
    #[error("{count} buffers where {expected} are due")]
    Count {
        /// Buffers that were given.
        count: usize,
        /// Buffers that the model has.
        expected: usize,
    },
    /// A view lies elsewhere in its buffer than the tensor does in its region.
    #[error(
        "view at {offset} of a buffer that must hold {size} bytes around it, the tensor at {expected} of them"
    )]
    Placement {
        /// Where the view starts in its buffer, in bytes.
        offset: u64,
        /// Where the tensor starts in its region, in bytes.
        expected: u64,
        /// The region's size in bytes.
        size: u64,
    },
    /// The session is committed already, under this id.
    #[error("the session is committed already, as {id:#x}")]
    AlreadyCommitted {
        /// The id.
        id: u64,
    },
    /// The session, or every session of the model, is not committed.
    #[error("not committed")]
    NotCommitted,
    /// The session executes, or another act on it is under way.
    #[error("the session is busy")]
    Busy,
    /// The session lacks buffers.
    #[error("incomplete: {}", list(unset))]
    Incomplete {
        /// All that it lacks.
        unset: Vec<Unset>,
    },
    /// The model's description does not let this buffer be updated.
    #[error("{direction} {index} is not able to be updated")]
    NotUpdatable {
        /// The buffer's direction.
        direction: Direction,
        /// Its index.
        index: u32,
    },
    /// Memory of an output is part of another committed region.
    #[error(
        "region {region} overlaps region {other} of commit {id:#x}, and one of them is written"
    )]
    Overlap {
        /// The region that was to be committed.
        region: u32,
        /// The region that it overlaps.
        other: u32,
        /// The commit that holds it, 0 for the same one.
        id: u64,
    },
    /// Memory that its owner could make shorter.
    #[error("region {region} can be truncated by its owner or has holes: seal it")]
    Unsealed {
        /// The region.
        region: u32,
    },
    /// Memory that cannot be written.
    #[error("region {region} is read-only")]
    ReadOnly {
        /// The region.
        region: u32,
    },
    /// A region's memory is not what it was said to be.
    #[error("region {region}: {why}")]
    Memory {
        /// The region.
        region: u32,
        /// What is wrong with it.
        why: String,
    },
    /// A limit of the service for one client.
    #[error("{used} {what} are in use, {needed} more are needed, {limit} may be")]
    Quota {
        /// Of what.
        what: &'static str,
        /// What the client has.
        used: u64,
        /// What it asks for.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// The service ran out of descriptors or memory.
    #[error("the service lacks resources: {why}")]
    Resources {
        /// What it lacks.
        why: String,
    },
    /// No commit or model of this connection has this id.
    #[error("no id {id:#x}")]
    UnknownId {
        /// The id.
        id: u64,
    },
    /// A code that this version does not know.
    #[error("code {code}: {why}")]
    Other {
        /// The code.
        code: u32,
        /// The service's words.
        why: String,
    },
}

fn list(unset: &[Unset]) -> String {
    let words: Vec<String> = unset.iter().map(ToString::to_string).collect();
    words.join(", ")
}
