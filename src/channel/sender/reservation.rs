//! Room for messages that are written in place: one by one, or in a batch.

use crate::channel::envelope::PLAIN;
use crate::channel::sender::Sender;
use crate::channel::sender::into_error;
use crate::error::TrySendError;
use crate::error::{Error, ErrorKind, Fault, Result};
use crate::patience::after;
use crate::ring::{Full, Header, Kind, batch_limit};

/// The offset of a reservation whose room is not in the ring.
pub(crate) const POOLED: usize = usize::MAX;

/// Room for one message, written in place. Dropped without [`publish`](Self::publish), it sends
/// nothing.
#[derive(Debug)]
#[must_use = "a reservation sends nothing before it is published"]
pub struct Reservation<'a> {
    /// Start of the payload in the ring's data section, in bytes, or [`POOLED`]. A message in the pool
    /// has its room in the sender, so that this type stays small enough for registers.
    pub(crate) offset: usize,
    /// The header of the record that was reserved, if it lies in the ring.
    pub(crate) header: Header,
    /// Where the next record will start, as [`Beside`](crate::ring::Beside) says. 0: that is to be found out.
    pub(crate) next: u64,
    pub(crate) len: usize,
    pub(crate) sender: &'a mut Sender,
}

impl Reservation<'_> {
    /// Makes the message visible to the receiver, and wakes it if it sleeps. Whether the peer lives was
    /// looked at when the room was reserved.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`], but there is no more waiting.
    #[inline(always)]
    pub fn publish(self) -> Result<()> {
        if self.offset == POOLED {
            return publish_pooled(self.sender, self.len);
        }
        self.sender.finish_message(self.header, self.next)
    }

    /// Shortens the message to its first `len` bytes.
    ///
    /// # Panics
    ///
    /// If `len` is more than was reserved.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "{len} bytes of a reservation of {}", self.len);
        if self.offset != POOLED {
            // A payload that has become short lies beside its header.
            self.header = self.header.shortened(len as u32);
            let offset = self.sender.producer.place(self.header);
            let back = self.offset - offset;
            self.sender.ring.bytes_mut(offset, back + len).copy_within(back.., 0);
            (self.offset, self.next) = (offset, 0);
        }
        self.len = len;
    }
}

// What follows takes a reservation's parts: one whose address is taken is kept in memory, whose stores
// stand before those of the message in the processor's queue.

fn publish_pooled(sender: &mut Sender, len: usize) -> Result<()> {
    if sender.pooled.block.is_held() { sender.finish_pooled(PLAIN, len) } else { Ok(()) }
}

fn pooled(sender: &Sender, len: usize) -> &[u8] {
    &sender.pooled.block.bytes()[..len]
}

fn pooled_mut(sender: &mut Sender, len: usize) -> &mut [u8] {
    &mut sender.pooled.block.bytes_mut()[..len]
}

fn drop_pooled(sender: &mut Sender) {
    sender.pooled.block.put_back();
}

impl std::ops::Deref for Reservation<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        if self.offset == POOLED {
            return pooled(self.sender, self.len);
        }
        self.sender.ring.bytes(self.offset, self.len)
    }
}

impl std::ops::DerefMut for Reservation<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.offset == POOLED {
            return pooled_mut(self.sender, self.len);
        }
        self.sender.ring.bytes_mut(self.offset, self.len)
    }
}

impl Drop for Reservation<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // A block that was not published goes back.
        if self.offset == POOLED {
            drop_pooled(self.sender);
        }
    }
}

/// Messages that become visible together. Dropped without [`publish`](Self::publish), it sends
/// nothing.
#[derive(Debug)]
#[must_use = "a batch sends nothing before it is published"]
pub struct Batch<'a> {
    pub(crate) sender: &'a mut Sender,
}

