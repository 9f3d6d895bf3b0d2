//! The driver's library, loaded when the process asks for a GPU.
//!
//! The types are those of `cudarc`'s bindings. This file looks up the calls itself for three reasons. The
//! bindings' calls panic if the library or a symbol is missing. They take `libcuda.so` before `libcuda.so.1`,
//! and the former may be the toolkit's stub. They return an `enum`, which has no value for the code of a newer
//! driver.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUipcEventHandle,
    CUipcMemHandle, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::error::{CudaFault, Error, ErrorKind, Result};
use crate::shm::fork::Generation;

/// The driver's library on Linux. `dlopen(3)` searches for it as for any library.
const NAME: &str = "libcuda.so.1";

/// The first version with all calls of the table: `cuDeviceGetUuid_v2` came with CUDA 11.4.
const OLDEST: i32 = 11_040;

/// The result of a call: `CUDA_SUCCESS` or an error's number.
pub(super) type Code = u32;

/// `CUDA_ERROR_INVALID_VALUE`
pub(super) const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(super) const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NO_DEVICE`
const NO_DEVICE: Code = 100;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`
pub(super) const NOT_REGISTERED: Code = 713;
/// `CUDA_ERROR_NOT_READY`
pub(super) const NOT_READY: Code = 600;

/// Returns whether an error says that no work runs any more in the context, because the context or the whole
/// driver is over. Every other error says nothing of running work, such as a query that is forbidden during
/// the capture of a graph. Source: the errors of `cuda.h` after which "the process must be terminated and
/// relaunched", and those of the driver's end.
pub(super) fn ends_all(code: Code) -> bool {
    const DEINITIALIZED: Code = 4;
    const CONTEXT_IS_DESTROYED: Code = 709;
    const ECC_UNCORRECTABLE: Code = 214;
    const NVLINK_UNCORRECTABLE: Code = 220;
    const ILLEGAL_ADDRESS: Code = 700;
    const LAUNCH_TIMEOUT: Code = 702;
    const ASSERT: Code = 710;
    // HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC, LAUNCH_FAILED
    matches!(code, DEINITIALIZED | CONTEXT_IS_DESTROYED | ECC_UNCORRECTABLE | NVLINK_UNCORRECTABLE)
        || matches!(code, ILLEGAL_ADDRESS | LAUNCH_TIMEOUT | ASSERT | 714..=719)
}

/// Returns whether an error concerns the arguments, such as a handle that cannot be opened, and not a context
/// that is over or has no memory.
pub(super) fn is_refusal(code: Code) -> bool {
    !ends_all(code) && code != OUT_OF_MEMORY
}

/// The calls in use, each with its type as in `cuda.h`: those that every driver has, and newer ones.
macro_rules! calls {
    (
        old { $($name:ident($($kind:ty),*);)* }
        newer { $($newer:ident($($newer_kind:ty),*);)* }
    ) => {
        #[allow(non_snake_case)]
        pub(super) struct Calls {
            /// As the driver returns them: a number instead of an `enum`.
            // SAFETY: to be called as `cuda.h` says, with room for a pointer.
            cuGetErrorName: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
            // SAFETY: to be called as `cuda.h` says, with the device's context current where that says so.
            $(pub(super) $name: unsafe extern "C" fn($($kind),*) -> Code,)*
            // SAFETY: as above.
            $(pub(super) $newer: Option<unsafe extern "C" fn($($newer_kind),*) -> Code>,)*
        }

        impl Calls {
            fn load(library: &Library) -> Result<Self, CudaFault> {
                Ok(Self {
                    cuGetErrorName: symbol(library, "cuGetErrorName")?,
                    $($name: symbol(library, stringify!($name))?,)*
                    $($newer: symbol(library, stringify!($newer)).ok(),)*
                })
            }
        }

        /// Checks that the types are those of the bindings: a wrong one does not compile.
        #[cfg(test)]
        fn calls_are_as_the_bindings_have_them() -> usize {
            use cudarc::driver::sys;
            [$({
                // # Safety: nothing is called.
                let _: unsafe fn($($kind),*) -> sys::CUresult = sys::$name;
                stringify!($name)
            },)* $({
                // # Safety: nothing is called.
                let _: unsafe fn($($newer_kind),*) -> sys::CUresult = sys::$newer;
                stringify!($newer)
            },)*]
            .len()
        }
    };
}

