//! Memory of a fixed length. Long pieces come from the kernel and go back to it on drop.
//!
//! An allocator keeps what is freed for later, and may hold twice the bytes in use. Many charged bytes must not stay behind
//! when the charge is released.

use std::fmt;

use bytes::Bytes;
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::budget::Charge;
use crate::refusal::Refusal;

/// Shorter pieces come from the allocator, which has thousands of them for other purposes: a mapping takes some
/// microseconds.
const SHORT: usize = 64 << 10;

/// The same for pieces that are written at once and charged as a whole. The allocator has their pages from an earlier piece,
/// where a mapping of 1 MiB takes as long for its page faults as for the copy of the bytes.
const SHORT_WHOLE: usize = 4 << 20;

/// The length of a huge page. The kernel fills one in a quarter of the time of its small pages, and takes it back in a
/// twentieth.
pub(crate) const HUGE: usize = 2 << 20;

/// Zeroed memory of a fixed length.
pub(crate) enum Pages {
    Short(Vec<u8>),
    Long(MmapMut),
}

impl Pages {
    /// Returns memory of `len` bytes, all of which are charged.
    ///
    /// # Errors
    ///
    /// The kernel has no memory for it.
    pub(crate) fn whole(len: usize) -> Result<Self, Refusal> {
        if len > SHORT_WHOLE {
            return Self::new(len);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Refusal::no_memory(len))?;
        bytes.resize(len, 0);
        Ok(Self::Short(bytes))
    }

    /// Returns memory of `len` bytes, whose pages take nothing until they are written. Memory of [`HUGE`] bytes or more is in
    /// huge pages where the kernel has them, and the first byte of one takes all of it.
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
        let map = map.map_err(|_| Refusal::no_memory(len))?;
        if len >= HUGE {
            // Without huge pages the memory is the same, and slower.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Self::Long(map))
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
    memory: Memory,
    room: usize,
    charged: usize,
}

#[derive(Debug)]
enum Memory {
    /// Up to [`SHORT_WHOLE`] bytes. The list never grows.
    Short(Vec<u8>),
    /// The pages, and how many bytes are there.
    Long(Pages, usize),
}

impl Assembly {
    /// Returns an empty one for at most `room` bytes.
    ///
    /// # Errors
    ///
    /// The kernel has no memory for it.
    pub(crate) fn new(room: usize) -> Result<Self, Refusal> {
        let memory = if room > SHORT_WHOLE {
            Memory::Long(Pages::new(room)?, 0)
        } else {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(room).map_err(|_| Refusal::no_memory(room))?;
            Memory::Short(bytes)
        };
        Ok(Self { memory, room, charged: 0 })
    }

    /// Returns how many bytes are there.
    pub(crate) fn filled(&self) -> usize {
        match &self.memory {
            Memory::Short(bytes) => bytes.len(),
            Memory::Long(_, filled) => *filled,
        }
    }

    /// Returns how many more fit.
    pub(crate) fn left(&self) -> usize {
        self.room - self.filled()
    }

    /// Returns how many bytes of memory may come before the bytes that are put into them: a huge page comes as a whole.
    pub(crate) fn ahead(&self) -> usize {
        match self.memory {
            Memory::Short(_) => 0,
            Memory::Long(..) => HUGE,
        }
    }

    /// Charges the memory for bytes that fit, and appends them.
    ///
    /// # Errors
    ///
    /// Too many bytes are in flight.
    pub(crate) fn push(&mut self, bytes: &[u8], charge: &Charge) -> Result<(), Refusal> {
        let end = self.filled() + bytes.len();
        if end > self.charged {
            let until = match self.memory {
                Memory::Short(_) => end,
                // The first byte of a huge page takes all of it.
                Memory::Long(..) => end.next_multiple_of(HUGE).min(self.room),
            };
            charge.add((until - self.charged) as u64)?;
            self.charged = until;
        }
        self.push_charged(bytes);
        Ok(())
    }

    /// Appends bytes whose memory is charged elsewhere.
    pub(crate) fn push_charged(&mut self, bytes: &[u8]) {
        match &mut self.memory {
            Memory::Short(all) => all.extend_from_slice(bytes),
            Memory::Long(pages, filled) => {
                let end = *filled + bytes.len();
                pages.as_mut_slice()[*filled..end].copy_from_slice(bytes);
                *filled = end;
            }
        }
    }

    /// Returns the bytes.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.memory {
            Memory::Short(bytes) => bytes.into(),
            Memory::Long(pages, filled) => pages.into_bytes(filled),
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}
