//! Tensors on a GPU, to and from other libraries by DLPack.
//!
//! ```text
//!   torch, cupy, jax ── __dlpack__(stream=ours) ──▶ adopt ──▶ send
//!   torch, cupy, jax ◀── __dlpack__(stream=theirs) ── export ◀── receive
//! ```
//!
//! 1. The driver is loaded when the first such tensor is met.
//! 2. A library's tensor is let go of on another thread, when no process uses it any more.
//! 3. What a library gets is valid on the stream that it names. Its deleter returns the loan behind the work of that stream,
//!    detached from the interpreter, before it returns: the stream may end then.

#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use slipring::cuda::{Device, GpuView, Pool, Stream};
use slipring::error::{CudaFault, GpuUuid};
use slipring::tensor::dlpack::{DLDevice, DLManagedTensorVersioned, export_on};
use slipring::{DType, Error, Shape, TensorSet};

use crate::buffer::with_room;
use crate::deadline::{Deadline, Timeout};
use crate::detached::Detached;
use crate::dlpack::{request, to_capsule};
use crate::error::{raise, timed_out};
use crate::memory::{Memory, ViewGuard};
use crate::metadata::type_name;
use crate::opened::Opened;
use crate::process::Owner;
use crate::stream::StreamNumber;
use crate::tensor::Tensor;

/// `kDLCUDA` and `kDLCUDAManaged`: memory that the driver of the GPUs knows, and is not on the host.
const ON_GPU: [i32; 2] = [2, 13];

/// The device of DLPack that is memory of the host.
const HOST: (i32, i32) = (1, 0);

/// A GPU that this process has met. Its context stays: it is that of other libraries of the process, too.
#[derive(Clone)]
struct Met {
    device: Device,
    /// The memory of copies on the GPU.
    copies: Arc<Pool>,
    /// The streams before which libraries order their work, of which each send uses one.
    idle: Arc<Mutex<Vec<Stream>>>,
}

static MET: Mutex<Vec<Met>> = Mutex::new(Vec::new());

/// The process that has loaded the driver. A child of its does not touch the lock, which a thread may have held.
static USER: OnceLock<Owner> = OnceLock::new();

/// Returns a GPU, and keeps its context.
///
/// # Errors
///
/// As `Device::new`. In the child of a fork, whose parent may have held the lock, that is the first error.
fn meet(ordinal: u32) -> Result<Met, Error> {
    let is_it = |device: &Device| device.ordinal() == ordinal;
    if let Some(met) = met(is_it) {
        return Ok(met);
    }
    let device = Device::new(ordinal)?;
    USER.get_or_init(Owner::here);
    // Made before the lock is taken, and dropped behind it if another thread was faster: either may call the driver.
    let copies = Arc::new(device.pool());
    let mut all = MET.lock();
    if let Some(known) = all.iter().find(|met| is_it(&met.device)) {
        return Ok(known.clone());
    }
    let met = Met { device, copies, idle: Arc::default() };
    all.push(met.clone());
    Ok(met)
}

/// Returns a GPU that this process has met, and asks no driver.
fn met(is_it: impl Fn(&Device) -> bool) -> Option<Met> {
    let is_user = USER.get().is_some_and(|user| *user == Owner::here());
    if !is_user {
        return None;
    }
    MET.lock().iter().find(|met| is_it(&met.device)).cloned()
}

fn met_uuid(uuid: GpuUuid) -> Option<Met> {
    met(|device| device.uuid() == uuid)
}

fn meet_uuid(uuid: GpuUuid) -> Result<Met, Error> {
    if let Some(met) = met_uuid(uuid) {
        return Ok(met);
    }
    match Device::of_uuid(uuid)? {
        Some(device) => meet(device.ordinal()),
        None => Err(CudaFault::HiddenDevice { is: uuid }.into()),
    }
}

/// Lets go of the tensors of other libraries on GPUs that were sent and that no process uses any more, and closes memory of
/// peers that nobody uses. Returns how many are still in use. A later send or receive of a tensor on that GPU does so, too,
/// after as many of them as such tensors were left.
///
/// Raises `GpuError`, `Forked`.
#[pyfunction]
pub fn trim_gpus(py: Python<'_>) -> PyResult<usize> {
    let Some(user) = USER.get() else { return Ok(0) };
    user.check()?;
    let all: Vec<Met> = MET.lock().clone();
    let trimmed = py.detach(|| {
        all.iter().try_fold(0, |left, Met { device, copies, .. }| {
            copies.trim()?;
            Ok(left + device.trim()?)
        })
    });
    trimmed.map_err(raise)
}

