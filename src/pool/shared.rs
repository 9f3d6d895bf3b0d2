//! A block that is lent to many, or lent and still read here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool::loans::Lent;
use crate::pool::state::BlockHome;
use crate::pool::store::{Pool, WeakPool};

/// A block that nobody writes any more. It goes back to the pool after its last use, here or by a
/// borrower.
#[derive(Debug)]
pub(super) struct Shared {
    /// `None` once the block went back.
    lent: Option<Lent>,
    home: BlockHome,
    /// Weak, as the pool's accounts hold this.
    pool: WeakPool,
    /// A borrower was gone before it returned this.
    lost: AtomicBool,
}

impl Shared {
    pub(super) fn new(lent: Lent, pool: WeakPool) -> Arc<Self> {
        let home = lent.home;
        Arc::new(Self { lent: Some(lent), home, pool, lost: AtomicBool::new(false) })
    }

    /// A borrower is gone that has not returned it.
    pub(super) fn lose(&self) {
        // Relaxed: whoever asks has seen the borrower's use of it end first, under the pool's lock.
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn home(&self) -> BlockHome {
        self.home
    }

    /// The block, for somebody who has the pool's lock.
    pub(super) fn into_lent(mut self) -> Option<Lent> {
        self.lent.take()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take() {
            self.pool.put_back(lent);
        }
    }
}

/// Who uses a shared block beside the one who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// It is on loan, or used here.
    Others,
    /// It was returned by everybody.
    Nobody,
    /// Nobody holds it, but of somebody only because their link ended while they held it.
    Lost,
}

/// A use of a shared block.
#[derive(Debug, Clone)]
pub(crate) struct SharedBlock {
    shared: Arc<Shared>,
    len: usize,
}

impl SharedBlock {
    pub(super) fn new(shared: Arc<Shared>, len: usize) -> Self {
        Self { shared, len }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The number of the block's segment.
    pub(crate) fn segment(&self) -> u32 {
        self.shared.home.segment
    }

    /// Who else uses it, as far as the pool has [looked](Pool::look_at).
    pub(crate) fn users(&mut self) -> Users {
        match Arc::get_mut(&mut self.shared).map(|shared| *shared.lost.get_mut()) {
            None => Users::Others,
            Some(true) => Users::Lost,
            Some(false) => Users::Nobody,
        }
    }

    /// Whether it lies in this pool.
    pub(crate) fn is_of(&self, pool: &Pool) -> bool {
        self.shared.pool.is(pool)
    }

    /// Its segment's number, and where it starts there in bytes.
    #[inline(always)]
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.shared.home.segment, self.shared.home.offset)
    }

    /// How many bytes were asked for.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes that were asked for.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.shared.lent.as_ref().map_or(&[], |lent| lent.area.bytes(0, self.len))
    }
}
