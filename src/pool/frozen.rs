//! Frozen memory: nobody can write it any more, so it needs no loans, only a number by which links name it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::pool::tables::{LockedTables, WeakTables};
use crate::shm::fork::Generation;
use crate::shm::{Draft, Frozen};

/// Bytes that count for a pool's quota as long as this lives.
#[derive(Debug)]
pub(super) struct Charge {
    tables: WeakTables,
    len: u64,
    /// The process that made this. A forked child has only a copy of the tables and must not wait for their lock.
    generation: Option<Generation>,
}

impl Charge {
    pub(super) fn new(tables: WeakTables, len: u64) -> Self {
        Self { tables, len, generation: Generation::current().ok() }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.generation.as_ref().is_some_and(Generation::is_current) {
            self.tables.discharge(self.len);
        }
    }
}

/// Memory of this process that is being written and will be frozen.
#[derive(Debug)]
pub(crate) struct FrozenDraft {
    draft: Draft,
    len: usize,
    charge: Charge,
}

impl FrozenDraft {
    /// Allocates `whole` bytes, whole pages that `charge` counts, all of them zero. The caller asked for `len` of them.
    ///
    /// # Errors
    ///
    /// As [`Draft::create`].
    pub(super) fn create(len: usize, whole: usize, charge: Charge) -> Result<Self> {
        Ok(Self { draft: Draft::create(whole)?, len, charge })
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.draft.bytes_mut(self.len)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.draft.bytes(self.len)
    }

    pub(crate) fn freeze(self) -> Result<Arc<FrozenBlock>> {
        self.draft.generation().check()?;
        let frozen = self.draft.freeze()?;
        Ok(FrozenBlock::new(frozen, self.charge))
    }
}

/// Memory that nobody writes any more, of this process or of a peer.
#[derive(Debug)]
pub(crate) struct FrozenBlock {
    /// Each pool that has numbered it knows it weakly.
    frozen: Arc<Frozen>,
    /// The number by which the links of each pool name it.
    numbers: Mutex<Vec<(WeakTables, u32)>>,
    /// The account that it counts for as long as it lives.
    _counts: Box<dyn Debug + Send + Sync>,
}

impl FrozenBlock {
    /// Wraps memory that counts for the account behind `counts`: for memory of this process the quota of a pool, for
    /// memory of a peer the limits of its link.
    pub(crate) fn new(frozen: Frozen, counts: impl Debug + Send + Sync + 'static) -> Arc<Self> {
        let (frozen, numbers) = (Arc::new(frozen), Mutex::default());
        Arc::new(Self { frozen, numbers, _counts: Box::new(counts) })
    }

    pub(crate) fn memory(&self) -> &Frozen {
        &self.frozen
    }

    /// Returns its number in the pool with these tables, which give it one at the first call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NumbersSpent`](crate::ErrorKind::NumbersSpent)
    pub(super) fn number_in(&self, tables: &LockedTables) -> Result<u32> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, number)) = numbers.iter().find(|(known, _)| known.is(tables)) {
            return Ok(*number);
        }
        let number = tables.lock().name_frozen(&self.frozen)?;
        numbers.push((tables.downgrade(), number));
        Ok(number)
    }
}

#[cfg(test)]
mod tests;