/// Pins the segment of shared memory that a tensor of the host lies in, so that copies between it and a GPU take the time of
/// pinned memory. All tensors of the segment and all GPUs of the process gain. The process has at most `limit` bytes pinned by
/// this function. The call counts as a view of the tensor.
///
/// Raises `GpuError`, `TensorGone`, `Forked`.
#[pyfunction]
#[pyo3(signature = (tensor, limit, *, gpu = 0))]
pub fn pin(py: Python<'_>, tensor: &Tensor, limit: u64, gpu: u32) -> PyResult<()> {
    let Met { device, .. } = py.detach(|| meet(gpu)).map_err(raise)?;
    tensor.memory().pin(py, &device, limit)
}

/// Calls `send` with a set of tensors, detached from the interpreter if one of them lies on a GPU: its driver may wait.
pub fn sending<R: Send>(
    py: Python<'_>,
    set: &TensorSet,
    send: impl FnOnce(&TensorSet) -> R + Send,
) -> R {
    if set.iter().any(|(_, tensor)| tensor.gpu().is_some()) {
        py.detach(|| send(set))
    } else {
        send(set)
    }
}

/// Waits in slices, detached from the interpreter.
///
/// # Errors
///
/// `TimedOut`, what a handler of a signal raised, and the errors of `wait`.
fn wait_for(
    py: Python<'_>,
    deadline: &Deadline,
    wait: impl Fn(Instant) -> Result<(), Error> + Sync,
) -> PyResult<()> {
    loop {
        match py.detach(|| wait(deadline.slice())) {
            Err(error) if error.is_timeout() && deadline.has_passed() => {
                return Err(timed_out(deadline.waited(), &error));
            }
            Err(error) if error.is_timeout() => py.check_signals()?,
            done => return done.map_err(raise),
        }
    }
}

/// Returns the tensor of an object with DLPack whose elements are on a GPU, without a copy, when the work that writes them is
/// done. `None`: it is not on a GPU.
///
/// # Errors
///
/// What the object raises. `TimedOut`. `GpuError`, and `InvalidTensor`: as `Device::adopt_dlpack`.
pub fn adopt(object: &Bound<'_, PyAny>, deadline: &Deadline) -> PyResult<Option<slipring::Tensor>> {
    let py = object.py();
    let Some(method) = object.getattr_opt("__dlpack_device__")? else { return Ok(None) };
    let (kind, ordinal): (i32, i32) = method.call0()?.extract()?;
    if !ON_GPU.contains(&kind) {
        return Ok(None);
    }
    let ordinal = u32::try_from(ordinal)
        .map_err(|_| PyValueError::new_err(format!("__dlpack_device__ returned GPU {ordinal}")))?;
    let begun = py.detach(|| {
        let Met { device, idle, .. } = meet(ordinal)?;
        // Nothing else is queued on it.
        let spare = idle.lock().pop();
        let stream = spare.map_or_else(|| device.stream(), Ok)?;
        Ok((device, idle, Detached::new(stream)))
    });
    let (device, idle, stream) = begun.map_err(raise)?;
    let Some(exported) = request(object, Some(stream.dlpack_number()))? else { return Ok(None) };
    wait_for(py, deadline, |until| stream.synchronize_deadline(until))?;
    let adopted = py.detach(|| {
        let raw = exported.into_raw();
        // SAFETY: a capsule owned the structure, as `dlpack.h` describes it, and has given it away. The caller of a send gives
        // tensors whose elements nobody writes until they are back: the package's documents say so.
        unsafe { device.adopt_dlpack(raw, &stream) }
    });
    idle.lock().push(stream.clone());
    adopted.map(Some).map_err(raise)
}

/// Returns a tensor of this package in the memory of a library's tensor on a GPU, without a copy: an object with `__dlpack__`, such
/// as a tensor of PyTorch or an array of CuPy. It can be sent any number of times, and so can `part()` of it. Waits `timeout`
/// seconds for the work that writes the elements. The library's tensor is kept, and must not be written, until no process uses
/// it.
///
/// Raises `TypeError` if the object lies on no GPU; `TimedOut`; `GpuError` and `InvalidTensor` as a send of it does.
#[pyfunction]
#[pyo3(signature = (array, /, *, timeout = None))]
pub fn from_dlpack(array: &Bound<'_, PyAny>, timeout: Option<Timeout>) -> PyResult<Tensor> {
    match adopt(array, &Deadline::after(timeout))? {
        Some(tensor) => Ok(Tensor::ready(tensor)),
        None => {
            let text =
                format!("{} lies on no GPU: copy it to a tensor of empty()", type_name(array));
            Err(PyTypeError::new_err(text))
        }
    }
}

