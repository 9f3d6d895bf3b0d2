//! Question: how long does an honest client wait beside clients that take all they can, and how much memory do those take?
//!
//! ```text
//! cargo bench -p slipring-triton --bench floods # `-- bombs grpc`: the rows whose names contain all these words
//! ```
//!
//! The server is a process of its own with the models and the limits of the example server: 8 GiB in flight, 1,024
//! connections. Each row has a new server. The honest client infers 64 bytes, one request after another, on a connection
//! that stays: `simple` over HTTP, `identity_int32` over gRPC. Clients and servers run on any CPU.
//!
//! | row | what comes beside the honest client |
//! |---|---|
//! | `quiet` | nothing, for 3 s |
//! | `idle` | the process has 512 descriptors; 500 connections without a request, and 1,000 regions of an object each |
//! | `bombs` | 12 messages of 1 GiB of zeros, compressed with gzip to 1 MiB |
//! | `unread` | 64 clients that ask for an output of 64 MiB and read nothing of it, for 5 s |
//! | `slow` | 4,000 requests to a model that sleeps for 1.5 s |
//!
//! Each row prints a line of JSON: the honest client's requests, those of them that failed, its p50, p99 and longest time
//! in milliseconds, and the growth of the server's resident memory at its peak in MiB.

#[path = "../examples/triton_server/models/mod.rs"]
mod models;

#[allow(clippy::all, dead_code)]
#[path = "../tests/served/inference.rs"]
mod inference;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};
use prost::Message;
use rustix::process::{Resource, Rlimit, setrlimit};
use slipring::region::{PosixShm, SigbusGuard};
use slipring_triton::{Front, Protocol, Server};
use tonic::codegen::http;
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt;

use inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use inference::infer_parameter::ParameterChoice;
use inference::model_infer_request::InferInputTensor;
use inference::{InferParameter, ModelInferRequest};

const MIB: usize = 1 << 20;
/// Bytes of a bomb's tensor.
const BOMB: usize = 1 << 30;
/// Bytes of an output that nobody reads.
const UNREAD: usize = 64 * MIB;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Http,
    Grpc,
}

fn main() {
    if let Some(limit) = std::env::args().skip_while(|argument| argument != "--serve").nth(1) {
        return serve(limit.parse().expect("a number of descriptors"));
    }
    // The clients' own descriptors.
    let _ = slipring_triton::raise_descriptor_limit();
    for wire in [Wire::Http, Wire::Grpc] {
        row("quiet", wire, 0, |_| vec![thread::spawn(|| thread::sleep(Duration::from_secs(3)))]);
        row("idle", wire, 512, idle);
        row("bombs", wire, 0, bombs);
        row("unread", wire, 0, unread);
        row("slow", wire, 0, slow);
    }
}

/// Serves with so many descriptors, 0 for as many as are allowed.
fn serve(limit: u64) {
    if limit > 0 {
        let limit = Some(limit);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("a limit");
    } else {
        slipring_triton::raise_descriptor_limit().expect("a limit");
    }
    SigbusGuard::install().expect("a guard");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let front = models::add_all(Front::builder()).in_place(true).build().expect("a front");
        let mut server = Server::new(front);
        let http = server.listen(Protocol::Http, "127.0.0.1:0").await.expect("an address");
        let grpc = server.listen(Protocol::Grpc, "127.0.0.1:0").await.expect("an address");
        println!("{http} {grpc}");
        server.serve(std::future::pending()).await.expect("to serve");
    });
}

/// The addresses of a server: that of HTTP, and that of the row's protocol.
#[derive(Debug, Clone, Copy)]
struct Target {
    wire: Wire,
    http: SocketAddr,
    address: SocketAddr,
}

/// A server process. It ends on drop.
struct Subject {
    child: Child,
    target: Target,
}

