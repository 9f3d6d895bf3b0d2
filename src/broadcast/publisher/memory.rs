//! The memory of messages: blocks of the pool, for which a send may wait.

use std::time::Instant;

use crate::broadcast::publisher::{Publisher, into_error};
use crate::broadcast::stall::Cause;
use crate::error::{Error, ErrorKind, Result, TrySendError};
use crate::patience::SendPatience;
use crate::pool::Block;
use crate::tensor::{Element, Shape, TensorMut};

impl Publisher {
    /// Returns memory for a tensor from the context's pool, as [`Context::alloc`](crate::Context::alloc) does. It first takes back what subscribers no
    /// longer read, and waits for those that want every message.
    ///
    /// # Errors
    ///
    /// As [`Context::alloc`](crate::Context::alloc).
    pub fn alloc<T: Element>(&mut self, shape: impl Into<Shape>) -> Result<TensorMut<T>> {
        self.alloc_within(shape.into(), SendPatience::Default)
    }

    /// Returns memory as [`alloc`](Self::alloc) does. It waits for subscribers as [`send_deadline`](Self::send_deadline) does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`alloc`](Self::alloc).
    pub fn alloc_deadline<T: Element>(
        &mut self,
        shape: impl Into<Shape>,
        deadline: Instant,
    ) -> Result<TensorMut<T>> {
        self.alloc_within(shape.into(), SendPatience::Until(deadline))
    }

    fn alloc_within<T: Element>(
        &mut self,
        shape: Shape,
        patience: SendPatience,
    ) -> Result<TensorMut<T>> {
        loop {
            match self.context.alloc(shape) {
                Err(error) if matches!(error.kind(), ErrorKind::PoolExhausted { .. }) => {
                    self.adopt();
                    self.make_memory(error, patience).map_err(into_error)?;
                }
                done => return done,
            }
        }
    }

    /// Returns a block, for which subscribers may have to give memory back.
    pub(super) fn block(
        &mut self,
        len: usize,
        patience: SendPatience,
    ) -> Result<Block, TrySendError> {
        loop {
            match self.context.pool().alloc(len)? {
                Ok(block) => return Ok(block),
                Err(exhausted) => self.make_memory(exhausted.into(), patience)?,
            }
        }
    }

    /// Takes back memory that nobody reads. If there was none, waits for the subscriber that is furthest behind. Returns `full`
    /// if no wait helps.
    #[cold]
    fn make_memory(&mut self, full: Error, patience: SendPatience) -> Result<(), TrySendError> {
        let next = self.writer.next();
        let last = {
            let mut state = self.audience.lock();
            let before = state.messages_with_memory();
            self.audience.withdraw(
                &mut state,
                &self.writer,
                self.options.topic().history.into(),
                0,
            );
            if state.messages_with_memory() < before {
                return Ok(());
            }
            // A subscriber that has read all does not keep memory back.
            let oldest = state.oldest_kept();
            state.last(next - 1).filter(|(_, at)| oldest.is_some_and(|oldest| *at <= oldest))
        };
        match last {
            Some((id, position)) => {
                self.await_subscriber((id, position + 1), Cause::Messages, patience)
            }
            None => Err(full.into()),
        }
    }
}
