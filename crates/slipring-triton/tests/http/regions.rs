//! The operations on shared memory over HTTP: every row of their table.

use std::sync::Barrier;
use std::thread;

use crate::http_served::{SIMPLE, Served, ints, request, simple_json, tensor, window};
use crate::support::census::descriptors;
use crate::support::{unique_name, wait_until};
use slipring::region::{CudaHandle, PosixShm, Registry, Source};

fn object(len: u64) -> PosixShm {
    PosixShm::create(&format!("/{}", unique_name()), len).unwrap()
}

const ROOT: &str = "/v2/systemsharedmemory";

#[test]
fn a_region_is_registered_told_and_taken_back() {
    let served = Served::new();
    let (one, two) = (object(8192), object(100));
    assert_eq!(served.get(&format!("{ROOT}/status")).ok(), serde_json::json!([]));
    served.register("one", one.key(), 4096, 4096).is_ok();
    // Without the slash of the key, and without an offset.
    let key = two.key().trim_start_matches('/');
    let register = format!(r#"{{"byte_size":100,"key":"{key}","other":[{{}}]}}"#);
    served.post(&format!("{ROOT}/region/two/register"), &register).is_ok();

    let first =
        serde_json::json!({"name": "one", "key": one.key(), "offset": 4096, "byte_size": 4096});
    let second = serde_json::json!({"name": "two", "key": key, "offset": 0, "byte_size": 100});
    assert_eq!(served.get(&format!("{ROOT}/status")).ok(), serde_json::json!([first, second]));
    assert_eq!(served.get(&format!("{ROOT}/region/two/status")).ok(), serde_json::json!([second]));

    served.post(&format!("{ROOT}/region/one/unregister"), "").is_ok();
    assert_eq!(served.get(&format!("{ROOT}/status")).ok(), serde_json::json!([second]));
    served.register("one", one.key(), 0, 1).is_ok();
    served.post(&format!("{ROOT}/unregister"), "").is_ok();
    assert_eq!(served.get(&format!("{ROOT}/status")).ok(), serde_json::json!([]));
}

#[test]
fn what_is_not_registered_is_taken_back_with_success() {
    let served = Served::new();
    let _kept = served.region("kept", 64);
    for path in [
        "systemsharedmemory/region/none/unregister",
        "cudasharedmemory/region/none/unregister",
        "cudasharedmemory/unregister",
        // An operation on the other kind has no effect.
        "cudasharedmemory/region/kept/unregister",
        "systemsharedmemory/region//unregister",
    ] {
        served.post(&format!("/v2/{path}"), "").is_ok();
        // The body is ignored.
        served.post(&format!("/v2/{path}"), "{junk").is_ok();
    }
    assert_eq!(served.get(&format!("{ROOT}/region/kept/status")).ok()[0]["byte_size"], 64);
}

#[test]
fn names_are_one_space_and_registered_once() {
    let registry = Registry::new().unwrap();
    let served = Served::with(|builder| builder.registry(registry.clone()));
    let object = served.region("a", 64);
    let again = served.register("a", object.key(), 0, 64);
    again.is_error(400, "shared memory region 'a' already in manager");
    // A second name of the same key is allowed.
    served.register("b", object.key(), 0, 64).is_ok();
    let handle = CudaHandle { raw: [7; 64], device: 3 };
    registry.register("gpu", Source::Cuda(handle), 0, 32).unwrap();
    let again = served.register("gpu", object.key(), 0, 64);
    again.is_error(400, "shared memory region 'gpu' already in manager");
    let cuda = r#"{"raw_handle":{"b64":""},"device_id":0,"byte_size":1}"#;
    let again = served.post("/v2/cudasharedmemory/region/a/register", cuda);
    again.is_error(400, "shared memory region 'a' already in manager");

    let status = served.get("/v2/cudasharedmemory/status").ok();
    let region = serde_json::json!({"name": "gpu", "device_id": 3, "byte_size": 32});
    assert_eq!(status, serde_json::json!([region]));
    served.get("/v2/cudasharedmemory/region/a/status").is_error(
        404,
        "The region named 'a' is registered as system shared memory, not CUDA shared memory",
    );
    served.get(&format!("{ROOT}/region/gpu/status")).is_error(
        404,
        "The region named 'gpu' is registered as CUDA shared memory, not system shared memory",
    );
    served.post("/v2/systemsharedmemory/unregister", "").is_ok();
    assert!(registry.status("gpu").is_ok());
    served.post("/v2/cudasharedmemory/unregister", "").is_ok();
    assert!(registry.status("gpu").is_err());
}

#[test]
fn names_in_paths_are_decoded_as_names_in_requests_are() {
    let served = Served::new();
    let object = object(64);
    object.write_at(0, &ints(0..16)).unwrap();
    for (path, name) in [
        ("a%20b", "a b"),
        ("a%2Fb", "a/b"),
        ("%C3%A4%22%5C", "ä\"\\"),
        ("region", "region"),
        ("100%25", "100%"),
        ("a+b", "a+b"),
    ] {
        served.register(path, object.key(), 0, 64).is_ok();
        let json = serde_json::to_string(name).unwrap();
        assert_eq!(served.get(&format!("{ROOT}/region/{path}/status")).ok()[0]["name"], name);
        let window = window(&json[1..json.len() - 1], 0, 64);
        let inputs = [tensor("INPUT0", "INT32", "[1,16]", &window)];
        let answer = served.post("/v2/models/identity_int32/infer", &request(&inputs, &[]));
        assert_eq!(answer.ok()["outputs"][0]["data"][15], 15, "{name}");
        served.post(&format!("{ROOT}/region/{path}/unregister"), "").is_ok();
        served.get(&format!("{ROOT}/region/{path}/status")).has_error(404, "Unable to find");
    }
    let missing = "'region name' is necessary to register system shared memory region";
    served.register("", object.key(), 0, 64).is_error(400, missing);
    let register = r#"{"key":"x","byte_size":1}"#;
    served.post(&format!("{ROOT}/register"), register).is_error(400, missing);
    served
        .post("/v2/cudasharedmemory/register", "{}")
        .is_error(400, "'region name' is necessary to register cuda shared memory region");
}

#[test]
fn statuses_of_what_is_not_there() {
    let served = Served::new();
    served
        .get(&format!("{ROOT}/region/none/status"))
        .is_error(404, "Unable to find system shared memory region: 'none'");
    served
        .get("/v2/cudasharedmemory/region/none/status")
        .is_error(404, "Unable to find cuda shared memory region: 'none'");
    assert_eq!(served.get("/v2/cudasharedmemory/status").ok(), serde_json::json!([]));
}

#[test]
fn keys_may_have_spaces_any_letters_and_leading_slashes() {
    let served = Served::new();
    for (at, key) in [" a b", "-ключ", "-x"].into_iter().enumerate() {
        let name = format!("{}{key}", unique_name());
        let object = PosixShm::create(&name, 64).unwrap();
        let slashes = "/".repeat(at);
        served.register(&format!("r{at}"), &format!("{slashes}{name}"), 0, 64).is_ok();
        drop(object);
    }
}

#[test]
fn keys_that_name_no_object_of_ours_are_refused() {
    let served = Served::new();
    let folder = format!("{}-folder", unique_name());
    std::fs::create_dir(format!("/dev/shm/{folder}")).unwrap();
    let link = format!("{}-link", unique_name());
    std::os::unix::fs::symlink("/etc/passwd", format!("/dev/shm/{link}")).unwrap();
    let long = "x".repeat(256);
    for key in [
        "none-such",
        "/none-such",
        "",
        "/",
        ".",
        "..",
        "/..",
        "../etc/passwd",
        "a/b",
        "//none",
        "/etc/passwd",
        "/dev/shm/none",
        &folder,
        &link,
        &long,
        "a\\u0000b",
        "none such",
        "a\\nb",
    ] {
        let answer = served.register("r", key, 0, 64);
        let given: String = serde_json::from_str(&format!("\"{key}\"")).unwrap();
        answer.is_error(500, &format!("Unable to open shared memory region: '{given}'"));
    }
    std::fs::remove_dir(format!("/dev/shm/{folder}")).unwrap();
    std::fs::remove_file(format!("/dev/shm/{link}")).unwrap();
    assert_eq!(served.get(&format!("{ROOT}/status")).ok(), serde_json::json!([]));
}

#[test]
fn extents_are_checked_without_wrap() {
    let served = Served::new();
    let object = object(4096);
    let beyond = "failed to register shared memory region 'r': invalid args";
    for (offset, len) in [
        (0, 4097),
        (1, 4096),
        (4096, 1),
        (5000, 1),
        (64, u64::MAX - 31),
        (u64::MAX, 1),
        (1 << 63, 1 << 63),
        ((1 << 63) - 1, 4096),
        (0, u64::MAX),
    ] {
        served.register("r", object.key(), offset, len).is_error(400, beyond);
    }
    let empty = "failed to register shared memory region 'r': unable to process address space";
    served.register("r", object.key(), 0, 0).is_error(400, empty);
    served.register("r", object.key(), 4000, 96).is_ok();
}

#[test]
fn an_offset_is_applied_once() {
    let served = Served::new();
    let object = object(3 * 4096);
    object.write_at(4096 + 64, &ints(0..16)).unwrap();
    served.register("r", object.key(), 4096, 4096).is_ok();
    let inputs = [tensor("INPUT0", "INT32", "[1,16]", &window("r", 64, 64))];
    let outputs = [format!(r#"{{"name":"OUTPUT0",{}}}"#, window("r", 129, 64))];
    served.post("/v2/models/identity_int32/infer", &request(&inputs, &outputs)).ok();
    let mut back = [0; 64];
    object.read_at(4096 + 129, &mut back).unwrap();
    assert_eq!(back[..], ints(0..16));
}

#[test]
fn a_registration_is_read_as_it_is_written() {
    let served = Served::new();
    let mut client = served.client();
    let mut register = |body: &str| client.call("POST", &format!("{ROOT}/region/r/register"), body);
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    let string = "attempt to access JSON non-string as string";
    for (body, status, text) in [
        ("{}", 400, "Shared memory register request has no 'key' field"),
        (r#"{"key":"k"}"#, 400, "Shared memory register request has no 'byte_size' field"),
        (r#"{"key":"k","byte_size":64.0}"#, 500, unsigned),
        (r#"{"key":"k","byte_size":"64"}"#, 500, unsigned),
        (r#"{"key":"k","byte_size":-64}"#, 500, unsigned),
        (r#"{"key":"k","byte_size":18446744073709551616}"#, 500, unsigned),
        (r#"{"key":"k","byte_size":64,"offset":-1}"#, 500, unsigned),
        (r#"{"key":"k","byte_size":64,"offset":1e3}"#, 500, unsigned),
        (r#"{"key":"k","byte_size":null}"#, 500, unsigned),
        (r#"{"key":7,"byte_size":64}"#, 500, string),
        (r#"{"key":["k"],"byte_size":64}"#, 500, string),
        ("", 400, "failed to parse the request JSON buffer: EOF while parsing a value at 0"),
        ("{", 500, "failed to parse the request JSON buffer: EOF while parsing an object at 1"),
    ] {
        register(body).is_error(status, text);
    }
    register("[]").is_error(400, "Shared memory register request has no 'key' field");
    register("7").is_error(400, "Shared memory register request has no 'key' field");
}

#[test]
fn memory_of_a_gpu_is_refused_clearly() {
    let served = Served::new();
    let register = |body: &str| served.post("/v2/cudasharedmemory/region/g/register", body);
    let handle =
        |b64: &str| format!(r#"{{"raw_handle":{{"b64":"{b64}"}},"device_id":0,"byte_size":64}}"#);
    let whole = "QUFB".repeat(21) + "QQ==";
    register(&handle(&whole))
        .is_error(400, "failed to register shared memory region: invalid args");
    let length = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
    for b64 in ["", "QQ==", "!", &"QUFB".repeat(21), &"QUFB".repeat(22)] {
        register(&handle(b64)).is_error(400, length);
    }
    let missing = |field| format!("Shared memory register request has no '{field}' field");
    register("{}").is_error(400, &missing("raw_handle"));
    let no_text = "Unable to parse 'raw_handle': Shared memory register request has no 'b64' field";
    register(r#"{"raw_handle":{}}"#).is_error(400, no_text);
    let no_object = "Unable to parse 'raw_handle': attempt to access JSON non-object as object";
    register(r#"{"raw_handle":"QQ=="}"#).is_error(500, no_object);
    register(r#"{"raw_handle":{"b64":"QQ=="}}"#).is_error(400, &missing("device_id"));
    register(r#"{"raw_handle":{"b64":"QQ=="},"device_id":0}"#).is_error(400, &missing("byte_size"));
    served.post("/v2/cudasharedmemory/unregister", "").is_ok();
}

#[test]
fn a_server_can_refuse_client_shared_memory() {
    let served = Served::with(|builder| builder.client_shared_memory(false));
    let off = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";
    for kind in ["system", "cuda"] {
        for (method, operation) in [
            ("GET", "status"),
            ("GET", "region/r/status"),
            ("POST", "region/r/register"),
            ("POST", "unregister"),
            ("POST", "region/r/unregister"),
        ] {
            let answer = served.call(method, &format!("/v2/{kind}sharedmemory/{operation}"), "");
            answer.is_error(501, off);
        }
    }
    let inputs = [tensor("INPUT0", "INT32", "[1,16]", &window("r", 0, 64))];
    served.post("/v2/models/identity_int32/infer", &request(&inputs, &[])).is_error(501, off);
    served.post(SIMPLE, &request(&simple_json(), &[])).ok();
}

#[test]
fn two_clients_that_fight_over_a_name_both_get_answers() {
    let served = Served::new();
    let object = object(64);
    let start = Barrier::new(4);
    let wins: usize = thread::scope(|scope| {
        let fight = || {
            let mut client = served.client();
            let register = format!(r#"{{"key":"{}","byte_size":64}}"#, object.key());
            start.wait();
            let mut wins = 0;
            for _ in 0..200 {
                let path = format!("{ROOT}/region/fought/register");
                let answer = client.call("POST", &path, &register);
                if answer.status == 200 {
                    wins += 1;
                    client.call("POST", &format!("{ROOT}/region/fought/unregister"), "").is_ok();
                } else {
                    answer.is_error(400, "shared memory region 'fought' already in manager");
                }
            }
            wins
        };
        let fighters: Vec<_> = (0..4).map(|_| scope.spawn(fight)).collect();
        fighters.into_iter().map(|fighter| fighter.join().unwrap()).sum()
    });
    assert!(wins > 0);
    assert_eq!(served.get(&format!("{ROOT}/status")).ok(), serde_json::json!([]));
}

#[test]
fn thousands_of_failing_registrations_lose_no_descriptor() {
    let served = Served::new();
    let object = object(64);
    let mut client = served.client();
    let path = format!("{ROOT}/region/r/register");
    let bodies = [
        format!(r#"{{"key":"{}","byte_size":65}}"#, object.key()),
        format!(r#"{{"key":"{}","byte_size":0}}"#, object.key()),
        r#"{"key":"none","byte_size":64}"#.to_owned(),
        r#"{"key":"..","byte_size":64}"#.to_owned(),
        r#"{"key":"x"}"#.to_owned(),
    ];
    // Descriptors that stay open are open from here on.
    client.call("POST", &path, &bodies[0]).error();
    let before = descriptors();
    for _ in 0..1000 {
        for body in &bodies {
            client.call("POST", &path, body).error();
        }
    }
    // Other tests of this process open and close descriptors, too.
    wait_until("the descriptors come back", || descriptors() <= before + 40);
}

#[test]
fn as_many_regions_as_may_be_are_registered_and_no_more() {
    let registry = Registry::with_limits(2, u64::MAX).unwrap();
    let served = Served::with(|builder| builder.registry(registry));
    let object = object(64);
    served.register("a", object.key(), 0, 64).is_ok();
    served.register("b", object.key(), 0, 64).is_ok();
    served.register("c", object.key(), 0, 64).has_error(503, "failed to register");
    served.post(&format!("{ROOT}/region/a/unregister"), "").is_ok();
    served.register("c", object.key(), 0, 64).is_ok();
}

#[test]
fn nothing_tells_a_key_to_another_client() {
    let served = Served::new();
    let object = served.region("mine", 64);
    let (mut client, key) = (served.client(), object.key().trim_start_matches('/').to_owned());
    let input = |window: &str| {
        let inputs = [tensor("INPUT0", "INT32", "[1,16]", window)];
        request(&inputs, &[])
    };
    for body in
        [input(&window("mine", 1, 64)), input(&window("mine", 65, 64)), input(&window("x", 0, 64))]
    {
        let (_, text) = client.call("POST", "/v2/models/identity_int32/infer", &body).error();
        assert!(!text.contains(&key), "{text}");
    }
    let (_, text) = served.register("mine", "other", 0, 64).error();
    assert!(!text.contains(&key), "{text}");
    rustix::fs::ftruncate(&object, 0).unwrap();
    let (_, text) = client
        .call("POST", "/v2/models/identity_int32/infer", &input(&window("mine", 0, 64)))
        .error();
    assert!(!text.contains(&key) && !text.contains("/dev/shm"), "{text}");
}
