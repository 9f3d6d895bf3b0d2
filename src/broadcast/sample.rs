//! A received message of a topic.

use crate::broadcast::payload::Payload;
use crate::channel::{LentRange, MessageKind, Metadata};
use crate::error::{Result, TensorFault};
use crate::shm::Bytes;
use crate::tensor::{Tensor, TensorSet};

/// Where the bytes of a message are.
#[derive(Debug)]
pub(super) enum Body {
    /// They are in the slot, or were copied out of it.
    Slot,
    /// They are the sample's own.
    Owned(Vec<u8>),
    /// In a block of the publisher's pool.
    Block(LentRange),
    /// One tensor without a name.
    Tensor(Tensor),
    Tensors(TensorSet),
}

/// What most messages do not have. It stands apart, so that a sample moves in registers.
#[derive(Debug)]
pub(super) struct Rare {
    pub(crate) metadata: Metadata,
    pub(crate) body: Body,
}

/// A sample that borrows nothing: it may go to another thread or task, and outlives the subscriber.
/// [`Sample::into_owned`] makes it.
pub type OwnedSample = Sample<'static>;

/// A message of a topic, as a subscriber receives it.
///
/// A short message is a private copy. One that does not fit into a slot, and tensors, lie in the publisher's pool: the subscriber
/// *holds* them until the sample, and every tensor that was taken out of it, is dropped. A subscriber that wants every message sees
/// one of more than 1 KiB in its slot, and the publisher overwrites it after the next receive.
///
/// # Examples
///
/// ```
/// use slipring::broadcast::{PublishOptions, SubscribeOptions};
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut camera = context.publish(&address, PublishOptions::default())?;
/// let mut viewer = context.subscribe(&address, SubscribeOptions::latest())?;
/// for tick in 0..5u8 {
///     camera.send(&[tick])?;
/// }
/// let sample = viewer.recv()?.expect("a message");
/// assert_eq!((sample.to_vec()?, sample.missed()), (vec![4], 4));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub struct Sample<'a> {
    /// `None`: the sample borrows nothing.
    payload: Option<&'a Payload>,
    rare: Option<Box<Rare>>,
    sequence: u64,
    missed: u64,
    restarted: bool,
}

impl<'a> Sample<'a> {
    #[inline(always)]
    pub(super) fn new(
        payload: &'a Payload,
        rare: Option<Box<Rare>>,
        (sequence, missed): (u64, u64),
        restarted: bool,
    ) -> Self {
        Self { payload: Some(payload), rare, sequence, missed, restarted }
    }

    /// Returns the bytes of its slot, which were copied or are to be read.
    pub(crate) fn len_in_slot(&self) -> usize {
        self.payload.map_or(0, Payload::len)
    }

    #[inline(always)]
    fn body(&self) -> &Body {
        self.rare.as_ref().map_or(&Body::Slot, |rare| &rare.body)
    }

    /// Returns whether it is a message of bytes or of tensors.
    pub fn kind(&self) -> MessageKind {
        match self.body() {
            Body::Tensor(_) | Body::Tensors(_) => MessageKind::Tensors,
            _ => MessageKind::Message,
        }
    }

    /// Returns the number of the message: the first one of a publisher has 1.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns how many messages the subscriber has missed between the sample before and this one.
    #[inline]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Returns whether this is the first sample of a publisher that came after another one. [`missed`](Self::missed) counts the
    /// messages of this publisher only.
    pub fn restarted(&self) -> bool {
        self.restarted
    }

    /// Returns the metadata of the message.
    pub fn metadata(&self) -> &Metadata {
        const NONE: &Metadata = &Metadata::new();
        self.rare.as_ref().map_or(NONE, |rare| &rare.metadata)
    }

    /// Returns the length of the message in bytes. Tensors have none.
    #[inline]
    pub fn len(&self) -> usize {
        match self.body() {
            Body::Slot => self.payload.map_or(0, Payload::len),
            Body::Owned(bytes) => bytes.len(),
            Body::Block(range) => range.bytes().len(),
            Body::Tensor(_) | Body::Tensors(_) => 0,
        }
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a view of the bytes of the message. Tensors have none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the publisher has evicted this subscriber. A view that was
    /// made before shows other bytes then.
    #[inline]
    pub fn bytes(&self) -> Result<Bytes<'_>> {
        match self.body() {
            Body::Slot => {
                self.payload.map_or(Ok(Bytes::of(&[])), |payload| payload.bytes(self.sequence))
            }
            Body::Owned(bytes) => Ok(Bytes::of(bytes)),
            Body::Block(range) => {
                range.check()?;
                Ok(range.bytes())
            }
            Body::Tensor(_) | Body::Tensors(_) => Ok(Bytes::of(&[])),
        }
    }

