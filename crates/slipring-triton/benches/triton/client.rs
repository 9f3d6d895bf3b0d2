//! Prepared requests, and a connection that sends them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::LONG;

/// An encoded request.
pub struct Job(Vec<u8>);

pub struct Jobs {
    pub binary: Job,
    pub json: Job,
    pub shared: Job,
    pub long_shared: Job,
    pub long_binary: Job,
}

fn job(model: &str, json: &str, tail: &[u8]) -> Job {
    let (len, all) = (json.len(), json.len() + tail.len());
    let head = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len}\r\nContent-Length: {all}\r\n\r\n{json}"
    );
    Job([head.as_bytes(), tail].concat())
}

fn tensor(name: &str, dtype: &str, count: usize, rest: &str) -> String {
    format!(r#"{{"name":"{name}","datatype":"{dtype}","shape":[1,{count}],{rest}}}"#)
}

fn window(offset: usize, len: usize) -> String {
    format!(
        r#""parameters":{{"shared_memory_region":"bench","shared_memory_offset":{offset},"shared_memory_byte_size":{len}}}"#
    )
}

pub fn jobs() -> Jobs {
    let simple = |rest: [&str; 2], outputs: &str| {
        let inputs = ["INPUT0", "INPUT1"].into_iter().zip(rest);
        let inputs: Vec<String> =
            inputs.map(|(name, rest)| tensor(name, "INT32", 16, rest)).collect();
        format!(r#"{{"inputs":[{}]{outputs}}}"#, inputs.join(","))
    };
    let size = r#""parameters":{"binary_data_size":64}"#;
    let binary = r#","parameters":{"binary_data_output":true}"#;
    let data = format!(r#""data":{:?}"#, (0..16).collect::<Vec<_>>());
    let shared = format!(
        r#","outputs":[{{"name":"OUTPUT0",{}}},{{"name":"OUTPUT1",{}}}]"#,
        window(128, 64),
        window(192, 64)
    );
    let output = format!(r#","outputs":[{{"name":"OUTPUT0",{}}}]"#, window(2 * LONG, LONG));
    let long = |rest: &str, outputs: &str| {
        format!(r#"{{"inputs":[{}]{outputs}}}"#, tensor("INPUT0", "FP32", LONG / 4, rest))
    };
    let long_size = format!(r#""parameters":{{"binary_data_size":{LONG}}}"#);
    Jobs {
        binary: job("simple", &simple([size, size], binary), &[1; 128]),
        json: job("simple", &simple([&data, &data], ""), b""),
        shared: job("simple", &simple([&window(0, 64), &window(64, 64)], &shared), b""),
        long_shared: job("identity_fp32", &long(&window(0, LONG), &output), b""),
        long_binary: job("identity_fp32", &long(&long_size, binary), &vec![1; LONG]),
    }
}

pub struct Client {
    stream: TcpStream,
    room: Vec<u8>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Self { stream, room: vec![0; LONG + 4096] }
    }

    /// Sends a request and receives the whole response, which must be a success.
    pub fn call(&mut self, job: &Job) {
        self.answer(job);
    }

    /// Sends a request. Returns the header and body of its response.
    pub fn answer(&mut self, Job(request): &Job) -> (&str, &[u8]) {
        let Self { stream, room } = self;
        // The client reads after it has sent everything, as the server does. Long messages would else fill both
        // directions.
        stream.write_all(request).expect("to send");
        let (mut len, mut whole) = (0, None);
        while whole.is_none_or(|(_, whole)| len < whole) {
            let more = stream.read(&mut room[len..]).expect("to receive");
            assert!(more > 0, "the server has hung up");
            len += more;
            if whole.is_none()
                && let Some(at) = room[..len].windows(4).position(|four| four == b"\r\n\r\n")
            {
                let head = std::str::from_utf8(&room[..at]).expect("a head");
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                let mut lines = head.lines();
                let length = lines.find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>())
                });
                let body = length.expect("a length").expect("a number");
                whole = Some((at + 4, at + 4 + body));
            }
        }
        let (head, whole) = whole.expect("a whole answer");
        let head_text = std::str::from_utf8(&self.room[..head]).expect("a head");
        (head_text, &self.room[head..whole])
    }

    pub fn register(&mut self, name: &str, key: &str, len: usize) {
        let json = format!(r#"{{"key":"{key}","byte_size":{len}}}"#);
        let len = json.len();
        let request = format!(
            "POST /v2/systemsharedmemory/region/{name}/register HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n\r\n{json}"
        );
        self.call(&Job(request.into_bytes()));
    }

    /// Sends `len` bytes and receives them.
    pub fn echo(&mut self, len: usize) {
        self.stream.write_all(&self.room[..len]).expect("to send");
        self.stream.read_exact(&mut self.room[..len]).expect("to receive");
    }
}
