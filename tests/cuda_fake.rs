//! What the CUDA driver without a GPU (`tests/fake_cuda`) promises to the tests that build on it.
//!
//! Each body runs in a process that finds the library; the first word of its argument says which side of an exchange it
//! is, and the others are handles.

#![allow(unsafe_code)]

mod support;

use std::time::Duration;

use rustix::fs::SealFlags;
use support::cuda_driver::*;
use support::fake_cuda::FakeCuda;
use support::other::{Other, fork, listen_for, run_here, say, wait_for_death};

const LEN: usize = 5000;
const INVALID_VALUE: i32 = 1;
const INVALID_DEVICE: i32 = 101;
const INVALID_CONTEXT: i32 = 201;
const ALREADY_MAPPED: i32 = 208;
const INVALID_HANDLE: i32 = 400;
const NOT_READY: i32 = 600;

/// Runs `body` in a process to which CUDA is as `cuda` says. Nothing in `/dev/shm` may be left.
fn alone(test: &str, cuda: impl FnOnce() -> FakeCuda, body: impl FnOnce()) -> FakeCuda {
    run_here(test, |_| body());
    let cuda = cuda();
    Other::spawn_with(test, "", &cuda.command_env()).succeeds();
    assert_eq!(cuda.objects(), [""; 0].map(std::path::PathBuf::from));
    cuda
}

/// Starts another process of this test.
fn start(cuda: &FakeCuda, test: &str, argument: &str) -> Other {
    Other::spawn_with(test, argument, &cuda.command_env())
}

fn misuses(cuda: &FakeCuda) -> Vec<String> {
    // MISUSE <pid> <tid> <call>: <what>
    cuda.misuses().iter().map(|line| line.splitn(4, ' ').nth(3).unwrap().to_owned()).collect()
}

#[test]
fn the_driver_tells_of_its_devices() {
    let cuda = || {
        let uuid = "00112233445566778899aabbccddeefe";
        FakeCuda::new().devices(2).uuid(uuid).version(12040).bytes(1 << 20)
    };
    let cuda = alone("the_driver_tells_of_its_devices", cuda, || {
        assert_eq!(given(cuDriverGetVersion), 12040);
        let mut count = 0;
        assert_eq!(cuDeviceGetCount(&mut count), 3);
        assert_eq!(cuInit(1), INVALID_VALUE);
        assert_eq!(cuInit(0), 0);
        assert_eq!(given(cuDeviceGetCount), 2);
        assert_eq!(given(|device| cuDeviceGet(device, 1)), 1);
        assert_eq!(cuDeviceGet(&mut count, 2), INVALID_DEVICE);
        let uuid = |device| given(|uuid| cuDeviceGetUuid_v2(uuid, device));
        assert_eq!((uuid(0)[0], uuid(0)[1], uuid(0)[15], uuid(1)[15]), (0, 0x11, 0xfe, 0xff));
        assert_eq!(given(|bytes| cuDeviceTotalMem_v2(bytes, 0)), 1 << 20);
        for (attribute, value) in [(41, 1), (75, 9), (76, 0), (103, 1), (125, 1)] {
            assert_eq!(given(|to| cuDeviceGetAttribute(to, attribute, 0)), value);
        }
        assert_eq!(given(|can| cuDeviceCanAccessPeer(can, 0, 1)), 1);
        assert_eq!(given(|can| cuDeviceCanAccessPeer(can, 1, 1)), 0);
        let mut name = [0; 64];
        assert_eq!(cuDeviceGetName(name.as_mut_ptr(), 64, 1), 0);
        assert_eq!(name[0] as u8, b'F');
        assert_eq!(error_name(0), "CUDA_SUCCESS");
        assert_eq!(error_name(600), "CUDA_ERROR_NOT_READY");
        assert_eq!(cuGetErrorName(12345, &mut std::ptr::null()), INVALID_VALUE);
    });
    cuda.was_used_well();
}

