//! What one thread uses at a time.
//!
//! 1. A thread that enters finds the half idle and leaves it idle.
//! 2. A panic leaves it broken, for good.
//! 3. In a forked child a half that a thread of the parent was in stays so, and is refused as the parent's.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

use slipring::ErrorKind;
use slipring::seam::Generation;

use crate::failure::{Answer, Failure, end_panics, note};
use crate::status::slipring_status::{self, SLIPRING_BUSY, SLIPRING_OK, SLIPRING_PANIC};

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const BROKEN: u8 = 2;

/// A value that one thread uses at a time.
pub(crate) struct Half<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
    generation: Generation,
}

// SAFETY: the header demands that one thread uses a half at a time, and the value may change threads.
unsafe impl<T: Send> Sync for Half<T> {}

impl<T> Half<T> {
    #[inline(always)]
    pub(crate) fn new(value: T) -> Answer<Self> {
        let generation = Generation::current()?;
        Ok(Self { state: AtomicU8::new(IDLE), value: UnsafeCell::new(value), generation })
    }

    /// Calls `act` with the value. Returns its status, and keeps the text of an error.
    #[inline(always)]
    pub(crate) fn run(&self, act: impl FnOnce(&mut T) -> Answer) -> slipring_status {
        let value = match self.begin() {
            Ok(value) => value,
            Err(failure) => return note(failure),
        };
        // The frame in which panics end takes words and returns one. Anything larger would be moved through memory, in
        // other widths than it is stored in, and the loads would wait for the stores.
        let status = end_panics(move || match act(value) {
            Ok(()) => SLIPRING_OK,
            Err(failure) => note(failure),
        });
        let is_broken = status.is_err();
        self.state.store(if is_broken { BROKEN } else { IDLE }, Ordering::Release);
        status.unwrap_or_else(note)
    }

    /// Calls `act` with the value.
    #[inline(always)]
    pub(crate) fn enter<R>(&self, act: impl FnOnce(&mut T) -> Answer<R>) -> Answer<R> {
        let value = self.begin()?;
        let answer = end_panics(|| act(value));
        self.state.store(if answer.is_err() { BROKEN } else { IDLE }, Ordering::Release);
        answer.unwrap_or_else(Err)
    }

    /// Returns the value, which is the calling thread's until it changes the state.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the state says that nobody else has it")]
    fn begin(&self) -> Answer<&mut T> {
        // A locked exchange would cost as much as the rest of a send. The header demands what this only helps to
        // find.
        let state = self.state.load(Ordering::Acquire);
        if state != IDLE {
            return Err(self.refusal(state));
        }
        self.state.store(BUSY, Ordering::Relaxed);
        // SAFETY: no other thread is in here.
        Ok(unsafe { &mut *self.value.get() })
    }

    /// Checks that no thread is in here. Also a broken half is free, and in a forked child each of the parent's.
    pub(crate) fn check_unused(&self) -> Answer {
        match self.state.load(Ordering::Acquire) {
            BUSY if self.generation.is_current() => Err(self.refusal(BUSY)),
            _ => Ok(()),
        }
    }

    /// Checks that no `fork` lies between the caller and the process of the half.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Answer {
        if self.generation.is_current() { Ok(()) } else { Err(ErrorKind::Forked.into()) }
    }

    /// Returns the value.
    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }

    #[cold]
    fn refusal(&self, state: u8) -> Failure {
        if !self.generation.is_current() {
            ErrorKind::Forked.into()
        } else if state == BROKEN {
            let text = "a panic in an earlier call has broken this half: free the handle";
            Failure::Border(SLIPRING_PANIC, text)
        } else {
            let text = "another thread is in this half of the handle: one thread uses it at a time";
            Failure::Border(SLIPRING_BUSY, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_thread_is_refused() {
        let half = Half::new(1).unwrap();
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
        let half = Half::new(()).unwrap();
        let panicked = half.enter(|()| -> Answer { panic!("at {}", 7) }).unwrap_err();
        assert_eq!(
            (panicked.status(), panicked.text()),
            (SLIPRING_PANIC, "slipring panicked: at 7".into())
        );
        assert_eq!(half.enter(|()| Ok(())).unwrap_err().status(), SLIPRING_PANIC);
        assert_eq!(half.run(|()| panic!("never")), SLIPRING_PANIC);
        half.check_unused().unwrap();
    }
}
