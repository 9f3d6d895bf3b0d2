//! Tensors in memory of a GPU, handed to other processes without being copied (feature `cuda`).
//!
//! ```text
//!   owner                                      ‖ border ‖   borrower
//!   Pool::alloc ─▶ Draft ─share─▶ Tensor ─send─▶  ring  ─▶ Tensor ─Device::open─▶ GpuView ─drop─▶ loan goes back
//!                    │              │ event "ready"            │ stream waits        │ event "done"
//!                    stream writes  recorded behind it         for "ready"           recorded behind the reads
//! ```
//!
//! 1. A chunk of a pool is exported once, and opened once by each process that gets a tensor of it. It stays open
//!    while the link's receiving half lives, and is not freed before.
//! 2. Memory is used again when its ticket is back *and* the event behind every use of it is over, which is asked, not
//!    waited for: a peer that lies about its event holds what it was lent, and nothing else.
//! 3. No call here waits for a GPU, but those that copy from or to the host. What the driver may wait for, to free and
//!    close memory, a thread of its own does.
//! 4. Every thing of the driver's lives in one object, which makes its context current, and ends it once. An
//!    operation of several of them enters the context around them all, and leaves the caller's as it was.
//! 5. The driver is loaded when somebody asks for a device. Without one every entry gives an error that says what is
//!    lacking.
//!
//! # Examples
//!
//! ```no_run
//! use slipring::Context;
//! use slipring::cuda::{Device, PoolOptions};
//!
//! # fn produce() -> slipring::Result<()> {
//! let context = Context::new()?;
//! let mut link = context.connect("gpu")?;
//! let device = Device::new(0)?;
//! let (pool, stream) = (device.pool(PoolOptions::new())?, device.stream()?);
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

mod closer;
mod device;
mod draft;
mod event;
mod imports;
mod ledger;
mod library;
mod memory;
mod openings;
mod pool;
mod region;
mod retired;
mod space;
mod store;
mod stream;
mod view;

pub use device::Device;
pub use draft::Draft;
pub use pool::{Pool, PoolOptions};
pub use region::Region;
pub use stream::Stream;
pub use view::GpuView;
