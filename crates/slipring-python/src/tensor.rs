//! A tensor.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use slipring::error::CudaFault;
use slipring::message::Metadata;
use slipring::tensor::BytesElements;
use slipring::{DType, TensorMut};

use crate::buffer::{Elements, export_elements};
use crate::deadline::{Deadline, Timeout};
use crate::dtype;
use crate::error::raise;
use crate::gpu;
use crate::integer::Integer;
use crate::memory::Memory;
use crate::metadata::to_dict;
use crate::opened::Opened;
use crate::peer_memory::PeerMemory;
use crate::shape;
use crate::stream::StreamNumber;

/// Elements of one dtype in row-major order, in shared memory or in memory of this process.
///
/// A tensor of `empty()` is written through `numpy.asarray(tensor)`, a `memoryview`, or DLPack, and then sent. A received one
/// is read through them, without a copy; the sender gets its memory back when the tensor and all views of it are gone. One that
/// lies on a GPU is read there, through DLPack.
#[pyclass(frozen, module = "slipring", weakref)]
pub struct Tensor {
    memory: Arc<Memory>,
    /// The type that views have, of as many bytes as the memory's.
    dtype: DType,
    metadata: Metadata,
    /// The number of the GPU whose work reads the memory of another one.
    reader: Option<u32>,
    /// What `Tensors.open()` has opened, until the tensor or a `view()` of it, which shares this, is released.
    opened: Arc<Mutex<Option<Arc<Opened>>>>,
}

impl Tensor {
    /// Returns a tensor to be written.
    pub fn draft(tensor: TensorMut<u8>) -> Self {
        Self::over(Memory::draft(tensor))
    }

    /// Returns a tensor to be read.
    pub fn ready(tensor: slipring::Tensor) -> Self {
        Self::over(Memory::ready(tensor))
    }

    fn over(memory: Memory) -> Self {
        let dtype = memory.dtype();
        let (memory, metadata) = (Arc::new(memory), Metadata::new());
        Self { memory, dtype, metadata, reader: None, opened: Arc::default() }
    }

    /// Returns the same memory, for the work of another GPU if one is named.
    pub fn again(&self, reader: Option<u32>) -> Self {
        let (memory, metadata) = (self.memory.clone(), self.metadata.clone());
        let reader = reader.or(self.reader);
        Self { memory, dtype: self.dtype, metadata, reader, opened: Arc::default() }
    }

    /// Returns the tensor with a view of it.
    pub fn opened(self, opened: Option<Arc<Opened>>) -> Self {
        Self { opened: Arc::new(Mutex::new(opened)), ..self }
    }

    /// Returns the number of the GPU whose work reads the tensor. `None`: it lies in memory of the host, or is gone.
    pub fn ordinal(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        let Some(uuid) = self.memory.gpu()? else { return Ok(None) };
        self.reader.map_or_else(|| gpu::ordinal_of(py, uuid), Ok).map(Some)
    }

    /// Returns the tensor with metadata that came with it.
    pub fn with(self, metadata: Metadata) -> Self {
        Self { metadata, ..self }
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the memory, for a send.
    ///
    /// # Errors
    ///
    /// `TypeError`: the tensor is a view of elements of another type, and the memory would be sent as those.
    pub fn sendable(&self) -> PyResult<&Arc<Memory>> {
        if self.dtype == self.memory.dtype() {
            return Ok(&self.memory);
        }
        let (from, to) = (dtype::name(self.memory.dtype()), dtype::name(self.dtype));
        let text = format!(
            "a view of {from} as {to} is not sent: send the {from} tensor, or write its elements to one of empty(shape, \"{to}\")"
        );
        Err(PyTypeError::new_err(text))
    }

    /// Returns what `Tensors.open()` has opened.
    pub fn open_view(&self) -> Option<Arc<Opened>> {
        self.opened.lock().clone()
    }

    /// Checks that what was read until now is what was sent.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_until(&self, py: Python<'_>, deadline: &Deadline) -> PyResult<()> {
        if self.memory.gpu()?.is_none() {
            return self.memory.read(|tensor| tensor.bytes().map(drop));
        }
        match self.open_view() {
            Some(opened) => opened.check(py, deadline),
            None => gpu::check(py, &self.memory, deadline),
        }
    }

