//! The memory of a tensor, and who looks at it.
//!
//! ```text
//!   empty() ──▶ Draft ── share() ──▶ Ready ── release() ──▶ Released
//!                 │                   ▲  received, copied
//!                 └─ send ─▶ Sending ─┤ the send failed
//!                                     └──▶ Sent
//! ```
//!
//! 1. A draft leaves this process only while no view of it lives, so nobody writes what was sent.
//! 2. What is ready is never written here, and each view of it is read-only.
//! 3. The memory lives as long as the tensor or any view of it: a view of the buffer protocol keeps the tensor's object, and
//!    one of DLPack an [`Arc`] of this.
//! 4. The lock is held for a few instructions: no exception is made under it, nothing is read or copied, and no driver of a GPU
//!    is called. Such a call counts as a view meanwhile.

use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use parking_lot::Mutex;
use pyo3::prelude::*;
use slipring::cuda::Device;
use slipring::error::GpuUuid;
use slipring::{DType, Error, Shape, Tensor, TensorMut};

use crate::detached::Detached;
use crate::error::{exception, raise};
use crate::process::Owner;

/// The memory of a tensor.
pub struct Memory {
    dtype: DType,
    shape: Shape,
    /// The lengths of the dimensions, then their strides in bytes.
    dims: Vec<isize>,
    owner: Owner,
    state: Mutex<State>,
}

struct State {
    contents: Contents,
    /// Views that live.
    views: usize,
}

enum Contents {
    /// To be written by this process. The pointer is that of the first byte.
    Draft(Arc<TensorMut<u8>>, AtomicPtr<u8>),
    Ready(Arc<Detached<Tensor>>),
    /// A draft that is being sent.
    Sending,
    Sent,
    Released,
}

