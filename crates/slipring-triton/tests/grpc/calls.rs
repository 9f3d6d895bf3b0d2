//! The calls of gRPC, tensors from and to every place, streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::grpc_served::inference::infer_parameter::ParameterChoice;
use crate::grpc_served::inference::*;
use crate::grpc_served::{
    Client, Served, identity, in_memory, input, output, request, served_by_tonic, simple, window,
};
use crate::http_served::{ints, models};
use crate::support::{unique_name, wait_until};
use futures_util::StreamExt;
use slipring::DType;
use slipring::region::Registry;
use slipring_triton::{
    Front, Inputs, Model, ModelError, ModelMetadata, Outputs, Protocol, Server, TensorSpec,
};
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic::transport::Endpoint;

#[test]
fn the_server_and_its_models_tell_what_they_are() {
    let served = Served::new();
    let mut client = served.client();
    served.run(async {
        assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
        assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
        let server = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
        assert_eq!(server.name, "slipring");
        for extension in ["system_shared_memory", "cuda_shared_memory", "statistics"] {
            assert!(server.extensions.iter().any(|is| is == extension), "{extension}");
        }
        for (name, version, ready) in [
            ("simple", "", true),
            ("simple", "1", true),
            ("simple", "9", false),
            ("none", "", false),
        ] {
            let (name, version) = (name.to_owned(), version.to_owned());
            let asked = client.model_ready(ModelReadyRequest { name, version }).await;
            assert_eq!(asked.unwrap().into_inner().ready, ready);
        }
        let (name, version) = ("simple".to_owned(), String::new());
        let asked = ModelMetadataRequest { name: name.clone(), version: version.clone() };
        let model = client.model_metadata(asked).await.unwrap().into_inner();
        assert_eq!((&*model.name, &model.versions[..]), ("simple", &["1".to_owned()][..]));
        assert_eq!((&*model.inputs[1].name, &*model.inputs[1].datatype), ("INPUT1", "INT32"));
        assert_eq!((&model.inputs[0].shape[..], model.outputs.len()), (&[-1, 16][..], 2));
        let asked = ModelConfigRequest { name, version };
        let config = client.model_config(asked).await.unwrap().into_inner().config.unwrap();
        assert_eq!((config.max_batch_size, &config.input[0].dims[..]), (8, &[16][..]));
        assert_eq!(config.output[1].data_type(), DataType::TypeInt32);
        let index = client.repository_index(RepositoryIndexRequest::default()).await;
        let models = index.unwrap().into_inner().models;
        assert_eq!(models.len(), 10 + 14);
        assert!(models.iter().all(|model| (&*model.version, &*model.state) == ("1", "READY")));
    });
}

#[test]
fn every_data_type_is_configured_by_its_number() {
    let served = Served::new();
    let mut client = served.client();
    for dtype in slipring_triton::DTYPES {
        let name = format!("identity_{}", dtype.name().to_lowercase());
        let asked = ModelConfigRequest { name, version: String::new() };
        let config = served.run(client.model_config(asked)).unwrap().into_inner().config.unwrap();
        let called = match dtype.name() {
            "BYTES" => "TYPE_STRING".to_owned(),
            name => format!("TYPE_{name}"),
        };
        assert_eq!(config.input[0].data_type().as_str_name(), called);
    }
}

#[test]
fn health_is_of_the_server_and_of_its_service() {
    let served = Served::new();
    let mut health = served.health();
    for (service, is) in
        [("", Ok(1)), ("inference.GRPCInferenceService", Ok(1)), ("x", Err(Code::NotFound))]
    {
        let asked = crate::grpc_served::health::HealthCheckRequest { service: service.to_owned() };
        let answer = served.run(health.check(asked));
        assert_eq!(answer.map(|answer| answer.into_inner().status).map_err(|s| s.code()), is);
    }
}

