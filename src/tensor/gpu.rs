//! Tensors in memory of a GPU: their encoded place, and the return of their loans. No driver.
//!
//! ```text
//!   owner                                  ‖ border ‖  borrower
//!   GpuMemory ──lend──▶ GpuPlace + tickets ─────────▶  GpuLoan ──dropped──▶ both tickets go back
//! ```
//!
//! Tensors of one record that lie in one allocation share the tickets of the first of them, which come back when all of
//! them are dropped.
//!
//! A ticket is a block of the pool that nobody reads. It is lent with the tensor and comes back as every loan
//! does, when its borrower drops it, closes, or dies. One ticket tells that the bytes are unused, the other
//! that the mapping around them is closed.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::{
    ExtensionSlot, LentRange, LinkEnv, LinkSocket, MappingCharge, PassedAllocation, Sender,
    SharedAllocation,
};
use crate::error::{Error, Fault, GpuUuid, Result, TensorFault};
use crate::handshake::has_ended;
use crate::pool::{BorrowerId, Pool, SharedBlock, Users};

/// Bytes of a ticket: the shortest block.
const TICKET: usize = 64;

/// The alignment of a tensor's start in bytes. Kernels rely on it, because allocations have it (CUDA C++
/// Programming Guide, "Size and Alignment Requirement"). A kernel that reads from another start ends its whole
/// context.
pub(crate) const ALIGNMENT: u64 = 256;

/// Bytes of a word.
const WORD_LEN: u64 = 8;

/// The most different words of one message. A reader's stream waits for each of them. Part of the wire format.
pub(crate) const WORDS: usize = 4096;

/// The kinds of memory and of order in an encoded place.
const IPC: u32 = 1;
const ANNOUNCED: u32 = 2;
const EVENTS: u32 = 1;
const WORD: u32 = 2;
const SYNCHRONIZED: u32 = 3;

/// The place of a tensor's bytes on a GPU, as its owner tells a borrower. `docs/wire.md` has the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GpuPlace {
    /// The GPU's UUID, as `cuDeviceGetUuid_v2` returns it.
    pub device: GpuUuid,
    /// The allocation.
    pub memory: GpuHandle,
    /// The allocation's length in bytes.
    pub allocation: u64,
    /// The start in bytes from the allocation's start: a multiple of 256.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// When the bytes are valid, and when their owner may write them once more.
    pub order: GpuOrder,
}

/// The name of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuHandle {
    /// A handle, as `cuIpcGetMemHandle` returns it.
    Ipc([u8; 64]),
    /// The number under which the owner has announced a file descriptor of it.
    Announced(u64),
}

/// The order of the owner's and the borrower's work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum GpuOrder {
    /// By events of two processes, as `cuIpcGetEventHandle` returns their handles.
    Events {
        /// The event after which the bytes are valid.
        ready: [u8; 64],
        /// The event that the borrower records after its last use.
        done: [u8; 64],
    },
    /// By a word in the allocation. The borrower returns the loan after its last use is over.
    Word {
        /// The start of the word in bytes from the allocation's start: a multiple of 8.
        offset: u64,
        /// The bytes are valid when the word is no less than this.
        value: u64,
    },
    /// The bytes are valid. The borrower returns the loan after its last use is over.
    Synchronized,
}

impl GpuOrder {
    /// Returns whether both are of one kind.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
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
    pub const LEN: usize = 16 + 2 * 4 + 64 + 3 * 8 + 2 * 64;

    /// The encoded length in bytes of what a tensor has of its own that shares the allocation of another one.
    pub const PART_LEN: usize = 4 * 8;

    /// Returns the handle of the allocation, if the place names it by one.
    pub fn ipc_handle(&self) -> Option<[u8; 64]> {
        match self.memory {
            GpuHandle::Ipc(handle) => Some(handle),
            GpuHandle::Announced(_) => None,
        }
    }

