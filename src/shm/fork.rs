//! The process that a handle belongs to, and state of one process.
//!
//! Segments are not inherited over `fork` (`MADV_DONTFORK`), so a child that used its parent's handle would
//! access unmapped memory. One page of this process holds its generation. The kernel wipes it in every child
//! (`MADV_WIPEONFORK`, Linux 4.14). A handle keeps the generation of its process, and each operation compares
//! the two: one load that hits the cache.

#![allow(unsafe_code)]

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, ErrorKind, Result};
use crate::shm::page_size;

/// The process that made an object.
#[derive(Debug, Clone, Copy)]
pub struct Generation {
    page: &'static AtomicU64,
    made_in: u64,
}

impl Generation {
    /// Returns the generation of the calling process.
    pub fn current() -> Result<Self> {
        let page = page()?;
        let mut made_in = page.load(Ordering::Relaxed);
        if made_in == 0 {
            // The first use in this process or in this child. Pids repeat, in different namespaces even at
            // once.
            let fresh = fresh_number()?;
            made_in = match page.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => fresh,
                Err(other_thread) => other_thread,
            };
        }
        Ok(Self { page, made_in })
    }

    /// Returns the number of the process that this generation stands for.
    pub(crate) fn number(&self) -> u64 {
        self.made_in
    }

    /// Returns the number of the calling process, or 0 if it has no generation yet. It only loads, so a signal
    /// handler may call it.
    #[inline(always)]
    pub(crate) fn number_now(&self) -> u64 {
        self.page.load(Ordering::Relaxed)
    }

    /// Returns whether this generation stands for the calling process.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        self.page.load(Ordering::Relaxed) == self.made_in
    }

    /// Checks that no `fork` lies between the caller and the process of this generation.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(ErrorKind::Forked.into()) }
    }
}

/// State of a process, of which the child of a fork starts its own.
///
/// A lock in plain static memory stays locked in the child if another thread held it at the fork.
pub(crate) struct PerProcess<T: 'static> {
    newest: AtomicPtr<Entry<T>>,
}

struct Entry<T> {
    made_in: u64,
    state: T,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { newest: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Returns the state of the calling process. The first call makes it, and lets it `inherit` from the parent's state:
    /// a lock that is held there is never released.
    pub(crate) fn get(&self, make: fn() -> T, inherit: fn(&T, &T)) -> Result<&'static T> {
        Ok(self.get_in(Generation::current()?.number(), make, inherit))
    }

    fn get_in(&self, process: u64, make: fn() -> T, inherit: fn(&T, &T)) -> &'static T {
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or of an entry that was whole when it was stored, and that is never freed.
        let parent = unsafe { newest.as_ref() };
        if let Some(entry) = parent
            && entry.made_in == process
        {
            return &entry.state;
        }
        let entry = Box::into_raw(Box::new(Entry { made_in: process, state: make() }));
        let stored =
            self.newest.compare_exchange(newest, entry, Ordering::AcqRel, Ordering::Acquire);
        if let Err(others) = stored {
            // SAFETY: `entry` comes from a box, and no other thread has seen it.
            drop(unsafe { Box::from_raw(entry) });
            // SAFETY: another thread has stored it, so it is whole; an entry is never freed.
            return unsafe { &(*others).state };
        }
        // SAFETY: as for `others`.
        let own = unsafe { &(*entry).state };
        if let Some(parent) = parent {
            inherit(&parent.state, own);
        }
        own
    }
}

/// Returns a number that is not zero and that no other process has drawn.
fn fresh_number() -> Result<u64> {
    let mut bytes = [0; 8];
    loop {
        let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        match (drawn, u64::from_ne_bytes(bytes)) {
            (Ok(8), number) if number != 0 => return Ok(number),
            (Ok(_) | Err(Errno::INTR), _) => {}
            (Err(errno), _) => return Err(Error::os("getrandom", errno)),
        }
    }
}

fn page() -> Result<&'static AtomicU64> {
    static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();
    if let Some(page) = PAGE.get() {
        return Ok(page);
    }
    let len = page_size();
    // SAFETY: a null address asks for fresh memory, which overlaps nothing.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let base = mapped.map_err(|errno| Error::os("mmap of the fork page", errno))?;
    // SAFETY: `base..base + len` is the mapping just made; wiping it in a child leaves a valid zero.
    let advised = unsafe { rustix::mm::madvise(base, len, Advice::LinuxWipeOnFork) };
    if let Err(errno) = advised {
        // SAFETY: nobody else knows the mapping just made.
        let _ = unsafe { rustix::mm::munmap(base, len) };
        return Err(Error::os("madvise(MADV_WIPEONFORK)", errno));
    }
    // SAFETY: the page is aligned, zero (a valid value), and never unmapped.
    let word = unsafe { AtomicU64::from_ptr(base.cast()) };
    Ok(PAGE.get_or_init(|| word))
}

#[cfg(test)]
mod tests;
