//! A tensor on a GPU that is being read.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::cuda::device::Device;
use crate::cuda::event::Event;
use crate::cuda::import::Import;
use crate::cuda::imports::Imports;
use crate::cuda::lender::AwaitedWord;
use crate::cuda::library::{is_ours, is_refusal};
use crate::cuda::memory::Area;
use crate::cuda::openings::Opening;
use crate::cuda::retired::Retired;
use crate::cuda::returning;
use crate::cuda::store::OwnedTensor;
use crate::cuda::stream::{Stream, Until};
use crate::error::{CudaFault, Error, ErrorKind, Result, TensorFault};
use crate::tensor::dlpack::{DLDevice, DLManagedTensorVersioned};
use crate::tensor::{
    DType, GpuHandle, GpuLoan, GpuMemory, GpuOrder, GpuPlace, OnGpu, Shape, Tensor, dlpack,
};

/// A tensor on a GPU that one stream reads: row-major, contiguous. Its memory is not reused while the view
/// lives, nor before the work that the stream has got by then is done.
///
/// The owner, and every process that has mapped the memory, can write it: CUDA has no read-only handles.
///
/// See the [module's example](crate::cuda).
pub struct GpuView {
    dtype: DType,
    shape: Shape,
    area: Area,
    stream: Stream,
    source: Source,
}

/// The objects that the view keeps. Events are dropped before the memory whose users they tell of, and that
/// memory before its loan.
enum Source {
    /// Memory of this process.
    Own(Arc<OwnedTensor>),
    /// Memory that a peer has lent.
    Lent(Arc<LentUse>),
    /// A region.
    Region(Arc<Import>),
}

/// The use of memory that a peer has lent, by the views of one stream that were opened together. It ends with the last one.
struct LentUse {
    /// The event of the lender's that is recorded after the last use. `None`: the loan goes back after it.
    done: Option<Arc<Opening<Event>>>,
    /// The word that the stream awaits before it reads.
    word: Option<Arc<AwaitedWord>>,
    import: Arc<Import>,
    loan: Arc<GpuLoan>,
    stream: Stream,
}

/// The uses of tensors that are opened together, by what comes back together, and by the word that the stream awaits.
type Uses = HashMap<(usize, Option<(u64, u64)>), Arc<LentUse>>;

impl Device {
    /// Opens a tensor for `stream`, which is of this GPU, to read. The stream waits, on the GPU, until the tensor's
    /// writer is done. The call waits at most 20 ms for memory of the GPU that is being freed,
    /// [`open_all`](Self::open_all) for each free that begins meanwhile. The first tensor of a chunk of a peer's pool opens the
    /// chunk, which takes about 100 µs. Over a limit of the peer's account it waits up to two seconds for idle allocations to be
    /// closed.
    ///
    /// The tensor may lie on another GPU that this process sees, whose memory this one [can use](Self::can_access), if it is in
    /// memory of a pool with [`Export::FileDescriptor`](crate::cuda::Export::FileDescriptor), and its order is
    /// [`Order::Words`](crate::cuda::Order::Words) or [`Order::Synchronized`](crate::cuda::Order::Synchronized). The work of the
    /// stream then reads it there.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::OnHost`]: the tensor does not lie on a GPU. [`CudaFault::HiddenDevice`]: it lies on one that this process
    ///   does not see.
    /// - [`CudaFault::NoPeerAccess`]: it lies on another GPU, whose memory this one cannot use. [`CudaFault::OneDevice`]: it lies
    ///   on another GPU, in memory or with an order for one GPU.
    /// - [`ErrorKind::PeerDied`]: the lender's process has ended, and the memory is gone.
    /// - [`CudaFault::Driver`]: the peer's handle is none. [`CudaFault::Allocation`]: its allocation is
    ///   shorter than it claims.
    /// - [`CudaFault::NotAllocation`]: the peer's file descriptor is no allocation. [`CudaFault::WrongDevice`]: it
    ///   is one of another GPU than the peer says. [`CudaFault::ShortAllocation`]: it is shorter than the peer
    ///   says.
    /// - [`CudaFault::NoWords`]: the peer orders its work by words, which this GPU's streams cannot wait for.
    /// - [`ErrorKind::AccountFull`]: the peer has too many allocations mapped here, or too long ones.
    /// - [`CudaFault::OtherNamespace`]: the driver cannot open it, and the peer lives in another container.
    /// - [`CudaFault::OtherStream`], [`CudaFault::Capturing`]: the stream belongs to another GPU or is being
    ///   captured.
    pub fn open(&self, tensor: &Tensor, stream: &Stream) -> Result<GpuView> {
        let mut views = self.open_all([tensor], stream)?;
        views.pop().ok_or(CudaFault::OnHost.into())
    }

