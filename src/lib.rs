//! Low-latency IPC between processes of one Linux machine.
//!
//! Two processes meet over a Unix socket, check who the other is, exchange sealed shared memory,
//! and from then on move messages through lock-free rings: no system call, no copy that was not
//! asked for, no daemon. A peer may lie or die at any moment; its own link ends with an error that
//! says how, and nothing else notices.
//!
//! # The first screen
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
//! Tensors, written where the other process reads them (`docs/tensors.md`):
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
//! # A byte's way
//!
//! [`Sender::send`] → `ring::Producer` → our segment ‖ process border ‖ `ring::Consumer` →
//! [`Receiver::recv`]. Messages longer than [`Options::inline_max`], and tensors, lie in a block of the pool,
//! and the ring carries its descriptor. `docs/journey.md` follows one byte through all of it.
//!
//! # Modules
//!
//! ```text
//!   error, sync ◀── shm ◀── ring ◀── pool, parking ◀── transport ◀── tensor ◀── reactor ◀── commit
//!                    ▲                                                  │                     │
//!                    └── region ◀───────────────────────────────────────┴─────────────────────┘
//! ```
//!
//! # Threads
//!
//! | type | `Send` | `Sync` | used by |
//! |---|---|---|---|
//! | [`Context`], [`Address`], [`Options`], [`Reactor`], [`Link`], [`Registry`], [`Lease`], [`Tensor`], [`TensorMut`], [`TensorSet`] | yes | yes | any thread, at once |
//! | [`Listener`], [`Connection`], [`Sender`], [`Receiver`], [`EventLoop`] | yes | yes | one thread at a time (`&mut self`) |
//! | [`Reservation`], [`Batch`], [`Received`], [`Message`], [`Bytes`] | yes | yes | as long as they borrow their half |
//!
//! `docs/threads.md` says which thread runs what.
//!
//! After a `fork` the child's handles answer [`ErrorKind::Forked`] and drop without a trace. What
//! has shared memory at that moment ([`Reservation`], [`Batch`], [`Received`], [`Bytes`], [`TensorMut`],
//! [`Tensor`]) is not to be read or written in the child: the memory is not there.

#[cfg(not(target_os = "linux"))]
compile_error!("slipring needs Linux: memfd seals, SCM_RIGHTS over abstract sockets, futexes");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("slipring needs 64-bit loads from read-only memory, which 32-bit targets lack");

#[cfg(any(feature = "mio", feature = "tokio"))]
mod adapters;
pub mod commit;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod parking;
mod pool;
mod reactor;
mod region;
mod ring;
mod shm;
mod sync;
mod tensor;
mod transport;

#[cfg(feature = "tokio")]
pub use adapters::tokio;
pub use error::{
    AddressFault, CommitFault, CudaFault, DescriptorFault, DlpackFault, Error, ErrorKind, Fault,
    GpuUuid, Refusal, RegionFault, Result, TensorFault,
};
pub use reactor::{EventLoop, Link, Message, Reactor};
#[doc(hidden)]
pub use region::Unblocked;
pub use region::{
    CudaHandle, Lease, PosixShm, Reach, RegionKind, RegionLimits, RegionStatus, Registry,
    SigbusGuard, Source, Unregistered,
};
pub use shm::{Bytes, BytesMut, Lines};
pub use tensor::{
    Allocation, DType, Descriptor, Element, GpuPlace, Outgoing, Place, Shape, Tensor, TensorMut,
    TensorSet, TrustedConnection, codec, dlpack,
};
pub use transport::{
    Address, Batch, Connection, Context, Credentials, Listener, ListenerStats, MessageKind, Numa,
    Options, Peer, PeerPolicy, Received, Receiver, RecvStats, Request, RequestId, Reservation,
    SendStats, Sender, Spin, Stats, Token, TryRecvError, TrySendError,
};
