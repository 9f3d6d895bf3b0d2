//! Messages and tensors between processes of one Linux machine.
//!
//! Two processes meet over a Unix socket, check each other's credentials, and exchange sealed shared memory. From then
//! on they hand data over through lock-free rings. Between two awake processes there is no system call and no daemon,
//! and a tensor is never copied. A peer may lie or die at any moment: its own link ends with an error that says how,
//! and all other links go on.
//!
//! # Two programs
//!
//! The first receives a message and tensors:
//!
//! ```no_run
//! use slipring::Context;
//!
//! fn main() -> slipring::Result<()> {
//!     let context = Context::new()?;
//!     let mut listener = context.listen("@frames")?; // an abstract socket
//!     let mut link = listener.accept()?;
//!     let message = link.recv()?.unwrap_or_default();
//!     println!("message: {}", String::from_utf8_lossy(&message));
//!     while let Some(frame) = link.recv_tensor()? { // None: the peer closed the link
//!         let mut sum = 0;
//!         frame.for_each_chunk::<u8>(|bytes| {
//!             sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
//!         })?;
//!         println!("{} tensor {:?}, sum {sum}", frame.dtype(), frame.shape().dims());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! The second sends them. The receiver reads each tensor where the sender has written it:
//!
//! ```no_run
//! use slipring::Context;
//! use std::time::{Duration, Instant};
//!
//! fn main() -> slipring::Result<()> {
//!     let context = Context::new()?;
//!     let deadline = Instant::now() + Duration::from_secs(10);
//!     let mut link = context.connect_retry("@frames", deadline)?;
//!     link.send(b"two frames follow")?;
//!     for brightness in [1, 2] {
//!         let mut frame = context.alloc::<u8>([1080, 1920, 3])?; // a slice of shared memory
//!         frame.fill(brightness);
//!         link.send_tensor(frame)?; // 6 MB, handed over by about 50 bytes
//!     }
//!     link.close()?; // delivers what was sent
//!     println!("sent");
//!     Ok(())
//! }
//! ```
//!
//! # The path of a message
//!
//! [`Sender::send`] → `ring::Producer` → this process's segment ‖ process border ‖ `ring::Consumer` →
//! [`Receiver::recv`]. A message longer than [`Options::inline_max`] or a tensor lies in a block of the pool, and the
//! ring carries its descriptor. `docs/journey.md` follows one byte through all of it.
//!
//! # Where to find what
//!
//! | module | has |
//! |---|---|
//! | the root | the types that every program meets |
//! | [`options`] | the values of [`Options`]: spinning, the peer policy |
//! | [`broadcast`] | publish and subscribe: one writer, any number of readers, one copy |
//! | [`error`] | the faults that an [`ErrorKind`] carries, and the answers of operations that do not wait |
//! | [`message`] | the bytes and kinds of received messages, metadata, requests, tokens |
//! | [`peer`] | the credentials of the other process |
//! | [`stats`] | counters |
//! | [`tensor`] | element types, allocation with choices, BYTES elements, DLPack |
//! | [`region`] | memory of other processes by name, and the guard against its truncation |
//! | `metrics` | with this feature: metrics for OpenTelemetry |
//! | `tokio` | with this feature: connections, listeners, and a byte stream that tasks await |
//! | `cuda` | with this feature: tensors in the memory of a GPU |
//! | `commit` | with this feature: buffers that a service maps once, and executions by id |
//!
//! # Threads
//!
//! | type | `Send` | `Sync` | used by |
//! |---|---|---|---|
//! | [`Context`], [`Address`], [`Options`], [`Reactor`], [`Link`], [`Registry`], [`Lease`], [`Tensor`], [`TensorMut`], [`TensorSet`] | yes | yes | any number of threads at a time |
//! | [`Listener`], [`Connection`], [`Sender`], [`Receiver`], [`EventLoop`] | yes | yes | one thread at a time (`&mut self`) |
//! | [`Reservation`], [`Batch`], [`Received`], [`Message`], [`Bytes`] | yes | yes | as long as they borrow their half |
//!
//! `docs/threads.md` says which thread runs what.
//!
//! After a `fork` the child's handles return [`ErrorKind::Forked`], and dropping them changes nothing. The child must
//! not read or write an object that holds shared memory ([`Reservation`], [`Batch`], [`Received`], [`Bytes`],
//! [`TensorMut`], [`Tensor`]): the child does not have the memory.
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | async connections, listeners, and a byte stream |
//! | `mio` | connections and listeners as event sources |
//! | `cuda` | tensors in GPU memory |
//! | `commit` | committed buffers: a service maps its clients' memory once, and executes by id |
//! | `metrics` | metrics for OpenTelemetry |
//! | `traces` | OpenTelemetry: spans of calls, whose ids travel to the peer in metadata |
//!
//! [`Registry`]: region::Registry
//! [`Lease`]: region::Lease
//! [`Bytes`]: message::Bytes

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("slipring needs Linux: memfd seals, SCM_RIGHTS over abstract sockets, futexes");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("slipring needs 64-bit loads from read-only memory, which 32-bit targets lack");