    /// Opens tensors as [`open`](Self::open) does, in their order. Tensors of one message that share an allocation
    /// and its order are opened together: the driver is called as often as for one of them. Their memory goes back when the
    /// last of their views is dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn read(device: &slipring::cuda::Device, link: &mut slipring::Connection) -> slipring::Result<()> {
    /// let stream = device.stream()?;
    /// if let Some(weights) = link.receiver().recv_tensors()? {
    ///     let views = device.open_all(weights.iter().map(|(_, tensor)| tensor), &stream)?;
    /// #   drop(views);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open). No view is left then.
    pub fn open_all<'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a Tensor>,
        stream: &Stream,
    ) -> Result<Vec<GpuView>> {
        stream.check_device(self)?;
        // The check comes first: a child has none of this.
        let _entered = self.enter()?;
        stream.check_capture()?;
        Retired::of(self).look();
        let mut uses = Uses::new();
        tensors.into_iter().map(|tensor| self.open_one(tensor, stream, &mut uses)).collect()
    }

    fn open_one(&self, tensor: &Tensor, stream: &Stream, uses: &mut Uses) -> Result<GpuView> {
        let (area, source) = match tensor.on().ok_or(CudaFault::OnHost)? {
            OnGpu::Own(memory) => {
                let shared = owned(memory)?;
                shared.hold().reach_from(self)?;
                shared.hold().hold_back(stream)?;
                (shared.area(), Source::Own(shared))
            }
            OnGpu::Lent(loan) => {
                let place = &loan.place;
                let word = match place.order {
                    GpuOrder::Word { offset, value } => Some((offset, value)),
                    GpuOrder::Events { .. } | GpuOrder::Synchronized => None,
                };
                let key = (loan.together(), word);
                let used = match uses.get(&key) {
                    Some(used) => used.clone(),
                    None => {
                        let used = Arc::new(self.use_loan(loan, stream)?);
                        uses.insert(key, used.clone());
                        used
                    }
                };
                // The place was checked when it came.
                let start = used.import.memory().start() + place.offset;
                let area = Area { start, len: place.len as usize };
                (area, Source::Lent(used))
            }
        };
        let (dtype, shape) = (tensor.dtype(), *tensor.shape());
        Ok(GpuView { dtype, shape, area, stream: stream.clone(), source })
    }

    /// Opens the memory of a loan, and lets the stream wait for its writer.
    fn use_loan(&self, loan: &Arc<GpuLoan>, stream: &Stream) -> Result<LentUse> {
        self.check_handles(&loan.place)?;
        if loan.lender_ended() {
            return Err(ErrorKind::PeerDied.into());
        }
        let extension = loan.extension().get(Imports::default);
        // Only this module puts memory there.
        let imports = extension.ok_or(CudaFault::OnHost)?;
        let foreign = |error| tell_of_namespace(error, loan);
        let import = imports.memory(self, loan).map_err(foreign)?;
        let (done, word) = match loan.place.order {
            GpuOrder::Events { ready, done } => {
                let ready = import.event(self, ready).map_err(foreign)?;
                let done = import.event(self, done).map_err(foreign)?;
                ready.hold_back(stream)?;
                (Some(done), None)
            }
            GpuOrder::Word { offset, value } => {
                let lender = imports.lender(loan);
                let word = lender.await_word((loan, &import), (offset, value), stream)?;
                (None, Some(word))
            }
            GpuOrder::Synchronized => (None, None),
        };
        Ok(LentUse { done, word, import, loan: loan.clone(), stream: stream.clone() })
    }

    /// Checks that a place on another GPU names no handle, which one GPU opens. An event that is recorded on one GPU cannot
    /// be recorded on another, so the owner would not hear of the last use.
    fn check_handles(&self, place: &GpuPlace) -> Result<()> {
        let (is, asked) = (place.device, self.uuid());
        let has_handles = matches!(place.memory, GpuHandle::Ipc(_))
            || matches!(place.order, GpuOrder::Events { .. });
        if is == asked || !has_handles {
            return Ok(());
        }
        let one = CudaFault::OneDevice { is, asked };
        Err(if Self::sees(is)? { one } else { CudaFault::HiddenDevice { is } }.into())
    }

    /// Returns a part of a tensor of this process on this GPU: `offset` bytes behind its start. All parts of a tensor are one
    /// tensor to the order and to the owner of its memory: many of them in one message cost as much as one, and the memory
    /// comes back when all parts are dropped, here and at the peers.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn send(device: &slipring::cuda::Device, link: &mut slipring::Connection) -> slipring::Result<()> {
    /// use slipring::{DType, TensorSet};
    ///
    /// let (pool, stream) = (device.pool(), device.stream()?);
    /// let layers = pool.alloc::<u8>([2 << 20], &stream)?.share()?; // once a kernel has written it
    /// let mut weights = TensorSet::new();
    /// weights.insert("up", device.part(&layers, 0, DType::Bf16, [512, 1024])?)?;
    /// weights.insert("down", device.part(&layers, 1 << 20, DType::Bf16, [1024, 512])?)?;
    /// link.sender().send_tensors(&weights)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`CudaFault::OnHost`]: the tensor does not lie on a GPU. [`CudaFault::OtherDevice`]: it lies on another GPU.
    /// - [`TensorFault::GpuLoan`]: it is a peer's.
    /// - [`TensorFault::GpuRange`]: it is shorter. [`TensorFault::Alignment`]: `offset` is no multiple of 256.
    /// - [`ErrorKind::Tensor`]: the shape is impossible.
    pub fn part(
        &self,
        tensor: &Tensor,
        offset: u64,
        dtype: DType,
        shape: impl Into<Shape>,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        let (is, asked) = (tensor.gpu().ok_or(CudaFault::OnHost)?, self.uuid());
        if is != asked {
            return Err(CudaFault::OtherDevice { is, asked }.into());
        }
        match tensor.on() {
            Some(OnGpu::Own(memory)) => {
                let part = Arc::new(owned(memory)?.part(offset, len)?);
                Ok(Tensor::on_gpu(dtype, shape, OnGpu::Own(part)))
            }
            Some(OnGpu::Lent(_)) => Err(TensorFault::GpuLoan.into()),
            None => Err(CudaFault::OnHost.into()),
        }
    }

    /// Returns a private copy of a tensor. It waits until the copy is made.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and [`ErrorKind::OutOfMemory`].
    pub fn to_host(&self, tensor: &Tensor, stream: &Stream) -> Result<Tensor> {
        self.open(tensor, stream)?.to_host()
    }

    /// Returns a copy as [`to_host`](Self::to_host) does. It waits until `deadline`, as
    /// [`GpuView::read_deadline`] does. A caller that tries again keeps a [`GpuView`]: each opening queues one
    /// more wait on the stream.
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

