//! Copies of a view's bytes as elements.

use crate::error::{Error, ErrorKind, Result, TensorFault, memory};
use crate::shm::Bytes;
use crate::tensor::element::{self, Element};

/// The bytes of a chunk that is copied at a time.
const CHUNK: usize = 16 << 10;

impl Bytes<'_> {
    /// Copies the bytes to as many elements: row-major, little-endian.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`]: `to` has another length.
    /// - [`TensorFault::Bool`]: an element is neither 0 nor 1.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::message::Bytes;
    ///
    /// let mut halves = [0u16; 2];
    /// Bytes::of(&[1, 0, 2, 1]).copy_elements(&mut halves)?;
    /// assert_eq!(halves, [1, 258]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn copy_elements<T: Element>(&self, to: &mut [T]) -> Result<()> {
        Ok(element::copy(*self, to)?)
    }

    /// Passes the bytes to `each` in order, as elements in private copies of 16 KiB.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`]: the bytes are not whole elements.
    /// - [`TensorFault::Bool`]: an element is neither 0 nor 1. `each` has seen the chunks before it.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory)
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::message::Bytes;
    ///
    /// let mut sum = 0;
    /// Bytes::of(&[1, 0, 2, 1]).for_each_chunk(|chunk: &[u16]| sum += chunk.iter().sum::<u16>())?;
    /// assert_eq!(sum, 259);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn for_each_chunk<T: Element>(&self, mut each: impl FnMut(&[T])) -> Result<()> {
        if !self.len().is_multiple_of(size_of::<T>()) {
            let (len, expected) = (self.len(), self.len() / size_of::<T>() * size_of::<T>());
            let fault = TensorFault::Len { len: len as u64, expected: expected as u64 };
            return Err(fault.into());
        }
        for_each_chunk(
            self.len(),
            |at, part| Ok(element::copy(self.slice(at, size_of_val(part)), part)?),
            &mut each,
        )
    }
}

/// Returns the error of a chunk whose first element has the index `first`, with the index of the element in all of the bytes.
fn at_element(error: Error, first: usize) -> Error {
    match *error.kind() {
        ErrorKind::Tensor(TensorFault::Bool { index, value }) => {
            TensorFault::Bool { index: first as u64 + index, value }.into()
        }
        _ => error,
    }
}

/// Passes `len` bytes to `each` in order, as elements. `copy` fills a chunk from an offset in bytes on.
pub(super) fn for_each_chunk<T: Element>(
    len: usize,
    mut copy: impl FnMut(usize, &mut [T]) -> Result<()>,
    each: &mut impl FnMut(&[T]),
) -> Result<()> {
    let mut chunk: Vec<T> = zeros(CHUNK.min(len) / size_of::<T>())?;
    let mut at = 0;
    while at < len {
        let part = &mut chunk[..(len - at).min(CHUNK) / size_of::<T>()];
        copy(at, part).map_err(|error| at_element(error, at / size_of::<T>()))?;
        each(part);
        at += size_of_val(part);
    }
    Ok(())
}

/// Returns `count` zeros, or an error if the allocator has no memory for them: a peer may have chosen the
/// count. Fresh pages are zero already, and are not touched.
pub(super) fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    T::new_vec_zeroed(count).map_err(|_| memory::no_memory::<T>(count))
}

#[cfg(test)]
mod tests;
