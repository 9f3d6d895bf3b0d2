//! Equal answers of both protocols, and the parts of HTTP and HTTP/2 outside of the protocol.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::grpc_served::health::HealthCheckRequest;
use crate::grpc_served::inference::*;
use crate::http_served::{SIMPLE, Served, request, simple_json, tensor, window};
use slipring::DType;
use slipring_triton::{
    BuildError, Front, FrontBuilder, Inputs, Model, ModelError, ModelMetadata, Outputs, Parameter,
    Protocol, Server, TensorSpec,
};

/// A model with a switch for its readiness and a count of its calls. It copies `I` to two outputs of the same type.
struct Counted {
    metadata: ModelMetadata,
    ready: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
}

impl Counted {
    fn add(builder: FrontBuilder, name: &str, dtype: DType) -> (FrontBuilder, Self) {
        let spec = |name| TensorSpec::new(name, dtype, [None]);
        let metadata =
            ModelMetadata::new(name).input(spec("I")).output(spec("O")).output(spec("P"));
        let ready = Arc::new(AtomicBool::new(true));
        let calls = Arc::new(AtomicUsize::new(0));
        let it = |metadata| Self { metadata, ready: ready.clone(), calls: calls.clone() };
        (builder.model(it(metadata.clone())), it(metadata))
    }
}

impl Model for Counted {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let input = inputs.input("I")?;
        for name in ["O", "P"] {
            outputs.output(name, *input.shape())?.copy_from(&input)?;
        }
        Ok(())
    }
}

#[test]
fn a_server_is_ready_when_all_its_models_are() {
    let (builder, late) = Counted::add(Front::builder(), "late", DType::Int8);
    let front = builder.build().unwrap();
    let (http, grpc) = (Served::of(front.clone()), crate::grpc_served::Served::of(front));
    for is_ready in [false, true] {
        late.ready.store(is_ready, Ordering::Relaxed);
        http.get("/v2/health/live").is_ok();
        let answer = http.get("/v2/health/ready");
        assert_eq!((answer.status, answer.text()), (if is_ready { 200 } else { 400 }, ""));
        let (mut client, mut health) = (grpc.client(), grpc.health());
        grpc.run(async {
            let answer = client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner();
            assert_eq!(answer.ready, is_ready);
            let answer = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
            assert_eq!(answer.status, if is_ready { 1 } else { 2 });
        });
    }
}

