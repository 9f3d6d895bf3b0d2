//! Handles: what C has a pointer to.
//!
//! 1. The first word of a handle says what it is. It is written when the handle is made, and when it is freed.
//! 2. A freed handle's value is dropped at once. Its memory waits until the thread has freed [`LATELY`] more handles of the
//!    kind, or ends, so that a look at the first word of a handle that was freed lately is a look at live memory.
//! 3. A new handle takes memory that has waited so long, if the thread has some.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::LocalKey;

use crate::failure::{Answer, Failure, end_panics, note};
use crate::status::slipring_status::{self, SLIPRING_INVALID_HANDLE, SLIPRING_OK};

/// Handles of one kind whose memory is still there after a thread has freed them.
const LATELY: usize = 64;

/// Places for them, and for as many whose memory the thread uses again.
const PLACES: usize = 2 * LATELY;

/// The first word of a freed handle.
const FREED: u64 = 0x7d33_6601_c5ae_f00d;

/// The memory of the last handles of one kind that a thread has freed.
pub(crate) struct Lately<T> {
    /// A queue: `len` places from `start` on.
    places: [Cell<*mut Handle<T>>; PLACES],
    start: Cell<usize>,
    len: Cell<usize>,
}

impl<T> Lately<T> {
    pub(crate) const fn new() -> Self {
        let places = [const { Cell::new(null_mut()) }; PLACES];
        Self { places, start: Cell::new(0), len: Cell::new(0) }
    }

    /// Takes the memory that has waited the longest, if more than `least` wait.
    #[inline(always)]
    fn take(&self, least: usize) -> Option<Room<T>> {
        let (start, len) = (self.start.get(), self.len.get());
        if len <= least {
            return None;
        }
        self.start.set((start + 1) % PLACES);
        self.len.set(len - 1);
        // SAFETY: each place of the queue has the memory of a handle whose value is taken, and this place has it no more.
        Some(unsafe { Box::from_raw(self.places[start % PLACES].get().cast()) })
    }

    /// Keeps the memory of a handle whose value is taken.
    fn keep(&self, room: Room<T>) {
        if self.len.get() == PLACES {
            drop(self.take(LATELY));
        }
        self.places[(self.start.get() + self.len.get()) % PLACES].set(Box::into_raw(room).cast());
        self.len.set(self.len.get() + 1);
    }
}

impl<T> Drop for Lately<T> {
    fn drop(&mut self) {
        while self.take(0).is_some() {}
    }
}

/// The memory of a handle.
type Room<T> = Box<MaybeUninit<Handle<T>>>;

/// What a handle may hold.
pub(crate) trait Kind: Send + Sync + Sized + 'static {
    /// The first word of its handles.
    const MAGIC: u64;
    /// What the caller gave if it was not this.
    const WRONG: &'static str;

    /// Returns the memory of the last handles of this kind that the calling thread has freed.
    fn lately() -> &'static LocalKey<Lately<Self>>;
}

/// A value behind a pointer of C.
#[repr(C)]
pub(crate) struct Handle<T> {
    magic: AtomicU64,
    value: ManuallyDrop<T>,
}

impl<T: Kind> Handle<T> {
    /// Returns a pointer for C.
    #[inline(always)]
    pub(crate) fn make<C>(value: T) -> *mut C {
        let waiting = T::lately().try_with(|lately| lately.take(LATELY));
        let room = waiting.ok().flatten().unwrap_or_else(Box::new_uninit);
        let handle = Self { magic: AtomicU64::new(T::MAGIC), value: ManuallyDrop::new(value) };
        Box::into_raw(Box::write(room, handle)).cast()
    }

