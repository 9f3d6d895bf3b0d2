//! Allocations of a length that a peer chooses: a failure is an error, where the allocator's own answer is to abort.

use crate::error::{ErrorKind, Result};

/// Makes room for `more` elements.
///
/// # Errors
///
/// [`ErrorKind::OutOfMemory`]: the allocator has no memory for them. The list is as it was.
#[inline]
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    if more <= list.capacity() - list.len() { Ok(()) } else { grow(list, more) }
}

#[cold]
fn grow<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    // A list that grows again and again gets more than it needs, if there is more.
    let grown = list.try_reserve(more).or_else(|_| list.try_reserve_exact(more));
    grown.map_err(|_| no_memory::<T>(list.len().saturating_add(more)))
}

/// Returns a copy of bytes of this process.
pub(crate) fn copied(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    reserve(&mut copy, bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Returns the error of a list of `count` elements.
pub(crate) fn no_memory<T>(count: usize) -> crate::error::Error {
    ErrorKind::OutOfMemory { bytes: count.saturating_mul(size_of::<T>()) as u64 }.into()
}
