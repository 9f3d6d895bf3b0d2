//! The last error of each thread, and the version.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use crate::failure::{Failure, guard};
use crate::status::slipring_status;

/// An error, and its texts once they were asked for.
struct Last {
    failure: Option<Failure>,
    text: Option<CString>,
    kind: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { failure: None, text: None, kind: None }) };
}

/// Keeps an error of this thread. The texts of the one before are gone.
pub(crate) fn keep(failure: Failure) {
    // While a thread ends there is nobody left to ask.
    let _ = LAST.try_with(|last| {
        // A signal handler that interrupts this keeps nothing.
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Last { failure: Some(failure), text: None, kind: None };
        }
    });
}

/// Returns the pointer of a text that stays until the next error of this thread.
fn pointer(of: impl FnOnce(&mut Last) -> *const c_char) -> *const c_char {
    let mut found = c"".as_ptr();
    guard(|| {
        let _ = LAST.try_with(|last| found = of(&mut last.borrow_mut()));
        Ok(())
    });
    found
}

fn kept(slot: &mut Option<CString>, text: impl FnOnce() -> String) -> *const c_char {
    let text =
        slot.get_or_insert_with(|| CString::new(text().replace('\0', "\\0")).unwrap_or_default());
    text.as_ptr()
}

/// Returns the text of the last error of this thread: what happened, with the numbers, the remedy, and the option
/// that raises a limit. Empty, never NULL, before the first error.
///
/// Only a status that is an error changes it: not SLIPRING_OK, SLIPRING_WOULD_BLOCK or SLIPRING_END. The text stays
/// until the next error of this thread, or the thread's end. Do not free it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn slipring_last_error() -> *const c_char {
    pointer(|last| {
        let Last { failure, text, .. } = last;
        kept(text, || failure.as_ref().map(Failure::text).unwrap_or_default())
    })
}

/// Returns the kind of the last error of this thread, as Rust names it: "PoolExhausted". Several kinds share one
/// status. Empty for errors that only this interface has. As long as the text.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn slipring_last_error_kind() -> *const c_char {
    pointer(|last| {
        let Last { failure, kind, .. } = last;
        kept(kind, || failure.as_ref().map(Failure::kind).unwrap_or_default())
    })
}

/// Returns the errno of the last error of this thread, or 0 if the kernel had no part in it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn slipring_last_error_number() -> i32 {
    let number = |last: &RefCell<Last>| last.borrow().failure.as_ref().map_or(0, Failure::number);
    LAST.try_with(number).unwrap_or(0)
}

/// Returns the name of a status, or NULL if there is no such status. Do not free it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn slipring_status_name(status: i32) -> *const c_char {
    slipring_status::name(status).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Returns the version of the library that runs: "0.1.0". Do not free it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn slipring_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
