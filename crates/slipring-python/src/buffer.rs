//! The buffer protocol, from both sides: memory of other objects, and memory that this module exports.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicPtr;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use slipring::ErrorKind;

use crate::error::raise;
use crate::metadata::type_name;

/// The memory of another object, as long as this view lives.
pub struct View {
    /// Boxed: an exporter may point into the structure.
    raw: Box<ffi::Py_buffer>,
}

impl View {
    /// Returns a view of an object's memory, with its shape and the format of its elements. `None`: the object has no buffer
    /// protocol.
    ///
    /// # Errors
    ///
    /// What the object raises.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        // SAFETY: the object is alive, and the thread is attached.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            return Ok(None);
        }
        let mut raw = Box::new(ffi::Py_buffer::new());
        // SAFETY: as above, and the structure is ours to be filled.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *raw, ffi::PyBUF_FULL_RO) } {
            0 => Ok(Some(Self { raw })),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.raw.len as usize
    }

    /// Returns the format of the elements, and the bytes of one.
    pub fn format(&self) -> (&CStr, usize) {
        let size = self.raw.itemsize as usize;
        if self.raw.format.is_null() {
            return (c"B", size);
        }
        // SAFETY: an exporter's format is a string that it keeps as long as the view.
        (unsafe { CStr::from_ptr(self.raw.format) }, size)
    }

    /// Returns the lengths of the dimensions.
    pub fn dims(&self) -> Vec<usize> {
        if self.raw.shape.is_null() {
            return match self.raw.ndim {
                0 => Vec::new(),
                _ => vec![self.len() / (self.raw.itemsize as usize).max(1)],
            };
        }
        (0..self.raw.ndim as usize)
            .map(|at| {
                // SAFETY: the shape has as many lengths as there are dimensions.
                let dim = unsafe { self.raw.shape.add(at) };
                // SAFETY: as above.
                unsafe { *dim as usize }
            })
            .collect()
    }

    /// Copies the elements in row-major order, which is the one copy of an array that is not. Another thread or a peer may
    /// write them meanwhile: the copy then has old and new bytes.
    ///
    /// # Errors
    ///
    /// What the interpreter raises.
    ///
    /// # Panics
    ///
    /// If `to` has another length.
    pub fn copy_to(&self, py: Python<'_>, to: &mut [u8]) -> PyResult<()> {
        assert_eq!(to.len(), self.len(), "the copy takes all bytes");
        // SAFETY: the slice has as many bytes.
        unsafe { self.copy_to_start(py, to.as_mut_ptr()) }
    }

    /// Returns a copy as [`copy_to`](Self::copy_to) makes it.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Self::copy_to). `ResourceLimit`: there is no memory.
    fn to_vec(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let mut copy = with_room(self.len())?;
        // SAFETY: the list has room for as many bytes.
        unsafe { self.copy_to_start(py, copy.as_mut_ptr())? };
        // SAFETY: they were written above.
        unsafe { copy.set_len(self.len()) };
        Ok(copy)
    }

    /// # Safety
    ///
    /// `to` takes as many bytes as the view has, and nobody else knows them.
    unsafe fn copy_to_start(&self, py: Python<'_>, to: *mut u8) -> PyResult<()> {
        let len = self.len();
        // SAFETY: the view is alive.
        if len >= LONG && unsafe { ffi::PyBuffer_IsContiguous(&*self.raw, b'C' as _) } == 1 {
            let ends = (AtomicPtr::new(self.raw.buf.cast::<u8>()), AtomicPtr::new(to));
            py.detach(|| {
                let (from, to) = (ends.0.into_inner(), ends.1.into_inner());
                // SAFETY: the view keeps as many bytes there, and none of them is at `to`. No reference to them exists here,
                // and nothing depends on their values.
                unsafe { ptr::copy_nonoverlapping(from, to, len) }
            });
            return Ok(());
        }
        let (start, len) = (to.cast::<c_void>(), self.raw.len);
        // SAFETY: the view is alive, and `to` takes as many bytes as it has.
        match unsafe { ffi::PyBuffer_ToContiguous(start, &*self.raw, len, b'C' as _) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

/// Returns an empty list with room for so many bytes, a length that another object chose.
///
/// # Errors
///
/// `ResourceLimit`: there is no memory.
pub fn with_room(len: usize) -> PyResult<Vec<u8>> {
    let mut list = Vec::new();
    let room = list.try_reserve_exact(len);
    room.map_err(|_| raise(ErrorKind::OutOfMemory { bytes: len as u64 }.into()))?;
    Ok(list)
}

/// The bytes from which on a copy lets other Python threads run: about 50 µs.
pub const LONG: usize = 512 << 10;

impl Drop for View {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: `PyObject_GetBuffer` filled the structure, and this is its only release.
            unsafe { ffi::PyBuffer_Release(&mut *self.raw) };
        });
    }
}

