//! Memory for tensors, from a context's pool.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result, TensorFault};
use crate::tensor::descriptor::judge_len;
use crate::tensor::dtype::DType;
use crate::tensor::element::{Element, check_bools};
use crate::tensor::outgoing::ALIGNMENT;
use crate::tensor::set::TensorSet;
use crate::tensor::shape::Shape;
use crate::tensor::view::{Storage, Tensor};
use crate::tensor::writable::{TensorMut, Writable};
use crate::transport::Context;

/// How long to sleep at first, and at most, between two looks whether memory has come back: nobody rings for
/// it. A loan comes back when its receiver has read it, some microseconds at best.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

impl Context {
    /// Memory for a tensor, lent by our pool. [`allocation`](Self::allocation) has the choices.
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
    /// - [`ErrorKind::PoolExhausted`]: everything that [`Options::pool_quota`](crate::Options::pool_quota)
    ///   allows is in use.
    /// - [`ErrorKind::OutOfMemory`], [`ErrorKind::DescriptorLimit`]: the pool could not grow.
    /// - [`ErrorKind::Tensor`]: there is no such tensor.
    pub fn alloc<T: Element>(&self, shape: impl Into<Shape>) -> Result<TensorMut<T>> {
        self.allocation().typed(shape)
    }

    /// Memory of its own for a tensor that will be frozen: once it is [shared](TensorMut::share) nobody can
    /// write it, so it is read as a slice everywhere and sent on by anybody who got it, mapped by any number
    /// of processes. All bytes are zero. For what is sent once and used for long, such as weights: each takes
    /// a descriptor.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_frozen<T: Element>(&self, shape: impl Into<Shape>) -> Result<TensorMut<T>> {
        self.allocation().frozen().typed(shape)
    }

    /// Copies tensors into one piece of frozen memory: names, data types, shapes and bytes, in order. However
    /// many they are, they take one descriptor and one mapping in each process that has one of them.
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
    /// As [`alloc`](Self::alloc), and those of [`TensorSet::insert`] and [`Tensor::from_bytes`].
    pub fn freeze<'a>(
        &self,
        tensors: impl IntoIterator<Item = (&'a str, DType, Shape, &'a [u8])>,
    ) -> Result<TensorSet> {
        let (mut parts, mut end) = (Vec::new(), 0usize);
        for (name, dtype, shape, bytes) in tensors {
            judge_len(dtype, &shape, bytes.len())?;
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

    /// Memory for a tensor, with choices.
    pub fn allocation(&self) -> Allocation<'_> {
        Allocation { context: self, frozen: false, zeroed: false, until: None }
    }
}

/// How memory for a tensor is to be had. Made by [`Context::allocation`].
#[derive(Debug, Clone)]
#[must_use = "this allocates nothing yet"]
pub struct Allocation<'a> {
    context: &'a Context,
    frozen: bool,
    zeroed: bool,
    until: Option<Instant>,
}

impl Allocation<'_> {
    /// As [`Context::alloc_frozen`].
    pub fn frozen(mut self) -> Self {
        self.frozen = true;
        self
    }

    /// All bytes are zero.
    pub fn zeroed(mut self) -> Self {
        self.zeroed = true;
        self
    }

    /// Waits until `deadline` for memory that others hold, where the quota is spent.
    pub fn until(mut self, deadline: Instant) -> Self {
        self.until = Some(deadline);
        self
    }

    /// A tensor of Rust's type.
    ///
    /// # Errors
    ///
    /// As [`Context::alloc`], and [`ErrorKind::TimedOut`].
    pub fn typed<T: Element>(self, shape: impl Into<Shape>) -> Result<TensorMut<T>> {
        let shape = shape.into();
        let len = shape.len(T::DTYPE)?.ok_or(TensorFault::BytesLen)?;
        self.make(T::DTYPE, shape, len)
    }

    /// A tensor of this data type, as bytes.
    ///
    /// # Errors
    ///
    /// As [`typed`](Self::typed), and [`TensorFault::BytesLen`]: BYTES elements have no length of their own.
    pub fn dtype(self, dtype: DType, shape: impl Into<Shape>) -> Result<TensorMut<u8>> {
        let shape = shape.into();
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        self.make(dtype, shape, len)
    }

    /// A BYTES tensor that is `len` bytes long, lengths of elements included.
    ///
    /// # Errors
    ///
    /// As [`typed`](Self::typed), and [`TensorFault::Len`]: bytes for a shape without elements.
    pub fn encoded(self, shape: impl Into<Shape>, len: usize) -> Result<TensorMut<u8>> {
        let shape = shape.into();
        judge_len(DType::Bytes, &shape, len)?;
        self.make(DType::Bytes, shape, len)
    }

    fn make<T: Element>(self, dtype: DType, shape: Shape, len: usize) -> Result<TensorMut<T>> {
        let mut memory = if len == 0 { Writable::Nothing } else { self.memory(len)? };
        // What a pool's block held before need be no `bool`.
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
                    Ok(draft) => return Ok(Writable::Draft(draft)),
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
                let what = "others hold the pool's quota (Options::pool_quota)";
                return Err(late.waiting_for(what));
            }
            std::thread::sleep(pause.min(deadline - now));
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}
