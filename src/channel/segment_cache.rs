//! The segment cache: the peer's pool segments that a receiver has used last, found without a lock.
//!
//! 1. A cached segment stays mapped at least as long as its entry, whether the peer has retired it or not.
//! 2. [`SegmentCache::current`] returns an entry only if no segment was retired after the entry was made.
//! 3. A segment that is not cached is looked up in the control socket, under its lock.

use std::sync::Arc;

use crate::error::Result;
use crate::link::control_socket::PoolSegment;
use crate::link::session::Session;

/// The most cached segments. A far footprint is 32 MiB, and blocks of 1 MiB have a segment each, so it has 32 of them.
const CAPACITY: usize = 32;

/// A segment of a peer's pool and the session of its link, which all loans from the segment share.
#[derive(Debug)]
pub(crate) struct CachedSegment {
    pub(crate) session: Arc<Session>,
    pub(crate) segment: Arc<PoolSegment>,
}

/// A segment in the cache.
#[derive(Debug, Clone)]
struct Entry {
    number: u32,
    cached: Arc<CachedSegment>,
    /// The handle of the next loan from the segment. See [`SegmentCache::refill`].
    spare: Option<Arc<CachedSegment>>,
}

/// The segments that a receiver has used last.
#[derive(Debug, Default)]
pub(crate) struct SegmentCache {
    /// By the low bits of the segments' numbers, which count up. Empty before the first loan.
    entries: Vec<Option<Entry>>,
    /// The link's count of retired segments when the entries were made.
    retires: u32,
}

impl SegmentCache {
    /// Returns the segment if it is cached, retired or not.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<CachedSegment>> {
        match self.entries.get(number as usize % CAPACITY)? {
            Some(entry) if entry.number == number => Some(&entry.cached),
            _ => None,
        }
    }

    /// Returns a handle of a cached segment, for a loan from it.
    #[inline(always)]
    pub(crate) fn handle(&mut self, number: u32) -> Option<Arc<CachedSegment>> {
        let entry = self.entries.get_mut(number as usize % CAPACITY)?.as_mut()?;
        if entry.number != number {
            return None;
        }
        Some(entry.spare.take().unwrap_or_else(|| entry.cached.clone()))
    }

    /// Makes a spare handle of a segment for the next loan from it. The receiver calls this before it waits: the operation that
    /// makes a handle waits for all stores before it.
    #[inline(always)]
    pub(crate) fn refill(&mut self, number: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(number as usize % CAPACITY)
            && entry.number == number
        {
            entry.spare.get_or_insert_with(|| entry.cached.clone());
        }
    }

    /// Returns the segment if it is cached and the peer has retired none after that.
    #[inline(always)]
    pub(crate) fn current(&self, session: &Session, number: u32) -> Option<&Arc<CachedSegment>> {
        let retires = session.link.retires();
        self.get(number).filter(|_| retires == self.retires)
    }

    /// Returns the segment, from the control socket if it is not cached.
    ///
    /// # Errors
    ///
    /// - [`Fault`](crate::error::Fault): the peer has announced no such segment.
    /// - This process has no memory to map it.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        session: &Arc<Session>,
        number: u32,
    ) -> Result<&Arc<CachedSegment>> {
        if self.current(session, number).is_none() {
            self.look_up(session, number)?;
        }
        Ok(self.get(number).expect("look_up has entered it"))
    }

    /// Drops all entries if the link's count of retired segments, `retires`, has changed: one of them may be retired.
    pub(crate) fn forget_retired(&mut self, retires: u32) {
        if retires != self.retires {
            self.entries.clear();
            self.retires = retires;
        }
    }

    #[cold]
    fn look_up(&mut self, session: &Arc<Session>, number: u32) -> Result<()> {
        let link = &session.link;
        let mut control_socket = link.control_socket();
        let segment = control_socket.segment(link.socket(), number);
        // Read under the lock: a segment that is retired later changes the count, and `current` sees it.
        let retires = link.retires();
        drop(control_socket);
        self.forget_retired(retires);
        let cached = CachedSegment { session: session.clone(), segment: segment? };
        self.entries.resize(CAPACITY, None);
        let entry = Entry { number, cached: Arc::new(cached), spare: None };
        self.entries[number as usize % CAPACITY] = Some(entry);
        Ok(())
    }
}