    /// Returns the bytes of an element. Those of BYTES have any length.
    fn size(&self) -> usize {
        self.dtype.size().unwrap_or(1)
    }
}

#[pymethods]
impl Tensor {
    /// The name of the elements' type, such as "float32".
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype::name(self.dtype)
    }

    /// The lengths of the dimensions, the outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.memory.shape().dims())
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.memory.shape().rank()
    }

    /// The number of elements.
    #[getter(size)]
    fn element_count(&self) -> PyResult<usize> {
        self.memory.shape().elements().map_err(raise)
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        self.memory.byte_len()
    }

    /// The values that came with the tensor, a dict of its own each time.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, &self.metadata)
    }

    /// Whether views of the tensor may write: it is of `empty()`, and neither shared nor sent.
    #[getter]
    fn writable(&self) -> PyResult<bool> {
        Ok(self.memory.facts()?.is_writable)
    }

    /// Whether no other process can change the bytes, or their sender is trusted (`trust=True`).
    #[getter]
    fn stable(&self) -> PyResult<bool> {
        Ok(self.memory.facts()?.is_stable)
    }

    /// Whether the bytes lie in the memory of the peer that sent them, and go back to it in the end.
    #[getter]
    fn on_loan(&self) -> PyResult<bool> {
        Ok(self.memory.facts()?.is_loaned)
    }

    /// The memory of the peer that the bytes lie in, if they are on loan.
    #[getter]
    fn _peer_memory(&self) -> PyResult<Option<PeerMemory>> {
        let memory = self.memory.read(|tensor| Ok(tensor.peer_memory()))?;
        Ok(memory.map(PeerMemory::new))
    }

    /// Whether a view of the tensor is alive.
    #[getter]
    fn _viewed(&self) -> PyResult<bool> {
        self.memory.is_viewed()
    }

    /// Ends the writing, and returns the tensor. It can then be read, and sent any number of times, but not written.
    ///
    /// Raises `ViewsAlive` while an array or another view of the tensor is alive, and `TensorGone` after it was sent.
    fn share(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().memory.share()?;
        Ok(slf)
    }

    /// Returns a private copy in memory of the host, which holds no loan and which no other process can change.
    ///
    /// Raises `TensorGone`, `LoanRevoked`; `GpuError` and `PeerDied` for a tensor on a GPU.
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        let copy = match self.memory.gpu()? {
            Some(_) => gpu::to_host(py, &self.memory)?,
            None => self.memory.read(slipring::Tensor::to_private)?,
        };
        let tensor = Self { dtype: self.dtype, ..Self::ready(copy) };
        Ok(tensor.with(self.metadata.clone()))
    }

    /// Returns the same memory as elements of another type with as many bytes, such as a "bfloat16" tensor as "uint16". That of
    /// a tensor which `Tensors.open()` has returned is open, too.
    ///
    /// Raises `ValueError` if the type has elements of another length.
    fn view(&self, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let to = dtype::parse(dtype)?;
        let sizes = (self.dtype.size(), to.size());
        if sizes.0.is_none() || sizes.0 != sizes.1 || to == DType::Bool {
            let (from, to) = (dtype::name(self.dtype), dtype::name(to));
            let text = format!(
                "a view of {from} as {to}: both must have elements of one length, and not be bool or bytes"
            );
            return Err(PyValueError::new_err(text));
        }
        Ok(Self { dtype: to, opened: self.opened.clone(), ..self.again(None) })
    }

    /// Returns a part of a tensor of this process on a GPU, which `from_dlpack()` has returned: `offset` bytes behind its start, a
    /// multiple of 256. The dtype is that of the tensor unless another one is given. Many parts of a tensor in one message take
    /// as much as one of them, and the tensor stays in use until none of them is.
    ///
    /// Raises `InvalidTensor` if the tensor is shorter or on loan, `GpuError` if it lies in memory of the host, and `ValueError` for
    /// a part as bool of another type, whose bytes may be neither 0 nor 1.
    #[pyo3(signature = (shape, dtype = None, *, offset = 0))]
    fn part(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        offset: u64,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(self.dtype), dtype::parse)?;
        if dtype == DType::Bool && self.dtype != DType::Bool {
            let text = format!("a part of {} as bool", dtype::name(self.dtype));
            return Err(PyValueError::new_err(text));
        }
        gpu::part(py, &self.memory, offset, (dtype, shape::parse(shape)?))
    }

    /// Returns the same memory on a GPU, to be read by the work of the GPU with this number, where it lies. So
    /// `torch.from_dlpack(tensor.on_gpu(1))` is a tensor on "cuda:1" without a copy.
    ///
    /// Raises `GpuError` if there is no such GPU, or the tensor lies in memory of the host. What cannot be read from there is told
    /// when it is taken.
    fn on_gpu(&self, py: Python<'_>, gpu: u32) -> PyResult<Self> {
        if self.memory.gpu()?.is_none() {
            self.memory.facts()?;
            return Err(raise(CudaFault::OnHost.into()));
        }
        Ok(self.again(Some(gpu::known(py, gpu)?)))
    }

    /// Returns the memory to its owner now. `with tensor:` calls it at its end. The memory of a tensor on a GPU that
    /// `Tensors.open()` has returned goes back with that of the others of its allocation in the message, after the last one.
    ///
    /// Raises `ViewsAlive` while an array or another view of the tensor is alive, such as that of another `Tensors.open()`. The
    /// tensor is as before then, and can be released later.
    fn release(&self) -> PyResult<()> {
        self.memory.release(&self.opened, |opened| Arc::strong_count(opened) == 1)
    }

    /// Checks that what was read until now is what was sent.
    ///
    /// For a tensor on a GPU it first waits up to `timeout` seconds, or as long as it takes, for the work that writes the elements,
    /// and, if `Tensors.open()` has returned the tensor, for the work that the stream has got by now. Any other tensor is opened
    /// first, which waits for the driver however short the timeout is.
    ///
    /// Raises `LoanRevoked` if the peer has ended the link and taken the memory back, and `TensorGone`. For a tensor on a GPU
    /// raises `PeerDied` if the peer's process has ended before the elements were written, `TimedOut`, and `GpuError`. A tensor
    /// that `Tensors.open()` has not returned raises `PeerDied` whenever the process has ended.
    #[pyo3(signature = (*, timeout = None))]
    fn check(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<()> {
        self.check_until(py, &Deadline::after(timeout))
    }

    /// Returns the elements of a "bytes" tensor in row-major order.
    ///
    /// Raises `TypeError` if the tensor has another type, and `InvalidTensor` if its sender has encoded it wrongly.
    fn strings<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        if self.dtype != DType::Bytes {
            let text = format!("dtype is {}, must be bytes", dtype::name(self.dtype));
            return Err(PyTypeError::new_err(text));
        }
        let bytes = self.memory.read(|tensor| {
            let bytes = tensor.bytes()?.try_to_vec()?;
            tensor.bytes().map(|_| bytes)
        })?;
        let elements = BytesElements::decode(self.memory.shape(), &bytes).map_err(raise)?;
        Ok(elements.into_iter().map(|element| PyBytes::new(py, element)).collect())
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.memory.shape().dims().first().copied();
        first.ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no len()"))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release()
    }

    fn __repr__(&self) -> String {
        let dims: Vec<String> =
            self.memory.shape().dims().iter().map(ToString::to_string).collect();
        let state =
            match self.memory.facts() {
                Ok(facts) if facts.is_writable => "writable",
                Ok(facts) if self.memory.gpu().is_ok_and(|gpu| gpu.is_some()) => {
                    if facts.is_loaned { "on loan, on a GPU" } else { "on a GPU" }
                }
                Ok(facts) if facts.is_loaned && facts.is_stable => "on loan, trusted",
                Ok(facts) if facts.is_loaned => "on loan: its sender can change it",
                Ok(_) => "read-only",
                Err(_) => "gone",
            };
        format!("<slipring.Tensor {} [{}], {state}>", dtype::name(self.dtype), dims.join(", "))
    }

    /// Returns a NumPy array of the same memory, for `numpy.asarray`.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // NumPy asks for this where it got no buffer, and does not say why.
        slf.get().memory.facts()?;
        let arrays = slf.py().import("slipring._arrays")?;
        arrays.call_method1("array", (slf, dtype, copy))
    }

    /// Returns the tensor as a capsule of DLPack.
    ///
    /// A tensor on a GPU is used on the caller's `stream`, which lives as long as what the caller makes of the capsule: 1 or `None`
    /// is the legacy default stream, 2 that of a thread, -1 asks for no order, and others are addresses. It is copied for
    /// `copy=True`, and to the host for `dl_device=(1, 0)`. A copy without an order is made when the call returns.
    ///
    /// Raises `BufferError` if the caller asks for another device, for read-only memory of the host without a copy in DLPack
    /// before 1.0, or names a stream for memory of the host; `ValueError` for stream 0 and what is none; `TypeError` for what is
    /// no `int`, such as a `bool`; `GpuError` and `PeerDied` for a tensor on a GPU.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Integer<i64>>,
        max_version: Option<(Integer<u32>, Integer<u32>)>,
        dl_device: Option<(Integer<i32>, Integer<i32>)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let is_versioned = max_version.is_some_and(|(Integer(major), _)| major >= 1);
        let dl_device = dl_device.map(|(Integer(kind), Integer(number))| (kind, number));
        if let Some(ordinal) = self.ordinal(py)? {
            let stream = StreamNumber::new(stream.map(|Integer(number)| number)).map_err(raise)?;
            let asked = gpu::Asked { stream, device: dl_device, copy, is_versioned };
            let opened = self.open_view();
            return gpu::export(py, &self.memory, (ordinal, self.dtype), opened, &asked);
        }
        if stream.is_some() {
            return Err(PyBufferError::new_err(
                "the tensor lies in memory of the host, which has no streams",
            ));
        }
        if let Some(device) = dl_device.filter(|device| *device != (1, 0)) {
            let text = format!("device {device:?}, the tensor lies on (1, 0): memory of the host");
            return Err(PyBufferError::new_err(text));
        }
        crate::dlpack::export(py, &self.memory, self.dtype, copy, is_versioned)
    }

    /// Returns `(1, 0)`, memory of the host, or `(2, number)`, a GPU.
    ///
    /// Raises `GpuError` if this process does not see the GPU.
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(self.ordinal(py)?.map_or((1, 0), gpu::dlpack_device))
    }

    /// # Safety
    ///
    /// The interpreter calls it, with a structure to be filled in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the structure is the interpreter's. An exporter that raises leaves no object there.
        unsafe { (*view).obj = std::ptr::null_mut() };
        let tensor = slf.get();
        let place = tensor.memory.open_view()?;
        let elements = Elements {
            start: place.start,
            len: place.len,
            is_writable: place.is_writable,
            size: tensor.size(),
            is_encoded: tensor.dtype == DType::Bytes,
            format: dtype::format(tensor.dtype),
            dims: tensor.memory.dims(),
        };
        // SAFETY: the structure is the interpreter's. The memory keeps its place and its dimensions while a view is open.
        let filled = unsafe { export_elements(slf.as_any(), &elements, view, flags) };
        filled.inspect_err(|_| tensor.memory.close_view())
    }

    /// # Safety
    ///
    /// The interpreter calls it once for each structure that was filled in.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.memory.close_view();
    }
}
