//! The copy of a long message by a thread that serves several peers: a slice at a time, with other work in between.
//!
//! 1. A copy belongs to one message, by the count of messages that were released before it. A copy of another message is
//!    dropped, and no byte of it is used.
//! 2. Memory is charged and reserved as a whole before the first byte is copied, and touched a slice at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::{Account, Charge, Resource};
use crate::error::{Result, memory};
use crate::shm::fork::Generation;
use crate::shm::{Bytes, LARGE, discard};

/// The bytes that one turn copies at most. A longer message takes several turns.
pub(crate) const SLICE: usize = 256 << 10;

/// The time after which a turn copies no further step. A slice of memory that is in no cache takes several times as long as one
/// that is.
const TURN: Duration = Duration::from_micros(50);

/// The bytes between two readings of the clock.
const STEP: usize = 32 << 10;

/// A copy, and what the account holds for it if it was made in slices.
pub type Copied = (Vec<u8>, Option<Charge>);

/// The part of a long message that is copied.
#[derive(Debug, Default)]
pub(crate) struct LongCopy {
    body: Vec<u8>,
    /// The count of messages that were released before this one.
    number: u64,
    /// The process that copies it.
    generation: Option<Generation>,
    charge: Option<Charge>,
}

impl LongCopy {
    /// Copies the next slice of message `number`, which has `bytes`. Returns the copy when it is whole.
    pub(super) fn go_on(
        &mut self,
        number: u64,
        bytes: Bytes<'_>,
        account: &Arc<Account>,
    ) -> Option<Result<Copied>> {
        if bytes.len() <= SLICE {
            return Some(bytes.try_to_vec().map(|body| (body, None)));
        }
        if self.number != number || self.generation.is_none() {
            *self = Self::default();
            let charge = match account.charge(Resource::Memory, bytes.len() as u64) {
                Ok(charge) => Some(charge),
                Err(error) => return Some(Err(error)),
            };
            *self =
                Self { body: Vec::new(), number, generation: Generation::current().ok(), charge };
        }
        let mut from = self.body.len();
        if let Err(error) = memory::reserve(&mut self.body, bytes.len() - from) {
            // Nothing is reserved, so nothing stays charged.
            *self = Self::default();
            return Some(Err(error));
        }
        let (last, start) = (bytes.len().min(from + SLICE), Instant::now());
        loop {
            let end = last.min(from + STEP);
            self.body.resize(end, 0);
            bytes.slice(from, end - from).copy_to(&mut self.body[from..]);
            from = end;
            if from == last || start.elapsed() >= TURN {
                break;
            }
        }
        let is_whole = from == bytes.len();
        is_whole.then(|| Ok((std::mem::take(&mut self.body), self.charge.take())))
    }
}

impl Drop for LongCopy {
    fn drop(&mut self) {
        if let Some(generation) = &self.generation
            && self.body.capacity() > LARGE
        {
            // The account holds the memory until it is freed.
            discard((std::mem::take(&mut self.body), self.charge.take()), generation);
        }
    }
}

#[cfg(test)]
mod tests;
