//! Tensors in memory of a GPU, handed to other processes without a copy (feature `cuda`).
//!
//! ```text
//!   owner                                      ‖ border ‖   borrower
//!   Pool::alloc ─▶ Draft ─share─▶ Tensor ─send─▶  ring  ─▶ Tensor ─Device::open─▶ GpuView ─drop─▶ loan goes back
//!                    │              │ event "ready"            │ stream waits        │ event "done"
//!                    stream writes  recorded behind it         for "ready"           recorded behind the reads
//! ```
//!
//! 1. A chunk of a pool is exported once, as a handle or as a file descriptor, and opened or mapped once by each process
//!    that gets a tensor of it. It stays open while the link's receiving half lives, and the owner does not free it
//!    earlier.
//! 2. Memory is reused when its ticket is back *and* the event after every use of it is over. The owner polls
//!    the events and never waits for them: a peer that lies about its event keeps the memory that it was lent
//!    and blocks nothing else.
//! 3. These calls wait for a GPU: [`Stream::synchronize`], copies from and to the host, `share` with [`Order::Synchronized`],
//!    [`Device::adopt`], [`Device::pin`], and [`GpuView::check`]. A separate thread frees and closes memory, because the driver
//!    may wait within these calls. Another one gives loans back, and waits for no stream.
//! 4. Each object of the driver belongs to one Rust object, which makes its context current and ends it once.
//!    An operation of several calls enters the context around all of them and restores the caller's.
//! 5. The driver is loaded when the process asks for its first device. Without a driver each entry point
//!    returns an error that says what is missing.
//!
//! # Examples
//!
//! ```no_run
//! use slipring::Context;
//! use slipring::cuda::Device;
//!
//! # fn produce() -> slipring::Result<()> {
//! let context = Context::new()?;
//! let mut link = context.connect("gpu")?;
//! let device = Device::new(0)?;
//! let (pool, stream) = (device.pool(), device.stream()?);
//! let mut frame = pool.alloc::<f32>([3, 1080, 1920], &stream)?;
//! frame.fill(0)?; // or a kernel, on that stream, at frame.device_ptr()
//! link.send_tensor(frame.share()?)?; // 25 MB, handed over by 350 bytes
//! # Ok(())
//! # }
//! # fn consume(link: &mut slipring::Connection) -> slipring::Result<()> {
//! let device = Device::new(0)?;
//! let stream = device.stream()?;
//! while let Some(tensor) = link.recv_tensor()? {
//!     let view = device.open(&tensor, &stream)?; // the stream waits for the writer's
//!     println!("{} bytes at {:#x}", view.byte_len(), view.device_ptr());
//! } // given back, behind what the stream was given
//! # Ok(())
//! # }
//! ```

mod adopted;
mod chunk;
mod closer;
mod device;
mod draft;
mod event;
mod import;
mod imports;
mod ledger;
mod lender;
mod library;
mod mapped;
mod memory;
mod openings;
mod options;
mod page;
mod parked;
mod per_gpu;
mod pinned;
mod pool;
mod region;
mod retired;
mod returner;
mod returning;
mod sharing;
mod space;
mod store;
mod stream;
mod view;
mod waits;
mod withdrawing;
mod word_stream;
mod words;

pub use device::Device;
pub use draft::Draft;
pub use options::{Export, Order, PoolOptions};
pub use pool::Pool;
pub use region::Region;
pub use stream::Stream;
pub use view::GpuView;
