//! Regions of a GPU's memory, which somebody else's handle names: what Triton's clients register.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::cuda::device::Device;
use crate::cuda::imports::{Import, Keeps};
use crate::cuda::memory::{Area, Memory};
use crate::cuda::stream::{Stream, Until};
use crate::cuda::view::View;
use crate::error::{CudaFault, Result, TensorFault};
use crate::region::{CudaHandle, Lease, Reach};
use crate::tensor::{DType, Shape};

/// A range of an allocation of another process, open for as long as this or a view of it lives. Nothing tells when its
/// owner frees or writes it: that is between the two, as it is with Triton.
#[derive(Debug)]
pub struct Region {
    device: Device,
    import: Arc<Import>,
    area: Area,
    /// For copies that name none.
    stream: OnceLock<Stream>,
}

impl Device {
    /// Opens `len` bytes from `offset` on of the allocation that a handle names.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::Driver`]: the handle is forged, or its memory was freed, or is not open to this process.
    /// - [`CudaFault::Allocation`]: the allocation is shorter.
    pub fn region(&self, handle: &CudaHandle, offset: u64, len: u64) -> Result<Region> {
        self.map(handle, offset, len, None)
    }

    /// Opens a region that a [`Registry`](crate::Registry) knows, as far as it is leased.
    ///
    /// # Errors
    ///
    /// As [`region`](Self::region), and [`CudaFault::OnHost`]: it is no region of a GPU.
    pub fn lease(&self, lease: Lease) -> Result<Region> {
        let handle = lease.cuda_handle().ok_or(CudaFault::OnHost)?;
        let offset = lease.status().offset.checked_add(lease.offset());
        let offset = offset.ok_or(TensorFault::Overflow)?;
        self.map(&handle, offset, lease.len(), Some(lease))
    }

    /// Opens what Triton's clients register, on the GPU whose number they say: for `slipring_triton::SharedMemory`.
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
        // First: a child may find the table locked for ever.
        self.driver().check_fork()?;
        let end = offset.checked_add(len).ok_or(TensorFault::Overflow)?;
        let memory = &self.openings().memory;
        let memory = memory.get(handle.raw, || Memory::open(self, handle.raw))?;
        let import = Arc::new(Import::new(memory, Keeps { lease, ..Keeps::default() }));
        import.memory().holds(end)?;
        let area = Area { start: import.memory().start() + offset, len: len as usize };
        Ok(Region { device: self.clone(), import, area, stream: OnceLock::new() })
    }
}

/// For a [`Registry`](crate::Registry): copies by a stream of its own, each of which is waited for.
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
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.area.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.area.len == 0
    }

    /// Copies `to.len()` bytes from `offset` on to the host, and waits until they are there.
    ///
    /// # Errors
    ///
    /// [`TensorFault::GpuRange`]: they lead beyond its end. [`CudaFault::Driver`], [`CudaFault::OtherStream`],
    /// [`CudaFault::Capturing`].
    pub fn read_at(&self, offset: usize, to: &mut [u8], stream: &Stream) -> Result<()> {
        self.part(offset, to.len(), stream)?.copy_to_host(to, stream)
    }

    /// As [`read_at`](Self::read_at), but waits only until `deadline`, as [`View::read_deadline`] does.
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

    /// Copies `from` to `offset`, and waits until it is there.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, from: &[u8], stream: &Stream) -> Result<()> {
        self.part(offset, from.len(), stream)?.copy_from_host(from, stream)
    }

    /// As [`write_at`](Self::write_at), but waits only until `deadline`, as
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
        part.copy_from_host_until(from, &self.device, until)
    }

    /// A tensor in it, from `offset` on, for `stream` to read or write. The stream waits for nobody.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::GpuRange`]: it leads beyond the end. [`TensorFault::BytesLen`]: it has no length of its own.
    /// - [`CudaFault::OtherStream`]
    pub fn view(
        &self,
        dtype: DType,
        shape: impl Into<Shape>,
        offset: usize,
        stream: &Stream,
    ) -> Result<View> {
        stream.check_capture()?;
        let shape = shape.into();
        let len = shape.len(dtype)?.ok_or(TensorFault::BytesLen)?;
        let area = self.part(offset, len, stream)?;
        Ok(View::of_region(self.import.clone(), (dtype, shape), area, stream))
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
