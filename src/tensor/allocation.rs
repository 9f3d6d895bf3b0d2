//! Memory for tensors, from a context's pool.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result, TensorFault};
use crate::tensor::descriptor::check_len;
use crate::tensor::dtype::DType;
use crate::tensor::element::{Element, check_bools};
use crate::tensor::outgoing::ALIGNMENT;
use crate::tensor::set::TensorSet;
use crate::tensor::shape::Shape;
use crate::tensor::view::{Storage, Tensor};
use crate::tensor::writable::{TensorMut, Writable};
use crate::transport::Context;

/// The first and the longest sleep between two checks for returned memory: a returned block wakes nobody. A
/// loan comes back when its receiver has read it, after some microseconds at best.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

impl Context {
    /// Returns memory for a tensor from the context's pool. [`allocation`](Self::allocation) has more choices.
    ///
    /// # Examples
    ///
    /// ```
    /// let context = slipring::Context::new()?;
    /// let mut scores = context.alloc::<f32>([1, 1000])?;
    /// scores[7] = 0.9;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PoolExhausted`]: all of [`Options::pool_quota`](crate::Options::pool_quota) is in use.
    /// - [`ErrorKind::OutOfMemory`], [`ErrorKind::FileSizeLimit`], [`ErrorKind::DescriptorLimit`]: the pool cannot grow.
    /// - [`ErrorKind::Tensor`]: the shape is impossible.
    pub fn alloc<T: Element>(&self, shape: impl Into<Shape>) -> Result<TensorMut<T>> {
        self.allocation().typed(shape)
    }

    /// Returns memory for a tensor that will be frozen. Once it is [shared](TensorMut::share) nobody can write
    /// it: every process reads it as a slice, and every receiver can send it on. All bytes are zero. A frozen
    /// tensor takes a descriptor and a segment of its own, so it suits data that is sent once and used for
    /// long, such as weights.
    ///
    /// # Examples
    ///
    /// ```
    /// let context = slipring::Context::new()?;
    /// let mut weights = context.alloc_frozen::<f32>([1000])?;
    /// weights.fill(0.1);
    /// let weights = weights.share()?;
    /// assert!(weights.is_frozen());
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_frozen<T: Element>(&self, shape: impl Into<Shape>) -> Result<TensorMut<T>> {
        self.allocation().frozen().typed(shape)
    }

    /// Copies tensors into one piece of frozen memory: names, data types, shapes and bytes, in order. All of
    /// them together take one descriptor, and one mapping in each process that has some of them.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::{Context, DType, Shape};
    ///
    /// let context = Context::new()?;
    /// let layers = [("bias", DType::Uint8, Shape::from([3]), &[1, 2, 3][..])];
    /// let weights = context.freeze(layers)?;
    /// assert_eq!(weights["bias"].as_slice::<u8>()?, [1, 2, 3]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc), [`TensorSet::insert`] and [`Tensor::from_bytes`].
    pub fn freeze<'a>(
        &self,
        tensors: impl IntoIterator<Item = (&'a str, DType, Shape, &'a [u8])>,
    ) -> Result<TensorSet> {
        let (mut parts, mut end) = (Vec::new(), 0usize);
        for (name, dtype, shape, bytes) in tensors {
            check_len(dtype, &shape, bytes.len())?;
            if dtype == DType::Bool {
                check_bools(bytes)?;
            }
            parts.push((name, dtype, shape, bytes, end));
            let next = end
                .checked_add(bytes.len())
                .and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
            end = next.ok_or(TensorFault::Overflow)?;
        }
        let mut draft = match self.allocation().frozen().memory(end.max(1))? {
            Writable::Draft(draft) => draft,
            _ => return Err(TensorFault::Overflow.into()),
        };
        for (.., bytes, offset) in &parts {
            draft.bytes_mut()[*offset..*offset + bytes.len()].copy_from_slice(bytes);
        }
        let memory = draft.freeze()?;
        let mut set = TensorSet::with_capacity(parts.len());
        for (name, dtype, shape, bytes, offset) in parts {
            let (memory, len) = (memory.clone(), bytes.len());
            let storage = Storage::Frozen { memory, offset, len };
            set.insert(name, Tensor { dtype, shape, storage })?;
        }
        Ok(set)
    }

    /// Returns a builder for memory with more choices.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// let context = slipring::Context::new()?;
    /// let soon = Instant::now() + Duration::from_millis(10);
    /// let mask = context.allocation().zeroed().until(soon).typed::<bool>([1, 512])?;
    /// assert!(!mask[0]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn allocation(&self) -> Allocation<'_> {
        Allocation { context: self, frozen: false, zeroed: false, until: None }
    }
}

