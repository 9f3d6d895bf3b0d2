//! A peer in another container: its memory cannot be opened, and the error says why.

use std::error::Error;

use slipring::Connection;
use slipring::error::CudaFault;

use crate::support::fake_cuda::FakeCuda;
use crate::support::gpus::{
    Two, cuda_fault, device, driver_fault, hear_out, is_closed, recv, small_pool,
};
use crate::support::other::Namespace;

/// Sends a tensor, and waits until the peer has gone and all has come back.
fn lend(mut link: Connection) {
    let device = device();
    let (pool, stream) = (small_pool(&device), device.stream().unwrap());
    let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
    draft.fill(1).unwrap();
    link.send_tensor(draft.share().unwrap()).unwrap();
    hear_out(&mut link);
    drop((pool, link));
    is_closed(&device);
}

/// That a tensor cannot be opened for the reason that is expected, twice: nothing of a handle that was refused is
/// kept.
fn is_told_of(mut link: Connection, namespace: &'static str, code: u32) {
    let device = device();
    let stream = device.stream().unwrap();
    let tensor = recv(&mut link);
    for _ in 0..2 {
        let refused = device.open(&tensor, &stream).unwrap_err();
        let source = refused.source().expect("what the driver said").to_string();
        assert!(source.starts_with("cuIpcOpen"), "{source}");
        assert!(source.ends_with(&format!("({code})")), "{source}");
        let text = refused.to_string();
        assert!(text.contains(&format!("another {namespace} namespace")), "{text}");
        assert_eq!(cuda_fault::<()>(Err(refused)), CudaFault::OtherNamespace { namespace });
    }
    drop(tensor);
    link.close().unwrap();
}

fn runs_apart(
    test: &str,
    cuda: &FakeCuda,
    namespace: Namespace,
    [owner, borrower]: [fn(Connection); 2],
) {
    if !cuda.is_there(test) {
        return;
    }
    if let Some(two) = Two::start_apart(test, cuda, namespace, owner, borrower) {
        two.succeed();
        cuda.was_used_well();
    }
}

/// Returns a driver that answers a handle of another container by `CUDA_ERROR_INVALID_CONTEXT`.
fn refusing() -> FakeCuda {
    FakeCuda::new().fail("cuIpcOpenMemHandle_v2:201:1:1")
}

#[test]
fn a_handle_of_another_ipc_namespace_is_refused_by_name() {
    const TEST: &str = "a_handle_of_another_ipc_namespace_is_refused_by_name";
    let sides: [fn(Connection); 2] = [lend, |link| is_told_of(link, "ipc", 201)];
    runs_apart(TEST, &refusing(), Namespace::Ipc, sides);
}

#[test]
fn a_handle_of_another_pid_namespace_is_refused_by_name() {
    const TEST: &str = "a_handle_of_another_pid_namespace_is_refused_by_name";
    let borrower = |link: Connection| {
        assert_eq!(std::process::id(), 1);
        assert_eq!(link.peer().pid(), None, "it is outside of this namespace");
        is_told_of(link, "pid", 201);
    };
    runs_apart(TEST, &refusing(), Namespace::Pid, [lend, borrower]);
}

#[test]
fn an_event_of_another_namespace_is_refused_by_name() {
    const TEST: &str = "an_event_of_another_namespace_is_refused_by_name";
    let cuda = FakeCuda::new().fail("cuIpcOpenEventHandle:1:1:1");
    let sides: [fn(Connection); 2] = [lend, |link| is_told_of(link, "ipc", 1)];
    runs_apart(TEST, &cuda, Namespace::Ipc, sides);
}

/// That a tensor cannot be opened for what the driver says.
fn is_told_of_the_driver(mut link: Connection, code: u32) {
    let device = device();
    let stream = device.stream().unwrap();
    let tensor = recv(&mut link);
    assert_eq!(driver_fault(device.open(&tensor, &stream)), ("cuIpcOpenMemHandle_v2", code));
    drop(tensor);
    link.close().unwrap();
}

#[test]
fn a_handle_of_the_same_namespaces_is_refused_as_the_driver_says() {
    const TEST: &str = "a_handle_of_the_same_namespaces_is_refused_as_the_driver_says";
    let cuda = refusing();
    if cuda.is_there(TEST) {
        Two::start(TEST, &cuda, lend, |link| is_told_of_the_driver(link, 201)).succeed();
        cuda.was_used_well();
    }
}

#[test]
fn a_gpu_without_memory_is_no_matter_of_namespaces() {
    const TEST: &str = "a_gpu_without_memory_is_no_matter_of_namespaces";
    let cuda = FakeCuda::new().fail("cuIpcOpenMemHandle_v2:2");
    let sides: [fn(Connection); 2] = [lend, |link| is_told_of_the_driver(link, 2)];
    runs_apart(TEST, &cuda, Namespace::Ipc, sides);
}

#[test]
fn what_the_driver_opens_across_namespaces_is_read() {
    const TEST: &str = "what_the_driver_opens_across_namespaces_is_read";
    let borrower = |mut link: Connection| {
        let device = device();
        let stream = device.stream().unwrap();
        let copy = device.to_host(&recv(&mut link), &stream).unwrap();
        assert_eq!(copy.as_slice::<u8>().unwrap(), [1; 4096]);
        link.close().unwrap();
    };
    // A real driver would not.
    let cuda = FakeCuda::new();
    if cuda.tells(TEST) {
        runs_apart(TEST, &cuda, Namespace::Ipc, [lend, borrower]);
    }
}