#[test]
fn a_forked_child_cannot_use_what_its_parent_initialised() {
    alone("a_forked_child_cannot_use_what_its_parent_initialised", FakeCuda::new, || {
        begin(0);
        let pointer = alloc(LEN);
        let ended = fork(|| {
            assert_eq!(cuInit(0), 3);
            assert_eq!(cuMemFree_v2(pointer), 3);
        });
        assert_eq!(ended, 0);
        assert_eq!(cuMemFree_v2(pointer), 0);
    });
}

#[test]
fn what_a_machine_lacks_is_answered() {
    const TEST: &str = "what_a_machine_lacks_is_answered";
    run_here(TEST, |lacking| match lacking {
        "device" => assert_eq!(cuInit(0), 100),
        "events" => {
            assert!(symbol("cuIpcGetEventHandle").is_null());
            begin(0);
        }
        _ => {
            begin(0);
            assert_eq!(given(|value| cuDeviceGetAttribute(value, 125, 0)), 0);
            assert_eq!(given(|value| cuDeviceGetAttribute(value, 103, 0)), 0);
            assert_eq!(cuIpcGetMemHandle(&mut [0; 64], alloc(LEN)), 801);
        }
    });
    start(&FakeCuda::new().without_device(), TEST, "device").succeeds();
    start(&FakeCuda::new().without_ipc_events(), TEST, "events").succeeds();
    start(&FakeCuda::new().without_ipc(), TEST, "ipc").succeeds();
}

#[test]
fn contexts_are_current_to_a_thread_and_counted() {
    let cuda = || FakeCuda::new().devices(2);
    let cuda = alone("contexts_are_current_to_a_thread_and_counted", cuda, || {
        assert_eq!(cuInit(0), 0);
        let mut pointer = 0;
        assert_eq!(cuMemAlloc_v2(&mut pointer, LEN), INVALID_CONTEXT);
        let first = begin(0);
        assert_eq!(begin(0), first);
        let second = begin(1);
        assert_eq!(given(cuCtxGetCurrent), second);
        std::thread::spawn(|| assert_eq!(given(cuCtxGetCurrent), 0)).join().unwrap();
        // An event and a stream of two devices.
        let event = given(|event| cuEventCreate(event, 2));
        assert_eq!(given(cuCtxPopCurrent_v2), second);
        let stream = stream();
        assert_eq!(cuEventRecord(event, stream), INVALID_HANDLE);
        // To wait for another device is allowed.
        assert_eq!(cuStreamWaitEvent(stream, event, 0), 0);
        assert_eq!(cuStreamDestroy_v2(stream), 0);
        for _ in 0..2 {
            assert_eq!(cuDevicePrimaryCtxRelease_v2(0), 0);
        }
        assert_eq!(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
        assert_eq!(cuMemAlloc_v2(&mut pointer, LEN), 709);
    });
    assert_eq!(misuses(&cuda).len(), 3, "{:?}", misuses(&cuda));
}

#[test]
fn memory_is_limited_and_only_the_driver_reaches_it() {
    let cuda = || FakeCuda::new().bytes(3 * LEN as u64);
    let cuda = alone("memory_is_limited_and_only_the_driver_reaches_it", cuda, || {
        begin(0);
        let (one, two) = (alloc(LEN), alloc(LEN));
        let mut none = 0;
        assert_eq!(cuMemAlloc_v2(&mut none, LEN + 1), 2);
        let (mut free, mut total) = (0, 0);
        assert_eq!(cuMemGetInfo_v2(&mut free, &mut total), 0);
        assert_eq!((free, total), (LEN, 3 * LEN));
        let bytes: Vec<u8> = (0..LEN).map(|at| at as u8).collect();
        write(one, &bytes);
        assert_eq!(cuMemcpyDtoDAsync_v2(two + 1, one, LEN - 1, 0), 0);
        assert_eq!(cuMemsetD8Async(two, 9, 1, 0), 0);
        assert_eq!(read(two, 1), [9]);
        assert_eq!(read(two + 1, LEN - 1), bytes[..LEN - 1]);
        let (mut base, mut size) = (0, 0);
        assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut size, two + 77), 0);
        assert_eq!((base, size), (two, LEN));
        assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut size, two - 1 - one % 2), INVALID_VALUE);
        let ended = fork(|| {
            // SAFETY: none. The process dies of it, and that is what is tested.
            unsafe { std::ptr::read_volatile(one as *const u8) };
        });
        assert_eq!(libc::WTERMSIG(ended), libc::SIGSEGV);
        assert_eq!((cuMemFree_v2(one), cuMemFree_v2(two)), (0, 0));
        assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut size, two), INVALID_VALUE);
        alloc(3 * LEN);
    });
    cuda.was_used_well();
}

