//! A tensor on a GPU as it is written.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use zerocopy::IntoBytes;

use crate::cuda::store::{Hold, OwnedTensor};
use crate::cuda::stream::{Stream, Until};
use crate::cuda::view::GpuView;
use crate::error::{Result, TensorFault};
use crate::tensor::{DType, Element, OnGpu, Shape, Tensor};

/// A tensor on a GPU that is being written, by one stream: row-major, without gaps. Ours alone until it is
/// [shared](Self::share).
pub struct Draft<T> {
    /// `None` once it was shared.
    pub(super) hold: Option<Hold>,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) stream: Stream,
    pub(super) element: PhantomData<T>,
}

impl<T: Element> Draft<T> {
    /// What its elements are.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The lengths of its dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Its length in bytes.
    pub fn byte_len(&self) -> usize {
        self.held().area().len
    }

    /// The stream that writes it.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Its address on the GPU (`CUdeviceptr`), for kernels on [`stream`](Self::stream). Other streams must be done
    /// with it, or be waited for by that one, before it is shared or dropped.
    pub fn device_ptr(&self) -> u64 {
        self.held().area().start
    }

    /// Copies elements from the host, and waits until they are there.
    ///
    /// # Errors
    ///
    /// [`TensorFault::Len`]: they are more or fewer. [`CudaFault::Driver`](crate::error::CudaFault::Driver),
    /// [`CudaFault::Capturing`](crate::error::CudaFault::Capturing).
    pub fn write(&mut self, elements: &[T]) -> Result<()> {
        self.held().area().copy_from_host(elements.as_bytes(), &self.stream)
    }

    /// As [`write`](Self::write), but waits only until `deadline`: first for what the stream was given so far, then
    /// for the copy, as [`GpuView::read_deadline`] does. Nothing writes to the draft after this has returned but what
    /// the stream is given; after an error, some of it may have been written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and as [`write`](Self::write).
    pub fn write_deadline(&mut self, elements: &[T], deadline: Instant) -> Result<()> {
        let (until, stream) = (Until::new(deadline), &self.stream);
        stream.settle(until)?;
        self.held().area().copy_from_host_until(elements.as_bytes(), stream.device(), until)
    }

    /// Has the stream write `byte` everywhere.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver)
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.held().area().fill(byte, &self.stream)
    }

    /// Has the stream copy another tensor of this GPU, such as one that a peer has lent.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`], [`TensorFault::DataType`]: it is another kind of tensor.
    /// - [`CudaFault::TwoStreams`](crate::error::CudaFault::TwoStreams): the view is not of this draft's stream.
    /// - [`CudaFault::OtherStream`](crate::error::CudaFault::OtherStream): it is on another GPU.
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

    /// Nobody writes it any more: it can be sent, to many, and read, when the stream has done what it was given.
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
        let on = OnGpu::Own(Arc::new(OwnedTensor { hold }));
        Ok(Tensor::on_gpu(self.dtype, self.shape, on))
    }

    fn held(&self) -> &Hold {
        self.hold.as_ref().expect("there until it is shared")
    }
}

impl<T> Drop for Draft<T> {
    fn drop(&mut self) {
        if let Some(hold) = &self.hold {
            // What it was given may still run.
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