#[test]
fn raw_typed_and_shared_inputs_give_raw_and_shared_outputs() {
    let served = Served::new();
    let object = served.region("r", 256);
    object.write_at(0, &ints(0..16)).unwrap();
    let [first, second] = [input("INPUT0", "INT32", &[1, 16]), input("INPUT1", "INT32", &[1, 16])];
    let typed = |tensor: &model_infer_request::InferInputTensor, range: std::ops::Range<i32>| {
        let contents = InferTensorContents { int_contents: range.collect(), ..Default::default() };
        model_infer_request::InferInputTensor { contents: Some(contents), ..tensor.clone() }
    };
    let shared = in_memory(first.clone(), "r", 0);
    let bytes = ints(100..116);
    let requests = [
        request("simple", vec![first.clone(), second.clone()], &[&ints(0..16), &bytes]),
        request("simple", vec![typed(&first, 0..16), typed(&second, 100..116)], &[]),
        // Raw contents skip inputs in shared memory.
        request("simple", vec![shared.clone(), second.clone()], &[&bytes]),
        request("simple", vec![second.clone(), shared.clone()], &[&bytes]),
        request("simple", vec![shared, typed(&second, 100..116)], &[]),
    ];
    let (sum, difference) = (ints(100..116), [(-100i32).to_le_bytes(); 16].concat());
    let sum: Vec<u8> = sum
        .chunks(4)
        .enumerate()
        .flat_map(|(at, bytes)| {
            (i32::from_le_bytes(bytes.try_into().unwrap()) + at as i32).to_le_bytes()
        })
        .collect();
    for mut request in requests {
        let answer = served.infer(request.clone()).unwrap();
        assert_eq!(answer.raw_output_contents, [&sum[..], &difference]);
        assert_eq!(
            (&*answer.outputs[0].datatype, &*answer.outputs[0].shape),
            ("INT32", &[1, 16][..])
        );
        assert_eq!((&*answer.model_name, &*answer.model_version, &*answer.id), ("simple", "1", ""));
        // An output in shared memory has an empty entry. The order is that of the request.
        request.outputs = vec![output("OUTPUT1"), output("OUTPUT0")];
        request.outputs[0].parameters = window("r", 100, 80);
        request.id = "mine".to_owned();
        object.write_at(64, &[0; 192]).unwrap();
        let answer = served.infer(request).unwrap();
        assert_eq!(answer.raw_output_contents, [&b""[..], &sum]);
        assert_eq!((&*answer.outputs[0].name, &*answer.id), ("OUTPUT1", "mine"));
        let mut room = [0; 192];
        object.read_at(64, &mut room).unwrap();
        assert_eq!(room[..36], [0; 36]);
        assert_eq!(room[36..100], difference);
        assert_eq!(room[100..], [0; 92], "no more than the result was written");
    }
}

#[test]
fn every_data_type_goes_raw_and_by_shared_memory() {
    let served = Served::new();
    let object = served.region("r", 256);
    for dtype in slipring_triton::DTYPES {
        let bytes = match dtype.size() {
            Some(size) => vec![1; 6 * size],
            None => b"\0\0\0\0\x03\0\0\0abc\x01\0\0\0x".repeat(2),
        };
        let model = format!("identity_{}", dtype.name().to_lowercase());
        let mut asked = request(&model, vec![input("INPUT0", dtype.name(), &[2, 3])], &[&bytes]);
        assert_eq!(served.infer(asked.clone()).unwrap().raw_output_contents, [&bytes[..]]);
        object.write_at(3, &bytes).unwrap();
        asked.raw_input_contents.clear();
        asked.inputs[0].parameters = window("r", 3, bytes.len() as i64);
        asked.outputs = vec![output("OUTPUT0")];
        asked.outputs[0].parameters = window("r", 101, 155);
        assert_eq!(served.infer(asked).unwrap().raw_output_contents, [&b""[..]]);
        let mut room = vec![0; bytes.len()];
        object.read_at(101, &mut room).unwrap();
        assert_eq!(room, bytes, "{dtype}");
    }
}

#[test]
fn regions_are_registered_shown_and_taken_back() {
    let served = Served::new();
    let mut client = served.client();
    let status = |client: &mut Client, name: &str| {
        let asked = SystemSharedMemoryStatusRequest { name: name.to_owned() };
        let answer = served.run(client.system_shared_memory_status(asked));
        answer.map(|answer| answer.into_inner().regions)
    };
    assert!(status(&mut client, "").unwrap().is_empty());
    let object = served.region("one", 100);
    // A second name of one object, at any offset, with the key as the client gave it.
    let bare = object.key().trim_start_matches('/').to_owned();
    served.register("two/ü", &bare, 7, 93).unwrap();
    let all = status(&mut client, "").unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["one", "two/ü"]);
    let two = &all["two/ü"];
    assert_eq!((&*two.name, &two.key, two.offset, two.byte_size), ("two/ü", &bare, 7, 93));
    assert_eq!(status(&mut client, "one").unwrap().len(), 1);
    served.unregister("nobody");
    served.unregister("one");
    assert_eq!(status(&mut client, "one").unwrap_err().code(), Code::NotFound);
    served.region("three", 64);
    served.unregister("");
    assert!(status(&mut client, "").unwrap().is_empty());
    let all = CudaSharedMemoryUnregisterRequest::default();
    served.run(client.cuda_shared_memory_unregister(all)).unwrap();
    let all = CudaSharedMemoryStatusRequest::default();
    let regions = served.run(client.cuda_shared_memory_status(all)).unwrap().into_inner().regions;
    assert!(regions.is_empty());
}

