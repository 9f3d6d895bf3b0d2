//! How long an operation waits.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The longest wait without a look at the interpreter's signals, so `KeyboardInterrupt` comes within 50 ms.
pub const SLICE: Duration = Duration::from_millis(40);

/// A timeout in seconds that a caller gave. `None`: there is none.
#[derive(Debug, Clone, Copy)]
pub struct Timeout(f64);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds: f64 = object.extract()?;
        if seconds.is_nan() || seconds < 0.0 {
            let text = format!("timeout is {seconds}, must be a number of seconds from 0 on");
            return Err(PyValueError::new_err(text));
        }
        Ok(Self(seconds))
    }
}

impl Timeout {
    /// Returns the time, or the longest one that there is.
    pub fn duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0).unwrap_or(Duration::MAX)
    }
}

/// The time at which an operation gives up, and the time at which it began.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    began: Instant,
    /// `None`: the operation does not give up.
    end: Option<Instant>,
}

impl Deadline {
    /// Returns the deadline after a timeout. `None`: there is none.
    pub fn after(timeout: Option<Timeout>) -> Self {
        let began = Instant::now();
        // A time that the clock cannot hold is no deadline.
        Self { began, end: timeout.and_then(|timeout| began.checked_add(timeout.duration())) }
    }

    /// Returns the deadline of an operation that does not wait.
    pub fn now() -> Self {
        let began = Instant::now();
        Self { began, end: Some(began) }
    }

    /// Returns the deadline after a timeout, or after `default`.
    pub fn after_or(timeout: Option<Timeout>, default: Duration) -> Self {
        let deadline = Self::after(timeout);
        match timeout {
            Some(_) => deadline,
            None => Self { end: deadline.began.checked_add(default), ..deadline },
        }
    }

    /// Returns the end of the next slice.
    pub fn slice(&self) -> Instant {
        let slice = Instant::now() + SLICE;
        self.end.map_or(slice, |end| end.min(slice))
    }

    /// Returns how long the operation has waited.
    pub fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns whether the operation gives up now.
    pub fn has_passed(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}
