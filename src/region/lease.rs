//! Part of a region in use.

use core::fmt;
use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::region::extent::Extent;
use crate::region::named::Region;
use crate::region::window::Window;
use crate::region::{CudaHandle, RegionKind, RegionStatus};
use crate::shm::{Bytes, BytesMut, Order};

/// Bytes moved at a time between overlapping views.
const SHIFT: usize = 4096;

/// A range of a region in use: it keeps the region's memory for as long as it lives, also after
/// the region was unregistered.
///
/// | access | which memory | cost |
/// |---|---|---|
/// | [`read_at`](Self::read_at), [`write_at`](Self::write_at) | any of this machine | a system call or two, and a copy |
/// | [`in_place`](Self::in_place), [`in_place_mut`](Self::in_place_mut) | sealed; any under the [guard](crate::SigbusGuard) | system calls unless it is sealed; no copy |
/// | [`bytes`](Self::bytes) | sealed | nothing |
///
/// All of them check the range against the lease, and, unless the memory is sealed, against what
/// the object still has.
///
/// # Examples
///
/// ```
/// use std::os::fd::AsFd;
///
/// use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
/// use slipring::{Registry, Source};
///
/// // Memory that can be touched safely: allocated, and sealed so that nobody makes it shorter.
/// let fd = rustix::fs::memfd_create("weights", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
/// rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 4096)?;
/// rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
///
/// let registry = Registry::new()?;
/// registry.register("weights", Source::Memfd(fd.as_fd()), 0, 4096)?;
/// let lease = registry.lease("weights", 64, 8)?;
/// lease.in_place_mut(|room| room.copy_from(b"8 bytes!"))?;
/// assert_eq!(lease.bytes()?.to_vec(), b"8 bytes!");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Lease {
    region: Arc<Region>,
    /// Within the object.
    extent: Extent,
    /// What `bytes` lends from.
    window: OnceLock<Arc<Window>>,
}

impl Lease {
    /// Counts one user more. `extent` lies inside of the region.
    pub(super) fn new(region: Arc<Region>, extent: Extent) -> Self {
        region.count_lease();
        Self { region, extent, window: OnceLock::new() }
    }

    /// The region's name.
    pub fn name(&self) -> &str {
        self.region.name()
    }

    /// What kind of memory it is.
    pub fn kind(&self) -> RegionKind {
        self.region.kind()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.extent.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.extent.len() == 0
    }

    /// Where the lease starts, in bytes from the region's start.
    pub fn offset(&self) -> u64 {
        self.extent.offset() - self.region.extent().offset()
    }

    /// Whether it can be touched in place whatever its owner does.
    pub fn is_sealed(&self) -> bool {
        self.region.is_sealed()
    }

    /// What the region is, now.
    pub fn status(&self) -> RegionStatus {
        self.region.status()
    }

    /// The handle of GPU memory. The lease starts at [`RegionStatus::offset`] plus
    /// [`offset`](Self::offset) of it.
    pub fn cuda_handle(&self) -> Option<CudaHandle> {
        self.region.cuda()
    }

