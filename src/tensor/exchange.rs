//! Tensors over a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::{
    Attachment, Claims, Envelope, KeptMessage, LentRange, Metadata, OutgoingAttachment,
    PLAIN_TENSORS, Received, Receiver, SINGLE, Sender,
};
use crate::error::{Error, ErrorKind, Fault, Result, TensorFault, TryRecvError, TrySendError};
use crate::patience::{RecvPatience, SendPatience};
use crate::pool::{Block, BorrowerId, Pool, Promise};
use crate::shm::Bytes;
use crate::tensor::descriptor::{self, Descriptor, Location};
use crate::tensor::dtype::DType;
use crate::tensor::gpu::{DifferentWords, GpuLoan, OnGpu};
use crate::tensor::outgoing::{Described, Outgoing, Sent};
use crate::tensor::set::TensorSet;
use crate::tensor::shape::Shape;
use crate::tensor::view::{Named, Private, Storage, Tensor};
use crate::tensor::writable::{TensorMut, Writable};

/// The most tensors of one message. Part of the wire format: a mixture of experts of 30 billion parameters has 19,500.
pub(crate) const TENSORS: usize = 1 << 15;

/// The longest description in bytes that is encoded on the stack.
const SHORT: usize = 64;

impl Sender {
    /// Sends a tensor: hands its memory over and wakes the receiver if it sleeps. A
    /// [`TensorMut`](crate::TensorMut) or a [`Tensor`] moves. A `&Tensor` stays, and can be sent once more or to
    /// other peers. The memory comes back when every receiver has dropped it, closed, or died.
    ///
    /// The call copies a tensor that is private, on loan from another peer, or of another context's pool. It
    /// hands over every other tensor without a copy. It waits for room as [`send`](Self::send) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context};
    /// # let address = Address::fresh();
    /// # let context = Context::new()?;
    /// # let mut listener = context.listen(&address)?;
    /// # let worker = std::thread::spawn(move || -> slipring::Result<()> {
    /// #     let mut link = listener.accept()?;
    /// if let Some(image) = link.recv_tensor()? {
    ///     assert_eq!(image.shape().dims(), [1, 3, 224, 224]);
    ///     assert_eq!(image.to_vec::<f32>()?[0], 0.5);
    /// }
    /// #     Ok(())
    /// # });
    /// # let mut link = context.connect(&address)?;
    /// let mut image = context.alloc::<f32>([1, 3, 224, 224])?;
    /// image.fill(0.5);
    /// link.send_tensor(image)?;
    /// # worker.join().unwrap()?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[inline]
    pub fn send_tensor<'a>(&mut self, tensor: impl Into<Outgoing<'a>>) -> Result<()> {
        self.put_tensor(&mut tensor.into(), SendPatience::Default).map_err(into_send_error)
    }

    /// Sends a tensor as [`send_tensor`](Self::send_tensor) does. It waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_tensor_deadline<'a>(
        &mut self,
        tensor: impl Into<Outgoing<'a>>,
        deadline: Instant,
    ) -> Result<()> {
        self.put_tensor(&mut tensor.into(), SendPatience::Until(deadline)).map_err(into_send_error)
    }

    /// Sends a tensor as [`send_tensor`](Self::send_tensor) does. It does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    #[inline]
    pub fn try_send_tensor(&mut self, tensor: &Tensor) -> Result<(), TrySendError> {
        self.put_tensor(&mut tensor.into(), SendPatience::None)
    }

    /// Sends a tensor with metadata, as [`send_tensor`](Self::send_tensor) does.
    /// [`Receiver::recv_tensors`](crate::Receiver::recv_tensors) returns a set that has both. A receiver that calls
    /// [`recv_tensor`](crate::Receiver::recv_tensor) gets the tensor alone.
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
    /// use slipring::message::Value;
    /// use slipring::meta;
    ///
    /// let frame = context.alloc::<u8>([1080, 1920, 3])?;
    /// near.sender().send_tensor_with(frame, &meta! { "frame" => 7, "camera" => "left" }?)?;
    ///
    /// let frames = far.receiver().recv_tensors()?.expect("a frame");
    /// assert_eq!(frames.metadata().get("frame"), Some(Value::Integer(7)));
    /// assert_eq!(frames.at(0).unwrap().shape().dims(), [1080, 1920, 3]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_tensor_with<'a>(
        &mut self,
        tensor: impl Into<Outgoing<'a>>,
        metadata: &Metadata,
    ) -> Result<()> {
        let mut tensor = tensor.into();
        self.put_tensor_with(&mut tensor, metadata, SendPatience::Default).map_err(into_send_error)
    }

    /// As [`send_tensor_with`](Self::send_tensor_with), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_send_tensor_with(
        &mut self,
        tensor: &Tensor,
        metadata: &Metadata,
    ) -> Result<(), TrySendError> {
        self.put_tensor_with(&mut tensor.into(), metadata, SendPatience::None)
    }

    /// Sends a set of tensors in one message, with the metadata of the set, as [`send_tensor`](Self::send_tensor) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context, Tensor, TensorSet};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// # let mut far = far.join().unwrap()?;
    /// let mut inputs = TensorSet::new();
    /// inputs.insert("ids", Tensor::from_slice([1, 3], &[7i64, 8, 9])?)?;
    /// near.sender().send_tensors(&inputs)?;
    /// let inputs = far.receiver().recv_tensors()?.unwrap();
    /// assert_eq!(inputs["ids"].to_vec::<i64>()?, [7, 8, 9]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Count`]: more than 255 of them lie in pools, more than the peer has
    ///   [slots](crate::Options::loan_slots) for, or more than 32,768 are in the set. Tensors of one allocation of a GPU
    ///   count as two, however many they are. Names and shapes that do not fit into the ring or into 1 MiB lie in a pool,
    ///   and then one tensor less can.
    /// - [`TensorFault::Words`]: tensors of a GPU have more than 4096 different words to wait for. Parts of one tensor have one.
    /// - [`ErrorKind::MessageTooLarge`]: names and shapes take more than 4 MiB.
    /// - Otherwise as [`send`](Self::send).
    pub fn send_tensors(&mut self, tensors: &TensorSet) -> Result<()> {
        self.put_tensors(PLAIN_TENSORS, tensors, SendPatience::Default).map_err(into_send_error)
    }

    /// Sends a set as [`send_tensors`](Self::send_tensors) does. It waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send_tensors`](Self::send_tensors).
    pub fn send_tensors_deadline(&mut self, tensors: &TensorSet, deadline: Instant) -> Result<()> {
        let patience = SendPatience::Until(deadline);
        self.put_tensors(PLAIN_TENSORS, tensors, patience).map_err(into_send_error)
    }

    /// Sends a set as [`send_tensors`](Self::send_tensors) does. It does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_send_tensors(&mut self, tensors: &TensorSet) -> Result<(), TrySendError> {
        self.put_tensors(PLAIN_TENSORS, tensors, SendPatience::None)
    }

    /// Sends a tensor as [`send_tensor`](Self::send_tensor) does. It does not wait, and leaves `tensor`
    /// unchanged if there is no room.
    #[inline]
    pub(crate) fn try_put_tensor(&mut self, tensor: &mut Outgoing<'_>) -> Result<(), TrySendError> {
        self.put_tensor(tensor, SendPatience::None)
    }

    /// Sends a tensor as [`send_tensor`](Self::send_tensor) does. If it fails, the tensor stays with the caller.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    #[doc(hidden)]
    #[inline]
    pub fn put_tensor(
        &mut self,
        tensor: &mut Outgoing<'_>,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        match &mut tensor.tensor {
            Sent::Kept(tensor) => self.put_kept(tensor, patience),
            Sent::Owned(tensor) => self.put_kept(tensor, patience),
            Sent::Failed(kind) => Err(Error::from(kind.clone()).into()),
            Sent::Moved { head, block } => self.put_moved(head.dtype, &head.shape, block, patience),
        }
    }

    /// Sends a tensor that is being written, as [`put_tensor`](Self::put_tensor) does one that moves. If it fails, the tensor is
    /// as it was, unless it was published before: then it has no memory any more. Returns `None`, and sends nothing, if the tensor is to be frozen or has no bytes.
    #[doc(hidden)]
    #[inline]
    pub fn put_writable(
        &mut self,
        tensor: &mut TensorMut,
        patience: SendPatience,
    ) -> Option<Result<(), TrySendError>> {
        let TensorMut { dtype, shape, memory: Writable::Block(block), .. } = tensor else {
            return None;
        };
        Some(self.put_moved(*dtype, shape, block, patience))
    }

    /// Sends a block that one receiver gets.
    #[inline]
    fn put_moved(
        &mut self,
        dtype: DType,
        shape: &Shape,
        block: &mut Block,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let head = || Descriptor { name: "", dtype, shape: *shape, place: Location::Attached };
        if !self.pool().owns(block) {
            let mut described = Described::default();
            described.add_copy(head(), Bytes::of(block.bytes()), None)?;
            return self.put_described(PLAIN_TENSORS, described, patience);
        }
        if let Some(place) = block.place() {
            let place = (place, block.len(), block.block_len());
            let enter = |pool: &Pool, to, promise, revoke: &dyn Fn()| {
                pool.enter(block, to, promise, revoke)
            };
            if self.put_single(dtype, shape, place, enter)? {
                return Ok(());
            }
        }
        self.put_one(&head(), OutgoingAttachment::Block(block), patience)
    }

    #[cold]
    fn put_tensor_with(
        &mut self,
        tensor: &mut Outgoing<'_>,
        metadata: &Metadata,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let mut described = Described::default();
        match &mut tensor.tensor {
            Sent::Kept(tensor) => described.add(self, "", tensor)?,
            Sent::Owned(tensor) => described.add(self, "", tensor)?,
            Sent::Failed(kind) => return Err(Error::from(kind.clone()).into()),
            Sent::Moved { head, block } => {
                if self.pool().owns(block) {
                    described.add_block(head, block)?;
                } else {
                    described.add_copy(*head, Bytes::of(block.bytes()), None)?;
                }
            }
        }
        self.put_described(PLAIN_TENSORS.with(metadata), described, patience)
    }

    #[inline]
    fn put_kept(&mut self, tensor: &Tensor, patience: SendPatience) -> Result<(), TrySendError> {
        if let Storage::Shared(block) = &tensor.storage
            && self.pool().owns_shared(block)
        {
            let enter = |pool: &Pool, to, promise, revoke: &dyn Fn()| {
                pool.enter_shared(block, to, promise, revoke)
            };
            let place = (block.place(), block.len(), block.block_len());
            if self.put_single(tensor.dtype, &tensor.shape, place, enter)? {
                return Ok(());
            }
        }
        let Some(attachment) = Described::attachment(self.pool(), tensor) else {
            let mut described = Described::default();
            described.add(self, "", tensor)?;
            return self.put_described(PLAIN_TENSORS, described, patience);
        };
        self.put_one(&Descriptor::of(tensor), attachment, patience)
    }

    /// Sends a tensor by the shortest path, which serves nearly every tensor. Returns `false` if this one
    /// needs another path.
    #[inline(always)]
    fn put_single(
        &mut self,
        dtype: DType,
        shape: &Shape,
        place: ((u32, u64), usize, u64),
        enter: impl FnOnce(&Pool, BorrowerId, Promise, &dyn Fn()) -> Option<Promise>,
    ) -> Result<bool, TrySendError> {
        match descriptor::to_words(dtype, shape) {
            Some((words, len)) => self.try_post_single(place, enter, words, len),
            None => Ok(false),
        }
    }

    #[cold]
    fn put_one(
        &mut self,
        head: &Descriptor<'_>,
        attachment: OutgoingAttachment<'_>,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let mut description = [0; SHORT + 8];
        let description = &mut description[..head.encoded_len()];
        head.encode_to(description).map_err(Error::from)?;
        self.post(PLAIN_TENSORS, &mut [attachment], description, patience)
    }

    pub(super) fn put_tensors(
        &mut self,
        envelope: Envelope<'_>,
        tensors: &TensorSet,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        self.put_tensors_with(envelope, tensors, tensors.metadata(), patience)
    }

    /// Sends tensors with other metadata than the set's.
    pub(super) fn put_tensors_with(
        &mut self,
        envelope: Envelope<'_>,
        tensors: &TensorSet,
        metadata: &Metadata,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let count = tensors.len();
        if count > TENSORS {
            return Err(Error::from(TensorFault::Count { count, expected: TENSORS }).into());
        }
        let mut described = Described::default();
        for (name, tensor) in tensors.iter() {
            described.add(self, name, tensor)?;
        }
        self.put_described(envelope.with(metadata), described, patience)
    }

    fn put_described(
        &mut self,
        envelope: Envelope<'_>,
        mut described: Described<'_>,
        patience: SendPatience,
    ) -> Result<(), TrySendError> {
        let gpu = described.gpu();
        let Described { description, attachments, .. } = &mut described;
        if self.is_in_ring(envelope, attachments.len(), description.len()) {
            self.post(envelope, attachments, description, patience)?;
        } else {
            let Described { description, attachments, .. } = described;
            self.post_long(envelope, attachments, &description, patience)?;
        }
        self.count_gpu(gpu);
        Ok(())
    }
}