#[test]
fn two_processes_see_the_same_memory() {
    const TEST: &str = "two_processes_see_the_same_memory";
    run_here(TEST, |argument| {
        begin(0);
        let Some(word) = argument.strip_prefix("import ") else {
            let memory = alloc(LEN);
            write(memory, &[1; LEN]);
            let exported = handle(|handle| cuIpcGetMemHandle(handle, memory + 3));
            let mut none = 0;
            let own = cuIpcOpenMemHandle_v2(&mut none, ByValue(exported), 1);
            assert_eq!(own, INVALID_CONTEXT);
            say(&to_word(exported));
            listen_for("written");
            assert_eq!(read(memory, LEN), [2; LEN]);
            assert_eq!(cuMemFree_v2(memory), 0);
            return;
        };
        let memory = open_memory(from_word(word));
        assert_eq!(read(memory, LEN), [1; LEN]);
        write(memory, &[2; LEN]);
        assert_eq!(cuIpcGetMemHandle(&mut [0; 64], memory), INVALID_VALUE);
        let (mut base, mut size) = (0, 0);
        assert_eq!(cuMemGetAddressRange_v2(&mut base, &mut size, memory + 9), 0);
        assert_eq!((base, size), (memory, LEN));
        // Once it is closed, it can be opened again.
        assert_eq!(cuIpcCloseMemHandle(memory), 0);
        let memory = open_memory(from_word(word));
        assert_eq!(cuIpcCloseMemHandle(memory), 0);
    });
    let cuda = FakeCuda::new();
    let mut exporter = start(&cuda, TEST, "export");
    let word = exporter.hear();
    start(&cuda, TEST, &format!("import {word}")).succeeds();
    exporter.tell("written");
    exporter.succeeds();
    cuda.was_used_well();
    assert!(cuda.objects().is_empty());
}

#[test]
fn a_handle_that_means_nothing_here_is_refused() {
    const TEST: &str = "a_handle_that_means_nothing_here_is_refused";
    run_here(TEST, |argument| {
        begin(0);
        let mut words = argument.split(' ').skip(1);
        let Some(memory) = words.next().map(from_word) else {
            let (memory, event) = (alloc(LEN), shared_event());
            let memory = handle(|handle| cuIpcGetMemHandle(handle, memory));
            let event = handle(|handle| cuIpcGetEventHandle(handle, event));
            let own = cuIpcOpenEventHandle(&mut 0, ByValue(event));
            assert_eq!(own, INVALID_VALUE);
            say(&format!("{} {}", to_word(memory), to_word(event)));
            wait_for_death();
        };
        let event = from_word(words.next().unwrap());
        let code: i32 = words.next().unwrap().parse().unwrap();
        let open = |handle, flags| cuIpcOpenMemHandle_v2(&mut 0, ByValue(handle), flags);
        let open_event = |handle| cuIpcOpenEventHandle(&mut 0, ByValue(handle));
        assert_eq!((open(memory, 1), open_event(event)), (code, code));
        if code == 0 {
            assert_eq!(open(memory, 0), INVALID_VALUE);
            assert_eq!(open(event, 1), INVALID_VALUE);
            assert_eq!(open_event(memory), INVALID_VALUE);
            // Magic, key, number, size, process: whatever is forged.
            for at in (0..36).filter(|at| !(24..32).contains(at)) {
                let mut forged = memory;
                forged[at] ^= 0x15;
                assert_eq!(open(forged, 1), INVALID_VALUE, "byte {at}");
                let mut forged = event;
                forged[at] ^= 0x15;
                assert_eq!(open_event(forged), INVALID_VALUE, "byte {at}");
            }
        }
    });
    let cuda = FakeCuda::new();
    let mut exporter = start(&cuda, TEST, "export");
    let words = exporter.hear();
    start(&cuda, TEST, &format!("import {words} 0")).succeeds();
    let elsewhere = cuda.clone().uuid("ffffffffffffffffffffffffffffff00");
    start(&elsewhere, TEST, &format!("import {words} {INVALID_DEVICE}")).succeeds();
    exporter.kill();
    exporter.wait();
    start(&cuda, TEST, &format!("import {words} {INVALID_VALUE}")).succeeds();
    cuda.was_used_well();
    // Whoever was killed has left them.
    let left = cuda.objects();
    assert_eq!(left.len(), 2);
    drop((cuda, elsewhere));
    assert!(!left[0].exists() && !left[1].exists());
}

