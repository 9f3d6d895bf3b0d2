//! Tensors in memory of a GPU: their encoded place, and the return of their loans. No driver.
//!
//! ```text
//!   owner                                  ‖ border ‖  borrower
//!   GpuMemory ──lend──▶ GpuPlace + tickets ─────────▶  GpuLoan ──dropped──▶ both tickets go back
//! ```
//!
//! A ticket is a block of the pool that nobody reads. It is lent with the tensor and comes back as every loan
//! does, when its borrower drops it, closes, or dies. One ticket tells that the bytes are unused, the other
//! that the mapping around them is closed.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::{ExtensionSlot, LentRange, Sender};
use crate::error::{Error, GpuUuid, Result, TensorFault};
use crate::handshake::has_ended;
use crate::pool::{BorrowerId, Pool, SharedBlock, Users};

/// Bytes of a ticket: the shortest block.
const TICKET: usize = 64;

/// The alignment of a tensor's start in bytes. Kernels rely on it, because allocations have it (CUDA C++
/// Programming Guide, "Size and Alignment Requirement"). A kernel that reads from another start ends its whole
/// context.
pub(crate) const ALIGNMENT: u64 = 256;

/// The place of a tensor's bytes on a GPU, as its owner tells a borrower. `docs/wire.md` has the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GpuPlace {
    /// The GPU's UUID, as `cuDeviceGetUuid_v2` returns it.
    pub device: GpuUuid,
    /// The handle of the allocation, as `cuIpcGetMemHandle` returns it.
    pub handle: [u8; 64],
    /// The allocation's length in bytes.
    pub allocation: u64,
    /// The start in bytes from the allocation's start: a multiple of 256.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// The handle of the event after which the bytes are valid, as `cuIpcGetEventHandle` returns it.
    pub ready: [u8; 64],
    /// The handle of the event that the borrower records after its last use.
    pub done: [u8; 64],
}

/// The handles open another process's memory, so they are not shown.
impl fmt::Debug for GpuPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allocation, offset, len, .. } = self;
        let mut shown = f.debug_struct("GpuPlace");
        shown.field("allocation", allocation).field("offset", offset).field("len", len);
        shown.finish_non_exhaustive()
    }
}

impl GpuPlace {
    /// The encoded length in bytes.
    pub const LEN: usize = 16 + 64 + 3 * 8 + 2 * 64;

    /// Returns the encoded bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            let (to, behind) = std::mem::take(&mut rest).split_at_mut(field.len());
            to.copy_from_slice(field);
            rest = behind;
        };
        put(&self.device.0);
        put(&self.handle);
        for field in [self.allocation, self.offset, self.len] {
            put(&field.to_le_bytes());
        }
        put(&self.ready);
        put(&self.done);
        bytes
    }

    /// Returns the place that these bytes encode.
    ///
    /// # Errors
    ///
    /// [`TensorFault::GpuRange`]: the range is not inside of the allocation. [`TensorFault::Alignment`]: it
    /// does not start at a multiple of 256.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self> {
        Ok(Self::check(bytes)?)
    }

    fn check(bytes: &[u8; Self::LEN]) -> Result<Self, TensorFault> {
        fn take<'a, const N: usize>(left: &mut &'a [u8]) -> &'a [u8; N] {
            // `LEN` is the sum of the fields.
            let (field, rest) = left.split_first_chunk().expect("the fields make the length");
            *left = rest;
            field
        }
        let left = &mut &bytes[..];
        let (device, handle) = (GpuUuid(*take(left)), *take(left));
        let mut word = || u64::from_le_bytes(*take(left));
        let (allocation, offset, len) = (word(), word(), word());
        let (ready, done) = (*take(left), *take(left));
        if offset > allocation || len > allocation - offset {
            return Err(TensorFault::GpuRange { offset, len, allocation });
        }
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(TensorFault::Alignment { alignment: ALIGNMENT as usize });
        }
        Ok(Self { device, handle, allocation, offset, len, ready, done })
    }
}

/// Memory of a GPU that this process owns, with a tensor in it.
pub trait GpuMemory: Any + fmt::Debug + Send + Sync {
    /// Returns the length in bytes.
    fn byte_len(&self) -> usize;

    /// Returns the GPU's UUID.
    fn device(&self) -> GpuUuid;

    /// Prepares one send. A caller that does not send drops the tickets, which counts as their return.
    fn lend(self: Arc<Self>, to: &GpuBorrower<'_>) -> Result<GpuParcel>;
}

/// The parts of a tensor that is sent once.
#[derive(Debug)]
pub struct GpuParcel {
    /// Where the bytes lie.
    pub place: GpuPlace,
    /// It comes back when the bytes are unused.
    pub bytes: Ticket,
    /// It comes back when the allocation is unmapped.
    pub mapping: Ticket,
}

/// The receiver of a tensor.
pub struct GpuBorrower<'a> {
    sender: &'a Sender,
}

impl<'a> GpuBorrower<'a> {
    pub(super) fn of(sender: &'a Sender) -> Self {
        Self { sender }
    }