impl Receiver {
    /// Receives the next tensor. Returns `None` if the peer has closed in order. It waits as
    /// [`recv`](Self::recv) does. Metadata of the message is dropped: [`recv_tensors`](Self::recv_tensors) returns it.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OtherKind`]: the next message has no tensors. It stays the next one.
    /// - [`TensorFault::Count`]: the next message has another number of tensors than one. It is dropped.
    /// - Otherwise as [`recv`](Self::recv).
    #[inline(always)]
    pub fn recv_tensor(&mut self) -> Result<Option<Tensor>> {
        match self.take_single_tensor(RecvPatience::Forever) {
            Ok(Some((dtype, shape, range))) => {
                Ok(Some(Tensor { dtype, shape, storage: Storage::Lent(range) }))
            }
            Ok(None) => self.take_tensor(RecvPatience::Forever).map_err(into_recv_error),
            Err(error) => Err(into_recv_error(error)),
        }
    }

    /// Receives a tensor as [`recv_tensor`](Self::recv_tensor) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv_tensor`](Self::recv_tensor).
    pub fn recv_tensor_deadline(&mut self, deadline: Instant) -> Result<Option<Tensor>> {
        match self.take_single_tensor(RecvPatience::Until(deadline)) {
            Ok(Some((dtype, shape, range))) => {
                Ok(Some(Tensor { dtype, shape, storage: Storage::Lent(range) }))
            }
            Ok(None) => self.take_tensor(RecvPatience::Until(deadline)).map_err(into_recv_error),
            Err(error) => Err(into_recv_error(error)),
        }
    }