#[test]
fn a_region_of_a_client_is_the_applications_too() {
    let registry = Registry::new().unwrap();
    let shared = registry.clone();
    let served = Served::with(|builder| builder.registry(shared));
    let object = served.region("both", 64);
    object.write_at(0, &[7; 64]).unwrap();
    let lease = registry.lease("both", 32, 32).unwrap();
    let mut bytes = [0; 32];
    lease.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 32]);
}

/// An echo model that waits for a permit.
struct Held {
    metadata: ModelMetadata,
    entered: mpsc::SyncSender<()>,
    let_go: Arc<AtomicBool>,
}

impl Held {
    fn serve() -> (Served, mpsc::Receiver<()>, Arc<AtomicBool>) {
        let (entered, enters) = mpsc::sync_channel(8);
        let let_go = Arc::new(AtomicBool::new(false));
        let metadata = ModelMetadata::new("held")
            .input(TensorSpec::new("INPUT0", DType::Int32, [Some(1), Some(16)]))
            .output(TensorSpec::new("OUTPUT0", DType::Int32, [Some(1), Some(16)]));
        let held = Self { metadata, entered, let_go: let_go.clone() };
        (Served::with(|builder| builder.model(held)), enters, let_go)
    }
}

impl Model for Held {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        self.entered.send(()).unwrap();
        wait_until("being let go", || self.let_go.load(Ordering::Acquire));
        let input = inputs.input("INPUT0")?;
        outputs.output("OUTPUT0", *input.shape())?.copy_from(&input)
    }
}

fn held(region: &str) -> ModelInferRequest {
    request("held", vec![in_memory(input("INPUT0", "INT32", &[1, 16]), region, 0)], &[])
}

#[test]
fn a_region_stays_for_the_request_that_uses_it() {
    let (served, enters, let_go) = Held::serve();
    let object = served.region("r", 64);
    object.write_at(0, &ints(0..16)).unwrap();
    let mut client = served.client();
    served.run(async {
        let asked = tokio::spawn(async move { client.model_infer(held("r")).await });
        tokio::task::spawn_blocking(move || enters.recv().unwrap()).await.unwrap();
        let mut other = Client::new(
            Endpoint::from_shared(format!("http://{}", served.address))
                .unwrap()
                .connect()
                .await
                .unwrap(),
        );
        let name = "r".to_owned();
        other
            .system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest { name })
            .await
            .unwrap();
        let refused = other.model_infer(held("r")).await.unwrap_err();
        assert_eq!(refused.message(), "Unable to find shared memory region: 'r'");
        let_go.store(true, Ordering::Release);
        let answer = asked.await.unwrap().unwrap().into_inner();
        assert_eq!(answer.raw_output_contents, [&ints(0..16)[..]]);
    });
}

