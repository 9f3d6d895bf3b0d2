//! The memory that tensors take of a server, seen from outside. The server is a process of its own.

use std::io::Write;

use crate::process::{BESIDES, GIB, KIB, MIB, Process, alone, has_room};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::join_all;
use prost::Message;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

/// Returns bytes that depend on their position.
fn chunk(at: u64) -> Vec<u8> {
    let mut bytes = vec![at as u8; MIB as usize];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[MIB as usize - 8..].copy_from_slice(&at.to_le_bytes());
    bytes
}

/// Copies 1 GiB from the first half of an object to the second, over both protocols.
fn by_reference(test: &str, in_place: bool) {
    let _alone = alone();
    let process = Process::start(test, in_place, 8 * GIB);
    if !has_room(GIB, 2 * GIB) {
        return;
    }
    let object = process.region("r", 2 * GIB);
    let over_http = || {
        let inputs = [crate::http_served::tensor(
            "INPUT0",
            "UINT8",
            &format!("[1,{GIB}]"),
            &crate::http_served::window("r", 0, GIB),
        )];
        let outputs =
            [format!(r#"{{"name":"OUTPUT0",{}}}"#, crate::http_served::window("r", GIB, GIB))];
        let path = "/v2/models/identity_uint8/infer";
        crate::http_served::Client::new(process.http)
            .call("POST", path, &crate::http_served::request(&inputs, &outputs))
            .ok();
    };
    let over_grpc = || {
        let mut input = crate::grpc_served::input("INPUT0", "UINT8", &[1, GIB as i64]);
        input.parameters = crate::grpc_served::window("r", 0, GIB as i64);
        let mut output = crate::grpc_served::output("OUTPUT0");
        output.parameters = crate::grpc_served::window("r", GIB as i64, GIB as i64);
        let mut request = crate::grpc_served::request("identity_uint8", vec![input], &[]);
        request.outputs = vec![output];
        process.run(process.client().model_infer(request)).unwrap();
    };
    let protocols: [(&str, &dyn Fn()); 2] = [("HTTP", &over_http), ("gRPC", &over_grpc)];
    let mut back = vec![0; MIB as usize];
    for (round, (protocol, infer)) in (1..).zip(protocols) {
        (0..GIB / MIB).for_each(|at| object.write_at(at * MIB, &chunk(at * round)).unwrap());
        let before = process.status("RssAnon:");
        let grown = process.own_while(infer).saturating_sub(before);
        eprintln!(
            "{protocol}: {} KiB of the server's own for {} of a tensor",
            grown / KIB,
            GIB / KIB
        );
        assert!(grown < BESIDES, "{grown} bytes for a tensor in shared memory over {protocol}");
        for at in 0..GIB / MIB {
            object.read_at(GIB + at * MIB, &mut back).unwrap();
            assert!(back == chunk(at * round), "MiB {at} over {protocol}");
        }
    }
}

#[test]
fn a_tensor_in_shared_memory_takes_none_of_the_servers_by_copy() {
    by_reference("tensors::a_tensor_in_shared_memory_takes_none_of_the_servers_by_copy", false);
}

#[test]
fn a_tensor_in_shared_memory_takes_none_of_the_servers_in_place() {
    by_reference("tensors::a_tensor_in_shared_memory_takes_none_of_the_servers_in_place", true);
}

#[test]
fn a_tensor_that_comes_and_goes_inline_is_there_twice_at_most() {
    let _alone = alone();
    let test = "tensors::a_tensor_that_comes_and_goes_inline_is_there_twice_at_most";
    let process = Process::start(test, false, 8 * GIB);
    let len = 64 * MIB;
    if !has_room(8 * len, 0) {
        return;
    }
    let bytes: Vec<u8> = (0..len / MIB).flat_map(chunk).collect();
    // Existing connections and threads count once.
    let json = |len: u64| {
        let source = format!(r#""parameters":{{"binary_data_size":{len}}}"#);
        let input = crate::http_served::tensor("INPUT0", "UINT8", &format!("[1,{len}]"), &source);
        format!(r#"{{"inputs":[{input}],"parameters":{{"binary_data_output":true}}}}"#)
    };
    let mut client = crate::http_served::Client::new(process.http);
    client.infer("identity_uint8", &json(MIB), &bytes[..MIB as usize]).ok();
    let before = process.settled();
    let answer = client.infer("identity_uint8", &json(len), &bytes);
    let grown = process.peak() - before;
    assert!(answer.tail() == bytes);
    eprintln!("HTTP: {} KiB for {} KiB there and back", grown / KIB, len / KIB);
    assert!(grown <= 2 * len + BESIDES, "{grown} bytes for {len}");
    let mut client = process.client();
    let mut infer = |bytes: &[u8]| {
        let input = crate::grpc_served::input("INPUT0", "UINT8", &[1, bytes.len() as i64]);
        let request = crate::grpc_served::request("identity_uint8", vec![input], &[bytes]);
        process.run(client.model_infer(request)).unwrap().into_inner()
    };
    infer(&bytes[..MIB as usize]);
    let before = process.settled();
    let answer = infer(&bytes);
    let grown = process.peak() - before;
    assert!(answer.raw_output_contents[0] == bytes);
    eprintln!("gRPC: {} KiB for {} KiB there and back", grown / KIB, len / KIB);
    assert!(grown <= 2 * len + BESIDES, "{grown} bytes for {len}");
}

/// Sends one frame. Returns the refusal.
fn refusal(process: &Process, frame: Vec<u8>) -> Status {
    use tonic::codegen::http::Request;
    use tower::ServiceExt;

    let endpoint = Endpoint::from_shared(format!("http://{}", process.grpc)).unwrap();
    process.run(async {
        let channel = endpoint.connect().await.unwrap();
        let body = http_body_util::Full::new(bytes::Bytes::from(frame));
        let request = Request::post("/inference.GRPCInferenceService/ModelInfer")
            .header("content-type", "application/grpc")
            .header("grpc-encoding", "gzip");
        let request = request.body(tonic::body::Body::new(body)).unwrap();
        let response = channel.oneshot(request).await.unwrap();
        Status::from_header_map(response.headers()).expect("a status")
    })
}

#[test]
fn a_bomb_takes_no_more_than_what_may_be_under_way() {
    let _alone = alone();
    let test = "tensors::a_bomb_takes_no_more_than_what_may_be_under_way";
    let process = Process::start(test, false, 64 * MIB);
    if !has_room(2 * GIB, 0) {
        return;
    }
    // A message of 1 GiB, compressed to 1 MiB.
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    (0..GIB / MIB).for_each(|_| bomb.write_all(&[0; MIB as usize]).unwrap());
    let bomb = bomb.finish().unwrap();
    let frame = [&[1][..], &(bomb.len() as u32).to_be_bytes(), &bomb].concat();
    let before = process.settled();
    let status = refusal(&process, frame);
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let grown = process.peak() - before;
    eprintln!("{} KiB for a bomb of 1 GiB", grown / KIB);
    assert!(grown <= 64 * MIB + BESIDES, "{grown} bytes");
    let small = crate::grpc_served::identity(&crate::http_served::ints(0..16));
    process.run(process.client().model_infer(small)).unwrap();
}

#[test]
fn calls_at_a_time_take_no_more_than_what_may_be_under_way() {
    let _alone = alone();
    let test = "tensors::calls_at_a_time_take_no_more_than_what_may_be_under_way";
    let process = Process::start(test, false, 64 * MIB + MIB);
    if !has_room(4 * GIB, 0) {
        return;
    }
    // Each request stays while its model sleeps.
    let len = 16 * MIB;
    let input = crate::grpc_served::input("INPUT0", "INT32", &[1, (len / 4) as i64]);
    let request =
        crate::grpc_served::request("identity_slow_int32", vec![input], &[&vec![7; len as usize]]);
    assert!(request.encoded_len() as u64 > len);
    let before = process.settled();
    let calls = (0..24).map(|_| {
        let (mut client, request) = (process.client(), request.clone());
        async move { client.model_infer(request).await.map(|_| ()) }
    });
    let calls: Vec<_> = calls.collect();
    let answers = process.run(join_all(calls));
    let grown = process.peak() - before;
    let served = answers.iter().filter(|answer| answer.is_ok()).count();
    let refused = |answer: &&Result<(), Status>| {
        answer.as_ref().is_err_and(|status| status.code() == Code::Unavailable)
    };
    let refused = answers.iter().filter(refused).count();
    eprintln!("{served} served, {refused} refused, {} KiB", grown / KIB);
    assert_eq!(served + refused, 24, "{answers:?}");
    assert!(refused >= 20, "as many as 4 fit");
    // The admitted requests, whose responses exist twice.
    assert!(grown <= 65 * MIB + 4 * 2 * len + BESIDES, "{grown} bytes");
    let small = crate::grpc_served::identity(&crate::http_served::ints(0..16));
    process.run(process.client().model_infer(small)).unwrap();
}