    /// Receives a tensor as [`recv_tensor`](Self::recv_tensor) does. It does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv) and [`recv_tensor`](Self::recv_tensor).
    #[inline]
    pub fn try_recv_tensor(&mut self) -> Result<Option<Tensor>, TryRecvError> {
        if let Some((dtype, shape, range)) = self.take_single_tensor(RecvPatience::None)? {
            return Ok(Some(Tensor { dtype, shape, storage: Storage::Lent(range) }));
        }
        self.take_tensor(RecvPatience::None)
    }

    /// Receives the tensors of the next message, with its metadata. Returns `None` if the peer has closed in order. It waits as
    /// [`recv`](Self::recv) does.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OtherKind`]: the next message has no tensors. It stays the next one.
    /// - Otherwise as [`recv`](Self::recv).
    pub fn recv_tensors(&mut self) -> Result<Option<TensorSet>> {
        self.open_tensors(RecvPatience::Forever, open_set).map_err(into_recv_error)
    }

    /// Receives a set as [`recv_tensors`](Self::recv_tensors) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_tensors_deadline(&mut self, deadline: Instant) -> Result<Option<TensorSet>> {
        self.open_tensors(RecvPatience::Until(deadline), open_set).map_err(into_recv_error)
    }

    /// Receives a set as [`recv_tensors`](Self::recv_tensors) does. It does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    pub fn try_recv_tensors(&mut self) -> Result<Option<TensorSet>, TryRecvError> {
        self.open_tensors(RecvPatience::None, open_set)
    }

    /// Returns the tensors of a message that was set aside. If they are impossible the link ends.
    pub(crate) fn open_set_of(&mut self, kept: KeptMessage) -> Result<TensorSet> {
        self.open_kept(kept, open_set)
    }

    /// Receives a tensor by the shortest path, which serves nearly every tensor. Returns `None` if this one
    /// needs another path. The caller builds the tensor in its final place: a move through each return value
    /// would cost more than the checks here.
    #[inline(always)]
    fn take_single_tensor(
        &mut self,
        patience: RecvPatience,
    ) -> Result<Option<(DType, Shape, LentRange)>, TryRecvError> {
        let Some(single) = self.single(patience)? else { return Ok(None) };
        let Some((dtype, shape)) =
            descriptor::of_words(single.description, single.len, single.loan_len())
        else {
            self.leave_single(single);
            return Ok(None);
        };
        Ok(self.take_single(single).map(|range| (dtype, shape, range)))
    }

    #[cold]
    fn take_tensor(&mut self, patience: RecvPatience) -> Result<Option<Tensor>, TryRecvError> {
        let mut tensor = None;
        match self.open_tensors(patience, |description, claims| {
            open_one(description, claims, &mut tensor)
        })? {
            Some(1) | None => Ok(tensor),
            Some(count) => Err(Error::from(TensorFault::Count { count, expected: 1 }).into()),
        }
    }
}