    /// Returns the encoded bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            let (to, behind) = std::mem::take(&mut rest).split_at_mut(field.len());
            to.copy_from_slice(field);
            rest = behind;
        };
        let (memory, handle) = match self.memory {
            GpuHandle::Ipc(handle) => (IPC, handle),
            GpuHandle::Announced(number) => (ANNOUNCED, words([number, 0])),
        };
        let (order, ready, done) = match self.order {
            GpuOrder::Events { ready, done } => (EVENTS, ready, done),
            GpuOrder::Word { offset, value } => (WORD, words([offset, value]), [0; 64]),
            GpuOrder::Synchronized => (SYNCHRONIZED, [0; 64], [0; 64]),
        };
        put(&self.device.0);
        put(&u32::to_le_bytes(memory));
        put(&u32::to_le_bytes(order));
        put(&handle);
        for field in [self.allocation, self.offset, self.len] {
            put(&field.to_le_bytes());
        }
        put(&ready);
        put(&done);
        bytes
    }

    /// Returns the bytes of a place that has the allocation, and the kind of order, of another one: the range and the word.
    pub fn encode_part(&self) -> [u8; Self::PART_LEN] {
        let (word, value) = match self.order {
            GpuOrder::Word { offset, value } => (offset, value),
            GpuOrder::Events { .. } | GpuOrder::Synchronized => (0, 0),
        };
        let mut bytes = [0; Self::PART_LEN];
        for (to, field) in bytes.chunks_exact_mut(8).zip([self.offset, self.len, word, value]) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Returns the place that these bytes encode.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Field`]: the kind of memory or of order is unknown.
    /// - [`TensorFault::GpuRange`]: the range or the word is not inside of the allocation.
    /// - [`TensorFault::Alignment`]: the range does not start at a multiple of 256, or the word at one of 8.
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
        let device = GpuUuid(*take(left));
        let mut kind = || u32::from_le_bytes(*take(left));
        let (memory, order) = (kind(), kind());
        let handle: &[u8; 64] = take(left);
        let mut word = || u64::from_le_bytes(*take(left));
        let (allocation, offset, len) = (word(), word(), word());
        let (ready, done) = (*take(left), *take(left));
        check_range((offset, len), allocation)?;
        let memory = match memory {
            IPC => GpuHandle::Ipc(*handle),
            ANNOUNCED => GpuHandle::Announced(first_words(handle).0),
            other => {
                return Err(TensorFault::Field { field: "place.memory", value: other.into() });
            }
        };
        let order = match order {
            EVENTS => GpuOrder::Events { ready, done },
            WORD => check_word(first_words(&ready), allocation)?,
            SYNCHRONIZED => GpuOrder::Synchronized,
            other => return Err(TensorFault::Field { field: "place.order", value: other.into() }),
        };
        Ok(Self { device, memory, allocation, offset, len, order })
    }
}

impl GpuPlace {
    /// Returns the place of a tensor that shares this one's allocation and kind of order.
    fn check_part(&self, bytes: &[u8; Self::PART_LEN]) -> Result<Self, TensorFault> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let (offset, len) = (word(0), word(1));
        check_range((offset, len), self.allocation)?;
        let order = match self.order {
            GpuOrder::Word { .. } => check_word((word(2), word(3)), self.allocation)?,
            order @ (GpuOrder::Events { .. } | GpuOrder::Synchronized) => order,
        };
        Ok(Self { offset, len, order, ..*self })
    }
}

/// Checks that a range is one of the allocation.
fn check_range((offset, len): (u64, u64), allocation: u64) -> Result<(), TensorFault> {
    if offset > allocation || len > allocation - offset {
        return Err(TensorFault::GpuRange { offset, len, allocation });
    }
    if !offset.is_multiple_of(ALIGNMENT) {
        return Err(TensorFault::Alignment { alignment: ALIGNMENT as usize });
    }
    Ok(())
}

/// Returns the order by a word that lies in the allocation.
fn check_word((offset, value): (u64, u64), allocation: u64) -> Result<GpuOrder, TensorFault> {
    if offset > allocation || WORD_LEN > allocation - offset {
        return Err(TensorFault::GpuRange { offset, len: WORD_LEN, allocation });
    }
    if !offset.is_multiple_of(WORD_LEN) {
        return Err(TensorFault::Alignment { alignment: WORD_LEN as usize });
    }
    Ok(GpuOrder::Word { offset, value })
}

/// Returns a field of 64 bytes that starts with two words.
fn words([first, second]: [u64; 2]) -> [u8; 64] {
    let mut field = [0; 64];
    field[..8].copy_from_slice(&first.to_le_bytes());
    field[8..16].copy_from_slice(&second.to_le_bytes());
    field
}

/// Returns the first two words of a field.
fn first_words(field: &[u8; 64]) -> (u64, u64) {
    let word = |at| u64::from_le_bytes(std::array::from_fn(|byte| field[at + byte]));
    (word(0), word(8))
}

/// Memory of a GPU that this process owns, with a tensor in it.
pub trait GpuMemory: Any + fmt::Debug + Send + Sync {
    /// Returns the length in bytes.
    fn byte_len(&self) -> usize;

    /// Returns the GPU's UUID.
    fn device(&self) -> GpuUuid;

    /// Prepares one send. A caller that does not send drops the tickets, which counts as their return.
    fn lend(self: Arc<Self>, to: &mut GpuBorrower<'_>) -> Result<GpuParcel>;
}

/// The parts of a tensor that is sent once.
#[derive(Debug)]
pub struct GpuParcel {
    /// Where the bytes lie.
    pub place: GpuPlace,
    /// What the borrower gives back.
    pub loans: GpuLoans,
}

/// The loans that a tensor is sent with.
#[derive(Debug)]
pub enum GpuLoans {
    /// Its own.
    Own {
        /// It comes back when the bytes are unused.
        bytes: SentTicket,
        /// It comes back when the allocation is unmapped.
        mapping: SentTicket,
        /// The allocation, where the place names it by a number.
        allocation: Option<Arc<SharedAllocation>>,
    },
    /// Those of an earlier tensor of the record, by its index.
    Of(u32),
}

/// What tensors of one record share their tickets for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuShare {
    /// The memory that was lent once, whose parts are tensors: by its owner's numbers.
    Memory([u64; 2]),
    /// An allocation.
    Allocation(GpuHandle),
}

/// The tickets of an earlier tensor of the record.
#[derive(Clone)]
pub struct GpuShared {
    /// The tensor's index.
    pub index: u32,
    /// Where its bytes lie.
    pub place: GpuPlace,
    /// It comes back when the bytes of all tensors that share it are unused.
    pub bytes: Ticket,
}

/// What the tensors of a record share.
pub(super) type SharedOnGpu = HashMap<GpuShare, GpuShared>;

/// The different words of the tensors of one record: the tensor with the place, the start of the word, and the value.
#[derive(Default)]
pub(super) struct DifferentWords {
    last: Option<(u32, u64, u64)>,
    seen: HashSet<(u32, u64, u64)>,
}

impl DifferentWords {
    /// Adds the word of a tensor, if it has one. `of` is the index of the tensor whose loans it has.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Words`]: there are too many.
    pub(super) fn add(&mut self, of: u32, order: &GpuOrder) -> Result<(), TensorFault> {
        let GpuOrder::Word { offset, value } = *order else { return Ok(()) };
        let word = (of, offset, value);
        // Parts of one tensor have the same one.
        if self.last.replace(word) == Some(word) || !self.seen.insert(word) {
            return Ok(());
        }
        let count = self.seen.len();
        if count > WORDS { Err(TensorFault::Words { count, max: WORDS }) } else { Ok(()) }
    }
}

