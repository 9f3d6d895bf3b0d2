//! A front of this process over HTTP, and a client that sends any bytes.

// Each test binary uses a part of this module.
#![allow(dead_code)]

#[path = "../../examples/triton_server/models/mod.rs"]
pub mod models;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use slipring::DType;
use slipring::region::PosixShm;
use slipring_triton::{
    Bound, Front, FrontBuilder, Inputs, Model, ModelError, ModelMetadata, Outputs, Protocol,
    Server, TensorSpec,
};
use tokio::sync::oneshot;

use crate::support::{HANG, unique_name};

/// A front on a port of its own. It ends on drop.
pub struct Served {
    pub front: Front,
    pub address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves all reference models, by copy.
    pub fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub fn with(shape: impl FnOnce(FrontBuilder) -> FrontBuilder) -> Self {
        Self::of(shape(models::add_all(Front::builder())).build().unwrap())
    }

    pub fn of(front: Front) -> Self {
        Self::on(front, 2)
    }

    /// Serves on a runtime of so many threads.
    pub fn on(front: Front, threads: usize) -> Self {
        let (end, ended) = oneshot::channel();
        let (told, hears) = std::sync::mpsc::channel();
        let served = front.clone();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(threads).enable_all().build().unwrap();
            // A task, because the thread that calls `block_on` is another one.
            let serving = async move {
                let mut server = Server::new(served);
                let bound = server.listen(Protocol::Http, "127.0.0.1:0").await.unwrap();
                told.send(bound).unwrap();
                let ended = async { drop(ended.await) };
                server.serve(ended).await.unwrap();
            };
            runtime.block_on(runtime.spawn(serving)).unwrap();
        });
        let Bound::Tcp(address) = hears.recv().unwrap() else { panic!("no address") };
        Self { front, address, end: Some(end), thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Sends one request on a new connection.
    pub fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.client().call(method, path, body)
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.call("POST", path, body)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "")
    }

    /// Creates a POSIX shared memory object and registers all of it under `name`.
    pub fn region(&self, name: &str, len: u64) -> PosixShm {
        let object = PosixShm::create(&format!("/{}", unique_name()), len).unwrap();
        self.register(name, object.key(), 0, len).is_ok();
        object
    }

    pub fn register(&self, name: &str, key: &str, offset: u64, len: u64) -> Answer {
        let path = format!("/v2/systemsharedmemory/region/{name}/register");
        self.post(&path, &format!(r#"{{"key":"{key}","offset":{offset},"byte_size":{len}}}"#))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        let done = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            done.unwrap();
        }
    }
}

/// How long a response may take. A debug build beside other tests writes megabytes of JSON in seconds.
const ANSWER: Duration = Duration::from_secs(3 * HANG.as_secs());