impl Batch<'_> {
    /// Adds a message of up to [`Options::inline_max`](crate::Options::inline_max) bytes. Waits for
    /// room as [`Sender::send`] does; the batch as a whole must fit into the ring.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::BatchTooLarge`]: the batch could not fit into an empty ring. It is as it was.
    /// - [`ErrorKind::MessageTooLarge`]: only shorter messages travel in batches.
    /// - Otherwise as [`Sender::send`].
    pub fn push(&mut self, message: &[u8]) -> Result<()> {
        let offset = self.await_place(message.len())?;
        self.sender.ring.put(offset, message);
        Ok(())
    }

    /// As [`push`](Self::push), but does not wait.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`]: the batch is as it was. Publish it, or wait.
    #[inline(always)]
    pub fn try_push(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        let offset = self.place(message.len())?;
        self.sender.ring.put(offset, message);
        Ok(())
    }

    /// Adds a message of `len` bytes, to be written in place before the batch is published; until
    /// then it holds whatever was there before. Waits as [`push`](Self::push) does.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Result<&mut [u8]> {
        let offset = self.await_place(len)?;
        Ok(self.sender.ring.bytes_mut(offset, len))
    }

    #[inline(always)]
    fn await_place(&mut self, len: usize) -> Result<usize> {
        match self.place(len) {
            Ok(offset) => Ok(offset),
            Err(TrySendError::Full { needed, .. }) => self.await_room(len, needed),
            Err(TrySendError::Failed(error)) => Err(error),
        }
    }

    /// As [`reserve`](Self::reserve), but does not wait.
    ///
    /// # Errors
    ///
    /// [`TrySendError::Full`]: the batch is as it was. Publish it, or wait.
    #[inline(always)]
    pub fn try_reserve(&mut self, len: usize) -> Result<&mut [u8], TrySendError> {
        let offset = self.place(len)?;
        Ok(self.sender.ring.bytes_mut(offset, len))
    }

    /// Room for one more message: where it goes in the ring's data section.
    #[inline(always)]
    fn place(&mut self, len: usize) -> Result<usize, TrySendError> {
        let Sender { producer, batch, batch_bytes, inline_max, .. } = &mut *self.sender;
        if len > *inline_max {
            return Err(self.refuse(len, Ok(None)));
        }
        match producer.push(batch, Header::new(Kind::Message, len as u32)) {
            Ok(Ok(offset)) => {
                *batch_bytes += len as u64;
                Ok(offset)
            }
            Ok(Err(full)) => Err(self.refuse(len, Ok(Some(full)))),
            Err(fault) => Err(self.refuse(len, Err(fault))),
        }
    }

    #[cold]
    fn refuse(&self, len: usize, why: Result<Option<Full>, Fault>) -> TrySendError {
        let link = &self.sender.link;
        let capacity = batch_limit(link.terms.own.ring);
        let (len, max) = (len as u64, self.sender.inline_max as u64);
        let kind = match why {
            Err(fault) => return link.fail(fault).into(),
            Ok(None) => ErrorKind::MessageTooLarge { len, max },
            Ok(Some(Full { needed, .. })) if needed > capacity => {
                ErrorKind::BatchTooLarge { needed, capacity }
            }
            Ok(Some(full)) => return full.into(),
        };
        Error::new(kind).into()
    }

    #[cold]
    fn await_room(&mut self, len: usize, mut needed: u64) -> Result<usize> {
        let deadline = after(self.sender.session.env.options().send_timeout);
        loop {
            self.sender.await_room(needed, deadline)?;
            match self.place(len) {
                Err(TrySendError::Full { needed: still, .. }) => needed = still,
                answer => return answer.map_err(into_error),
            }
        }
    }

    /// Messages in this batch.
    pub fn len(&self) -> usize {
        self.sender.batch.count() as usize
    }

    /// Whether there is no message in this batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes all messages visible to the receiver at once, and wakes it if it sleeps.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`], but there is no more waiting.
    #[inline(always)]
    pub fn publish(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let sender = self.sender;
        sender.stats.messages += u64::from(sender.batch.count());
        sender.stats.bytes += sender.batch_bytes;
        sender.producer.publish_batch(&mut sender.batch);
        sender.announce()
    }
}
