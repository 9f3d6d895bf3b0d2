//! An allocation of a pool, or one that a pool adopts: its memory, how other processes get it, and which of them know it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::channel::SharedAllocation;
use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::mapped;
use crate::cuda::memory::{Area, HeldMemory, Memory, MemoryHandle};
use crate::cuda::options::{Export, Order, Terms};
use crate::cuda::parked::Parked;
use crate::cuda::sharing;
use crate::cuda::space::ALIGNMENT;
use crate::cuda::stream::Stream;
use crate::cuda::words;
use crate::error::{CudaFault, Result, TensorFault};
use crate::tensor::{
    Fate, GpuBorrower, GpuHandle, GpuLoans, GpuOrder, GpuPlace, GpuShared, Ticket,
};

/// What the start of a place is a multiple of, in bytes.
pub(super) const PLACE: u64 = crate::tensor::GPU_ALIGNMENT;

/// An allocation that is exported once.
#[derive(Debug)]
pub(super) struct Chunk {
    memory: HeldMemory,
    name: Name,
    /// Of memory that another library allocated.
    adopted: Option<Adopted>,
    /// One for each borrower that knows the chunk. It comes back when the borrower has closed it.
    exposed: Vec<Ticket>,
}

/// The bytes of the chunks of a pool whose making has failed, until they are freed. A clone is the same count.
#[derive(Debug, Clone, Default)]
pub(super) struct FailedBytes {
    count: Arc<AtomicU64>,
}

impl FailedBytes {
    pub(super) fn get(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

/// The memory of a chunk whose making has failed, and which nobody else knows. To free it may wait. If the driver cannot tell whether
/// its stream still writes it, it stays, and counts, as long as the driver cannot.
struct FailedChunk {
    memory: Option<HeldMemory>,
    len: u64,
    /// The stream that may still write it.
    writer: Option<Stream>,
    counted: FailedBytes,
}

impl FailedChunk {
    /// Leaves the memory to the thread that may wait.
    fn leave(memory: HeldMemory, writer: Option<Stream>, counted: &FailedBytes) {
        let (len, counted) = (memory.len(), counted.clone());
        counted.count.fetch_add(len, Ordering::Relaxed);
        closer::close(Self { memory: Some(memory), len, writer, counted });
    }
}

impl Drop for FailedChunk {
    fn drop(&mut self) {
        drop(self.memory.take());
        self.counted.count.fetch_sub(self.len, Ordering::Release);
    }
}

impl Parked for FailedChunk {
    fn is_over(&self) -> bool {
        self.writer.as_ref().is_none_or(Stream::is_over)
    }

    fn drop_waits(&self) -> bool {
        true
    }
}

/// How other processes get a chunk.
#[derive(Debug)]
enum Name {
    Handle(MemoryHandle),
    Announced(Arc<SharedAllocation>),
}

/// A range of an allocation of another library's, and who keeps it.
struct Adopted {
    start: u64,
    len: u64,
    /// Dropped when the range is not used any more.
    _owner: Box<dyn Send>,
}

impl fmt::Debug for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adopted").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Chunk {
    /// Allocates and exports `size` bytes. What is left of a chunk that fails is freed by a thread that may wait, and counts in
    /// `failed` until then.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`], [`CudaFault::Closing`].
    pub(super) fn new(
        device: &Device,
        size: u64,
        terms: &Terms,
        failed: &FailedBytes,
    ) -> Result<Self> {
        let _entered = device.enter()?;
        let (memory, name) = match terms.export() {
            Export::IpcHandle => match Memory::exported(device, size) {
                Ok((memory, handle)) => (HeldMemory::Handle(memory), Name::Handle(handle)),
                Err((error, memory)) => {
                    if let Some(memory) = memory {
                        FailedChunk::leave(HeldMemory::Sole(*memory), None, failed);
                    }
                    return Err(error);
                }
            },
            Export::FileDescriptor => {
                let (memory, shared) = Memory::announced(device, size)?;
                (HeldMemory::Sole(memory), Name::Announced(shared))
            }
        };
        let chunk = Self { memory, name, adopted: None, exposed: Vec::new() };
        let mut writer = None;
        match chunk.prepare(device, terms.order(), &mut writer) {
            Ok(()) => Ok(chunk),
            Err(error) => {
                FailedChunk::leave(chunk.memory, writer, failed);
                Err(error)
            }
        }
    }

    /// Lets the GPU use a new chunk, sets its words to 0 and waits for that. Nobody knows the chunk yet, so no word is awaited
    /// before.
    fn prepare(&self, device: &Device, order: Order, writer: &mut Option<Stream>) -> Result<()> {
        self.memory.reach_from(device)?;
        if order != Order::Words {
            return Ok(());
        }
        let room = self.room(Order::Words);
        let len = (self.memory.len() - room) as usize;
        let words = Area { start: self.memory.start() + room, len };
        let own = writer.insert(device.stream()?);
        words.fill(0, own)?;
        own.synchronize()
    }

    /// Returns a range of `len` bytes from `start` on of an allocation of another library's.
    pub(super) fn adopted(
        device: &Device,
        (start, len): (u64, u64),
        owner: Box<dyn Send>,
    ) -> Result<Self> {
        let (memory, name) = match mapped::find(device, start)? {
            Some(found) => {
                let memory = Memory::adopted_mapping(device, found.start, found.len);
                let shared = sharing::shared(device, found)?;
                (HeldMemory::Sole(memory), Name::Announced(shared))
            }
            None => {
                let (memory, handle) = Memory::adopted(device, start)?;
                (HeldMemory::Handle(memory), Name::Handle(handle))
            }
        };
        let start = start - memory.start();
        if start + len > memory.len() {
            return Err(CudaFault::NotExportable { why: "it spans several allocations" }.into());
        }
        if !start.is_multiple_of(PLACE) {
            return Err(TensorFault::Alignment { alignment: PLACE as usize }.into());
        }
        let adopted = Some(Adopted { start, len, _owner: owner });
        Ok(Self { memory, name, adopted, exposed: Vec::new() })
    }

    /// Returns its memory.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns how other processes get it.
    pub(super) fn export(&self) -> Export {
        match self.name {
            Name::Handle(_) => Export::IpcHandle,
            Name::Announced(_) => Export::FileDescriptor,
        }
    }

    /// Returns the start of its ranges in the allocation.
    pub(super) fn start(&self) -> u64 {
        self.adopted.as_ref().map_or(0, |adopted| adopted.start)
    }

    /// Returns the bytes for ranges: all of it but its words.
    pub(super) fn room(&self, order: Order) -> u64 {
        if let Some(adopted) = &self.adopted {
            // For the one range, whose last bytes nobody uses.
            return adopted.len.next_multiple_of(ALIGNMENT);
        }
        let len = self.memory.len();
        if order == Order::Words { words::room(len) } else { len }
    }

    /// Returns whether the chunk can be freed when nothing of it is in use or on loan. A descriptor and a mapping keep the
    /// memory for those who have them. A handle keeps nothing, and events end with the pool.
    pub(super) fn may_go(&self, order: Order) -> bool {
        let keeps_itself = matches!(self.name, Name::Announced(_)) && order != Order::Events;
        keeps_itself || self.exposed.is_empty()
    }

    /// Returns a ticket for each borrower that knows it.
    pub(super) fn exposed(&self) -> &[Ticket] {
        &self.exposed
    }

    /// Forgets the borrowers that have closed it.
    pub(super) fn forget_returned(&mut self) {
        self.exposed.retain(|ticket| ticket.fate() == Fate::Out);
    }

    /// Takes the tickets of the borrowers that know it.
    pub(super) fn take_exposed(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.exposed)
    }

