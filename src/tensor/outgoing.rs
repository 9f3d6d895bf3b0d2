//! What is given to be sent, and what of it travels.

use crate::error::{Error, ErrorKind, Result, TensorFault};
use crate::pool::{Block, Pool};
use crate::shm::Bytes;
use crate::tensor::descriptor::{Descriptor, Location};
use crate::tensor::element::Element;
use crate::tensor::gpu::{GpuBorrower, OnGpu};
use crate::tensor::view::{Named, Storage, Tensor};
use crate::tensor::writable::{TensorMut, Writable};
use crate::transport::{Enclosure, Sender};

/// What the start of memory that is sent is a multiple of, in bytes.
pub(super) const ALIGNMENT: usize = crate::transport::ALIGNMENT as usize;

/// Private bytes up to so many travel with the description, longer ones through the pool. A copy through
/// the ring saves the loan and its return.
const INLINE: usize = 512;

/// A tensor that is to be sent: a `&Tensor`, which stays; a [`Tensor`], or a [`TensorMut`], which moves.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(super) tensor: Sent<'a>,
}

#[derive(Debug)]
pub(super) enum Sent<'a> {
    Kept(&'a Tensor),
    Owned(Tensor),
    /// It could not be frozen.
    Failed(ErrorKind),
    /// To be lent to one receiver, and gone here.
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
    /// As it waits for room, for as long as that takes. What is only borrowed here and on loan from
    /// another peer is copied.
    pub(crate) fn into_owned(self) -> Outgoing<'static> {
        let tensor = match self.tensor {
            Sent::Kept(tensor) => Sent::Owned(tensor.another()),
            Sent::Owned(tensor) => Sent::Owned(tensor),
            Sent::Failed(kind) => Sent::Failed(kind),
            Sent::Moved { head, block } => Sent::Moved { head, block },
        };
        Outgoing { tensor }
    }

    /// Bytes of private memory that it holds while it waits.
    pub(crate) fn private_len(&self) -> usize {
        match &self.tensor {
            Sent::Kept(tensor) if tensor.is_loaned() => tensor.byte_len(),
            Sent::Kept(tensor) => tensor.private_len(),
            Sent::Owned(tensor) => tensor.private_len(),
            Sent::Failed(_) | Sent::Moved { .. } => 0,
        }
    }
}

impl Descriptor<'static> {
    /// A tensor's, as an attachment without a name.
    #[inline]
    pub(super) fn of(tensor: &Tensor) -> Self {
        let Tensor { dtype, shape, .. } = *tensor;
        Self { name: "", dtype, shape, place: Location::Attached }
    }
}

/// A set's description, and what goes with it.
#[derive(Default)]
pub(super) struct Described<'a> {
    pub(super) description: Vec<u8>,
    pub(super) enclosures: Vec<Enclosure<'a>>,
}

impl<'a> Described<'a> {
    /// What is handed over as it is. `None`: it has to be copied.
    #[inline]
    pub(super) fn enclosure(pool: &Pool, tensor: &'a Tensor) -> Option<Enclosure<'a>> {
        match &tensor.storage {
            Storage::Shared(block) if block.is_of(pool) => Some(Enclosure::Shared(block)),
            Storage::Frozen { memory, offset, len } if offset.is_multiple_of(ALIGNMENT) => {
                Some(Enclosure::Frozen { memory, offset: *offset, len: *len })
            }
            _ => None,
        }
    }

    pub(super) fn add(&mut self, sender: &Sender, name: &str, tensor: &'a Tensor) -> Result<()> {
        let head = Descriptor { name, ..Descriptor::of(tensor) };
        match Self::enclosure(sender.pool(), tensor) {
            Some(enclosure) => {
                self.enclosures.push(enclosure);
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
                    let parcel = memory.clone().lend(&GpuBorrower::of(sender))?;
                    let tickets = [parcel.bytes, parcel.mapping];
                    self.enclosures.extend(tickets.map(|ticket| Enclosure::Ticket(ticket.block)));
                    self.describe(&Descriptor { place: Location::Gpu(&parcel.place.encode()), ..head })
                }
                Storage::Gpu(OnGpu::Lent(_)) => Err(TensorFault::GpuLoan.into()),
                _ => self.add_copy(head, tensor.bytes()?),
            },
        }
    }

    /// Adds bytes that are copied, into the description or into a block.
    pub(super) fn add_copy(&mut self, head: Descriptor<'_>, bytes: Bytes<'a>) -> Result<()> {
        if bytes.len() > INLINE {
            self.enclosures.push(Enclosure::copy_of(bytes));
            return self.describe(&head);
        }
        let mut inline = [0; INLINE];
        let inline = &mut inline[..bytes.len()];
        bytes.copy_to(inline);
        self.describe(&Descriptor { place: Location::Inline(inline), ..head })
    }

    fn describe(&mut self, head: &Descriptor<'_>) -> Result<()> {
        let at = self.description.len();
        self.description.resize(at + head.encoded_len(), 0);
        head.encode_to(&mut self.description[at..]).map_err(Error::from)?;
        Ok(())
    }
}
