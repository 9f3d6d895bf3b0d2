//! Faults of committed buffers: of models, their buffers, and their executions.

use std::fmt;

/// The direction in which a buffer's bytes go, seen from the model. The ENN document and the wire use the same
/// numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The client writes it, the model reads it.
    In = 0,
    /// The model writes it.
    Out = 1,
    /// The model reads and writes it: scratch memory, state, further results.
    Ext = 2,
}

impl Direction {
    /// All directions, in the order in which [`Session::set_all`](crate::commit::Session::set_all) takes buffers.
    pub const ALL: [Self; 3] = [Self::In, Self::Out, Self::Ext];
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

/// A buffer of a model, or a region without buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Slot {
    /// A buffer.
    Buffer {
        /// The buffer's direction.
        direction: Direction,
        /// Its index in this direction.
        index: u32,
        /// Its label.
        label: String,
    },
    /// A region.
    Region {
        /// The region's index.
        index: u32,
    },
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer { direction, index, label } if label.is_empty() => {
                write!(f, "{direction} {index}")
            }
            Self::Buffer { direction, index, label } => {
                write!(f, "{direction} {index} ({label:?})")
            }
            Self::Region { index } => write!(f, "region {index}"),
        }
    }
}

/// A buffer or region that a session lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unset {
    /// Nothing was set for a buffer, or for its region.
    Buffer {
        /// The buffer's direction.
        direction: Direction,
        /// Its index in this direction.
        index: u32,
        /// A buffer was set, and the client has released it.
        released: bool,
    },
    /// Nothing was set for a region without buffers.
    Region {
        /// The region's index.
        index: u32,
        /// A buffer was set, and the client has released it.
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

/// The reason why a request on a model, a session or an execution failed. A failed request changes nothing, on either
/// side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitFault {
    /// The model's description is inconsistent.
    #[error("model description: {why}")]
    Description {
        /// The inconsistency.
        why: String,
    },
    /// The service refuses the request.
    #[error("the service refuses: {why}")]
    Refused {
        /// The service's number for the reason, 0 if it has none.
        code: u32,
        /// The service's reason.
        why: String,
    },
    /// The service's handler panicked. The service goes on.
    #[error("the service's handler panicked")]
    Panicked,
    /// The client has closed the model.
    #[error("the model is closed")]
    ModelClosed,
    /// The model has fewer buffers of this direction.
    #[error("there is no {direction} {index}: the model has {count}")]
    UnknownBuffer {
        /// The direction.
        direction: Direction,
        /// The requested index.
        index: u32,
        /// Buffers of this direction.
        count: u32,
    },
    /// No buffer of the model has this label.
    #[error("no buffer has the label {label:?}")]
    UnknownLabel {
        /// The requested label.
        label: String,
    },
    /// The model has fewer regions.
    #[error("there is no region {index}: the model has {count}")]
    UnknownRegion {
        /// The requested index.
        index: u32,
        /// Regions of the model.
        count: u32,
    },
    /// The model has fewer sessions.
    #[error("there is no session {index}: the model has {count}")]
    UnknownSession {
        /// The requested index.
        index: u32,
        /// Sessions of the model.
        count: u32,
    },
    /// The handle is of a session that `Model::sessions` has replaced.
    #[error("the session's handle is stale: Model::sessions has replaced the session")]
    StaleSession,
    /// The number of sessions is out of range.
    #[error("{count} sessions are requested, 1 to {max} are allowed (Client::max_sessions)")]
    SessionCount {
        /// Requested sessions.
        count: u32,
        /// The limit.
        max: u32,
    },
    /// The buffer has no bytes.
    #[error("a buffer of 0 bytes")]
    EmptyBuffer,
    /// The descriptor is not one of memory, or cannot be read and written at an offset.
    #[error("unsupported descriptor: {why}")]
    Unsupported {
        /// The reason.
        why: String,
    },
    /// The buffer is wrapped, not mapped, so that this process has no access to its bytes.
    #[error("the buffer is wrapped, not mapped: import it to access its bytes")]
    NotMapped,
    /// The range exceeds the buffer or its object.
    #[error("{}{len} bytes at {offset} go past the end at {size}", of_region(*region))]
    Range {
        /// The region that the service refuses. `None`: a buffer of this process.
        region: Option<u32>,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Length of the buffer or object in bytes.
        size: u64,
    },
    /// The buffer's length differs from that of the tensor or region.
    #[error("{slot}: a buffer of {len} bytes, the model needs {expected}")]
    Size {
        /// What the buffer is for.
        slot: Slot,
        /// The buffer's length in bytes.
        len: u64,
        /// The length that the model needs.
        expected: u64,
    },
    /// The number of buffers differs from the model's.
    #[error("{count} buffers where the model needs {expected}")]
    Count {
        /// Buffers that the caller passed.
        count: usize,
        /// Buffers that the model has.
        expected: usize,
    },
    /// The view's place in its buffer differs from the tensor's place in its region.
    #[error(
        "{slot}: a view at {offset}, the model needs one at {expected} of a buffer of {size} bytes"
    )]
    Placement {
        /// What the view is for.
        slot: Slot,
        /// The view's start, in bytes of its buffer.
        offset: u64,
        /// The tensor's start, in bytes of its region.
        expected: u64,
        /// The region's size in bytes.
        size: u64,
    },
    /// The session is already committed.
    #[error("the session is already committed, as {id:#x}: release it first")]
    AlreadyCommitted {
        /// The commit's id.
        id: u64,
    },
    /// The session is not committed, or no session of the model is.
    #[error("the session is not committed")]
    NotCommitted,
    /// The outcome of the execution was returned before.
    #[error("the outcome of the execution was taken before")]
    OutcomeTaken,
    /// The session executes, or another request on it is under way.
    #[error("the session is busy")]
    Busy,
    /// The session lacks buffers.
    #[error("incomplete: {}", list(unset))]
    Incomplete {
        /// All buffers and regions that it lacks.
        unset: Vec<Unset>,
    },
    /// The model's description does not allow an update of this buffer.
    #[error("the model does not allow an update of {direction} {index}")]
    NotUpdatable {
        /// The buffer's direction.
        direction: Direction,
        /// Its index.
        index: u32,
    },
    /// The memory of an output is part of another committed region.
    #[error(
        "region {region} overlaps region {other} of commit {id:#x}, and one of them is written"
    )]
    Overlap {
        /// The region to commit.
        region: u32,
        /// The region that it overlaps.
        other: u32,
        /// The commit that holds the other region, 0 for the same commit.
        id: u64,
    },
    /// The region's owner can shrink its memory.
    #[error(
        "region {region} can be truncated by its owner: seal it with F_SEAL_SHRINK (or ServerOptions::allow_unsealed)"
    )]
    Unsealed {
        /// The region.
        region: u32,
    },
    /// The region's memory cannot be written, and the service writes it.
    #[error("region {region} is read-only")]
    ReadOnly {
        /// The region.
        region: u32,
    },
    /// The region's memory is not what the client says.
    #[error("region {region}: {why}")]
    Memory {
        /// The region.
        region: u32,
        /// The difference.
        why: String,
    },
    /// The memory of a model that is loaded from a descriptor is not what the client says.
    #[error("memory of the model: {why}")]
    Model {
        /// The difference.
        why: String,
    },
    /// The client has reached one of the server's limits for a client.
    #[error(
        "{used} {what} are in use and {needed} more are needed, over the limit of {limit} for one client"
    )]
    Quota {
        /// The things that the limit counts.
        what: &'static str,
        /// How many the client uses.
        used: u64,
        /// How many it requests.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// The service ran out of descriptors or memory.
    #[error("the service lacks resources: {why}")]
    Resources {
        /// The resource.
        why: String,
    },
    /// No commit or model of this connection has this id.
    #[error("no id {id:#x}")]
    UnknownId {
        /// The id.
        id: u64,
    },
    /// The server answered with a code that this version does not know.
    #[error("unknown fault code {code}: {why}")]
    Other {
        /// The code.
        code: u32,
        /// The server's text.
        why: String,
    },
}

fn of_region(region: Option<u32>) -> String {
    region.map(|region| format!("region {region}: ")).unwrap_or_default()
}

fn list(unset: &[Unset]) -> String {
    let words: Vec<String> = unset.iter().map(ToString::to_string).collect();
    words.join(", ")
}
