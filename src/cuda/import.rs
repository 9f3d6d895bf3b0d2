//! Another process's allocation that this process has open, and what goes back when it is closed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::{LentRange, MappingCharge};
use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::event::{Event, EventHandle};
use crate::cuda::memory::{HeldMemory, Memory};
use crate::cuda::openings::Opening;
use crate::cuda::parked::Parked;
use crate::cuda::stream::Stream;
use crate::error::Result;
use crate::region::Lease;
use crate::tensor::GpuLoan;

/// Events of an allocation that stay open without a view: each tensor on its way has two.
const EVENTS: usize = 1024;

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
    /// Unused events of this process, of the GPUs whose streams have used the memory.
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
    /// What its lender's account is charged.
    charge: Option<MappingCharge>,
}

impl Import {
    /// Returns the allocation of a region, which is in use as long as the region's lease.
    pub(super) fn of_region(memory: Opening<Memory>, lease: Option<Lease>) -> Self {
        let (mapping, bytes, charge) = (None, None, None);
        Self::new(HeldMemory::Handle(memory), Keeps { mapping, bytes, lease, charge })
    }

    /// Returns a peer's allocation. The loan of its mapping, or that of the bytes of a tensor in it, goes back when it is
    /// closed, and so does what its peer is charged.
    pub(super) fn of_loans(
        (memory, charge): (HeldMemory, MappingCharge),
        mapping: Option<LentRange>,
        bytes: Option<Arc<GpuLoan>>,
    ) -> Self {
        Self::new(memory, Keeps { mapping, bytes, lease: None, charge: Some(charge) })
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
        let mut spare = self.spare();
        let known = spare.iter().rposition(|event| event.is_of(stream.device()));
        let known = known.map(|at| spare.swap_remove(at));
        drop(spare);
        let event = known.map_or_else(|| Event::private(stream.device()), Ok)?;
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

    fn drop_waits(&self) -> bool {
        true
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if let Some(opened) = self.open.take() {
            closer::close(opened);
        }
    }
}
