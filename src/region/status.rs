//! The status of a region.

use std::fmt;

/// The kind of memory of a region.
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

/// The status of a region, as a registry or a lease reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionStatus {
    /// The region's name.
    pub name: String,
    /// The kind of memory.
    pub kind: RegionKind,
    /// The key as the caller gave it, of a POSIX shared memory object.
    pub key: Option<String>,
    /// The start in bytes from the object's start. For CUDA it counts from the start of the handle's memory.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// The number of the GPU, for CUDA.
    pub device: Option<u32>,
    /// Whether a lease can write it.
    pub writable: bool,
    /// Whether its memory is sealed, so that a lease returns [`bytes`](crate::region::Lease::bytes).
    pub sealed: bool,
    /// Leases in use.
    pub leases: usize,
    /// Whether the region is unregistered and only its leases keep it.
    pub going_away: bool,
}