    /// Returns a copy of the bytes of the message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the publisher has evicted this subscriber.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the allocator has no memory for it.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let copy = self.bytes()?.try_to_vec()?;
        self.check()?;
        Ok(copy)
    }

    /// Copies the bytes of the message to `to`, which has their length.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the publisher has evicted this subscriber.
    ///
    /// # Panics
    ///
    /// If `to` has another [length](Self::len).
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> Result<()> {
        if let (None, Some(payload)) = (&self.rare, self.payload) {
            return payload.copy_to(self.sequence, to);
        }
        self.bytes()?.copy_to(to);
        self.check()
    }

    /// Checks that what was read is what the publisher has sent.
    #[inline]
    fn check(&self) -> Result<()> {
        match self.body() {
            Body::Slot => self.payload.map_or(Ok(()), |payload| payload.check(self.sequence)),
            Body::Block(range) => range.check(),
            _ => Ok(()),
        }
    }

    /// Returns an iterator over the names and the tensors of the message, in order. A tensor without a name has an empty one, and
    /// a message of bytes has no tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let (single, set) = match self.body() {
            Body::Tensor(tensor) => (Some(("", tensor)), None),
            Body::Tensors(set) => (None, Some(set)),
            _ => (None, None),
        };
        single.into_iter().chain(set.into_iter().flat_map(TensorSet::iter))
    }

    /// Returns the sample without its borrow of the subscriber. It copies a message that lies in its slot. What lies in the
    /// publisher's pool stays there, and the subscriber holds it on.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::LoanRevoked`](crate::ErrorKind::LoanRevoked): the publisher has evicted this subscriber.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the allocator has no memory for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::broadcast::{PublishOptions, SubscribeOptions};
    /// # use slipring::{Address, Context};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut clock = context.publish(&address, PublishOptions::default())?;
    /// # let mut log = context.subscribe(&address, SubscribeOptions::every())?;
    /// clock.send(b"tick")?;
    /// let sample = log.recv()?.expect("a message").into_owned()?;
    /// let copy = std::thread::spawn(move || sample.to_vec()).join().unwrap()?;
    /// assert_eq!(copy, b"tick");
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn into_owned(self) -> Result<OwnedSample> {
        let copy = if matches!(self.body(), Body::Slot) { Some(self.to_vec()?) } else { None };
        let Self { rare, sequence, missed, restarted, .. } = self;
        let mut rare =
            rare.unwrap_or_else(|| Box::new(Rare { metadata: Metadata::new(), body: Body::Slot }));
        if let Some(copy) = copy {
            rare.body = Body::Owned(copy);
        }
        Ok(Sample { payload: None, rare: Some(rare), sequence, missed, restarted })
    }

    /// Takes the tensors of the message, with its metadata. A message of bytes gives an empty set.
    pub fn into_tensors(self) -> TensorSet {
        let Some(rare) = self.rare else { return TensorSet::new() };
        match *rare {
            Rare { metadata, body: Body::Tensors(mut set) } => {
                set.set_metadata(metadata);
                set
            }
            Rare { body: Body::Tensor(tensor), .. } => {
                let mut set = TensorSet::new();
                set.push(tensor);
                set
            }
            _ => TensorSet::new(),
        }
    }

    /// Takes the tensor of a message that has one.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Count`]: it has another number of tensors.
    #[inline]
    pub fn into_tensor(mut self) -> Result<Tensor> {
        if let Some(rare) = self.rare.take_if(|rare| matches!(rare.body, Body::Tensor(_)))
            && let Body::Tensor(tensor) = rare.body
        {
            return Ok(tensor);
        }
        self.into_tensor_of_set()
    }

    #[cold]
    fn into_tensor_of_set(self) -> Result<Tensor> {
        let set = self.into_tensors();
        let count = set.len();
        let mut tensors = set.into_iter();
        match (tensors.next(), count) {
            (Some((_, tensor)), 1) => Ok(tensor),
            _ => Err(TensorFault::Count { count, expected: 1 }.into()),
        }
    }
}
