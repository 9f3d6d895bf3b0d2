//! Memory that client and service share, and how either side accesses it.

use core::fmt;

use zerocopy::FromZeros;

use crate::error::{CommitFault, RegionFault, Result, memory};
use crate::region::{Lease, Opened};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, BytesMut, ForeignMapping};

/// Memory of one region or buffer, in this process.
#[derive(Debug)]
pub(super) struct Memory {
    place: Place,
    /// A mapping is writable exactly if this is true.
    writable: bool,
}

/// The way to the bytes.
#[derive(Debug)]
enum Place {
    /// Sealed and mapped: no access raises a signal.
    Mapped { mapping: ForeignMapping, generation: Generation },
    /// A dmabuf, or memory that its owner can shrink.
    Leased(Lease),
}

impl Memory {
    /// Maps sealed memory, and keeps a descriptor of any other. The memory is writable if the caller wants to write and
    /// the descriptor's mode and seals allow it.
    pub(super) fn of(opened: Opened, writes: bool) -> Result<Self> {
        let writable = writes && opened.is_writable();
        let place = match opened.map(writable)? {
            Some(mapping) => Place::Mapped { mapping, generation: Generation::current()? },
            None => Place::Leased(opened.into_lease()?),
        };
        Ok(Self { place, writable })
    }

    /// Returns whether the memory can be written.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns whether a descriptor is kept.
    pub(super) fn holds_descriptor(&self) -> bool {
        matches!(self.place, Place::Leased(_))
    }
}

/// Bytes of a buffer, which the other side may change at any moment.
///
/// Sealed memory is mapped, and [`bytes`](Self::bytes) returns it in place. A dmabuf, and memory that its owner can
/// shrink, is copied, or accessed inside a call: [`in_place`](Self::in_place).
#[derive(Clone, Copy)]
pub struct View<'a> {
    memory: &'a Memory,
    /// The view's start, in bytes of `memory`.
    offset: u64,
    len: u64,
    writable: bool,
}

impl<'a> View<'a> {
    /// Returns a view of a range, which the caller has checked to lie inside `memory`. It is writable if the caller
    /// `writes` and the memory is writable.
    pub(super) fn new(memory: &'a Memory, offset: u64, len: u64, writes: bool) -> Self {
        Self { memory, offset, len, writable: writes && memory.writable }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the view has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the view may be written. A buffer that was imported from a descriptor without write access, or
    /// from memory that is sealed against writing, may not.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the start of a range of this view, in bytes of the memory.
    fn at(&self, offset: u64, len: u64) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(CommitFault::Range { region: None, offset, len, size: self.len }.into()),
        }
    }

    fn may_write(&self) -> Result<()> {
        if self.writable { Ok(()) } else { Err(RegionFault::ReadOnly.into()) }
    }

    /// Returns the bytes in place.
    ///
    /// # Errors
    ///
    /// [`RegionFault::Unsealed`](crate::error::RegionFault::Unsealed): use [`in_place`](Self::in_place), or copy.
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
    #[inline]
    pub fn bytes(&self) -> Result<Bytes<'a>> {
        match &self.memory.place {
            Place::Mapped { mapping, generation } => {
                generation.check()?;
                Ok(mapping.bytes(self.offset as usize, self.len as usize))
            }
            Place::Leased(_) => Err(RegionFault::Unsealed.into()),
        }
    }

    /// Returns the bytes in place, to write.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes), and [`RegionFault::ReadOnly`](crate::error::RegionFault::ReadOnly).
    #[inline]
    pub fn bytes_mut(&self) -> Result<BytesMut<'a>> {
        self.may_write()?;
        match &self.memory.place {
            Place::Mapped { mapping, generation } => {
                generation.check()?;
                Ok(mapping.bytes_mut(self.offset as usize, self.len as usize))
            }
            Place::Leased(_) => Err(RegionFault::Unsealed.into()),
        }
    }

    /// Copies `out.len()` bytes from `offset` to `out`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::Range`], and those of [`Lease::read_at`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = self.at(offset, out.len() as u64)?;
        match &self.memory.place {
            Place::Mapped { mapping, generation } => {
                generation.check()?;
                mapping.bytes(at as usize, out.len()).copy_to(out);
                Ok(())
            }
            Place::Leased(lease) => lease.read_at(at, out),
        }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::Range`], [`RegionFault::ReadOnly`], and those of [`Lease::write_at`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.may_write()?;
        let at = self.at(offset, bytes.len() as u64)?;
        match &self.memory.place {
            Place::Mapped { mapping, generation } => {
                generation.check()?;
                mapping.bytes_mut(at as usize, bytes.len()).copy_from(bytes);
                Ok(())
            }
            Place::Leased(lease) => lease.write_at(at, bytes),
        }
    }

    /// Runs `read` over the bytes in place, for memory of any kind. Announces the access to a dmabuf's driver before and
    /// after.
    ///
    /// # Errors
    ///
    /// Those of [`Lease::in_place`].
    pub fn in_place<R>(&self, read: impl FnOnce(Bytes<'_>) -> R) -> Result<R> {
        let (offset, len) = (self.offset as usize, self.len as usize);
        match &self.memory.place {
            Place::Mapped { .. } => self.bytes().map(read),
            Place::Leased(lease) => lease.in_place(|bytes| read(bytes.slice(offset, len))),
        }
    }

    /// As [`in_place`](Self::in_place), to write.
    ///
    /// # Errors
    ///
    /// Those of [`Lease::in_place_mut`].
    pub fn in_place_mut<R>(&self, write: impl FnOnce(BytesMut<'_>) -> R) -> Result<R> {
        self.may_write()?;
        let (offset, len) = (self.offset as usize, self.len as usize);
        match &self.memory.place {
            Place::Mapped { .. } => self.bytes_mut().map(write),
            Place::Leased(lease) => lease.in_place_mut(|bytes| write(bytes.slice(offset, len))),
        }
    }

    /// Returns a copy of all bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory), and those of [`read_at`](Self::read_at).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let len = self.len as usize;
        let zeroed = u8::new_vec_zeroed(len);
        let mut bytes = zeroed.map_err(|_| memory::no_memory::<u8>(len))?;
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}
