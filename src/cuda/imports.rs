//! What a link keeps open of its peer's, so that the next tensor finds it open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::closer::{self, Parked};
use crate::cuda::device::Device;
use crate::cuda::event::{Event, EventHandle};
use crate::cuda::memory::{Memory, MemoryHandle};
use crate::cuda::openings::Opening;
use crate::cuda::stream::Stream;
use crate::error::{GpuUuid, Result};
use crate::region::Lease;
use crate::tensor::GpuLoan;
use crate::transport::LentRange;

/// Allocations that stay open though no view uses them. A peer whose tensors come from more chunks than this pays for
/// opening them again.
const IDLE: usize = 64;

/// Events of an allocation that stay open, likewise: each tensor on its way has two.
const EVENTS: usize = 1024;

/// It lies on the link's shelf.
#[derive(Debug, Default)]
pub(super) struct Imports {
    open: Mutex<Open>,
}

/// How often something was asked for, and what is open, with when it was last asked for.
#[derive(Debug, Default)]
struct Open {
    now: u64,
    imports: HashMap<(GpuUuid, MemoryHandle), (u64, Arc<Import>)>,
}

/// An allocation of somebody else's, and the events of the tensors in it. While they are open, a peer ends none of them.
#[derive(Debug)]
pub(super) struct Import {
    /// `None` while it is dropped.
    open: Option<Opened>,
}

/// In the order in which they end.
#[derive(Debug)]
struct Opened {
    /// Ours alone, recorded behind the uses of the memory: what a peer does to its own events, or gives its own streams,
    /// is nothing to wait for.
    used: Mutex<Option<Event>>,
    events: Mutex<HashMap<EventHandle, Arc<Opening<Event>>>>,
    memory: Opening<Memory>,
    _keeps: Keeps,
}

/// What is given back when all was closed.
#[derive(Debug, Default)]
#[expect(dead_code, reason = "nothing but their ends matters")]
pub(super) struct Keeps {
    /// The loan of the mapping.
    pub(super) mapping: Option<LentRange>,
    /// That of the bytes.
    pub(super) bytes: Option<Arc<GpuLoan>>,
    /// Of a region, which is in use as long as its memory.
    pub(super) lease: Option<Lease>,
}

impl Imports {
    /// The allocation that a tensor lies in.
    pub(super) fn memory(&self, device: &Device, loan: &Arc<GpuLoan>) -> Result<Arc<Import>> {
        // Dropped, it tells that nothing was opened for it: another one tells for all when it is closed.
        let mapping = loan.take_mapping();
        let place = &loan.place;
        let mut memory = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Open { now, imports: open } = &mut *memory;
        *now += 1;
        // The same handle may be told of two GPUs, by a peer that lies.
        let key = (place.device, place.handle);
        if let Some((last, import)) = open.get_mut(&key) {
            *last = *now;
            import.memory().holds(place.allocation)?;
            return Ok(import.clone());
        }
        let table = &device.openings().memory;
        let opened = match table.get(place.handle, || Memory::open(device, place.handle)) {
            Ok(opened) => opened,
            Err(error) => {
                loan.put_mapping(mapping);
                return Err(error);
            }
        };
        // Without a loan of its own it was open for this tensor before, and is told of as closed: that of the bytes
        // keeps it.
        let is_told = mapping.is_some();
        let bytes = (!is_told).then(|| loan.clone());
        let import = Import::new(opened, Keeps { mapping, bytes, ..Keeps::default() });
        let import = Arc::new(import);
        import.memory().holds(place.allocation)?;
        if !is_told {
            return Ok(import);
        }
        open.insert(key, (*now, import.clone()));
        let idle = open.iter().filter(|(_, (_, import))| Arc::strong_count(import) == 1);
        if idle.clone().count() > IDLE {
            let oldest = idle.min_by_key(|(_, (last, _))| *last).map(|(key, _)| *key);
            // Another thread closes it.
            oldest.and_then(|key| open.remove(&key));
        }
        Ok(import)
    }
}

impl Import {
    pub(super) fn new(memory: Opening<Memory>, keeps: Keeps) -> Self {
        let (used, events) = Default::default();
        Self { open: Some(Opened { used, events, memory, _keeps: keeps }) }
    }

    fn opened(&self) -> &Opened {
        self.open.as_ref().expect("there until it is dropped")
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.opened().memory
    }

    /// An event of the peer's.
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
        let table = &device.openings().events;
        let event = Arc::new(table.get(handle, || Event::open(device, handle))?);
        if events.len() >= EVENTS {
            events.retain(|_, event| Arc::strong_count(event) > 1);
        }
        events.insert(handle, event.clone());
        Ok(event)
    }

    /// `stream` was given a use of it, which is not closed before that is over.
    pub(super) fn used_by(&self, stream: &Stream) -> Result<()> {
        let mut used = self.opened().used.lock().unwrap_or_else(PoisonError::into_inner);
        let event = match &*used {
            Some(event) => {
                // One event tells of all uses.
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
            closer::end(opened);
        }
    }
}