/// The receiver of a tensor, and the tensors in front of it in the same record.
pub struct GpuBorrower<'a> {
    sender: &'a Sender,
    shared: &'a mut SharedOnGpu,
    /// The index of the tensor.
    index: u32,
}

impl<'a> GpuBorrower<'a> {
    pub(super) fn of(sender: &'a Sender, shared: &'a mut SharedOnGpu, index: u32) -> Self {
        Self { sender, shared, index }
    }

    /// Returns the index of the tensor.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the tickets that an earlier tensor of the record has for this.
    pub fn shared(&self, of: GpuShare) -> Option<&GpuShared> {
        self.shared.get(&of)
    }

    /// Lets later tensors of the record share tickets, unless they do already.
    pub fn share(&mut self, of: GpuShare, shared: GpuShared) {
        self.shared.entry(of).or_insert(shared);
    }

    /// Returns a ticket for this borrower.
    ///
    /// # Errors
    ///
    /// As [`Context::alloc`](crate::Context::alloc).
    pub fn ticket(&self) -> Result<Ticket> {
        let (account, peer) = self.sender.borrower();
        let env = self.sender.env().clone();
        let block = env.pool().alloc(TICKET)?.map_err(Error::from)?;
        // The block is new, so nobody has it on loan.
        let block = block.share().ok_or(TensorFault::Unstable)?;
        let (block, env, life) = (Mutex::new(block), Some(env), peer.life());
        Ok(Ticket { core: Arc::new(TicketCore { block, env, account, life }) })
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

/// The borrowers whose returned loans were collected in one look.
#[derive(Debug, Default)]
pub struct Settled {
    looked: Vec<(BorrowerId, Pool)>,
}

/// A token that one borrower gives back at the end of a use. Its clones are one token.
#[derive(Debug, Clone)]
pub struct Ticket {
    core: Arc<TicketCore>,
}

/// A ticket on its way to its borrower. It counts as out.
#[derive(Debug)]
pub struct SentTicket {
    pub(super) block: SharedBlock,
}

#[derive(Debug)]
struct TicketCore {
    /// The one handle of its owner.
    block: Mutex<SharedBlock>,
    /// Its pool has the block, and its watcher closes the account when the borrower ends, also after the context's drop.
    /// `None` during the drop.
    env: Option<Arc<LinkEnv>>,
    account: BorrowerId,
    /// The borrower's process. `None` where the kernel gives no pidfd for it.
    life: Option<Arc<OwnedFd>>,
}

impl Drop for TicketCore {
    fn drop(&mut self) {
        // The pool of GPU memory drops tickets under its lock.
        self.env.take().into_iter().for_each(LinkEnv::let_go);
    }
}

impl Ticket {
    /// Returns whether the ticket is for this borrower.
    pub fn is_for(&self, borrower: &GpuBorrower<'_>) -> bool {
        let sender = borrower.sender;
        sender.pool().owns_shared(&self.block()) && sender.borrower().0 == self.core.account
    }

    /// Returns the ticket for the record that carries it. The caller does so before it [asks](Self::fate) for the first time.
    pub fn to_send(&self) -> SentTicket {
        SentTicket { block: self.block().clone() }
    }

    fn block(&self) -> MutexGuard<'_, SharedBlock> {
        self.core.block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects returned loans, in the process that lent them, but for those of borrowers that `settled` has. The caller asks
    /// [`fate`](Self::fate) afterwards.
    pub fn settle<'a>(settled: &mut Settled, tickets: impl Iterator<Item = &'a Self>) {
        for ticket in tickets {
            let TicketCore { account, env: Some(env), .. } = &*ticket.core else { continue };
            let is_known =
                |(known, pool): &(BorrowerId, Pool)| known == account && pool.is(env.pool());
            if !settled.looked.iter().any(is_known) {
                env.pool().look_at(*account);
                settled.looked.push((*account, env.pool().clone()));
            }
        }
    }

    /// Returns whether the borrower's process has ended.
    pub fn has_ended(&self) -> bool {
        self.core.life.as_ref().is_some_and(|life| has_ended(life.as_fd()))
    }

    /// Returns the state of the ticket.
    ///
    /// A link that has ended returns no loans: the process on the other side may still use the memory. The end
    /// of that process decides.
    pub fn fate(&self) -> Fate {
        let users = self.block().users();
        match users {
            Users::Others => Fate::Out,
            Users::Nobody => Fate::Back,
            Users::Lost if self.core.life.is_some() && !self.has_ended() => Fate::Out,
            Users::Lost => Fate::Dead,
        }
    }
}

/// A tensor on a GPU that a peer has lent.
#[derive(Debug)]
pub struct GpuLoan {
    /// Where the bytes lie.
    pub place: GpuPlace,
    /// The allocation, where the place names it by a number.
    passed: Option<Arc<PassedAllocation>>,
    held: Arc<HeldLoans>,
    /// The objects of the peer that the link keeps open.
    extension: Arc<ExtensionSlot>,
}

/// The loans of a tensor, and of those that share them.
#[derive(Debug)]
struct HeldLoans {
    bytes: LentRange,
    mapping: Mutex<Option<LentRange>>,
    /// Whether a view has recorded the event of the end.
    ended: Mutex<bool>,
}

impl GpuLoan {
    /// # Errors
    ///
    /// - [`Fault::Tensor`], as [`GpuPlace::decode`] and where the place says something else of an allocation than its
    ///   announcement.
    /// - [`Fault::UnknownAllocation`]: the place names one that was not announced.
    pub(super) fn new(
        place: &[u8; GpuPlace::LEN],
        bytes: LentRange,
        mapping: LentRange,
        extension: Arc<ExtensionSlot>,
    ) -> Result<Self, Fault> {
        let place = GpuPlace::check(place).map_err(Fault::Tensor)?;
        let passed = match place.memory {
            GpuHandle::Announced(number) => {
                let passed = bytes.allocation(number)?;
                let fault = |field, value| Fault::Tensor(TensorFault::Field { field, value });
                if passed.len() != place.allocation {
                    return Err(fault("place.allocation", place.allocation));
                }
                if passed.device() != place.device {
                    return Err(fault("place.device", number));
                }
                Some(passed)
            }
            GpuHandle::Ipc(_) => None,
        };
        let (mapping, ended) = (Mutex::new(Some(mapping)), Mutex::new(false));
        let held = Arc::new(HeldLoans { bytes, mapping, ended });
        Ok(Self { place, passed, held, extension })
    }

