//! Pointers of the caller: bytes, texts, and where answers go. Null is told; the header demands the rest.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::failure::{Answer, Failure};
use crate::status::slipring_status::SLIPRING_INVALID_ARGUMENT;

#[cold]
fn wrong<T>(text: &'static str) -> Answer<T> {
    Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text))
}

/// Returns bytes to read. A null pointer has none.
///
/// # Safety
///
/// `len` bytes at `data` are readable and stay as they are for `'a`.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Answer<&'a [u8]> {
    // SAFETY: as the caller vouches.
    match unsafe { find_bytes(data, len) } {
        Some(bytes) => Ok(bytes),
        None => wrong("the data is a null pointer, or longer than memory can be"),
    }
}

/// As [`bytes`]. `None`: the pointer is null, or the length impossible.
///
/// # Safety
///
/// As for [`bytes`].
#[inline(always)]
pub(crate) unsafe fn find_bytes<'a>(data: *const c_void, len: usize) -> Option<&'a [u8]> {
    if len == 0 {
        return Some(&[]);
    }
    if data.is_null() || len > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller vouches for the bytes; the pointer is not null, and the length fits.
    Some(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Returns a buffer to fill. Its bytes are only written.
///
/// # Safety
///
/// `capacity` bytes at `buffer` are the caller's alone for `'a`.
#[inline(always)]
pub(crate) unsafe fn buffer<'a>(buffer: *mut c_void, capacity: usize) -> Answer<&'a mut [u8]> {
    // SAFETY: as the caller vouches.
    match unsafe { find_buffer(buffer, capacity) } {
        Some(buffer) => Ok(buffer),
        None => wrong("the buffer is a null pointer, or longer than memory can be"),
    }
}

/// As [`buffer`]. `None`: the pointer is null, or the length impossible.
///
/// # Safety
///
/// As for [`buffer`].
#[inline(always)]
pub(crate) unsafe fn find_buffer<'a>(buffer: *mut c_void, capacity: usize) -> Option<&'a mut [u8]> {
    if capacity == 0 {
        return Some(&mut []);
    }
    if buffer.is_null() || capacity > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller vouches for the bytes; the pointer is not null, and the length fits.
    Some(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), capacity) })
}

/// Returns a list to read. A null pointer has none.
///
/// # Safety
///
/// `count` values at `data` are readable and stay as they are for `'a`.
pub(crate) unsafe fn list<'a, T>(data: *const T, count: usize) -> Answer<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() || !data.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return wrong("a list is a null pointer, not aligned, or longer than memory can be");
    }
    // SAFETY: the caller vouches for the values; the pointer is not null and aligned, and the length fits.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// Returns a text.
///
/// # Safety
///
/// `text` is null, or its bytes up to a NUL are readable and stay as they are for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return wrong("the text is a null pointer");
    }
    // SAFETY: the caller vouches for the bytes up to the NUL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().or_else(|_| wrong("the text is no UTF-8"))
}

/// Where an answer goes.
pub(crate) struct Out<T>(NonNull<MaybeUninit<T>>);

impl<T> Out<T> {
    /// Returns the place at a pointer of the caller.
    ///
    /// # Safety
    ///
    /// `place` is null, or a `T` may be written there as long as this value lives.
    #[inline(always)]
    pub(crate) unsafe fn new(place: *mut T) -> Answer<Self> {
        // SAFETY: as the caller vouches.
        match unsafe { Self::find(place) } {
            Some(out) => Ok(out),
            None => wrong("the pointer for the answer is null or not aligned"),
        }
    }

    /// As [`new`](Self::new). `None`: the pointer is null or not aligned.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn find(place: *mut T) -> Option<Self> {
        NonNull::new(place.cast()).filter(|place| place.is_aligned()).map(Self)
    }

    /// Writes the answer.
    #[inline(always)]
    pub(crate) fn set(&mut self, answer: T) {
        // SAFETY: the maker's caller vouches for the place.
        unsafe { self.0.as_mut() }.write(answer);
    }
}

/// Reads the first bytes of a structure that may grow with later versions of the header: as many as the caller knows. Bytes that
/// this library does not know must be 0.
///
/// # Safety
///
/// `size` bytes at `place` are readable, and each bit pattern is a `T`.
pub(crate) unsafe fn get_sized<T: Copy>(place: *const T, size: usize, value: &mut T) -> Answer {
    // SAFETY: the caller vouches for the bytes.
    let place = unsafe { bytes(place.cast(), size) }?;
    // SAFETY: the value has as many bytes, and any may be written.
    let all = unsafe { std::slice::from_raw_parts_mut((&raw mut *value).cast(), size_of::<T>()) };
    let known = size.min(all.len());
    all[..known].copy_from_slice(&place[..known]);
    if place[known..].iter().any(|byte| *byte != 0) {
        return wrong("a field is set that this version of the library does not know");
    }
    Ok(())
}

/// Writes the first bytes of a structure that may grow with later versions of the header: as many as the caller
/// knows.
///
/// # Safety
///
/// `size` bytes at `place` may be written, and `T` has no padding.
pub(crate) unsafe fn put_sized<T: Copy>(place: *mut T, size: usize, value: &T) -> Answer {
    // SAFETY: the caller vouches for the bytes.
    let place = unsafe { buffer(place.cast(), size) }?;
    // SAFETY: the value has no padding, so all its bytes are initialised.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) };
    let known = size.min(bytes.len());
    place[..known].copy_from_slice(&bytes[..known]);
    place[known..].fill(0);
    Ok(())
}
