//! What is told of a region.

use std::fmt;

/// What kind of memory a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegionKind {
    /// A POSIX shared memory object: Triton's system shared memory.
    Posix,
    /// A memfd.
    Memfd,
    /// A dmabuf.
    Dmabuf,
    /// Memory of a GPU.
    Cuda,
}

impl RegionKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Posix => "system shared memory",
            Self::Memfd => "memfd",
            Self::Dmabuf => "dmabuf",
            Self::Cuda => "CUDA shared memory",
        }
    }
}

impl fmt::Display for RegionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a registry, or a lease, tells of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionStatus {
    /// Its name.
    pub name: String,
    /// What kind of memory it is.
    pub kind: RegionKind,
    /// The key as it was given, of a POSIX shared memory object.
    pub key: Option<String>,
    /// Where it starts, in bytes from the object's start; for CUDA from that of the handle's memory.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The GPU, for CUDA.
    pub device: Option<u32>,
    /// Whether it can be written through a lease.
    pub writable: bool,
    /// Whether its memory is sealed, so that a lease gives [`bytes`](crate::Lease::bytes).
    pub sealed: bool,
    /// Leases that are in use.
    pub leases: usize,
    /// Whether it was unregistered, and only its leases keep it.
    pub going_away: bool,
}

/// What became of a region that was unregistered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the memory may still be mapped"]
pub enum Unregistered {
    /// Nobody used it: its memory is unmapped, its descriptor closed.
    Done,
    /// Leases still use it; it goes with the last of them.
    Leased {
        /// How many.
        leases: usize,
    },
}
