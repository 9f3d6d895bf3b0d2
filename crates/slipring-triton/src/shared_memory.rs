//! The operations on shared memory: register, status, unregister, for system memory and GPU memory.
//!
//! They act on one [`Registry`], which connections of this process may share. A client sees and unregisters POSIX and
//! GPU regions alone. Requests can refer to memfds and dmabufs of the process by name.

use std::sync::Arc;

use slipring::error::RegionFault;
use slipring::region::{CudaHandle, Reach, RegionKind, RegionStatus, Registry, Source};
use slipring::{Error, ErrorKind};
use tokio::sync::Semaphore;

use crate::descriptors;
use crate::refusal::{Refusal, SharedMemoryKind};

/// The calls of the driver that occupy blocking threads at once. The driver may create a context first, or wait for another
/// thread that closes the same memory. Further calls wait.
pub(crate) static GPU_CALLS: Semaphore = Semaphore::const_new(8);

/// The length of a CUDA IPC handle in bytes.
pub const CUDA_HANDLE_LEN: usize = 64;

/// A region of system shared memory, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemRegion {
    /// The region's name.
    pub name: String,
    /// The key that the client gave.
    pub key: String,
    /// The start in bytes from the object's start.
    pub offset: u64,
    /// The length in bytes.
    pub byte_size: u64,
}

/// A region of GPU memory, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaRegion {
    /// The region's name.
    pub name: String,
    /// The GPU's number.
    pub device_id: u64,
    /// The length in bytes.
    pub byte_size: u64,
}

/// Opens `u64` bytes of GPU memory by a handle: `slipring::cuda::Device::reach`, with the feature `cuda`.
pub type OpenGpu = fn(&CudaHandle, u64) -> Result<Arc<dyn Reach>, Error>;

/// The operations of clients on regions.
#[derive(Debug, Clone)]
pub struct SharedMemory {
    registry: Registry,
    allowed: bool,
    gpus: Option<OpenGpu>,
}

impl SharedMemory {
    pub(crate) fn new(registry: Registry, allowed: bool, gpus: Option<OpenGpu>) -> Self {
        Self { registry, allowed, gpus }
    }

    /// Returns the registry of the regions.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Checks that clients may use shared memory.
    pub(crate) fn check_allowed(&self) -> Result<(), Refusal> {
        if self.allowed { Ok(()) } else { Err(Refusal::switched_off()) }
    }

    /// Registers `byte_size` bytes from `offset` on of the POSIX shared memory object `key`.
    ///
    /// # Errors
    ///
    /// The refusal that the client receives.
    pub fn register_system(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), Refusal> {
        self.check_allowed()?;
        if name.is_empty() {
            return Err(Refusal::name_missing(SharedMemoryKind::System));
        }
        if !descriptors::has_room() {
            return Err(Refusal::register_limit(name));
        }
        let done = self.registry.register(name, Source::Posix(key), offset, byte_size);
        done.map_err(|error| register_refusal(name, key, &error))
    }

    /// Registers GPU memory, if the front has [`gpus`](crate::FrontBuilder::gpus). The front opens the memory and
    /// checks its length.
    ///
    /// # Errors
    ///
    /// The refusal that the client receives.
    pub fn register_cuda(
        &self,
        name: &str,
        raw_handle: &[u8],
        device_id: i64,
        byte_size: u64,
    ) -> Result<(), Refusal> {
        self.check_allowed()?;
        if name.is_empty() {
            return Err(Refusal::name_missing(SharedMemoryKind::Cuda));
        }
        if self.registry.status(name).is_ok() {
            return Err(Refusal::already_registered(name));
        }
        let raw = <[u8; CUDA_HANDLE_LEN]>::try_from(raw_handle);
        let raw = raw.map_err(|_| Refusal::cuda_handle())?;
        let device = u32::try_from(device_id).map_err(|_| Refusal::cuda_unopened())?;
        let open = self.gpus.ok_or_else(Refusal::cuda_unopened)?;
        let handle = CudaHandle { raw, device };
        let opened = open(&handle, byte_size).map_err(|error| {
            tracing::debug!(error = format_args!("{error:#}"), name, "a client's memory of a GPU");
            Refusal::cuda_unopened()
        })?;
        let done = self.registry.register(name, Source::Gpu(handle, &opened), 0, byte_size);
        done.map_err(|error| register_refusal(name, "", &error))
    }