calls! {
old {
    cuDriverGetVersion(*mut c_int);
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(CUdeviceptr);
    cuIpcGetEventHandle(*mut CUipcEventHandle, CUevent);
    cuIpcOpenEventHandle(*mut CUevent, CUipcEventHandle);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuStreamDestroy_v2(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuStreamQuery(CUstream);
    cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
    cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
    cuStreamSynchronize(CUstream);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    cuMemRelease(CUmemGenericAllocationHandle);
    cuMemGetAllocationPropertiesFromHandle(*mut CUmemAllocationProp, CUmemGenericAllocationHandle);
    cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
    cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    cuMemUnmap(CUdeviceptr, usize);
    cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
}
// Of CUDA 11.7.
newer {
    cuStreamWriteValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
    cuStreamWaitValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
}
}

/// A symbol of the driver's. It stays valid, because the library is never closed.
fn symbol<T: Copy>(library: &Library, name: &'static str) -> Result<T, CudaFault> {
    // SAFETY: the table has the type of `cuda.h` for this name, and a test compares it with the bindings.
    let found: Result<Symbol<T>, _> = unsafe { library.get(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| CudaFault::MissingSymbol { symbol: name })
}

/// The driver, loaded and initialized.
pub(super) struct Driver {
    pub(super) calls: Calls,
    generation: Generation,
}

/// The driver, once it is loaded.
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Returns whether this process loaded the driver, if any process did. A forked child touches neither the
/// driver nor a lock that a thread of its parent's may have held.
pub(super) fn is_ours() -> bool {
    DRIVER.get().is_none_or(|driver| driver.generation.is_current())
}

impl Driver {
    /// Returns the driver of this process.
    ///
    /// # Errors
    ///
    /// - [`CudaFault`]: there is none, it is too old, or it has no GPU. The next call tries again.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked): a parent process has loaded it. It does not work in
    ///   a child.
    pub(super) fn get() -> Result<&'static Self> {
        let driver = match DRIVER.get() {
            Some(driver) => driver,
            None => {
                let fresh = Self::load()?;
                DRIVER.get_or_init(|| fresh)
            }
        };
        driver.generation.check()?;
        Ok(driver)
    }

    fn load() -> Result<Self> {
        // SAFETY: the driver's initializers are made to be run by `dlopen` at any time.
        let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            let kind = ErrorKind::Cuda(CudaFault::NoLibrary);
            // The loader's reason stands after the first line.
            let said = std::error::Error::source(&error).map(ToString::to_string);
            Error::with_source(kind, std::io::Error::other(said.unwrap_or(error.to_string())))
        })?;
        let loaded = Calls::load(&library);
        // A driver has threads of its own and does not support unloading.
        std::mem::forget(library);
        let driver = Self { calls: loaded?, generation: Generation::current()? };
        let mut version = 0;
        // SAFETY: `version` has room for an int. It may be called before `cuInit`.
        let code = unsafe { (driver.calls.cuDriverGetVersion)(&mut version) };
        driver.check("cuDriverGetVersion", code)?;
        if version < OLDEST {
            return Err(CudaFault::DriverTooOld { version, needed: OLDEST }.into());
        }
        // SAFETY: it takes no pointers, and 0 is the only flag.
        match unsafe { (driver.calls.cuInit)(0) } {
            NO_DEVICE => Err(CudaFault::NoDevice.into()),
            code => driver.check("cuInit", code).map(|()| driver),
        }
    }

    /// Checks that no `fork` lies between the caller and the process that initialized the driver.
    pub(super) fn check_fork(&self) -> Result<()> {
        self.generation.check()
    }

    /// Returns the error of a call, if it failed.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: Code) -> Error {
        let mut name = std::ptr::null();
        // SAFETY: `name` has room for a pointer, and the code may be any number.
        let found = unsafe { (self.calls.cuGetErrorName)(code, &mut name) };
        let name = if found != 0 || name.is_null() {
            "an error that it has no name for".to_owned()
        } else {
            // SAFETY: the driver returns a static string that ends with a zero.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        CudaFault::Driver { call, code, name }.into()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_calls_have_the_types_of_the_bindings() {
        assert!(super::calls_are_as_the_bindings_have_them() > 30);
    }
}
