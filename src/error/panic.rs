//! Panics of user code. A panic ends the object that it belongs to and goes no further.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs or drops a user's value. Returns `None` if it panicked.
///
/// The user's code may stop halfway, so it gets none of the library's state to change.
#[inline]
pub(crate) fn contain<T>(user: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(user)).map_err(discard).ok()
}

/// Drops the payload, which is a value of the user's, too: its drop may panic, and so may the drop of that panic's
/// payload. The third payload leaks.
#[cold]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests;
