//! A value whose end may wait, such as for the driver of a GPU, on whatever thread it ends.
//!
//! ```text
//!   a thread that is attached to the interpreter      ─▶ other threads run while the value ends
//!   one that is not, or without an interpreter any more ─▶ the interpreter is not touched
//! ```
//!
//! Other libraries call deleters on threads of both kinds, and at the end of the process. A deleter does its work before it
//! returns: the stream that it needs may end then.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use libloading::os::unix::Library;
use pyo3::ffi::{self, PyThreadState};
use pyo3::prelude::*;

/// A value whose end may wait. It then ends detached from the interpreter.
pub struct Detached<T: Send> {
    value: ManuallyDrop<T>,
    may_wait: bool,
}

impl<T: Send> Detached<T> {
    /// Returns a value whose end may wait.
    pub fn new(value: T) -> Self {
        Self::when(true, value)
    }

    /// Returns a value whose end may wait in this case.
    pub fn when(may_wait: bool, value: T) -> Self {
        Self { value: ManuallyDrop::new(value), may_wait }
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Send> DerefMut for Detached<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the field.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        if self.may_wait && is_attached() {
            // SAFETY: the thread is attached.
            let py = unsafe { Python::assume_attached() };
            py.detach(|| drop(value));
        }
    }
}

// SAFETY: a call of the interpreter that any thread may make, at any time. It returns the state of the attached thread, which is
// this one from CPython 3.12 on, or null.
type Current = unsafe extern "C" fn() -> *mut PyThreadState;

/// The names of the call from CPython 3.13 on, and before. The stable interface lacks it.
const NAMES: [&CStr; 2] = [c"PyThreadState_GetUnchecked", c"_PyThreadState_UncheckedGet"];

/// Returns whether the calling thread is attached to the interpreter. An interpreter that does not tell counts as none.
fn is_attached() -> bool {
    static CURRENT: OnceLock<Option<Current>> = OnceLock::new();
    let found = CURRENT.get_or_init(|| {
        let program = Library::this();
        // SAFETY: both names are of calls of this type.
        let find = |name: &&CStr| unsafe { program.get::<Current>(*name) }.ok();
        NAMES.iter().find_map(find).map(|call| *call)
    });
    let Some(current) = *found else { return false };
    // SAFETY: as `Current` says.
    let current = unsafe { current() };
    // SAFETY: any thread may make this call. It returns null without an interpreter, or on a thread that was never attached.
    !current.is_null() && current == unsafe { ffi::PyGILState_GetThisThreadState() }
}
