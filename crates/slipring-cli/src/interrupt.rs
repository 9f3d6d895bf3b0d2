//! The wish of the user that a command ends: `SIGINT` or `SIGTERM`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;

/// How long a wait may last before it asks for the wish: a person feels no delay of 50 ms.
const SLICE: Duration = Duration::from_millis(50);

/// Whether the user wants the command to end. The second signal ends the process at once.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes the signals over.
    pub(crate) fn new() -> Result<Self, Failure> {
        let wish = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, wish.clone())?;
            flag::register(signal, wish.clone())?;
        }
        Ok(Self(wish))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Tells all threads of the command to end.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns the end of the next slice of a wait that ends at `until` at the latest.
    pub(crate) fn slice(until: Option<Instant>) -> Instant {
        let slice = Instant::now() + SLICE;
        until.map_or(slice, |until| until.min(slice))
    }

    /// Sleeps until a time, or until the user wants the end. Returns whether the time came.
    pub(crate) fn sleep_until(&self, until: Instant) -> bool {
        while !self.is_set() {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return true;
            }
            thread::sleep(rest.min(SLICE));
        }
        false
    }
}
