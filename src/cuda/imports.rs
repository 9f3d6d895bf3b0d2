//! What a link keeps open of its peer's, so that the next tensor finds it open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cuda::device::Device;
use crate::cuda::event::{Event, EventHandle};
use crate::cuda::memory::{Memory, MemoryHandle};
use crate::cuda::openings::Opening;
use crate::error::Result;
use crate::tensor::GpuLoan;
use crate::transport::LentRange;

/// Allocations that stay open though no view uses them. A peer whose tensors come from more chunks than this pays for
/// opening them again.
const IDLE: usize = 64;

/// Events of an allocation that stay open, likewise: each tensor on its way has two.
const EVENTS: usize = 1024;

/// How long to wait for what uses memory that is to be closed: what that waits for may be a peer's to do.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long to sleep between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// It lies on the link's shelf.
#[derive(Debug, Default)]
pub(super) struct Imports {
    open: Mutex<Open>,
}

/// How often something was asked for, and what is open, with when it was last asked for.
#[derive(Debug, Default)]
struct Open {
    now: u64,
    imports: HashMap<MemoryHandle, (u64, Arc<Import>)>,
}

/// An allocation of a peer's, and the events of the tensors in it. While they are open, the peer ends none of them.
#[derive(Debug)]
pub(super) struct Import {
    /// `None` while it is dropped.
    memory: Option<Opening<Memory>>,
    /// Returned when all was closed.
    loan: Option<LentRange>,
    events: Mutex<HashMap<EventHandle, Known>>,
}

#[derive(Debug)]
struct Known {
    event: Arc<Opening<Event>>,
    /// It was recorded behind a use of the memory.
    is_behind: bool,
}

impl Imports {
    /// The allocation that a tensor lies in.
    pub(super) fn memory(&self, device: &Device, loan: &GpuLoan) -> Result<Arc<Import>> {
        // Dropped, it tells that nothing was opened for it: another one tells for all when it is closed.
        let mapping = loan.take_mapping();
        let place = &loan.place;
        let mut closed = Vec::new();
        let mut memory = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Open { now, imports: open } = &mut *memory;
        *now += 1;
        if let Some((last, import)) = open.get_mut(&place.handle) {
            *last = *now;
            import.memory().holds(place.allocation)?;
            return Ok(import.clone());
        }
        let opened = device
            .openings()
            .memory
            .get(place.handle, || Memory::open(device, place.handle, place.allocation))?;
        opened.holds(place.allocation)?;
        let is_told = mapping.is_some();
        let import = Arc::new(Import::new(opened, mapping));
        if !is_told {
            // It was open before for this tensor, and was closed. The loan of the bytes keeps it as long as a view does.
            return Ok(import);
        }
        open.insert(place.handle, (*now, import.clone()));
        let idle = open.values().filter(|(_, import)| Arc::strong_count(import) == 1);
        if idle.count() > IDLE {
            let oldest = open.iter().filter(|(_, (_, import))| Arc::strong_count(import) == 1);
            let oldest = oldest.min_by_key(|(_, (last, _))| *last).map(|(handle, _)| *handle);
            closed.extend(oldest.and_then(|handle| open.remove(&handle)));
        }
        drop(memory);
        drop(closed);
        Ok(import)
    }
}

impl Import {
    pub(super) fn new(memory: Opening<Memory>, loan: Option<LentRange>) -> Self {
        Self { memory: Some(memory), loan, events: Mutex::default() }
    }

    pub(super) fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("there until it is dropped")
    }

    /// An event of the peer's.
    pub(super) fn event(
        &self,
        device: &Device,
        handle: EventHandle,
    ) -> Result<Arc<Opening<Event>>> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = events.get(&handle) {
            return Ok(known.event.clone());
        }
        let table = &device.openings().events;
        let event = Arc::new(table.get(handle, || Event::open(device, handle))?);
        if events.len() >= EVENTS {
            events.retain(|_, known| Arc::strong_count(&known.event) > 1 || known.is_running());
        }
        events.insert(handle, Known { event: event.clone(), is_behind: false });
        Ok(event)
    }

    /// `event` was recorded behind a use of it.
    pub(super) fn used_before(&self, event: &Arc<Opening<Event>>) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Known { event: event.clone(), is_behind: true };
        events.entry(event.handle()).or_insert_with(new).is_behind = true;
    }
}

impl Known {
    /// Whether a use before it may not be over.
    fn is_running(&self) -> bool {
        // Where the driver cannot tell, nothing runs any more.
        self.is_behind && !self.event.is_over().unwrap_or(true)
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let events = self.events.get_mut().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + PATIENCE;
        while events.values().any(Known::is_running) {
            if Instant::now() >= deadline {
                tracing::warn!("a peer's memory stays open: what uses it does not end");
                std::mem::forget(std::mem::take(events));
                std::mem::forget(self.memory.take());
                std::mem::forget(self.loan.take());
                return;
            }
            std::thread::sleep(PAUSE);
        }
        // Closed first, and then told.
        events.clear();
        drop(self.memory.take());
        drop(self.loan.take());
    }
}
