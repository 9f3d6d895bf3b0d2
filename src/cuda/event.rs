//! Points in a stream's work that other streams, of this process or another one, wait for.

#![allow(unsafe_code)]

use std::fmt;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUipcEventHandle};

use crate::cuda::device::Device;
use crate::cuda::library::{NOT_READY, ends_all};
use crate::cuda::openings::Opening;
use crate::cuda::stream::Stream;
use crate::error::{CudaFault, ErrorKind, Result};

/// The name of an event, for other processes.
pub(super) type EventHandle = [u8; 64];

/// An event: as it was last recorded, everything that its stream had been given before.
pub(super) struct Event {
    device: Device,
    raw: CUevent,
    handle: EventHandle,
}

// SAFETY: the driver's events may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above, and by several at once.
unsafe impl Sync for Event {}

impl Event {
    /// One that nobody else knows.
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

    /// One that other processes can open.
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

    /// One that is found by its handle in this process, too.
    pub(super) fn of_device(device: &Device) -> Result<Opening<Self>> {
        let event = Self::new(device)?;
        // Who gets the handle back in this process uses the event as it is.
        device.openings().events.get(event.handle, || Ok(event))
    }

    /// Another process's.
    pub(super) fn open(device: &Device, handle: EventHandle) -> Result<Self> {
        let (driver, _entered) = (device.driver(), device.enter()?);
        let named = CUipcEventHandle { reserved: handle.map(|byte| byte as _) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` has room for an event. The driver judges the handle.
        let code = unsafe { (driver.calls.cuIpcOpenEventHandle)(&mut raw, named) };
        driver.check("cuIpcOpenEventHandle", code)?;
        Ok(Self { device: device.clone(), raw, handle })
    }

    /// Its name, for other processes.
    pub(super) fn handle(&self) -> EventHandle {
        self.handle
    }

    /// It is over when all is that `stream` was given so far.
    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        stream.check_device(&self.device)?;
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        // SAFETY: both live, in the context that is current.
        let code = unsafe { (driver.calls.cuEventRecord)(self.raw, stream.raw()) };
        driver.check("cuEventRecord", code)
    }

    /// What `stream` is given from now on begins when this is over.
    pub(super) fn hold_back(&self, stream: &Stream) -> Result<()> {
        stream.check_device(&self.device)?;
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        // SAFETY: both live, in the context that is current.
        let code = unsafe { (driver.calls.cuStreamWaitEvent)(stream.raw(), self.raw, 0) };
        driver.check("cuStreamWaitEvent", code)
    }

    /// Whether it is over, or was never recorded. Not where the driver does not say.
    pub(super) fn is_over(&self) -> bool {
        let code = match self.device.enter() {
            // SAFETY: it lives, in the context that is current.
            Ok(_entered) => unsafe { (self.device.driver().calls.cuEventQuery)(self.raw) },
            Err(error) => match error.kind() {
                ErrorKind::Cuda(CudaFault::Driver { code, .. }) => *code,
                _ => NOT_READY,
            },
        };
        code == 0 || ends_all(code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Some(_entered) = self.device.enter_to_end() else { return };
        // SAFETY: it was made or opened once, and nobody uses it after this.
        let code = unsafe { (self.device.driver().calls.cuEventDestroy_v2)(self.raw) };
        if code != 0 {
            tracing::warn!(code, "cuEventDestroy_v2");
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("device", &self.device.ordinal()).finish_non_exhaustive()
    }
}
