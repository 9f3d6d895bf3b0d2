//! A range of a region in use.

use core::fmt;
use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::region::extent::Extent;
use crate::region::named::Region;
use crate::region::window::Window;
use crate::region::{CudaHandle, RegionKind, RegionStatus};
use crate::shm::{Bytes, BytesMut, Order};

/// The number of bytes that are copied at a time between overlapping ranges.
const SHIFT: usize = 4096;

/// A range of a region in use. A lease keeps the region's memory while it lives, even if the region is
/// unregistered.
///
/// | access | which memory | cost |
/// |---|---|---|
/// | [`read_at`](Self::read_at), [`write_at`](Self::write_at) | any of this machine | a system call or two, and a copy |
/// | [`in_place`](Self::in_place), [`in_place_mut`](Self::in_place_mut) | sealed; any under the [guard](crate::region::SigbusGuard) | system calls unless it is sealed; no copy |
/// | [`bytes`](Self::bytes) | sealed | nothing |
///
/// Each access checks the range against the lease. If the memory is not sealed, the access also checks it
/// against the present size of the object.
///
/// # Examples
///
/// ```
/// use std::os::fd::AsFd;
///
/// use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
/// use slipring::region::{Registry, Source};
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
    /// The mapping that `bytes` borrows from. Dropped before the region, whose drop frees large memory on another thread.
    window: OnceLock<Arc<Window>>,
    region: Arc<Region>,
    /// Relative to the object.
    extent: Extent,
}

impl Lease {
    /// Counts one more lease. `extent` lies inside of the region.
    pub(super) fn new(region: Arc<Region>, extent: Extent) -> Self {
        region.count_lease();
        Self { region, extent, window: OnceLock::new() }
    }

    /// Returns the region's name.
    pub fn name(&self) -> &str {
        self.region.name()
    }

    /// Returns the kind of memory.
    pub fn kind(&self) -> RegionKind {
        self.region.kind()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.extent.len()
    }

    /// Returns whether the lease has no bytes.
    pub fn is_empty(&self) -> bool {
        self.extent.len() == 0
    }

    /// Returns the start of the lease in bytes from the region's start.
    pub fn offset(&self) -> u64 {
        self.extent.offset() - self.region.extent().offset()
    }

    /// Returns whether an access in place is safe whatever the memory's owner does.
    pub fn is_sealed(&self) -> bool {
        self.region.is_sealed()
    }

    /// Returns the present status of the region.
    pub fn status(&self) -> RegionStatus {
        self.region.status()
    }

    /// Returns the handle of the GPU memory. The lease starts at [`RegionStatus::offset`] plus
    /// [`offset`](Self::offset) of it.
    pub fn cuda_handle(&self) -> Option<CudaHandle> {
        self.region.cuda()
    }

