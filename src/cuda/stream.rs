//! Streams: ordered work of a GPU.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUstream, CUstream_flags, CUstreamCaptureStatus};

use crate::cuda::device::Device;
use crate::cuda::library::{NOT_READY, ends_all};
use crate::cuda::parked::Lane;
use crate::error::{CudaFault, Error, ErrorKind, Result};

/// The sleep between two checks of a stream.
const PAUSE: Duration = Duration::from_micros(50);

/// A stream of a GPU. Handles are cheap to clone. The stream lives as long as one of them, or a view or tensor
/// that uses it.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamCore>,
}

struct StreamCore {
    device: Device,
    raw: CUstream,
    is_ours: bool,
}

// SAFETY: the driver's streams may be used by any thread.
unsafe impl Send for StreamCore {}
// SAFETY: as above, and by several at once.
unsafe impl Sync for StreamCore {}

impl Device {
    /// Returns a new stream, which does not wait for the legacy default stream.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver): the driver refuses.
    pub fn stream(&self) -> Result<Stream> {
        let (driver, _entered) = (self.driver(), self.enter()?);
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` has room for a stream, and the device's context is current.
        let code = unsafe { (driver.calls.cuStreamCreate)(&mut raw, flags) };
        driver.check("cuStreamCreate", code)?;
        Ok(Stream { inner: Arc::new(StreamCore { device: self.clone(), raw, is_ours: true }) })
    }

    /// Returns a new stream of the highest priority.
    pub(super) fn urgent_stream(&self) -> Result<Stream> {
        let (driver, _entered) = (self.driver(), self.enter()?);
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both have room for an int, and the device's context is current.
        let code = unsafe { (driver.calls.cuCtxGetStreamPriorityRange)(&mut least, &mut greatest) };
        driver.check("cuCtxGetStreamPriorityRange", code)?;
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` has room for a stream, and the device's context is current.
        let code = unsafe { (driver.calls.cuStreamCreateWithPriority)(&mut raw, flags, greatest) };
        driver.check("cuStreamCreateWithPriority", code)?;
        Ok(Stream { inner: Arc::new(StreamCore { device: self.clone(), raw, is_ours: true }) })
    }

    /// Returns the legacy default stream of its context, which PyTorch and CuPy use by default.
    pub fn default_stream(&self) -> Stream {
        let raw = std::ptr::null_mut();
        Stream { inner: Arc::new(StreamCore { device: self.clone(), raw, is_ours: false }) }
    }

    /// Returns a handle of a stream that another library has made and keeps.
    ///
    /// # Safety
    ///
    /// - `raw` is a `CUstream` of this GPU's primary context, or `CU_STREAM_LEGACY`. It is not
    ///   `CU_STREAM_PER_THREAD`, which is another stream on each thread.
    /// - It lives as long as the handle, its clones, and every view and tensor that uses one of them.
    pub unsafe fn stream_of_raw(&self, raw: *mut c_void) -> Stream {
        let inner = StreamCore { device: self.clone(), raw: raw.cast(), is_ours: false };
        Stream { inner: Arc::new(inner) }
    }

    /// Returns the stream of a number that a library passes to `__dlpack__(stream=...)` when it takes a tensor:
    ///
    /// | number | stream |
    /// |---|---|
    /// | `None`, 1 | the legacy default stream |
    /// | 2 | the legacy default stream, which waits for the default streams of all threads, and they for it |
    /// | -1 | a new stream: the library has said that nothing has to wait |
    /// | 3 and more | the stream at this address |
    ///
    /// Sources: the Python array API standard, `__dlpack__`; CUDA Runtime API, "Stream synchronization behavior".
    ///
    /// # Errors
    ///
    /// [`CudaFault::StreamNumber`](crate::error::CudaFault::StreamNumber): the number is 0, which the standard excludes for
    /// CUDA, or below -1. As [`stream`](Self::stream) for -1.
    ///
    /// # Safety
    ///
    /// As [`stream_of_raw`](Self::stream_of_raw), for a number of 3 and more.
    pub unsafe fn stream_of_dlpack(&self, number: Option<i64>) -> Result<Stream> {
        match number {
            None | Some(1 | 2) => Ok(self.default_stream()),
            Some(-1) => self.stream(),
            Some(address @ 3..) => {
                let raw = std::ptr::without_provenance_mut(address as usize);
                // SAFETY: the caller's promise.
                Ok(unsafe { self.stream_of_raw(raw) })
            }
            Some(number) => Err(CudaFault::StreamNumber { number }.into()),
        }
    }
}

impl Stream {
    /// Returns its GPU.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns the `CUstream`, for other libraries.
    pub fn as_raw(&self) -> *mut c_void {
        self.inner.raw.cast()
    }

    /// Returns its number for `__dlpack__(stream=...)` of a library that hands a tensor over: its address, or 1 for the
    /// legacy default stream.
    pub fn dlpack_number(&self) -> i64 {
        // A null pointer and `CU_STREAM_LEGACY`, whose address is 1, are one stream.
        self.as_raw().addr().max(1) as i64
    }

    /// Waits until the work that the stream has got so far is done.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver): this work, or earlier work, has failed.
    pub fn synchronize(&self) -> Result<()> {
        let (driver, _entered) = (self.device().driver(), self.device().enter()?);
        // SAFETY: it lives, in the context that is current.
        let code = unsafe { (driver.calls.cuStreamSynchronize)(self.raw()) };
        driver.check("cuStreamSynchronize", code)
    }

    /// Waits as [`synchronize`](Self::synchronize) does, until `deadline`: the stream may wait for a peer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], [`CudaFault::Capturing`](crate::error::CudaFault::Capturing), and as
    /// [`synchronize`](Self::synchronize).
    pub fn synchronize_deadline(&self, deadline: Instant) -> Result<()> {
        self.settle(Until::new(deadline))
    }