/// A process whose work lasts until it is killed, and the handle of an event that it has recorded after it. What waits for
/// the event goes on when the process is dead.
fn gate(cuda: &FakeCuda, test: &str) -> (Other, String) {
    let keeper = start(&cuda.clone().delay(Duration::from_secs(3600)), test, "gate");
    let word = keeper.hear();
    (keeper, word)
}

fn keep_gate() -> ! {
    let event = shared_event();
    assert_eq!(cuEventRecord(event, 0), 0);
    say(&to_word(handle(|handle| cuIpcGetEventHandle(handle, event))));
    wait_for_death();
}

#[test]
fn an_event_orders_the_work_of_two_processes() {
    const TEST: &str = "an_event_orders_the_work_of_two_processes";
    run_here(TEST, |argument| {
        begin(0);
        let (one, other) = (stream(), stream());
        match argument.split(' ').collect::<Vec<_>>()[..] {
            ["export", gate] => {
                let (memory, event) = (alloc(LEN), shared_event());
                let gate = open_event(from_word(gate));
                write(memory, &[1; LEN]);
                assert_eq!(cuEventQuery(event), 0, "no record is due");
                assert_eq!(cuStreamWaitEvent(one, gate, 0), 0);
                assert_eq!(cuMemsetD8Async(memory, 2, LEN, one), 0);
                assert_eq!(cuEventRecord(event, one), 0);
                assert_eq!((cuEventQuery(event), cuStreamQuery(one)), (NOT_READY, NOT_READY));
                let memory = handle(|handle| cuIpcGetMemHandle(handle, memory));
                let event = handle(|handle| cuIpcGetEventHandle(handle, event));
                say(&format!("{} {}", to_word(memory), to_word(event)));
                listen_for("seen");
            }
            ["import", memory, event] => {
                let memory = open_memory(from_word(memory));
                let event = open_event(from_word(event));
                let mut bytes = [[0_u8; LEN]; 2];
                let [early, late] = bytes.each_mut().map(|bytes| bytes.as_mut_ptr().cast());
                assert_eq!(cuEventQuery(event), NOT_READY);
                assert_eq!(cuStreamWaitEvent(one, event, 0), 0);
                assert_eq!(cuMemcpyDtoHAsync_v2(late, memory, LEN, one), 0);
                assert_eq!(cuMemcpyDtoHAsync_v2(early, memory, LEN, other), 0);
                assert_eq!(cuStreamSynchronize(other), 0);
                assert_eq!((cuEventQuery(event), cuStreamQuery(one)), (NOT_READY, NOT_READY));
                say("early");
                assert_eq!(cuStreamSynchronize(one), 0);
                assert_eq!(cuEventQuery(event), 0);
                assert!(bytes == [[1; LEN], [2; LEN]]);
                // The importer records, too.
                assert_eq!((cuEventRecord(event, one), cuEventSynchronize(event)), (0, 0));
                assert_eq!((cuEventDestroy_v2(event), cuIpcCloseMemHandle(memory)), (0, 0));
            }
            _ => keep_gate(),
        }
    });
    let cuda = FakeCuda::new();
    let (mut keeper, gate) = gate(&cuda, TEST);
    let mut exporter = start(&cuda, TEST, &format!("export {gate}"));
    let mut importer = start(&cuda, TEST, &format!("import {}", exporter.hear()));
    importer.expect("early");
    keeper.kill();
    importer.succeeds();
    exporter.tell("seen");
    exporter.succeeds();
    cuda.was_used_well();
}

