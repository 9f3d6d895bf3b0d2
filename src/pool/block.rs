//! A block that is being written.

use crate::pool::loans::Lent;
use crate::pool::ready::{Prepared, Ready};
use crate::pool::shared::{Shared, SharedBlock};
use crate::pool::store::Pool;
use crate::pool::tuning::Timing;

/// A block that only this process knows of. Dropped, it goes back to the pool.
#[derive(Debug)]
pub(crate) struct Block {
    /// `None` once the block was lent.
    held: Option<Lent>,
    len: usize,
    pool: Pool,
    /// If it is to be told how long writing it takes.
    timing: Option<Timing>,
}

/// A block that was written, and timed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// The class's place in the table.
    pub(super) class: usize,
    /// Bytes that were asked for.
    pub(super) len: u64,
    pub(super) timing: Timing,
}

impl Block {
    pub(super) fn new(lent: Lent, len: usize, pool: Pool, timing: Option<Timing>) -> Self {
        Self { held: Some(lent), len, pool, timing }
    }

    /// One that holds nothing.
    pub(super) fn spent(pool: Pool) -> Self {
        Self { held: None, len: 0, pool, timing: None }
    }

    /// Makes it the block that lies ready, for `len` bytes, in place of one that was lent. False: there is none any
    /// more.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, ready: &Ready, prepared: Prepared, len: usize) -> bool {
        debug_assert!(self.held.is_none());
        self.held = ready.take();
        self.len = len;
        self.timing = prepared.timed.map(Timing::start);
        self.held.is_some()
    }

    /// Whether there is one: it was neither lent nor put back.
    #[inline(always)]
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Puts it back, unless it was lent.
    pub(crate) fn put_back(&mut self) {
        if let Some(lent) = self.held.take() {
            // A forked child holds only a copy of the tables and must not wait for their lock.
            if lent.area.generation().is_current() {
                self.pool.put_back_unused(lent);
            }
        }
    }

    /// How long writing it took, if that is to be told.
    #[inline(always)]
    pub(super) fn written(&self) -> Option<Written> {
        let (timing, lent) = self.timing.zip(self.held.as_ref())?;
        Some(Written { class: lent.home.class, len: self.len as u64, timing })
    }

    /// The block is lent from now on.
    pub(super) fn take(&mut self) -> Option<Lent> {
        self.held.take()
    }

    /// Its segment's number, and where it starts there in bytes. `None` once it was lent.
    #[inline(always)]
    pub(crate) fn place(&self) -> Option<(u32, u64)> {
        self.held.as_ref().map(|lent| (lent.home.segment, lent.home.offset))
    }

    /// The bytes that were asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of the block's segment.
    pub(crate) fn segment(&self) -> u32 {
        self.held.as_ref().map_or(u32::MAX, |lent| lent.home.segment)
    }

    /// The bytes that were asked for.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        match &mut self.held {
            Some(lent) => lent.area.bytes_mut(0, len),
            None => &mut [],
        }
    }

    /// `len` of them from `start` on: what the peer reads already must not be under a mutable reference.
    ///
    /// # Panics
    ///
    /// If these are more than were asked for.
    pub(crate) fn part_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start <= self.len && len <= self.len - start, "part of the block");
        match &mut self.held {
            Some(lent) => lent.area.bytes_mut(start, len),
            None => &mut [],
        }
    }

    /// The block, to be lent to many.
    pub(crate) fn share(mut self) -> Option<SharedBlock> {
        let written = self.written();
        let lent = self.held.take()?;
        // A forked child must not wait for the lock.
        if written.is_some() && lent.area.generation().is_current() {
            self.pool.note(written);
        }
        Some(SharedBlock::new(Shared::new(lent, self.pool.downgrade()), self.len))
    }

    /// Whether it lies in this pool.
    pub(crate) fn is_of(&self, pool: &Pool) -> bool {
        self.pool.downgrade().is(pool)
    }

    /// The bytes that were asked for, to read back.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.held {
            Some(lent) => lent.area.bytes(0, self.len),
            None => &[],
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.put_back();
    }
}
