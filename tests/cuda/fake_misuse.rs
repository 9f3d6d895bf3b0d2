//! The CUDA driver without a GPU (`tests/fake_cuda`) reports each misuse, also those that a real driver does not notice,
//! and has virtual memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::support::cuda_driver::*;
use crate::support::fake_cuda::{FakeCuda, keep_gate};
use crate::support::other::{listen_for, run_here, say, wait_for_death};
use crate::support::raw::memfd;
use rustix::fs::SealFlags;

const LEN: usize = 5000;

#[test]
fn each_misuse_within_a_process_is_told() {
    let cuda = || FakeCuda::new().devices(2);
    let cuda = FakeCuda::alone("each_misuse_within_a_process_is_told", cuda, || {
        assert_eq!(cuCtxPushCurrent_v2(1), 3, "before the beginning it is an error, and no misuse");
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuCtxPopCurrent_v2(&mut 0), INVALID_CONTEXT);
        assert_eq!(cuCtxPushCurrent_v2(1), INVALID_CONTEXT);
        begin(1);
        let (theirs, their_stream, their_event) = (alloc(LEN), stream(), shared_event());
        begin(0);
        let (memory, event) = (alloc(LEN), shared_event());
        assert_eq!(cuMemFree_v2(memory + 1), INVALID_VALUE);
        assert_eq!(cuMemFree_v2(theirs), INVALID_CONTEXT);
        assert_eq!(cuIpcGetMemHandle(&mut [0; 64], theirs), INVALID_CONTEXT);
        assert_eq!(cuIpcCloseMemHandle(memory), INVALID_VALUE);
        let host = [0; LEN];
        let copy = |to, from, len| cuMemcpyHtoD_v2(to, from as *const libc::c_void, len);
        assert_eq!(copy(memory, host.as_ptr() as u64, LEN + 1), INVALID_VALUE);
        assert_eq!(copy(host.as_ptr() as u64, host.as_ptr() as u64, LEN), INVALID_VALUE);
        assert_eq!(copy(memory, memory, LEN), INVALID_VALUE);
        assert_eq!(copy(theirs, host.as_ptr() as u64, LEN), INVALID_CONTEXT);
        assert_eq!(cuStreamSynchronize(their_stream), INVALID_CONTEXT);
        let gone = stream();
        assert_eq!(cuStreamDestroy_v2(gone), 0);
        assert_eq!(cuStreamSynchronize(gone), INVALID_HANDLE);
        assert_eq!(cuEventQuery(their_event), INVALID_CONTEXT);
        assert_eq!(cuEventRecord(their_event, 0), INVALID_HANDLE);
        assert_eq!(cuEventDestroy_v2(event), 0);
        assert_eq!(cuEventDestroy_v2(event), INVALID_HANDLE);
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 0);
        assert_eq!(cuStreamQuery(0), 709);
        assert_eq!(cuCtxPopCurrent_v2(&mut 0), 0);
        // Of the other device: memory, event and stream.
        assert_eq!(cuDevicePrimaryCtxRelease_v2(1), 0);
    });
    let other = |what| format!("the {what} is of device 1, and the current context is not");
    assert_eq!(
        cuda.misuses(),
        [
            "cuCtxPopCurrent_v2: none was pushed",
            "cuCtxPushCurrent_v2: no such context",
            "cuMemFree_v2: this is not what cuMemAlloc gave",
            &format!("cuMemFree_v2: {}", other("memory")),
            &format!("cuIpcGetMemHandle: {}", other("memory")),
            "cuIpcCloseMemHandle: this is not what cuIpcOpenMemHandle gave",
            "cuMemcpyHtoD_v2: 5001 bytes reach beyond the memory",
            "cuMemcpyHtoD_v2: no memory has this address",
            "cuMemcpyHtoD_v2: an address of a device in place of one of the host",
            &format!("cuMemcpyHtoD_v2: {}", other("memory")),
            &format!("cuStreamSynchronize: {}", other("stream")),
            "cuStreamSynchronize: no such stream",
            &format!("cuEventQuery: {}", other("event")),
            "cuEventRecord: the event and the stream are of two contexts",
            "cuEventDestroy_v2: no such event",
            "cuDevicePrimaryCtxRelease_v2: 1 objects are left in the context",
            "cuStreamQuery: the current context was released",
            "cuDevicePrimaryCtxRelease_v2: 3 objects are left in the context",
        ]
    );
}

