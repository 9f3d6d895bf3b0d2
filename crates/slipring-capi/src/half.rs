//! What one thread uses at a time.
//!
//! 1. A thread that enters finds the half idle and leaves it idle.
//! 2. A panic leaves it broken, for good.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::failure::{Answer, Failure, contain};
use crate::status::slipring_status::{SLIPRING_BUSY, SLIPRING_PANIC};

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const BROKEN: u8 = 2;

/// A value that one thread uses at a time. It stands on lines of its own, since two threads use two halves at once.
#[repr(align(128))]
pub(crate) struct Half<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: the header demands that one thread uses a half at a time, and the value may change threads.
unsafe impl<T: Send> Sync for Half<T> {}

impl<T> Half<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { state: AtomicU8::new(IDLE), value: UnsafeCell::new(value) }
    }

    /// Calls `act` with the value.
    #[inline(always)]
    pub(crate) fn enter<R>(&self, act: impl FnOnce(&mut T) -> Answer<R>) -> Answer<R> {
        // A locked exchange would cost as much as the rest of a send. The header demands what this only helps to
        // find.
        let state = self.state.load(Ordering::Acquire);
        if state != IDLE {
            return Err(refusal(state));
        }
        self.state.store(BUSY, Ordering::Relaxed);
        // SAFETY: no other thread is in here.
        let value = unsafe { &mut *self.value.get() };
        let answer = contain(|| act(value));
        let is_broken = matches!(answer, Err(Failure::Panic(_)));
        self.state.store(if is_broken { BROKEN } else { IDLE }, Ordering::Release);
        answer
    }

    /// Checks that no thread is in here. Also a broken half is free.
    pub(crate) fn check_unused(&self) -> Answer {
        match self.state.load(Ordering::Acquire) {
            BUSY => Err(refusal(BUSY)),
            _ => Ok(()),
        }
    }

    /// Returns the value.
    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

#[cold]
fn refusal(state: u8) -> Failure {
    if state == BROKEN {
        let text = "a panic in an earlier call has broken this half: free the handle";
        Failure::Border(SLIPRING_PANIC, text)
    } else {
        let text = "another thread is in this half of the handle: one thread uses it at a time";
        Failure::Border(SLIPRING_BUSY, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_thread_is_refused() {
        let half = Half::new(1);
        let inside = |value: &mut i32| {
            assert_eq!(*value, 1);
            let again = std::thread::scope(|scope| scope.spawn(|| half.enter(|_| Ok(()))).join());
            assert_eq!(again.unwrap().unwrap_err().status(), SLIPRING_BUSY);
            assert_eq!(half.check_unused().unwrap_err().status(), SLIPRING_BUSY);
            Ok(())
        };
        half.enter(inside).unwrap();
        half.enter(|_| Ok(())).unwrap();
    }

    #[test]
    fn a_panic_breaks_the_half_and_goes_no_further() {
        let half = Half::new(());
        let panicked = half.enter(|()| -> Answer { panic!("at {}", 7) }).unwrap_err();
        assert_eq!(
            (panicked.status(), panicked.text()),
            (SLIPRING_PANIC, "slipring panicked: at 7".into())
        );
        assert_eq!(half.enter(|()| Ok(())).unwrap_err().status(), SLIPRING_PANIC);
        half.check_unused().unwrap();
    }
}
