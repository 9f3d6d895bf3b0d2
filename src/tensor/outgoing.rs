//! The argument of a send, and the description of a message of tensors.

use std::sync::Arc;

use crate::channel::{LentRange, OutgoingAttachment, SINGLE, Sender};
use crate::error::{Error, ErrorKind, Result, TensorFault};
use crate::pool::{Block, Pool, SharedBlock};
use crate::shm::Bytes;
use crate::tensor::descriptor::{self, Descriptor, Location};
use crate::tensor::element::Element;
use crate::tensor::gpu::{
    DifferentWords, GpuBorrower, GpuLoans, GpuMemory, GpuOrder, GpuParcel, OnGpu, SharedOnGpu,
};
use crate::tensor::set::TensorSet;
use crate::tensor::shape::Shape;
use crate::tensor::view::{Named, Storage, Tensor};
use crate::tensor::writable::{TensorMut, Writable};

/// The alignment of sent memory in bytes.
pub(super) const ALIGNMENT: usize = crate::channel::ALIGNMENT as usize;

/// The longest private tensor in bytes that travels within the description. Longer ones travel through the
/// pool. A copy through the ring saves the loan and its return.
const INLINE: usize = 512;

/// A tensor to send: a `&Tensor`, which stays, or a [`Tensor`] or [`TensorMut`], which moves.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(super) tensor: Sent<'a>,
}

#[derive(Debug)]
pub(super) enum Sent<'a> {
    Kept(&'a Tensor),
    Owned(Tensor),
    /// The tensor could not be frozen.
    Failed(ErrorKind),
    /// Lent to one receiver and unusable in this process.
    Moved {
        head: Descriptor<'static>,
        block: Block,
    },
}

impl<'a> From<&'a Tensor> for Outgoing<'a> {
    #[inline]
    fn from(tensor: &'a Tensor) -> Self {
        Self { tensor: Sent::Kept(tensor) }
    }
}

impl From<Tensor> for Outgoing<'_> {
    fn from(tensor: Tensor) -> Self {
        Self { tensor: Sent::Owned(tensor) }
    }
}

impl<T: Element> From<TensorMut<T>> for Outgoing<'_> {
    #[inline]
    fn from(tensor: TensorMut<T>) -> Self {
        let TensorMut { dtype, shape, memory, element } = tensor;
        let tensor = match memory {
            Writable::Block(block) => {
                let head = Descriptor { name: "", dtype, shape, place: Location::Attached };
                Sent::Moved { head, block }
            }
            memory => match (TensorMut { dtype, shape, memory, element }).share() {
                Ok(tensor) => Sent::Owned(tensor),
                Err(error) => Sent::Failed(error.kind().clone()),
            },
        };
        Self { tensor }
    }
}

impl Outgoing<'_> {
    /// Returns a tensor that can wait for room. A borrowed tensor that is on loan from another peer is copied.
    pub(crate) fn into_owned(self) -> Outgoing<'static> {
        let tensor = match self.tensor {
            Sent::Kept(tensor) => match tensor.another() {
                Ok(tensor) => Sent::Owned(tensor),
                // The send reports it.
                Err(error) => Sent::Failed(error.kind().clone()),
            },
            Sent::Owned(tensor) => Sent::Owned(tensor),
            Sent::Failed(kind) => Sent::Failed(kind),
            Sent::Moved { head, block } => Sent::Moved { head, block },
        };
        Outgoing { tensor }
    }

    /// Returns the bytes of private memory that the tensor holds while it waits.
    pub(crate) fn private_len(&self) -> usize {
        match &self.tensor {
            Sent::Kept(tensor) if tensor.is_loaned() => tensor.byte_len(),
            Sent::Kept(tensor) => tensor.private_len(),
            Sent::Owned(tensor) => tensor.private_len(),
            Sent::Failed(_) | Sent::Moved { .. } => 0,
        }
    }
}

