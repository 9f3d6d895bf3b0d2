//! Clients send over gRPC what no real client sends. The server and its other clients go on.
//!
//! These tests count descriptors and memory of their process, so they have a binary of their own.

#[path = "../served/grpc.rs"]
mod grpc_served;
#[path = "../served/http.rs"]
mod http_served;
#[path = "../../../../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt;
use grpc_served::inference::*;
use grpc_served::{Served, identity, input, request, simple};
use http_body_util::BodyExt;
use http_served::ints;
use prost::Message;
use slipring_triton::Limits;
use support::{HANG, census, wait_until};
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::Endpoint;
use tower::ServiceExt;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

#[track_caller]
fn still_serves(served: &Served) {
    let answer = served.infer(identity(&ints(0..16))).unwrap();
    assert_eq!(answer.raw_output_contents, [&ints(0..16)[..]]);
}

/// The tests count what the process holds, so one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes of mapped memory, touched or not.
fn mapped() -> usize {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    sizes.split(' ').next().unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// A body of these bytes that then ends, or never does.
struct Sent(Option<Bytes>, bool);

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(http_body::Frame::data(bytes)))),
            None if self.1 => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Sends a call with this body. Returns the code and the text of its status.
fn call(
    served: &Served,
    path: &str,
    body: &[u8],
    ends: bool,
    headers: &[(&str, &str)],
) -> (Code, String) {
    let channel = served.channel();
    let mut request = http::Request::post(path).header("content-type", "application/grpc");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Body::new(Sent(Some(Bytes::copy_from_slice(body)), ends));
    served.run(async {
        let response = channel.clone().oneshot(request.body(body).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let trailers = body.collect().await.ok().and_then(|body| body.trailers().cloned());
        let headers = trailers.unwrap_or(head.headers);
        let status = tonic::Status::from_header_map(&headers).expect("a status");
        (status.code(), status.message().to_owned())
    })
}

fn frame(flag: u8, len: u32, bytes: &[u8]) -> Vec<u8> {
    [&[flag][..], &len.to_be_bytes(), bytes].concat()
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    frame(0, bytes.len() as u32, bytes)
}

#[test]
fn frames_that_are_not_whole_are_refused() {
    let _alone = alone();
    let served = Served::new();
    let good = framed(&identity(&ints(0..16)).encode_to_vec());
    for path in [INFER, STREAM] {
        for cut in (0..good.len()).step_by(7) {
            let (code, _) = call(&served, path, &good[..cut], true, &[]);
            assert!(code != Code::Ok || (path == STREAM && cut == 0), "{path} cut at {cut}");
        }
    }
    assert_eq!(call(&served, INFER, &frame(0, 1 << 20, &[0; 100]), true, &[]).0, Code::Internal);
    assert_eq!(call(&served, INFER, &frame(7, 0, &[]), true, &[]).0, Code::Internal);
    assert_eq!(call(&served, INFER, &frame(1, 4, &[0; 4]), true, &[]).0, Code::Internal);
    still_serves(&served);
}

#[test]
fn messages_that_are_no_protobuf_are_refused() {
    let _alone = alone();
    let served = Served::new();
    let broken: [&[u8]; 9] = [
        &[0xff; 100],
        &[0x0a],
        &[0x0a, 0x7f],
        &[0x0a, 0x02, 0xff, 0xfe],
        &[0x2a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        &[0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0x08, 0x80],
        &[0x07],
        &[0x0b; 5000],
    ];
    for message in broken {
        let (code, _) = call(&served, INFER, &framed(message), true, &[]);
        assert_ne!(code, Code::Ok, "{message:?}");
    }
    // Replaces every byte of a request.
    let good = simple(&ints(0..16), &ints(0..16)).encode_to_vec();
    let mut client = served.client();
    drop(served.run(client.model_infer(simple(&[], &[]))));
    for at in 0..good.len().min(120) {
        let mut message = good.clone();
        message[at] ^= 0x55;
        call(&served, INFER, &framed(&message), true, &[]);
    }
    still_serves(&served);
}

#[test]
fn a_claim_of_many_bytes_takes_no_memory_and_no_more_than_patience() {
    let _alone = alone();
    let limits = Limits::new().stall_timeout(Duration::from_millis(200));
    let served = Served::with(|builder| builder.limits(limits));
    let before = mapped();
    let channel = served.channel();
    let claims: Vec<_> = (0..64)
        .map(|_| {
            let body = Body::new(Sent(Some(frame(0, i32::MAX as u32, &[0; 100]).into()), false));
            let request = http::Request::post(INFER).header("content-type", "application/grpc");
            channel.clone().oneshot(request.body(body).unwrap())
        })
        .collect();
    served.run(async {
        let mut claims: futures_util::stream::FuturesUnordered<_> = claims.into_iter().collect();
        let mut most = 0;
        while let Some(answer) = claims.next().await {
            most = most.max(mapped().saturating_sub(before));
            let headers = answer.unwrap().headers().clone();
            let status = tonic::Status::from_header_map(&headers).unwrap();
            assert_eq!(status.code(), Code::DeadlineExceeded);
        }
        assert!(most < 1 << 30, "{most} bytes for claims alone");
    });
    still_serves(&served);
}

#[test]
fn a_message_above_the_limit_is_refused_by_its_head() {
    let _alone = alone();
    let served = Served::with(|builder| builder.limits(Limits::new().request_bytes(1 << 20)));
    let (code, text) = call(&served, INFER, &frame(0, (1 << 20) + 1, &[]), false, &[]);
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(text, "Received message larger than max (1048577 vs. 1048576)");
    let just = request(
        "identity_uint8",
        vec![input("INPUT0", "UINT8", &[1, 1 << 20])],
        &[&vec![0; 1 << 20]],
    );
    assert_eq!(served.infer(just).unwrap_err().code(), Code::ResourceExhausted);
    still_serves(&served);
}

#[test]
fn a_bomb_takes_no_more_than_a_message_may() {
    let _alone = alone();
    let served = Served::with(|builder| builder.limits(Limits::new().request_bytes(4 << 20)));
    let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
    (0..32).for_each(|_| bomb.write_all(&[0; 1 << 20]).unwrap());
    let bomb = bomb.finish().unwrap();
    let message = frame(1, bomb.len() as u32, &bomb);
    let (code, _) = call(&served, INFER, &message, true, &[("grpc-encoding", "gzip")]);
    assert_eq!(code, Code::ResourceExhausted);
    // Not compressed, cut off, and in another encoding.
    let encoded = [("grpc-encoding", "gzip")];
    assert_eq!(call(&served, INFER, &frame(1, 3, b"abc"), true, &encoded).0, Code::Internal);
    let message = frame(1, 50, &bomb[..50]);
    assert_eq!(call(&served, INFER, &message, true, &encoded).0, Code::Internal);
    let unknown = [("grpc-encoding", "br")];
    assert_eq!(call(&served, INFER, &frame(1, 3, b"abc"), true, &unknown).0, Code::Unimplemented);
    still_serves(&served);
}

#[test]
fn a_message_that_is_small_and_many_things_is_refused() {
    let _alone = alone();
    let served = Served::new();
    // Five million empty strings: 10 MB encoded, over 320 MB decoded.
    let contents =
        InferTensorContents { bytes_contents: vec![Vec::new(); 5_000_000], ..Default::default() };
    let mut tensor = input("INPUT0", "BYTES", &[1, 1]);
    tensor.contents = Some(contents);
    let status = served.infer(request("identity_bytes", vec![tensor], &[])).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    // As many inputs as fit into 2 MB.
    let message = [0x2a, 0].repeat(1_000_000);
    let (code, _) = call(&served, INFER, &framed(&message), true, &[]);
    assert_eq!(code, Code::ResourceExhausted);
    // The same inputs behind a group, a wire type that the protocol does not use.
    let message = [&[0xa3, 0x06, 0xa4, 0x06][..], &message].concat();
    let (code, _) = call(&served, INFER, &framed(&message), true, &[]);
    assert_eq!(code, Code::ResourceExhausted);
    still_serves(&served);
}

#[test]
fn bytes_under_way_are_bounded_together() {
    let _alone = alone();
    let limits = Limits::new().bytes_in_flight(2 << 20);
    let served = Served::with(|builder| builder.limits(limits));
    let of = |len: usize| {
        let tensor = input("INPUT0", "UINT8", &[1, len as i64]);
        request("identity_uint8", vec![tensor], &[&vec![1; len]])
    };
    let full = "too many bytes are in flight: retry later, or raise Limits::bytes_in_flight";
    for _ in 0..3 {
        grpc_served::is_refused(served.infer(of(1 << 20)), Code::Unavailable, full);
        served.infer(of(1000 << 10)).unwrap();
    }
    // A call that stays inside of its message leaves no bytes for another one.
    let half = framed(&of(600 << 10).encode_to_vec());
    let body = Body::new(Sent(Some(Bytes::copy_from_slice(&half[..590 << 10])), false));
    let unfinished = http::Request::post(INFER).header("content-type", "application/grpc");
    let unfinished = served.channel().oneshot(unfinished.body(body).unwrap());
    let mut unfinished = Box::pin(unfinished);
    served.run(async {
        let _ = tokio::time::timeout(Duration::from_millis(1), &mut unfinished).await;
    });
    wait_until("half a message is in flight", || served.infer(of(900 << 10)).is_err());
    served.infer(of(700 << 10)).unwrap();
    drop(unfinished);
    wait_until("its bytes come back", || served.infer(of(1000 << 10)).is_ok());
    // Typed contents are charged by their decoded size: eight bytes for each number.
    let ints = |count: usize| {
        let mut tensor = input("INPUT0", "INT32", &[1, count as i64]);
        let int_contents = vec![1; count];
        tensor.contents = Some(InferTensorContents { int_contents, ..Default::default() });
        request("identity_int32", vec![tensor], &[])
    };
    grpc_served::is_refused(served.infer(ints(200_000)), Code::Unavailable, full);
    served.infer(ints(150_000)).unwrap();
}

#[test]
fn a_stream_is_under_way_with_one_message_at_a_time() {
    let _alone = alone();
    // Ten messages of 600 KiB with their responses. A frame holds at most 1 MiB, so it contains the start of the next
    // message.
    let limits = Limits::new().bytes_in_flight(4 << 20);
    let served = Served::with(|builder| builder.limits(limits));
    let len = 600 << 10;
    let tensor = input("INPUT0", "UINT8", &[1, len as i64]);
    let asked = request("identity_uint8", vec![tensor], &[&vec![1; len]]);
    for encoding in [None, Some(tonic::codec::CompressionEncoding::Gzip)] {
        let mut client = served.client();
        if let Some(encoding) = encoding {
            client = client.send_compressed(encoding);
        }
        let requests = futures_util::stream::iter(vec![asked.clone(); 10]);
        let answers = served.run(async {
            let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
            let mut count = 0;
            while let Some(answer) = answers.message().await.unwrap() {
                assert_eq!(answer.error_message, "");
                count += 1;
            }
            count
        });
        assert_eq!(answers, 10);
    }
}

#[test]
fn a_call_that_takes_one_message_takes_no_second_one() {
    let _alone = alone();
    let served = Served::new();
    let message = framed(&identity(&ints(0..16)).encode_to_vec());
    let (code, text) = call(&served, INFER, &[&message[..], &message].concat(), true, &[]);
    assert_eq!((code, text.contains("more messages than one")), (Code::Internal, true), "{text}");
}

#[test]
fn texts_of_errors_fit_into_headers() {
    let _alone = alone();
    let served = Served::new();
    let mut asked = identity(&ints(0..16));
    asked.model_name = "ü".repeat(100_000);
    let status = served.infer(asked).unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().len() <= 2048 && status.message().contains("üüü"));
    let inputs = (0..5000).map(|at| input(&format!("I{at}"), "INT32", &[1, 1])).collect();
    let mut asked = request("simple", inputs, &[]);
    asked.raw_input_contents = vec![Bytes::new(); 5000];
    assert_eq!(served.infer(asked).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn bytes_that_are_no_http_end_their_connection_alone() {
    let _alone = alone();
    let served = Served::new();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    let pieces: [&[u8]; 9] = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 1000],
        &preface[..10],
        preface,
        &[&preface[..], &[0xff; 1000]].concat(),
        &[&preface[..], settings, b"\xff\xff\xff\x00\0\0\0\0\x01"].concat(),
        &[&preface[..], settings, b"\0\0\x05\x01\x04\0\0\0\x01\xff\xff\xff\xff\xff"].concat(),
        &[&preface[..], settings, b"\0\0\x05\x00\0\0\0\0\x01abcde"].concat(),
    ];
    for bytes in pieces {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    still_serves(&served);
}

#[test]
fn a_connection_that_asks_nothing_is_closed() {
    let _alone = alone();
    let limits = Limits::new().stall_timeout(Duration::from_millis(100));
    let served = Served::with(|builder| builder.limits(limits));
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(b"PRI * HTTP").unwrap();
    let ended = stream.read_to_end(&mut Vec::new());
    assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    still_serves(&served);
}

#[test]
fn more_connections_than_the_limit_wait() {
    let _alone = alone();
    let limits = Limits::new().connections(1).stall_timeout(Duration::from_millis(300));
    let served = Served::with(|builder| builder.limits(limits));
    let idle = TcpStream::connect(served.address).unwrap();
    // The server takes this client once the idle one's place is free.
    still_serves(&served);
    drop(idle);
}

#[test]
fn clients_that_hang_up_lose_no_descriptor_and_hold_nobody_up() {
    let _alone = alone();
    let served = Served::new();
    // The runtime of this client takes all its connections with it.
    let hang_up = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://{}", served.address)).unwrap();
            let channel = endpoint.connect().await.unwrap();
            let message = framed(&identity(&ints(0..16)).encode_to_vec());
            for (path, sent) in [(INFER, 20), (STREAM, 20), (STREAM, message.len())] {
                let body = Body::new(Sent(Some(Bytes::copy_from_slice(&message[..sent])), false));
                let request = http::Request::post(path).header("content-type", "application/grpc");
                let call = channel.clone().oneshot(request.body(body).unwrap());
                let _ = tokio::time::timeout(Duration::from_millis(5), call).await;
            }
        });
    };
    hang_up();
    still_serves(&served);
    let before = census::descriptors();
    (0..20).for_each(|_| hang_up());
    still_serves(&served);
    wait_until("as many descriptors as before", || census::descriptors() <= before);
}

#[test]
fn thousands_of_failing_calls_lose_no_descriptor() {
    let _alone = alone();
    let served = Served::new();
    let mut client = served.client();
    let mut fail = || {
        let (name, key) = ("n".to_owned(), "/no-such-object".to_owned());
        let asked = SystemSharedMemoryRegisterRequest { name, key, offset: 0, byte_size: 1 };
        served.run(client.system_shared_memory_register(asked)).unwrap_err();
        served.run(client.model_infer(simple(&[0; 60], &[0; 64]))).unwrap_err();
    };
    fail();
    let before = census::descriptors();
    (0..1000).for_each(|_| fail());
    assert!(census::descriptors() <= before);
}

#[test]
fn services_and_methods_that_are_not_there_are_not_implemented() {
    let _alone = alone();
    let served = Served::new();
    for path in
        ["/x.Y/Z", "/inference.GRPCInferenceService/Nothing", "/", "/grpc.health.v1.Health/Watch"]
    {
        let (code, text) = call(&served, path, &framed(&[]), true, &[]);
        assert_eq!((code, text.is_empty()), (Code::Unimplemented, false), "{path}: {text}");
    }
}