/// Why an operation failed. It becomes an exception when the lock is free.
enum Refusal {
    Gone(&'static str),
    /// The number of views that are alive, and the new state of the tensor, in which it may have none.
    Views(usize, &'static str),
    Failed(Error),
}

impl Refusal {
    fn into_exception(self) -> PyErr {
        match self {
            Self::Gone(text) => exception("TensorGone", text.into()),
            Self::Views(views, what) => {
                let text = format!(
                    "{views} views of the tensor are alive (arrays, memoryviews, DLPack tensors), 0 may be when it is {what}: delete them first"
                );
                exception("ViewsAlive", text)
            }
            Self::Failed(error) => raise(error),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Where the bytes are.
pub struct Place {
    pub start: *mut u8,
    pub len: usize,
    pub is_writable: bool,
}

/// What a tensor is, for its attributes.
pub struct Facts {
    /// Views of it may write.
    pub is_writable: bool,
    /// No other process can change the bytes, or the caller has vouched for the one that can.
    pub is_stable: bool,
    /// The bytes are on loan from a peer.
    pub is_loaned: bool,
}

impl Memory {
    /// Returns memory to be written.
    pub fn draft(mut tensor: TensorMut<u8>) -> Self {
        let (dtype, shape) = (tensor.dtype(), *tensor.shape());
        let start = AtomicPtr::new(tensor.as_mut_ptr());
        Self::new(dtype, shape, Contents::Draft(Arc::new(tensor), start))
    }

    /// Returns memory to be read.
    pub fn ready(tensor: Tensor) -> Self {
        Self::new(tensor.dtype(), *tensor.shape(), Contents::ready_of(tensor))
    }

    fn new(dtype: DType, shape: Shape, contents: Contents) -> Self {
        let dims = dims_and_strides(&shape, dtype.size().unwrap_or(1));
        let state = Mutex::new(State { contents, views: 0 });
        Self { dtype, shape, dims, owner: Owner::here(), state }
    }

    /// Calls `act` under the lock.
    fn locked<R>(&self, act: impl FnOnce(&mut State) -> Result<R, Refusal>) -> PyResult<R> {
        self.owner.check()?;
        let done = act(&mut self.state.lock());
        done.map_err(Refusal::into_exception)
    }

    /// Returns the data type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the lengths of the dimensions, then their strides in bytes. BYTES have the strides of single bytes.
    pub fn dims(&self) -> &[isize] {
        &self.dims
    }

    /// Returns the length in bytes. 0: the tensor was sent or released.
    pub fn byte_len(&self) -> PyResult<usize> {
        self.owner.check()?;
        Ok(match &self.state.lock().contents {
            Contents::Draft(tensor, _) => tensor.byte_len(),
            Contents::Ready(tensor) => tensor.byte_len(),
            _ => 0,
        })
    }

    /// Returns what the tensor is.
    ///
    /// # Errors
    ///
    /// `TensorGone`, `Forked`.
    pub fn facts(&self) -> PyResult<Facts> {
        self.locked(|state| match &state.contents {
            Contents::Draft(..) => {
                Ok(Facts { is_writable: true, is_stable: true, is_loaned: false })
            }
            Contents::Ready(tensor) => Ok(Facts {
                is_writable: false,
                is_stable: tensor.as_bytes().is_ok(),
                is_loaned: tensor.is_loaned(),
            }),
            other => Err(other.gone()),
        })
    }

    /// Counts a view, and returns the place of the bytes. [`close_view`](Self::close_view) ends it.
    ///
    /// # Errors
    ///
    /// - `TensorGone`: the tensor was sent or released.
    /// - `LoanRevoked`: the peer has taken the memory back.
    /// - `InvalidTensor`: the processor cannot reach the bytes.
    /// - `Forked`.
    pub fn open_view(&self) -> PyResult<Place> {
        self.locked(|state| {
            let place = match &mut state.contents {
                Contents::Draft(tensor, start) => {
                    Place { start: *start.get_mut(), len: tensor.byte_len(), is_writable: true }
                }
                Contents::Ready(tensor) => {
                    let bytes = tensor.bytes()?;
                    let start = bytes.as_ptr().cast_mut();
                    Place { start, len: bytes.len(), is_writable: false }
                }
                other => return Err(other.gone()),
            };
            state.views += 1;
            Ok(place)
        })
    }

    /// Counts a view, which ends with the returned guard, and returns the tensor, which its user drops before.
    ///
    /// # Errors
    ///
    /// `TensorGone`: as [`read`](Self::read).
    pub fn view(self: &Arc<Self>) -> PyResult<(Arc<Detached<Tensor>>, ViewGuard)> {
        let tensor = self.locked(|state| {
            let tensor = state.contents.ready()?;
            state.views += 1;
            Ok(tensor)
        })?;
        Ok((tensor, ViewGuard(self.clone())))
    }

    /// Calls `act`, which calls no Python code, with the tensor while it is ready, detached from the interpreter: it may wait for
    /// the driver of a GPU. Counts a view, which ends with the returned guard.
    ///
    /// # Errors
    ///
    /// Those of `act`. As [`read`](Self::read).
    pub fn view_detached<R: Send>(
        self: &Arc<Self>,
        py: Python<'_>,
        act: impl FnOnce(&Tensor) -> Result<R, Error> + Send,
    ) -> PyResult<(R, ViewGuard)> {
        let (tensor, guard) = self.view()?;
        let done = py.detach(|| {
            let done = act(&tensor);
            drop(tensor);
            done
        });
        Ok((done.map_err(raise)?, guard))
    }

    /// Returns the GPU that the bytes lie on. `None`: they lie in memory of the host, or are gone.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn gpu(&self) -> PyResult<Option<GpuUuid>> {
        self.locked(|state| match &state.contents {
            Contents::Ready(tensor) => Ok(tensor.gpu()),
            _ => Ok(None),
        })
    }

    /// Ends a view. Any thread may do so, attached or not.
    pub fn close_view(&self) {
        // The child of a fork has no views of its own, and the lock may be held for ever.
        if self.owner == Owner::here() {
            self.state.lock().views -= 1;
        }
    }

    /// Returns whether a view lives.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn is_viewed(&self) -> PyResult<bool> {
        self.owner.check()?;
        Ok(self.state.lock().views > 0)
    }

    /// Pins the segment of shared memory that the tensor lies in. Counts a view meanwhile.
    ///
    /// # Errors
    ///
    /// `GpuError`: as `Device::pin`. `TensorGone`, `Forked`.
    pub fn pin(self: &Arc<Self>, py: Python<'_>, device: &Device, limit: u64) -> PyResult<()> {
        let draft = self.locked(|state| match &state.contents {
            Contents::Draft(tensor, _) => {
                state.views += 1;
                Ok(Some(tensor.clone()))
            }
            _ => Ok(None),
        })?;
        let Some(draft) = draft else {
            let pin = |tensor: &Tensor| device.pin(tensor, limit);
            return self.view_detached(py, pin).map(|((), _guard)| ());
        };
        let _guard = ViewGuard(self.clone());
        let pinned = py.detach(|| {
            let pinned = device.pin_mut(&draft, limit);
            // Before the view ends: a draft that is sent has one owner.
            drop(draft);
            pinned
        });
        pinned.map_err(raise)
    }

    /// Calls `read`, which calls no Python code, with the tensor while it is ready.
    ///
    /// # Errors
    ///
    /// Those of `read`. `TensorGone`: the tensor is no longer, or not yet, ready: [`share`](Self::share) makes a draft so.
    pub fn read<R>(&self, read: impl FnOnce(&Tensor) -> Result<R, Error>) -> PyResult<R> {
        let tensor = self.locked(|state| state.contents.ready())?;
        read(&tensor).map_err(raise)
    }

    /// Ends the writing of a draft. What is ready stays ready.
    ///
    /// # Errors
    ///
    /// `ViewsAlive`, `TensorGone`, `Forked`, and those of `TensorMut::share`, which lose the tensor.
    pub fn share(&self) -> PyResult<()> {
        self.locked(|state| match state.contents {
            Contents::Draft(..) => {
                let tensor = state.take_draft(Contents::Released)?;
                state.contents = Contents::ready_of(tensor.share()?);
                Ok(())
            }
            Contents::Ready(_) => Ok(()),
            ref other => Err(other.gone()),
        })
    }

    /// Returns the memory to its owner, and ends the view that the caller keeps in `slot`, if `is_last` says of it that it counts
    /// as one view and has no other user. After an error all is as it was.
    ///
    /// # Errors
    ///
    /// `ViewsAlive`: other views of the memory live. `TensorGone`: the tensor is being sent. `Forked`.
    pub fn release<V>(
        &self,
        slot: &Mutex<Option<V>>,
        is_last: impl Fn(&V) -> bool,
    ) -> PyResult<()> {
        self.owner.check()?;
        // Nobody gets the view out of the slot meanwhile.
        let mut slot = slot.lock();
        let own = usize::from(slot.as_ref().is_some_and(is_last));
        let released = self.state.lock().release(own);
        let view = if released.is_ok() { slot.take() } else { None };
        drop(slot);
        // Its end may wait for a driver.
        drop(view);
        released.map(drop).map_err(Refusal::into_exception)
    }

    /// Returns a tensor of the same bytes to be sent, and whether it was a draft, whose send [`finish`](Self::finish) ends.
    /// `None`: the bytes are on loan, and are copied to be sent on.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share).
    pub fn take_for_send(&self) -> PyResult<Option<(Tensor, bool)>> {
        self.locked(|state| match &state.contents {
            Contents::Draft(..) => {
                let draft = state.take_draft(Contents::Sending)?;
                match draft.share() {
                    Ok(tensor) => Ok(Some((tensor, true))),
                    Err(error) => {
                        state.contents = Contents::Released;
                        Err(error.into())
                    }
                }
            }
            Contents::Ready(tensor) => Ok(tensor.try_clone().map(|tensor| (tensor, false))),
            other => Err(other.gone()),
        })
    }

    /// Ends the sending of a draft. `None`: it was sent. Otherwise it is ready to be read and sent.
    pub fn finish(&self, tensor: Option<Tensor>) {
        let contents = tensor.map_or(Contents::Sent, Contents::ready_of);
        self.state.lock().contents = contents;
    }
}

impl State {
    /// Takes the contents, beside so many views that live.
    fn release(&mut self, own: usize) -> Result<Option<Contents>, Refusal> {
        match self.contents {
            Contents::Sending => Err(self.contents.gone()),
            Contents::Sent | Contents::Released => Ok(None),
            _ if self.views > own => Err(Refusal::Views(self.views - own, "released")),
            _ => Ok(Some(std::mem::replace(&mut self.contents, Contents::Released))),
        }
    }

    fn take_draft(&mut self, left: Contents) -> Result<TensorMut<u8>, Refusal> {
        if self.views > 0 {
            return Err(Refusal::Views(self.views, "sent or shared"));
        }
        match std::mem::replace(&mut self.contents, left) {
            Contents::Draft(tensor, start) => Arc::try_unwrap(tensor).map_err(|tensor| {
                // Another user counts as a view, so there is none.
                self.contents = Contents::Draft(tensor, start);
                Refusal::Views(1, "sent or shared")
            }),
            other => {
                let error = other.gone();
                self.contents = other;
                Err(error)
            }
        }
    }
}

impl Contents {
    fn ready_of(tensor: Tensor) -> Self {
        // The end of a loan calls no driver.
        let may_wait = tensor.gpu().is_some() && !tensor.is_loaned();
        Self::Ready(Arc::new(Detached::when(may_wait, tensor)))
    }

    fn ready(&self) -> Result<Arc<Detached<Tensor>>, Refusal> {
        match self {
            Self::Ready(tensor) => Ok(tensor.clone()),
            Self::Draft(..) => Err(Refusal::Gone("the tensor is being written: share() it first")),
            other => Err(other.gone()),
        }
    }

    fn gone(&self) -> Refusal {
        Refusal::Gone(match self {
            Self::Sending => "the tensor is being sent",
            Self::Sent => {
                "the tensor was sent: allocate another one, or share() it before the send"
            }
            _ => "the tensor was released",
        })
    }
}

/// A view that ends when it is dropped.
pub struct ViewGuard(pub Arc<Memory>);

impl Drop for ViewGuard {
    fn drop(&mut self) {
        self.0.close_view();
    }
}

fn dims_and_strides(shape: &Shape, size: usize) -> Vec<isize> {
    let rank = shape.rank();
    let mut list: Vec<isize> = shape.dims().iter().map(|dim| *dim as isize).collect();
    list.resize(2 * rank, size as isize);
    for at in (1..rank).rev() {
        // A shape without elements may have a product that no memory has.
        list[rank + at - 1] = list[rank + at].saturating_mul(list[at].max(1));
    }
    list
}
