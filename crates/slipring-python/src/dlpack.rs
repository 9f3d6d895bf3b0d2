//! DLPack: tensors as capsules, to and from other libraries.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use slipring::DType;
use slipring::tensor::dlpack::{
    DLDevice, DLManagedTensor, DLManagedTensorVersioned, Imported, export_on,
};

use crate::buffer::with_room;
use crate::error::raise;
use crate::memory::{Memory, ViewGuard};

const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const LEGACY: &CStr = c"dltensor";
const USED_LEGACY: &CStr = c"used_dltensor";

type Structure = DLManagedTensorVersioned;

/// A structure that has no holder yet.
pub struct Unclaimed(NonNull<Structure>);

// SAFETY: a structure of DLPack belongs to its holder, which any thread may be, and so may the one that calls its deleter.
unsafe impl Send for Unclaimed {}

impl Unclaimed {
    /// Returns the structure. Its new holder calls the deleter.
    pub fn into_raw(self) -> *mut Structure {
        ManuallyDrop::new(self).0.as_ptr()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let raw = self.0.as_ptr();
        // SAFETY: the structure is whole until its deleter is called.
        if let Some(deleter) = unsafe { (*raw).deleter } {
            // SAFETY: nobody else holds the structure, so this is the only call.
            unsafe { deleter(raw) };
        }
    }
}

/// Exports a view of the memory of a tensor as a capsule. A caller that knows version 1 gets read-only memory marked so. To
/// one that does not, read-only memory is copied.
///
/// # Errors
///
/// As [`Memory::open_view`]. `InvalidTensor`: DLPack has no such elements, or a BOOL is neither 0 nor 1.
pub fn export(
    py: Python<'_>,
    memory: &Arc<Memory>,
    dtype: DType,
    copies: Option<bool>,
    is_versioned: bool,
) -> PyResult<Py<PyAny>> {
    let place = memory.open_view()?;
    let guard = ViewGuard(memory.clone());
    if dtype == DType::Bool && !place.is_writable {
        memory.read(|tensor| tensor.for_each_chunk::<bool>(|_| {}))?;
    }
    let needs_copy = !is_versioned && !place.is_writable;
    if needs_copy && copies == Some(false) {
        let text = "the tensor is read-only, which DLPack before 1.0 cannot say: ask for version 1 or a copy";
        return Err(PyBufferError::new_err(text));
    }
    let shape = memory.shape();
    let (raw, flags) = if copies == Some(true) || needs_copy {
        let mut copy = if place.is_writable {
            let mut copy = with_room(place.len)?;
            // SAFETY: the view keeps as many bytes there, and the copy has room for them. Another thread may write them: no
            // reference to them exists here, and nothing depends on their values.
            unsafe { ptr::copy_nonoverlapping(place.start, copy.as_mut_ptr(), place.len) };
            // SAFETY: they were written above.
            unsafe { copy.set_len(place.len) };
            copy
        } else {
            memory.read(|tensor| {
                let copy = tensor.bytes()?.try_to_vec()?;
                // What was copied is what was sent.
                tensor.bytes().map(|_| copy)
            })?
        };
        let at = (copy.as_mut_ptr() as u64, place.len);
        (export_on(DLDevice::CPU, copy, at, dtype, shape), Structure::IS_COPIED)
    } else {
        let flags = if place.is_writable { 0 } else { Structure::READ_ONLY };
        let at = (place.start as u64, place.len);
        (export_on(DLDevice::CPU, guard, at, dtype, shape), flags)
    };
    to_capsule(py, raw.map_err(raise)?, flags, is_versioned)
}

/// Returns a structure that `export_on` made and nobody else has seen as a capsule, with these flags.
pub fn to_capsule(
    py: Python<'_>,
    raw: *mut Structure,
    flags: u64,
    is_versioned: bool,
) -> PyResult<Py<PyAny>> {
    let raw = NonNull::new(raw).map(Unclaimed);
    let exported = raw.ok_or_else(|| PyBufferError::new_err("no structure"))?;
    // SAFETY: the caller has made it.
    unsafe { (*exported.0.as_ptr()).flags = flags };
    if is_versioned { capsule(py, exported) } else { legacy_capsule(py, exported) }
}

fn capsule(py: Python<'_>, exported: Unclaimed) -> PyResult<Py<PyAny>> {
    let exported = ManuallyDrop::new(exported);
    let raw = exported.0.as_ptr();
    // SAFETY: the capsule owns the structure until a library renames the capsule.
    let capsule =
        unsafe { ffi::PyCapsule_New(raw.cast(), VERSIONED.as_ptr(), Some(drop_versioned)) };
    // SAFETY: it is a new reference, or null with an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        drop(ManuallyDrop::into_inner(exported));
    }
    Ok(capsule?.unbind())
}

