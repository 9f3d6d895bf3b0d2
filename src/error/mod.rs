//! Faults, and what they say.
//!
//! An [`Error`] has a [kind](Error::kind) to match on and, where the kernel refused something or a
//! peer kept something, the [`std::io::Error`] that says so as its source. What happens daily in a working exchange (the ring
//! is full, nothing has arrived yet) is no fault: it is a variant of the operation's own answer
//! ([`TrySendError::Full`](crate::TrySendError), [`TryRecvError::Empty`](crate::TryRecvError)).
//!
//! Texts give the fact and both numbers. They never hold an address or path of somebody else's
//! memory.

mod commit;
mod cuda;
mod dlpack;
mod fault;
mod panic;
mod region;
mod tensor;

use std::fmt;
use std::io;
use std::time::Duration;

pub use commit::{CommitFault, Direction, Unset};
pub use cuda::{CudaFault, Uuid as GpuUuid};
pub use dlpack::DlpackFault;
pub use fault::{DescriptorFault, Fault};
pub(crate) use panic::contain;
pub use region::RegionFault;
pub use tensor::TensorFault;

/// The result of an operation that can meet a fault.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault: what went wrong, and the system error behind it if there is one.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    source: Option<io::Error>,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address cannot name a socket.
    #[error("invalid address: {0}")]
    InvalidAddress(AddressFault),
    /// Somebody else listens on this address.
    #[error("address {address} is in use")]
    AddressInUse {
        /// The address as the caller gave it.
        address: String,
    },
    /// Nobody listens on this address.
    #[error("nobody listens on {address}")]
    NobodyListens {
        /// The address as the caller gave it.
        address: String,
    },
    /// An option is outside of what it may be.
    #[error("option {name} is {value}, must be {must}")]
    InvalidOption {
        /// The option's name.
        name: &'static str,
        /// The value it was given.
        value: u64,
        /// What it may be.
        must: &'static str,
    },
    /// The peer policy of this context does not admit the peer.
    #[error("peer with uid {uid} is not admitted by the peer policy")]
    PeerNotAdmitted {
        /// The peer's effective user id.
        uid: u32,
    },
    /// The peer refused us, and said why.
    #[error("the peer refused the connection: {0}")]
    RefusedByPeer(Refusal),
    /// The two sides share no protocol version.
    #[error("no common protocol version: this side speaks {}..={}, the peer {}..={}", ours.0, ours.1, theirs.0, theirs.1)]
    NoCommonVersion {
        /// Lowest and highest version of this side.
        ours: (u16, u16),
        /// Lowest and highest version of the peer.
        theirs: (u16, u16),
    },
    /// The peer broke the protocol. Its link is closed; every other link goes on.
    #[error("the peer broke the protocol: {0}")]
    Fault(Fault),
    /// The deadline passed. Nothing was sent or received.
    #[error("timed out after {} ms", after.as_millis())]
    TimedOut {
        /// How long the operation waited.
        after: Duration,
    },
    /// The peer closed its side in order; it receives no more.
    #[error("the peer has closed the connection")]
    PeerClosed,
    /// The peer died, or its end of the socket went away without an orderly close.
    #[error("the peer died")]
    PeerDied,
    /// The message is longer than the smaller of both sides' `max_message`.
    #[error("message of {len} bytes is over the maximum of {max} bytes")]
    MessageTooLarge {
        /// The message's length in bytes.
        len: u64,
        /// The longest message of this link in bytes.
        max: u64,
    },
    /// The batch cannot fit into the ring even when it is empty.
    #[error("batch needs {needed} bytes, the ring holds {capacity}")]
    BatchTooLarge {
        /// Ring bytes that the batch needs.
        needed: u64,
        /// Ring bytes that a batch may use.
        capacity: u64,
    },
    /// The pool's quota cannot hold a block of this size beside those in use.
    #[error(
        "pool has {used} of {quota} bytes in use and needs {needed} more: free some of it, or allow more (Options::pool_quota, the peer's Options::peer_pool_limit)"
    )]
    PoolExhausted {
        /// Bytes that the request needs.
        needed: u64,
        /// Bytes in use.
        used: u64,
        /// The quota in bytes.
        quota: u64,
    },
    /// Messages of other kinds wait to be received and must be taken first.
    #[error(
        "{waiting} messages wait to be received, over the limit of {limit}: receive them (Options::backlog_limit)"
    )]
    BacklogFull {
        /// Messages in the backlog.
        waiting: usize,
        /// The backlog's limit in bytes.
        limit: usize,
    },
    /// More writes of a link wait for room than may.
    #[error(
        "writes of {bytes} bytes would wait for room, at most {limit} bytes may: the peer receives too slowly (Options::write_limit)"
    )]
    WritesFull {
        /// Bytes that would wait.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The link was closed from this side.
    #[error("the link was closed from this side")]
    LinkClosed,
    /// A callback of the link panicked, which ended the link.
    #[error("a callback of the link panicked")]
    CallbackPanicked,
    /// All tokens of a link are registered, or spent.
    #[error(
        "all tokens of the link are registered or spent: unregister some, or make another link"
    )]
    TokensSpent,
    /// All numbers of segments of a context are spent, 2^32 of them: make another context.
    #[error("all numbers of segments of the context are spent")]
    NumbersSpent,
    /// The reactor that served the link has stopped.
    #[error("the reactor has stopped")]
    ReactorStopped,
    /// No request with this id is in flight on this connection.
    #[error("no request {id} is in flight")]
    UnknownRequest {
        /// The id that was asked for.
        id: u64,
    },
    /// What was to be done with a tensor cannot be.
    #[error("{0}")]
    Tensor(TensorFault),
    /// What was to be done with a region cannot be.
    #[error("{0}")]
    Region(RegionFault),
    /// What was to be done with a model, a session or an execution cannot be.
    #[error("{0}")]
    Commit(CommitFault),
    /// What was to be done on a GPU cannot be.
    #[error("{0}")]
    Cuda(CudaFault),
    /// The kernel has no memory for a shared segment.
    #[error("no shared memory for {bytes} bytes")]
    OutOfMemory {
        /// The segment's length in bytes.
        bytes: u64,
    },
    /// A limit on descriptors was met: the process's own (`RLIMIT_NOFILE`), the system's, or the
    /// user's descriptors in flight.
    #[error(
        "descriptor limit reached (RLIMIT_NOFILE is {limit}): close some, or Context::raise_descriptor_limit"
    )]
    DescriptorLimit {
        /// The process's soft limit.
        limit: u64,
    },
    /// The handle belongs to the process that forked this one.
    #[error("this handle belongs to the parent process: a forked child must connect anew")]
    Forked,
    /// The kernel refused a system call.
    #[error("{call} failed")]
    Os {
        /// What was being done.
        call: &'static str,
    },
}