impl Outgoing<'_> {
    /// Returns the bytes of this process's pool that the tensor keeps while it waits.
    pub(crate) fn pool_len(&self) -> usize {
        match &self.tensor {
            Sent::Kept(tensor) => tensor.pool_len(),
            Sent::Owned(tensor) => tensor.pool_len(),
            Sent::Failed(_) => 0,
            Sent::Moved { block, .. } => block.block_len() as usize,
        }
    }

    /// Takes the block of a tensor in `pool` that has a [short description](descriptor::to_words) of at most so many bytes, as
    /// nearly every tensor. Returns it with the words of the description and their length in bytes. `None` leaves the tensor as
    /// it is.
    pub(crate) fn take_single(
        &mut self,
        pool: &Pool,
        most: usize,
    ) -> Option<(SharedBlock, [u64; SINGLE], usize)> {
        let short = |dtype, shape: &Shape| {
            descriptor::to_words(dtype, shape).filter(|(_, len)| *len <= most)
        };
        let tensor: &Tensor = match &mut self.tensor {
            Sent::Moved { head, block } if pool.owns(block) => {
                let (words, len) = short(head.dtype, &head.shape)?;
                return Some((std::mem::replace(block, Block::empty()).share()?, words, len));
            }
            Sent::Kept(tensor) => tensor,
            Sent::Owned(tensor) => tensor,
            _ => return None,
        };
        let Storage::Shared(block) = &tensor.storage else { return None };
        let (words, len) = short(tensor.dtype, &tensor.shape)?;
        pool.owns_shared(block).then(|| (block.clone(), words, len))
    }

    /// Describes the tensor for any number of receivers, which read it in blocks of `pool`.
    pub(crate) fn describe_for_all(&mut self, pool: &Pool) -> Result<Described<'_>> {
        let mut described = Described::default();
        match &mut self.tensor {
            Sent::Kept(tensor) => described.add_for_all(pool, "", tensor)?,
            Sent::Owned(tensor) => described.add_for_all(pool, "", tensor)?,
            Sent::Failed(kind) => return Err(kind.clone().into()),
            Sent::Moved { head, block } => {
                if pool.owns(block) {
                    described.add_block(head, block)?;
                } else {
                    described.add_copy(*head, Bytes::of(block.bytes()), None)?;
                }
            }
        }
        Ok(described)
    }
}

impl TensorSet {
    /// Describes the set for any number of receivers, as [`Outgoing::describe_for_all`] does.
    pub(crate) fn describe_for_all(&self, pool: &Pool) -> Result<Described<'_>> {
        let mut described = Described::default();
        for (name, tensor) in self.iter() {
            described.add_for_all(pool, name, tensor)?;
        }
        Ok(described)
    }
}

impl Descriptor<'static> {
    /// Returns the descriptor of a tensor, attached and without a name.
    #[inline]
    pub(super) fn of(tensor: &Tensor) -> Self {
        let Tensor { dtype, shape, .. } = *tensor;
        Self { name: "", dtype, shape, place: Location::Attached }
    }
}

/// The description of a set and its attachments.
#[derive(Default)]
pub(crate) struct Described<'a> {
    pub(crate) description: Vec<u8>,
    pub(crate) attachments: Vec<OutgoingAttachment<'a>>,
    /// Tensors in memory of a GPU: ordered by events, by words, synchronized.
    gpu: [u64; 3],
    /// What those of one link share.
    shared: SharedOnGpu,
    words: DifferentWords,
    /// The number of tensors.
    count: u32,
}

