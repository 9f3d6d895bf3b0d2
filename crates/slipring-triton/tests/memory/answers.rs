//! Responses have bounds, stay charged until they are sent, and are refused if memory lacks for them.

use std::time::Duration;

use crate::grpc_served::inference::ModelInferRequest;
use crate::http_served::{Client, Served, models, request, tensor, window};
use crate::support::other::{Other, run_here, say, wait_for_death};
use crate::support::wait_until;
use http_body_util::BodyExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slipring_triton::{Front, Limits};

const MIB: u64 = 1 << 20;
const PATH: &str = "/v2/models/identity_uint8/infer";
const FULL: &str = "too many bytes are in flight: retry later, or raise Limits::bytes_in_flight";

/// Returns a request to `identity_uint8` with the first bytes of region `r`. The response has them as JSON or behind
/// it.
fn from_region(len: u64, is_binary: bool) -> String {
    let input = tensor("INPUT0", "UINT8", &format!("[1,{len}]"), &window("r", 0, len));
    let output = format!(r#"{{"name":"OUTPUT0","parameters":{{"binary_data":{is_binary}}}}}"#);
    request(&[input], &[output])
}

#[test]
fn an_answer_is_under_way_until_its_client_has_taken_it() {
    // More than the kernel buffers for a connection.
    let len = 32 * MIB;
    let random = random(len as usize);
    // JSON takes three to four bytes for each byte, and coexists with the output while it is built.
    for (asked, is_binary, most) in [(len, true, len + 8 * MIB), (len / 4, false, 60 * MIB)] {
        let limits = Limits::new().bytes_in_flight(most);
        let served = Served::with(|builder| builder.limits(limits));
        let object = served.region("r", len);
        object.write_at(0, &random).unwrap();
        let (all, small) = (from_region(asked, is_binary), from_region(MIB, true));
        let (mut first, mut second) = (served.client(), served.client());
        first.start("POST", PATH, "", all.as_bytes());
        wait_until("the answer comes", || !first.is_silent(Duration::from_millis(1)));
        second.call("POST", PATH, &all).is_error(503, FULL);
        second.call("POST", PATH, &small).ok();
        first.hang_up();
        wait_until("its bytes come back", || second.call("POST", PATH, &all).status == 200);
        // A compressed response coexists with its source.
        if is_binary {
            let gzip = "Accept-Encoding: gzip\r\n";
            second.call_with("POST", PATH, gzip, all.as_bytes()).is_error(503, FULL);
        }
    }
}

fn random(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    random.take(len).collect()
}

#[test]
fn an_answer_over_grpc_is_under_way_until_its_client_has_taken_it() {
    let len = 32 * MIB as i64;
    let limits = Limits::new().bytes_in_flight(60 * MIB);
    let served = crate::grpc_served::Served::with(|builder| builder.limits(limits));
    let _object = served.region("r", len as u64);
    let ask = |len: i64| {
        let mut input = crate::grpc_served::input("INPUT0", "UINT8", &[1, len]);
        input.parameters = crate::grpc_served::window("r", 0, len);
        crate::grpc_served::request("identity_uint8", vec![input], &[])
    };
    assert_eq!(served.infer(ask(len)).unwrap().raw_output_contents[0].len(), len as usize);
    // A client with a small window that takes nothing of the response.
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address));
    let endpoint = endpoint.unwrap().initial_stream_window_size(1 << 20);
    let channel = served.run(endpoint.connect()).unwrap();
    let held = served.run(async {
        use tower::ServiceExt;
        let message = prost::Message::encode_to_vec(&ask(len));
        let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        let body = http_body_util::Full::new(bytes::Bytes::from(frame));
        let path = "/inference.GRPCInferenceService/ModelInfer";
        let request = tonic::codegen::http::Request::post(path);
        let request = request.header("content-type", "application/grpc");
        let request = request.body(tonic::body::Body::new(body)).unwrap();
        channel.oneshot(request).await.unwrap()
    });
    let status = served.infer(ask(len)).unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, FULL));
    served.infer(ask(MIB as i64)).unwrap();
    drop(held);
    wait_until("its bytes come back", || served.infer(ask(len)).is_ok());
}

