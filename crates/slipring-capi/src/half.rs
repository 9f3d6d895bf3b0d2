//! What one thread uses at a time.
//!
//! 1. A thread that enters finds the half idle and leaves it idle.
//! 2. A panic leaves it broken, for good.
//! 3. In a forked child a half that a thread of the parent was in stays so, and is refused as the parent's.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, Ordering};

use slipring::ErrorKind;
use slipring::seam::Generation;

use crate::failure::{Answer, Failure, end_panics, note};
use crate::handle::{self, Handle, Kind};
use crate::status::slipring_status::{self, SLIPRING_BUSY, SLIPRING_OK, SLIPRING_PANIC};

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const BROKEN: u8 = 2;

/// A value that one thread uses at a time.
pub(crate) struct Half<T> {
    state: AtomicU8,
    value: UnsafeCell<ManuallyDrop<T>>,
    generation: Generation,
}

// SAFETY: the header demands that one thread uses a half at a time, and the value may change threads.
unsafe impl<T: Send> Sync for Half<T> {}

impl<T> Half<T> {
    #[inline(always)]
    pub(crate) fn new(value: T) -> Answer<Self> {
        let generation = Generation::current()?;
        Ok(Self {
            state: AtomicU8::new(IDLE),
            value: UnsafeCell::new(ManuallyDrop::new(value)),
            generation,
        })
    }

    /// Calls `act` with the value of an idle half, for work that is done at once: it calls nothing, and cannot panic. The half is not
    /// marked as busy: that is two more stores a call, and stores are what a stream waits for.
    #[inline(always)]
    pub(crate) fn at_once<R>(&self, act: impl FnOnce(&mut T) -> Option<R>) -> Option<R> {
        if self.state.load(Ordering::Acquire) != IDLE {
            return None;
        }
        // SAFETY: no other thread is in here: the header demands that one thread uses a half at a time.
        act(unsafe { &mut *self.value.get() })
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
        // The panic of a handle inside of this one has left this one in the middle of its work, too.
        let is_broken = !matches!(status, Ok(status) if status != SLIPRING_PANIC);
        self.state.store(if is_broken { BROKEN } else { IDLE }, Ordering::Release);
        status.unwrap_or_else(note)
    }

    /// Calls `act` with the value.
    #[inline(always)]
    pub(crate) fn enter<R>(&self, act: impl FnOnce(&mut T) -> Answer<R>) -> Answer<R> {
        let value = self.begin()?;
        let answer = end_panics(|| act(value));
        let is_broken = matches!(answer, Err(_) | Ok(Err(Failure::Panic(_))));
        self.state.store(if is_broken { BROKEN } else { IDLE }, Ordering::Release);
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
    #[inline(always)]
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

    /// Checks that no thread is in here and that no panic has broken the value.
    pub(crate) fn check_whole(&self) -> Answer {
        match self.state.load(Ordering::Acquire) {
            IDLE => Ok(()),
            state => Err(self.refusal(state)),
        }
    }

    /// Returns the value. In a forked child one that a thread of the parent was in is in pieces, and stays as it is.
    pub(crate) fn into_inner(self) -> Answer<T> {
        let mut this = ManuallyDrop::new(self);
        if *this.state.get_mut() == BUSY {
            return Err(ErrorKind::Forked.into());
        }
        // SAFETY: it is not dropped here, and nobody uses it again.
        Ok(unsafe { ManuallyDrop::take(this.value.get_mut()) })
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

/// Frees the handle of a half that no thread is in. A null pointer has none.
///
/// # Safety
///
/// No other thread frees the handle.
pub(crate) unsafe fn free_half<T, C>(pointer: *mut C) -> slipring_status
where
    Half<T>: Kind,
{
    if !pointer.is_null() {
        // SAFETY: as the caller vouches.
        let half = unsafe { Handle::<Half<T>>::of(pointer) };
        if let Err(failure) = half.and_then(Half::check_unused) {
            return note(failure);
        }
    }
    // SAFETY: as the caller vouches, and no thread is in it.
    unsafe { handle::free::<Half<T>, _>(pointer) }
}

impl<T> Drop for Half<T> {
    fn drop(&mut self) {
        // What a thread of the parent was in is in pieces.
        if *self.state.get_mut() != BUSY {
            // SAFETY: nobody uses it again.
            unsafe { ManuallyDrop::drop(self.value.get_mut()) };
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
        assert_eq!(half.check_whole().unwrap_err().status(), SLIPRING_PANIC);
        half.into_inner().unwrap();
    }

    #[test]
    fn a_panic_inside_of_another_half_breaks_both() {
        let (outer, inner) = (Half::new(()).unwrap(), Half::new(()).unwrap());
        let status = outer.run(|()| inner.enter(|()| -> Answer { panic!("within") }));
        assert_eq!(status, SLIPRING_PANIC);
        assert_eq!(inner.check_whole().unwrap_err().status(), SLIPRING_PANIC);
        assert_eq!(outer.check_whole().unwrap_err().status(), SLIPRING_PANIC);
        let outer = Half::new(()).unwrap();
        outer.enter(|()| inner.enter(|()| Ok(()))).unwrap_err();
        assert_eq!(outer.check_whole().map_err(|failure| failure.status()), Ok(()));
        let inner = Half::new(()).unwrap();
        outer.enter(|()| inner.enter(|()| -> Answer { panic!("within") })).unwrap_err();
        assert_eq!(outer.check_whole().unwrap_err().status(), SLIPRING_PANIC);
    }
}
