//! A region: the range of an object under a name.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::{RegionFault, Result};
use crate::region::extent::Extent;
use crate::region::key::Key;
use crate::region::limits::Share;
use crate::region::object::Object;
use crate::region::window::{Footing, Window, Windows};
use crate::region::{Lease, Reach, RegionKind, RegionStatus};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, BytesMut, ForeignMapping, Order};

/// The number of bytes that two system calls move at a time between overlapping ranges.
const SHIFT: u64 = 256 << 10;

/// The source of a region's memory. The caller keeps its descriptors: the registry duplicates them.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Source<'a> {
    /// The POSIX shared memory object with this key. It is opened for writing if the permissions allow it,
    /// else for reading.
    Posix(&'a str),
    /// A memfd, or any other file on tmpfs.
    Memfd(BorrowedFd<'a>),
    /// A dmabuf.
    Dmabuf(BorrowedFd<'a>),
    /// Memory of a GPU that stays closed: the registry keeps the handle as data.
    Cuda(CudaHandle),
    /// Memory of a GPU that the caller has opened. The driver copies to and from it.
    Gpu(CudaHandle, &'a Arc<dyn Reach>),
}

impl Source<'_> {
    /// Returns the kind of the region.
    pub fn kind(&self) -> RegionKind {
        match self {
            Self::Posix(_) => RegionKind::Posix,
            Self::Memfd(_) => RegionKind::Memfd,
            Self::Dmabuf(_) => RegionKind::Dmabuf,
            Self::Cuda(_) | Self::Gpu(..) => RegionKind::Cuda,
        }
    }
}

/// A handle of GPU memory, as `cudaIpcGetMemHandle` returns it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CudaHandle {
    /// The handle's bytes.
    pub raw: [u8; 64],
    /// The GPU that made the handle.
    pub device: u32,
}

/// The handle opens another process's memory, so it is not shown.
impl fmt::Debug for CudaHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaHandle").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Memory of the host or of a GPU.
#[derive(Debug)]
enum Backing {
    /// `identity` distinguishes the object from every other one: device and inode.
    Host {
        /// Dropped before the object, whose drop frees large memory on another thread.
        windows: Windows,
        /// Regions of one object share its descriptor.
        object: Arc<Object>,
        identity: (u64, u64),
        key: Option<String>,
    },
    Cuda(CudaHandle, Option<Arc<dyn Reach>>),
}

impl Backing {
    fn identity(&self) -> Option<(u64, u64)> {
        match self {
            Self::Host { identity, .. } => Some(*identity),
            Self::Cuda(..) => None,
        }
    }
}

/// A named range of an object, with the mappings of this process.
#[derive(Debug)]
pub(super) struct Region {
    name: String,
    backing: Backing,
    extent: Extent,
    generation: Generation,
    going_away: AtomicBool,
    leases: AtomicUsize,
    /// Returned after everything else is closed.
    _share: Share,
}

/// A source that is open and holds its range.
#[derive(Debug)]
pub struct Opened {
    backing: Backing,
    extent: Extent,
}

impl Opened {
    /// Opens `len` bytes at `offset` of an object, and checks that the object has them.
    pub fn new(source: Source<'_>, offset: u64, len: u64) -> Result<Self> {
        let extent = Extent::new(offset, len)?;
        if len == 0 {
            return Err(RegionFault::Empty.into());
        }
        let (object, key) = match source {
            Source::Posix(key) => {
                let key = Key::parse(key)?;
                (Object::open(&key)?, Some(key.given().to_owned()))
            }
            Source::Memfd(fd) => (Object::duplicate(fd, RegionKind::Memfd)?, None),
            Source::Dmabuf(fd) => (Object::duplicate(fd, RegionKind::Dmabuf)?, None),
            Source::Cuda(handle) => {
                return Ok(Self { backing: Backing::Cuda(handle, None), extent });
            }
            Source::Gpu(handle, reach) => {
                extent.inside(reach.len())?;
                return Ok(Self { backing: Backing::Cuda(handle, Some(reach.clone())), extent });
            }
        };
        extent.inside(object.size()?)?;
        let footing = match object.kind() {
            RegionKind::Dmabuf => Footing::Fixed,
            _ if object.is_sealed(extent.end()) => Footing::Sealed,
            _ => Footing::Loose,
        };
        let (identity, windows) = (object.identity()?, Windows::new(footing));
        let backing = Backing::Host { object: Arc::new(object), identity, key, windows };
        Ok(Self { backing, extent })
    }

    /// Takes the descriptor of a region of the same object, and closes the own one.
    pub(super) fn share(&mut self, other: &Region) {
        if let (
            Backing::Host { object, identity, .. },
            Backing::Host { object: theirs, identity: other, .. },
        ) = (&mut self.backing, &other.backing)
            && *identity == *other
            && object.equals(theirs)
        {
            *object = theirs.clone();
        }
    }

    /// Returns the bytes of host memory.
    pub(super) fn bytes(&self) -> u64 {
        match &self.backing {
            Backing::Host { .. } => self.extent.len(),
            Backing::Cuda(..) => 0,
        }
    }

    /// Returns the identity of the object: device and inode. Returns `None` if it is no host memory.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.backing.identity()
    }

    /// Returns whether mode and seals allow writing.
    pub fn is_writable(&self) -> bool {
        match &self.backing {
            Backing::Host { object, .. } => object.is_writable(),
            Backing::Cuda(..) => false,
        }
    }

    /// Returns whether the owner can truncate the object.
    pub fn is_loose(&self) -> bool {
        matches!(&self.backing, Backing::Host { windows, .. } if windows.footing() == Footing::Loose)
    }

    /// Returns whether the object is sealed against truncation, and some of its pages are not allocated.
    pub fn has_holes(&self) -> bool {
        matches!(&self.backing, Backing::Host { object, .. } if self.is_loose() && object.is_kept_long())
    }

    /// Returns the mapping of sealed memory. It outlives the descriptor. Returns `None` if the memory is not
    /// sealed.
    pub fn map(&self, writable: bool) -> Result<Option<ForeignMapping>> {
        match &self.backing {
            Backing::Host { object, windows, .. } if windows.footing() == Footing::Sealed => {
                let (offset, len) = (self.extent.offset(), self.extent.len() as usize);
                ForeignMapping::map_alone(object, offset, len, writable).map(Some)
            }
            Backing::Host { .. } | Backing::Cuda(..) => Ok(None),
        }
    }

    /// Returns a lease of a whole region that no registry holds.
    pub fn into_lease(self) -> Result<Lease> {
        let extent = self.extent;
        let share = Share::none();
        let region = self.into_region("", Generation::current()?, share);
        Ok(Lease::new(Arc::new(region), extent))
    }

    pub(super) fn into_region(self, name: &str, generation: Generation, share: Share) -> Region {
        Region {
            name: name.to_owned(),
            backing: self.backing,
            extent: self.extent,
            generation,
            going_away: AtomicBool::new(false),
            leases: AtomicUsize::new(0),
            _share: share,
        }
    }
}