/// A connection that stays open.
pub struct Client {
    stream: TcpStream,
    /// Received bytes that are not yet consumed.
    received: Vec<u8>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        Self { stream, received: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes to a server that may have closed the connection.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Closes the sending side.
    pub fn stop_sending(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Sends a request with a length and further header lines, each of which ends in `\r\n`.
    pub fn start(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let len = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n{headers}\r\n"
        );
        self.send(&[head.as_bytes(), body].concat());
    }

    pub fn call(&mut self, method: &str, path: &str, body: &str) -> Answer {
        self.call_with(method, path, "", body.as_bytes())
    }

    pub fn call_with(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.start(method, path, headers, body);
        self.answer()
    }

    /// Sends an inference request whose tensors follow its JSON.
    pub fn infer(&mut self, model: &str, json: &str, tail: &[u8]) -> Answer {
        let headers = format!("Inference-Header-Content-Length: {}\r\n", json.len());
        let path = format!("/v2/models/{model}/infer");
        self.call_with("POST", &path, &headers, &[json.as_bytes(), tail].concat())
    }

    /// Sends each piece as a chunk of its own.
    pub fn call_chunked(&mut self, path: &str, headers: &str, pieces: &[&[u8]]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{headers}\r\n"
        );
        self.send(head.as_bytes());
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            self.send(format!("{:x}\r\n", piece.len()).as_bytes());
            self.send(piece);
            self.send(b"\r\n");
        }
        self.send(b"0\r\n\r\n");
        self.answer()
    }

    /// Returns the next response, or `None` if the server closes the connection.
    pub fn try_answer(&mut self) -> Option<Answer> {
        let head_len = loop {
            if let Some(at) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.receive()?;
        };
        let head: Vec<u8> = self.received.drain(..head_len).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut answer = Answer { status, headers, body: Vec::new() };
        let len = answer.header("content-length").map_or(0, |len| len.parse().unwrap());
        while self.received.len() < len {
            self.receive()?;
        }
        answer.body = self.received.drain(..len).collect();
        Some(answer)
    }

    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    /// Receives bytes. Returns `None` if the server has closed the connection.
    fn receive(&mut self) -> Option<()> {
        let mut room = vec![0; 256 << 10];
        match self.stream.read(&mut room) {
            Ok(0) => None,
            Ok(len) => {
                self.received.extend_from_slice(&room[..len]);
                Some(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns whether nothing arrives for a while.
    pub fn is_silent(&mut self, during: Duration) -> bool {
        self.stream.set_read_timeout(Some(during)).unwrap();
        let nothing = self.stream.peek(&mut [0]).is_err() && self.received.is_empty();
        self.stream.set_read_timeout(Some(ANSWER)).unwrap();
        nothing
    }
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(is, _)| is == name).map(|(_, value)| &**value)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Returns the JSON, which `Inference-Header-Content-Length` delimits.
    pub fn json(&self) -> serde_json::Value {
        let len = self.header("inference-header-content-length");
        let len = len.map_or(self.body.len(), |len| len.parse().unwrap());
        serde_json::from_slice(&self.body[..len]).unwrap()
    }

    /// Returns the bytes behind the JSON.
    pub fn tail(&self) -> &[u8] {
        let len = self.header("inference-header-content-length").unwrap();
        &self.body[len.parse().unwrap()..]
    }

    /// Asserts a success with JSON.
    pub fn ok(&self) -> serde_json::Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// Asserts a success without a body.
    pub fn is_ok(&self) {
        assert_eq!((self.status, self.text()), (200, ""));
        assert_eq!(self.header("content-type"), Some("application/json"));
    }

    /// Asserts an error. Returns its status and text.
    #[track_caller]
    pub fn error(&self) -> (u16, String) {
        assert_ne!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/json"));
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        (self.status, json["error"].as_str().unwrap().to_owned())
    }

    #[track_caller]
    pub fn is_error(&self, status: u16, text: &str) {
        let (is, says) = self.error();
        assert_eq!((is, &*says), (status, text));
    }

    /// Asserts an error whose text contains `part`.
    #[track_caller]
    pub fn has_error(&self, status: u16, part: &str) {
        let (is, says) = self.error();
        assert!(is == status && says.contains(part), "{is} {says}");
    }
}

/// Returns `"parameters"` that name a window of a region.
pub fn window(region: &str, offset: u64, len: u64) -> String {
    format!(
        r#""parameters":{{"shared_memory_region":"{region}","shared_memory_offset":{offset},"shared_memory_byte_size":{len}}}"#
    )
}

/// Returns an input as JSON.
pub fn tensor(name: &str, dtype: &str, shape: &str, source: &str) -> String {
    format!(r#"{{"name":"{name}","datatype":"{dtype}","shape":{shape},{source}}}"#)
}

/// Returns a request of these inputs and outputs. Without outputs it has no list of them.
pub fn request(inputs: &[String], outputs: &[String]) -> String {
    let inputs = inputs.join(",");
    match outputs {
        [] => format!(r#"{{"inputs":[{inputs}]}}"#),
        _ => format!(r#"{{"inputs":[{inputs}],"outputs":[{}]}}"#, outputs.join(",")),
    }
}

pub fn ints(range: std::ops::Range<i32>) -> Vec<u8> {
    range.flat_map(i32::to_le_bytes).collect()
}

pub const SIMPLE: &str = "/v2/models/simple/infer";

/// Returns the inputs of `simple`: 0..16 and 100..116 as JSON.
pub fn simple_json() -> [String; 2] {
    let data = |range: std::ops::Range<i32>| format!(r#""data":{:?}"#, range.collect::<Vec<_>>());
    [
        tensor("INPUT0", "INT32", "[1,16]", &data(0..16)),
        tensor("INPUT1", "INT32", "[1,16]", &data(100..116)),
    ]
}

/// A model "gate" of one input "I" of bytes. It reports each call and waits for a permit.
pub struct Gate {
    metadata: ModelMetadata,
    reached: Mutex<mpsc::Sender<()>>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Gate {
    /// Returns the model, the receiver of its reports, and the sender of permits.
    pub fn new() -> (Self, mpsc::Receiver<()>, mpsc::Sender<()>) {
        Self::of(|metadata| metadata)
    }

    /// Returns the same with changed metadata.
    pub fn of(
        shape: impl FnOnce(ModelMetadata) -> ModelMetadata,
    ) -> (Self, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((reached, hears), (go, told)) = (mpsc::channel(), mpsc::channel());
        let metadata = ModelMetadata::new("gate").input(TensorSpec::new("I", DType::Uint8, [None]));
        let metadata = shape(metadata);
        let gate = Self { metadata, reached: Mutex::new(reached), go: Mutex::new(told) };
        (gate, hears, go)
    }
}

impl Model for Gate {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, _: &Inputs, _: &mut Outputs) -> Result<(), ModelError> {
        self.reached.lock().unwrap().send(()).unwrap();
        self.go.lock().unwrap().recv_timeout(HANG).unwrap();
        Ok(())
    }
}
