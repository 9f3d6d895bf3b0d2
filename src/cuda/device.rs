//! The GPUs that this process sees, and their contexts.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uint};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUstream, CUstreamCaptureMode, CUuuid,
};

use crate::cuda::library::{Code, Driver, INVALID_VALUE, ends_all, is_ours};
use crate::error::{CudaFault, Error, ErrorKind, GpuUuid, Result, contain};

/// A GPU in its primary context, which the CUDA runtime, PyTorch and CuPy use, too. Handles are cheap to
/// clone. All handles of a GPU share its open memory.
///
/// # Examples
///
/// ```no_run
/// use slipring::cuda::Device;
///
/// for device in Device::all()? {
///     println!("{} {}: {} bytes", device.ordinal(), device.name(), device.total_memory());
/// }
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceCore>,
}

struct DeviceCore {
    driver: &'static Driver,
    ordinal: u32,
    raw: CUdevice,
    uuid: GpuUuid,
    name: String,
    total: u64,
    context: CUcontext,
    /// Whether the log tells that the context is over.
    is_told: AtomicBool,
    /// `None`: its streams cannot write and await words.
    words: Option<(WordCall, WordCall)>,
}

// SAFETY: the driver's handles of contexts may be used by any thread.
unsafe impl Send for DeviceCore {}
// SAFETY: as above, and by several at once.
unsafe impl Sync for DeviceCore {}

/// `CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS` of CUDA 12, which CUDA 11.7 has with `_V2`: the bindings name it as
/// their version does.
// SAFETY: the type is an enum of C, and both versions have this number for it.
const WORDS_OF_64_BITS: CUdevice_attribute = unsafe { std::mem::transmute(122u32) };

/// A call by which a stream writes or awaits a word: stream, address, value, flags.
// SAFETY: to be called as `cuda.h` says of it, with the device's context current.
pub(super) type WordCall = unsafe extern "C" fn(CUstream, CUdeviceptr, u64, c_uint) -> Code;

/// The GPUs in use.
static DEVICES: Mutex<Vec<Weak<DeviceCore>>> = Mutex::new(Vec::new());

/// The GPUs that stay in use, because peers have lent memory of them to work of others.
static KEPT: Mutex<Vec<Device>> = Mutex::new(Vec::new());

impl Device {
    /// Returns the number of GPUs that this process sees.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cuda`](crate::ErrorKind::Cuda): no driver is usable, with the reason;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked): the parent process has used the driver.
    pub fn count() -> Result<u32> {
        count(Driver::get()?)
    }

    /// Returns all GPUs that this process sees, in the driver's order.
    ///
    /// # Errors
    ///
    /// As [`count`](Self::count) and [`new`](Self::new).
    pub fn all() -> Result<Vec<Self>> {
        (0..Self::count()?).map(Self::new).collect()
    }

    /// Returns the GPU of this number, in the driver's order (`CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER`).
    ///
    /// # Errors
    ///
    /// - As [`count`](Self::count).
    /// - [`CudaFault::Ordinal`]: there are fewer GPUs.
    /// - [`CudaFault::NoIpc`]: other processes cannot open its memory.
    /// - [`CudaFault::Driver`]: the driver refuses its context, perhaps for lack of memory.
    pub fn new(ordinal: u32) -> Result<Self> {
        let driver = Driver::get()?;
        let count = count(driver)?;
        if ordinal >= count {
            return Err(CudaFault::Ordinal { ordinal, count }.into());
        }
        // The lock lasts until the device is made: handles of one GPU are compared by their `DeviceCore`.
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|device| device.strong_count() > 0);
        let known = devices.iter().filter_map(Weak::upgrade);
        if let Some(inner) = { known }.find(|inner| inner.ordinal == ordinal) {
            return Ok(Self { inner });
        }
        let inner = Arc::new(DeviceCore::new(driver, ordinal)?);
        devices.push(Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// Returns the GPU of this UUID. Returns `None` if this process does not see it: another container has it,
    /// or `CUDA_VISIBLE_DEVICES` hides it.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn of_uuid(uuid: GpuUuid) -> Result<Option<Self>> {
        ordinal_of(Driver::get()?, uuid)?.map(Self::new).transpose()
    }

    /// Returns whether this process sees the GPU of this UUID.
    pub(super) fn sees(uuid: GpuUuid) -> Result<bool> {
        Ok(ordinal_of(Driver::get()?, uuid)?.is_some())
    }