    /// Returns the POSIX region of this name, or all of them for an empty name.
    ///
    /// # Errors
    ///
    /// The refusal that the client receives.
    pub fn system_status(&self, name: &str) -> Result<Vec<SystemRegion>, Refusal> {
        let found = self.statuses(SharedMemoryKind::System, name)?;
        let regions = found.into_iter().map(|status| SystemRegion {
            name: status.name,
            key: status.key.unwrap_or_default(),
            offset: status.offset,
            byte_size: status.len,
        });
        Ok(regions.collect())
    }

    /// Returns the GPU region of this name, or all of them for an empty name.
    ///
    /// # Errors
    ///
    /// The refusal that the client receives.
    pub fn cuda_status(&self, name: &str) -> Result<Vec<CudaRegion>, Refusal> {
        let found = self.statuses(SharedMemoryKind::Cuda, name)?;
        let regions = found.into_iter().map(|status| CudaRegion {
            name: status.name,
            device_id: status.device.unwrap_or_default().into(),
            byte_size: status.len,
        });
        Ok(regions.collect())
    }

    fn statuses(&self, memory: SharedMemoryKind, name: &str) -> Result<Vec<RegionStatus>, Refusal> {
        self.check_allowed()?;
        let kind = kind(memory);
        if name.is_empty() {
            let mut all = self.registry.statuses().map_err(|_| registry_refusal())?;
            all.retain(|status| status.kind == kind);
            return Ok(all);
        }
        match self.registry.status(name) {
            Ok(status) if status.kind == kind => Ok(vec![status]),
            Ok(status) if matches!(status.kind, RegionKind::Posix | RegionKind::Cuda) => {
                Err(Refusal::status_other_kind(memory, name))
            }
            Ok(_) | Err(_) => Err(Refusal::status_unknown(memory, name)),
        }
    }

    /// Unregisters the POSIX region of this name, or all of them for an empty name. Requests that use a region go on.
    ///
    /// # Errors
    ///
    /// The refusal that the client receives. An unknown name is no error.
    pub fn unregister_system(&self, name: &str) -> Result<(), Refusal> {
        self.unregister(SharedMemoryKind::System, name)
    }

    /// Unregisters the GPU region of this name, or all of them for an empty name.
    ///
    /// # Errors
    ///
    /// As for [`unregister_system`](Self::unregister_system).
    pub fn unregister_cuda(&self, name: &str) -> Result<(), Refusal> {
        self.unregister(SharedMemoryKind::Cuda, name)
    }

    fn unregister(&self, memory: SharedMemoryKind, name: &str) -> Result<(), Refusal> {
        self.check_allowed()?;
        let done = if name.is_empty() {
            self.registry.unregister_all(kind(memory)).map(|_| ())
        } else {
            self.registry.unregister_of(kind(memory), name).map(|_| ())
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => match error.kind() {
                ErrorKind::Region(RegionFault::Unknown { .. } | RegionFault::OtherKind { .. }) => {
                    Ok(())
                }
                _ => Err(registry_refusal()),
            },
        }
    }
}

fn kind(memory: SharedMemoryKind) -> RegionKind {
    match memory {
        SharedMemoryKind::System => RegionKind::Posix,
        SharedMemoryKind::Cuda => RegionKind::Cuda,
    }
}

fn registry_refusal() -> Refusal {
    Refusal::internal("shared memory regions can not be accessed")
}

fn register_refusal(name: &str, key: &str, error: &Error) -> Refusal {
    let failure = match error.kind() {
        ErrorKind::Region(failure) => failure,
        ErrorKind::DescriptorLimit { .. } => return Refusal::register_limit(name),
        _ => return Refusal::register_failed(name),
    };
    match failure {
        RegionFault::NameEmpty => Refusal::name_missing(SharedMemoryKind::System),
        RegionFault::Exists { .. } => Refusal::already_registered(name),
        RegionFault::Empty => Refusal::register_empty(name),
        RegionFault::Overflow { .. } | RegionFault::Offset { .. } | RegionFault::Range { .. } => {
            Refusal::register_extent(name)
        }
        RegionFault::NameTooLong { len, max } => {
            Refusal::invalid(format!("region name of {len} bytes, at most {max} may be"))
        }
        RegionFault::TooManyRegions { .. } | RegionFault::TooManyBytes { .. } => {
            Refusal::register_limit(name)
        }
        RegionFault::Open { .. }
        | RegionFault::NotThat { .. }
        | RegionFault::AccessMode { .. }
        | RegionFault::KeyNamesNothing { .. }
        | RegionFault::KeyTooLong { .. }
        | RegionFault::KeyCharacter { .. } => Refusal::cannot_open(key),
        _ => Refusal::register_failed(name),
    }
}