#[test]
fn a_server_that_ends_answers_what_is_under_way() {
    let (mut served, enters, let_go) = Held::serve();
    let object = served.region("r", 64);
    object.write_at(0, &ints(0..16)).unwrap();
    let mut client = served.client();
    let mut idle = served.client();
    let asked = served.run(async {
        // A stream that waits for its client does not block the server's end.
        let stream = idle.model_stream_infer(futures_util::stream::pending()).await.unwrap();
        let asked = tokio::spawn(async move { client.model_infer(held("r")).await });
        tokio::task::spawn_blocking(move || enters.recv().unwrap()).await.unwrap();
        (asked, stream)
    });
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let_go.store(true, Ordering::Release);
    });
    served.end();
    later.join().unwrap();
    let (asked, stream) = asked;
    let answer = served.run(asked).unwrap().unwrap().into_inner();
    assert_eq!(answer.raw_output_contents, [&ints(0..16)[..]]);
    let status = served.run(stream.into_inner().message()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[test]
fn statistics_grow() {
    let served = Served::new();
    let mut client = served.client();
    let inputs = vec![input("INPUT0", "INT32", &[4, 4])];
    let asked = request("identity_int32", inputs, &[&ints(0..16)]);
    served.run(async {
        for _ in 0..3 {
            client.model_infer(asked.clone()).await.unwrap();
        }
        let wrong = ModelInferRequest { outputs: vec![output("NOBODY")], ..asked };
        client.model_infer(wrong).await.unwrap_err();
        let asked = ModelStatisticsRequest { name: "identity_int32".into(), version: "1".into() };
        let all = client.model_statistics(asked).await.unwrap().into_inner().model_stats;
        let [stats] = &all[..] else { panic!("one model") };
        assert_eq!((stats.inference_count, stats.execution_count), (12, 3));
        let times = stats.inference_stats.as_ref().unwrap();
        let (success, fail) = (times.success.as_ref().unwrap(), times.fail.as_ref().unwrap());
        assert_eq!((success.count, fail.count, success.ns > 0), (3, 0, true));
        assert_eq!(stats.batch_stats[0].batch_size, 4);
        let all = client.model_statistics(ModelStatisticsRequest::default()).await;
        assert_eq!(all.unwrap().into_inner().model_stats.len(), 10 + 14);
    });
}

#[test]
fn a_stream_answers_in_order_and_outlives_errors() {
    let served = Served::new();
    let mut client = served.client();
    let named = |id: i32, model: &str| ModelInferRequest {
        id: id.to_string(),
        model_name: model.to_owned(),
        ..identity(&ints(id..id + 16))
    };
    let mut requests: Vec<_> = (0..50).map(|id| named(id, "identity_int32")).collect();
    requests[7].model_name = "nobody".to_owned();
    served.run(async {
        let stream = client.model_stream_infer(futures_util::stream::iter(requests)).await.unwrap();
        let answers: Vec<_> = stream.into_inner().collect().await;
        assert_eq!(answers.len(), 50);
        for (id, answer) in answers.into_iter().enumerate() {
            let ModelStreamInferResponse { error_message, infer_response } = answer.unwrap();
            let response = infer_response.unwrap();
            assert_eq!(response.id, id.to_string());
            if id == 7 {
                assert_eq!(error_message, "Request for unknown model: 'nobody' is not found");
                continue;
            }
            assert_eq!(response.raw_output_contents, [&ints(id as i32..id as i32 + 16)[..]]);
            let last = &response.parameters["triton_final_response"].parameter_choice;
            assert_eq!(*last, Some(ParameterChoice::BoolParam(true)));
        }
    });
}

#[test]
fn a_stream_may_ask_that_errors_end_it() {
    let served = Served::new();
    let mut client = served.client();
    let requests = [identity(&ints(0..16)), identity(&[0; 60]), identity(&ints(0..16))];
    let mut asked = tonic::Request::new(futures_util::stream::iter(requests));
    asked.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    served.run(async {
        let stream = client.model_stream_infer(asked).await.unwrap();
        let answers: Vec<_> = stream.into_inner().collect().await;
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[1].as_ref().unwrap_err().code(), Code::InvalidArgument);
    });
}

#[test]
fn answers_are_compressed_as_their_requests_are() {
    let served = Served::new();
    for encoding in [None, Some(CompressionEncoding::Gzip), Some(CompressionEncoding::Deflate)] {
        let mut client = served.client();
        for takes in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
            client = client.accept_compressed(takes);
        }
        client =
            encoding.into_iter().fold(client, |client, encoding| client.send_compressed(encoding));
        let inputs = vec![input("INPUT0", "INT32", &[1, 100_000])];
        let asked = request("identity_int32", inputs, &[&[5; 400_000]]);
        let answer = served.run(client.model_infer(asked)).unwrap();
        let is_compressed = answer.metadata().get("grpc-encoding").is_some();
        assert_eq!(is_compressed, encoding.is_some());
        assert_eq!(answer.into_inner().raw_output_contents, [&[5u8; 400_000][..]]);
    }
}

#[test]
fn a_tensor_of_64_mib_comes_back() {
    let served = Served::new();
    let bytes: Vec<u8> = (0..64u32 << 18).flat_map(u32::to_le_bytes).collect();
    let inputs = vec![input("INPUT0", "UINT32", &[1, 64 << 18])];
    let answer = served.infer(request("identity_uint32", inputs, &[&bytes])).unwrap();
    assert!(answer.raw_output_contents == [&bytes[..]]);
}