/// Returns memory that this module has made.
fn owned(memory: &Arc<dyn GpuMemory>) -> Result<Arc<OwnedTensor>, CudaFault> {
    let memory: Arc<dyn Any + Send + Sync> = memory.clone();
    memory.downcast().map_err(|_| CudaFault::OnHost)
}

/// The namespaces outside of which CUDA's handles mean nothing. A handle holds its maker's pid, and the driver
/// takes a handle with the opener's pid for its own (README of Triton's clients, "--pid host"). UCX-Py demands
/// the IPC namespace ("NVLink and Docker/Kubernetes").
const NAMESPACES: [&str; 2] = ["pid", "ipc"];

/// Returns the driver's error of a handle, or the fault that its maker lives in another namespace.
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
        self.area.len
    }

    /// Returns the stream that reads it.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns its address (`CUdeviceptr`), for kernels on [`stream`](Self::stream).
    pub fn device_ptr(&self) -> u64 {
        self.area.start
    }

    /// Waits until the writer is done, and the work that the stream has got so far. It copies nothing, so the call can be
    /// repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], [`ErrorKind::PeerDied`], [`CudaFault::Driver`], [`CudaFault::Capturing`].
    pub fn settle_deadline(&self, deadline: Instant) -> Result<()> {
        self.wait(Some(Until::new(deadline)))
    }

    /// Copies its bytes to the host and waits until they are there.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::Len`](crate::error::TensorFault::Len): `to` has more or fewer bytes.
    /// - [`ErrorKind::PeerDied`]: the owner died before its writer was done.
    /// - [`CudaFault::Driver`], [`CudaFault::Capturing`]
    ///
    /// The call waits while the writer lives and is not done. [`read_deadline`](Self::read_deadline) has a
    /// limit.
    pub fn read(&self, to: &mut [u8]) -> Result<()> {
        self.wait(None)?;
        self.area.copy_to_host(to, &self.stream)
    }

    /// Copies as [`read`](Self::read) does. It waits until `deadline`: first for the work that the stream has
    /// got so far, and queues nothing on it. Then it copies in pieces of 4 MiB on a new stream of its own.
    ///
    /// Nothing writes to `to` after the call. The call waits for a piece that has begun, so it may return late
    /// by one piece: 0.2 ms at 20 GB/s, 2 ms at 2 GB/s. After an error part of `to` may be written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`read`](Self::read).
    pub fn read_deadline(&self, to: &mut [u8], deadline: Instant) -> Result<()> {
        let until = Until::new(deadline);
        self.wait(Some(until))?;
        self.area.copy_to_host_until(to, self.stream.device(), until)
    }

    /// Returns a private copy. It waits until the copy is made.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and [`ErrorKind::OutOfMemory`].
    pub fn to_host(&self) -> Result<Tensor> {
        self.copy_by(|to| self.read(to))
    }

    /// Returns a copy as [`to_host`](Self::to_host) does. It waits until `deadline`, as
    /// [`read_deadline`](Self::read_deadline) does.
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

    /// Checks that the bytes which the work of [`stream`](Self::stream) has read so far were written. A caller asks when
    /// that work is done: [`Stream::synchronize`] does not wait for a dead owner for ever, and the stream goes on over
    /// bytes that nobody has written. Copies to the host check by themselves.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::PeerDied`]: the owner's process ended before its writer was done. With
    ///   [`Order::Events`](crate::cuda::Order::Events): it has ended, and nothing tells whether its writer was done.
    /// - [`CudaFault::Driver`]: the driver does not tell.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn read(view: slipring::cuda::GpuView, launch: fn(u64, &slipring::cuda::Stream)) -> slipring::Result<()> {
    /// launch(view.device_ptr(), view.stream());
    /// view.stream().synchronize()?;
    /// view.check()?; // what the kernel has read came from the writer
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<()> {
        self.check_until(None)
    }

    /// Checks as [`check`](Self::check) does. It waits until `deadline` for the answer: the GPU may be busy, and the driver may
    /// hold up the thread that asks it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`check`](Self::check).
    pub fn check_deadline(&self, deadline: Instant) -> Result<()> {
        self.check_until(Some(Until::new(deadline)))
    }

    fn check_until(&self, until: Option<Until>) -> Result<()> {
        match &self.source {
            Source::Lent(used) => used.check(until),
            Source::Own(_) | Source::Region(_) => Ok(()),
        }
    }

    /// Waits for the stream's work here: a copy would wait within the driver without a limit.
    fn wait(&self, until: Option<Until>) -> Result<()> {
        self.stream.check_capture()?;
        self.stream.synchronize_while(until, || match &self.source {
            Source::Lent(used) if used.loan.lender_ended() => used.check(until),
            _ => Ok(()),
        })?;
        self.check_until(until)
    }

    /// Exports the tensor to another library by DLPack, read-only and without a copy. That library uses it on
    /// [`stream`](Self::stream), as its own protocol says: PyTorch calls `__dlpack__(stream)`, and the caller
    /// opens the tensor for the stream that PyTorch names. The loan goes back when the library calls the
    /// deleter, after the work that the stream has got by then. Nothing tells that library of an owner that died before its
    /// writer was done: a caller to whom that matters keeps a second view and [checks](Self::check) it afterwards.
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

    /// Returns a number that this view has in common with those whose memory goes back with its own, when the last one is
    /// dropped. It is theirs while one of them lives.
    #[doc(hidden)]
    pub fn together(&self) -> usize {
        match &self.source {
            Source::Own(shared) => Arc::as_ptr(shared) as usize,
            Source::Lent(used) => Arc::as_ptr(used) as usize,
            Source::Region(import) => Arc::as_ptr(import) as usize,
        }
    }

    /// Returns whether its lender has ended, by what the link knows: no driver is asked.
    #[doc(hidden)]
    pub fn lender_ended(&self) -> bool {
        matches!(&self.source, Source::Lent(used) if used.loan.lender_ended())
    }
}

