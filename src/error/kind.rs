//! The error type, its kinds, and the conversions into it.

use std::time::Duration;
use std::{fmt, io};

use crate::error::{CommitFault, CudaFault, Fault, MetadataFault, RegionFault, TensorFault};

/// The result of an operation that can fail with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed: a [kind](Self::kind), and the system's error behind it where there is one.
///
/// # Examples
///
/// ```
/// use slipring::{Context, ErrorKind};
///
/// let error = Context::new()?.connect("nobody-is-here").unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::NobodyListens { .. }));
/// assert_eq!(error.to_string(), "nobody listens on @nobody-is-here: start the listener first");
/// # Ok::<(), slipring::Error>(())
/// ```
pub struct Error {
    report: Box<Report>,
}

struct Report {
    kind: ErrorKind,
    source: Option<io::Error>,
}

/// The kinds of errors, to match on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The name of an address has no bytes.
    #[error("invalid address: the name is empty")]
    AddressEmpty,
    /// The name of an address does not fit into a socket address.
    #[error("invalid address: the name has {len} bytes, at most {max} fit")]
    AddressTooLong {
        /// The name's length in bytes.
        len: usize,
        /// The longest name in bytes.
        max: usize,
    },
    /// The name of an address holds a NUL byte.
    #[error("invalid address: the name has a NUL at byte {at}")]
    AddressNul {
        /// The first NUL's offset in bytes.
        at: usize,
    },
    /// A backslash in an abstract name starts no escape.
    #[error(
        r"invalid address: the backslash at byte {at} starts no escape: write \\ for a backslash"
    )]
    AddressEscape {
        /// The backslash's offset in bytes.
        at: usize,
    },
    /// A descriptor is no Unix socket of type `SOCK_SEQPACKET`, or is in another state than the call needs.
    #[error("the descriptor is no SOCK_SEQPACKET Unix socket in the needed state")]
    NotSeqpacket,
    /// Another listener has this address.
    #[error("address {address} is in use: stop its listener or take another address")]
    AddressInUse {
        /// The address as the caller gave it.
        address: String,
    },
    /// No listener has this address.
    #[error("nobody listens on {address}: start the listener first")]
    NobodyListens {
        /// The address as the caller gave it.
        address: String,
    },
    /// An option has a value outside of its range.
    #[error("option {name} is {value}, must be {must}")]
    InvalidOption {
        /// The option's name.
        name: &'static str,
        /// The value that the caller gave.
        value: u64,
        /// The range, in words.
        must: &'static str,
    },
    /// The peer policy of this context does not admit the peer.
    #[error("the peer policy does not admit uid {uid} (Options::peer_policy)")]
    PeerNotAdmitted {
        /// The peer's effective user id.
        uid: u32,
    },
    /// The user namespace of this process does not map its user or its group. The kernel then refuses its credentials,
    /// which every Hello carries.
    #[error(
        "the user namespace of this process does not map its user or group, so it can send no credentials: write its uid_map and gid_map (user_namespaces(7))"
    )]
    UnmappedUser,
    /// The peer refused the connection: its peer policy does not admit this process.
    #[error(
        "the peer refused the connection: its peer policy does not admit this process (the peer's Options::peer_policy)"
    )]
    NotAdmittedByPeer,
    /// The peer refused the connection for another reason.
    #[error("the peer refused the connection: {}", refusal_text(*code))]
    RefusedByPeer {
        /// The code of the reason in `docs/wire.md`.
        code: u32,
    },
    /// One side of a handshake is of a broadcast, and the other of a link.
    #[error("{}", service_text(*publishes))]
    WrongService {
        /// Whether the accepting side publishes.
        publishes: bool,
    },
    /// The publisher does not admit the subscriber's policy.
    #[error(
        "the publisher does not admit this policy: ask for fewer messages, or allow it there (PublishOptions::newest_limit, PublishOptions::every)"
    )]
    PolicyRefused,
    /// The publisher has evicted this subscriber, and takes back all memory that the subscriber holds.
    #[error("the publisher has evicted this subscriber: {cause}")]
    Evicted {
        /// Why.
        cause: Eviction,
    },
    /// The subscriber holds as many messages of the publisher's pool as it may. The next message stays the next one.
    #[error(
        "this subscriber holds {limit} messages of the publisher's pool, which is its limit: drop one, or allow more (PublishOptions::hold_limit)"
    )]
    HoldLimit {
        /// The limit.
        limit: u32,
    },
    /// The subscriber holds as many bytes of the publisher's pool as it may. The next message stays the next one.
    #[error(
        "a message of {needed} bytes in the publisher's pool, of which this subscriber holds {held} bytes and may hold {limit}: drop a sample, or allow more (PublishOptions::hold_bytes)"
    )]
    HoldBytes {
        /// Bytes of the next message.
        needed: u64,
        /// Bytes of the messages that the subscriber holds.
        held: u64,
        /// The limit.
        limit: u64,
    },
    /// The two sides share no protocol version.
    #[error("no common protocol version: this side speaks {} to {}, the peer {} to {}", ours.0, ours.1, theirs.0, theirs.1)]
    NoCommonVersion {
        /// The lowest and the highest version of this side.
        ours: (u16, u16),
        /// The lowest and the highest version of the peer.
        theirs: (u16, u16),
    },
    /// The peer broke the protocol. This link is closed; every other link goes on.
    #[error("the peer broke the protocol: {0}")]
    Fault(Fault),
    /// The deadline passed. Nothing was sent or received. The source names what the operation waited for.
    #[error("timed out after {} ms", after.as_millis())]
    TimedOut {
        /// The time that the operation waited.
        after: Duration,
    },
    /// The peer closed its side in order; it receives no more.
    #[error("the peer has closed the connection")]
    PeerClosed,
    /// The peer died, or its end of the socket went away without an orderly close.
    #[error("the peer died")]
    PeerDied,
    /// The message is longer than the smaller of both sides' [`max_message`](crate::Options::max_message).
    #[error("message of {len} bytes, the link takes {max} (Options::max_message of both sides)")]
    MessageTooLarge {
        /// The message's length in bytes.
        len: u64,
        /// The longest message of this link in bytes.
        max: u64,
    },
    /// The message does not fit into the caller's buffer. It stays the next one.
    #[error("message of {len} bytes, the buffer takes {room}: receive it into a longer one")]
    BufferTooShort {
        /// The message's length in bytes.
        len: usize,
        /// The buffer's length in bytes.
        room: usize,
    },
    /// The batch does not fit into the empty ring.
    #[error(
        "batch of {needed} bytes, the ring takes {capacity}: publish in parts, or enlarge it (Options::ring_capacity)"
    )]
    BatchTooLarge {
        /// Ring bytes that the batch needs.
        needed: u64,
        /// Ring bytes that a batch may use.
        capacity: u64,
    },
    /// The pool's quota has no room for the block.
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
    /// The peer has taken back the memory of a message or tensor: it closed or aborted the link, and its
    /// [`release_grace`](crate::Options::release_grace) is over. What was read there may be other data.
    #[error(
        "the peer has taken the memory back: it aborted the link, or ended it and waited for its Options::release_grace"
    )]
    LoanRevoked,
    /// The next message is of another kind than the caller receives. It stays the next one, and nothing is lost. A peek
    /// ([`Receiver::peek`](crate::Receiver::peek)) returns messages of every kind.
    #[error("the next message {next}: receive it with {method}")]
    OtherKind {
        /// The kind of the next message.
        next: &'static str,
        /// The methods that receive it.
        method: &'static str,
    },
    /// Messages of other kinds fill the backlog. The caller receives them first.
    #[error(
        "backlog has {used} of {limit} bytes in {messages} messages and needs {needed} more: receive them, or allow more (Options::backlog_limit)"
    )]
    BacklogFull {
        /// Messages in the backlog.
        messages: usize,
        /// Bytes that the next message needs.
        needed: usize,
        /// Bytes in use.
        used: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The connection has as many requests without a response as it may have.
    #[error(
        "{calls} calls wait for a response, at most {limit} may: the peer answers too slowly, and `abandon` ends the wait of one"
    )]
    CallsInFlight {
        /// Requests without a response.
        calls: usize,
        /// The limit.
        limit: usize,
    },
    /// The writes of a link that wait for room have reached their limit.
    #[error(
        "{bytes} bytes of writes would wait for room, at most {limit} may: the peer receives too slowly (Options::write_limit)"
    )]
    WritesFull {
        /// Bytes that would wait.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// This side closed the link.
    #[error("this side closed the link")]
    LinkClosed,
    /// A callback of the link panicked, which ended the link.
    #[error("a callback of the link panicked")]
    CallbackPanicked,
    /// All tokens of a link are registered or used up.
    #[error(
        "all tokens of the link are registered or used up: unregister some, or make another link"
    )]
    TokensSpent,
    /// The context has numbered 2^32 segments, which is all that there are.
    #[error("the context has used all 4294967296 segment numbers: make another context")]
    NumbersSpent,
    /// The reactor that served the link has stopped.
    #[error("the reactor has stopped")]
    ReactorStopped,
    /// The connection has no request with this id.
    #[error("request {id} is not in flight on this connection")]
    UnknownRequest {
        /// The id that the caller gave.
        id: u64,
    },
    /// Metadata of the caller is impossible.
    #[error("{0}")]
    Metadata(MetadataFault),
    /// An operation on a tensor is impossible.
    #[error("{0}")]
    Tensor(TensorFault),
    /// An operation on a region is impossible.
    #[error("{0}")]
    Region(RegionFault),
    /// An operation on a model, a session or an execution is impossible.
    #[error("{0}")]
    Commit(CommitFault),
    /// An operation on a GPU is impossible.
    #[error("{0}")]
    Cuda(CudaFault),
    /// The kernel has no memory for a shared segment, or the allocator none for a copy.
    #[error("no memory for {bytes} bytes")]
    OutOfMemory {
        /// The length in bytes.
        bytes: u64,
    },
    /// The process may not make or write a file of this length (`RLIMIT_FSIZE`), and shared memory is one. Going on would
    /// end the process by `SIGXFSZ`.
    #[error(
        "shared memory of {bytes} bytes, this process may have files of {limit} (RLIMIT_FSIZE): raise the limit with ulimit -f or setrlimit"
    )]
    FileSizeLimit {
        /// The length in bytes.
        bytes: u64,
        /// The process's soft limit in bytes.
        limit: u64,
    },
    /// A peer would make this process hold more than its link, the peer, its user, or all peers of the process may
    /// ([`Options::peer_limit`](crate::Options::peer_limit)).
    #[error(
        "the {account}'s account of {resource} is full: {used} in use, {needed} more needed, {limit} allowed (Options::{account}_limit)"
    )]
    AccountFull {
        /// What there is too much of.
        resource: &'static str,
        /// Whose account is full: "link", "peer", "user" or "process".
        account: &'static str,
        /// What the account holds.
        used: u64,
        /// What was to be added.
        needed: u64,
        /// The limit, now.
        limit: u64,
    },
    /// A limit on descriptors is reached: the process's (`RLIMIT_NOFILE`), the system's, or that on the user's
    /// descriptors in flight.
    #[error(
        "descriptor limit reached (RLIMIT_NOFILE is {limit}): close some, or Context::raise_descriptor_limit"
    )]
    DescriptorLimit {
        /// The process's soft limit.
        limit: u64,
    },
    /// The handle belongs to the parent of this forked process.
    #[error("this handle belongs to the parent process: a forked child connects on its own")]
    Forked,
    /// The kernel refused a system call. The source says why.
    #[error("the kernel refused {call}")]
    Os {
        /// The system call.
        call: &'static str,
    },
}

