//! The CUDA driver API as `cuda.h` has it, without the library's own binding: for tests that are one side of an
//! exchange themselves. The symbols are those of `libcuda.so.1`, where the loader finds it
//! ([`FakeCuda`](super::fake_cuda)).
//!
//! Every call gives the driver's code; 0 is success.

#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// Codes of errors.
pub const INVALID_VALUE: i32 = 1;
pub const INVALID_DEVICE: i32 = 101;
pub const INVALID_CONTEXT: i32 = 201;
pub const ALREADY_MAPPED: i32 = 208;
pub const INVALID_HANDLE: i32 = 400;
pub const NOT_READY: i32 = 600;
pub const OUT_OF_MEMORY: i32 = 2;
pub const CONTEXT_IS_DESTROYED: i32 = 709;

/// A handle of memory or of an event for other processes.
pub type IpcHandle = [u8; 64];

/// By value, as the calls demand.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ByValue(pub IpcHandle);

/// `CUmemAllocationProp`: memory of a device, exported as a descriptor or not at all.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location: [i32; 2],
    meta: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Access {
    location: [i32; 2],
    flags: u32,
}

impl AllocationProp {
    pub fn new(device: i32, exportable: bool) -> Self {
        let handle_types = u32::from(exportable);
        Self { kind: 1, handle_types, location: [1, device], meta: null_mut(), flags: [0; 8] }
    }
}

impl Access {
    pub fn read_write(device: i32) -> Self {
        Self { location: [1, device], flags: 3 }
    }
}

fn library() -> usize {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        // SAFETY: the name is a string of C; the library's initialisation needs nothing of ours.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "there is no libcuda.so.1");
        library as usize
    })
}

/// The address of a call, or null where the library has none.
pub fn symbol(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is never closed, and the name is a string of C.
    unsafe { libc::dlsym(library() as *mut c_void, name.as_ptr()) }
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        pub fn $name($($argument: $type),*) -> i32 {
            let address = symbol(stringify!($name));
            assert!(!address.is_null(), "no {}", stringify!($name));
            type Call = unsafe extern "C" fn($($type),*) -> i32;
            // SAFETY: the signature is that of cuda.h.
            let call: Call = unsafe { std::mem::transmute(address) };
            // SAFETY: tests give addresses that are good for as long as the call needs them.
            unsafe { call($($argument),*) }
        }
    )*};
}