impl<'a> Described<'a> {
    /// Returns the attachment of a tensor that is sent without a copy. Returns `None` if it must be copied.
    #[inline]
    pub(super) fn attachment(pool: &Pool, tensor: &'a Tensor) -> Option<OutgoingAttachment<'a>> {
        match &tensor.storage {
            Storage::Shared(block) if pool.owns_shared(block) => {
                Some(OutgoingAttachment::Shared(block))
            }
            Storage::Frozen { memory, offset, len } if offset.is_multiple_of(ALIGNMENT) => {
                Some(OutgoingAttachment::Frozen { memory, offset: *offset, len: *len })
            }
            _ => None,
        }
    }

    /// Adds a block that moves to the receiver.
    pub(super) fn add_block(&mut self, head: &Descriptor<'_>, block: &'a mut Block) -> Result<()> {
        self.attachments.push(OutgoingAttachment::Block(block));
        self.describe(head)
    }

    /// Adds a tensor for the peer of a link.
    pub(super) fn add(&mut self, sender: &Sender, name: &str, tensor: &'a Tensor) -> Result<()> {
        let (mut shared, index) = (std::mem::take(&mut self.shared), self.count);
        let added = self.add_from(sender.pool(), name, tensor, |memory| {
            memory.clone().lend(&mut GpuBorrower::of(sender, &mut shared, index))
        });
        self.shared = shared;
        added
    }

    /// Adds a tensor for anybody. Memory of a GPU is lent to one peer, and so refused.
    pub(super) fn add_for_all(
        &mut self,
        pool: &Pool,
        name: &str,
        tensor: &'a Tensor,
    ) -> Result<()> {
        self.add_from(pool, name, tensor, |_| Err(TensorFault::OnGpu.into()))
    }

    fn add_from(
        &mut self,
        pool: &Pool,
        name: &str,
        tensor: &'a Tensor,
        lend: impl FnOnce(&Arc<dyn GpuMemory>) -> Result<GpuParcel>,
    ) -> Result<()> {
        let head = Descriptor { name, ..Descriptor::of(tensor) };
        match Self::attachment(pool, tensor) {
            Some(attachment) => {
                self.attachments.push(attachment);
                self.describe(&head)
            }
            None => match &tensor.storage {
                Storage::Region(lease) => {
                    let (name, offset, len) = (lease.name(), lease.offset(), lease.len());
                    self.describe(&Descriptor {
                        place: Location::Region { name, offset, len },
                        ..head
                    })
                }
                Storage::Named(Named { name, offset, len }) => {
                    let place = Location::Region { name, offset: *offset, len: *len };
                    self.describe(&Descriptor { place, ..head })
                }
                Storage::Gpu(OnGpu::Own(memory)) => {
                    let GpuParcel { place, loans } = lend(memory)?;
                    self.gpu[match place.order {
                        GpuOrder::Events { .. } => 0,
                        GpuOrder::Word { .. } => 1,
                        GpuOrder::Synchronized => 2,
                    }] += 1;
                    let of = match loans {
                        GpuLoans::Of(of) => of,
                        GpuLoans::Own { .. } => self.count,
                    };
                    self.words.add(of, &place.order)?;
                    match loans {
                        GpuLoans::Own { bytes, mapping, allocation } => {
                            let (bytes, mapping) = (bytes.block, mapping.block);
                            self.attachments.extend([
                                OutgoingAttachment::Ticket { block: bytes, allocation },
                                OutgoingAttachment::Ticket { block: mapping, allocation: None },
                            ]);
                            let place = place.encode();
                            self.describe(&Descriptor { place: Location::Gpu(&place), ..head })
                        }
                        GpuLoans::Of(of) => {
                            let part = &place.encode_part();
                            let place = Location::GpuPart { of, part };
                            self.describe(&Descriptor { place, ..head })
                        }
                    }
                }
                Storage::Gpu(OnGpu::Lent(_)) => Err(TensorFault::GpuLoan.into()),
                Storage::Lent(range) => self.add_copy(head, range.bytes(), Some(range)),
                _ => self.add_copy(head, tensor.bytes()?, None),
            },
        }
    }

    /// Adds bytes by a copy, into the description or into a block. `lender` is the loan that they belong to.
    pub(super) fn add_copy(
        &mut self,
        head: Descriptor<'_>,
        bytes: Bytes<'a>,
        lender: Option<&'a LentRange>,
    ) -> Result<()> {
        if bytes.len() > INLINE {
            self.attachments.push(OutgoingAttachment::copy_of(bytes, lender));
            return self.describe(&head);
        }
        let mut inline = [0; INLINE];
        let inline = &mut inline[..bytes.len()];
        bytes.copy_to(inline);
        lender.map_or(Ok(()), LentRange::check)?;
        self.describe(&Descriptor { place: Location::Inline(inline), ..head })
    }

    /// Returns how many tensors in memory of a GPU are ordered by events, by words, and synchronized.
    pub(super) fn gpu(&self) -> [u64; 3] {
        self.gpu
    }

    fn describe(&mut self, head: &Descriptor<'_>) -> Result<()> {
        let at = self.description.len();
        self.description.resize(at + head.encoded_len(), 0);
        head.encode_to(&mut self.description[at..]).map_err(Error::from)?;
        self.count += 1;
        Ok(())
    }
}