fn legacy_capsule(py: Python<'_>, exported: Unclaimed) -> PyResult<Py<PyAny>> {
    let context = exported.into_raw();
    // SAFETY: the structure is whole until its deleter is called.
    let dl_tensor = unsafe { (*context).dl_tensor };
    let manager_ctx = context.cast();
    let legacy = Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(delete_legacy) });
    let legacy = Box::into_raw(legacy);
    // SAFETY: as in `capsule`.
    let capsule = unsafe { ffi::PyCapsule_New(legacy.cast(), LEGACY.as_ptr(), Some(drop_legacy)) };
    // SAFETY: it is a new reference, or null with an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        // SAFETY: nobody else has seen it.
        unsafe { delete_legacy(legacy) };
    }
    Ok(capsule?.unbind())
}

// SAFETY: the deleter of what `legacy_capsule` made: called once, with its address.
unsafe extern "C" fn delete_legacy(legacy: *mut DLManagedTensor) {
    // SAFETY: it came from a box, and this is its last use.
    let legacy = unsafe { Box::from_raw(legacy) };
    drop(NonNull::new(legacy.manager_ctx.cast()).map(Unclaimed));
}

// SAFETY: the interpreter calls it for a capsule that `capsule` made.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive. One that a library has taken has another name.
    if unsafe { ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) } == 1 {
        // SAFETY: as above.
        let raw = unsafe { ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()) };
        drop(NonNull::new(raw.cast::<Structure>()).map(Unclaimed));
    }
}

// SAFETY: the interpreter calls it for a capsule that `legacy_capsule` made.
unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `drop_versioned`.
    if unsafe { ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) } == 1 {
        // SAFETY: as above.
        let raw = unsafe { ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()) };
        // SAFETY: nobody has taken the tensor.
        unsafe { delete_legacy(raw.cast()) };
    }
}

/// Imports the tensor of an object with `__dlpack__`. `None`: the object has none. Others may write its elements: the caller
/// reads them by [`Imported::copy_to`] alone.
///
/// # Errors
///
/// What the object raises. `InvalidTensor`: the tensor is not contiguous in memory of the host, or of an unknown type.
pub fn import(object: &Bound<'_, PyAny>) -> PyResult<Option<Imported>> {
    let Some(exported) = request(object, None)? else { return Ok(None) };
    // SAFETY: the capsule owned a structure as `dlpack.h` describes it, and has given it away. Other threads and peers may
    // write the elements, which the caller reads by `Imported::copy_to` alone.
    unsafe { Imported::from_raw(exported.into_raw()) }.map(Some).map_err(raise)
}

/// Takes the structure of an object with `__dlpack__`, to be used on a stream with this number if there is one. `None`: the
/// object has none.
///
/// # Errors
///
/// What the object raises. `BufferError`: it returned no capsule.
pub fn request(object: &Bound<'_, PyAny>, stream: Option<i64>) -> PyResult<Option<Unclaimed>> {
    let py = object.py();
    let Some(method) = object.getattr_opt("__dlpack__")? else { return Ok(None) };
    let arguments = PyDict::new(py);
    if let Some(stream) = stream {
        arguments.set_item("stream", stream)?;
    }
    let newer = arguments.copy()?;
    newer.set_item("max_version", (1, 0))?;
    let capsule = match method.call((), Some(&newer)) {
        // A library before DLPack 1.0.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            method.call((), Some(&arguments))?
        }
        other => other?,
    };
    let raw = if let Some(raw) = claim(&capsule, VERSIONED, USED_VERSIONED) {
        Some(raw.cast::<Structure>())
    } else if let Some(raw) = claim(&capsule, LEGACY, USED_LEGACY) {
        // SAFETY: the capsule owned a structure as `dlpack.h` describes it, and has given it away.
        NonNull::new(unsafe { Structure::of_unversioned(raw.cast().as_ptr()) })
    } else {
        None
    };
    match raw {
        Some(raw) => Ok(Some(Unclaimed(raw))),
        None => Err(PyBufferError::new_err("__dlpack__ returned no DLPack capsule")),
    }
}

/// Takes the structure out of a capsule with this name. `None`: it has another one.
fn claim(capsule: &Bound<'_, PyAny>, name: &CStr, used: &'static CStr) -> Option<NonNull<u8>> {
    let raw = capsule.as_ptr();
    // SAFETY: the object is alive. The call accepts objects of any type.
    if unsafe { ffi::PyCapsule_IsValid(raw, name.as_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it is a capsule of this name.
    let structure = unsafe { ffi::PyCapsule_GetPointer(raw, name.as_ptr()) };
    // SAFETY: as above, and the new name lives for ever.
    unsafe { ffi::PyCapsule_SetName(raw, used.as_ptr()) };
    NonNull::new(structure.cast())
}
