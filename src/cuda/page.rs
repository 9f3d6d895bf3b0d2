//! A page of pinned host memory to which a stream copies words. A copy to other memory would wait within the driver.

#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUdeviceptr;

use crate::cuda::device::Device;
use crate::cuda::parked::Parked;
use crate::cuda::stream::Stream;
use crate::error::Result;

/// The words of a page.
pub(super) const SLOTS: usize = 512;

/// Its drop frees it, which may wait for all work on the GPU.
pub(super) struct Page {
    device: Device,
    start: *mut c_void,
}

// SAFETY: the memory belongs to the page, and its words are read as atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Returns a new page, of zeros.
    pub(super) fn new(device: &Device) -> Result<Self> {
        let (driver, _entered) = (device.driver(), device.enter()?);
        let (mut start, len) = (std::ptr::null_mut(), SLOTS * size_of::<u64>());
        // SAFETY: `start` has room for a pointer, and the device's context is current.
        let code = unsafe { (driver.calls.cuMemHostAlloc)(&mut start, len, 0 as c_uint) };
        driver.check("cuMemHostAlloc", code)?;
        // SAFETY: the driver has allocated as many bytes, and nobody else knows of them.
        unsafe { start.cast::<u8>().write_bytes(0, len) };
        Ok(Self { device: device.clone(), start })
    }

    /// Queues a copy of the word at an address of the GPU on the stream. The caller keeps both until it is done.
    pub(super) fn copy(&self, slot: usize, from: CUdeviceptr, stream: &Stream) -> Result<()> {
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        let (to, len) = (std::ptr::from_ref(self.slot(slot)).cast_mut().cast(), size_of::<u64>());
        // SAFETY: both have as many bytes, and the caller keeps them until the stream is done.
        let code = unsafe { (driver.calls.cuMemcpyDtoHAsync_v2)(to, from, len, stream.raw()) };
        driver.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Returns the word in a slot whose copy is done.
    pub(super) fn word(&self, slot: usize) -> u64 {
        u64::from_le(self.slot(slot).load(Ordering::Acquire))
    }

    fn slot(&self, slot: usize) -> &AtomicU64 {
        assert!(slot < SLOTS, "a page has {SLOTS} words");
        // SAFETY: the slot lies in the page.
        let at = unsafe { self.start.cast::<AtomicU64>().add(slot) };
        // SAFETY: the page is aligned and lives as long as `self`. This process reads a word by atomic loads alone.
        unsafe { &*at }
    }
}

impl Parked for Page {
    fn is_over(&self) -> bool {
        // Its stream keeps it while it copies.
        true
    }

    fn drop_waits(&self) -> bool {
        true
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Some(_entered) = self.device.enter_to_end() else { return };
        // SAFETY: it was allocated once, and nobody uses it after this.
        let code = unsafe { (self.device.driver().calls.cuMemFreeHost)(self.start) };
        self.device.ended("cuMemFreeHost", code);
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("device", &self.device.ordinal()).finish_non_exhaustive()
    }
}