/// Fills in a view of bytes that do not change as long as `owner` lives.
///
/// # Errors
///
/// `BufferError`: the caller wants to write.
///
/// # Safety
///
/// `view` is a structure that the interpreter passed to `__getbuffer__`.
pub unsafe fn export_bytes(
    owner: &Bound<'_, PyAny>,
    bytes: &[u8],
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let (start, len) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len() as isize);
    // SAFETY: the caller's promise. The owner's bytes stay where they are as long as it lives.
    match unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, len, 1, flags) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

/// Memory of elements in row-major order, for [`export_elements`].
pub struct Elements<'a> {
    /// The first byte. It stays there as long as the view lives.
    pub start: *mut u8,
    /// The length in bytes.
    pub len: usize,
    /// Whether a view may write.
    pub is_writable: bool,
    /// Bytes of an element.
    pub size: usize,
    /// Whether the elements have lengths of their own, so the dimensions do not tell the length in bytes.
    pub is_encoded: bool,
    /// The format of an element, if there is one.
    pub format: Option<&'static CStr>,
    /// The lengths of the dimensions, then their strides in bytes. They live as long as the view.
    pub dims: &'a [isize],
}

impl Elements<'_> {
    /// Returns why a view with these flags cannot be had.
    fn refusal(&self, flags: c_int) -> Option<&'static str> {
        let wants = |flag: c_int| flags & flag == flag;
        let rank = self.dims.len() / 2;
        if wants(ffi::PyBUF_WRITABLE) && !self.is_writable {
            return Some("the tensor is read-only: copy it to write");
        }
        if wants(ffi::PyBUF_FORMAT) && self.format.is_none() {
            return Some("the buffer protocol has no format for this dtype: use DLPack, or view()");
        }
        if wants(ffi::PyBUF_ND) && self.is_encoded {
            return Some(
                "elements of bytes have no one length: use strings(), or ask for plain bytes",
            );
        }
        if wants(ffi::PyBUF_F_CONTIGUOUS) && !wants(ffi::PyBUF_C_CONTIGUOUS) && rank > 1 {
            return Some("the tensor is row-major: copy it for column-major order");
        }
        None
    }
}

/// Fills in a view of elements that `owner` keeps.
///
/// # Errors
///
/// `BufferError`: the caller wants to write what is read-only, or the elements have no format.
///
/// # Safety
///
/// - `view` is a structure that the interpreter passed to `__getbuffer__`.
/// - The owner keeps the memory and `dims` until `__releasebuffer__`.
pub unsafe fn export_elements(
    owner: &Bound<'_, PyAny>,
    elements: &Elements<'_>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if let Some(why) = elements.refusal(flags) {
        return Err(PyBufferError::new_err(why));
    }
    let Elements { start, len, is_writable, size, format, dims, .. } = *elements;
    let wants = |flag: c_int| flags & flag == flag;
    let rank = dims.len() / 2;
    let mut filled = ffi::Py_buffer::new();
    filled.buf = start.cast();
    filled.obj = owner.clone().into_ptr();
    filled.len = len as isize;
    filled.itemsize = size as isize;
    filled.readonly = c_int::from(!is_writable);
    filled.ndim = rank as c_int;
    if let Some(format) = format.filter(|_| wants(ffi::PyBUF_FORMAT)) {
        filled.format = format.as_ptr().cast_mut();
    }
    if wants(ffi::PyBUF_ND) && rank > 0 {
        filled.shape = dims.as_ptr().cast_mut();
    }
    if wants(ffi::PyBUF_STRIDES) && rank > 0 {
        filled.strides = dims[rank..].as_ptr().cast_mut();
    }
    // SAFETY: the caller's promise: the structure is there to be written.
    unsafe { view.write(filled) };
    Ok(())
}

/// Returns a copy of the bytes of an object.
///
/// # Errors
///
/// `TypeError`: the object has no buffer protocol, or its elements are Python objects. `ResourceLimit`: there is no memory. What the object raises.
pub fn to_vec(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let Some(view) = View::of(object)? else {
        let text = format!("a message is bytes-like, not {}", type_name(object));
        return Err(PyTypeError::new_err(text));
    };
    if view.format().0.to_bytes().contains(&b'O') {
        let text = "a message of Python objects would be their addresses: send bytes, or use slipring.pickle";
        return Err(PyTypeError::new_err(text));
    }
    view.to_vec(object.py())
}
