//! Memory of a GPU that this process allocates or opens, and copies from and to it.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle};

use crate::channel::{PassedAllocation, SharedAllocation};
use crate::cuda::device::Device;
use crate::cuda::library::is_refusal;
use crate::cuda::mapped::{self, Mapped};
use crate::cuda::openings::{Opening, Table};
use crate::cuda::per_gpu::PerGpu;
use crate::cuda::pinned;
use crate::cuda::stream::{Stream, Until};
use crate::error::{CudaFault, Error, ErrorKind, Result, TensorFault};
use crate::shm::Bytes;

/// The granularity of an allocation's length in bytes. Shorter allocations share a page of the GPU with
/// others, which a process that opens one can read, too (CUDA Driver API, `cuIpcGetMemHandle`; pages of 2
/// MiB).
pub(super) const PAGE: u64 = 2 << 20;

/// The bytes that a copy with a deadline gives the driver at a time: memory of the host is in use until they
/// are copied. 4 MiB take 200 µs at the 20 GB/s of PCIe 4.0, so a call of a few microseconds adds little.
const PIECE: usize = 4 << 20;

/// The sleep between two questions to a driver that cannot tell whether a copy runs.
const PAUSE: Duration = Duration::from_millis(1);

/// The handle of an allocation, for other processes.
pub(super) type MemoryHandle = [u8; 64];

/// An allocation of this process, and its handle.
pub(super) type Exported = (Opening<Memory>, MemoryHandle);

/// The allocations that this process has open, and its own that others may open.
static OPEN: PerGpu<Table<Memory>> = PerGpu::new();

/// An allocation that is mapped in this process.
pub(super) struct Memory {
    device: Device,
    start: CUdeviceptr,
    /// In bytes. Empty: the driver was not asked yet.
    len: OnceLock<u64>,
    origin: Origin,
}

/// What ends the use of memory.
enum Origin {
    Allocated,
    Opened,
    /// Its owner does, which the chunk keeps.
    Adopted,
    /// Its drop does.
    Mapped {
        mapped: Mapped,
    },
}

/// Memory that this process holds.
#[derive(Debug)]
pub(super) enum HeldMemory {
    /// By a handle. The process holds it once.
    Handle(Opening<Memory>),
    /// Alone: no other part of the process has it.
    Sole(Memory),
}

impl Deref for HeldMemory {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        match self {
            Self::Handle(memory) => memory,
            Self::Sole(memory) => memory,
        }
    }
}

impl Memory {
    /// Allocates `len` bytes, a multiple of [`PAGE`].
    fn new(device: &Device, len: u64) -> Result<Self> {
        let (driver, _entered) = (device.driver(), device.enter()?);
        let mut start = 0;
        // SAFETY: `start` has room for an address, and the device's context is current.
        let code = unsafe { (driver.calls.cuMemAlloc_v2)(&mut start, len as usize) };
        driver.check("cuMemAlloc_v2", code)?;
        Ok(Self { device: device.clone(), start, len: len.into(), origin: Origin::Allocated })
    }

    /// Allocates `len` bytes, a multiple of [`PAGE`], for this process and others. Returns their handle, too.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`]; [`CudaFault::Closing`]: the process holds other memory by this handle. What was allocated comes with the
    /// error, because its caller may not wait for the free.
    pub(super) fn exported(
        device: &Device,
        len: u64,
    ) -> Result<Exported, (Error, Option<Box<Self>>)> {
        let _entered = device.enter().map_err(|error| (error, None))?;
        let memory = Self::new(device, len).map_err(|error| (error, None))?;
        let handle = match memory.export() {
            Ok(handle) => handle,
            Err(error) => return Err((error, Some(Box::new(memory)))),
        };
        // A receiver in this process uses the memory itself.
        let mut memory = Some(memory);
        let taken = || Ok(memory.take().expect("asked once"));
        match (OPEN.of(device).get(handle, taken), memory) {
            (Ok(opening), None) => Ok((opening, handle)),
            (Ok(_), memory) => Err((CudaFault::Closing.into(), memory.map(Box::new))),
            (Err(error), memory) => Err((error, memory.map(Box::new))),
        }
    }

