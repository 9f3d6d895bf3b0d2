//! An object that one thread uses at a time, until it is closed.
//!
//! 1. A thread that waits for the lock is not attached to the interpreter, and neither is one that waits for a peer.
//! 2. A wait gives the lock away after each slice, so no other thread waits for it longer than a slice.
//! 3. A child of `fork` does not touch the lock: a thread of the parent may have held it.

use std::time::Instant;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use slipring::{Error, ErrorKind};

use crate::deadline::Deadline;
use crate::error::{raise, timed_out};
use crate::process::Owner;

/// An object behind a lock. `None`: it is closed.
pub struct Handle<T> {
    inner: Mutex<Option<T>>,
    owner: Owner,
}

impl<T: Send> Handle<T> {
    /// Returns an open handle.
    pub fn new(inner: T) -> Self {
        Self { inner: Mutex::new(Some(inner)), owner: Owner::here() }
    }

    /// Returns the object, for the calling thread alone.
    ///
    /// # Errors
    ///
    /// `Forked`, `Closed`.
    #[inline]
    pub fn lock<'a>(&'a self, py: Python<'_>) -> PyResult<MappedMutexGuard<'a, T>> {
        self.owner.check()?;
        let guard = self.inner.lock_py_attached(py);
        MutexGuard::try_map(guard, Option::as_mut).map_err(|_| raise(ErrorKind::LinkClosed.into()))
    }

    /// Returns the place of the object, for the calling thread alone. `None`: the handle is closed.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn lock_slot<'a>(&'a self, py: Python<'_>) -> PyResult<MutexGuard<'a, Option<T>>> {
        self.owner.check()?;
        Ok(self.inner.lock_py_attached(py))
    }

    /// Closes the handle: drops the object, detached from the interpreter. A second call does nothing.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.lock_slot(py)?.take();
        py.detach(|| drop(inner));
        Ok(())
    }

    /// Calls `attempt`, which does not wait. If that returns `None`, calls `wait` in slices, detached from the interpreter,
    /// until it returns anything but a timeout.
    ///
    /// # Errors
    ///
    /// - `TimedOut`: the deadline passed.
    /// - What a handler of a signal raised, such as `KeyboardInterrupt`.
    /// - The errors of `attempt` and `wait`, and those of [`lock`](Self::lock).
    #[inline]
    pub fn wait<R: Send>(
        &self,
        py: Python<'_>,
        deadline: impl FnOnce() -> Deadline,
        attempt: impl FnOnce(&mut T) -> PyResult<Option<R>>,
        wait: impl FnMut(&mut T, Instant) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let mut guard = self.lock(py)?;
        if let Some(done) = attempt(&mut guard)? {
            return Ok(done);
        }
        self.wait_in_slices(py, guard, deadline(), wait)
    }

    fn wait_in_slices<'a, R: Send>(
        &'a self,
        py: Python<'_>,
        mut guard: MappedMutexGuard<'a, T>,
        deadline: Deadline,
        mut wait: impl FnMut(&mut T, Instant) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        loop {
            let inner = &mut *guard;
            match py.detach(|| wait(inner, deadline.slice())) {
                Err(error) if error.is_timeout() => {
                    if deadline.has_passed() {
                        return Err(timed_out(deadline.waited(), &error));
                    }
                }
                done => return done.map_err(raise),
            }
            MappedMutexGuard::unlock_fair(guard);
            py.check_signals()?;
            guard = self.lock(py)?;
        }
    }
}
