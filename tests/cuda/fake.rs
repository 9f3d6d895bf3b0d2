//! The CUDA driver without a GPU (`tests/fake_cuda`) keeps the promises that other tests build on.
//!
//! Each body runs in a process that finds the library; the first word of its argument says which side of an exchange
//! it is, and the others are handles.

#![allow(unsafe_code)]

use crate::support::cuda_driver::*;
use crate::support::fake_cuda::{FakeCuda, keep_gate};
use crate::support::other::{fork, listen_for, run_here, say, wait_for_death};

const LEN: usize = 5000;
#[test]
fn the_driver_tells_of_its_devices() {
    let cuda = || {
        let uuid = "00112233445566778899aabbccddeefe";
        FakeCuda::new().devices(2).uuid(uuid).version(12040).bytes(1 << 20)
    };
    let cuda = FakeCuda::alone("the_driver_tells_of_its_devices", cuda, || {
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
    FakeCuda::alone("a_forked_child_cannot_use_what_its_parent_initialised", FakeCuda::new, || {
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
    FakeCuda::new().without_device().start(TEST, "device").succeeds();
    FakeCuda::new().without_ipc_events().start(TEST, "events").succeeds();
    FakeCuda::new().without_ipc().start(TEST, "ipc").succeeds();
}

#[test]
fn contexts_are_current_to_a_thread_and_counted() {
    let cuda = || FakeCuda::new().devices(2);
    let cuda = FakeCuda::alone("contexts_are_current_to_a_thread_and_counted", cuda, || {
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
    assert_eq!(cuda.misuses().len(), 3, "{:?}", cuda.misuses());
}

#[test]
fn memory_is_limited_and_only_the_driver_reaches_it() {
    let cuda = || FakeCuda::new().bytes(3 * LEN as u64);
    let cuda = FakeCuda::alone("memory_is_limited_and_only_the_driver_reaches_it", cuda, || {
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
    let mut exporter = cuda.start(TEST, "export");
    let word = exporter.hear();
    cuda.start(TEST, &format!("import {word}")).succeeds();
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
    let mut exporter = cuda.start(TEST, "export");
    let words = exporter.hear();
    cuda.start(TEST, &format!("import {words} 0")).succeeds();
    let elsewhere = cuda.clone().uuid("ffffffffffffffffffffffffffffff00");
    elsewhere.start(TEST, &format!("import {words} {INVALID_DEVICE}")).succeeds();
    exporter.kill();
    exporter.wait();
    cuda.start(TEST, &format!("import {words} {INVALID_VALUE}")).succeeds();
    cuda.was_used_well();
    // The killed process has left them.
    let left = cuda.objects();
    assert_eq!(left.len(), 2);
    drop((cuda, elsewhere));
    assert!(!left[0].exists() && !left[1].exists());
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
    let (mut keeper, gate) = cuda.gate(TEST);
    let mut exporter = cuda.start(TEST, &format!("export {gate}"));
    let mut importer = cuda.start(TEST, &format!("import {}", exporter.hear()));
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
    let (mut keeper, gate) = cuda.gate(TEST);
    let mut worker = cuda.start(TEST, &format!("work {gate}"));
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
    let (mut keeper, gate) = cuda.gate(TEST);
    let mut importer = cuda.start(TEST, &format!("import {gate}"));
    importer.expect("waits");
    keeper.kill();
    importer.succeeds();
    cuda.was_used_well();
}

#[test]
fn calls_fail_on_demand() {
    let cuda = || FakeCuda::new().fail("cuMemAlloc_v2:2,cuStreamQuery:719:2:1,cuStreamQuery:46:6");
    let cuda = FakeCuda::alone("calls_fail_on_demand", cuda, || {
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
    let cuda =
        FakeCuda::alone("the_trace_has_each_call_with_names_that_stay", FakeCuda::new, || {
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
