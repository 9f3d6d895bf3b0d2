//! Events: points in a stream's work for which other streams of this process or another one wait.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUipcEventHandle};

use crate::cuda::device::Device;
use crate::cuda::library::NOT_READY;
use crate::cuda::openings::{Opening, Table};
use crate::cuda::per_gpu::PerGpu;
use crate::cuda::stream::{Stream, ends_work};
use crate::error::Result;

/// The handle of an event, for other processes.
pub(super) type EventHandle = [u8; 64];

/// The events that this process has open, and its own that others may open.
static OPEN: PerGpu<Table<Event>> = PerGpu::new();

/// An event. Its last record covers the work that the stream had got by then.
pub(super) struct Event {
    device: Device,
    raw: CUevent,
    handle: EventHandle,
}

/// An event of this process.
#[derive(Debug)]
pub(super) enum OwnEvent {
    /// Other processes can open it.
    Exported(Opening<Event>),
    /// None can.
    Private(Event),
}

impl Deref for OwnEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        match self {
            Self::Exported(event) => event,
            Self::Private(event) => event,
        }
    }
}

// SAFETY: the driver's events may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above, and by several at once.
unsafe impl Sync for Event {}

impl Event {
    /// Returns an event of this process alone.
    pub(super) fn private(device: &Device) -> Result<Self> {
        Self::make(device, 0)
    }

    fn make(device: &Device, more: u32) -> Result<Self> {
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | more;
        let (driver, _entered) = (device.driver(), device.enter()?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` has room for an event, and the device's context is current.
        let code = unsafe { (driver.calls.cuEventCreate)(&mut raw, flags) };
        driver.check("cuEventCreate", code)?;
        Ok(Self { device: device.clone(), raw, handle: [0; 64] })
    }

    fn new(device: &Device) -> Result<Self> {
        let (driver, _entered) = (device.driver(), device.enter()?);
        let mut event = Self::make(device, CUevent_flags::CU_EVENT_INTERPROCESS as u32)?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: `handle` has room for one, and the event was made for this.
        let code = unsafe { (driver.calls.cuIpcGetEventHandle)(&mut handle, event.raw) };
        driver.check("cuIpcGetEventHandle", code)?;
        event.handle = handle.reserved.map(|byte| byte as u8);
        Ok(event)
    }

    /// Returns an event that other processes can open.
    pub(super) fn exported(device: &Device) -> Result<Opening<Self>> {
        let event = Self::new(device)?;
        // A receiver in this process uses the event itself.
        OPEN.of(device).get(event.handle, || Ok(event))
    }

    /// Opens another process's event, unless it is open. In the process that loaded the driver.
    pub(super) fn open(device: &Device, handle: EventHandle) -> Result<Opening<Self>> {
        OPEN.of(device).get(handle, || Self::attach(device, handle))
    }

    fn attach(device: &Device, handle: EventHandle) -> Result<Self> {
        let (driver, _entered) = (device.driver(), device.enter()?);
        let named = CUipcEventHandle { reserved: handle.map(|byte| byte as _) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` has room for an event. The driver checks the handle.
        let code = unsafe { (driver.calls.cuIpcOpenEventHandle)(&mut raw, named) };
        driver.check("cuIpcOpenEventHandle", code)?;
        Ok(Self { device: device.clone(), raw, handle })
    }

    /// Returns its handle, for other processes.
    pub(super) fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Records the event after the work that `stream` has got so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        stream.check_device(&self.device)?;
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        // SAFETY: both live, in the context that is current.
        let code = unsafe { (driver.calls.cuEventRecord)(self.raw, stream.raw()) };
        driver.check("cuEventRecord", code)
    }

    /// Returns whether it is of this GPU, whose streams alone record it.
    pub(super) fn is_of(&self, device: &Device) -> bool {
        self.device.is(device)
    }

    /// Makes later work of `stream`, which may be of another GPU, wait for the event.
    pub(super) fn hold_back(&self, stream: &Stream) -> Result<()> {
        let (driver, _entered) = (self.device.driver(), stream.device().enter()?);
        // SAFETY: both live, the stream in the context that is current. The event may be of another one (cuStreamWaitEvent).
        let code = unsafe { (driver.calls.cuStreamWaitEvent)(stream.raw(), self.raw, 0) };
        driver.check("cuStreamWaitEvent", code)
    }

    /// Returns whether the event is over or was never recorded. Returns `false` if the driver does not say.
    pub(super) fn is_over(&self) -> bool {
        self.query().unwrap_or_else(|error| ends_work(&error))
    }

    /// Returns whether the event is over or was never recorded.
    pub(super) fn query(&self) -> Result<bool> {
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        // SAFETY: it lives, in the context that is current.
        match unsafe { (driver.calls.cuEventQuery)(self.raw) } {
            NOT_READY => Ok(false),
            code => driver.check("cuEventQuery", code).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Some(_entered) = self.device.enter_to_end() else { return };
        // SAFETY: it was made or opened once, and nobody uses it after this.
        let code = unsafe { (self.device.driver().calls.cuEventDestroy_v2)(self.raw) };
        self.device.ended("cuEventDestroy_v2", code);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("device", &self.device.ordinal()).finish_non_exhaustive()
    }
}