impl Received<'_> {
    /// Takes the tensors of a message of kind [`Tensors`](crate::message::MessageKind::Tensors) and releases
    /// the message. A message of another kind gives an empty set.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn into_tensors(self) -> Result<TensorSet> {
        Ok(self.open(open_set)?.unwrap_or_default())
    }
}

/// The data type and the shape of a tensor that comes alone, without its memory.
pub(crate) struct SingleTensor {
    dtype: DType,
    shape: Shape,
}

impl SingleTensor {
    /// Decodes a description of `len` bytes, in little-endian words, of a tensor whose memory has `loan` bytes. Returns `None` if
    /// the description has another form or is impossible.
    #[inline]
    pub(crate) fn decode(words: [u64; SINGLE], len: usize, loan: u64) -> Option<Self> {
        let (dtype, shape) = descriptor::of_words(words, len, loan)?;
        Some(Self { dtype, shape })
    }

    /// Returns the tensor, whose memory is on loan.
    #[inline]
    pub(crate) fn on_loan(self, range: LentRange) -> Tensor {
        Tensor { dtype: self.dtype, shape: self.shape, storage: Storage::Lent(range) }
    }
}

/// Returns the number of tensors of a message and writes the first one to `tensor`, its final place: a move
/// through each return value would cost more than the decoding.
#[inline]
fn open_one(
    description: &[u8],
    claims: &mut Claims<'_>,
    tensor: &mut Option<Tensor>,
) -> Result<usize> {
    if description.is_empty() {
        return Ok(0);
    }
    let (head, rest) = Descriptor::decode_at(description, 0).map_err(Fault::Tensor)?;
    if !rest.is_empty() {
        return Ok(open_set(description, claims)?.len());
    }
    let storage = storage_of(&head, claims, &mut Lenders::default(), 0)?;
    *tensor = Some(Tensor { dtype: head.dtype, shape: head.shape, storage });
    Ok(1)
}

