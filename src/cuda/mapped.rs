//! Virtual memory of a GPU: allocations that processes export and import as file descriptors, mapped in this process.
//!
//! ```text
//!   cuMemCreate ──▶ Handle ──cuMemMap──▶ Mapped           cuMemUnmap, cuMemAddressFree
//!   cuMemImport…      │ released once it is mapped          in the drop
//!                     └─cuMemExport…──▶ file descriptor
//! ```
//!
//! An allocation lives as long as a handle, a mapping or a descriptor of it in any process.
//!
//! 1. `cuMemUnmap` may wait for all work on the GPU. So nothing fails here once an allocation is mapped: what is asked of it then
//!    belongs to [`Mapped::reach_from`], whose caller keeps the mapping, whatever comes of it.
//! 2. Addresses and a handle to which nothing is mapped go back at once. No work of a GPU has ever used them.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUpointer_attribute,
};

use crate::channel::PassedAllocation;
use crate::cuda::device::Device;
use crate::cuda::library::is_refusal;
use crate::error::{CudaFault, Error, ErrorKind, GpuUuid, Result};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const DESCRIPTOR: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: u32 = 3;

/// `CUmemLocation`. The bindings have it in several forms, by the version of CUDA, and all of them are these bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Location {
    kind: u32,
    id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32_meta: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[repr(C)]
struct Access {
    location: Location,
    flags: u32,
}

const _: () = assert!(size_of::<Properties>() == size_of::<CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<CUmemAccessDesc>());

impl Location {
    fn of(device: &Device) -> Self {
        Self { kind: DEVICE, id: device.ordinal() as c_int }
    }
}

impl Properties {
    /// Returns those of memory of a GPU that is exported as a descriptor.
    fn of(device: &Device) -> Self {
        let location = Location::of(device);
        let win32_meta = std::ptr::null_mut();
        Self { kind: PINNED, handle_types: DESCRIPTOR, location, win32_meta, flags: [0; 8] }
    }
}

/// Returns what the length of such an allocation is a multiple of, in bytes.
pub(super) fn granularity(device: &Device) -> Result<u64> {
    let (driver, _entered) = (device.driver(), device.enter()?);
    let properties = Properties::of(device);
    let asked = (&raw const properties).cast::<CUmemAllocationProp>();
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut bytes = 0;
    // SAFETY: `bytes` has room for a size, and the properties have the bytes of the driver's.
    let code = unsafe { (driver.calls.cuMemGetAllocationGranularity)(&mut bytes, asked, least) };
    driver.check("cuMemGetAllocationGranularity", code)?;
    Ok(bytes as u64)
}

/// A handle of an allocation. The allocation lives on in mappings and descriptors.
struct Handle {
    device: Device,
    raw: CUmemGenericAllocationHandle,
}