mod account;
#[cfg(any(feature = "mio", feature = "tokio"))]
mod adapters;
mod bounds;
pub mod broadcast;
mod channel;
#[cfg(feature = "commit")]
pub mod commit;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod link;
#[cfg(feature = "metrics")]
pub mod metrics;
mod patience;
mod pool;
mod reactor;
pub mod region;
mod ring;
mod shm;
pub mod status;
mod sync;
pub mod tensor;
mod transport;
mod wake;

/// What `commit`, `cuda`, the crate of Triton and that of C build on beside the public API: passed descriptors, the socket of a
/// link, memory that both sides write, what a receiver keeps of a peer's GPU memory, the file of a socket, what is open on a
/// half, and which process this is. `SECURITY.md` is made of the bounds. It may change in any release.
#[doc(hidden)]
pub mod seam {
    pub use crate::bounds::{Bound, bounds};
    #[cfg(feature = "traces")]
    pub use crate::channel::remote_context;
    pub use crate::channel::{
        AtOnce, DetachedReceived, DetachedReservation, ExtensionSlot, LentRange, attach_batch,
    };
    pub use crate::handshake::UntrustedFd;
    pub use crate::link::LinkSocket;
    pub use crate::patience::SendPatience;
    pub use crate::shm::fork::Generation;
    pub use crate::shm::{SegmentMemory, create_common};
    pub use crate::tensor::halves;
    pub use crate::transport::SocketPath;
}

#[cfg(feature = "tokio")]
pub use adapters::tokio;
// The modules show these as links to the root.
pub use channel::{Batch, Received, Receiver, Reservation, Sender};
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
pub use handshake::Address;
pub use reactor::{EventLoop, Link, Local, Message, Reactor};
#[doc(inline)]
pub use tensor::{DType, Shape, Tensor, TensorMut, TensorSet};
pub use transport::{Connection, Context, Listener, Options};

/// The values of [`Options`].
pub mod options {
    pub use crate::account::Resource;
    pub use crate::handshake::PeerPolicy;
    pub use crate::wake::Spin;
}

/// The process on the other side of a connection, as the kernel describes it.
pub mod peer {
    pub use crate::handshake::Peer;
}

/// Parts of messages: the kinds, the bytes of a received one, metadata, requests, and tokens.
pub mod message {
    pub use crate::channel::MessageKind;
    pub use crate::channel::Metadata;
    pub use crate::channel::Request;
    pub use crate::channel::RequestId;
    pub use crate::channel::Token;
    pub use crate::channel::Value;
    #[doc(hidden)]
    pub use crate::shm::Lines;
    pub use crate::shm::{Bytes, BytesMut};
    pub use crate::tensor::{Response, TensorRequest};
}

/// Counters of connections, listeners, links and reactors.
pub mod stats {
    pub use crate::channel::HalfStats;
    pub use crate::reactor::{LinkStats, ReactorStats};
    pub use crate::transport::ListenerStats;
    pub use crate::transport::Stats;
}