#[test]
fn what_json_cannot_tell_is_refused_before_the_model_runs() {
    let (builder, half) = Counted::add(Front::builder(), "half", DType::Fp16);
    let served = Served::of(builder.build().unwrap());
    let object = served.region("r", 64);
    object.write_at(0, &[7; 32]).unwrap();
    let input = [tensor("I", "FP16", "[4]", &window("r", 0, 8))];
    let path = "/v2/models/half/infer";
    let output = |name: &str, binary: bool| {
        format!(r#"{{"name":"{name}","parameters":{{"binary_data":{binary}}}}}"#)
    };
    let shared = format!(r#"{{"name":"P",{}}}"#, window("r", 32, 8));
    let text = "sending FP16 data via JSON is not supported. Please use the binary data format for output O";
    served.post(path, &request(&input, &[])).is_error(400, text);
    served.post(path, &request(&input, &[shared.clone(), output("O", false)])).is_error(400, text);
    assert_eq!(half.calls.load(Ordering::Relaxed), 0);
    let mut back = [0; 8];
    object.read_at(32, &mut back).unwrap();
    assert_eq!(back, [0; 8]);
    served.post(path, &request(&input, &[shared, output("O", true)])).ok();
    object.read_at(32, &mut back).unwrap();
    assert_eq!(back, [7; 8]);
}

#[test]
fn both_wires_tell_the_same_of_a_model() {
    let (builder, _) = Counted::add(Front::builder(), "one", DType::Int8);
    let http = Served::of(builder.build().unwrap());
    let config = http.get("/v2/models/one/config").ok();
    assert_eq!(config["backend"], "slipring");
    assert_eq!(config["version_policy"]["latest"]["num_versions"], 1);
    let grpc = crate::grpc_served::Served::of(http.front.clone());
    let mut client = grpc.client();
    let asked = ModelConfigRequest { name: "one".to_owned(), ..Default::default() };
    let answer = grpc.run(client.model_config(asked)).unwrap().into_inner().config.unwrap();
    assert_eq!((&*answer.backend, &*answer.platform), ("slipring", "slipring"));
    let policy = answer.version_policy.unwrap().policy_choice.unwrap();
    let latest = model_version_policy::PolicyChoice::Latest(model_version_policy::Latest {
        num_versions: 1,
    });
    assert_eq!(policy, latest);
}

#[test]
fn of_two_of_one_name_the_first_counts_everywhere() {
    let served = Served::new();
    let object = served.region("r", 64);
    object.write_at(0, &[1; 64]).unwrap();
    let input = |parameters: &str| tensor("INPUT0", "INT32", "[1,1]", parameters);
    let path = "/v2/models/identity_int32/infer";
    let one = input(r#""data":[7]"#);
    for (all, binary) in [
        (
            r#""parameters":{"binary_data_output":true},"parameters":{"binary_data_output":false}"#,
            true,
        ),
        (r#""parameters":{"binary_data_output":false,"binary_data_output":true}"#, false),
    ] {
        let answer = served.post(path, &format!(r#"{{{all},"inputs":[{one}]}}"#));
        answer.ok();
        assert_eq!(answer.header("inference-header-content-length").is_some(), binary);
    }
    let twice = input(
        r#""parameters":{"shared_memory_region":"r","shared_memory_byte_size":4,"shared_memory_byte_size":8,"shared_memory_region":"none","shared_memory_offset":60,"shared_memory_offset":64}"#,
    );
    let answer = served.post(path, &request(&[twice], &[])).ok();
    assert_eq!(answer["outputs"][0]["data"][0], 0x0101_0101);
}

#[test]
fn who_expects_to_be_refused_sends_nothing() {
    let served = Served::new();
    for path in ["/nowhere", "/v2/models/none/infer"] {
        let mut client = served.client();
        let head = "POST PATH HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n";
        client.send(head.replace("PATH", path).as_bytes());
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));
        assert!(client.try_answer().is_none());
    }
    let mut client = served.client();
    let body = request(&simple_json(), &[]);
    let head = format!(
        "POST {SIMPLE} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    );
    client.send(head.as_bytes());
    assert_eq!(client.answer().status, 100);
    client.send(body.as_bytes());
    client.answer().ok();
}

#[test]
fn web_pages_are_refused_unless_they_are_allowed() {
    let served = Served::new();
    let origin = "Origin: http://evil.example\r\nContent-Type: text/plain\r\n";
    let body = request(&simple_json(), &[]);
    let text = "requests of web pages are not served";
    let unregister = "/v2/systemsharedmemory/unregister";
    for (method, path) in
        [("POST", SIMPLE), ("POST", unregister), ("OPTIONS", SIMPLE), ("GET", "/v2")]
    {
        let answer = served.client().call_with(method, path, origin, body.as_bytes());
        answer.is_error(403, text);
    }
    let served = Served::with(|builder| builder.browsers(true));
    served.client().call_with("POST", SIMPLE, origin, body.as_bytes()).ok();
}

#[test]
fn versions_that_are_no_numbers_are_nowhere() {
    let served = Served::new();
    for version in ["x", "-1", "18446744073709551616"] {
        let path = format!("/v2/models/simple/versions/{version}");
        served.get(&path).is_error(404, "Not Found");
    }
    served.get("/v2/models/simple/versions/18446744073709551615").has_error(404, "is not found");
}

#[test]
fn what_is_no_grpc_is_refused_by_its_status() {
    use tonic::codegen::http::Request;
    use tower::ServiceExt;

    let served = crate::grpc_served::Served::new();
    for (method, kind, status) in [
        ("POST", "text/plain", 415),
        ("POST", "application/json", 415),
        ("GET", "application/grpc", 405),
        ("POST", "application/grpc+proto", 200),
    ] {
        let request = Request::builder().method(method).uri("/grpc.health.v1.Health/Check");
        let request = request.header("content-type", kind);
        let body = http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5]));
        let request = request.body(tonic::body::Body::new(body)).unwrap();
        let channel = served.channel();
        let answer = served.run(channel.oneshot(request)).unwrap();
        assert_eq!(answer.status().as_u16(), status, "{method} {kind}");
    }
}

/// A model that records version, id and parameters.
struct Told {
    metadata: ModelMetadata,
    told: Arc<Mutex<Vec<Said>>>,
}

type Said = (u64, Option<String>, BTreeMap<String, Parameter>);

impl Model for Told {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, inputs: &Inputs, _: &mut Outputs) -> Result<(), ModelError> {
        let id = inputs.id().map(str::to_owned);
        self.told.lock().unwrap().push((inputs.version(), id, inputs.parameters().clone()));
        Ok(())
    }
}

#[test]
fn a_model_is_told_version_id_and_parameters() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let metadata = ModelMetadata::new("told").versions([1, 3]);
    let model = Told { metadata, told: told.clone() };
    let front = Front::builder().model(model).build().unwrap();
    let (http, grpc) = (Served::of(front.clone()), crate::grpc_served::Served::of(front));
    let parameters = r#"{"binary_data_output":true,"b":true,"i":-7,"u":18446744073709551615,"d":1.5,"t":"x","t":"y"}"#;
    let body = format!(r#"{{"id":"seven","parameters":{parameters},"inputs":[]}}"#);
    http.post("/v2/models/told/versions/1/infer", &body).ok();
    http.post("/v2/models/told/infer", r#"{"inputs":[]}"#).ok();
    let choices = [
        ("b", infer_parameter::ParameterChoice::BoolParam(true)),
        ("i", infer_parameter::ParameterChoice::Int64Param(-7)),
        ("u", infer_parameter::ParameterChoice::Uint64Param(u64::MAX)),
        ("d", infer_parameter::ParameterChoice::DoubleParam(1.5)),
        ("t", infer_parameter::ParameterChoice::StringParam("x".to_owned())),
    ];
    let parameters =
        choices.map(|(name, choice)| (name.to_owned(), crate::grpc_served::parameter(choice)));
    let (model_version, id) = ("1".to_owned(), "seven".to_owned());
    let parameters = parameters.into();
    let request = ModelInferRequest {
        model_version,
        id,
        parameters,
        ..crate::grpc_served::request("told", vec![], &[])
    };
    grpc.infer(request).unwrap();
    let said = BTreeMap::from([
        ("b".to_owned(), Parameter::Bool(true)),
        ("i".to_owned(), Parameter::Int(-7)),
        ("u".to_owned(), Parameter::Uint(u64::MAX)),
        ("d".to_owned(), Parameter::Double(1.5)),
        ("t".to_owned(), Parameter::Text("x".to_owned())),
    ]);
    let full = (1, Some("seven".to_owned()), said);
    let wanted = [full.clone(), (3, None, BTreeMap::new()), full];
    assert_eq!(*told.lock().unwrap(), wanted);
    for value in ["{}", "[1]", "null"] {
        let body = format!(r#"{{"parameters":{{"x":{value}}},"inputs":[]}}"#);
        http.post("/v2/models/told/infer", &body).has_error(400, "parameter 'x' has invalid type");
    }
}

#[test]
fn a_front_of_models_that_cannot_be_called_is_not_built() {
    let built = |models: &[ModelMetadata]| {
        let told = Arc::default();
        let add = |builder: FrontBuilder, metadata: &ModelMetadata| {
            builder.model(Told { metadata: metadata.clone(), told: Arc::clone(&told) })
        };
        models.iter().fold(Front::builder(), add).build().map(|_| ())
    };
    let (m, x) = (ModelMetadata::new("m"), TensorSpec::new("x", DType::Int8, [None]));
    let nameless = TensorSpec::new("", DType::Int8, [None]);
    let fp8 = TensorSpec::new("x", DType::Fp8E5m2, [None]);
    for (models, name, wanted) in [
        (vec![m.clone(), m.clone()], "m", "a name of its own"),
        (vec![ModelMetadata::new("")], "", "a name"),
        (vec![m.clone().versions([])], "m", "a version"),
        (
            vec![m.clone().input(x.clone()).input(x.clone())],
            "m",
            "a name of its own for each input",
        ),
        (
            vec![m.clone().output(x.clone()).output(x.clone())],
            "m",
            "a name of its own for each output",
        ),
        (vec![m.clone().output(nameless)], "m", "a name of its own for each output"),
        (vec![m.clone().input(fp8)], "m", "data types of the KServe v2 protocol, which has no fp8"),
    ] {
        let error = built(&models).unwrap_err();
        assert_eq!(error.to_string(), format!("model '{name}' must have {wanted}"));
        assert!(matches!(error, BuildError::Model { model, .. } if model == name));
    }
    built(&[m.input(x.clone()).output(x), ModelMetadata::new("n")]).unwrap();
}

#[test]
fn the_mode_of_a_unix_socket_goes_to_no_file_that_a_link_leads_to() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let folder = std::env::temp_dir().join(crate::support::unique_name());
    std::fs::create_dir(&folder).unwrap();
    let (path, link, other) =
        (folder.join("socket"), folder.join("link"), folder.join("somebody's"));
    std::fs::write(&other, "").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Somebody who may write the folder, too, puts a link in the place of each socket.
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let _ = std::os::unix::fs::symlink(&other, &link);
                if path.symlink_metadata().is_ok_and(|found| !found.is_symlink()) {
                    let _ = std::fs::rename(&link, &path);
                }
            }
        });
        let mut replaced = 0;
        for _ in 0..300 {
            let mut server = Server::new(Front::builder().build().unwrap());
            replaced += usize::from(server.listen_unix_mode(Protocol::Http, &path, 0o666).is_err());
            drop(server);
            let _ = std::fs::remove_file(&path);
        }
        ends.store(true, Ordering::Relaxed);
        println!("{replaced} of 300 were replaced in time");
    });
    let is = std::fs::metadata(&other).unwrap().permissions().mode();
    assert_eq!(is & 0o777, 0o600, "it has the mode of the socket");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_file_of_a_unix_socket_has_its_mode_and_goes_with_its_server() {
    let path = std::env::temp_dir().join(crate::support::unique_name());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    for mode in [0o600, 0o660, 0o666] {
        let mut server = Server::new(Front::builder().build().unwrap());
        server.listen_unix_mode(Protocol::Http, &path, mode).unwrap();
        let is = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(is & 0o777, mode);
        let taken =
            Server::new(Front::builder().build().unwrap()).listen_unix(Protocol::Http, &path);
        assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        runtime.block_on(server.serve(async {})).unwrap();
        assert!(!path.exists());
    }
    // A file that a dead server left is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let mut server = Server::new(Front::builder().build().unwrap());
    server.listen_unix(Protocol::Http, &path).unwrap();
    drop(server);
    assert!(!path.exists());
    // The server leaves another file at its path in place.
    let mut server = Server::new(Front::builder().build().unwrap());
    server.listen_unix(Protocol::Http, &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    drop(server);
    std::fs::remove_file(&path).unwrap();
}
