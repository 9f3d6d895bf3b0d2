//! A tensor on a GPU as it is read.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::cuda::device::Device;
use crate::cuda::event::Event;
use crate::cuda::imports::{Import, Imports};
use crate::cuda::library::{is_ours, is_refusal};
use crate::cuda::memory::Area;
use crate::cuda::openings::Opening;
use crate::cuda::store::OwnedTensor;
use crate::cuda::stream::{Stream, Until};
use crate::error::{CudaFault, Error, ErrorKind, Result};
use crate::tensor::dlpack::{DLDevice, DLManagedTensorVersioned};
use crate::tensor::{DType, GpuLoan, OnGpu, Shape, Tensor, dlpack};

/// A tensor on a GPU that one stream reads: row-major, without gaps. While it lives, and until the stream has done what
/// it was given by then, its memory is not used for anything else.
///
/// Its owner and whoever else has mapped the memory can write it: CUDA has no read-only handles.
pub struct GpuView {
    dtype: DType,
    shape: Shape,
    area: Area,
    stream: Stream,
    source: Source,
}

/// What the view keeps. Events go before the memory whose users they tell of, and that before its loan.
enum Source {
    /// Memory of this process.
    Own(Arc<OwnedTensor>),
    /// Memory that a peer has lent.
    Lent { done: Arc<Opening<Event>>, import: Arc<Import>, loan: Arc<GpuLoan> },
    /// A region.
    Region(Arc<Import>),
}

impl Device {
    /// A tensor that lies on this GPU, for `stream` to read. The stream waits, on the GPU, until its writer is done;
    /// nothing waits here. The first tensor from a chunk of a peer's pool opens the chunk, which takes some 100 µs.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::OnHost`]: it does not lie on a GPU; [`CudaFault::OtherDevice`]: on another one;
    ///   [`CudaFault::HiddenDevice`]: on one that this process does not see.
    /// - [`ErrorKind::PeerDied`]: the process that has lent it has ended, and the memory with it.
    /// - [`CudaFault::Driver`]: what the peer says of its memory is no handle; [`CudaFault::Allocation`]: it is of less.
    /// - [`CudaFault::OtherNamespace`]: it cannot be opened, and the peer lives in another container.
    /// - [`CudaFault::OtherStream`], [`CudaFault::Capturing`]
    pub fn open(&self, tensor: &Tensor, stream: &Stream) -> Result<GpuView> {
        stream.check_device(self)?;
        // First: a child has none of it.
        let _entered = self.enter()?;
        stream.check_capture()?;
        self.retired().sweep();
        let Some((uuid, place)) = tensor.gpu().zip(tensor.on()) else {
            return Err(CudaFault::OnHost.into());
        };
        if uuid != self.uuid() {
            let (is, asked) = (uuid, self.uuid());
            let is_seen = Self::sees(uuid)?;
            let other = CudaFault::OtherDevice { is, asked };
            return Err(if is_seen { other } else { CudaFault::HiddenDevice { is } }.into());
        }
        let (area, source) = match place {
            OnGpu::Own(memory) => {
                let memory: Arc<dyn Any + Send + Sync> = memory.clone();
                let shared = memory.downcast::<OwnedTensor>().map_err(|_| CudaFault::OnHost)?;
                shared.hold.hold_back(stream)?;
                (shared.hold.area(), Source::Own(shared))
            }
            OnGpu::Lent(loan) => {
                if loan.lender_ended() {
                    return Err(ErrorKind::PeerDied.into());
                }
                let place = &loan.place;
                let shelf = loan.shelf().get(Imports::default);
                // Only this module keeps anything there.
                let imports = shelf.ok_or(CudaFault::OnHost)?;
                let foreign = |error| tell_of_namespace(error, loan);
                let import = imports.memory(self, loan).map_err(foreign)?;
                let ready = import.event(self, place.ready).map_err(foreign)?;
                let done = import.event(self, place.done).map_err(foreign)?;
                ready.hold_back(stream)?;
                // Judged to lie inside, when it came.
                let start = import.memory().start() + place.offset;
                let area = Area { start, len: place.len as usize };
                (area, Source::Lent { loan: loan.clone(), import, done })
            }
        };
        let (dtype, shape) = (tensor.dtype(), *tensor.shape());
        Ok(GpuView { dtype, shape, area, stream: stream.clone(), source })
    }