/// Why an address cannot name a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressFault {
    /// The name has no bytes.
    #[error("the name is empty")]
    Empty,
    /// The name does not fit into a socket address.
    #[error("the name has {len} bytes, at most {max} fit")]
    TooLong {
        /// The name's length in bytes.
        len: usize,
        /// The longest name in bytes.
        max: usize,
    },
    /// The name holds a NUL byte.
    #[error("the name has a NUL at byte {at}")]
    Nul {
        /// The first NUL's offset in bytes.
        at: usize,
    },
    /// The descriptor is not a Unix socket of type `SOCK_SEQPACKET`.
    #[error("the descriptor is no SOCK_SEQPACKET Unix socket in the needed state")]
    NotSeqpacket,
}

/// Why a peer refused a connection, as it said in its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer's policy does not admit this process.
    #[error("its peer policy does not admit this process")]
    NotAdmitted,
    /// The peer could not use this side's Hello.
    #[error("it could not use this side's hello")]
    BadHello,
    /// The peer could not use this side's segment.
    #[error("it could not use this side's segment")]
    BadSegment,
    /// The peer has no memory or descriptors left.
    #[error("it has no memory or descriptors left")]
    NoResources,
    /// A code that this version does not know.
    #[error("code {0}")]
    Other(u32),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { inner: Box::new(Inner { kind, source: None }) }
    }

    pub(crate) fn with_source(kind: ErrorKind, source: impl Into<io::Error>) -> Self {
        Self { inner: Box::new(Inner { kind, source: Some(source.into()) }) }
    }

    /// The error of a failed system call: limits on descriptors and memory get kinds of their own.
    pub(crate) fn os(call: &'static str, errno: impl Into<io::Error>) -> Self {
        let source = errno.into();
        let kind = match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS) => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
                ErrorKind::DescriptorLimit { limit: limit.current.unwrap_or(u64::MAX) }
            }
            _ => ErrorKind::Os { call },
        };
        Self::with_source(kind, source)
    }

    /// A deadline that passed says what was waited for.
    pub(crate) fn waiting_for(self, what: &'static str) -> Self {
        if !self.is_timeout() {
            return self;
        }
        Self::with_source(self.inner.kind, io::Error::new(io::ErrorKind::TimedOut, what))
    }

    /// Of somebody who waited for room on a link.
    pub(crate) fn waiting_for_room(self) -> Self {
        self.waiting_for(
            "the peer makes no room: it receives too slowly, or keeps what it was lent",
        )
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.inner.kind
    }

    /// The kernel's number, where it refused something.
    pub(crate) fn os_code(&self) -> Option<i32> {
        self.inner.source.as_ref().and_then(io::Error::raw_os_error)
    }

    /// Whether the deadline of the operation passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self.kind(), ErrorKind::TimedOut { .. })
    }

    /// Whether the peer is no longer there: it closed, or died.
    pub fn is_disconnected(&self) -> bool {
        matches!(self.kind(), ErrorKind::PeerClosed | ErrorKind::PeerDied)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.inner.kind);
        if let Some(source) = &self.inner.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.kind.fmt(f)?;
        match &self.inner.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| source as _)
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::new(ErrorKind::Fault(fault))
    }
}

