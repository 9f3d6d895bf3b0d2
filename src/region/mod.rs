//! Named memory: what somebody else made, registered once and then referred to by name.
//!
//! A [`Registry`] maps names to regions. A region is a range of an object: a POSIX shared memory
//! object, a memfd, a dmabuf, or, as data alone, memory of a GPU. A [`Lease`] is a range of a region
//! in use.
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
//! 1. A region holds one descriptor of its own, and is never found by its path or key again.
//! 2. Ranges are checked without wrap: against the object's size when a region is registered,
//!    against the region when it is leased, against the lease and the object at each access.
//! 3. Memory that its owner can truncate is touched by the kernel alone (`pread`, `pwrite`), or
//!    under the [`SigbusGuard`]. Sealed memory is touched in place.
//! 4. The name of a region that goes away is free at once. What it takes of the limits is given back
//!    when it is gone.
//! 5. Nothing here waits for anybody, but for a device that still works on its dmabuf.

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
mod registry;
mod status;
mod table;
mod window;

pub use guard::{SigbusGuard, Unblocked};
pub use lease::Lease;
pub use limits::RegionLimits;
pub(crate) use named::Opened;
pub use named::{CudaHandle, Source};
pub(crate) use object::is_dmabuf;
pub use posix_shm::PosixShm;
pub use reach::Reach;
pub use registry::Registry;
pub use status::{RegionKind, RegionStatus, Unregistered};