    /// Returns its number in the driver's order.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// Returns its UUID, which is the same in every process.
    pub fn uuid(&self) -> GpuUuid {
        self.inner.uuid
    }

    /// Returns the maker's name of it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns its memory in bytes.
    pub fn total_memory(&self) -> u64 {
        self.inner.total
    }

    /// Returns whether its work can use memory of another GPU, or of itself. The answer may differ in the other direction.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use slipring::cuda::Device;
    ///
    /// # fn read(link: &mut slipring::Connection) -> slipring::Result<()> {
    /// let device = Device::new(1)?;
    /// if let Some(tensor) = link.recv_tensor()?
    ///     && let Some(home) = tensor.gpu().map(Device::of_uuid).transpose()?.flatten()
    ///     && device.can_access(&home)?
    /// {
    ///     let view = device.open(&tensor, &device.stream()?)?; // kernels of GPU 1 read it where it lies
    /// #   drop(view);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`]: the driver does not say.
    pub fn can_access(&self, other: &Device) -> Result<bool> {
        Ok(self.is(other) || self.reaches(other.inner.raw)?)
    }

    fn reaches(&self, peer: CUdevice) -> Result<bool> {
        let DeviceCore { driver, raw, .. } = &*self.inner;
        let mut can = 0;
        // SAFETY: `can` has room for an int, and both devices are the driver's.
        let code = unsafe { (driver.calls.cuDeviceCanAccessPeer)(&mut can, *raw, peer) };
        driver.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Returns the bytes of memory of the GPU of this UUID, whose memory the work of this one is to use. It makes no context there.
    ///
    /// # Errors
    ///
    /// [`CudaFault::HiddenDevice`], [`CudaFault::NoPeerAccess`], [`CudaFault::Driver`].
    pub(super) fn memory_in_reach(&self, uuid: GpuUuid) -> Result<u64> {
        if uuid == self.uuid() {
            return Ok(self.total_memory());
        }
        let driver = self.inner.driver;
        let ordinal = ordinal_of(driver, uuid)?.ok_or(CudaFault::HiddenDevice { is: uuid })?;
        let peer = raw(driver, ordinal)?;
        if !self.reaches(peer)? {
            return Err(CudaFault::NoPeerAccess { is: uuid, asked: self.uuid() }.into());
        }
        memory_of(driver, peer)
    }

    /// Returns the GPU of this UUID, which has memory that a peer has lent. The process keeps its context from then on: a peer
    /// that lends and withdraws such memory has it made once.
    ///
    /// # Errors
    ///
    /// [`CudaFault::HiddenDevice`]; as [`new`](Self::new).
    pub(super) fn peer(&self, uuid: GpuUuid) -> Result<Self> {
        if uuid == self.uuid() {
            return Ok(self.clone());
        }
        let peer = Self::of_uuid(uuid)?.ok_or(CudaFault::HiddenDevice { is: uuid })?;
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|known| known.is(&peer)) {
            kept.push(peer.clone());
        }
        Ok(peer)
    }