    /// Allocates at least `len` bytes, for this process and others. Returns their descriptor, too. The GPU may use them when it
    /// [reaches](Self::reach_from) them.
    pub(super) fn announced(device: &Device, len: u64) -> Result<(Self, Arc<SharedAllocation>)> {
        let _entered = device.enter()?;
        let granularity = mapped::granularity(device)?.max(PAGE);
        let len = len.checked_next_multiple_of(granularity).ok_or(TensorFault::Overflow)?;
        let (mapped, fd) = Mapped::new(device, len)?;
        let shared = SharedAllocation::new(device.uuid(), len, fd);
        Ok((Self::of(mapped, len), Arc::new(shared)))
    }

    /// Maps the allocation behind a peer's descriptor for `reader` to [reach](Self::reach_from), which may be another GPU than the
    /// allocation's.
    ///
    /// # Errors
    ///
    /// As [`Mapped::import`].
    pub(super) fn import(reader: &Device, passed: &PassedAllocation) -> Result<Self> {
        Ok(Self::of(Mapped::import(reader, passed)?, passed.len()))
    }

    /// Returns the allocation of another library that `at` lies in, with its handle.
    ///
    /// # Errors
    ///
    /// [`CudaFault::NotExportable`], with the driver's error as its source; [`CudaFault::Driver`].
    pub(super) fn adopted(device: &Device, at: CUdeviceptr) -> Result<Exported> {
        let why = "it is no allocation of cuMemAlloc, and none of cuMemCreate";
        let refused = |error: Error| match error.kind() {
            ErrorKind::Cuda(CudaFault::Driver { code, .. }) if is_refusal(*code) => {
                mapped::because(CudaFault::NotExportable { why }, error)
            }
            _ => error,
        };
        let (driver, _entered) = (device.driver(), device.enter()?);
        let (mut start, mut len) = (0, 0);
        // SAFETY: `start` and `len` have room for an address and a size.
        let code = unsafe { (driver.calls.cuMemGetAddressRange_v2)(&mut start, &mut len, at) };
        driver.check("cuMemGetAddressRange_v2", code).map_err(refused)?;
        let (device, len) = (device.clone(), len as u64);
        let memory = Self::adopted_mapping(&device, start, len);
        let handle = memory.export().map_err(refused)?;
        // A receiver in this process uses the memory itself.
        let memory = OPEN.of(&device).get(handle, || Ok(memory))?;
        Ok((memory, handle))
    }

    /// Returns the mapping of another library.
    pub(super) fn adopted_mapping(device: &Device, start: CUdeviceptr, len: u64) -> Self {
        Self { device: device.clone(), start, len: len.into(), origin: Origin::Adopted }
    }

    fn of(mapped: Mapped, len: u64) -> Self {
        let (device, start) = (mapped.device().clone(), mapped.start());
        Self { device, start, len: len.into(), origin: Origin::Mapped { mapped } }
    }

    /// Opens another process's allocation, unless it is open. In the process that loaded the driver.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Driver`]: the handle names no allocation. [`CudaFault::Closing`].
    pub(super) fn open(device: &Device, handle: MemoryHandle) -> Result<Opening<Self>> {
        OPEN.of(device).get(handle, || Self::attach(device, handle))
    }

