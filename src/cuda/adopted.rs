//! Tensors in memory that another library allocated, to be sent without a copy.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::cuda::device::Device;
use crate::cuda::draft::Draft;
use crate::cuda::retired::Retired;
use crate::cuda::store::Store;
use crate::cuda::stream::Stream;
use crate::error::{CudaFault, Result, TensorFault};
use crate::tensor::dlpack::{DLManagedTensorVersioned, ImportedOnGpu};
use crate::tensor::{DType, Shape, Tensor};

impl Device {
    /// Returns a tensor in memory of this GPU that another library allocated, row-major and contiguous. It can be sent as a
    /// tensor of a [`Pool`](crate::cuda::Pool), without a copy. The call waits for the work that `stream` has got so far
    /// ([`Order::Synchronized`]); [`Stream::synchronize_deadline`] before it has a limit.
    ///
    /// Memory of `cuMemCreate` that was made with a file descriptor travels as that ([`Export::FileDescriptor`]), such as
    /// PyTorch's `expandable_segments` where PyTorch asks for descriptors. Memory of `cuMemAlloc` travels as a handle
    /// ([`Export::IpcHandle`]).
    ///
    /// `owner` is dropped on another thread when no process uses the tensor any more. Where the memory travels as a handle,
    /// the owner of the tensor of an allocation that was lent first stays until no process has the allocation open.
    ///
    /// [`Export::FileDescriptor`]: crate::cuda::Export::FileDescriptor
    /// [`Export::IpcHandle`]: crate::cuda::Export::IpcHandle
    /// [`Order::Synchronized`]: crate::cuda::Order::Synchronized
    ///
    /// # Errors
    ///
    /// - [`CudaFault::NotExportable`]: the memory is of neither kind, was made without a file descriptor, or the tensor spans
    ///   several allocations.
    /// - [`TensorFault::Alignment`]: the tensor does not start at a multiple of 256 bytes of its allocation.
    /// - [`CudaFault::OtherStream`], [`CudaFault::Capturing`]: the stream belongs to another GPU or is being captured.
    /// - [`CudaFault::Driver`]; [`ErrorKind::Tensor`](crate::ErrorKind::Tensor): the shape is impossible.
    ///
    /// # Safety
    ///
    /// - From `at` on this GPU has as many bytes as the tensor, in its primary context. They stay mapped as they are, and
    ///   nobody writes them, from the call on until `owner` is dropped.
    /// - The peers that get the tensor may read and write all of the allocation that it lies in.
    pub unsafe fn adopt(
        &self,
        at: u64,
        dtype: DType,
        shape: impl Into<Shape>,
        stream: &Stream,
        owner: impl Send + 'static,
    ) -> Result<Tensor> {
        let shape = shape.into();
        stream.check_device(self)?;
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        if len == 0 {
            return Err(CudaFault::NotExportable { why: "it has no bytes" }.into());
        }
        let _entered = self.enter()?;
        stream.check_capture()?;
        let retired = Retired::of(self);
        retired.look();
        let store = Arc::new(Store::adopting(self, (at, len as u64), Box::new(owner))?);
        let hold = store.hold(len)?;
        // From here on the owner stays until all loans are back.
        retired.add(store);
        Draft::<u8>::new(hold, dtype, shape, stream.clone()).share()
    }

    /// Returns a tensor in memory of this GPU that another library hands over by DLPack, as [`adopt`](Self::adopt) does. It
    /// keeps that library's tensor, and calls its deleter on another thread when no process uses the tensor any more.
    ///
    /// The library orders its work before that of the stream whose number it gets (`__dlpack__(stream=...)` in Python):
    /// [`Stream::dlpack_number`] of `stream`, which is kept, too. A structure of before version 1.0 comes by
    /// [`DLManagedTensorVersioned::of_unversioned`].
    ///
    /// A tensor that is marked as read-only is taken, too. Peers read it, but nothing keeps them from writing.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::NotExportable`]: also managed memory (`kDLCUDAManaged`), and a tensor without bytes.
    /// - [`TensorFault::DlpackNotOnGpu`], [`TensorFault::DlpackOtherGpu`]: it is in other memory.
    /// - [`TensorFault::DlpackStride`]: it is not contiguous in row-major order.
    /// - [`TensorFault::DlpackNull`], [`TensorFault::DlpackVersion`], [`TensorFault::DlpackType`],
    ///   [`TensorFault::DlpackRank`], [`TensorFault::DlpackOffset`], [`TensorFault::Rank`], [`TensorFault::Dimension`],
    ///   [`TensorFault::Overflow`]: as [`Imported::from_raw`](crate::tensor::dlpack::Imported::from_raw).
    /// - As [`adopt`](Self::adopt) otherwise.
    ///
    /// An error calls the deleter before it returns, on this thread: with the caller's context current if the structure is
    /// impossible, and with the primary context of this GPU, in the relaxed mode of capture, if its memory is.
    ///
    /// # Safety
    ///
    /// - `managed` is null or points to a structure as `dlpack.h` describes it. The caller owns it and gives it away: nobody
    ///   else calls its deleter, and nobody writes the structure before.
    /// - Its memory is as [`adopt`](Self::adopt) demands until the deleter is called. The deleter may be called on any
    ///   thread and does not unwind.
    pub unsafe fn adopt_dlpack(
        &self,
        managed: *mut DLManagedTensorVersioned,
        stream: &Stream,
    ) -> Result<Tensor> {
        // SAFETY: the caller's promise.
        let owner = unsafe { ImportedOnGpu::from_raw(managed, self.ordinal()) }?;
        let (at, dtype, shape) = (owner.start(), owner.dtype(), *owner.shape());
        // The deleter may use the stream whose number its library got. It is called first.
        let owner = (owner, stream.clone());
        // SAFETY: the caller's promise; the owner calls the deleter when it is dropped.
        unsafe { self.adopt(at, dtype, shape, stream, owner) }
    }
}