#[test]
fn each_misuse_of_registered_memory_is_told() {
    const TEST: &str = "each_misuse_of_registered_memory_is_told";
    let cuda = FakeCuda::alone(TEST, FakeCuda::new, || {
        begin(0);
        let map = |rights| {
            // SAFETY: a null address asks for fresh memory.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(std::ptr::null_mut(), 8192, rights, flags, -1, 0)
            }
        };
        // SAFETY: the test uses it no more.
        let unmap = |start| assert_eq!(unsafe { libc::munmap(start, 8192) }, 0);
        let (both, read) = (map(libc::PROT_READ | libc::PROT_WRITE), map(libc::PROT_READ));
        assert_eq!(cuMemHostRegister_v2(both, 4095, 0), INVALID_VALUE);
        assert_eq!(cuMemHostRegister_v2(read, 8192, 1), INVALID_VALUE);
        assert_eq!(cuMemHostUnregister(read), 713);
        // An error, and no misuse.
        assert_eq!(
            (cuMemHostRegister_v2(read, 8192, 9), cuMemHostRegister_v2(read, 4096, 9)),
            (0, 712)
        );
        unmap(read);
        assert_eq!(cuMemHostUnregister(read), 0);
        assert_eq!(cuMemHostRegister_v2(read, 8192, 9), INVALID_VALUE);
        assert_eq!(cuMemHostRegister_v2(both, 8192, 0), 0);
    });
    assert_eq!(
        cuda.misuses(),
        [
            "cuMemHostRegister_v2: the range is not one of whole pages",
            "cuMemHostRegister_v2: the range is not mapped, or not for writing",
            "cuMemHostUnregister: nothing is registered there",
            "cuMemHostUnregister: the range was unmapped before",
            "cuMemHostRegister_v2: the range is not mapped",
            "exit: 1 ranges of the host are left registered",
        ]
    );
}