/// Returns a part of a tensor of this process on a GPU.
///
/// # Errors
///
/// `InvalidTensor`: as `Device::part`. `TensorGone`, `GpuError`.
pub fn part(
    py: Python<'_>,
    memory: &Arc<Memory>,
    offset: u64,
    (dtype, shape): (DType, Shape),
) -> PyResult<Tensor> {
    let part = |tensor: &slipring::Tensor| {
        let uuid = tensor.gpu().ok_or(CudaFault::OnHost)?;
        meet_uuid(uuid)?.device.part(tensor, offset, dtype, shape)
    };
    let (part, _guard) = memory.view_detached(py, part)?;
    Ok(Tensor::ready(part))
}

/// Opens tensors for a stream of a GPU.
///
/// # Errors
///
/// As `Device::open_all`.
pub fn open_all<'a>(
    ordinal: u32,
    tensors: impl Iterator<Item = &'a slipring::Tensor>,
    stream: StreamNumber,
) -> Result<Vec<GpuView>, Error> {
    let Met { device, .. } = meet(ordinal)?;
    // SAFETY: `Tensors.open` demands it of its caller, as the protocol does in `__dlpack__`.
    let stream = unsafe { device.stream_of_dlpack(Some(stream.number())) }?;
    device.open_all(tensors, &stream)
}

/// What a library asks for in `__dlpack__`.
pub struct Asked {
    pub stream: StreamNumber,
    pub device: Option<(i32, i32)>,
    pub copy: Option<bool>,
    pub is_versioned: bool,
}

/// Returns the number of a GPU.
///
/// # Errors
///
/// `GpuError`: this process does not see it.
pub fn ordinal_of(py: Python<'_>, uuid: GpuUuid) -> PyResult<u32> {
    let known = met_uuid(uuid).map_or_else(|| py.detach(|| meet_uuid(uuid)), Ok);
    known.map(|met| met.device.ordinal()).map_err(raise)
}

/// Returns the number of a GPU that a caller names.
///
/// # Errors
///
/// `GpuError`: there is none with this number.
pub fn known(py: Python<'_>, ordinal: u32) -> PyResult<u32> {
    py.detach(|| meet(ordinal)).map(|_| ordinal).map_err(raise)
}

/// Returns a GPU as `__dlpack_device__` has it.
pub fn dlpack_device(ordinal: u32) -> (i32, i32) {
    let DLDevice { device_type, device_id } = DLDevice::cuda(ordinal);
    (device_type, device_id)
}

/// Exports the memory of a tensor on a GPU as a capsule, to be used on the stream that the library names.
///
/// # Errors
///
/// `BufferError`: the library asks for memory elsewhere without a copy. `ValueError`: it names no stream. `PeerDied`,
/// `TensorGone`, `GpuError`.
pub fn export(
    py: Python<'_>,
    memory: &Arc<Memory>,
    (ordinal, dtype): (u32, DType),
    opened: Option<Arc<Opened>>,
    asked: &Asked,
) -> PyResult<Py<PyAny>> {
    let here = DLDevice::cuda(ordinal);
    let shape = memory.shape();
    match asked.device {
        Some(HOST) if asked.copy != Some(false) => {
            let mut bytes = copy_to_host(py, memory)?;
            if dtype == DType::Bool {
                dtype.check(shape, &bytes).map_err(raise)?;
            }
            let at = (bytes.as_mut_ptr() as u64, bytes.len());
            let raw = export_on(DLDevice::CPU, bytes, at, dtype, shape).map_err(raise)?;
            return to_capsule(py, raw, DLManagedTensorVersioned::IS_COPIED, asked.is_versioned);
        }
        Some(HOST) => {
            let here = (here.device_type, here.device_id);
            let text = format!(
                "the tensor lies on {here:?}: memory of the host needs a copy, and copy is False"
            );
            return Err(PyBufferError::new_err(text));
        }
        Some(device) if device != (here.device_type, here.device_id) => {
            let here = (here.device_type, here.device_id);
            let text = format!(
                "device {device:?}, the tensor is read on {here:?}: another GPU takes on_gpu()"
            );
            return Err(PyBufferError::new_err(text));
        }
        _ => {}
    }
    if let Some(opened) = opened
        && let Some(place) = opened.place_for(asked).map_err(raise)?
    {
        let raw = export_on(here, opened, place, dtype, shape).map_err(raise)?;
        return to_capsule(py, raw, DLManagedTensorVersioned::READ_ONLY, asked.is_versioned);
    }
    let copies = asked.copy == Some(true);
    let (view, guard) = memory.view_detached(py, |tensor| {
        let met = meet(ordinal)?;
        // SAFETY: the protocol demands a stream of this GPU that lives until the deleter is called.
        let stream = unsafe { met.device.stream_of_dlpack(Some(asked.stream.number())) }?;
        let view = met.device.open(tensor, &stream)?;
        if copies { copy_here(&met, &view, &stream) } else { Ok(view) }.map(Detached::new)
    })?;
    if copies && asked.stream.is_unordered() {
        // The library has no stream that it could order behind the copy.
        wait_for(py, &Deadline::after(None), |until| view.settle_deadline(until))?;
    }
    let (guard, flags) = if copies {
        (None, DLManagedTensorVersioned::IS_COPIED)
    } else {
        (Some(guard), DLManagedTensorVersioned::READ_ONLY)
    };
    let at = (view.device_ptr(), view.byte_len());
    // The view ends before its guard: the first field is dropped first.
    let raw = export_on(here, (view, guard), at, dtype, shape).map_err(raise)?;
    to_capsule(py, raw, flags, asked.is_versioned)
}

