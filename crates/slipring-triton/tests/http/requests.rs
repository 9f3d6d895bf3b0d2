//! The endpoints of HTTP, and tensors from and to every place.

use std::io::{Read, Write};
use std::time::Duration;

use crate::http_served::{SIMPLE, Served, ints, models, request, simple_json, tensor, window};
use crate::support::unique_name;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use slipring::DType;
use slipring::region::{PosixShm, Registry, Source};
use slipring_triton::{
    Front, Inputs, Limits, Model, ModelError, ModelMetadata, Outputs, Protocol, Server, TensorSpec,
};

#[test]
fn the_server_and_its_models_tell_what_they_are() {
    let served = Served::new();
    let server = served.get("/v2").ok();
    assert_eq!(server["name"], "slipring");
    for extension in [
        "system_shared_memory",
        "cuda_shared_memory",
        "binary_tensor_data",
        "classification",
        "statistics",
        "model_configuration",
    ] {
        assert!(
            server["extensions"].as_array().unwrap().contains(&extension.into()),
            "{extension}"
        );
    }
    for path in ["/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready"] {
        served.get(path).is_ok();
    }
    served.get("/v2/models/simple/versions/1/ready").is_ok();
    assert_eq!(served.get("/v2/models/none/ready").status, 400);
    assert_eq!(served.get("/v2/models/simple/versions/9/ready").status, 400);

    let model = served.get("/v2/models/simple").ok();
    assert_eq!(model["versions"], serde_json::json!(["1"]));
    let input = serde_json::json!({"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]});
    assert_eq!(model["inputs"][0], input);
    assert_eq!(model, served.get("/v2/models/simple/versions/1").ok());
    let one = served.get("/v2/models/identity_2d_fp32").ok();
    assert_eq!(one["inputs"][0]["shape"], serde_json::json!([-1, -1]));

    let config = served.get("/v2/models/simple/config").ok();
    assert_eq!(config["max_batch_size"], 8);
    let input = serde_json::json!({"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [16]});
    assert_eq!(config["input"][0], input);
    assert_eq!(served.get("/v2/models/identity_1d_fp32/config").ok()["max_batch_size"], 0);
    for (name, is) in [("simple", false), ("repeat_int32", true)] {
        let config = served.get(&format!("/v2/models/{name}/config")).ok();
        assert_eq!(config["model_transaction_policy"]["decoupled"], is, "{name}");
    }

    let index = served.post("/v2/repository/index", "").ok();
    let simple = index.as_array().unwrap().iter().find(|entry| entry["name"] == "simple").unwrap();
    assert_eq!((&simple["version"], &simple["state"]), (&"1".into(), &"READY".into()));
    assert_eq!(served.post("/v2/repository/index", r#"{"ready":true}"#).ok(), index);
    assert_eq!(index.as_array().unwrap().len(), 10 + 14);
}

#[test]
fn paths_match_whole_and_queries_are_passed_over() {
    let served = Served::new();
    let mut client = served.client();
    assert_eq!(client.call("GET", "/v2?x=/v2/health", "").status, 200);
    for path in ["/", "/v2/", "/v3", "/v2/models", "/v2/models/simple/", "/v2/health/live/x"] {
        client.call("GET", path, "").is_error(404, "Not Found");
    }
    for (method, path) in [
        ("POST", "/v2"),
        ("POST", "/v2/models/simple"),
        ("GET", SIMPLE),
        ("PUT", SIMPLE),
        ("DELETE", "/v2/health/live"),
        ("GET", "/v2/repository/index"),
        ("POST", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/systemsharedmemory/region/r/register"),
        ("GET", "/v2/cudasharedmemory/unregister"),
    ] {
        client.call(method, path, "").is_error(405, "Method Not Allowed");
    }
}

#[test]
fn statistics_count() {
    let served = Served::new();
    let mut client = served.client();
    let of = |path: &str| served.get(path).ok()["model_stats"].clone();
    assert_eq!(of("/v2/models/simple/stats")[0]["execution_count"], 0);
    for _ in 0..3 {
        client.call("POST", SIMPLE, &request(&simple_json(), &[])).ok();
    }
    client.call("POST", SIMPLE, &request(&simple_json()[..1], &[])).has_error(400, "expected 2");
    let batch = |name| tensor(name, "INT32", "[5,16]", r#""parameters":{"binary_data_size":320}"#);
    let two = request(&[batch("INPUT0"), batch("INPUT1")], &[]);
    client.infer("simple", &two, &[0; 640]).ok();

    let stats = &of("/v2/models/simple/versions/1/stats")[0];
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&8.into(), &4.into()));
    let inference = &stats["inference_stats"];
    assert_eq!(inference["success"]["count"], 4);
    assert_eq!(inference["fail"]["count"], 0, "a refused request has not failed");
    assert!(inference["success"]["ns"].as_u64().unwrap() > 0);
    assert!(inference["compute_infer"]["ns"].as_u64().unwrap() > 0);
    assert!(stats["last_inference"].as_u64().unwrap() > 1_700_000_000_000);
    let sizes: Vec<_> = stats["batch_stats"].as_array().unwrap().iter().collect();
    assert_eq!((sizes.len(), &sizes[1]["batch_size"]), (2, &5.into()));
    assert_eq!(of("/v2/models/stats").as_array().unwrap().len(), 10 + 14);
    served.get("/v2/models/none/stats").has_error(404, "unknown model");
}

#[test]
fn json_in_and_out() {
    let served = Served::new();
    let [x, y] = simple_json();
    let answer = served.post(SIMPLE, &format!(r#"{{"id":"é\"7","inputs":[{y},{x}]}}"#));
    let json = answer.ok();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("inference-header-content-length"), None);
    assert_eq!((&json["id"], &json["model_name"]), (&"é\"7".into(), &"simple".into()));
    assert_eq!(json["model_version"], "1");
    assert_eq!(json["outputs"][0]["name"], "OUTPUT0");
    assert_eq!(json["outputs"][0]["shape"], serde_json::json!([1, 16]));
    let sums: Vec<i32> = (0..16).map(|at| 100 + 2 * at).collect();
    assert_eq!(json["outputs"][0]["data"], serde_json::json!(sums));
    assert_eq!(json["outputs"][1]["data"], serde_json::json!(vec![-100; 16]));
    // A request without an id has a response without one.
    assert!(served.post(SIMPLE, &request(&simple_json(), &[])).ok().get("id").is_none());
    // One output of one version.
    let one = request(&simple_json(), &[r#"{"name":"OUTPUT1"}"#.into()]);
    let json = served.post("/v2/models/simple/versions/1/infer", &one).ok();
    assert_eq!(json["outputs"].as_array().unwrap().len(), 1);
}

#[test]
fn binary_in_and_out_in_every_combination() {
    let served = Served::new();
    let mut client = served.client();
    let binary = |name| tensor(name, "INT32", "[1,16]", r#""parameters":{"binary_data_size":64}"#);
    let [x, y] = simple_json();
    let output = |name: &str, binary: Option<bool>| match binary {
        Some(binary) => format!(r#"{{"name":"{name}","parameters":{{"binary_data":{binary}}}}}"#),
        None => format!(r#"{{"name":"{name}"}}"#),
    };
    let sources: [(&[String], Vec<u8>); 4] = [
        (&[binary("INPUT0"), binary("INPUT1")], [ints(0..16), ints(100..116)].concat()),
        (&[binary("INPUT1"), binary("INPUT0")], [ints(100..116), ints(0..16)].concat()),
        (&[x, binary("INPUT1")], ints(100..116)),
        (&[binary("INPUT0"), y], ints(0..16)),
    ];
    let sums: Vec<u8> = (0..16i32).flat_map(|at| (100 + 2 * at).to_le_bytes()).collect();
    let differences = (-100i32).to_le_bytes().repeat(16);
    for (inputs, tail) in &sources {
        let inputs = inputs.join(",");
        for all in [
            "",
            r#""parameters":{"binary_data_output":true},"#,
            r#""parameters":{"binary_data_output":false},"#,
        ] {
            for first in [None, Some(true), Some(false)] {
                for second in [None, Some(true), Some(false)] {
                    // The second output before the first: the tail follows the order of the request.
                    let outputs = [output("OUTPUT1", second), output("OUTPUT0", first)].join(",");
                    let json = format!(r#"{{{all}"inputs":[{inputs}],"outputs":[{outputs}]}}"#);
                    let answer = client.infer("simple", &json, tail);
                    let head = answer.ok();
                    let is = |asked: Option<bool>| asked.unwrap_or(all.contains("true"));
                    let mut expected = Vec::new();
                    for (at, asked, bytes) in [(0, second, &differences), (1, first, &sums)] {
                        let output = &head["outputs"][at];
                        assert_eq!(output.get("data").is_none(), is(asked), "{json}");
                        if is(asked) {
                            assert_eq!(output["parameters"]["binary_data_size"], 64);
                            expected.extend_from_slice(bytes);
                        }
                    }
                    if expected.is_empty() {
                        assert_eq!(answer.header("inference-header-content-length"), None);
                    } else {
                        assert_eq!(answer.tail(), expected, "{json}");
                        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
                    }
                }
            }
        }
    }
    // All outputs, none of them named.
    let json = format!(
        r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{}]}}"#,
        sources[0].0.join(",")
    );
    assert_eq!(client.infer("simple", &json, &sources[0].1).tail(), [sums, differences].concat());
}

#[test]
fn every_type_comes_back_byte_for_byte() {
    let served = Served::new();
    let mut client = served.client();
    for dtype in slipring_triton::DTYPES {
        let model = format!("identity_{}", dtype.name().to_lowercase());
        let bytes: Vec<u8> = match dtype {
            DType::Bytes => b"\x03\0\0\0\xff\0z\0\0\0\0\x01\0\0\0a".to_vec(),
            DType::Bool => vec![1, 0, 1],
            _ => (0..3 * dtype.size().unwrap()).map(|at| (at * 37 + 129) as u8).collect(),
        };
        let size = format!(r#""parameters":{{"binary_data_size":{}}}"#, bytes.len());
        let inputs = [tensor("INPUT0", dtype.name(), "[1,3]", &size)];
        let outputs = [r#"{"name":"OUTPUT0","parameters":{"binary_data":true}}"#.to_owned()];
        let answer = client.infer(&model, &request(&inputs, &outputs), &bytes);
        assert_eq!(answer.ok()["outputs"][0]["datatype"], dtype.name());
        assert_eq!(answer.tail(), bytes, "{dtype}");

        let object = served.region(&model, 200);
        object.write_at(3, &bytes).unwrap();
        let len = bytes.len() as u64;
        let inputs = [tensor("INPUT0", dtype.name(), "[1,3]", &window(&model, 3, len))];
        let outputs = [format!(r#"{{"name":"OUTPUT0",{}}}"#, window(&model, 101, len + 7))];
        let json = client.infer(&model, &request(&inputs, &outputs), b"").ok();
        let output =
            serde_json::json!({"name": "OUTPUT0", "datatype": dtype.name(), "shape": [1, 3]});
        assert_eq!(json["outputs"][0], output);
        let mut back = vec![0; bytes.len() + 7];
        object.read_at(101, &mut back).unwrap();
        assert_eq!(back, [&bytes[..], &[0; 7]].concat(), "{dtype}");
    }
}

#[test]
fn shared_memory_mixes_with_json_and_binary() {
    let served = Served::new();
    let mut client = served.client();
    let object = served.region("mixed", 256);
    object.write_at(0, &ints(0..16)).unwrap();
    let shared = tensor("INPUT0", "INT32", "[1,16]", &window("mixed", 0, 64));
    let [_, y] = simple_json();
    let json = client.call("POST", SIMPLE, &request(&[shared.clone(), y], &[])).ok();
    assert_eq!(json["outputs"][0]["data"][15], 130);
    let binary = tensor("INPUT1", "INT32", "[1,16]", r#""parameters":{"binary_data_size":64}"#);
    let outputs = [
        format!(r#"{{"name":"OUTPUT0",{}}}"#, window("mixed", 64, 64)),
        r#"{"name":"OUTPUT1","parameters":{"binary_data":true}}"#.to_owned(),
    ];
    let answer = client.infer("simple", &request(&[shared, binary], &outputs), &ints(100..116));
    assert!(answer.ok()["outputs"][0].get("parameters").is_none());
    assert_eq!(answer.tail(), (-100i32).to_le_bytes().repeat(16));
    let mut sum = [0; 4];
    object.read_at(124, &mut sum).unwrap();
    assert_eq!(i32::from_le_bytes(sum), 130);
}

#[test]
fn an_output_of_no_bytes_needs_no_tail() {
    let served = Served::new();
    let input = tensor("INPUT0", "FP32", "[0]", r#""parameters":{"binary_data_size":0}"#);
    let outputs = [r#"{"name":"OUTPUT0","parameters":{"binary_data":true}}"#.to_owned()];
    let answer = served.client().infer("identity_1d_fp32", &request(&[input], &outputs), b"");
    assert_eq!(answer.header("inference-header-content-length"), None);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.ok()["outputs"][0]["parameters"]["binary_data_size"], 0);
}

#[test]
fn a_raw_request_is_its_tensor() {
    let served = Served::new();
    let mut client = served.client();
    let raw = "Inference-Header-Content-Length: 0\r\n";
    let bytes = ints(0..16);
    for (model, shape) in [
        ("identity_fp32", serde_json::json!([1, 16])),
        ("identity_1d_fp32", serde_json::json!([16])),
    ] {
        let path = format!("/v2/models/{model}/infer");
        let answer = client.call_with("POST", &path, raw, &bytes);
        assert_eq!(answer.ok()["outputs"][0]["shape"], shape);
        assert_eq!(answer.tail(), bytes);
        let answer = client.call_chunked(&path, raw, &[&bytes[..3], &bytes[3..40], &bytes[40..]]);
        assert_eq!(answer.tail(), bytes);
    }
    let answer = client.call_with("POST", "/v2/models/identity_scalar_bytes/infer", raw, b"hello");
    assert_eq!(answer.tail(), b"\x05\0\0\0hello");
}

#[test]
fn strings_and_small_integers_are_computed_on() {
    let served = Served::new();
    let data = |of: fn(i32) -> String| {
        let numbers: Vec<String> = (0..16).map(of).collect();
        format!(r#""data":[{}]"#, numbers.join(","))
    };
    let inputs = |dtype: &str, x: String, y: String| {
        [tensor("INPUT0", dtype, "[1,16]", &x), tensor("INPUT1", dtype, "[1,16]", &y)]
    };
    let strings = inputs("BYTES", data(|at| format!("\"{at}\"")), data(|_| "\"1\"".to_owned()));
    let json = served.post("/v2/models/simple_string/infer", &request(&strings, &[])).ok();
    assert_eq!(json["outputs"][0]["data"][15], "16");
    assert_eq!(json["outputs"][1]["data"][0], "-1");
    let bytes = inputs("INT8", data(|at| at.to_string()), data(|_| "1".to_owned()));
    let json = served.post("/v2/models/simple_int8/infer", &request(&bytes, &[])).ok();
    assert_eq!(json["outputs"][1]["data"][0], -1);
    let words = inputs("BYTES", data(|_| "\"x\"".to_owned()), data(|_| "\"1\"".to_owned()));
    let answer = served.post("/v2/models/simple_string/infer", &request(&words, &[]));
    answer.is_error(400, "INPUT0 is no decimal number");
}

#[test]
fn numbers_that_are_none_travel_as_bare_words() {
    let served = Served::new();
    let input = tensor("INPUT0", "FP64", "[1,4]", r#""data":[NaN,Infinity,-Infinity,1]"#);
    let answer = served.post("/v2/models/identity_fp64/infer", &request(&[input], &[]));
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains(r#""data":[NaN,Infinity,-Infinity,1.0]"#), "{}", answer.text());
}

#[test]
fn bodies_are_compressed_both_ways() {
    let served = Served::new();
    let mut client = served.client();
    let binary = |name| tensor(name, "INT32", "[1,16]", r#""parameters":{"binary_data_size":64}"#);
    let json = format!(
        r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{},{}]}}"#,
        binary("INPUT0"),
        binary("INPUT1")
    );
    let plain = [json.as_bytes(), &ints(0..16), &ints(100..116)].concat();
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&plain).unwrap();
    let mut deflate = ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    deflate.write_all(&plain).unwrap();
    let expected = client.infer("simple", &json, &plain[json.len()..]);
    // The length is that of the plain JSON.
    let length = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    for (name, body) in [("gzip", gzip.finish().unwrap()), ("deflate", deflate.finish().unwrap())] {
        let headers = format!("{length}Content-Encoding: {name}\r\nAccept-Encoding: {name}\r\n");
        let mut answer = client.call_with("POST", SIMPLE, &headers, &body);
        assert_eq!((answer.status, answer.header("content-encoding")), (200, Some(name)));
        let mut plain = Vec::new();
        match name {
            "gzip" => GzDecoder::new(&answer.body[..]).read_to_end(&mut plain).unwrap(),
            _ => ZlibDecoder::new(&answer.body[..]).read_to_end(&mut plain).unwrap(),
        };
        answer.body = plain;
        assert_eq!(answer.tail(), expected.tail());
        assert_eq!(answer.json(), expected.json());
    }
    let headers = "Content-Encoding: br\r\n";
    client.call_with("POST", SIMPLE, headers, b"x").has_error(501, "Content-Encoding");
    // The connection is in step.
    client.infer("simple", &json, &plain[json.len()..]).ok();
}

#[test]
fn chunks_may_end_anywhere() {
    let served = Served::new();
    let mut client = served.client();
    let binary = |name| tensor(name, "INT32", "[1,16]", r#""parameters":{"binary_data_size":64}"#);
    let json = request(&[binary("INPUT0"), binary("INPUT1")], &[]);
    let body = [json.as_bytes(), &ints(0..16), &ints(100..116)].concat();
    let length = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    let expected = client.infer("simple", &json, &body[json.len()..]).ok();
    for size in [1, 7, 63, json.len(), json.len() + 64, body.len()] {
        let pieces: Vec<&[u8]> = body.chunks(size).collect();
        assert_eq!(client.call_chunked(SIMPLE, &length, &pieces).ok(), expected, "by {size}");
    }
    let json = request(&simple_json(), &[]);
    let pieces: Vec<&[u8]> = json.as_bytes().chunks(5).collect();
    assert_eq!(client.call_chunked(SIMPLE, "", &pieces).ok(), expected);
}

#[test]
fn long_tensors_come_back_inline_and_by_region() {
    let served = Served::new();
    let mut client = served.client();
    let count: u64 = 4 << 20;
    let bytes: Vec<u8> =
        (0..count as u32).flat_map(|at| (at.wrapping_mul(2654435761)).to_le_bytes()).collect();
    let shape = format!("[1,{count}]");
    let size = format!(r#""parameters":{{"binary_data_size":{}}}"#, bytes.len());
    let outputs = [r#"{"name":"OUTPUT0","parameters":{"binary_data":true}}"#.to_owned()];
    let json = request(&[tensor("INPUT0", "FP32", &shape, &size)], &outputs);
    assert!(client.infer("identity_fp32", &json, &bytes).tail() == bytes);
    let len = bytes.len() as u64;
    let object = served.region("long", 2 * len);
    object.write_at(0, &bytes).unwrap();
    let outputs = [format!(r#"{{"name":"OUTPUT0",{}}}"#, window("long", len, len))];
    let json = request(&[tensor("INPUT0", "FP32", &shape, &window("long", 0, len))], &outputs);
    client.call("POST", "/v2/models/identity_fp32/infer", &json).ok();
    let mut back = vec![0; bytes.len()];
    object.read_at(len, &mut back).unwrap();
    assert!(back == bytes);
}

#[test]
fn several_tensors_keep_their_places() {
    let served = Served::new();
    let input =
        |at: usize| tensor(&format!("INPUT{at}"), "FP32", "[1,1]", &format!(r#""data":[{at}]"#));
    let inputs = [input(2), input(0), input(1)];
    let json = served.post("/v2/models/identity_multi_fp32/infer", &request(&inputs, &[])).ok();
    for at in 0..3 {
        assert_eq!(json["outputs"][at]["name"], format!("OUTPUT{at}"));
        assert_eq!(json["outputs"][at]["data"][0], at as f64);
    }
}

#[test]
fn a_native_region_is_the_clients_too_and_stays_ours() {
    let registry = Registry::new().unwrap();
    let served = Served::with(|builder| builder.registry(registry.clone()));
    let object = PosixShm::create(&format!("/{}", unique_name()), 4096).unwrap();
    object.write_at(0, &ints(0..16)).unwrap();
    registry.register("native", Source::Memfd(std::os::fd::AsFd::as_fd(&object)), 0, 4096).unwrap();
    let outputs = [format!(r#"{{"name":"OUTPUT0",{}}}"#, window("native", 128, 64))];
    let input = tensor("INPUT0", "INT32", "[1,16]", &window("native", 0, 64));
    served.post("/v2/models/identity_int32/infer", &request(&[input], &outputs)).ok();
    let lease = registry.lease("native", 128, 64).unwrap();
    let mut bytes = [0; 64];
    lease.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes[..], ints(0..16));
    // Clients neither see nor unregister regions other than POSIX ones.
    assert_eq!(served.get("/v2/systemsharedmemory/status").ok(), serde_json::json!([]));
    let status = served.get("/v2/systemsharedmemory/region/native/status");
    status.is_error(404, "Unable to find system shared memory region: 'native'");
    served.post("/v2/systemsharedmemory/region/native/unregister", "").is_ok();
    served.post("/v2/systemsharedmemory/unregister", "").is_ok();
    assert!(registry.status("native").is_ok());
    // The process finds a client's region.
    let _theirs = served.region("theirs", 100);
    assert_eq!(registry.status("theirs").unwrap().len, 100);
}

#[test]
fn it_listens_on_unix_sockets_and_inside_of_other_applications() {
    let path = std::env::temp_dir().join(unique_name());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let front = models::add_all(Front::builder()).build().unwrap();
    let application = axum::Router::new()
        .route("/own", axum::routing::get(|| async { "own" }))
        .merge(slipring_triton::http_router(front.clone()));
    let call = |path: &str| {
        let request = axum::http::Request::builder().uri(path).body(axum::body::Body::empty());
        let answer = tower::ServiceExt::oneshot(application.clone(), request.unwrap());
        runtime.block_on(answer).unwrap().status()
    };
    assert_eq!(
        (call("/own"), call("/v2"), call("/v2/models/simple")),
        (200.try_into().unwrap(), 200.try_into().unwrap(), 200.try_into().unwrap())
    );
    assert_eq!((call("/v2/x"), call("/x")), (404.try_into().unwrap(), 404.try_into().unwrap()));

    let mut server = Server::new(front);
    let _guard = runtime.enter();
    server.listen_unix(Protocol::Http, &path).unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let answer = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
            stream
                .write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            drop(end);
            answer
        });
        runtime.block_on(server.serve(async { drop(ended.await) })).unwrap();
        client.join().unwrap()
    });
    assert!(!path.exists(), "the file goes with the server");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

struct Broken(ModelMetadata);

impl Model for Broken {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn is_ready(&self) -> bool {
        self.0.name() != "late"
    }

    fn infer(&self, inputs: &Inputs, _: &mut Outputs) -> Result<(), ModelError> {
        match inputs.input("I")?.elements::<i32>()?[..] {
            [0] => panic!("a model that panics"),
            [1] => Err(ModelError::unavailable("later")),
            [2] => Err(slipring::Error::from(slipring::ErrorKind::LinkClosed))?,
            _ => Ok(()),
        }
    }
}

impl Broken {
    fn new(name: &str, inline: bool) -> Self {
        let metadata = ModelMetadata::new(name)
            .versions([2, 1])
            .input(TensorSpec::new("I", DType::Int32, [None]))
            .output(TensorSpec::new("O", DType::Int32, [None]));
        Self(if inline { metadata.inline() } else { metadata })
    }
}

#[test]
fn a_model_that_fails_ends_its_request_alone() {
    let models = |builder: slipring_triton::FrontBuilder| {
        builder
            .model(Broken::new("inline", true))
            .model(Broken::new("apart", false))
            .model(Broken::new("late", true))
    };
    let served = Served::with(models);
    let mut client = served.client();
    for model in ["inline", "apart"] {
        let mut call = |number: i32| {
            let data = format!(r#""data":[{number}]"#);
            let input = [tensor("I", "INT32", "[1]", &data)];
            client.call("POST", &format!("/v2/models/{model}/infer"), &request(&input, &[]))
        };
        call(0).is_error(500, &format!("model '{model}' failed"));
        call(1).is_error(503, "later");
        call(2).is_error(500, "the model failed");
        call(3).is_error(500, &format!("model '{model}' has not produced output 'O'"));
    }
    served
        .post("/v2/models/late/infer", r#"{"inputs":[]}"#)
        .is_error(503, "Model 'late' is not ready");
    assert_eq!(served.get("/v2/models/late/ready").status, 400);
    let index = served.post("/v2/repository/index", r#"{"ready":true}"#).ok();
    assert!(!index.to_string().contains("late"));
    let all = served.post("/v2/repository/index", "").ok();
    assert!(all.to_string().contains("UNAVAILABLE"));
    // The newest version is the default.
    let versions = served.get("/v2/models/inline").ok()["versions"].clone();
    assert_eq!(versions, serde_json::json!(["1", "2"]));
}

#[test]
fn requests_under_way_are_answered_when_the_server_ends() {
    let served = Served::new();
    let mut client = served.client();
    let input = [tensor("INPUT0", "INT32", "[1,1]", r#""data":[7]"#)];
    client.start(
        "POST",
        "/v2/models/identity_slow_int32/infer",
        "",
        request(&input, &[]).as_bytes(),
    );
    assert!(client.is_silent(Duration::from_millis(300)));
    drop(served);
    assert_eq!(client.answer().ok()["outputs"][0]["data"][0], 7);
    assert!(client.try_answer().is_none());
}

#[test]
fn connections_beyond_the_limit_wait() {
    let served = Served::with(|builder| builder.limits(Limits::new().connections(1)));
    let mut first = served.client();
    first.call("GET", "/v2", "").ok();
    let mut second = served.client();
    second.start("GET", "/v2", "", b"");
    assert!(second.is_silent(Duration::from_millis(200)));
    drop(first);
    second.answer().ok();
}