/// The choices for a tensor's memory. [`Context::allocation`] makes it.
#[derive(Debug, Clone)]
#[must_use = "this allocates nothing yet"]
pub struct Allocation<'a> {
    context: &'a Context,
    frozen: bool,
    zeroed: bool,
    until: Option<Instant>,
}

impl Allocation<'_> {
    /// Makes memory that will be frozen, as [`Context::alloc_frozen`] does.
    pub fn frozen(mut self) -> Self {
        self.frozen = true;
        self
    }

    /// Makes all bytes zero.
    pub fn zeroed(mut self) -> Self {
        self.zeroed = true;
        self
    }

    /// Waits until `deadline` for memory that other tensors hold, if the quota is used up.
    pub fn until(mut self, deadline: Instant) -> Self {
        self.until = Some(deadline);
        self
    }

    /// Returns a tensor of a Rust type.
    ///
    /// # Errors
    ///
    /// As [`Context::alloc`], and [`ErrorKind::TimedOut`].
    pub fn typed<T: Element>(self, shape: impl Into<Shape>) -> Result<TensorMut<T>> {
        let shape = shape.into();
        let len = shape.len(T::DTYPE)?.ok_or(TensorFault::BytesLen)?;
        self.make(T::DTYPE, shape, len)
    }

    /// Returns a tensor of this data type, to be written as bytes.
    ///
    /// # Errors
    ///
    /// As [`typed`](Self::typed), and [`TensorFault::BytesLen`]: elements of BYTES have no fixed length.
    #[inline]
    pub fn dtype(self, dtype: DType, shape: impl Into<Shape>) -> Result<TensorMut<u8>> {
        let shape = shape.into();
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        self.make(dtype, shape, len)
    }

    /// Returns a BYTES tensor of `len` bytes, which include the lengths of the elements.
    ///
    /// # Errors
    ///
    /// As [`typed`](Self::typed), and [`TensorFault::Len`]: the shape has no elements, and `len` is not 0.
    pub fn encoded(self, shape: impl Into<Shape>, len: usize) -> Result<TensorMut<u8>> {
        let shape = shape.into();
        check_len(DType::Bytes, &shape, len)?;
        self.make(DType::Bytes, shape, len)
    }

    #[inline]
    fn make<T: Element>(self, dtype: DType, shape: Shape, len: usize) -> Result<TensorMut<T>> {
        let mut memory = if len == 0 { Writable::Nothing } else { self.memory(len)? };
        // The old bytes of a pool's block need not be valid `bool`s.
        if (self.zeroed || dtype == DType::Bool) && !self.frozen {
            memory.bytes_mut().fill(0);
        }
        Ok(TensorMut { dtype, shape, memory, element: PhantomData })
    }

    fn memory(&self, len: usize) -> Result<Writable> {
        self.context.check()?;
        let pool = self.context.pool();
        let (mut start, mut pause) = (None, PAUSE.0);
        loop {
            let spent = if self.frozen {
                match pool.draft(len)? {
                    Ok(draft) => return Ok(Writable::Draft(Box::new(draft))),
                    Err(spent) => spent,
                }
            } else {
                match pool.alloc(len)? {
                    Ok(block) => return Ok(Writable::Block(block)),
                    Err(spent) => spent,
                }
            };
            let Some(deadline) = self.until.filter(|_| spent.needed <= spent.quota) else {
                return Err(spent.into());
            };
            let now = Instant::now();
            let since = *start.get_or_insert(now);
            if now >= deadline {
                let late = Error::new(ErrorKind::TimedOut { after: now - since });
                let holdings = pool.holdings();
                let what =
                    format!("others hold the pool's quota (Options::pool_quota); {holdings}");
                return Err(late.waiting_for(what));
            }
            std::thread::sleep(pause.min(deadline - now));
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}