    /// A private copy of a tensor that lies on this GPU. Waits until it is made.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and [`ErrorKind::OutOfMemory`].
    pub fn to_host(&self, tensor: &Tensor, stream: &Stream) -> Result<Tensor> {
        self.open(tensor, stream)?.to_host()
    }

    /// As [`to_host`](Self::to_host), but waits only until `deadline`, as [`GpuView::read_deadline`] does. Who tries
    /// again keeps a [`GpuView`]: each time that a tensor is opened its stream is given one more wait.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`to_host`](Self::to_host).
    pub fn to_host_deadline(
        &self,
        tensor: &Tensor,
        stream: &Stream,
        deadline: Instant,
    ) -> Result<Tensor> {
        self.open(tensor, stream)?.to_host_deadline(deadline)
    }
}

/// The namespaces that CUDA's handles mean nothing outside of. A handle holds its maker's pid, and the driver takes
/// one with the opener's own for its own (README of Triton's clients, "--pid host"); UCX-Py demands the IPC namespace
/// ("NVLink and Docker/Kubernetes").
const NAMESPACES: [&str; 2] = ["pid", "ipc"];

/// What the driver said of a handle, or that its maker lives where handles are others.
#[cold]
fn tell_of_namespace(error: Error, loan: &GpuLoan) -> Error {
    match error.kind() {
        ErrorKind::Cuda(CudaFault::Driver { code, .. }) if is_refusal(*code) => {}
        _ => return error,
    }
    match loan.other_namespace(&NAMESPACES) {
        Some(namespace) => {
            let kind = ErrorKind::Cuda(CudaFault::OtherNamespace { namespace });
            Error::with_source(kind, std::io::Error::other(error))
        }
        None => error,
    }
}