    /// Returns a ticket for this borrower.
    ///
    /// # Errors
    ///
    /// As [`Context::alloc`](crate::Context::alloc).
    pub fn ticket(&self) -> Result<Ticket> {
        let (account, peer) = self.sender.borrower();
        let pool = self.sender.pool().clone();
        let block = pool.alloc(TICKET)?.map_err(Error::from)?;
        // The block is new, so nobody has it on loan.
        let block = block.share().ok_or(TensorFault::Unstable)?;
        Ok(Ticket { block, pool, account, life: peer.life() })
    }
}

/// The state of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The borrower has it.
    Out,
    /// The borrower gave it back or never got it.
    Back,
    /// The borrower's process has ended.
    Dead,
}

/// A token that one borrower gives back at the end of a use.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub(super) block: SharedBlock,
    pool: Pool,
    account: BorrowerId,
    /// The borrower's process. `None` where the kernel gives no pidfd for it.
    life: Option<Arc<OwnedFd>>,
}

impl Ticket {
    /// Returns whether the ticket is for this borrower.
    pub fn is_for(&self, borrower: &GpuBorrower<'_>) -> bool {
        let sender = borrower.sender;
        sender.pool().owns_shared(&self.block) && sender.borrower().0 == self.account
    }

    /// Collects returned loans, in the process that lent them. The caller asks [`fate`](Self::fate)
    /// afterwards.
    pub fn settle<'a>(tickets: impl Iterator<Item = &'a Self>) {
        let mut looked: Vec<&Self> = Vec::new();
        for ticket in tickets {
            let is_known =
                |known: &&Self| known.account == ticket.account && known.pool.is(&ticket.pool);
            if !looked.iter().any(is_known) {
                ticket.pool.look_at(ticket.account);
                looked.push(ticket);
            }
        }
    }

    /// Returns whether the borrower's process has ended.
    pub fn has_ended(&self) -> bool {
        self.life.as_ref().is_some_and(|life| has_ended(life.as_fd()))
    }

    /// Returns the state of the ticket, if this is the last handle of the owner's.
    ///
    /// A link that has ended returns no loans: the process on the other side may still use the memory. The end
    /// of that process decides.
    pub fn fate(&mut self) -> Fate {
        match self.block.users() {
            Users::Others => Fate::Out,
            Users::Nobody => Fate::Back,
            Users::Lost if self.life.is_some() && !self.has_ended() => Fate::Out,
            Users::Lost => Fate::Dead,
        }
    }
}

/// A tensor on a GPU that a peer has lent.
#[derive(Debug)]
pub struct GpuLoan {
    /// Where the bytes lie.
    pub place: GpuPlace,
    bytes: LentRange,
    mapping: Mutex<Option<LentRange>>,
    /// Whether a view has recorded the event of the end.
    ended: Mutex<bool>,
    /// The objects of the peer that the link keeps open.
    extension: Arc<ExtensionSlot>,
}

impl GpuLoan {
    /// # Errors
    ///
    /// As [`GpuPlace::decode`].
    pub(super) fn new(
        place: &[u8; GpuPlace::LEN],
        bytes: LentRange,
        mapping: LentRange,
        extension: Arc<ExtensionSlot>,
    ) -> Result<Self, TensorFault> {
        let (place, ended) = (GpuPlace::check(place)?, Mutex::new(false));
        Ok(Self { place, bytes, mapping: Mutex::new(Some(mapping)), ended, extension })
    }

    /// Returns the objects of the peer that the link keeps open.
    pub fn extension(&self) -> &ExtensionSlot {
        &self.extension
    }

    /// Returns whether the lender's process has ended.
    pub fn lender_ended(&self) -> bool {
        self.bytes.lender_ended()
    }

    /// Returns the first namespace of these that this process and the lender do not share.
    pub fn other_namespace(&self, of: &[&'static str]) -> Option<&'static str> {
        self.bytes.lender().other_namespace(of)
    }

    /// Takes the loan of the mapping, once. Dropping it tells the owner that the mapping is closed.
    pub fn take_mapping(&self) -> Option<LentRange> {
        self.mapping.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts the loan of the mapping back, after an opening that failed.
    pub fn put_mapping(&self, mapping: Option<LentRange>) {
        *self.mapping.lock().unwrap_or_else(PoisonError::into_inner) = mapping;
    }

    /// Returns whether a view has recorded the event of the end. Views take turns.
    pub fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The origin of a tensor on a GPU.
#[derive(Debug, Clone)]
pub enum OnGpu {
    /// This process.
    Own(Arc<dyn GpuMemory>),
    /// A peer.
    Lent(Arc<GpuLoan>),
}

impl OnGpu {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(memory) => memory.byte_len(),
            // The length is checked against data type and shape, so it fits.
            Self::Lent(loan) => loan.place.len as usize,
        }
    }

    pub(super) fn device(&self) -> GpuUuid {
        match self {
            Self::Own(memory) => memory.device(),
            Self::Lent(loan) => loan.place.device,
        }
    }
}

#[cfg(test)]
mod tests;
