//! Named memory: memory of another process that is registered once and then named in each request.
//!
//! A [`Registry`] maps names to regions. A region is a range of an object: a POSIX shared memory object, a
//! memfd, a dmabuf, or memory of a GPU. A [`Lease`] is a range of a region in use.
//!
//! ```text
//!                 register                 unregister               last lease ends
//!   (no region) ───────────▶ registered ───────────────▶ going away ────────────────▶ unmapped, closed
//!                             │      ▲        │            │    ▲
//!                             └lease─┘        │            └────┘ reads, writes of leases
//!                                             └─ no lease: unmapped, closed at once
//!
//!   object  0 ........ offset ................................ offset + len ..... size
//!   region             │ 0            leased                 len │
//!   lease              │        │ 0 ............. len │          │
//! ```
//!
//! 1. A region holds a descriptor of its own. The registry never opens its path or key a second time.
//! 2. Ranges are checked with checked arithmetic: against the object's size at registration, against the
//!    region at each lease, and against the lease and the object at each access.
//! 3. The kernel alone touches memory that its owner can truncate (`pread`, `pwrite`), unless the
//!    [`SigbusGuard`] is installed. Sealed memory is accessed in place.
//! 4. Unregistering frees the name at once. The region counts against the limits until its memory is unmapped.
//! 5. No call waits for another process. An access to a dmabuf may wait for its device.

mod dmabuf;
mod extent;
mod guard;
mod key;
mod lease;
mod limits;
mod named;
mod object;
mod posix_shm;
mod reach;
pub(crate) mod registry;
mod status;
pub(crate) mod table;
mod window;

pub use guard::{SigbusGuard, Unblocked};
pub use lease::Lease;
#[doc(hidden)]
pub use named::Opened;
pub use named::{CudaHandle, Source};
#[doc(hidden)]
pub use object::is_dmabuf;
pub use posix_shm::PosixShm;
#[doc(hidden)]
pub use reach::Reach;
pub use registry::Registry;
pub use status::{RegionKind, RegionStatus};
