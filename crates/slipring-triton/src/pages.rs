//! Memory that comes from the kernel and goes back to it on drop.
//!
//! An allocator keeps what is freed for later, and may hold twice the bytes in use. Bytes whose count is charged must
//! not stay behind when the charge is released.

use std::fmt;

use bytes::Bytes;
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::budget::Charge;
use crate::refusal::Refusal;

/// Shorter pieces come from the allocator, which has thousands of them for other purposes: a mapping takes some
/// microseconds.
const SHORT: usize = 64 << 10;

/// The length of a huge page. The kernel fills one in a quarter of the time of its small pages, and takes it back in a
/// twentieth.
pub(crate) const HUGE: usize = 2 << 20;

/// Zeroed memory of a fixed length.
pub(crate) enum Pages {
    Short(Vec<u8>),
    Long(MmapMut),
}

impl Pages {
    /// Returns memory of `len` bytes, whose pages take nothing until they are written.
    ///
    /// # Errors
    ///
    /// The kernel has no memory for it.
    pub(crate) fn new(len: usize) -> Result<Self, Refusal> {
        if len <= SHORT {
            return Ok(Self::Short(vec![0; len]));
        }
        // Memory is reserved as it is written, like the charges for it.
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon();
        map.map(Self::Long).map_err(|_| Refusal::no_memory(len))
    }

    /// Returns memory for bytes that a thread of the runtime writes. Memory of [`HUGE`] bytes or more is in huge pages where
    /// the kernel has them, and the first byte of one takes all of it.
    ///
    /// # Errors
    ///
    /// The kernel has no memory for it.
    pub(crate) fn huge(len: usize) -> Result<Self, Refusal> {
        let pages = Self::new(len)?;
        if let Self::Long(map) = &pages
            && len >= HUGE
        {
            // Without huge pages the memory is the same, and slower.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(pages)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Short(bytes) => bytes.len(),
            Self::Long(map) => map.len(),
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(map) => map,
        }
    }

    /// Returns the first `len` bytes. They hold all of the memory.
    pub(crate) fn into_bytes(self, len: usize) -> Bytes {
        match self {
            Self::Short(bytes) => Bytes::from(bytes).slice(..len),
            Self::Long(map) => Bytes::from_owner(map).slice(..len),
        }
    }
}

/// Bytes that are put one behind another as they arrive, in memory for all of them.
#[derive(Debug)]
pub(crate) struct Assembly {
    pages: Pages,
    filled: usize,
    charged: usize,
}

impl Assembly {
    /// Returns an empty one for at most `room` bytes.
    ///
    /// # Errors
    ///
    /// The kernel has no memory for it.
    pub(crate) fn new(room: usize) -> Result<Self, Refusal> {
        Ok(Self { pages: Pages::huge(room)?, filled: 0, charged: 0 })
    }

    /// Returns how many bytes are there.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Returns how many more fit.
    pub(crate) fn left(&self) -> usize {
        self.pages.len() - self.filled
    }

    /// Charges the memory for bytes that fit, and appends them.
    ///
    /// # Errors
    ///
    /// Too many bytes are in flight.
    pub(crate) fn push(&mut self, bytes: &[u8], charge: &Charge) -> Result<(), Refusal> {
        let (room, end) = (self.pages.len(), self.filled + bytes.len());
        if end > self.charged {
            // The first byte of a huge page takes all of it.
            let until = if room < HUGE { end } else { end.next_multiple_of(HUGE).min(room) };
            charge.add((until - self.charged) as u64)?;
            self.charged = until;
        }
        self.push_charged(bytes);
        Ok(())
    }

    /// Appends bytes whose memory is charged elsewhere.
    pub(crate) fn push_charged(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        self.pages.as_mut_slice()[self.filled..end].copy_from_slice(bytes);
        self.filled = end;
    }

    /// Returns the bytes.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.pages.into_bytes(self.filled)
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}
