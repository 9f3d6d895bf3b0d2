//! Messages that the caller writes in place: a [`Reservation`] for one, a [`Batch`] for several.
//!
//! 1. Dropped without `publish`, each sends nothing. A block of the pool goes back.
//! 2. A batch fits into the ring as a whole and becomes visible by one store, that of its first header.

use std::time::Instant;

use crate::channel::envelope::{Envelope, PLAIN};
use crate::channel::metadata::Metadata;
use crate::channel::sender::{Sender, into_error};
use crate::error::{Error, ErrorKind, Fault, Result, TrySendError};
use crate::patience::after;
use crate::ring::{Full, Header, batch_limit};

/// The offset of a reservation whose room is in the pool.
pub(crate) const POOLED: usize = usize::MAX;

/// Room for one message, which the caller writes in place.
///
/// Dropped without [`publish`](Self::publish), it sends nothing.
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// let mut room = near.sender().reserve(8)?;
/// room.copy_from_slice(&7u64.to_le_bytes());
/// room.publish()?;
///
/// assert_eq!(far.recv()?, Some(7u64.to_le_bytes().to_vec()));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a reservation sends nothing before it is published"]
pub struct Reservation<'a> {
    /// The start of the message in the ring's data section, in bytes, or [`POOLED`]. A pooled message has its room in
    /// the sender, so that this type fits into registers.
    pub(crate) offset: usize,
    /// The header of the reserved record. Of that of a record in the pool only the mark of metadata is used.
    pub(crate) header: Header,
    /// The start of the next record, as [`PlainRoom`](crate::ring::PlainRoom) says. 0: not known yet.
    pub(crate) next: u64,
    pub(crate) len: usize,
    pub(crate) sender: &'a mut Sender,
}

impl Reservation<'_> {
    /// Makes the message visible to the receiver, and wakes the receiver if it sleeps. It does not wait, and does not
    /// check whether the peer lives: reserving has done so.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fault`]: the peer broke the protocol; the connection is over.
    /// - [`ErrorKind::PeerClosed`], [`ErrorKind::PeerDied`]: the peer left, and the message lay in the pool.
    #[inline(always)]
    pub fn publish(self) -> Result<()> {
        if self.offset == POOLED {
            return publish_pooled(self.sender, self.len, self.header);
        }
        self.sender.finish_message(self.header, self.next, self.len)
    }

    /// Shortens the message to its first `len` bytes.
    ///
    /// # Panics
    ///
    /// If `len` is more than was reserved.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "{len} bytes of a reservation of {}", self.len);
        if self.offset != POOLED {
            let start = self.sender.producer.place(self.header);
            let metadata = self.offset - start;
            // A payload that has become short lies beside its header.
            self.header = self.header.shortened((metadata + len) as u32);
            let offset = self.sender.producer.place(self.header);
            let back = start - offset;
            let moved = self.sender.ring.bytes_mut(offset, back + metadata + len);
            moved.copy_within(back.., 0);
            (self.offset, self.next) = (offset + metadata, 0);
        }
        self.len = len;
    }
}

// These functions take a reservation's parts, not the reservation: taking its address would put it into memory, and its
// stores would stand before the message's in the processor's queue.

