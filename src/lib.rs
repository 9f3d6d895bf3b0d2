//! Low-latency IPC between processes of one Linux machine.
//!
//! Two processes meet over a Unix socket, check each other's credentials, and exchange sealed shared memory. From then
//! on they move messages through lock-free rings: without system calls, without a daemon, and without copies except
//! those that the caller asks for. A peer may lie or die at any moment. Then its own link ends with an error that says
//! how, and every other link goes on.
//!
//! # Messages
//!
//! ```no_run
//! # fn serve() -> slipring::Result<()> {
//! use slipring::Context;
//!
//! let context = Context::new()?;
//! let mut listener = context.listen("camera")?; // abstract socket @camera
//! let mut link = listener.accept()?;
//! while let Some(message) = link.recv()? {
//!     println!("{} bytes", message.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! ```no_run
//! # fn produce() -> slipring::Result<()> {
//! # use slipring::Context;
//! let context = Context::new()?;
//! let mut link = context.connect("camera")?;
//! link.send(b"hello")?;
//! link.close()?; // what was sent before is delivered
//! # Ok(())
//! # }
//! ```
//!
//! # Tensors
//!
//! The sender writes a tensor where the receiver reads it (`docs/tensors.md`):
//!
//! ```no_run
//! # fn film() -> slipring::Result<()> {
//! use slipring::Context;
//!
//! let context = Context::new()?;
//! let mut link = context.connect("camera")?;
//! let mut frame = context.alloc::<u8>([1, 1080, 1920, 3])?; // a slice of shared memory, ours until it is sent
//! frame.fill(128);
//! link.send_tensor(frame)?; // 6 MB, handed over by 50 bytes
//! # Ok(())
//! # }
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
//! | [`options`] | the values of [`Options`]: spinning, NUMA nodes, the peer policy |
//! | [`error`] | the faults that an [`ErrorKind`] carries, and the answers of operations that do not wait |
//! | [`message`] | the bytes and kinds of received messages, requests, tokens |
//! | [`peer`] | the credentials of the other process |
//! | [`stats`] | counters |
//! | [`tensor`] | element types, allocation with choices, BYTES elements, DLPack, trusted peers |
//! | [`region`] | memory of other processes by name, and the guard against its truncation |
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
//! [`Registry`]: region::Registry
//! [`Lease`]: region::Lease
//! [`Bytes`]: message::Bytes

#[cfg(not(target_os = "linux"))]
compile_error!("slipring needs Linux: memfd seals, SCM_RIGHTS over abstract sockets, futexes");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("slipring needs 64-bit loads from read-only memory, which 32-bit targets lack");

#[cfg(any(feature = "mio", feature = "tokio"))]
mod adapters;
#[cfg(feature = "commit")]
pub mod commit;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod pool;
mod reactor;
pub mod region;
mod ring;
mod shm;
mod sync;
pub mod tensor;
mod transport;
mod wake;

/// What `commit` builds on beside the public API: passed descriptors, the socket of a link, memory that both sides write.
/// It may change in any release.
#[doc(hidden)]
pub mod seam {
    pub use crate::shm::create_common;
    pub use crate::transport::{Foreign, LinkSocket};
}

#[cfg(feature = "tokio")]
pub use adapters::tokio;
// The modules show these as links to the root.
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
pub use reactor::{EventLoop, Link, Message, Reactor};
#[doc(inline)]
pub use tensor::{DType, Shape, Tensor, TensorMut, TensorSet};
pub use transport::{
    Address, Batch, Connection, Context, Listener, Options, Received, Receiver, Reservation, Sender,
};

/// The values of [`Options`].
pub mod options {
    pub use crate::transport::{Numa, PeerPolicy};
    pub use crate::wake::Spin;
}

/// The process on the other side of a connection, as the kernel describes it.
pub mod peer {
    pub use crate::transport::{Credentials, Peer};
}

/// Parts of messages: the kinds, the bytes of a received one, requests, and tokens.
pub mod message {
    #[doc(hidden)]
    pub use crate::shm::Lines;
    pub use crate::shm::{Bytes, BytesMut};
    pub use crate::transport::{MessageKind, Request, RequestId, Token};
}

/// Counters of connections, listeners, links and reactors.
pub mod stats {
    pub use crate::reactor::{LinkStats, ReactorStats};
    pub use crate::transport::{ListenerStats, RecvStats, SendStats, Stats};
}
