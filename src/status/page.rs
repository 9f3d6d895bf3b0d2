//! The status page of this process: its memfd, and which rows are in use.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::SealFlags;

use crate::error::{Error, Result};
use crate::shm::fork::{Generation, PerProcess};
use crate::shm::{Mapping, OwnWords, allocate, create_memfd, page_size};
use crate::status::layout::{self, MOST_ROWS, ROW};
use crate::sync::Ordering;

/// The index of the row of objects without one.
const SPARE: u32 = 0;

/// The page of this process. The first object that needs a row makes it, and the last one lets go of it.
static PAGE: PerProcess<Mutex<Weak<Page>>> = PerProcess::new();

/// A status page.
#[derive(Debug)]
pub(super) struct Page {
    /// Nobody sends it: a tool finds it in `/proc`.
    fd: OwnedFd,
    words: Mapping,
    /// The most rows.
    most: usize,
    rows: Mutex<Rows>,
}

/// Which rows are in use.
#[derive(Debug, Default)]
struct Rows {
    /// Rows that have memory.
    allocated: u32,
    /// The first row that was never used.
    next: u32,
    /// Rows that were used.
    free: Vec<u32>,
    /// The number of the last object.
    number: u64,
}

impl Page {
    /// Returns the page of this process.
    ///
    /// # Errors
    ///
    /// [`DescriptorLimit`](crate::ErrorKind::DescriptorLimit), [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
    /// [`FileSizeLimit`](crate::ErrorKind::FileSizeLimit)
    pub(super) fn get() -> Result<Arc<Self>> {
        let page = PAGE.get(Mutex::default, |_, _| ())?;
        let mut page = page.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = page.upgrade() {
            return Ok(page);
        }
        let made = Arc::new(Self::make(MOST_ROWS)?);
        *page = Arc::downgrade(&made);
        Ok(made)
    }

    /// Returns the page of this process, if there is one.
    #[cfg(feature = "metrics")]
    pub(super) fn existing() -> Option<Arc<Self>> {
        let page = PAGE.get(Mutex::default, |_, _| ()).ok()?;
        page.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Returns a copy of all rows that have memory, behind the head.
    #[cfg(feature = "metrics")]
    pub(super) fn copy(&self) -> Option<Vec<u8>> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).next;
        self.copy_bytes(0, Self::start(rows))
    }

    /// Returns a copy of a row.
    #[cfg(feature = "metrics")]
    pub(super) fn copy_row(&self, index: u32) -> Option<Vec<u8>> {
        self.copy_bytes(Self::start(index), ROW)
    }

    #[cfg(feature = "metrics")]
    fn copy_bytes(&self, start: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match rustix::io::pread(&self.fd, &mut bytes[done..], (start + done) as u64) {
                Ok(0) => return None,
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(bytes)
    }

    /// Makes a page of at most so many rows, the spare one included.
    pub(super) fn make(most: usize) -> Result<Self> {
        // Rows get memory as they come. No other mapping may be written, and none may shrink under the writer.
        const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::FUTURE_WRITE);
        let fd = create_memfd(super::NAME)?;
        allocate(&fd, page_size() as u64)?;
        let len = (1 + most) * ROW;
        let words = Mapping::map_unmapped_at_once(&fd, len)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|errno| Error::os("F_ADD_SEALS", errno))?;
        let version = u64::from(layout::VERSION) | (ROW as u64) << 32;
        words.store(layout::HEAD_VERSION, version, Ordering::Relaxed);
        words.store(layout::HEAD_PID, std::process::id().into(), Ordering::Relaxed);
        words.store(0, layout::MAGIC, Ordering::Release);
        let allocated = (page_size() / ROW) as u32 - 1;
        let rows = Rows { allocated, next: SPARE + 1, ..Rows::default() };
        Ok(Self { fd, words, most, rows: Mutex::new(rows) })
    }

    /// Takes a row for an object. Returns its index, and a number that no other object of this process has.
    pub(super) fn take(&self) -> (u32, u64) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.number += 1;
        let number = rows.number;
        if let Some(index) = rows.free.pop() {
            return (index, number);
        }
        if rows.next == rows.allocated {
            let more = (page_size() / ROW) as u32;
            let end = Self::start(rows.allocated + more) as u64;
            if (rows.allocated + more) as usize > self.most || allocate(&self.fd, end).is_err() {
                return (SPARE, number);
            }
            rows.allocated += more;
        }
        rows.next += 1;
        (rows.next - 1, number)
    }

    /// Frees a row.
    pub(super) fn give_back(&self, index: u32) {
        if index != SPARE {
            let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.free.push(index);
        }
    }

    /// Returns the start of a row in bytes.
    pub(super) fn start(index: u32) -> usize {
        (1 + index as usize) * ROW
    }

    /// Returns whether the row is that of all objects without one.
    pub(super) fn is_spare(index: u32) -> bool {
        index == SPARE
    }

    /// Returns the path by which this process opens the page as a tool does.
    #[cfg(test)]
    pub(super) fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    pub(super) fn words(&self) -> &Mapping {
        &self.words
    }

    pub(super) fn generation(&self) -> &Generation {
        self.words.generation()
    }
}