    /// Returns the loan of a tensor that shares this one's allocation and its loans.
    ///
    /// # Errors
    ///
    /// [`TensorFault::GpuRange`], [`TensorFault::Alignment`]: as [`GpuPlace::decode`].
    pub(super) fn part(&self, part: &[u8; GpuPlace::PART_LEN]) -> Result<Self, TensorFault> {
        let Self { place, passed, held, extension } = self;
        let place = place.check_part(part)?;
        let (passed, held, extension) = (passed.clone(), held.clone(), extension.clone());
        Ok(Self { place, passed, held, extension })
    }

    /// Returns what is the same for loans that come back together.
    pub fn together(&self) -> usize {
        Arc::as_ptr(&self.held).addr()
    }

    /// Returns the allocation, where the place names it by a number.
    pub fn passed(&self) -> Option<&Arc<PassedAllocation>> {
        self.passed.as_ref()
    }

    /// Returns the objects of the peer that the link keeps open.
    pub fn extension(&self) -> &ExtensionSlot {
        &self.extension
    }

    /// Returns whether the lender's process has ended.
    pub fn lender_ended(&self) -> bool {
        self.held.bytes.lender_ended()
    }

    /// Returns the socket of the lender's link.
    pub fn socket(&self) -> LinkSocket {
        self.held.bytes.socket()
    }

