//! Handles: what C has a pointer to.
//!
//! 1. The first word of a handle says what it is. It is written when the handle is made, and when it is freed.
//! 2. A freed handle's value is dropped at once. Its memory waits until [`LATELY`] more handles were freed, so that a
//!    look at the first word of a handle that was freed lately is a look at live memory.

#![allow(unsafe_code)]

use std::alloc::{Layout, dealloc};
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::failure::{Answer, Failure, contain};
use crate::status::slipring_status::SLIPRING_INVALID_HANDLE;

/// Handles of one kind that were freed lately and whose memory is still there.
const LATELY: usize = 64;

/// The first word of a freed handle.
const FREED: u64 = 0x7d33_6601_c5ae_f00d;

/// The memory of the last freed handles of one kind.
pub(crate) struct Lately {
    handles: [AtomicPtr<AtomicU64>; LATELY],
    next: AtomicUsize,
}

impl Lately {
    pub(crate) const fn new() -> Self {
        Self { handles: [const { AtomicPtr::new(null_mut()) }; LATELY], next: AtomicUsize::new(0) }
    }
}

/// What a handle may hold.
pub(crate) trait Kind: Send + Sync + Sized + 'static {
    /// The first word of its handles.
    const MAGIC: u64;
    /// What the caller gave if it was not this.
    const WRONG: &'static str;

    /// Returns the memory of the last freed handles of this kind.
    fn lately() -> &'static Lately;
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
        let handle = Self { magic: AtomicU64::new(T::MAGIC), value: ManuallyDrop::new(value) };
        Box::into_raw(Box::new(handle)).cast()
    }

    #[inline(always)]
    fn judge<C>(pointer: *const C) -> Answer<NonNull<Self>> {
        let wrong = |text| Err(Failure::Border(SLIPRING_INVALID_HANDLE, text));
        let Some(handle) = NonNull::new(pointer.cast_mut().cast::<Self>()) else {
            return wrong("the handle is a null pointer");
        };
        let word = handle.cast::<AtomicU64>();
        if !word.is_aligned() {
            return wrong(T::WRONG);
        }
        // SAFETY: the header demands a pointer to a handle, and each starts with this word. Of one that was freed the
        // memory is still there, unless many others were freed since.
        match unsafe { word.as_ref() }.load(Ordering::Relaxed) {
            magic if magic == T::MAGIC => Ok(handle),
            FREED => wrong("the handle was freed"),
            _ => wrong(T::WRONG),
        }
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

    /// Marks a handle as freed. One call alone returns it.
    ///
    /// # Safety
    ///
    /// No other thread uses the handle.
    unsafe fn claim<C>(pointer: *mut C) -> Answer<*mut Self> {
        let handle = Self::judge(pointer)?.as_ptr();
        // SAFETY: it is a handle of this kind.
        let magic = unsafe { &(*handle).magic };
        match magic.compare_exchange(T::MAGIC, FREED, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(handle),
            Err(_) => Err(Failure::Border(SLIPRING_INVALID_HANDLE, "the handle was freed")),
        }
    }

    /// Keeps the memory of a freed handle, and frees that of the one that was freed [`LATELY`] handles before.
    fn bury(handle: *mut Self) {
        let lately = T::lately();
        let slot = lately.next.fetch_add(1, Ordering::Relaxed) % LATELY;
        let older = lately.handles[slot].swap(handle.cast(), Ordering::AcqRel);
        if !older.is_null() {
            // SAFETY: it came from a box of this type, its value is taken, and no slot has it any more.
            unsafe { dealloc(older.cast(), Layout::new::<Self>()) };
        }
    }
}

/// Frees a handle and drops its value.
///
/// # Safety
///
/// No other thread uses the handle.
pub(crate) unsafe fn free<T: Kind, C>(pointer: *mut C) -> Answer {
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller vouches.
    let handle = unsafe { Handle::<T>::claim(pointer) }?;
    let dropped = contain(|| {
        // SAFETY: the call that has claimed the handle is alone with its value.
        let value = unsafe { &mut (*handle).value };
        // SAFETY: nobody uses it again.
        unsafe { ManuallyDrop::drop(value) };
        Ok(())
    });
    Handle::bury(handle);
    dropped
}
