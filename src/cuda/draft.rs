//! A tensor on a GPU that is being written.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use zerocopy::IntoBytes;

use crate::cuda::store::{Hold, OwnedTensor};
use crate::cuda::stream::{Stream, Until};
use crate::cuda::view::GpuView;
use crate::error::{Result, TensorFault};
use crate::shm::Bytes;
use crate::tensor::{DType, Element, OnGpu, Shape, Tensor};

/// A tensor on a GPU that one stream writes: row-major, contiguous. Nobody else sees it before it is
/// [shared](Self::share).
///
/// See the [module's example](crate::cuda).
pub struct Draft<T> {
    /// `None` once it is shared.
    hold: Option<Hold>,
    dtype: DType,
    shape: Shape,
    stream: Stream,
    element: PhantomData<T>,
}

impl<T: Element> Draft<T> {
    pub(super) fn new(hold: Hold, dtype: DType, shape: Shape, stream: Stream) -> Self {
        Self { hold: Some(hold), dtype, shape, stream, element: PhantomData }
    }

    /// Returns the data type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the length in bytes.
    pub fn byte_len(&self) -> usize {
        self.held().area().len
    }

    /// Returns the stream that writes it.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns its address on the GPU (`CUdeviceptr`), for kernels on [`stream`](Self::stream). Work on other
    /// streams must be done, or [`stream`](Self::stream) must wait for it, before the draft is shared or
    /// dropped.
    pub fn device_ptr(&self) -> u64 {
        self.held().area().start
    }

    /// Copies elements from the host and waits until they are there.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Len`]: there are more or fewer elements.
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver),
    /// [`CudaFault::Capturing`](crate::error::CudaFault::Capturing).
    pub fn write(&mut self, elements: &[T]) -> Result<()> {
        self.write_bytes(Bytes::of(elements.as_bytes()))
    }

    /// Copies elements as [`write`](Self::write) does. It waits until `deadline`: first for the work that the
    /// stream has got, then for the copy, as [`GpuView::read_deadline`] does. After the call only the stream's
    /// own work writes the draft. After an error part of the draft may be written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and as [`write`](Self::write).
    pub fn write_deadline(&mut self, elements: &[T], deadline: Instant) -> Result<()> {
        self.write_bytes_deadline(Bytes::of(elements.as_bytes()), deadline)
    }

    /// As [`write`](Self::write), of bytes that others may write meanwhile.
    pub(super) fn write_bytes(&mut self, bytes: Bytes<'_>) -> Result<()> {
        self.held().area().copy_from_host(bytes, &self.stream)
    }

    /// As [`write_deadline`](Self::write_deadline), of such bytes.
    pub(super) fn write_bytes_deadline(
        &mut self,
        bytes: Bytes<'_>,
        deadline: Instant,
    ) -> Result<()> {
        let (until, stream) = (Until::new(deadline), &self.stream);
        stream.settle(until)?;
        self.held().area().copy_from_host_until(bytes, stream.device(), until)
    }

    /// Queues a write of `byte` to all of it on the stream.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver): the driver refuses.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.held().area().fill(byte, &self.stream)
    }

    /// Queues a copy of another tensor on the stream, such as one that a peer has lent. It may lie on another GPU.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`], [`TensorFault::DataType`]: the tensor has another length or data type.
    /// - [`CudaFault::TwoStreams`](crate::error::CudaFault::TwoStreams): the view has another stream than this
    ///   draft.
    /// - [`CudaFault::OtherStream`](crate::error::CudaFault::OtherStream): the view is for another GPU.
    pub fn copy_from(&mut self, view: &GpuView) -> Result<()> {
        view.stream().check_device(self.stream.device())?;
        if !view.stream().is(&self.stream) {
            return Err(crate::error::CudaFault::TwoStreams.into());
        }
        if view.dtype() != self.dtype {
            let (is, wanted) = (view.dtype().name(), self.dtype.name());
            return Err(TensorFault::DataType { is, wanted }.into());
        }
        self.held().area().copy_from(view.area(), &self.stream)
    }

    /// Ends the writing. The tensor can be sent, to many peers, and read once the stream's work so far is
    /// done. With [`Order::Synchronized`](crate::cuda::Order::Synchronized) the call waits for that work;
    /// [`Stream::synchronize_deadline`] before it has a limit.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver), [`CudaFault::Capturing`](crate::error::CudaFault::Capturing)
    pub fn share(mut self) -> Result<Tensor> {
        let device = self.stream.device().clone();
        let _entered = device.enter()?;
        self.stream.check_capture()?;
        self.held().set_ready(&self.stream)?;
        let hold = self.hold.take().expect("there until it is shared");
        let on = OnGpu::Own(Arc::new(OwnedTensor::new(hold)));
        Ok(Tensor::on_gpu(self.dtype, self.shape, on))
    }

    fn held(&self) -> &Hold {
        self.hold.as_ref().expect("there until it is shared")
    }
}

impl<T> Drop for Draft<T> {
    fn drop(&mut self) {
        if let Some(hold) = &self.hold {
            // The stream's work may still run.
            hold.end_behind(&self.stream);
        }
    }
}

impl<T> fmt::Debug for Draft<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, shape, .. } = self;
        f.debug_struct("Draft").field("dtype", dtype).field("shape", shape).finish_non_exhaustive()
    }
}
