//! What the leader's side of a slice has found beside the time that it took.
//!
//! The harness runs in the leader's process, so an exchange leaves it here.

use std::sync::{Mutex, PoisonError};

/// Meaning and unit are the measure's.
#[derive(Clone, Copy, Default, Debug)]
pub struct Finding {
    /// Stands for the slice's own time where it is there.
    pub value: Option<f64>,
    /// Fan-in: the slowest sender's part of its fair share. Idle: percent of a CPU.
    pub beside: Option<f64>,
}

static LAST: Mutex<Option<Finding>> = Mutex::new(None);

pub fn put(finding: Finding) {
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(finding);
}

/// What the last slice has left, once.
pub fn take() -> Option<Finding> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).take()
}
