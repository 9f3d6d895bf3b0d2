//! The objects of its peer that a link keeps open, so that the next tensor finds them open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::channel::{LentRange, PassedAllocation};
use crate::cuda::closer::{self, Parked};
use crate::cuda::device::Device;
use crate::cuda::event::{Event, EventHandle};
use crate::cuda::memory::{HeldMemory, Memory, MemoryHandle};
use crate::cuda::openings::Opening;
use crate::cuda::stream::Stream;
use crate::error::{CudaFault, GpuUuid, Result};
use crate::region::Lease;
use crate::tensor::{GpuHandle, GpuLoan};

/// Allocations that stay open without a view. A peer whose tensors come from more chunks than this pays for
/// reopening them.
const IDLE: usize = 64;

/// Events of an allocation that stay open without a view: each tensor on its way has two.
const EVENTS: usize = 1024;

/// The link keeps it in its extension slot.
#[derive(Debug, Default)]
pub(super) struct Imports {
    open: Mutex<Open>,
}

/// A count of the requests, and the open objects.
#[derive(Debug, Default)]
struct Open {
    now: u64,
    imports: HashMap<Key, Known>,
}

/// An open object.
#[derive(Debug)]
struct Known {
    /// The count at the last request.
    last: u64,
    import: Arc<Import>,
    /// Of an announced allocation: gone when its owner has withdrawn it and no tensor of it is left.
    passed: Option<Weak<PassedAllocation>>,
}

impl Known {
    fn is_withdrawn(&self) -> bool {
        self.passed.as_ref().is_some_and(|passed| passed.strong_count() == 0)
    }
}

/// What names an allocation on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// A peer that lies may name the same handle for two GPUs.
    Handle(GpuUuid, MemoryHandle),
    /// By its serial: a peer that lies may use a number again.
    Announced(Option<u64>),
}

/// Another process's allocation and the events of the tensors in it. While they are open, the peer ends none
/// of them.
#[derive(Debug)]
pub(super) struct Import {
    /// `None` during the drop.
    open: Option<Opened>,
}

/// In the order in which they end.
#[derive(Debug)]
struct Opened {
    /// An event of this process, recorded after the uses of the memory. This process never waits for the
    /// peer's events or streams.
    used: Mutex<Option<Event>>,
    /// Unused events of this process.
    spare: Mutex<Vec<Event>>,
    events: Mutex<HashMap<EventHandle, Arc<Opening<Event>>>>,
    memory: HeldMemory,
    _keeps: Keeps,
}

/// The loans that go back when everything is closed.
#[derive(Debug)]
#[expect(dead_code, reason = "nothing but their ends matters")]
struct Keeps {
    /// The loan of the mapping.
    mapping: Option<LentRange>,
    /// The loan of the bytes.
    bytes: Option<Arc<GpuLoan>>,
    /// A region's memory is in use as long as the region.
    lease: Option<Lease>,
}

impl Imports {
    /// Returns the allocation that a tensor lies in.
    pub(super) fn memory(&self, device: &Device, loan: &Arc<GpuLoan>) -> Result<Arc<Import>> {
        // Dropping this loan tells the owner that this tensor opened nothing. Another loan stands for the open
        // allocation.
        let mapping = loan.take_mapping();
        let place = &loan.place;
        let mut memory = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Open { now, imports: open } = &mut *memory;
        *now += 1;
        // Another thread closes them.
        open.retain(|_, known| !known.is_withdrawn());
        let key = match place.memory {
            GpuHandle::Ipc(handle) => Key::Handle(place.device, handle),
            GpuHandle::Announced(_) => Key::Announced(loan.passed().map(|passed| passed.serial())),
        };
        if let Some(known) = open.get_mut(&key) {
            known.last = *now;
            known.import.memory().holds(place.allocation)?;
            return Ok(known.import.clone());
        }
        let opened = match open_memory(device, loan) {
            Ok(opened) => opened,
            Err(error) => {
                loan.put_mapping(mapping);
                return Err(error);
            }
        };
        // Without a loan of its own the allocation was open before this tensor, and its owner thinks that it
        // is closed. The loan of the bytes keeps it.
        let is_told = mapping.is_some();
        let bytes = (!is_told).then(|| loan.clone());
        let import = Import::new(opened, Keeps { mapping, bytes, lease: None });
        let import = Arc::new(import);
        import.memory().holds(place.allocation)?;
        if !is_told {
            return Ok(import);
        }
        let passed = loan.passed().map(Arc::downgrade);
        open.insert(key, Known { last: *now, import: import.clone(), passed });
        let idle = open.iter().filter(|(_, known)| Arc::strong_count(&known.import) == 1);
        if idle.clone().count() > IDLE {
            let oldest = idle.min_by_key(|(_, known)| known.last).map(|(key, _)| *key);
            // Another thread closes it.
            oldest.and_then(|key| open.remove(&key));
        }
        Ok(import)
    }
}

