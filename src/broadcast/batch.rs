//! Batches: messages that a publisher publishes one after the other, and for which it looks for sleepers once.

use crate::broadcast::publisher::{Publisher, into_error};
use crate::error::{Result, TrySendError};
use crate::patience::SendPatience;

impl Publisher {
    /// Publishes messages in their order, and looks for sleeping subscribers once for up to 64 of them. Returns how many there
    /// were. An error leaves those before it published.
    ///
    /// Subscribers that are awake get each message at once. Those that sleep get the last ones no later than the end: an
    /// iterator that waits makes them wait.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::broadcast::{PublishOptions, SubscribeOptions};
    /// # use slipring::{Address, Context};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut prices = context.publish(&address, PublishOptions::default())?;
    /// # let mut log = context.subscribe(&address, SubscribeOptions::every())?;
    /// assert_eq!(prices.send_all((0..100u64).map(u64::to_le_bytes))?, 100);
    /// assert_eq!(log.recv()?.unwrap().to_vec()?, 0u64.to_le_bytes());
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_all<M: AsRef<[u8]>>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<u64> {
        let first = self.sent();
        let mut batch = Batch { publisher: self, unseen: 0 };
        for message in messages {
            batch.send(message.as_ref()).map_err(into_error)?;
        }
        drop(batch);
        Ok(self.sent() - first)
    }
}

/// Messages after which a batch looks for sleepers.
const BATCH: u32 = 64;

/// Messages that are published one after the other. The drop wakes the subscribers that sleep.
struct Batch<'a> {
    publisher: &'a mut Publisher,
    /// The messages that sleepers have not been woken for.
    unseen: u32,
}

impl Batch<'_> {
    fn send(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        let is_short = message.len() <= self.publisher.room();
        // The publisher may wait for one that sleeps.
        if self.unseen >= BATCH || !is_short || !self.publisher.has_room() {
            self.wake();
        }
        if !is_short {
            return self.publisher.put(message, SendPatience::Default);
        }
        self.publisher.await_room(SendPatience::Default)?;
        self.publisher.put_silently(message);
        self.unseen += 1;
        Ok(())
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.unseen) > 0 {
            self.publisher.wake();
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.wake();
    }
}