    /// Copies `out.len()` bytes at `offset` of the lease out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region) with
    /// - [`Overflow`](crate::RegionFault::Overflow), [`Offset`](crate::RegionFault::Offset),
    ///   [`Range`](crate::RegionFault::Range): not inside of the lease;
    /// - [`Truncated`](crate::RegionFault::Truncated): the object has become shorter; `out` may hold
    ///   part of it;
    /// - [`OutOfReach`](crate::RegionFault::OutOfReach): it is a GPU's.
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.region.read_at(self.extent.part(offset, out.len() as u64)?, out)
    }

    /// Copies `bytes` to `offset` of the lease.
    ///
    /// # Errors
    ///
    /// As for [`read_at`](Self::read_at), and [`ReadOnly`](crate::RegionFault::ReadOnly). Part of
    /// `bytes` may have been written before the object became shorter.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.region.write_at(self.extent.part(offset, bytes.len() as u64)?, bytes)
    }

    /// Runs `read` over the lease's bytes where they lie.
    ///
    /// If the object is truncated meanwhile, `read` finds zeros, and its result is dropped.
    /// Threads that `read` hands the bytes to must not block `SIGBUS`.
    ///
    /// # Errors
    ///
    /// As for [`read_at`](Self::read_at), and
    /// - [`Unguarded`](crate::RegionFault::Unguarded): others can truncate the object, and no
    ///   [guard](crate::SigbusGuard) is installed;
    /// - [`TruncatedInPlace`](crate::RegionFault::TruncatedInPlace): they did, while `read` ran;
    /// - [`GuardFull`](crate::RegionFault::GuardFull).
    pub fn in_place<R>(&self, read: impl FnOnce(Bytes<'_>) -> R) -> Result<R> {
        self.region.read_in_place(self.extent, read)
    }

    /// Runs `write` over the lease's bytes where they lie.
    ///
    /// # Errors
    ///
    /// As for [`in_place`](Self::in_place), and [`ReadOnly`](crate::RegionFault::ReadOnly). What was
    /// written before the object was truncated may have reached it.
    pub fn in_place_mut<R>(&self, write: impl FnOnce(BytesMut<'_>) -> R) -> Result<R> {
        self.region.write_in_place(self.extent, write)
    }

    /// That the object still has all of the lease.
    ///
    /// # Errors
    ///
    /// [`Truncated`](crate::RegionFault::Truncated), [`OutOfReach`](crate::RegionFault::OutOfReach), and
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn holds(&self) -> Result<()> {
        self.region.holds(self.extent)
    }

    /// Overwrites the first bytes of the lease with all of another one, by the kernel: without a signal, whoever
    /// truncates what. They are copied once; twice where the two overlap, which changes nothing else.
    ///
    /// # Errors
    ///
    /// As for [`read_at`](Self::read_at) of `from` and [`write_at`](Self::write_at) of the lease.
    /// [`holds`](Self::holds) tells which of them was truncated.
    pub fn fill_from(&self, from: &Lease) -> Result<()> {
        let part = self.extent.part(0, from.len())?;
        self.region.fill_from(part, &from.region, from.extent)
    }

    /// Overwrites the first bytes of the lease with all of another one, by loads and stores under the guard. The note at
    /// [`touch`](Self::touch) applies.
    #[doc(hidden)]
    pub fn touch_from(&self, from: &Lease) -> Result<()> {
        let part = self.extent.part(0, from.len())?;
        let order = self.region.order(part, &from.region, from.extent);
        self.region.touch_mut(part, |to| {
            from.touch(|from| match order {
                None => to.copy_from_bytes(from),
                Some(order) => shift(to, from, order),
            })
        })?
    }

    /// Runs `read` as [`in_place`](Self::in_place) does, without the final check of the object's length. Bytes that the
    /// owner cuts off inside of a page read as 0. The caller detects the cut with [`holds`](Self::holds).
    #[doc(hidden)]
    pub fn touch<R>(&self, read: impl FnOnce(Bytes<'_>) -> R) -> Result<R> {
        self.region.touch(self.extent, read)
    }

    /// Runs `write` as [`in_place_mut`](Self::in_place_mut) does. The note at [`touch`](Self::touch) applies.
    #[doc(hidden)]
    pub fn touch_mut<R>(&self, write: impl FnOnce(BytesMut<'_>) -> R) -> Result<R> {
        self.region.touch_mut(self.extent, write)
    }

    /// Returns whether both leases are of one region and this one ends at or behind the end of `other`, so that
    /// [`holds`](Self::holds) of this one covers both.
    #[doc(hidden)]
    pub fn ends_behind(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.region, &other.region) && self.extent.end() >= other.extent.end()
    }

    /// The lease's bytes where they lie, if they are sealed: a memfd with `F_SEAL_SHRINK`, all of
    /// whose pages were there when it was registered.
    ///
    /// # Errors
    ///
    /// [`Unsealed`](crate::RegionFault::Unsealed), [`OutOfReach`](crate::RegionFault::OutOfReach),
    /// and [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn bytes(&self) -> Result<Bytes<'_>> {
        let (window, start, len) = self.region.sealed(self.extent)?;
        Ok(self.window.get_or_init(|| window).mapping().bytes(start, len))
    }
}

/// Copies between views that may overlap, also through two mappings. Each byte is read before it is overwritten.
fn shift(to: BytesMut<'_>, from: Bytes<'_>, order: Order) {
    let mut chunk = [0; SHIFT];
    for (at, len) in order.steps(to.len(), chunk.len()) {
        let chunk = &mut chunk[..len];
        from.slice(at, len).copy_to(chunk);
        to.slice(at, len).copy_from(chunk);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.region.uncount_lease();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("offset", &self.offset())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
