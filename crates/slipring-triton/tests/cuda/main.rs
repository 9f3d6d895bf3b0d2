//! GPU memory that clients register: validated, read and written, over a driver without a GPU.

#[path = "../served/http.rs"]
mod http_served;
#[path = "../../../../tests/support/mod.rs"]
mod support;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_served::{SIMPLE, Served, request, tensor as described, window};
use slipring::cuda::Device;
use slipring::region::CudaHandle;
use support::fake_cuda::FakeCuda;
use support::gpus::{device, exchange, hear, hear_out, is_closed, recv, small_pool};

#[test]
fn a_gpu_s_memory_is_registered_read_and_written() {
    const TEST: &str = "a_gpu_s_memory_is_registered_read_and_written";
    let cuda = FakeCuda::new();
    exchange(
        TEST,
        &cuda,
        // The client.
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let pool = small_pool(&device);
            let mut draft = pool.alloc::<i32>([64], &stream).unwrap();
            draft.write(&std::array::from_fn::<i32, 64, _>(|at| at as i32)).unwrap();
            let tensor = draft.share().unwrap();
            link.send_tensor(&tensor).unwrap();
            hear(&mut link);
            // The sums and differences are where the client wants them.
            let copy = device.to_host(&tensor, &stream).unwrap();
            let copy = copy.as_slice::<i32>().unwrap();
            assert_eq!(copy[..32], std::array::from_fn::<i32, 32, _>(|at| at as i32));
            assert_eq!(copy[32..48], std::array::from_fn::<i32, 16, _>(|at| 2 * at as i32 + 16));
            assert_eq!(copy[48..], [-16; 16]);
            hear_out(&mut link);
        },
        // The server.
        |mut link| {
            let tensor = recv(&mut link);
            let told = *tensor.gpu_place().unwrap();
            assert_eq!(told.offset, 0);
            let handle = told.ipc_handle().unwrap();
            let served = Served::with(|builder| builder.gpus(Device::reach));
            let register = |name: &str, handle: &[u8], device: i64, len: u64| {
                let handle = STANDARD.encode(handle);
                let body = format!(
                    r#"{{"raw_handle":{{"b64":"{handle}"}},"device_id":{device},"byte_size":{len}}}"#
                );
                served.post(&format!("/v2/cudasharedmemory/region/{name}/register"), &body)
            };
            let refused = "failed to register shared memory region: invalid args";
            register("gpu", &[7; 64], 0, 256).is_error(400, refused);
            register("gpu", &handle, 1, 256).is_error(400, refused);
            register("gpu", &handle, 0, told.allocation + 1).is_error(400, refused);
            register("gpu", &handle[..63], 0, 256)
                .is_error(400, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t");
            register("gpu", &handle, 0, 256).is_ok();
            register("gpu", &handle, 0, 256)
                .is_error(400, "shared memory region 'gpu' already in manager");
            let status = served.get("/v2/cudasharedmemory/status").ok();
            let region = serde_json::json!([{"name": "gpu", "device_id": 0, "byte_size": 256}]);
            assert_eq!(status, region);

            let input =
                |name, offset| described(name, "INT32", "[1,16]", &window("gpu", offset, 64));
            let output =
                |name, offset| format!(r#"{{"name":"{name}",{}}}"#, window("gpu", offset, 64));
            let inputs = [input("INPUT0", 0), input("INPUT1", 64)];
            let outputs = [output("OUTPUT0", 128), output("OUTPUT1", 192)];
            let answer = served.post(SIMPLE, &request(&inputs, &outputs)).ok();
            assert!(answer["outputs"][0]["data"].is_null(), "it lies in the region");
            // Outputs can also go into the response.
            let answer = served.post(SIMPLE, &request(&inputs, &[])).ok();
            let sums: Vec<i64> = (0..16).map(|at| 2 * at + 16).collect();
            assert_eq!(answer["outputs"][0]["data"], serde_json::json!(sums));
            // A native peer leases the same region.
            let registry = served.front.shared_memory().registry().clone();
            let mut bytes = [0; 8];
            registry.lease("gpu", 0, 8).unwrap().read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0, 0, 0, 0, 1, 0, 0, 0]);
            let handle = registry.lease("gpu", 0, 8).unwrap().cuda_handle();
            assert_eq!(handle, Some(CudaHandle { raw: told.ipc_handle().unwrap(), device: 0 }));
            served.post("/v2/cudasharedmemory/region/gpu/unregister", "").is_ok();
            link.send(b"written").unwrap();
            drop((tensor, served));
            is_closed(&device());
            link.close().unwrap();
        },
    );
}

/// Host memory behind the interface of GPU memory.
#[derive(Debug)]
struct Reached(std::sync::Mutex<Vec<u8>>);

impl slipring::region::Reach for Reached {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> slipring::Result<()> {
        to.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> slipring::Result<()> {
        self.0.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}

#[test]
fn overlapping_windows_of_a_gpu_are_moved_whatever_they_are_called() {
    const LEN: u64 = 2 << 20;
    let bytes: Vec<u8> = (0..2 * LEN).map(|at| (at / 1000) as u8).collect();
    let reached: std::sync::Arc<dyn slipring::region::Reach> =
        std::sync::Arc::new(Reached(std::sync::Mutex::new(bytes.clone())));
    let registry = slipring::region::Registry::new().unwrap();
    let handle = CudaHandle { raw: [1; 64], device: 0 };
    for name in ["one", "two"] {
        let source = slipring::region::Source::Gpu(handle, &reached);
        registry.register(name, source, 0, 2 * LEN).unwrap();
    }
    let lease = |name, offset| registry.lease(name, offset, LEN).unwrap();
    lease("two", LEN / 2).fill_from(&lease("one", 0)).unwrap();
    let mut moved = vec![0; LEN as usize];
    lease("one", LEN / 2).read_at(0, &mut moved).unwrap();
    assert_eq!(moved, bytes[..LEN as usize]);
    lease("one", 0).fill_from(&lease("two", LEN / 2)).unwrap();
    lease("two", 0).read_at(0, &mut moved).unwrap();
    assert_eq!(moved, bytes[..LEN as usize]);
    // The range exceeds the memory.
    let source = slipring::region::Source::Gpu(handle, &reached);
    assert!(registry.register("three", source, 1, 2 * LEN).is_err());
}