/// Opens or maps the allocation that a tensor lies in.
fn open_memory(device: &Device, loan: &GpuLoan) -> Result<HeldMemory> {
    match (loan.place.memory, loan.passed()) {
        (GpuHandle::Ipc(handle), _) => Memory::open(device, handle).map(HeldMemory::Handle),
        (_, Some(passed)) => Memory::import(device, passed).map(HeldMemory::Mapping),
        // A loan without the allocation that its place names does not come about.
        (_, None) => Err(CudaFault::NotAllocation.into()),
    }
}

impl Import {
    /// Returns the allocation of a region, which is in use as long as the region's lease.
    pub(super) fn of_region(memory: Opening<Memory>, lease: Option<Lease>) -> Self {
        Self::new(HeldMemory::Handle(memory), Keeps { mapping: None, bytes: None, lease })
    }

    fn new(memory: HeldMemory, keeps: Keeps) -> Self {
        let (used, spare, events) = Default::default();
        Self { open: Some(Opened { used, spare, events, memory, _keeps: keeps }) }
    }

    fn opened(&self) -> &Opened {
        self.open.as_ref().expect("there until it is dropped")
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.opened().memory
    }

    /// Returns an event of the peer's.
    pub(super) fn event(
        &self,
        device: &Device,
        handle: EventHandle,
    ) -> Result<Arc<Opening<Event>>> {
        let events = &self.opened().events;
        let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = events.get(&handle) {
            return Ok(event.clone());
        }
        let event = Arc::new(Event::open(device, handle)?);
        if events.len() >= EVENTS {
            events.retain(|_, event| Arc::strong_count(event) > 1);
        }
        events.insert(handle, event.clone());
        Ok(event)
    }

    /// Returns an event of this process that is recorded after the work that `stream` has got so far.
    pub(super) fn recorded(&self, stream: &Stream) -> Result<Event> {
        let spare = self.spare().pop();
        let event = spare.map_or_else(|| Event::private(stream.device()), Ok)?;
        match event.record(stream) {
            Ok(()) => Ok(event),
            Err(error) => {
                self.put_spare(event);
                Err(error)
            }
        }
    }

    /// Puts an event of this process back.
    pub(super) fn put_spare(&self, event: Event) {
        self.spare().push(event);
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Event>> {
        self.opened().spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a use by `stream`. The allocation is not closed before that use is over.
    pub(super) fn used_by(&self, stream: &Stream) -> Result<()> {
        let mut used = self.opened().used.lock().unwrap_or_else(PoisonError::into_inner);
        let event = match &*used {
            Some(event) => {
                // One event stands for all uses.
                event.hold_back(stream)?;
                event
            }
            None => used.insert(Event::private(stream.device())?),
        };
        event.record(stream)
    }
}

impl Parked for Opened {
    fn is_over(&self) -> bool {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.as_ref().is_none_or(Event::is_over)
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if let Some(opened) = self.open.take() {
            closer::close(opened);
        }
    }
}