fn publish_pooled(sender: &mut Sender, len: usize, header: Header) -> Result<()> {
    if !sender.pooled.block.is_held() {
        return Ok(());
    }
    if header.has_metadata() {
        let metadata = std::mem::take(&mut sender.metadata);
        return sender.finish_pooled(PLAIN.with(&metadata), len);
    }
    sender.finish_plain_pooled(len)
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

/// Messages that become visible to the receiver together.
///
/// Dropped without [`publish`](Self::publish), it sends nothing.
///
/// # Examples
///
/// ```
/// # use slipring::{Address, Context};
/// # let (context, address) = (Context::new()?, Address::fresh());
/// # let mut listener = context.listen(&address)?;
/// # let far = std::thread::spawn(move || listener.accept());
/// # let mut near = context.connect(&address)?;
/// # let mut far = far.join().unwrap()?;
/// let mut batch = near.sender().batch()?;
/// batch.push(b"one")?;
/// batch.reserve(3)?.copy_from_slice(b"two");
/// assert_eq!(batch.len(), 2);
/// batch.publish()?;
///
/// assert_eq!(far.recv()?.as_deref(), Some(&b"one"[..]));
/// assert_eq!(far.recv()?.as_deref(), Some(&b"two"[..]));
/// # Ok::<(), slipring::Error>(())
/// ```
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
    /// - [`ErrorKind::BatchTooLarge`]: the batch would not fit into an empty ring. It stays as it was.
    /// - [`ErrorKind::MessageTooLarge`]: the message is longer than `inline_max`. The batch stays as it was.
    /// - Otherwise as [`Sender::send`].
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> Result<()> {
        let offset = self.await_place(message.len())?;
        self.sender.ring.put(offset, message);
        Ok(())
    }

    /// As [`push`](Self::push), with metadata.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn push_with(&mut self, message: &[u8], metadata: &Metadata) -> Result<()> {
        let envelope = PLAIN.with(metadata);
        let mut placed = self.place_in(envelope, message.len());
        if let Err(TrySendError::Full { needed, .. }) = placed {
            let deadline = self.default_deadline();
            placed = Ok(self.await_room(envelope, message.len(), (needed, deadline))?);
        }
        let offset = placed.map_err(into_error)?;
        self.sender.write(offset, envelope, message);
        Ok(())
    }

    /// As [`push`](Self::push), but does not wait.
    ///
    /// # Errors
    ///
    /// - [`TrySendError::Full`]: there is no room now. The batch stays as it was; publish it, or wait.
    /// - [`TrySendError::Failed`]: as [`push`](Self::push).
    #[inline(always)]
    pub fn try_push(&mut self, message: &[u8]) -> Result<(), TrySendError> {
        let offset = self.place(message.len())?;
        self.sender.ring.put(offset, message);
        Ok(())
    }

    /// Adds a message of `len` bytes and returns them, for the caller to write before it publishes the batch. Their
    /// first values are arbitrary. Waits as [`push`](Self::push) does.
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
            Err(TrySendError::Full { needed, .. }) => {
                self.await_room(PLAIN, len, (needed, self.default_deadline()))
            }
            Err(TrySendError::Failed(error)) => Err(error),
        }
    }

    /// As [`reserve`](Self::reserve), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub fn reserve_deadline(&mut self, len: usize, deadline: Instant) -> Result<&mut [u8]> {
        let offset = match self.place(len) {
            Err(TrySendError::Full { needed, .. }) => {
                self.await_room(PLAIN, len, (needed, deadline))?
            }
            placed => placed.map_err(into_error)?,
        };
        Ok(self.sender.ring.bytes_mut(offset, len))
    }

    /// As [`reserve`](Self::reserve), but does not wait.
    ///
    /// # Errors
    ///
    /// - [`TrySendError::Full`]: there is no room now. The batch stays as it was; publish it, or wait.
    /// - [`TrySendError::Failed`]: as [`push`](Self::push).
    #[inline(always)]
    pub fn try_reserve(&mut self, len: usize) -> Result<&mut [u8], TrySendError> {
        let offset = self.place(len)?;
        Ok(self.sender.ring.bytes_mut(offset, len))
    }

    /// Adds a message of `len` bytes and returns its offset in the ring's data section.
    #[inline(always)]
    fn place(&mut self, len: usize) -> Result<usize, TrySendError> {
        self.place_in(PLAIN, len)
    }

    /// Adds a record with a message of `len` bytes and returns its offset in the ring's data section.
    #[inline(always)]
    fn place_in(&mut self, envelope: Envelope<'_>, len: usize) -> Result<usize, TrySendError> {
        let Sender { producer, batch, batch_bytes, inline_max, .. } = &mut *self.sender;
        if len > *inline_max {
            return Err(self.refuse(len, Ok(None)));
        }
        match producer.push(batch, envelope.header(len)) {
            Ok(Ok(offset)) => {
                *batch_bytes += len as u64;
                Ok(offset)
            }
            Ok(Err(full)) => self.place_elsewhere(envelope, len, full),
            Err(fault) => Err(self.refuse(len, Err(fault))),
        }
    }

    /// Adds a record for which the ring has no room.
    #[cold]
    fn place_elsewhere(
        &mut self,
        envelope: Envelope<'_>,
        len: usize,
        full: Full,
    ) -> Result<usize, TrySendError> {
        if self.sender.move_for(full)? {
            return self.place_in(envelope, len);
        }
        Err(self.refuse(len, Ok(Some(full))))
    }

    #[cold]
    fn refuse(&self, len: usize, why: Result<Option<Full>, Fault>) -> TrySendError {
        let link = &self.sender.link;
        let capacity = batch_limit(self.sender.longest_ring());
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
    fn await_room(
        &mut self,
        envelope: Envelope<'_>,
        len: usize,
        (mut needed, deadline): (u64, Instant),
    ) -> Result<usize> {
        loop {
            self.sender.await_room(needed, deadline)?;
            match self.place_in(envelope, len) {
                Err(TrySendError::Full { needed: still, .. }) => needed = still,
                answer => return answer.map_err(into_error),
            }
        }
    }

    fn default_deadline(&self) -> Instant {
        after(self.sender.session.env.options().send_timeout)
    }

    /// Returns the count of messages in this batch.
    pub fn len(&self) -> usize {
        self.sender.batch.count() as usize
    }

    /// Returns whether this batch has no message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes all messages visible to the receiver at once, and wakes the receiver if it sleeps. It does not wait.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Fault`]: the peer broke the protocol; the connection is over.
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