    /// Copies the bytes at `offset` of the lease to `out`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Region`](crate::ErrorKind::Region) with
    /// - [`Overflow`](crate::error::RegionFault::Overflow), [`Offset`](crate::error::RegionFault::Offset),
    ///   [`Range`](crate::error::RegionFault::Range): the range is not inside of the lease;
    /// - [`Truncated`](crate::error::RegionFault::Truncated): the object has become shorter. `out` may hold
    ///   part of the bytes;
    /// - [`OutOfReach`](crate::error::RegionFault::OutOfReach): the memory is a GPU's.
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.region.read_at(self.extent.part(offset, out.len() as u64)?, out)
    }

    /// Copies `bytes` to `offset` of the lease.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at), and [`ReadOnly`](crate::error::RegionFault::ReadOnly). Part of `bytes`
    /// may be written before the object becomes shorter.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.region.write_at(self.extent.part(offset, bytes.len() as u64)?, bytes)
    }

    /// Runs `read` over the lease's bytes in place.
    ///
    /// If the object is truncated in the meantime, `read` sees zeros and its result is dropped. Threads to
    /// which `read` passes the bytes must not block `SIGBUS`.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at), and
    /// - [`Unguarded`](crate::error::RegionFault::Unguarded): other processes can truncate the object, and no
    ///   [guard](crate::region::SigbusGuard) is installed;
    /// - [`TruncatedInPlace`](crate::error::RegionFault::TruncatedInPlace): the object was truncated while
    ///   `read` ran;
    /// - [`GuardFull`](crate::error::RegionFault::GuardFull): the guard watches as many mappings as it can.
    pub fn in_place<R>(&self, read: impl FnOnce(Bytes<'_>) -> R) -> Result<R> {
        self.region.read_in_place(self.extent, read)
    }

    /// Runs `write` over the lease's bytes in place.
    ///
    /// # Errors
    ///
    /// As [`in_place`](Self::in_place), and [`ReadOnly`](crate::error::RegionFault::ReadOnly). Bytes that
    /// `write` stored before the truncation may have reached the object.
    pub fn in_place_mut<R>(&self, write: impl FnOnce(BytesMut<'_>) -> R) -> Result<R> {
        self.region.write_in_place(self.extent, write)
    }

    /// Checks that the object still has all of the lease.
    ///
    /// # Errors
    ///
    /// [`Truncated`](crate::error::RegionFault::Truncated), [`OutOfReach`](crate::error::RegionFault::OutOfReach), and
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn holds(&self) -> Result<()> {
        self.region.holds(self.extent)
    }

    /// Overwrites the first bytes of the lease with all of another lease. The kernel copies, so a truncation
    /// raises no signal. The bytes are copied once, or twice where the two leases overlap. The result is the
    /// same.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at) of `from` and [`write_at`](Self::write_at) of this lease.
    /// [`holds`](Self::holds) tells which of them was truncated.
    pub fn fill_from(&self, from: &Lease) -> Result<()> {
        let part = self.extent.part(0, from.len())?;
        self.region.fill_from(part, &from.region, from.extent)
    }

    /// Overwrites bytes as [`fill_from`](Self::fill_from) does, by loads and stores, with the reservation of
    /// [`touch`](Self::touch).
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

    /// Runs `read` as [`in_place`](Self::in_place) does. Bytes past the new end of a truncated object read as
    /// 0 where they share a page with it. The caller asks [`holds`](Self::holds) afterwards.
    #[doc(hidden)]
    pub fn touch<R>(&self, read: impl FnOnce(Bytes<'_>) -> R) -> Result<R> {
        self.region.touch(self.extent, read)
    }

    /// Runs `write` as [`in_place_mut`](Self::in_place_mut) does, with the reservation of
    /// [`touch`](Self::touch).
    #[doc(hidden)]
    pub fn touch_mut<R>(&self, write: impl FnOnce(BytesMut<'_>) -> R) -> Result<R> {
        self.region.touch_mut(self.extent, write)
    }

    /// Returns whether the object's part of this lease includes its part of another lease.
    #[doc(hidden)]
    pub fn ends_behind(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.region, &other.region) && self.extent.end() >= other.extent.end()
    }

    /// Returns the lease's bytes in place, if they are sealed: a memfd with `F_SEAL_SHRINK`, all of whose
    /// pages were allocated at registration.
    ///
    /// # Errors
    ///
    /// [`Unsealed`](crate::error::RegionFault::Unsealed), [`OutOfReach`](crate::error::RegionFault::OutOfReach),
    /// and [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    pub fn bytes(&self) -> Result<Bytes<'_>> {
        let (window, start, len) = self.region.sealed(self.extent)?;
        Ok(self.window.get_or_init(|| window).mapping().bytes(start, len))
    }
}

/// Copies between views of partly the same memory, perhaps through two mappings. Each byte is read before it is
/// overwritten.
fn shift(to: BytesMut<'_>, from: Bytes<'_>, order: Order) {
    let mut chunk = [0; SHIFT];
    for (at, len) in order.steps(to.len(), chunk.len()) {
        let chunk = &mut chunk[..len];
        from.slice(at, len).copy_to(chunk);
        to.slice(at, len).copy_from(chunk);
    }
}

/// A further lease of the same bytes. The region stays until the last one is dropped.
impl Clone for Lease {
    fn clone(&self) -> Self {
        Self::new(self.region.clone(), self.extent)
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