#[test]
fn each_misuse_between_processes_is_told() {
    const TEST: &str = "each_misuse_between_processes_is_told";
    run_here(TEST, |argument| {
        begin(0);
        match argument.split(' ').collect::<Vec<_>>()[..] {
            ["export"] => {
                let (memory, event) = (alloc(LEN), shared_event());
                let exported = handle(|handle| cuIpcGetMemHandle(handle, memory));
                let exported_event = handle(|handle| cuIpcGetEventHandle(handle, event));
                say(&format!("{} {}", to_word(exported), to_word(exported_event)));
                listen_for("opened");
                assert_eq!((cuMemFree_v2(memory), cuEventDestroy_v2(event)), (0, 0));
                say("destroyed");
                // Those who died had it open, too, and do not count.
                let (memory, event) = (alloc(LEN), shared_event());
                let exported = handle(|handle| cuIpcGetMemHandle(handle, memory));
                let exported_event = handle(|handle| cuIpcGetEventHandle(handle, event));
                say(&format!("{} {}", to_word(exported), to_word(exported_event)));
                listen_for("died");
                assert_eq!((cuMemFree_v2(memory), cuEventDestroy_v2(event)), (0, 0));
            }
            ["import", memory, event, gate] => {
                let (memory_handle, event_handle) = (from_word(memory), from_word(event));
                let (memory, event) = (open_memory(memory_handle), open_event(event_handle));
                let again = cuIpcOpenMemHandle_v2(&mut 0, ByValue(memory_handle), 1);
                assert_eq!(again, ALREADY_MAPPED);
                assert_eq!(cuEventDestroy_v2(open_event(event_handle)), 0);
                say("opened");
                listen_for("destroyed");
                // An open handle stays open, and cannot be opened a second time.
                assert_eq!(cuMemsetD8Async(memory, 1, LEN, 0), INVALID_VALUE);
                assert_eq!(cuEventQuery(event), INVALID_HANDLE);
                assert_eq!((cuIpcCloseMemHandle(memory), cuEventDestroy_v2(event)), (0, 0));
                let again = cuIpcOpenMemHandle_v2(&mut 0, ByValue(memory_handle), 1);
                let event_again = cuIpcOpenEventHandle(&mut 0, ByValue(event_handle));
                assert_eq!((again, event_again), (INVALID_VALUE, INVALID_VALUE));
                say("more");
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).unwrap();
                let (memory, event) = line.trim_end().split_once(' ').unwrap();
                let (memory, _) = (open_memory(from_word(memory)), open_event(from_word(event)));
                let gate = open_event(from_word(gate));
                assert_eq!(cuStreamWaitEvent(0, gate, 0), 0);
                assert_eq!(cuMemsetD8Async(memory, 1, LEN, 0), 0);
                assert_eq!(cuIpcCloseMemHandle(memory), 0);
                say("to be killed");
                wait_for_death();
            }
            _ => keep_gate(),
        }
    });
    let cuda = FakeCuda::new();
    let (_keeper, gate) = cuda.gate(TEST);
    let mut exporter = cuda.start(TEST, "export");
    let mut importer = cuda.start(TEST, &format!("import {} {gate}", exporter.hear()));
    importer.expect("opened");
    exporter.tell("opened");
    exporter.expect("destroyed");
    importer.tell("destroyed");
    importer.expect("more");
    importer.tell(&exporter.hear());
    importer.expect("to be killed");
    importer.kill();
    importer.wait();
    exporter.tell("died");
    exporter.succeeds();
    assert_eq!(
        cuda.misuses(),
        [
            "cuIpcOpenMemHandle_v2: this process has the memory open",
            "cuIpcOpenEventHandle: this process has the event open",
            "cuMemFree_v2: another process has the memory open",
            "cuEventDestroy_v2: another process has the event open",
            "cuMemsetD8Async: the memory was freed by its owner",
            "cuEventQuery: the event was destroyed by its exporter",
            "cuIpcCloseMemHandle: work that was queued still uses the memory",
        ]
    );
}