impl Region {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn kind(&self) -> RegionKind {
        match &self.backing {
            Backing::Host { object, .. } => object.kind(),
            Backing::Cuda(..) => RegionKind::Cuda,
        }
    }

    /// Returns the start in bytes from the object's start.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    pub(super) fn cuda(&self) -> Option<CudaHandle> {
        match &self.backing {
            Backing::Host { .. } => None,
            Backing::Cuda(handle, _) => Some(*handle),
        }
    }

    pub(super) fn status(&self) -> RegionStatus {
        let (key, writable, sealed) = match &self.backing {
            Backing::Host { object, key, windows, .. } => {
                (key.clone(), object.is_writable(), windows.footing() == Footing::Sealed)
            }
            Backing::Cuda(..) => (None, false, false),
        };
        RegionStatus {
            name: self.name.clone(),
            kind: self.kind(),
            key,
            offset: self.extent.offset(),
            len: self.extent.len(),
            device: self.cuda().map(|handle| handle.device),
            writable,
            sealed,
            leases: self.leases(),
            going_away: self.going_away.load(Ordering::Relaxed),
        }
    }

    // Relaxed throughout: the count is reported, and no other data depends on it. The counted pointer keeps
    // the region alive.

    pub(super) fn leases(&self) -> usize {
        self.leases.load(Ordering::Relaxed)
    }

    pub(super) fn count_lease(&self) {
        self.leases.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn uncount_lease(&self) {
        self.leases.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn go_away(&self) {
        self.going_away.store(true, Ordering::Relaxed);
    }

    /// Returns the object and its mappings, in the process that registered it.
    fn host(&self) -> Result<(&Object, &Windows)> {
        self.generation.check()?;
        match &self.backing {
            Backing::Host { object, windows, .. } => Ok((object, windows)),
            Backing::Cuda(..) => {
                Err(RegionFault::OutOfReach { kind: RegionKind::Cuda.name() }.into())
            }
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        matches!(&self.backing, Backing::Host { windows, .. } if windows.footing() == Footing::Sealed)
    }

    /// Copies a part, a range of the object, to `out`.
    pub(super) fn read_at(&self, part: Extent, out: &mut [u8]) -> Result<()> {
        if let Some(reach) = self.reach()? {
            return reach.read_at(part.offset(), out);
        }
        let (object, windows) = self.host()?;
        match windows.footing() {
            // The kernel reads a dmabuf in place only.
            Footing::Fixed => self.read_in_place(part, |bytes| bytes.copy_to(out)),
            Footing::Sealed | Footing::Loose => object.read_at(part.offset(), out),
        }
    }

    /// Copies bytes to a part, a range of the object.
    pub(super) fn write_at(&self, part: Extent, bytes: &[u8]) -> Result<()> {
        if let Some(reach) = self.reach()? {
            return reach.write_at(part.offset(), bytes);
        }
        let (object, windows) = self.host()?;
        match windows.footing() {
            Footing::Fixed => self.write_in_place(part, |room| room.copy_from(bytes)),
            Footing::Sealed | Footing::Loose => object.write_at(part, bytes),
        }
    }

    pub(super) fn read_in_place<R>(
        &self,
        part: Extent,
        read: impl FnOnce(Bytes<'_>) -> R,
    ) -> Result<R> {
        self.holds(part)?;
        self.touch(part, read)
    }

    pub(super) fn write_in_place<R>(
        &self,
        part: Extent,
        write: impl FnOnce(BytesMut<'_>) -> R,
    ) -> Result<R> {
        self.holds(part)?;
        self.touch_mut(part, write)
    }

    /// Reads as `read_in_place` does. The caller checks afterwards that the object still has the part.
    pub(super) fn touch<R>(&self, part: Extent, read: impl FnOnce(Bytes<'_>) -> R) -> Result<R> {
        let (object, windows) = self.host()?;
        let (start, len) = self.within(part);
        windows
            .access(object, (self.extent, part), false, |mapping| read(mapping.bytes(start, len)))
    }

    /// Writes as `write_in_place` does, with the reservation of `touch`.
    pub(super) fn touch_mut<R>(
        &self,
        part: Extent,
        write: impl FnOnce(BytesMut<'_>) -> R,
    ) -> Result<R> {
        let (object, windows) = self.host()?;
        let (start, len) = self.within(part);
        let act = |mapping: &ForeignMapping| write(mapping.bytes_mut(start, len));
        windows.access(object, (self.extent, part), true, act)
    }

    /// Checks that the object still has a part.
    pub(super) fn holds(&self, part: Extent) -> Result<()> {
        if self.reach()?.is_some() {
            return Ok(());
        }
        let (object, windows) = self.host()?;
        if windows.footing() == Footing::Loose { object.holds(part) } else { Ok(()) }
    }

    /// Returns the order in which a part can be overwritten with a part of the same length of another region,
    /// where the two are partly the same bytes of one object.
    pub(super) fn order(&self, part: Extent, other: &Region, from: Extent) -> Option<Order> {
        let is_one = match self.cuda() {
            // An allocation has one handle.
            Some(handle) => Some(handle) == other.cuda(),
            None => self.backing.identity().is_some_and(|is| Some(is) == other.backing.identity()),
        };
        if !is_one || !part.meets(from) {
            return None;
        }
        Some(if part.offset() > from.offset() { Order::FromEnd } else { Order::FromStart })
    }

    /// Copies another region's part to a part of the same length. The part gets the bytes that were in the
    /// other one before the copy, even where the two overlap.
    pub(super) fn fill_from(&self, part: Extent, other: &Region, from: Extent) -> Result<()> {
        let by_driver = self.reach()?.is_some() || other.reach()?.is_some();
        let order = self.order(part, other, from);
        if let Some(order) = order.or(by_driver.then_some(Order::FromStart)) {
            return self.shift(part, other, from, order);
        }
        let ((object, windows), (source, theirs)) = (self.host()?, other.host()?);
        if [windows, theirs].iter().any(|windows| windows.footing() == Footing::Fixed) {
            // The kernel accesses a dmabuf in place only.
            return self
                .touch_mut(part, |to| other.touch(from, |from| to.copy_from_bytes(from)))?;
        }
        let room = windows.for_kernel(object, self.extent)?;
        let (start, len) = self.within(part);
        let mut done = 0;
        while done < len {
            let rest = room.bytes_mut(start + done, len - done);
            match rest.read_from(source, from.offset() + done as u64) {
                Ok(more) if more > 0 => done += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // One of the two objects has ended early.
                _ => {
                    other.holds(from)?;
                    self.holds(part)?;
                    let (there, len) = (done as u64, len as u64);
                    return Err(RegionFault::Truncated { there, len }.into());
                }
            }
        }
        // Bytes behind the new end of an object that was truncated within a page are lost.
        self.holds(part)
    }

    /// Copies as `fill_from` does, for overlapping parts and for memory of a driver. Each byte goes through a
    /// private buffer and is read before it is overwritten. The kernel chooses the order within one call.
    fn shift(&self, part: Extent, other: &Region, from: Extent, order: Order) -> Result<()> {
        let mut chunk = vec![0; part.len().min(SHIFT) as usize];
        for (at, len) in order.steps(part.len() as usize, chunk.len()) {
            let chunk = &mut chunk[..len];
            other.read_at(from.part(at as u64, len as u64)?, chunk)?;
            self.write_at(part.part(at as u64, len as u64)?, chunk)?;
        }
        Ok(())
    }

    /// Returns the access to memory that only a driver reaches.
    fn reach(&self) -> Result<Option<&Arc<dyn Reach>>> {
        self.generation.check()?;
        match &self.backing {
            Backing::Cuda(_, reach) => Ok(reach.as_ref()),
            Backing::Host { .. } => Ok(None),
        }
    }

    /// Returns the mapping of sealed memory and the start of a part in it.
    pub(super) fn sealed(&self, part: Extent) -> Result<(Arc<Window>, usize, usize)> {
        let (object, windows) = self.host()?;
        if windows.footing() != Footing::Sealed {
            return Err(RegionFault::Unsealed.into());
        }
        let (start, len) = self.within(part);
        Ok((windows.get(object, self.extent, false)?, start, len))
    }

    /// Returns the start of a part in the mapping.
    fn within(&self, part: Extent) -> (usize, usize) {
        // The region is mapped whole, so both are distances between addresses.
        ((part.offset() - self.extent.offset()) as usize, part.len() as usize)
    }
}