    /// Returns whether its memory can be exported as file descriptors. A driver that does not know the question exports none.
    pub(super) fn exports_descriptors(&self) -> Result<bool> {
        let DeviceCore { driver, raw, .. } = &*self.inner;
        let has = |which| attribute(driver, *raw, which).map(|value| value.unwrap_or(0) != 0);
        Ok(has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)?
            && has(
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            )?)
    }

    /// Returns the UUID of the GPU that this process sees under a number.
    pub(super) fn uuid_at(&self, ordinal: c_int) -> Result<Option<GpuUuid>> {
        let driver = self.inner.driver;
        match u32::try_from(ordinal) {
            Ok(ordinal) if ordinal < count(driver)? => {
                uuid_of(driver, raw(driver, ordinal)?).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns whether memory of the host can be registered with it, which this process may write (`is_own`) or only read.
    pub(super) fn pins(&self, is_own: bool) -> Result<bool> {
        let DeviceCore { driver, raw, .. } = &*self.inner;
        let which = if is_own {
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        } else {
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        };
        attribute(driver, *raw, which).map(|value| value.is_some_and(|value| value != 0))
    }

    /// Returns the calls by which its streams write and await words of 64 bits, `cuStreamWriteValue64` and
    /// `cuStreamWaitValue64`.
    ///
    /// # Errors
    ///
    /// [`CudaFault::NoWords`]: the driver or the GPU lacks them.
    pub(super) fn words(&self) -> Result<(WordCall, WordCall), CudaFault> {
        let DeviceCore { words, ordinal, .. } = &*self.inner;
        words.ok_or(CudaFault::NoWords { ordinal: *ordinal })
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.inner.driver
    }

    pub(super) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Makes its context current on the calling thread, until the returned guard is dropped. A caller with
    /// several calls of the driver enters once around all of them. An inner guard costs nothing.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        let driver = self.inner.driver;
        driver.check_fork()?;
        let inner = Arc::as_ptr(&self.inner);
        if ENTERED.get() == inner {
            return Ok(Entered { left: None });
        }
        // SAFETY: the context is retained for as long as `inner` lives.
        let code = unsafe { (driver.calls.cuCtxPushCurrent_v2)(self.inner.context) };
        driver.check("cuCtxPushCurrent_v2", code)?;
        // From here on dropping the guard leaves the context.
        let mut left = Left { device: self, outer: ENTERED.replace(inner), capture: None };
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is one, and gets the one that was before.
        let code = unsafe { (driver.calls.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        driver.check("cuThreadExchangeStreamCaptureMode", code)?;
        left.capture = Some(mode);
        Ok(Entered { left: Some(left) })
    }

    /// Tells the log of an error that no caller gets. When the context is over, every call fails, and the log says so once.
    #[cold]
    pub(super) fn tell(&self, error: &Error, what: &str) {
        let code = match error.kind() {
            ErrorKind::Cuda(CudaFault::Driver { code, .. }) => *code,
            _ => 0,
        };
        // A subscriber of traces is a user's code, and the caller has work to end.
        if !ends_all(code) {
            contain(|| tracing::warn!(error = format_args!("{error:#}"), "{what}"));
        } else if !self.inner.is_told.swap(true, Ordering::Relaxed) {
            let (error, gpu) = (format_args!("{error:#}"), self.ordinal());
            contain(|| {
                tracing::warn!(
                    error,
                    gpu,
                    "{what}: no work runs on the GPU any more, and no more is said of it"
                )
            });
        }
    }

    /// Tells the log of a call that ends an object and has failed.
    pub(super) fn ended(&self, call: &'static str, code: Code) {
        if let Err(error) = self.driver().check(call, code) {
            self.tell(&error, "an object of the driver is left");
        }
    }

    /// Enters the context to release an object. Returns `None` if that is impossible: in a forked child, or
    /// when the process is ending and the driver is gone.
    pub(super) fn enter_to_end(&self) -> Option<Entered<'_>> {
        is_ours().then(|| self.enter().ok()).flatten()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceCore { ordinal, uuid, name, .. } = &*self.inner;
        let mut shown = f.debug_struct("Device");
        shown.field("ordinal", ordinal).field("name", name);
        shown.field("uuid", &format_args!("{uuid}")).finish_non_exhaustive()
    }
}

thread_local! {
    /// The device whose context this module made current last on this thread and has not left: it is current,
    /// because no user's code runs in between except subscribers of `tracing`, which do not change it. Null:
    /// none.
    static ENTERED: Cell<*const DeviceCore> = const { Cell::new(std::ptr::null()) };
}

/// A guard of a thread's current context. A query or an allocation under it does not spoil a graph that is
/// being captured on this thread or another one: no call here is part of a graph.
pub(super) struct Entered<'a> {
    /// `None` within another guard of the same device.
    #[expect(dead_code, reason = "nothing but its end matters")]
    left: Option<Left<'a>>,
}

/// The thread's earlier context. It stays on its thread: pointers are not `Send`.
struct Left<'a> {
    /// The borrow keeps the address from being reused.
    device: &'a Device,
    outer: *const DeviceCore,
    capture: Option<CUstreamCaptureMode>,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        ENTERED.set(self.outer);
        let calls = &self.device.driver().calls;
        if let Some(mut mode) = self.capture {
            // SAFETY: `mode` is one that the driver gave.
            let code = unsafe { (calls.cuThreadExchangeStreamCaptureMode)(&mut mode) };
            self.device.ended("cuThreadExchangeStreamCaptureMode", code);
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: `popped` has room for a pointer. It pops what `enter` has pushed.
        let code = unsafe { (calls.cuCtxPopCurrent_v2)(&mut popped) };
        self.device.ended("cuCtxPopCurrent_v2", code);
    }
}

