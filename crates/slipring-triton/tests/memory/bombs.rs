//! Many compressed messages at a time take no more memory than the bytes in flight, and others are served beside them.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::thread;
use std::time::{Duration, Instant};

use crate::grpc_served::{identity, input, request};
use crate::http_served::{Client, SIMPLE, ints, request as request_json, simple_json, tensor};
use crate::process::{GIB, MIB, Process, alone, has_room};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::transport::Endpoint;
use tower::ServiceExt;

/// The limit on bytes in flight.
const MOST: u64 = 256 * MIB;

/// Memory beside the bytes in flight: threads, buffers of connections, a chunk of each message that is copied, and what the
/// allocator keeps.
const BESIDES: u64 = 48 * MIB;

/// The number of bombs at a time, and the plain length of the tensor of each. Long memory comes from the kernel with every
/// allocator, and shorter memory from a part of it that may keep what is freed.
const FLOODS: [(usize, u64); 2] = [(16, 48 * MIB), (64, 8 * MIB)];

#[derive(Debug, Clone, Copy)]
enum Coding {
    Gzip,
    Deflate,
}

impl Coding {
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    fn encode(self, plain: &[u8]) -> Vec<u8> {
        match self {
            Self::Gzip => {
                let mut to = GzEncoder::new(Vec::new(), Compression::best());
                to.write_all(plain).unwrap();
                to.finish().unwrap()
            }
            Self::Deflate => {
                let mut to = ZlibEncoder::new(Vec::new(), Compression::best());
                to.write_all(plain).unwrap();
                to.finish().unwrap()
            }
        }
    }
}

/// Calls `bomb` from so many threads at a time, and asks for something small meanwhile. Both return whether they were
/// served.
fn flood(
    process: &Process,
    bombs: usize,
    bomb: impl Fn() -> bool + Sync,
    mut small: impl FnMut() -> bool,
) {
    let (mut asked, mut served, mut longest) = (0, 0, Duration::ZERO);
    assert!(small());
    let before = process.settled();
    let exploded = thread::scope(|scope| {
        let bombs: Vec<_> = (0..bombs).map(|_| scope.spawn(&bomb)).collect();
        while bombs.iter().any(|bomb| !bomb.is_finished()) {
            let began = Instant::now();
            asked += 1;
            served += usize::from(small());
            longest = longest.max(began.elapsed());
        }
        bombs.into_iter().map(|bomb| bomb.join().unwrap()).filter(|served| *served).count()
    });
    let grown = process.peak().saturating_sub(before);
    let (is, most) = (grown / MIB, MOST / MIB);
    eprintln!("{exploded} of {bombs} bombs served, {is} MiB for {most} in flight");
    eprintln!("{served} of {asked} small requests served, the slowest in {longest:?}");
    assert!(grown <= MOST + BESIDES, "{grown} bytes");
    // A small request is refused only in the moments in which not even its bytes are left.
    assert!(served > 0 && small());
}

/// Starts a server for a test.
fn start(test: &str) -> Option<(MutexGuard<'static, ()>, Process)> {
    let alone = alone();
    // As an application starts it: the allocator has an arena for each thread.
    let process = Process::start_with(test, false, MOST, &[]);
    has_room(2 * GIB, 0).then_some((alone, process))
}

/// Sends a frame over a connection of its own. Returns whether the call was served.
async fn call(to: SocketAddr, frame: Bytes, coding: Coding) -> bool {
    let endpoint = Endpoint::from_shared(format!("http://{to}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let request = Request::post("/inference.GRPCInferenceService/ModelInfer")
        .header("content-type", "application/grpc")
        .header("grpc-encoding", coding.name());
    let request = request.body(Body::new(Full::new(frame))).unwrap();
    let response = channel.oneshot(request).await.unwrap();
    let is_served = Status::from_header_map(response.headers()).is_none();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    is_served
}

fn over_grpc(test: &str, coding: Coding) {
    let Some((_alone, process)) = start(test) else { return };
    let (mut client, small) = (process.client(), identity(&ints(0..16)));
    for (bombs, len) in FLOODS {
        let input = input("INPUT0", "UINT8", &[1, len as i64]);
        let message = request("identity_uint8", vec![input], &[&vec![0; len as usize]]);
        let coded = coding.encode(&message.encode_to_vec());
        let frame = [&[1][..], &(coded.len() as u32).to_be_bytes(), &coded].concat();
        let frame = Bytes::from(frame);
        let bomb = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(call(process.grpc, frame.clone(), coding))
        };
        let process = &process;
        flood(process, bombs, bomb, || process.run(client.model_infer(small.clone())).is_ok());
    }
}

fn over_http(test: &str, coding: Coding) {
    let Some((_alone, process)) = start(test) else { return };
    let (mut client, small) = (Client::new(process.http), request_json(&simple_json(), &[]));
    for (bombs, len) in FLOODS {
        let source = format!(r#""parameters":{{"binary_data_size":{len}}}"#);
        let input = tensor("INPUT0", "UINT8", &format!("[1,{len}]"), &source);
        let json = format!(r#"{{"inputs":[{input}],"parameters":{{"binary_data_output":true}}}}"#);
        let body = coding.encode(&[json.as_bytes(), &vec![0; len as usize]].concat());
        let (json_len, name) = (json.len(), coding.name());
        let headers =
            format!("Inference-Header-Content-Length: {json_len}\r\nContent-Encoding: {name}\r\n");
        let bomb = || {
            let mut client = Client::new(process.http);
            let path = "/v2/models/identity_uint8/infer";
            client.call_with("POST", path, &headers, &body).status == 200
        };
        flood(&process, bombs, bomb, || client.call("POST", SIMPLE, &small).status == 200);
    }
}

#[test]
fn many_gzip_bombs_over_grpc_take_no_more_than_what_may_be_under_way() {
    let test = "bombs::many_gzip_bombs_over_grpc_take_no_more_than_what_may_be_under_way";
    over_grpc(test, Coding::Gzip);
}

#[test]
fn many_deflate_bombs_over_grpc_take_no_more_than_what_may_be_under_way() {
    let test = "bombs::many_deflate_bombs_over_grpc_take_no_more_than_what_may_be_under_way";
    over_grpc(test, Coding::Deflate);
}

#[test]
fn many_gzip_bombs_over_http_take_no_more_than_what_may_be_under_way() {
    let test = "bombs::many_gzip_bombs_over_http_take_no_more_than_what_may_be_under_way";
    over_http(test, Coding::Gzip);
}

#[test]
fn many_deflate_bombs_over_http_take_no_more_than_what_may_be_under_way() {
    let test = "bombs::many_deflate_bombs_over_http_take_no_more_than_what_may_be_under_way";
    over_http(test, Coding::Deflate);
}