#[test]
fn an_answer_over_grpc_that_nobody_takes_ends_and_its_connection_goes_on() {
    // A response of the first length fits beside another one, one of the second length only alone.
    let (len, alone) = (8 * MIB as i64, 13 * MIB as i64);
    let patience = Duration::from_millis(400);
    let limits = Limits::new().bytes_in_flight(20 * MIB).stall_timeout(patience);
    let served = crate::grpc_served::Served::with(|builder| builder.limits(limits));
    let _object = served.region("r", alone as u64);
    let ask = |len: i64| {
        let mut input = crate::grpc_served::input("INPUT0", "UINT8", &[1, len]);
        input.parameters = crate::grpc_served::window("r", 0, len);
        crate::grpc_served::request("identity_uint8", vec![input], &[])
    };
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address));
    let endpoint = endpoint.unwrap().initial_stream_window_size(100_000);
    let channel = served.run(endpoint.connect()).unwrap();
    let start = |message: ModelInferRequest, path: &str| {
        use tower::ServiceExt;
        let message = prost::Message::encode_to_vec(&message);
        let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
        let body = http_body_util::Full::new(bytes::Bytes::from(frame));
        let path = format!("/inference.GRPCInferenceService/{path}");
        let request = tonic::codegen::http::Request::post(path);
        let request = request.header("content-type", "application/grpc");
        let request = request.body(tonic::body::Body::new(body)).unwrap();
        served.run(channel.clone().oneshot(request)).unwrap()
    };
    for path in ["ModelInfer", "ModelStreamInfer"] {
        let mut held = start(ask(len), path);
        // The headers of a stream come before its first message is charged.
        let first = served.run(held.body_mut().frame()).unwrap();
        wait_until("its bytes come back", || served.infer(ask(alone)).is_ok());
        // The stream has ended, the connection has not.
        let mut client = crate::grpc_served::Client::new(channel.clone());
        served.run(client.model_infer(ask(16))).unwrap();
        let ended = first.map(drop).and(served.run(held.into_body().collect()).map(drop));
        assert_eq!(ended.unwrap_err().code(), tonic::Code::Cancelled);
    }
    // A stream whose server has nothing to say is not one whose client takes nothing.
    let mut slow = crate::grpc_served::Client::new(channel.clone());
    let input = crate::grpc_served::input("INPUT0", "INT32", &[1, 16]);
    let request = crate::grpc_served::request("identity_slow_int32", vec![input], &[&[7; 64]]);
    let requests = tokio_stream::iter([request.clone(), request]);
    served.run(async {
        let mut answers = slow.model_stream_infer(requests).await.unwrap().into_inner();
        for _ in 0..2 {
            assert_eq!(answers.message().await.unwrap().unwrap().error_message, "");
        }
    });
}

#[test]
fn a_long_answer_is_refused() {
    let limits = Limits::new().response_bytes(MIB);
    let served = Served::with(|builder| builder.limits(limits));
    let _object = served.region("r", 2 * MIB);
    let too_long = "response of more than 1048576 bytes";
    served.post(PATH, &from_region(2 * MIB, true)).is_error(400, too_long);
    served.post(PATH, &from_region(MIB, true)).is_error(400, too_long);
    served.post(PATH, &from_region(MIB - 1000, true)).ok();
    served.post(PATH, &from_region(MIB / 2, false)).is_error(400, too_long);
    served.post(PATH, &from_region(MIB / 2 - 1000, false)).ok();
    // A region of that length suffices for the same output.
    let input = tensor("INPUT0", "UINT8", "[1,2097152]", &window("r", 0, 2 * MIB));
    let output = format!(r#"{{"name":"OUTPUT0",{}}}"#, window("r", 0, 2 * MIB));
    served.post(PATH, &request(&[input], &[output])).ok();
    let served = crate::grpc_served::Served::with(|builder| builder.limits(limits));
    let message = crate::grpc_served::identity(&[7; 64]);
    served.infer(message).unwrap();
}

/// Starts a server in another process, which may take 40 MiB more. `test` is the name of the calling test.
fn short_of_memory(test: &str) -> (Other, Client) {
    run_here(test, |_| {
        let served = Served::of(models::add_all(Front::builder()).build().unwrap());
        // Existing threads need no further memory.
        let _object = served.region("r", 32 * MIB);
        served.post(PATH, &from_region(MIB, false)).ok();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
        let most = Some(size * 1024 + 40 * MIB);
        let maximum = getrlimit(Resource::As).maximum;
        setrlimit(Resource::As, Rlimit { current: most, maximum }).unwrap();
        say(&served.address.to_string());
        wait_for_death();
    });
    let other = Other::spawn(test, "");
    let client = Client::new(other.hear().parse().unwrap());
    (other, client)
}

#[test]
fn a_server_without_memory_for_an_input_refuses_it_and_goes_on() {
    let test = "answers::a_server_without_memory_for_an_input_refuses_it_and_goes_on";
    let (_other, mut client) = short_of_memory(test);
    let text = "a".repeat(24 << 20);
    let strings = |text: &str| {
        let data = format!(r#""data":["{text}"]"#);
        request(&[tensor("INPUT0", "BYTES", "[1,1]", &data)], &[])
    };
    let raw = "Inference-Header-Content-Length: 0\r\n";
    let path = "/v2/models/identity_bytes/infer";
    client.call("POST", path, &strings(&text)).has_error(503, "no memory for");
    // The text of an escaped string is a copy of its own.
    assert!(client.call("POST", path, &strings(&format!("\\n{text}"))).status >= 400);
    let scalar = "/v2/models/identity_scalar_bytes/infer";
    // What the allocator has kept may suffice for this one.
    let answer = client.call_with("POST", scalar, raw, &vec![b'a'; 36 << 20]);
    assert!([200, 503].contains(&answer.status), "{}", answer.status);
    client.call("POST", path, &strings("short")).ok();
    client.call_with("POST", scalar, raw, b"short").ok();
}

#[test]
fn a_server_without_memory_for_an_answer_refuses_it_and_goes_on() {
    let test = "answers::a_server_without_memory_for_an_answer_refuses_it_and_goes_on";
    let (_other, mut client) = short_of_memory(test);
    client.call("POST", PATH, &from_region(16 * MIB, false)).has_error(503, "no memory for");
    let gzip = "Accept-Encoding: gzip\r\n";
    let answer = client.call_with("POST", PATH, gzip, from_region(16 * MIB, false).as_bytes());
    answer.has_error(503, "no memory for");
    client.call("POST", PATH, &from_region(MIB, false)).ok();
}