#[test]
fn allocations_are_exported_as_descriptors() {
    const TEST: &str = "allocations_are_exported_as_descriptors";
    run_here(TEST, |argument| {
        begin(0);
        let prop = AllocationProp::new(0, true);
        let size = given(|size| cuMemGetAllocationGranularity(size, &prop, 0));
        // Maps an allocation and gives its address.
        let map = |allocation| {
            let pointer = given(|pointer| cuMemAddressReserve(pointer, size, 0, 0, 0));
            assert_eq!(pointer % size as u64, 0);
            assert_eq!(cuMemMap(pointer, size, 0, allocation, 0), 0);
            assert_eq!(cuMemcpyHtoD_v2(pointer, (&raw const size).cast(), 8), INVALID_VALUE);
            assert_eq!(cuMemSetAccess(pointer, size, &Access::read_write(0), 1), 0);
            // A mapping keeps what it maps.
            assert_eq!(cuMemRelease(allocation), 0);
            pointer
        };
        let unmap = |pointer| {
            assert_eq!(cuMemAddressFree(pointer, size), INVALID_VALUE);
            assert_eq!((cuMemUnmap(pointer, size), cuMemAddressFree(pointer, size)), (0, 0));
        };
        let import = |fd: i32| {
            let mut allocation = 0;
            let code = cuMemImportFromShareableHandle(&mut allocation, fd as usize as *mut _, 1);
            (code, allocation)
        };
        let Some(path) = argument.strip_prefix("import ") else {
            assert_eq!(cuMemCreate(&mut 0, size - 1, &prop, 0), INVALID_VALUE);
            let private = AllocationProp::new(0, false);
            let private = given(|allocation| cuMemCreate(allocation, size, &private, 0));
            let mut fd = -1;
            let refused = cuMemExportToShareableHandle((&raw mut fd).cast(), private, 1, 0);
            assert_eq!((refused, cuMemRelease(private)), (INVALID_VALUE, 0));
            let allocation = given(|allocation| cuMemCreate(allocation, size, &prop, 0));
            assert_eq!(cuMemExportToShareableHandle((&raw mut fd).cast(), allocation, 1, 0), 0);
            let pointer = map(allocation);
            assert_eq!(cuIpcGetMemHandle(&mut [0; 64], pointer), INVALID_VALUE);
            write(pointer, &[5; LEN]);
            say(&format!("/proc/{}/fd/{fd}", std::process::id()));
            listen_for("written");
            assert_eq!(read(pointer, LEN), [6; LEN]);
            // Memory that is released and still mapped counts.
            assert_eq!(cuMemRelease(allocation), INVALID_VALUE);
            assert_eq!(cuMemCreate(&mut 0, size, &prop, 0), 2);
            unmap(pointer);
            assert_eq!(given(|more| cuMemCreate(more, size, &prop, 0)) % 16, 0);
            return;
        };
        let file = File::options().read(true).write(true).open(path).unwrap();
        let other = File::open("/proc/self/exe").unwrap();
        assert_eq!(import(other.as_raw_fd()).0, INVALID_VALUE);
        let zeros = memfd(size as u64 + 4096, true, SealFlags::SHRINK).0;
        assert_eq!(import(zeros.as_raw_fd()).0, INVALID_VALUE);
        assert_eq!(import(-1).0, INVALID_VALUE);
        let (code, allocation) = import(file.as_raw_fd());
        assert_eq!(code, 0);
        drop(file);
        let pointer = map(allocation);
        assert_eq!(read(pointer, LEN), [5; LEN]);
        write(pointer, &[6; LEN]);
        unmap(pointer);
    });
    let cuda = FakeCuda::new().bytes(3 << 20);
    let mut exporter = cuda.start(TEST, "export");
    cuda.start(TEST, &format!("import {}", exporter.hear())).succeeds();
    exporter.tell("written");
    exporter.succeeds();
    let mut expected = vec![
        "cuMemcpyHtoD_v2: no access to this mapping was given",
        "cuMemAddressFree: something is mapped there",
    ];
    expected.extend_from_within(..);
    expected.push("cuMemRelease: no such allocation");
    expected.push("exit: 1 allocations, 0 mappings, 0 reservations, 1 descriptors are left");
    let mut told = cuda.misuses();
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}

#[test]
fn access_is_given_once_to_each_device_that_can_use_the_memory() {
    const TEST: &str = "access_is_given_once_to_each_device_that_can_use_the_memory";
    let cuda = || FakeCuda::new().devices(3).without_peers("1-0");
    let cuda = FakeCuda::alone(TEST, cuda, || {
        for device in (0..3).rev() {
            begin(device);
        }
        let size = 2 << 20;
        let prop = AllocationProp::new(0, true);
        let allocation = given(|allocation| cuMemCreate(allocation, size, &prop, 0));
        let pointer = given(|pointer| cuMemAddressReserve(pointer, size, 0, 0, 0));
        assert_eq!(cuMemMap(pointer, size, 0, allocation, 0), 0);
        assert_eq!(cuMemRelease(allocation), 0);
        let give = |device| cuMemSetAccess(pointer, size, &Access::read_write(device), 1);
        assert_eq!([give(0), give(1), give(0), give(3)], [0, INVALID_DEVICE, 0, INVALID_DEVICE]);
        let can = |device, peer| given(|can| cuDeviceCanAccessPeer(can, device, peer));
        assert_eq!((can(0, 1), can(1, 0), can(2, 0)), (1, 0, 1));
        // Each device has an access of its own.
        begin(2);
        assert_eq!(cuMemsetD8Async(pointer, 1, LEN, 0), INVALID_VALUE);
        assert_eq!(give(2), 0);
        write(pointer, &[5; LEN]);
        begin(0);
        assert_eq!(read(pointer, LEN), [5; LEN]);
        assert_eq!((cuMemUnmap(pointer, size), cuMemAddressFree(pointer, size)), (0, 0));
    });
    assert_eq!(
        cuda.misuses(),
        [
            "cuMemSetAccess: device 1 cannot use memory of device 0",
            "cuMemSetAccess: device 0 has the access already",
            "cuMemsetD8Async: no access to this mapping was given",
        ]
    );
}