#[test]
fn a_unix_socket_serves_too() {
    let path = std::env::temp_dir().join(unique_name());
    let front = models::add_all(Front::builder()).build().unwrap();
    let mut server = Server::new(front);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        server.listen_unix(Protocol::Grpc, &path).unwrap();
        let serving = tokio::spawn(server.serve(std::future::pending()));
        let to = format!("unix://{}", path.display());
        let channel = Endpoint::from_shared(to).unwrap().connect().await.unwrap();
        let answer = Client::new(channel).model_infer(simple(&ints(0..16), &ints(0..16))).await;
        assert_eq!(answer.unwrap().into_inner().raw_output_contents[1], [0u8; 64][..]);
        serving.abort();
    });
    drop(runtime);
    assert!(!path.exists(), "the file goes with the server");
}

#[test]
fn an_applications_own_server_serves_it_beside_others() {
    let front = models::add_all(Front::builder()).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = served_by_tonic(&front).await;
        let answer =
            Client::new(channel.clone()).model_infer(identity(&ints(0..16))).await.unwrap();
        assert_eq!(answer.into_inner().raw_output_contents, [&ints(0..16)[..]]);
        let mut health = crate::grpc_served::health::health_client::HealthClient::new(channel);
        let asked = crate::grpc_served::health::HealthCheckRequest::default();
        assert_eq!(health.check(asked).await.unwrap().into_inner().status, 1);
    });
}

#[test]
fn an_object_that_was_unlinked_stays_and_a_truncated_one_fails_its_requests() {
    for in_place in [false, true] {
        if in_place {
            slipring::region::SigbusGuard::install().unwrap();
        }
        let served = Served::with(|builder| builder.in_place(in_place));
        let object = served.region("r", 1 << 20);
        let path = format!("/dev/shm{}", object.key());
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let window = window("r", 0, 1 << 20);
        let mut asked =
            request("identity_uint8", vec![input("INPUT0", "UINT8", &[1, 1 << 20])], &[]);
        asked.inputs[0].parameters = window.clone();
        assert!(served.infer(asked.clone()).is_ok());
        file.set_len(4096).unwrap();
        let refused = served.infer(asked.clone()).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        asked.inputs[0].parameters.clear();
        asked.raw_input_contents = vec![vec![1; 1 << 20].into()];
        asked.outputs = vec![output("OUTPUT0")];
        asked.outputs[0].parameters = window;
        assert_eq!(served.infer(asked).unwrap_err().code(), Code::InvalidArgument);
        file.set_len(1 << 20).unwrap();
        assert!(served.infer(identity(&ints(0..16))).is_ok());
    }
}

#[test]
fn a_tensor_is_copied_from_region_to_region_unless_either_is_truncated() {
    const LEN: usize = 1 << 20;
    let served = Served::new();
    let (from, to) = (served.region("from", LEN as u64), served.region("to", LEN as u64 + 99));
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
    from.write_at(0, &bytes).unwrap();
    let mut asked =
        request("identity_uint8", vec![input("INPUT0", "UINT8", &[1, LEN as i64])], &[]);
    asked.inputs[0].parameters = window("from", 0, LEN as i64);
    asked.outputs = vec![output("OUTPUT0")];
    asked.outputs[0].parameters = window("to", 99, LEN as i64);
    served.infer(asked.clone()).unwrap();
    let mut room = vec![1; LEN + 99];
    to.read_at(0, &mut room).unwrap();
    assert!(room[..99] == [0; 99] && room[99..] == bytes);
    for (name, object, len) in [("to", &to, LEN + 99), ("from", &from, LEN)] {
        let path = format!("/dev/shm{}", object.key());
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        for left in [0, 4096, 100_000, len as u64 - 1] {
            file.set_len(left).unwrap();
            let refused = served.infer(asked.clone()).unwrap_err();
            let text = format!("shared memory region '{name}' has become shorter");
            assert!(refused.message().starts_with(&text), "{left}: {refused}");
        }
        file.set_len(len as u64).unwrap();
        served.infer(asked.clone()).unwrap();
    }
    // Overlapping windows of one region.
    from.write_at(0, &bytes).unwrap();
    asked.inputs[0].shape[1] = 100_000;
    asked.inputs[0].parameters = window("from", 0, 100_000);
    asked.outputs[0].parameters = window("from", 50_001, 100_000);
    served.infer(asked).unwrap();
    let mut room = vec![1; LEN];
    from.read_at(0, &mut room).unwrap();
    let mut expected = bytes;
    expected.copy_within(..100_000, 50_001);
    assert!(room == expected);
}