impl From<DescriptorFault> for Error {
    fn from(fault: DescriptorFault) -> Self {
        Fault::Descriptor(fault).into()
    }
}

impl From<TensorFault> for Error {
    fn from(fault: TensorFault) -> Self {
        Self::new(ErrorKind::Tensor(fault))
    }
}

impl From<CudaFault> for Error {
    fn from(fault: CudaFault) -> Self {
        Self::new(ErrorKind::Cuda(fault))
    }
}

impl From<DlpackFault> for Error {
    fn from(fault: DlpackFault) -> Self {
        TensorFault::Dlpack(fault).into()
    }
}

impl From<RegionFault> for ErrorKind {
    fn from(fault: RegionFault) -> Self {
        Self::Region(fault)
    }
}

impl From<RegionFault> for Error {
    fn from(fault: RegionFault) -> Self {
        Self::new(ErrorKind::Region(fault))
    }
}

impl From<CommitFault> for Error {
    fn from(fault: CommitFault) -> Self {
        Self::new(ErrorKind::Commit(fault))
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_crosses_threads_and_is_small() {
        fn crosses<T: Send + Sync + 'static>() {}
        crosses::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn a_text_gives_the_fact_and_both_numbers() {
        let error = Error::from(ErrorKind::MessageTooLarge { len: 4096, max: 1024 });
        assert_eq!(error.to_string(), "message of 4096 bytes is over the maximum of 1024 bytes");
        let error = Error::from(Fault::SegmentRange { offset: 0, len: 4096, capacity: 1024 });
        assert_eq!(
            error.to_string(),
            "the peer broke the protocol: descriptor claims 4096 bytes at 0, the segment holds 1024"
        );
        let error = Error::from(RegionFault::Range { offset: 64, len: 4096, size: 1024 });
        assert_eq!(error.to_string(), "4096 bytes at 64 go past the end at 1024");
    }

    #[test]
    fn a_descriptor_limit_is_named() {
        let error = Error::os("accept4", io::Error::from_raw_os_error(libc::EMFILE));
        assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { limit } if *limit > 0));
        assert!(std::error::Error::source(&error).is_some());
    }
}