impl GpuView {
    pub(super) fn of_region(
        import: Arc<Import>,
        (dtype, shape): (DType, Shape),
        area: Area,
        stream: &Stream,
    ) -> Self {
        Self { dtype, shape, area, stream: stream.clone(), source: Source::Region(import) }
    }

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
        self.area.len
    }

    /// The stream that reads it.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Its address on the GPU (`CUdeviceptr`), for kernels on [`stream`](Self::stream).
    pub fn device_ptr(&self) -> u64 {
        self.area.start
    }

    /// Copies its bytes to the host, and waits until they are there.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`](crate::error::TensorFault::Len): `to` has more or fewer.
    /// - [`ErrorKind::PeerDied`], before its writer was done.
    /// - [`CudaFault::Driver`], [`CudaFault::Capturing`]
    ///
    /// It waits as long as the writer lives and is not done; [`read_deadline`](Self::read_deadline) waits less.
    pub fn read(&self, to: &mut [u8]) -> Result<()> {
        self.wait(None)?;
        self.area.copy_to_host(to, &self.stream)
    }

    /// As [`read`](Self::read), but waits only until `deadline`: first for what the stream was given so far, and
    /// nothing is given to it meanwhile; then for the copy, in pieces of 4 MiB, on a stream of its own that is made
    /// each time.
    ///
    /// Nothing writes to `to` after this has returned. A piece that was begun is waited for, and by so much the
    /// deadline may be passed: 0.2 ms at 20 GB/s, 2 ms at 2 GB/s. After an error some of `to` may have been written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`read`](Self::read).
    pub fn read_deadline(&self, to: &mut [u8], deadline: Instant) -> Result<()> {
        let until = Until::new(deadline);
        self.wait(Some(until))?;
        self.area.copy_to_host_until(to, self.stream.device(), until)
    }

    /// A private copy. Waits until it is made.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`ErrorKind::OutOfMemory`].
    pub fn to_host(&self) -> Result<Tensor> {
        self.copy_by(|to| self.read(to))
    }

    /// As [`to_host`](Self::to_host), but waits only until `deadline`, as [`read_deadline`](Self::read_deadline)
    /// does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`to_host`](Self::to_host).
    pub fn to_host_deadline(&self, deadline: Instant) -> Result<Tensor> {
        self.copy_by(|to| self.read_deadline(to, deadline))
    }

    fn copy_by(&self, read: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Tensor> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(self.area.len);
        reserved.map_err(|_| ErrorKind::OutOfMemory { bytes: self.area.len as u64 })?;
        bytes.resize(self.area.len, 0);
        read(&mut bytes)?;
        Tensor::from_bytes(self.dtype, self.shape, &bytes)
    }

    /// Waits for what the stream was given: a copy would wait within the driver, without an end.
    fn wait(&self, until: Option<Until>) -> Result<()> {
        self.stream.check_capture()?;
        self.stream.synchronize_while(until, || match &self.source {
            Source::Lent { loan, .. } if loan.lender_ended() => Err(ErrorKind::PeerDied.into()),
            _ => Ok(()),
        })
    }

    /// Hands it to another library by DLPack, read-only and without a copy. That library is to use it on
    /// [`stream`](Self::stream), as its own protocol has it: PyTorch calls `__dlpack__(stream)`, and the stream it
    /// names is the one to open the tensor for. The loan goes back when it calls the deleter, behind what the stream
    /// was given by then.
    ///
    /// # Errors
    ///
    /// [`TensorFault::BytesLen`](crate::error::TensorFault::BytesLen): DLPack has no BYTES.
    pub fn into_dlpack(self) -> Result<*mut DLManagedTensorVersioned> {
        let device = DLDevice::cuda(self.stream.device().ordinal());
        let (dtype, shape, Area { start, len }) = (self.dtype, self.shape, self.area);
        dlpack::export_on(device, self, (start, len), dtype, &shape)
    }

    pub(super) fn area(&self) -> Area {
        self.area
    }
}

impl Drop for GpuView {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        if let Source::Own(shared) = &self.source {
            return shared.hold.end_behind(&self.stream);
        }
        let _entered = self.stream.device().enter();
        if self.stream.is_capturing() {
            // Recorded, an event would become part of the graph, and tell nothing of what ran before.
            tracing::warn!(
                "a use of a peer's memory ends while its stream is captured: it is kept"
            );
            return self.keep();
        }
        if let Err(error) = self.end() {
            tracing::warn!(%error, "a use of a peer's memory is waited for");
            if !self.stream.wait_to_end() {
                self.keep();
            }
        }
    }
}

impl GpuView {
    /// Records what tells that the stream's use is over.
    fn end(&self) -> Result<()> {
        match &self.source {
            Source::Own(_) => Ok(()),
            Source::Lent { loan, import, done } => {
                let mut ended = loan.ended();
                // An earlier view's use ends first, as one event tells of both.
                let chained = if *ended { done.hold_back(&self.stream) } else { Ok(()) };
                *ended = true;
                chained.and_then(|()| done.record(&self.stream))?;
                import.used_by(&self.stream)
            }
            Source::Region(import) => import.used_by(&self.stream),
        }
    }

    /// What the stream was given may run for ever: nobody gets the memory back, and nobody closes it.
    fn keep(&self) {
        match &self.source {
            Source::Lent { loan, import, .. } => std::mem::forget((loan.clone(), import.clone())),
            Source::Region(import) => std::mem::forget(import.clone()),
            Source::Own(_) => {}
        }
    }
}

impl fmt::Debug for GpuView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, shape, .. } = self;
        f.debug_struct("GpuView")
            .field("dtype", dtype)
            .field("shape", shape)
            .finish_non_exhaustive()
    }
}