// A pointer to a handle is `*mut usize`, as the handle is a pointer.
calls! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut i32);
    cuGetErrorName(code: i32, name: *mut *const libc::c_char);
    cuDeviceGetCount(count: *mut i32);
    cuDeviceGet(device: *mut i32, ordinal: i32);
    cuDeviceGetName(name: *mut libc::c_char, len: i32, device: i32);
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: i32);
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32);
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuCtxPushCurrent_v2(context: usize);
    cuCtxPopCurrent_v2(context: *mut usize);
    cuCtxGetCurrent(context: *mut usize);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(pointer: *mut u64, size: usize);
    cuMemFree_v2(pointer: u64);
    cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, pointer: u64);
    cuIpcGetMemHandle(handle: *mut IpcHandle, pointer: u64);
    cuIpcOpenMemHandle_v2(pointer: *mut u64, handle: ByValue, flags: u32);
    cuIpcCloseMemHandle(pointer: u64);
    cuEventCreate(event: *mut usize, flags: u32);
    cuEventDestroy_v2(event: usize);
    cuEventRecord(event: usize, stream: usize);
    cuEventQuery(event: usize);
    cuEventSynchronize(event: usize);
    cuIpcGetEventHandle(handle: *mut IpcHandle, event: usize);
    cuIpcOpenEventHandle(event: *mut usize, handle: ByValue);
    cuStreamCreate(stream: *mut usize, flags: u32);
    cuStreamDestroy_v2(stream: usize);
    cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    cuStreamQuery(stream: usize);
    cuThreadExchangeStreamCaptureMode(mode: *mut i32);
    cuStreamSynchronize(stream: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: usize);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: usize);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize);
    cuMemsetD8Async(to: u64, value: u8, len: usize, stream: usize);
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize);
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize);
    cuMemGetAllocationGranularity(size: *mut usize, prop: *const AllocationProp, option: u32);
    cuMemCreate(handle: *mut u64, size: usize, prop: *const AllocationProp, flags: u64);
    cuMemRelease(handle: u64);
    cuMemExportToShareableHandle(fd: *mut c_void, handle: u64, kind: u32, flags: u64);
    cuMemImportFromShareableHandle(handle: *mut u64, fd: *mut c_void, kind: u32);
    cuMemAddressReserve(pointer: *mut u64, size: usize, alignment: usize, wish: u64, flags: u64);
    cuMemAddressFree(pointer: u64, size: usize);
    cuMemMap(pointer: u64, size: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(pointer: u64, size: usize);
    cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void);
    cuPointerGetAttribute(value: *mut c_void, attribute: u32, pointer: u64);
    cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: u32);
    cuMemHostUnregister(pointer: *mut c_void);
    cuMemAllocHost_v2(pointer: *mut usize, size: usize);
    cuMemFreeHost(pointer: usize);
    cuMemGetAllocationPropertiesFromHandle(prop: *mut AllocationProp, handle: u64);
    cuStreamWriteValue64_v2(stream: usize, pointer: u64, value: u64, flags: u32);
    cuStreamWaitValue64_v2(stream: usize, pointer: u64, value: u64, flags: u32);
    cuMemSetAccess(pointer: u64, size: usize, access: *const Access, count: usize);
    fakeHang(call: *const libc::c_char);
    fakeHangs();
    fakeGoOn();
}

/// The value that a call gives by its pointer, once it has succeeded.
pub fn given<T: Default>(call: impl FnOnce(*mut T) -> i32) -> T {
    let mut value = T::default();
    assert_eq!(call(&mut value), 0);
    value
}

/// As [`given`], for handles.
pub fn handle(call: impl FnOnce(*mut IpcHandle) -> i32) -> IpcHandle {
    let mut handle = [0; 64];
    assert_eq!(call(&mut handle), 0);
    handle
}

pub fn error_name(code: i32) -> String {
    let mut name = null();
    cuGetErrorName(code, &mut name);
    assert!(!name.is_null(), "{code}");
    // SAFETY: the driver's names are strings of C that stay.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
}

/// Initialises, and makes the context of a device current.
pub fn begin(device: i32) -> usize {
    assert_eq!(cuInit(0), 0);
    let context = given(|context| cuDevicePrimaryCtxRetain(context, device));
    assert_eq!(cuCtxPushCurrent_v2(context), 0);
    context
}

pub fn alloc(size: usize) -> u64 {
    given(|pointer| cuMemAlloc_v2(pointer, size))
}

pub fn stream() -> usize {
    given(|stream| cuStreamCreate(stream, 1))
}

/// An event that other processes may open.
pub fn shared_event() -> usize {
    given(|event| cuEventCreate(event, 2 | 4))
}

pub fn open_memory(handle: IpcHandle) -> u64 {
    given(|pointer| cuIpcOpenMemHandle_v2(pointer, ByValue(handle), 1))
}

pub fn open_event(handle: IpcHandle) -> usize {
    given(|event| cuIpcOpenEventHandle(event, ByValue(handle)))
}

pub fn write(to: u64, bytes: &[u8]) {
    assert_eq!(cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()), 0);
}

pub fn read(from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, len), 0);
    bytes
}

/// A handle as a word that one process says to another.
pub fn to_word(handle: IpcHandle) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn from_word(word: &str) -> IpcHandle {
    let byte = |at: usize| u8::from_str_radix(&word[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}