    /// Returns the handle at a pointer, and its first word. `None`: no handle can be there.
    #[inline(always)]
    fn locate<C>(pointer: *const C) -> Option<(NonNull<Self>, u64)> {
        let handle = NonNull::new(pointer.cast_mut().cast::<Self>())?;
        let word = handle.cast::<AtomicU64>();
        if !word.is_aligned() {
            return None;
        }
        // SAFETY: the header demands a pointer to a handle, and each starts with this word. Of one that was freed the
        // memory is still there, unless many others were freed since.
        Some((handle, unsafe { word.as_ref() }.load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn judge<C>(pointer: *const C) -> Answer<NonNull<Self>> {
        match Self::locate(pointer) {
            Some((handle, magic)) if magic == T::MAGIC => Ok(handle),
            _ => Err(Self::refusal(pointer.cast())),
        }
    }

    #[cold]
    fn refusal(pointer: *const Self) -> Failure {
        let text = match Self::locate(pointer) {
            None if pointer.is_null() => "the handle is a null pointer",
            Some((_, FREED)) => "the handle was freed",
            _ => T::WRONG,
        };
        Failure::Border(SLIPRING_INVALID_HANDLE, text)
    }

    /// Returns the value of a handle, or nothing if it is none of this kind.
    ///
    /// # Safety
    ///
    /// No other thread frees the handle during `'a`.
    #[inline(always)]
    pub(crate) unsafe fn find<'a, C>(pointer: *const C) -> Option<&'a T> {
        let (handle, magic) = Self::locate(pointer)?;
        if magic != T::MAGIC {
            return None;
        }
        // SAFETY: it is a handle of this kind, whose owner does not free it meanwhile.
        Some(unsafe { &(*handle.as_ptr()).value })
    }

    /// Returns the value of a handle.
    ///
    /// # Safety
    ///
    /// No other thread frees the handle during `'a`.
    #[inline(always)]
    pub(crate) unsafe fn of<'a, C>(pointer: *const C) -> Answer<&'a T> {
        let handle = Self::judge(pointer)?;
        // SAFETY: it is a handle of this kind, whose owner does not free it meanwhile.
        Ok(unsafe { &(*handle.as_ptr()).value })
    }

    /// Frees a handle and returns its value. A null pointer has none.
    ///
    /// # Safety
    ///
    /// No other thread uses the handle.
    pub(crate) unsafe fn free<C>(pointer: *mut C) -> Answer<Option<T>> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: as the caller vouches.
        let handle = unsafe { Self::claim(pointer) }?;
        // SAFETY: only the call that has claimed it comes here, and no other thread uses the handle.
        let value = unsafe { &mut (*handle).value };
        // SAFETY: nobody takes it again.
        let value = unsafe { ManuallyDrop::take(value) };
        Self::bury(handle);
        Ok(Some(value))
    }

    /// Marks a handle as freed. A second call finds that, unless it comes from another thread at the same time: a locked exchange
    /// would cost as much as the rest.
    ///
    /// # Safety
    ///
    /// No other thread uses the handle.
    unsafe fn claim<C>(pointer: *mut C) -> Answer<*mut Self> {
        let handle = Self::judge(pointer)?.as_ptr();
        // SAFETY: it is a handle of this kind.
        let magic = unsafe { &(*handle).magic };
        magic.store(FREED, Ordering::Relaxed);
        Ok(handle)
    }

    /// Keeps the memory of a freed handle.
    fn bury(handle: *mut Self) {
        // SAFETY: it came from a box of this type, its value is taken, and nobody else frees it.
        let room: Room<T> = unsafe { Box::from_raw(handle.cast()) };
        // While a thread ends, the memory goes at once.
        let _ = T::lately().try_with(|lately| lately.keep(room));
    }
}

/// Frees a handle and drops its value.
///
/// # Safety
///
/// No other thread uses the handle.
pub(crate) unsafe fn free<T: Kind, C>(pointer: *mut C) -> slipring_status {
    if pointer.is_null() {
        return SLIPRING_OK;
    }
    // SAFETY: as the caller vouches.
    let handle = match unsafe { Handle::<T>::claim(pointer) } {
        Ok(handle) => handle,
        Err(failure) => return note(failure),
    };
    let dropped = end_panics(|| {
        // SAFETY: the call that has claimed the handle is alone with its value.
        let value = unsafe { &mut (*handle).value };
        // SAFETY: nobody uses it again.
        unsafe { ManuallyDrop::drop(value) };
    });
    Handle::bury(handle);
    dropped.map_or_else(note, |()| SLIPRING_OK)
}