    /// Returns the pidfd of the lender's process. `None` where the kernel gives none for it.
    pub fn life(&self) -> Option<Arc<OwnedFd>> {
        self.held.bytes.lender().life()
    }

    /// Returns the first namespace of these that this process and the lender do not share.
    pub fn other_namespace(&self, of: &[&'static str]) -> Option<&'static str> {
        self.held.bytes.lender().other_namespace(of)
    }

    /// Charges the lender for an allocation that this process maps, of as many bytes as the driver gets addresses for. Memory that
    /// a handle opens has no more of them than the GPU has memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AccountFull`](crate::ErrorKind::AccountFull)
    pub fn charge_mapping(&self) -> Result<MappingCharge> {
        let len = self.passed.as_ref().map_or(0, |passed| passed.len());
        self.held.bytes.charge_mapping(len)
    }

    /// Takes the loan of the mapping, once. Dropping it tells the owner that the mapping is closed.
    pub fn take_mapping(&self) -> Option<LentRange> {
        self.held.mapping.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts the loan of the mapping back, after an opening that failed.
    pub fn put_mapping(&self, mapping: Option<LentRange>) {
        *self.held.mapping.lock().unwrap_or_else(PoisonError::into_inner) = mapping;
    }

    /// Returns whether a view has recorded the event of the end. Views take turns.
    pub fn ended(&self) -> MutexGuard<'_, bool> {
        self.held.ended.lock().unwrap_or_else(PoisonError::into_inner)
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