    /// Returns whether the work that the stream has got so far is done.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize).
    pub fn is_idle(&self) -> Result<bool> {
        let (driver, _entered) = (self.device().driver(), self.device().enter()?);
        // SAFETY: it lives, in the context that is current.
        match unsafe { (driver.calls.cuStreamQuery)(self.raw()) } {
            NOT_READY => Ok(false),
            code => driver.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Writes a word when the work that the stream has got so far is done.
    pub(super) fn write_word(&self, at: CUdeviceptr, value: u64) -> Result<()> {
        let (driver, _entered) = (self.device().driver(), self.device().enter()?);
        let (write, _) = self.device().words()?;
        // SAFETY: the stream lives, in the context that is current, and the caller keeps the word mapped.
        let code = unsafe { write(self.raw(), at, value, 0) };
        driver.check("cuStreamWriteValue64", code)
    }

    /// Makes later work of the stream wait until a word is no less than `value`.
    pub(super) fn await_word(&self, at: CUdeviceptr, value: u64) -> Result<()> {
        let (driver, _entered) = (self.device().driver(), self.device().enter()?);
        let (_, wait) = self.device().words()?;
        // SAFETY: the stream lives, in the context that is current, and the caller keeps the word mapped.
        let code = unsafe { wait(self.raw(), at, value, 0) };
        driver.check("cuStreamWaitValue64", code)
    }

    /// Returns its name among the streams of this process.
    pub(super) fn lane(&self) -> Lane {
        Some((self.device().ordinal(), self.raw().addr()))
    }

    pub(super) fn raw(&self) -> CUstream {
        self.inner.raw
    }

    /// Checks that the stream belongs to this GPU.
    pub(super) fn check_device(&self, device: &Device) -> Result<()> {
        if self.device().is(device) { Ok(()) } else { Err(CudaFault::OtherStream.into()) }
    }

    pub(super) fn is(&self, other: &Stream) -> bool {
        self.raw() == other.raw() && self.device().is(other.device())
    }

    /// Checks that the stream's work does not become part of a graph.
    pub(super) fn check_capture(&self) -> Result<()> {
        let (driver, _entered) = (self.device().driver(), self.device().enter()?);
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `status` has room for one, and the stream lives, in the context that is current.
        let code = unsafe { (driver.calls.cuStreamIsCapturing)(self.raw(), &mut status) };
        driver.check("cuStreamIsCapturing", code)?;
        match status {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(CudaFault::Capturing.into()),
        }
    }

    /// Returns whether the stream's work becomes part of a graph.
    pub(super) fn is_capturing(&self) -> bool {
        let refused = self.check_capture();
        refused.is_err_and(|error| matches!(error.kind(), ErrorKind::Cuda(CudaFault::Capturing)))
    }

    /// Returns whether the work that the stream has got so far is done, or no work of this process is left. An error that says
    /// nothing of it is no answer.
    pub(super) fn is_over(&self) -> bool {
        self.is_idle().unwrap_or_else(|error| ends_work(&error))
    }

    /// Waits until the work that the stream has got so far is done. Returns `false` if the driver cannot tell.
    pub(super) fn wait_to_end(&self) -> bool {
        // The error may belong to other work and say nothing of this one. The driver is asked once more.
        let mut idle = self.synchronize().map(|()| true);
        if idle.as_ref().is_err_and(|error| !ends_work(error)) {
            idle = self.is_idle();
        }
        loop {
            match idle {
                Ok(true) => return true,
                Ok(false) => std::thread::sleep(PAUSE),
                Err(error) => return ends_work(&error),
            }
            idle = self.is_idle();
        }
    }

    /// Waits for the work that the stream has got so far, while time is left. Another stream then goes on with
    /// the same memory.
    pub(super) fn settle(&self, until: Until) -> Result<()> {
        self.check_capture()?;
        self.synchronize_while(Some(until), || Ok(()))
    }

    /// Waits as [`synchronize`](Self::synchronize) does, while time is left and `goes_on` returns no error.
    pub(super) fn synchronize_while(
        &self,
        until: Option<Until>,
        goes_on: impl Fn() -> Result<()>,
    ) -> Result<()> {
        while !self.is_idle()? {
            goes_on()?;
            let left = until.map_or(Ok(PAUSE), |until| until.left())?;
            std::thread::sleep(PAUSE.min(left));
        }
        Ok(())
    }
}

/// The patience of a caller that waits for a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until {
    start: Instant,
    deadline: Instant,
}

impl Until {
    /// Returns the patience that starts now.
    pub(super) fn new(deadline: Instant) -> Self {
        Self { start: Instant::now(), deadline }
    }

    /// Returns the time that is left, or an error if none is.
    pub(super) fn left(self) -> Result<Duration> {
        let now = Instant::now();
        if now < self.deadline {
            return Ok(self.deadline - now);
        }
        let late = Error::new(ErrorKind::TimedOut { after: now - self.start });
        Err(late.waiting_for("the stream's work, which may wait for a peer"))
    }
}

/// Returns whether an error says that no work runs any more.
pub(super) fn ends_work(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Cuda(CudaFault::Driver { code, .. }) if ends_all(*code))
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        let Some(_entered) = self.device.enter_to_end() else { return };
        // SAFETY: it was made once, and nobody uses it after this. The driver does first what it was given.
        let code = unsafe { (self.device.driver().calls.cuStreamDestroy_v2)(self.raw) };
        self.device.ended("cuStreamDestroy_v2", code);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("device", &self.device().ordinal()).finish_non_exhaustive()
    }
}