impl DeviceCore {
    fn new(driver: &'static Driver, ordinal: u32) -> Result<Self> {
        let raw = raw(driver, ordinal)?;
        let has = |which, unknown| {
            attribute(driver, raw, which).map(|value| value.map_or(unknown, |value| value != 0))
        };
        // A driver before CUDA 12 does not know the first question. Where it has no such events, making one fails.
        if !has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, true)?
            || !has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, false)?
        {
            return Err(CudaFault::NoIpc { ordinal }.into());
        }
        let (uuid, name, total) =
            (uuid_of(driver, raw)?, name_of(driver, raw)?, memory_of(driver, raw)?);
        let calls = driver.calls.cuStreamWriteValue64_v2.zip(driver.calls.cuStreamWaitValue64_v2);
        let words = match calls {
            Some(calls) => has(WORDS_OF_64_BITS, false)?.then_some(calls),
            None => None,
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` has room for a pointer, and the device is the driver's.
        let code = unsafe { (driver.calls.cuDevicePrimaryCtxRetain)(&mut context, raw) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let is_told = AtomicBool::new(false);
        Ok(Self { driver, ordinal, raw, uuid, name, total, context, is_told, words })
    }
}

impl Drop for DeviceCore {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        // SAFETY: it was retained once by `new`, and everything made in it held this.
        let code = unsafe { (self.driver.calls.cuDevicePrimaryCtxRelease_v2)(self.raw) };
        if code != 0 {
            tracing::warn!(code, "cuDevicePrimaryCtxRelease_v2");
        }
    }
}

fn count(driver: &Driver) -> Result<u32> {
    let mut count = 0;
    // SAFETY: `count` has room for an int.
    let code = unsafe { (driver.calls.cuDeviceGetCount)(&mut count) };
    driver.check("cuDeviceGetCount", code)?;
    Ok(u32::try_from(count).unwrap_or(0))
}

fn raw(driver: &Driver, ordinal: u32) -> Result<CUdevice> {
    let mut raw = 0;
    // SAFETY: `raw` has room for a device.
    let code = unsafe { (driver.calls.cuDeviceGet)(&mut raw, ordinal as c_int) };
    driver.check("cuDeviceGet", code).map(|()| raw)
}

fn ordinal_of(driver: &Driver, uuid: GpuUuid) -> Result<Option<u32>> {
    for ordinal in 0..count(driver)? {
        if uuid_of(driver, raw(driver, ordinal)?)? == uuid {
            return Ok(Some(ordinal));
        }
    }
    Ok(None)
}

/// Returns an attribute. `None`: the driver is older than the attribute.
fn attribute(driver: &Driver, raw: CUdevice, which: CUdevice_attribute) -> Result<Option<c_int>> {
    let mut value = 0;
    // SAFETY: `value` has room for an int, and the device is the driver's.
    let code = unsafe { (driver.calls.cuDeviceGetAttribute)(&mut value, which, raw) };
    match code {
        INVALID_VALUE => Ok(None),
        code => driver.check("cuDeviceGetAttribute", code).map(|()| Some(value)),
    }
}

fn uuid_of(driver: &Driver, raw: CUdevice) -> Result<GpuUuid> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` has room for one, and the device is the driver's.
    let code = unsafe { (driver.calls.cuDeviceGetUuid_v2)(&mut uuid, raw) };
    driver.check("cuDeviceGetUuid_v2", code)?;
    Ok(GpuUuid(uuid.bytes.map(|byte| byte as u8)))
}

fn name_of(driver: &Driver, raw: CUdevice) -> Result<String> {
    let mut name = [0u8; 256];
    // SAFETY: `name` has room for as many characters as are said, and the device is the driver's.
    let code = unsafe {
        (driver.calls.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, raw)
    };
    driver.check("cuDeviceGetName", code)?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

fn memory_of(driver: &Driver, raw: CUdevice) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: `bytes` has room for a size, and the device is the driver's.
    let code = unsafe { (driver.calls.cuDeviceTotalMem_v2)(&mut bytes, raw) };
    driver.check("cuDeviceTotalMem_v2", code).map(|()| bytes as u64)
}