/// Queues a copy on the stream.
fn copy_here(met: &Met, view: &GpuView, stream: &Stream) -> Result<GpuView, Error> {
    let mut draft = met.copies.alloc_dtype(view.dtype(), *view.shape(), stream)?;
    draft.copy_from(view)?;
    met.device.open(&draft.share()?, stream)
}

/// Opens a tensor for a stream of its own.
fn open_alone(py: Python<'_>, memory: &Arc<Memory>) -> PyResult<(Detached<GpuView>, ViewGuard)> {
    let open = |tensor: &slipring::Tensor| {
        let uuid = tensor.gpu().ok_or(CudaFault::OnHost)?;
        let Met { device, .. } = meet_uuid(uuid)?;
        device.open(tensor, &device.stream()?).map(Detached::new)
    };
    memory.view_detached(py, open)
}

/// How long a check waits for its answer, however short its timeout is: one that asks and does not wait would never know.
const ANSWER: Duration = Duration::from_millis(40);

/// Waits until the elements are written, and checks that they are.
///
/// # Errors
///
/// `PeerDied`, `TimedOut`, `TensorGone`, `GpuError`.
pub fn check(py: Python<'_>, memory: &Arc<Memory>, deadline: &Deadline) -> PyResult<()> {
    // The view ends before its guard.
    let opened = open_alone(py, memory)?;
    check_view(py, &opened.0, deadline)
}

/// Waits until the elements are written and the work that the view's stream has got is done, and checks that it has read them.
///
/// # Errors
///
/// `PeerDied`, `TimedOut`, `GpuError`.
pub fn check_view(py: Python<'_>, view: &GpuView, deadline: &Deadline) -> PyResult<()> {
    let answered = Instant::now() + ANSWER;
    wait_for(py, deadline, |until| {
        let until = until.max(answered);
        // This asks no driver, and so ends in time where the driver holds up its callers.
        view.check_deadline(until)?;
        view.settle_deadline(until)
    })
}

/// Returns a copy of the elements, when the work that writes them is done.
fn copy_to_host(py: Python<'_>, memory: &Arc<Memory>) -> PyResult<Vec<u8>> {
    let opened = open_alone(py, memory)?;
    let view = &opened.0;
    wait_for(py, &Deadline::after(None), |until| view.settle_deadline(until))?;
    let mut bytes = with_room(view.byte_len())?;
    bytes.resize(view.byte_len(), 0);
    py.detach(move || view.read(&mut bytes).map(|()| bytes)).map_err(raise)
}

/// Returns a private copy of a tensor on a GPU, in memory of the host.
///
/// # Errors
///
/// `PeerDied`, `TensorGone`, `GpuError`, `ResourceLimit`.
pub fn to_host(py: Python<'_>, memory: &Arc<Memory>) -> PyResult<slipring::Tensor> {
    let bytes = copy_to_host(py, memory)?;
    slipring::Tensor::from_bytes(memory.dtype(), *memory.shape(), &bytes).map_err(raise)
}