impl Drop for GpuView {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        match &self.source {
            Source::Own(shared) => shared.hold().end_behind(&self.stream),
            Source::Region(import) => {
                let keep = || std::mem::forget(import.clone());
                end_use(&self.stream, || import.used_by(&self.stream), keep);
            }
            // The last view of the use ends it.
            Source::Lent(_) => {}
        }
    }
}

impl LentUse {
    fn check(&self, until: Option<Until>) -> Result<()> {
        match self {
            Self { word: Some(word), .. } => word.check(until),
            Self { done: Some(_), loan, .. } if loan.lender_ended() => {
                Err(ErrorKind::PeerDied.into())
            }
            _ => Ok(()),
        }
    }

    /// Records the event after the stream's use.
    fn end(&self) -> Result<()> {
        let Self { done, word, import, loan, stream } = self;
        let Some(done) = done else {
            return returning::give_back((loan, import), word.as_ref(), stream);
        };
        let mut ended = loan.ended();
        // An earlier use ends first, because one event stands for both.
        let chained = if *ended { done.hold_back(stream) } else { Ok(()) };
        *ended = true;
        chained.and_then(|()| done.record(stream))?;
        import.used_by(stream)
    }
}

impl Drop for LentUse {
    fn drop(&mut self) {
        if is_ours() {
            let Self { word, import, loan, .. } = &*self;
            let keep = || std::mem::forget((loan.clone(), import.clone(), word.clone()));
            end_use(&self.stream, || self.end(), keep);
        }
    }
}

/// Ends a use of memory of a peer by `end`, or leaks it by `keep`: the stream's work may run forever, and nobody gets the memory
/// back or closes it then.
fn end_use(stream: &Stream, end: impl FnOnce() -> Result<()>, keep: impl FnOnce()) {
    let _entered = stream.device().enter();
    if stream.is_capturing() {
        // A recorded event would become part of the graph and tell nothing of earlier work.
        tracing::warn!("a use of a GPU's memory ends while its stream is captured: it is kept");
        return keep();
    }
    if let Err(error) = end() {
        stream.device().tell(&error, "a use of a GPU's memory is waited for");
        if !stream.wait_to_end() {
            keep();
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