impl Handle {
    /// Allocates `len` bytes, a multiple of the [`granularity`].
    fn new(device: &Device, len: u64) -> Result<Self> {
        let (driver, properties) = (device.driver(), Properties::of(device));
        let asked = (&raw const properties).cast::<CUmemAllocationProp>();
        let mut raw = 0;
        // SAFETY: `raw` has room for a handle, and the properties have the bytes of the driver's.
        let code = unsafe { (driver.calls.cuMemCreate)(&mut raw, len as usize, asked, 0) };
        driver.check("cuMemCreate", code)?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Imports the allocation behind a peer's descriptor.
    ///
    /// # Errors
    ///
    /// [`CudaFault::NotAllocation`]: it is none. [`CudaFault::Driver`].
    fn import(device: &Device, passed: &PassedAllocation) -> Result<Self> {
        const CALL: &str = "cuMemImportFromShareableHandle";
        let driver = device.driver();
        // The call takes the number of the descriptor in place of a pointer.
        let fd = std::ptr::without_provenance_mut(passed.as_fd().as_raw_fd() as usize);
        let mut raw = 0;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: `raw` has room for a handle. The descriptor is open, and the driver checks what it is.
        let code = unsafe { (driver.calls.cuMemImportFromShareableHandle)(&mut raw, fd, kind) };
        driver.check(CALL, code).map_err(|error| match is_refusal(code) {
            true => because(CudaFault::NotAllocation, error),
            false => error,
        })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Returns the handle of the allocation that is mapped at an address, or `None` if none of `cuMemCreate` is.
    fn retain(device: &Device, at: CUdeviceptr) -> Result<Option<Self>> {
        const CALL: &str = "cuMemRetainAllocationHandle";
        let (driver, mut raw) = (device.driver(), 0);
        let address = std::ptr::without_provenance_mut(at as usize);
        // SAFETY: `raw` has room for a handle. The driver checks the address.
        let code = unsafe { (driver.calls.cuMemRetainAllocationHandle)(&mut raw, address) };
        match driver.check(CALL, code) {
            Ok(()) => Ok(Some(Self { device: device.clone(), raw })),
            Err(_) if is_refusal(code) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns what the allocation was made with. Its GPU's number there may be the number in the process that made it.
    fn properties(&self) -> Result<Properties> {
        let (driver, mut found) = (self.device.driver(), Properties::of(&self.device));
        let found_at = (&raw mut found).cast::<CUmemAllocationProp>();
        // SAFETY: `found` has room for the driver's properties, and the handle lives.
        let code =
            unsafe { (driver.calls.cuMemGetAllocationPropertiesFromHandle)(found_at, self.raw) };
        driver.check("cuMemGetAllocationPropertiesFromHandle", code)?;
        Ok(found)
    }

    /// Returns a descriptor of the allocation, for other processes.
    fn export(&self) -> Result<OwnedFd> {
        let driver = self.device.driver();
        let mut fd: c_int = -1;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let to = (&raw mut fd).cast();
        // SAFETY: `fd` has room for an int, which is what this kind of handle is.
        let code = unsafe { (driver.calls.cuMemExportToShareableHandle)(to, self.raw, kind, 0) };
        driver.check("cuMemExportToShareableHandle", code)?;
        // SAFETY: the driver has opened it for the caller, who closes it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A program that this process starts does not get it. The driver says nothing of that.
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .map_err(|errno| Error::os("fcntl", errno))?;
        Ok(fd)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(_entered) = self.device.enter_to_end() else { return };
        // SAFETY: it was made once, and nobody uses it after this.
        let code = unsafe { (self.device.driver().calls.cuMemRelease)(self.raw) };
        self.device.ended("cuMemRelease", code);
    }
}

/// An allocation that is mapped in this process, for the GPUs that [reach](Self::reach_from) it.
pub(super) struct Mapped {
    /// The GPU that has mapped it. It may not be its own.
    device: Device,
    start: CUdeviceptr,
    len: u64,
    is_mapped: bool,
    /// Its own GPU, as its owner says.
    said: GpuUuid,
    /// Its own GPU, once the driver has said the same.
    home: OnceLock<Device>,
    /// Those that have access. They keep it until it is unmapped.
    users: Mutex<Vec<Device>>,
}

impl Mapped {
    /// Allocates and maps `len` bytes, a multiple of the [`granularity`]. Returns a descriptor of them, too.
    pub(super) fn new(device: &Device, len: u64) -> Result<(Self, OwnedFd)> {
        let _entered = device.enter()?;
        let handle = Handle::new(device, len)?;
        let fd = handle.export()?;
        let mapped = Self::map(&handle, len, device.uuid())?;
        let _ = mapped.home.set(device.clone());
        Ok((mapped, fd))
    }

    /// Maps a peer's allocation, as long as the peer says, for `reader` to [reach](Self::reach_from). It may lie on another GPU.
    ///
    /// # Errors
    ///
    /// [`CudaFault::NotAllocation`], [`CudaFault::ShortAllocation`], [`CudaFault::Driver`].
    pub(super) fn import(reader: &Device, passed: &PassedAllocation) -> Result<Self> {
        let _entered = reader.enter()?;
        let handle = Handle::import(reader, passed)?;
        Self::map(&handle, passed.len(), passed.device()).map_err(|error| {
            // Its length is the only argument that is the peer's.
            let is_short = matches!(error.kind(),
                ErrorKind::Cuda(CudaFault::Driver { call: MAP, code, .. }) if is_refusal(*code));
            let short = CudaFault::ShortAllocation { claimed: passed.len() };
            if is_short { because(short, error) } else { error }
        })
    }

    fn map(handle: &Handle, len: u64, said: GpuUuid) -> Result<Self> {
        let (driver, size) = (handle.device.driver(), len as usize);
        let mut start = 0;
        // SAFETY: `start` has room for an address.
        let code = unsafe { (driver.calls.cuMemAddressReserve)(&mut start, size, 0, 0, 0) };
        driver.check("cuMemAddressReserve", code)?;
        // From here on dropping it gives the addresses back.
        let (device, home, users) = (handle.device.clone(), OnceLock::new(), Mutex::default());
        let mut mapped = Self { device, start, len, is_mapped: false, said, home, users };
        // SAFETY: the addresses are reserved for this alone, and the handle lives.
        let code = unsafe { (driver.calls.cuMemMap)(start, size, 0, handle.raw, 0) };
        driver.check(MAP, code)?;
        mapped.is_mapped = true;
        Ok(mapped)
    }

    /// Lets a GPU read and write it, unless it may. Its own GPU may do so from then on, too, and gets a context if the driver says
    /// that the allocation lies there. A later call asks anew for what this one was refused.
    ///
    /// # Errors
    ///
    /// [`CudaFault::WrongDevice`], [`CudaFault::HiddenDevice`], [`CudaFault::NoPeerAccess`], [`CudaFault::Driver`].
    pub(super) fn reach_from(&self, device: &Device) -> Result<()> {
        // The lock lasts until the access is given, so it is given once.
        let mut users = self.users();
        let may_use = |users: &[Device], device: &Device| users.iter().any(|user| user.is(device));
        if may_use(&users, device) {
            return Ok(());
        }
        let home = self.home()?;
        let _entered = home.enter()?;
        if !may_use(&users, home) {
            self.give_access(home)?;
            users.push(home.clone());
        }
        if device.is(home) {
            return Ok(());
        }
        if !device.can_access(home)? {
            let (is, asked) = (home.uuid(), device.uuid());
            return Err(CudaFault::NoPeerAccess { is, asked }.into());
        }
        self.give_access(device)?;
        users.push(device.clone());
        Ok(())
    }

    /// Returns its own GPU.
    fn home(&self) -> Result<&Device> {
        if let Some(home) = self.home.get() {
            return Ok(home);
        }
        let _entered = self.device.enter()?;
        if !lies_on((&self.device, self.said), self.start)? {
            return Err(CudaFault::WrongDevice { said: self.said }.into());
        }
        let home = self.device.peer(self.said)?;
        Ok(self.home.get_or_init(|| home))
    }

    fn users(&self) -> MutexGuard<'_, Vec<Device>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a GPU read and write it. The driver leaves the access of others as it is.
    fn give_access(&self, device: &Device) -> Result<()> {
        let Self { start, len, .. } = self;
        let access = Access { location: Location::of(device), flags: READ_WRITE };
        let asked = (&raw const access).cast::<CUmemAccessDesc>();
        let driver = device.driver();
        // SAFETY: the range is the mapping, and `access` has the bytes of one of the driver's.
        let code = unsafe { (driver.calls.cuMemSetAccess)(*start, *len as usize, asked, 1) };
        driver.check("cuMemSetAccess", code)
    }

    /// Returns the GPU that has mapped it.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns its address on the GPU.
    pub(super) fn start(&self) -> CUdeviceptr {
        self.start
    }
}

/// Checks that the GPU on which a peer's allocation is said to lie is one whose memory `reader` can use, and has as many bytes:
/// this process may have no addresses for more.
///
/// # Errors
///
/// [`CudaFault::ShortAllocation`], [`CudaFault::HiddenDevice`], [`CudaFault::NoPeerAccess`], [`CudaFault::Driver`].
pub(super) fn check_claim(reader: &Device, passed: &PassedAllocation) -> Result<()> {
    let claimed = passed.len();
    if claimed > reader.memory_in_reach(passed.device())? {
        return Err(CudaFault::ShortAllocation { claimed }.into());
    }
    Ok(())
}

/// Returns whether the memory at a mapped address lies on the GPU of this UUID. The driver tells the GPU's number in this
/// process. `device` is any whose context is current.
fn lies_on((device, uuid): (&Device, GpuUuid), at: CUdeviceptr) -> Result<bool> {
    let (driver, mut ordinal): (_, c_int) = (device.driver(), -1);
    let to = std::ptr::from_mut(&mut ordinal).cast();
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: `ordinal` has room for an int, which the number is. The address is mapped.
    let code = unsafe { (driver.calls.cuPointerGetAttribute)(to, which, at) };
    driver.check("cuPointerGetAttribute", code)?;
    Ok(device.uuid_at(ordinal)? == Some(uuid))
}

/// The call that knows the length of an allocation.
const MAP: &str = "cuMemMap";

impl Drop for Mapped {
    fn drop(&mut self) {
        let device = self.home.get().unwrap_or(&self.device);
        let Some(_entered) = device.enter_to_end() else { return };
        let (calls, size) = (&device.driver().calls, self.len as usize);
        if self.is_mapped {
            // SAFETY: it was mapped once. Nobody uses it after this: views and loans of it keep it.
            let code = unsafe { (calls.cuMemUnmap)(self.start, size) };
            if code != 0 {
                return device.ended("cuMemUnmap", code);
            }
        }
        // SAFETY: the addresses were reserved once, and nothing is mapped there.
        let code = unsafe { (calls.cuMemAddressFree)(self.start, size) };
        device.ended("cuMemAddressFree", code);
    }
}

/// A mapping of another library's, and a descriptor of its allocation.
pub(super) struct Found {
    pub(crate) start: CUdeviceptr,
    pub(crate) len: u64,
    pub(crate) fd: OwnedFd,
}

/// Returns what is mapped at an address of this GPU, or `None` if no allocation of `cuMemCreate` is.
///
/// # Errors
///
/// [`CudaFault::NotExportable`]: it was made without a file descriptor, or lies on another GPU. [`CudaFault::Driver`].
pub(super) fn find(device: &Device, at: CUdeviceptr) -> Result<Option<Found>> {
    let _entered = device.enter()?;
    let Some(handle) = Handle::retain(device, at)? else { return Ok(None) };
    let properties = handle.properties()?;
    let refuse = |why| Err(CudaFault::NotExportable { why }.into());
    if !lies_on((device, device.uuid()), at)? {
        return refuse("it lies on another GPU");
    }
    if properties.handle_types & DESCRIPTOR == 0 {
        return refuse("it was made without a file descriptor (CUmemAllocationProp)");
    }
    let (mut start, mut len) = (0u64, 0u64);
    for (attribute, value) in [
        (CUpointer_attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, &mut start),
        (CUpointer_attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, &mut len),
    ] {
        let driver = device.driver();
        let to = std::ptr::from_mut(value).cast();
        // SAFETY: `value` has room for an address or a size, which are as long. The address is mapped.
        let code = unsafe { (driver.calls.cuPointerGetAttribute)(to, attribute, at) };
        driver.check("cuPointerGetAttribute", code)?;
    }
    Ok(Some(Found { start, len, fd: handle.export()? }))
}

/// Returns a fault that the driver's error is the reason for.
pub(super) fn because(fault: CudaFault, error: Error) -> Error {
    Error::with_source(ErrorKind::Cuda(fault), std::io::Error::other(error))
}