/// Why a publisher evicts a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// The subscriber wants every message, and made no room for the next one.
    Stalled,
    /// The owner of the publisher asked for it.
    Asked,
    /// The subscriber held more bytes of the publisher's pool than it may.
    Overdrawn,
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stalled => {
                "it wants every message and made no room for longer than PublishOptions::stall_after"
            }
            Self::Asked => "its owner asked for it (Publisher::evict)",
            Self::Overdrawn => "it held more bytes of the pool than PublishOptions::hold_bytes",
        })
    }
}

fn service_text(publishes: bool) -> &'static str {
    if publishes {
        "a publisher has the address, and this side does not subscribe: use Context::subscribe"
    } else {
        "the address has a listener for links, and this side subscribes: use Context::connect, or Context::publish there"
    }
}

fn refusal_text(code: u32) -> String {
    match code {
        2 => "it could not use this side's hello (it refuses every subscriber so if it knows no broadcasts)"
            .into(),
        3 => "it could not use this side's segment".into(),
        4 => "it has no memory or descriptors left".into(),
        8 => "it has as many subscribers as it may have (PublishOptions::subscriber_limit)".into(),
        code => format!("code {code}"),
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { report: Box::new(Report { kind, source: None }) }
    }

    pub(crate) fn with_source(kind: ErrorKind, source: impl Into<io::Error>) -> Self {
        Self { report: Box::new(Report { kind, source: Some(source.into()) }) }
    }

    /// Returns the error of a failed system call. Limits on descriptors have a kind of their own.
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

    /// Returns the error with the thing that the operation waited for as its source, if a deadline passed and the error
    /// does not name it.
    pub(crate) fn waiting_for(self, what: impl Into<String>) -> Self {
        if !self.is_timeout() || self.report.source.is_some() {
            return self;
        }
        Self::with_source(self.report.kind, io::Error::new(io::ErrorKind::TimedOut, what.into()))
    }

    /// Returns the error of an operation that waited for room on a link.
    pub(crate) fn waiting_for_room(self) -> Self {
        self.waiting_for(
            "the peer makes no room: it receives too slowly, or keeps what it was lent",
        )
    }

    /// Returns the kind of the error, to match on.
    pub fn kind(&self) -> &ErrorKind {
        &self.report.kind
    }

    /// Returns the kernel's number of the error, where the kernel refused a call.
    pub(crate) fn os_code(&self) -> Option<i32> {
        self.report.source.as_ref().and_then(io::Error::raw_os_error)
    }

    /// Returns whether the deadline of the operation passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self.kind(), ErrorKind::TimedOut { .. })
    }

    /// Returns whether the peer closed the connection or died.
    pub fn is_disconnected(&self) -> bool {
        matches!(self.kind(), ErrorKind::PeerClosed | ErrorKind::PeerDied)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.report.kind);
        if let Some(source) = &self.report.source {
            out.field("source", source);
        }
        out.finish()
    }
}

/// Prints the kind. The alternate form `{:#}` adds the source.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.kind.fmt(f)?;
        match &self.report.source {
            Some(source) if f.alternate() => write!(f, ": {source}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.report.source.as_ref().map(|source| source as _)
    }
}

impl ErrorKind {
    /// Returns the name of the variant, as metrics and traces group errors by it.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::ErrorKind;
    ///
    /// assert_eq!(ErrorKind::UnknownRequest { id: 7 }.name(), "UnknownRequest");
    /// ```
    pub fn name(&self) -> String {
        let all = format!("{self:?}");
        all.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
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

impl From<MetadataFault> for Error {
    fn from(fault: MetadataFault) -> Self {
        Self::new(ErrorKind::Metadata(fault))
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
mod tests;