    fn attach(device: &Device, handle: MemoryHandle) -> Result<Self> {
        let (driver, _entered) = (device.driver(), device.enter()?);
        let named = CUipcMemHandle { reserved: handle.map(|byte| byte as _) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut start = 0;
        // SAFETY: `start` has room for an address. The driver checks the handle.
        let code = unsafe { (driver.calls.cuIpcOpenMemHandle_v2)(&mut start, named, flags) };
        driver.check("cuIpcOpenMemHandle_v2", code)?;
        // From here on dropping it closes it, which may wait. So it is measured when its caller keeps it.
        Ok(Self { device: device.clone(), start, len: OnceLock::new(), origin: Origin::Opened })
    }

    /// Returns the handle for other processes.
    fn export(&self) -> Result<MemoryHandle> {
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: `handle` has room for one, and the memory is an allocation of this process.
        let code = unsafe { (driver.calls.cuIpcGetMemHandle)(&mut handle, self.start) };
        driver.check("cuIpcGetMemHandle", code)?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// Returns the length of the allocation that the driver reports, from its start on.
    fn measure(&self) -> Result<u64> {
        let (driver, _entered) = (self.device.driver(), self.device.enter()?);
        let (mut base, mut len) = (0, 0);
        // SAFETY: `base` and `len` have room for an address and a size.
        let code =
            unsafe { (driver.calls.cuMemGetAddressRange_v2)(&mut base, &mut len, self.start) };
        driver.check("cuMemGetAddressRange_v2", code)?;
        Ok((len as u64).saturating_sub(self.start.saturating_sub(base)))
    }

    /// Checks that the allocation has as many bytes.
    ///
    /// # Errors
    ///
    /// [`CudaFault::Allocation`], [`CudaFault::Driver`].
    pub(super) fn holds(&self, claimed: u64) -> Result<()> {
        let len = match self.len.get() {
            Some(len) => *len,
            None => {
                let measured = self.measure()?;
                *self.len.get_or_init(|| measured)
            }
        };
        if claimed > len { Err(CudaFault::Allocation { len, claimed }.into()) } else { Ok(()) }
    }

    /// Lets a GPU use it. In the process that loaded the driver.
    ///
    /// # Errors
    ///
    /// [`CudaFault::OneDevice`]: it lies on another GPU, and is no mapping of this process's. As [`Mapped::reach_from`].
    pub(super) fn reach_from(&self, device: &Device) -> Result<()> {
        match &self.origin {
            Origin::Mapped { mapped } => mapped.reach_from(device),
            _ if device.is(&self.device) => Ok(()),
            Origin::Allocated | Origin::Opened | Origin::Adopted => {
                Err(CudaFault::OneDevice { is: self.device.uuid(), asked: device.uuid() }.into())
            }
        }
    }

    /// Returns its address on the GPU.
    pub(super) fn start(&self) -> CUdeviceptr {
        self.start
    }

    /// Returns its length in bytes: 0 for a peer's that nobody has [measured](Self::holds).
    pub(super) fn len(&self) -> u64 {
        self.len.get().copied().unwrap_or_default()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let is_own = match self.origin {
            Origin::Allocated => true,
            Origin::Opened => false,
            Origin::Mapped { .. } | Origin::Adopted => return,
        };
        let Some(_entered) = self.device.enter_to_end() else { return };
        let calls = &self.device.driver().calls;
        let (call, code) = if is_own {
            // SAFETY: it was allocated once. Nobody uses it after this: what is lent of it keeps it.
            ("cuMemFree_v2", unsafe { (calls.cuMemFree_v2)(self.start) })
        } else {
            // SAFETY: it was opened once. Nobody uses it after this: views of it keep it.
            ("cuIpcCloseMemHandle", unsafe { (calls.cuIpcCloseMemHandle)(self.start) })
        };
        self.device.ended(call, code);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A range of memory that its user keeps alive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub(super) start: CUdeviceptr,
    /// In bytes.
    pub(super) len: usize,
}

impl Area {
    /// Copies `from`, which others may write meanwhile, to the range and waits until it is there.
    pub(super) fn copy_from_host(self, from: Bytes<'_>, stream: &Stream) -> Result<()> {
        judge(self.len, from.len())?;
        let (driver, _entered) = (stream.device().driver(), stream.device().enter()?);
        // A replayed graph would read `from` at every replay.
        stream.check_capture()?;
        let source = from.as_ptr().cast();
        // SAFETY: both have as many bytes; those of the host stay until the stream is done, below.
        let code = unsafe {
            (driver.calls.cuMemcpyHtoDAsync_v2)(self.start, source, from.len(), stream.raw())
        };
        let copied = driver.check("cuMemcpyHtoDAsync_v2", code);
        finish(stream, from.as_ptr()).and(copied)
    }

    /// Copies the range to the host and waits until it is there.
    pub(super) fn copy_to_host(self, to: &mut [u8], stream: &Stream) -> Result<()> {
        judge(self.len, to.len())?;
        let (driver, _entered) = (stream.device().driver(), stream.device().enter()?);
        // A replayed graph would write `to` at every replay.
        stream.check_capture()?;
        let target = to.as_mut_ptr().cast();
        // SAFETY: both have as many bytes; those of the host stay until the stream is done, below.
        let code = unsafe {
            (driver.calls.cuMemcpyDtoHAsync_v2)(target, self.start, to.len(), stream.raw())
        };
        let copied = driver.check("cuMemcpyDtoHAsync_v2", code);
        finish(stream, to.as_ptr()).and(copied)
    }

    /// Copies `from` to the range after the stream is done. The call waits for a [`PIECE`] that has begun when
    /// the time is over.
    pub(super) fn copy_from_host_until(
        self,
        from: Bytes<'_>,
        device: &Device,
        until: Until,
    ) -> Result<()> {
        judge(self.len, from.len())?;
        in_time(self.pieces(), device, until, |piece, own| {
            let offset = (piece.start - self.start) as usize;
            piece.copy_from_host(from.slice(offset, piece.len), own)
        })
    }

    /// Copies the range to the host in the same way.
    pub(super) fn copy_to_host_until(
        self,
        to: &mut [u8],
        device: &Device,
        until: Until,
    ) -> Result<()> {
        judge(self.len, to.len())?;
        let pieces = self.pieces().zip(to.chunks_mut(PIECE));
        in_time(pieces, device, until, |(piece, to), own| piece.copy_to_host(to, own))
    }

    fn pieces(self) -> impl Iterator<Item = Self> {
        let Self { start, len } = self;
        let piece = move |at| Self { start: start + at as u64, len: PIECE.min(len - at) };
        (0..len).step_by(PIECE).map(piece)
    }

    /// Queues a copy of `from` on the stream. The caller keeps both until it is done.
    pub(super) fn copy_from(self, from: Area, stream: &Stream) -> Result<()> {
        judge(self.len, from.len)?;
        let (driver, _entered) = (stream.device().driver(), stream.device().enter()?);
        // SAFETY: both are mapped and have as many bytes, and their users keep them until the stream is done.
        let code = unsafe {
            (driver.calls.cuMemcpyDtoDAsync_v2)(self.start, from.start, self.len, stream.raw())
        };
        driver.check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Queues a write of `byte` to the whole range on the stream.
    pub(super) fn fill(self, byte: u8, stream: &Stream) -> Result<()> {
        let (driver, _entered) = (stream.device().driver(), stream.device().enter()?);
        // SAFETY: it is mapped and has as many bytes, and its user keeps it until the stream is done.
        let code =
            unsafe { (driver.calls.cuMemsetD8Async)(self.start, byte, self.len, stream.raw()) };
        driver.check("cuMemsetD8Async", code)
    }
}

/// Copies pieces while time is left. The first piece is copied in any case.
fn in_time<P>(
    pieces: impl Iterator<Item = P>,
    device: &Device,
    until: Until,
    copy: impl Fn(P, &Stream) -> Result<()>,
) -> Result<()> {
    let _entered = device.enter()?;
    // Nobody queues a wait on this stream, and it does not wait for other streams as the default stream does.
    let own = device.stream()?;
    for (at, piece) in pieces.enumerate() {
        if at > 0 {
            until.left()?;
        }
        copy(piece, &own)?;
    }
    Ok(())
}

/// Waits until the stream has stopped using memory of the host, which starts at `host`. If the driver cannot tell, pageable
/// memory is unused: the driver does not keep it beyond a call (CUDA Driver API, "API synchronization behavior"). It does keep
/// pinned memory, so then the driver is asked until it can tell.
fn finish(stream: &Stream, host: *const u8) -> Result<()> {
    let done = stream.synchronize();
    if done.is_err() {
        while !stream.wait_to_end() && pinned::is_pinned(host) {
            std::thread::sleep(PAUSE);
        }
    }
    done
}

fn judge(len: usize, other: usize) -> Result<(), Error> {
    let fault = TensorFault::Len { len: other as u64, expected: len as u64 };
    if len == other { Ok(()) } else { Err(fault.into()) }
}