/// The tensors on a GPU of one message that have loans of their own, by their index, and the words that order them and others.
#[derive(Default)]
struct Lenders {
    loans: Vec<(usize, Arc<GpuLoan>)>,
    words: DifferentWords,
}

pub(crate) fn open_set(description: &[u8], claims: &mut Claims<'_>) -> Result<TensorSet> {
    let mut set = TensorSet::with_capacity(claims.left());
    set.set_metadata(claims.take_metadata());
    let (mut left, mut lenders) = (description, Lenders::default());
    while !left.is_empty() {
        let index = set.len();
        if index == TENSORS {
            let fault = TensorFault::Count { count: index + 1, expected: TENSORS };
            return Err(Fault::Tensor(fault).into());
        }
        let (head, rest) = Descriptor::decode_at(left, index).map_err(Fault::Tensor)?;
        let storage = storage_of(&head, claims, &mut lenders, index)?;
        let tensor = Tensor { dtype: head.dtype, shape: head.shape, storage };
        set.try_insert(head.name, tensor).map_err(Fault::Tensor)?;
        left = rest;
    }
    Ok(set)
}

/// Returns the storage of a tensor, checked against its description.
#[inline]
fn storage_of(
    head: &Descriptor<'_>,
    claims: &mut Claims<'_>,
    lenders: &mut Lenders,
    index: usize,
) -> Result<Storage> {
    Ok(match head.place {
        Location::Attached => {
            let attachment = claims.claim()?;
            head.check_len(attachment.len()).map_err(Fault::Tensor)?;
            match attachment {
                Attachment::Lent(range) => Storage::Lent(range),
                Attachment::Frozen { memory, offset, len } => {
                    Storage::Frozen { memory, offset, len }
                }
            }
        }
        Location::Inline(bytes) => {
            head.check_len(bytes.len()).map_err(Fault::Tensor)?;
            Storage::Private(Private::copy_of(Bytes::of(bytes))?)
        }
        Location::Region { name, offset, len } => {
            let whole = usize::try_from(len).map_err(|_| Fault::Tensor(TensorFault::Overflow))?;
            head.check_len(whole).map_err(Fault::Tensor)?;
            Storage::Named(Named { name: name.into(), offset, len })
        }
        Location::Gpu(place) => {
            let (bytes, mapping) = (claims.claim()?, claims.claim()?);
            let (Attachment::Lent(bytes), Attachment::Lent(mapping)) = (bytes, mapping) else {
                return Err(Fault::Tensor(TensorFault::Unstable).into());
            };
            let loan = Arc::new(GpuLoan::new(place, bytes, mapping, claims.extension())?);
            lenders.loans.push((index, loan.clone()));
            lenders.words.add(index as u32, &loan.place.order).map_err(Fault::Tensor)?;
            on_gpu(head, loan)?
        }
        Location::GpuPart { of, part } => {
            let Lenders { loans, words } = lenders;
            let lender = loans.binary_search_by_key(&(of as usize), |(index, _)| *index);
            let unknown = TensorFault::Field { field: "tensor.of", value: of.into() };
            let at = lender.map_err(|_| Fault::Tensor(unknown))?;
            let loan = loans[at].1.part(part).map_err(Fault::Tensor)?;
            words.add(of, &loan.place.order).map_err(Fault::Tensor)?;
            on_gpu(head, Arc::new(loan))?
        }
    })
}

/// Returns the storage of a tensor on a GPU, checked against its description.
fn on_gpu(head: &Descriptor<'_>, loan: Arc<GpuLoan>) -> Result<Storage> {
    let len = usize::try_from(loan.place.len).map_err(|_| Fault::Tensor(TensorFault::Overflow))?;
    head.check_len(len).map_err(Fault::Tensor)?;
    Ok(Storage::Gpu(OnGpu::Lent(loan)))
}

/// Returns the error of an operation that waited for room.
pub(super) fn into_send_error(error: TrySendError) -> Error {
    match error {
        TrySendError::Failed(error) => error.waiting_for_room(),
        // An operation that waits ends at its deadline instead.
        TrySendError::Full { .. } => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
    }
}

/// Returns the error of an operation that waited for a message.
pub(super) fn into_recv_error(error: TryRecvError) -> Error {
    match error {
        TryRecvError::Failed(error) => error,
        TryRecvError::Empty => ErrorKind::TimedOut { after: Duration::ZERO }.into(),
    }
}

#[cfg(test)]
mod tests;