#[test]
fn a_wait_is_for_the_records_before_it() {
    const TEST: &str = "a_wait_is_for_the_records_before_it";
    run_here(TEST, |argument| {
        begin(0);
        let Some(gate) = argument.strip_prefix("work ") else { keep_gate() };
        let gate = open_event(from_word(gate));
        let (one, two, event) = (stream(), stream(), shared_event());
        let memory = alloc(LEN);
        assert_eq!(cuStreamWaitEvent(two, event, 0), 0, "a wait for no record");
        assert_eq!(cuEventRecord(event, one), 0);
        assert_eq!(cuStreamWaitEvent(two, event, 0), 0);
        assert_eq!(cuStreamWaitEvent(one, gate, 0), 0);
        for _ in 0..5 {
            assert_eq!(cuEventRecord(event, one), 0);
        }
        assert_eq!(cuStreamSynchronize(two), 0);
        assert_eq!(cuEventQuery(event), NOT_READY, "only the first was waited for");
        // Neither stream nor event are needed for what was queued.
        assert_eq!(cuMemsetD8Async(memory, 7, LEN, one), 0);
        assert_eq!((cuStreamDestroy_v2(one), cuEventDestroy_v2(event)), (0, 0));
        // The legacy stream does not wait for that, but freeing does.
        assert_eq!(read(memory, 1), [0]);
        say("behind the gate");
        assert_eq!(cuMemFree_v2(memory), 0);
    });
    let cuda = FakeCuda::new();
    let (mut keeper, gate) = gate(&cuda, TEST);
    let mut worker = start(&cuda, TEST, &format!("work {gate}"));
    worker.expect("behind the gate");
    keeper.kill();
    worker.succeeds();
    cuda.was_used_well();
    let waits: Vec<String> = cuda
        .trace()
        .iter()
        .filter(|call| call.name == "cuStreamWaitEvent")
        .map(|call| call.arguments[2].clone())
        .collect();
    assert_eq!(waits, ["record:0", "record:1", "record:1"]);
}

#[test]
fn nobody_waits_for_the_work_of_the_dead() {
    const TEST: &str = "nobody_waits_for_the_work_of_the_dead";
    run_here(TEST, |argument| {
        begin(0);
        let Some(word) = argument.strip_prefix("import ") else { keep_gate() };
        let event = open_event(from_word(word));
        assert_eq!(cuStreamWaitEvent(0, event, 0), 0);
        assert_eq!(cuStreamQuery(0), NOT_READY);
        say("waits");
        assert_eq!((cuStreamSynchronize(0), cuEventSynchronize(event)), (0, 0));
        assert_eq!((cuEventQuery(event), cuEventDestroy_v2(event)), (0, 0));
    });
    let cuda = FakeCuda::new();
    let (mut keeper, gate) = gate(&cuda, TEST);
    let mut importer = start(&cuda, TEST, &format!("import {gate}"));
    importer.expect("waits");
    keeper.kill();
    importer.succeeds();
    cuda.was_used_well();
}