impl Subject {
    fn start(wire: Wire, limit: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("my own path"));
        let command = command.args(["--serve", &limit.to_string()]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a server");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("its addresses");
        let (http, grpc) = line.trim().split_once(' ').expect("two addresses");
        let (http, grpc) = (http.parse().expect("one"), grpc.parse().expect("one"));
        let address = if wire == Wire::Http { http } else { grpc };
        Self { child, target: Target { wire, http, address } }
    }

    /// Returns the peak of the resident memory, and resets it.
    fn peak(&self) -> u64 {
        let folder = format!("/proc/{}", self.child.id());
        let status = std::fs::read_to_string(format!("{folder}/status")).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        std::fs::write(format!("{folder}/clear_refs"), "5").expect("to reset the peak");
        peak.expect("a peak")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Threads = Vec<JoinHandle<()>>;

/// Measures the honest client until all threads of the flood have ended, if the command line asks for this row.
fn row(name: &str, wire: Wire, limit: u64, flood: fn(Target) -> Threads) {
    let title = format!("{name} {wire:?}").to_lowercase();
    let mut wanted = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    if !wanted.all(|word| title.contains(&word)) {
        return;
    }
    let subject = Subject::start(wire, limit);
    let mut honest = Honest::new(subject.target);
    assert!((0..100).all(|_| honest.ask()), "a server that is not flooded serves");
    subject.peak();
    let before = subject.peak();
    let (mut times, mut failed) = (Vec::new(), 0);
    let flood = flood(subject.target);
    while flood.iter().any(|thread| !thread.is_finished()) {
        let began = Instant::now();
        failed += usize::from(!honest.ask());
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    flood.into_iter().for_each(|thread| thread.join().expect("the flood"));
    let grown = subject.peak().saturating_sub(before) / 1024;
    times.sort_by(f64::total_cmp);
    let count = times.len();
    let (p50, p99, most) = (times[count / 2], times[count * 99 / 100], times[count - 1]);
    println!(
        r#"{{"what":"floods","row":"{title}","requests":{count},"failed":{failed},"unit":"ms","p50":{p50:.2},"p99":{p99:.2},"max":{most:.1},"grown_mib":{grown}}}"#
    );
}

/// The client that asks for something small.
enum Honest {
    Http(TcpStream),
    Grpc(Box<(tokio::runtime::Runtime, GrpcInferenceServiceClient<Channel>)>),
}

impl Honest {
    fn new(target: Target) -> Self {
        match target.wire {
            Wire::Http => Self::Http(connect(target.address)),
            Wire::Grpc => {
                let runtime = runtime();
                let channel = runtime.block_on(dial(target.address));
                Self::Grpc(Box::new((runtime, GrpcInferenceServiceClient::new(channel))))
            }
        }
    }

    /// Returns whether the request was served.
    fn ask(&mut self) -> bool {
        match self {
            Self::Http(stream) => {
                let data: Vec<i32> = (0..16).collect();
                let input = |name| {
                    format!(
                        r#"{{"name":"{name}","datatype":"INT32","shape":[1,16],"data":{data:?}}}"#
                    )
                };
                let body = format!(r#"{{"inputs":[{},{}]}}"#, input("INPUT0"), input("INPUT1"));
                post(stream, "/v2/models/simple/infer", "", body.as_bytes());
                answer(stream) == Some(200)
            }
            Self::Grpc(both) => {
                let (runtime, client) = &mut **both;
                let request = message("identity_int32", "INT32", 16, vec![7; 64]);
                runtime.block_on(client.model_infer(request)).is_ok()
            }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn dial(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Sends a request of HTTP. The header lines end in `\r\n`.
fn post(stream: &mut TcpStream, path: &str, headers: &str, body: &[u8]) {
    let len = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n{headers}\r\n");
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Reads a response. Returns its status; `None`: the connection has ended.
fn answer(stream: &mut TcpStream) -> Option<u16> {
    let mut room = vec![0; 256 << 10];
    let mut received = Vec::new();
    let head = loop {
        match stream.read(&mut room) {
            Ok(0) | Err(_) => return None,
            Ok(len) => received.extend_from_slice(&room[..len]),
        }
        if let Some(at) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let text = String::from_utf8_lossy(&received[..head]).to_lowercase();
    let len = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut left: usize = len.map_or(0, |len| len.trim().parse().expect("a length"));
    left -= received.len() - head;
    while left > 0 {
        match stream.read(&mut room) {
            Ok(0) | Err(_) => return None,
            Ok(len) => left -= len,
        }
    }
    text.split(' ').nth(1)?.parse().ok()
}

fn message(model: &str, datatype: &str, elements: usize, raw: Vec<u8>) -> ModelInferRequest {
    let (name, datatype) = ("INPUT0".to_owned(), datatype.to_owned());
    let input =
        InferInputTensor { name, datatype, shape: vec![1, elements as i64], ..Default::default() };
    let (model_name, inputs) = (model.to_owned(), vec![input]);
    ModelInferRequest {
        model_name,
        inputs,
        raw_input_contents: vec![raw.into()],
        ..Default::default()
    }
}

/// Calls a method with one message, as it is or compressed, and returns the response.
async fn call(
    channel: Channel,
    message: Vec<u8>,
    coded: bool,
) -> http::Response<tonic::body::Body> {
    let mut frame = vec![u8::from(coded)];
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(&message);
    let request = http::Request::post("/inference.GRPCInferenceService/ModelInfer")
        .header("content-type", "application/grpc")
        .header("grpc-encoding", if coded { "gzip" } else { "identity" });
    let body = tonic::body::Body::new(Full::new(bytes::Bytes::from(frame)));
    let request = request.body(body).expect("a request");
    channel.oneshot(request).await.expect("a response")
}

fn window(len: usize) -> String {
    format!(r#""parameters":{{"shared_memory_region":"r","shared_memory_byte_size":{len}}}"#)
}

/// Returns an object whose bytes are registered under `name`.
fn region(target: Target, name: &str, len: usize) -> PosixShm {
    let key = format!("/slipring-floods-{}-{name}", std::process::id());
    let object = PosixShm::create(&key, len as u64).expect("shared memory");
    let path = format!("/v2/systemsharedmemory/region/{name}/register");
    let body = format!(r#"{{"key":"{key}","offset":0,"byte_size":{len}}}"#);
    let mut stream = connect(target.http);
    post(&mut stream, &path, "", body.as_bytes());
    answer(&mut stream);
    object
}

fn idle(target: Target) -> Threads {
    vec![thread::spawn(move || {
        let idle: Vec<TcpStream> = (0..500).map(|_| connect(target.address)).collect();
        let objects: Vec<PosixShm> =
            (0..1000).map(|at| region(target, &format!("r{at}"), 4096)).collect();
        thread::sleep(Duration::from_secs(3));
        drop((idle, objects));
    })]
}

fn bombs(target: Target) -> Threads {
    let mut plain = Vec::new();
    let source = format!(r#""parameters":{{"binary_data_size":{BOMB}}}"#);
    let input = format!(r#"{{"name":"INPUT0","datatype":"UINT8","shape":[1,{BOMB}],{source}}}"#);
    let json = format!(r#"{{"inputs":[{input}],"parameters":{{"binary_data_output":true}}}}"#);
    let mut len = BOMB;
    match target.wire {
        Wire::Http => plain.extend_from_slice(json.as_bytes()),
        Wire::Grpc => {
            // The field of the tensor's bytes, whose value follows.
            plain = message("identity_uint8", "UINT8", BOMB, Vec::new()).encode_to_vec();
            plain.truncate(plain.len() - 2);
            plain.push(7 << 3 | 2);
            prost::encoding::encode_varint(len as u64, &mut plain);
        }
    }
    let mut coder = GzEncoder::new(Vec::new(), Compression::best());
    coder.write_all(&plain).expect("memory");
    while len > 0 {
        let part = len.min(MIB);
        coder.write_all(&vec![0; part]).expect("memory");
        len -= part;
    }
    let coded = coder.finish().expect("memory");
    let headers =
        format!("Content-Encoding: gzip\r\nInference-Header-Content-Length: {}\r\n", json.len());
    let bomb = move || match target.wire {
        Wire::Http => {
            let mut stream = connect(target.address);
            post(&mut stream, "/v2/models/identity_uint8/infer", &headers, &coded);
            answer(&mut stream);
        }
        Wire::Grpc => runtime().block_on(async {
            let channel = dial(target.address).await;
            let mut body = call(channel, coded, true).await.into_body();
            while let Some(Ok(_)) = body.frame().await {}
        }),
    };
    (0..12).map(|_| thread::spawn(bomb.clone())).collect()
}

fn unread(target: Target) -> Threads {
    let object = region(target, "r", UNREAD);
    let hold = Duration::from_secs(5);
    let text = |value: &str| InferParameter {
        parameter_choice: Some(ParameterChoice::StringParam(value.to_owned())),
    };
    let len = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(UNREAD as i64)) };
    let mut asked = message("identity_uint8", "UINT8", UNREAD, Vec::new());
    asked.raw_input_contents.clear();
    asked.inputs[0].parameters = BTreeMap::from([
        ("shared_memory_region".to_owned(), text("r")),
        ("shared_memory_byte_size".to_owned(), len),
    ]);
    let asked = asked.encode_to_vec();
    let source = window(UNREAD);
    let input = format!(r#"{{"name":"INPUT0","datatype":"UINT8","shape":[1,{UNREAD}],{source}}}"#);
    let json = format!(r#"{{"inputs":[{input}],"parameters":{{"binary_data_output":true}}}}"#);
    let held = move || match target.wire {
        Wire::Http => {
            let mut stream = connect(target.address);
            post(&mut stream, "/v2/models/identity_uint8/infer", "", json.as_bytes());
            thread::sleep(hold);
        }
        Wire::Grpc => runtime().block_on(async {
            let channel = dial(target.address).await;
            let response = call(channel, asked, false).await;
            tokio::time::sleep(hold).await;
            drop(response);
        }),
    };
    let mut threads: Threads = (0..64).map(|_| thread::spawn(held.clone())).collect();
    threads.push(thread::spawn(move || {
        thread::sleep(hold);
        drop(object);
    }));
    threads
}

fn slow(target: Target) -> Threads {
    let source = format!(r#""data":{:?}"#, vec![7; 16]);
    let input = format!(r#"{{"name":"INPUT0","datatype":"INT32","shape":[1,16],{source}}}"#);
    let json = format!(r#"{{"inputs":[{input}]}}"#);
    let asked = message("identity_slow_int32", "INT32", 16, vec![7; 64]);
    // Over HTTP 500 connections send 8 requests each. Over gRPC 8 connections have 500 calls each in flight. All leave
    // after 10 s, while most requests still wait.
    let time = Duration::from_secs(10);
    match target.wire {
        Wire::Http => vec![thread::spawn(move || {
            let streams: Vec<TcpStream> = (0..500).map(|_| connect(target.address)).collect();
            for mut stream in &streams {
                for _ in 0..8 {
                    let (path, len) = ("/v2/models/identity_slow_int32/infer", json.len());
                    let head =
                        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n\r\n");
                    let _ = stream.write_all(format!("{head}{json}").as_bytes());
                }
            }
            thread::sleep(time);
        })],
        Wire::Grpc => vec![thread::spawn(move || {
            let runtime = runtime();
            runtime.block_on(async {
                let mut calls = tokio::task::JoinSet::new();
                for _ in 0..8 {
                    let client = GrpcInferenceServiceClient::new(dial(target.address).await);
                    for _ in 0..500 {
                        let (mut client, asked) = (client.clone(), asked.clone());
                        calls.spawn(async move { client.model_infer(asked).await.map(drop) });
                    }
                }
                let all = async { while calls.join_next().await.is_some() {} };
                let _ = tokio::time::timeout(time, all).await;
            });
        })],
    }
}
