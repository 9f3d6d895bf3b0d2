//! The process that an object belongs to.
//!
//! A child of `fork` has neither the shared memory of its parent's objects nor the threads that may hold their locks. So each
//! object remembers its process, and checks it before it touches a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use slipring::ErrorKind;

use crate::error::raise;

/// The number of forks between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process that made an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// Returns the calling process.
    #[inline]
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Checks that the calling process made the object.
    ///
    /// # Errors
    ///
    /// `Forked`: the process that made it is a parent of this one.
    #[inline]
    pub fn check(self) -> PyResult<()> {
        if self == Self::here() { Ok(()) } else { Err(raise(ErrorKind::Forked.into())) }
    }
}

/// Counts a fork, in the child.
#[pyfunction]
fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Makes the interpreter count its forks.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("after_in_child", wrap_pyfunction!(after_fork, module)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&arguments))?;
    Ok(())
}