#[test]
fn each_misuse_within_a_process_is_told() {
    let cuda = || FakeCuda::new().devices(2);
    let cuda = alone("each_misuse_within_a_process_is_told", cuda, || {
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
        misuses(&cuda),
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
                // What was open stays so, and cannot be opened any more.
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
    let (_keeper, gate) = gate(&cuda, TEST);
    let mut exporter = start(&cuda, TEST, "export");
    let mut importer = start(&cuda, TEST, &format!("import {} {gate}", exporter.hear()));
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
        misuses(&cuda),
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
fn calls_fail_on_demand() {
    let cuda = || FakeCuda::new().fail("cuMemAlloc_v2:2,cuStreamQuery:719:2:1,cuStreamQuery:46:6");
    let cuda = alone("calls_fail_on_demand", cuda, || {
        begin(0);
        assert_eq!(cuMemAlloc_v2(&mut 0, LEN), 2);
        alloc(LEN);
        let codes = [(); 7].map(|()| cuStreamQuery(0));
        assert_eq!(codes, [0, 719, 719, 0, 0, 46, 0]);
    });
    cuda.was_used_well();
}

#[test]
fn the_trace_has_each_call_with_names_that_stay() {
    let cuda = alone("the_trace_has_each_call_with_names_that_stay", FakeCuda::new, || {
        begin(0);
        let (memory, event, stream) = (alloc(LEN), shared_event(), stream());
        assert_eq!(cuMemsetD8Async(memory + 5, 3, 10, stream), 0);
        assert_eq!((cuEventRecord(event, stream), cuEventRecord(event, 2)), (0, 0));
        assert_eq!(cuMemFree_v2(0), INVALID_VALUE);
    });
    let trace = cuda.trace();
    let process = trace[0].process;
    let said = |line: &str| {
        let code = line.rsplit_once(" = ").unwrap().1;
        let mut words = line.split(" = ").next().unwrap().split(' ').map(str::to_owned);
        let device = words.next().unwrap().parse().ok();
        (device, words.collect::<Vec<_>>(), code.parse::<i32>().unwrap())
    };
    let seen: Vec<_> = trace
        .into_iter()
        .map(|call| {
            assert_eq!(call.process, process);
            assert_ne!(call.thread, process);
            let words = [vec![call.name], call.arguments].concat();
            (call.device, words, call.code)
        })
        .collect();
    let expected = [
        "- cuInit 0 = 0".to_owned(),
        "- cuDevicePrimaryCtxRetain dev:0 = 0".into(),
        "0 cuCtxPushCurrent_v2 dev:0 = 0".into(),
        format!("0 cuMemAlloc_v2 5000 mem:{process}.1 = 0"),
        format!("0 cuEventCreate 6 event:{process}.2 = 0"),
        "0 cuStreamCreate 1 stream:1 = 0".into(),
        format!("0 cuMemsetD8Async mem:{process}.1+5 3 10 stream:1 = 0"),
        format!("0 cuEventRecord event:{process}.2 stream:1 record:1 = 0"),
        format!("0 cuEventRecord event:{process}.2 stream:0 record:2 = 0"),
        "0 cuMemFree_v2 mem:? = 1".into(),
    ];
    assert_eq!(seen, expected.map(|line| said(&line)));
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
            // What is mapped was released, and counts.
            assert_eq!(cuMemRelease(allocation), INVALID_VALUE);
            assert_eq!(cuMemCreate(&mut 0, size, &prop, 0), 2);
            unmap(pointer);
            assert_eq!(given(|more| cuMemCreate(more, size, &prop, 0)) % 16, 0);
            return;
        };
        use std::os::fd::AsRawFd;
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(import(other.as_raw_fd()).0, INVALID_VALUE);
        let zeros = support::commit::memfd(size as u64 + 4096, SealFlags::SHRINK);
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
    let mut exporter = start(&cuda, TEST, "export");
    start(&cuda, TEST, &format!("import {}", exporter.hear())).succeeds();
    exporter.tell("written");
    exporter.succeeds();
    let mut expected = vec![
        "cuMemcpyHtoD_v2: no access to this mapping was given",
        "cuMemAddressFree: something is mapped there",
    ];
    expected.extend_from_within(..);
    expected.push("cuMemRelease: no such allocation");
    let mut told = misuses(&cuda);
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}
