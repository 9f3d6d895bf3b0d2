//! The mappings of a region for accesses in place.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{RegionFault, Result};
use crate::region::extent::Extent;
use crate::region::guard::{SigbusGuard, Unblocked};
use crate::region::object::Object;
use crate::region::table::Slot;
use crate::region::{RegionKind, dmabuf};
use crate::shm::ForeignMapping;

/// The ways in which an access to a mapping can raise a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Footing {
    /// Sealed: an access raises no signal.
    Sealed,
    /// The size is fixed. A driver may still fail, so the guard watches the mapping where it is installed.
    Fixed,
    /// The owner can truncate the object at any moment.
    Loose,
}

/// A mapping of a region.
#[derive(Debug)]
pub(super) struct Window {
    /// Dropped before its pages are unmapped.
    slot: Option<Slot>,
    mapping: ForeignMapping,
}

impl Window {
    fn open(object: &Object, region: Extent, footing: Footing, writable: bool) -> Result<Self> {
        if writable && !object.is_writable() {
            return Err(RegionFault::ReadOnly.into());
        }
        if footing == Footing::Loose && !SigbusGuard::is_installed() {
            return Err(RegionFault::Unguarded.into());
        }
        // The object holds the region, and no object is longer than 2^63 - 1 bytes.
        let len = region.len() as usize;
        let mapping = ForeignMapping::map(object, region.offset(), len, writable)?;
        let slot = match footing {
            Footing::Sealed => None,
            Footing::Fixed | Footing::Loose => SigbusGuard::watch(mapping.pages(), writable)?,
        };
        Ok(Self { slot, mapping })
    }

    pub(super) fn mapping(&self) -> &ForeignMapping {
        &self.mapping
    }
}

/// The mappings of a region, one to read and one to write. Each is made at its first use and made anew after a
/// truncation.
#[derive(Debug)]
pub(super) struct Windows {
    footing: Footing,
    to_read: Mutex<Option<Arc<Window>>>,
    to_write: Mutex<Option<Arc<Window>>>,
    /// A mapping for system calls that write to it.
    for_kernel: Mutex<Option<Arc<ForeignMapping>>>,
}

impl Windows {
    pub(super) fn new(footing: Footing) -> Self {
        Self {
            footing,
            to_read: Mutex::new(None),
            to_write: Mutex::new(None),
            for_kernel: Mutex::new(None),
        }
    }

    pub(super) fn footing(&self) -> Footing {
        self.footing
    }

    /// Returns the present mapping.
    pub(super) fn get(&self, object: &Object, region: Extent, write: bool) -> Result<Arc<Window>> {
        let mut window = self.of(write).lock().unwrap_or_else(PoisonError::into_inner);
        match &*window {
            Some(window) => Ok(window.clone()),
            None => {
                let fresh = Arc::new(Window::open(object, region, self.footing, write)?);
                Ok(window.insert(fresh).clone())
            }
        }
    }

    /// Returns a mapping that only the kernel touches, which needs no guard.
    pub(super) fn for_kernel(
        &self,
        object: &Object,
        region: Extent,
    ) -> Result<Arc<ForeignMapping>> {
        if !object.is_writable() {
            return Err(RegionFault::ReadOnly.into());
        }
        let mut mapping = self.for_kernel.lock().unwrap_or_else(PoisonError::into_inner);
        match &*mapping {
            Some(mapping) => Ok(mapping.clone()),
            None => {
                let (offset, len) = (region.offset(), region.len() as usize);
                let fresh = Arc::new(ForeignMapping::map(object, offset, len, true)?);
                Ok(mapping.insert(fresh).clone())
            }
        }
    }

    /// Runs `act` over the mapping.
    ///
    /// # Errors
    ///
    /// [`RegionFault::TruncatedInPlace`]: part of the bytes may have read as zeros.
    pub(super) fn access<R>(
        &self,
        object: &Object,
        (region, part): (Extent, Extent),
        write: bool,
        act: impl FnOnce(&ForeignMapping) -> R,
    ) -> Result<R> {
        let window = self.get(object, region, write)?;
        let announced = match object.kind() {
            RegionKind::Dmabuf => Some(dmabuf::Announced::start(object.as_fd(), write)?),
            _ => None,
        };
        let unblocked = window.slot.is_some().then(Unblocked::start);
        let done = act(&window.mapping);
        let faulted = window.slot.as_ref().is_some_and(Slot::faulted);
        drop(unblocked);
        if faulted {
            self.forget(&window, write);
            return Err(RegionFault::TruncatedInPlace { len: part.len() }.into());
        }
        announced.map_or(Ok(()), dmabuf::Announced::end)?;
        Ok(done)
    }

    /// Drops a mapping that the handler has replaced by zeros.
    fn forget(&self, spoilt: &Arc<Window>, write: bool) {
        let mut window = self.of(write).lock().unwrap_or_else(PoisonError::into_inner);
        window.take_if(|window| Arc::ptr_eq(window, spoilt));
    }

    fn of(&self, write: bool) -> &Mutex<Option<Arc<Window>>> {
        if write { &self.to_write } else { &self.to_read }
    }
}