    /// Returns the place of a range.
    pub(super) fn place(
        &self,
        device: &Device,
        (offset, len): (u64, u64),
        order: GpuOrder,
    ) -> GpuPlace {
        let memory = match &self.name {
            Name::Handle(handle) => GpuHandle::Ipc(*handle),
            Name::Announced(shared) => GpuHandle::Announced(shared.number()),
        };
        let (device, allocation) = (device.uuid(), self.memory.len());
        GpuPlace { device, memory, allocation, offset, len, order }
    }

    /// Returns tickets for a tensor of the chunk, to be shared and to be sent.
    pub(super) fn tickets(
        &mut self,
        place: GpuPlace,
        to: &GpuBorrower<'_>,
    ) -> Result<(GpuShared, GpuLoans)> {
        let mapping = match self.exposed.iter().find(|ticket| ticket.is_for(to)) {
            Some(ticket) => ticket.clone(),
            None => to.ticket()?,
        };
        let bytes = to.ticket()?;
        let allocation = match &self.name {
            Name::Handle(_) => None,
            Name::Announced(shared) => Some(shared.clone()),
        };
        let (sent, sent_mapping) = (bytes.to_send(), mapping.to_send());
        let loans = GpuLoans::Own { bytes: sent, mapping: sent_mapping, allocation };
        if !self.exposed.iter().any(|ticket| ticket.is_for(to)) {
            self.exposed.push(mapping);
        }
        Ok((GpuShared { index: to.index(), place, bytes }, loans))
    }
}

impl Parked for Chunk {
    fn is_over(&self) -> bool {
        // It is parked when it is unused.
        true
    }

    fn drop_waits(&self) -> bool {
        true
    }
}
