//! Where a receiving half finds what its peer lends from: the segments of its last loans, without a lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::link::control_socket::PoolSegment;
use crate::link::session::Session;

/// So many segments are at hand: blocks of 1 MiB have one each, and a far footprint has 32 of them.
const CAPACITY: usize = 32;

/// A segment of a peer's pool, and the link over which it lends: what all loans from it share.
#[derive(Debug)]
pub(crate) struct CachedSegment {
    pub(crate) session: Arc<Session>,
    pub(crate) segment: Arc<PoolSegment>,
}

/// The lenders of the last loans.
#[derive(Debug, Default)]
pub(crate) struct SegmentCache {
    /// By the low bits of their segments' numbers, which count up. Empty before the first loan.
    known: Vec<Option<(u32, Arc<CachedSegment>)>>,
    /// How many segments had been retired when these were found.
    retires: u32,
}

impl SegmentCache {
    /// The cached with this segment, if it is at hand, retired or not.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<CachedSegment>> {
        match self.known.get(number as usize % CAPACITY)? {
            Some((known, cached)) if *known == number => Some(cached),
            _ => None,
        }
    }

    /// The cached with this segment, if that is at hand and no segment was retired since.
    #[inline(always)]
    pub(crate) fn current(&self, session: &Session, number: u32) -> Option<&Arc<CachedSegment>> {
        let retires = session.link.retires.load(Ordering::Relaxed);
        self.get(number).filter(|_| retires == self.retires)
    }

    /// The cached with this segment.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        session: &Arc<Session>,
        number: u32,
    ) -> Result<&Arc<CachedSegment>> {
        if self.current(session, number).is_none() {
            self.look_up(session, number)?;
        }
        Ok(self.get(number).expect("just looked up"))
    }

    /// Lets go of all if any segment was retired: it may be one of these.
    pub(crate) fn forget_retired(&mut self, retires: u32) {
        if retires != self.retires {
            self.known.clear();
            self.retires = retires;
        }
    }

    #[cold]
    fn look_up(&mut self, session: &Arc<Session>, number: u32) -> Result<()> {
        let link = &session.link;
        let mut control_socket = link.control_socket();
        let segment = control_socket.segment(&link.socket, number);
        // What is retired from here on is found out next time.
        let retires = link.retires.load(Ordering::Relaxed);
        drop(control_socket);
        self.forget_retired(retires);
        let cached = CachedSegment { session: session.clone(), segment: segment? };
        self.known.resize(CAPACITY, None);
        self.known[number as usize % CAPACITY] = Some((number, Arc::new(cached)));
        Ok(())
    }
}
