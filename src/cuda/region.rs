//! Ranges of another process's GPU memory that a raw handle names, as Triton's clients register them.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::cuda::device::Device;
use crate::cuda::import::Import;
use crate::cuda::memory::{Area, Memory};
use crate::cuda::stream::{Stream, Until};
use crate::cuda::view::GpuView;
use crate::error::{CudaFault, Result, TensorFault};
use crate::region::{CudaHandle, Lease, Reach};
use crate::shm::Bytes;
use crate::tensor::{DType, Shape};

/// A range of another process's allocation, open while this object or a view of it lives. CUDA does not tell
/// when the owner frees or writes it: the two processes agree on that, as Triton's do.
#[derive(Debug)]
pub struct Region {
    device: Device,
    import: Arc<Import>,
    area: Area,
    /// The stream of copies without a stream of their own.
    stream: OnceLock<Stream>,
}

impl Device {
    /// Opens `len` bytes from `offset` on of the allocation that a handle names.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::Driver`]: the handle is forged, its memory is freed, or this process cannot open it.
    /// - [`CudaFault::Allocation`]: the allocation is shorter.
    pub fn region(&self, handle: &CudaHandle, offset: u64, len: u64) -> Result<Region> {
        self.map(handle, offset, len, None)
    }

    /// Opens the leased range of a region of a [`Registry`](crate::region::Registry).
    ///
    /// # Errors
    ///
    /// As [`region`](Self::region), and [`CudaFault::OnHost`]: the region is not on a GPU.
    pub fn lease(&self, lease: Lease) -> Result<Region> {
        let handle = lease.cuda_handle().ok_or(CudaFault::OnHost)?;
        let offset = lease.status().offset.checked_add(lease.offset());
        let offset = offset.ok_or(TensorFault::Overflow)?;
        self.map(&handle, offset, lease.len(), Some(lease))
    }

    /// Opens the memory that a Triton client registers, on the GPU that the client names.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`region`](Self::region).
    pub fn reach(handle: &CudaHandle, len: u64) -> Result<Arc<dyn Reach>> {
        Ok(Arc::new(Self::new(handle.device)?.region(handle, 0, len)?))
    }

    fn map(
        &self,
        handle: &CudaHandle,
        offset: u64,
        len: u64,
        lease: Option<Lease>,
    ) -> Result<Region> {
        // The check comes first: a child may find the table locked forever.
        self.driver().check_fork()?;
        let end = offset.checked_add(len).ok_or(TensorFault::Overflow)?;
        let import = Arc::new(Import::of_region(Memory::open(self, handle.raw)?, lease));
        import.memory().holds(end)?;
        let area = Area { start: import.memory().start() + offset, len: len as usize };
        Ok(Region { device: self.clone(), import, area, stream: OnceLock::new() })
    }
}

/// The access of a [`Registry`](crate::region::Registry): synchronous copies on a stream of its own.
impl Reach for Region {
    fn len(&self) -> u64 {
        self.area.len as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        Region::read_at(self, offset as usize, to, self.own_stream()?)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        Region::write_at(self, offset as usize, from, self.own_stream()?)
    }
}

impl Region {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.area.len
    }

    /// Returns whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.area.len == 0
    }

    /// Copies the bytes from `offset` on to the host and waits until they are there.
    ///
    /// # Errors
    ///
    /// [`TensorFault::GpuRange`]: the range ends past the region's end. [`CudaFault::Driver`],
    /// [`CudaFault::OtherStream`], [`CudaFault::Capturing`].
    pub fn read_at(&self, offset: usize, to: &mut [u8], stream: &Stream) -> Result<()> {
        self.part(offset, to.len(), stream)?.copy_to_host(to, stream)
    }

    /// Copies as [`read_at`](Self::read_at) does. It waits until `deadline`, as [`GpuView::read_deadline`]
    /// does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and as [`read_at`](Self::read_at).
    pub fn read_at_deadline(
        &self,
        offset: usize,
        to: &mut [u8],
        stream: &Stream,
        deadline: Instant,
    ) -> Result<()> {
        let (until, part) = (Until::new(deadline), self.part(offset, to.len(), stream)?);
        stream.settle(until)?;
        part.copy_to_host_until(to, &self.device, until)
    }

    /// Copies `from` to `offset` and waits until it is there.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, from: &[u8], stream: &Stream) -> Result<()> {
        self.part(offset, from.len(), stream)?.copy_from_host(Bytes::of(from), stream)
    }

    /// Copies as [`write_at`](Self::write_at) does. It waits until `deadline`, as
    /// [`Draft::write_deadline`](crate::cuda::Draft::write_deadline) does.
    ///
    /// # Errors
    ///
    /// As [`read_at_deadline`](Self::read_at_deadline).
    pub fn write_at_deadline(
        &self,
        offset: usize,
        from: &[u8],
        stream: &Stream,
        deadline: Instant,
    ) -> Result<()> {
        let (until, part) = (Until::new(deadline), self.part(offset, from.len(), stream)?);
        stream.settle(until)?;
        part.copy_from_host_until(Bytes::of(from), &self.device, until)
    }

    /// Returns a view of a tensor in the region, from `offset` on, for `stream` to read or write. The stream
    /// waits for no other one.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::GpuRange`]: the tensor ends past the region's end. [`TensorFault::BytesLen`]: elements
    ///   of BYTES have no fixed length.
    /// - [`CudaFault::OtherStream`]: the stream belongs to another GPU.
    pub fn view(
        &self,
        dtype: DType,
        shape: impl Into<Shape>,
        offset: usize,
        stream: &Stream,
    ) -> Result<GpuView> {
        stream.check_capture()?;
        let shape = shape.into();
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        let area = self.part(offset, len, stream)?;
        Ok(GpuView::of_region(self.import.clone(), (dtype, shape), area, stream))
    }

    fn own_stream(&self) -> Result<&Stream> {
        match self.stream.get() {
            Some(stream) => Ok(stream),
            None => {
                let stream = self.device.stream()?;
                Ok(self.stream.get_or_init(|| stream))
            }
        }
    }

    fn part(&self, offset: usize, len: usize, stream: &Stream) -> Result<Area> {
        stream.check_device(&self.device)?;
        let Area { start, len: whole } = self.area;
        if offset > whole || len > whole - offset {
            let (offset, len, allocation) = (offset as u64, len as u64, whole as u64);
            return Err(TensorFault::GpuRange { offset, len, allocation }.into());
        }
        Ok(Area { start: start + offset as u64, len })
    }
}
