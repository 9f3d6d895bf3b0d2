//! A Triton client that keeps its tensors in shared memory.
//!
//! ```text
//! cargo run --release -p slipring-triton --example triton_server -- --http 127.0.0.1:8000
//! cargo run --release -p slipring-triton --example triton_client -- 127.0.0.1:8000
//! ```
//!
//! Expect `OUTPUT0 = 16 sums, the first 0 + 100 = 100, the last 15 + 115 = 130`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use slipring::region::PosixShm;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// 16 elements of 4 bytes.
const TENSOR: u64 = 64;

/// Sends JSON and returns the response's body.
fn post(server: &mut BufReader<TcpStream>, path: &str, json: &str) -> Result<String> {
    let len = json.len();
    let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n\r\n{json}");
    server.get_mut().write_all(request.as_bytes())?;
    let (mut status, mut len) = (String::new(), 0);
    server.read_line(&mut status)?;
    loop {
        let mut line = String::new();
        server.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            len = value.trim().parse()?;
        }
    }
    let mut body = vec![0; len];
    server.read_exact(&mut body)?;
    let body = String::from_utf8(body)?;
    if status.contains(" 200 ") { Ok(body) } else { Err(body.into()) }
}

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let mut server = BufReader::new(TcpStream::connect(address)?);

    // Two inputs and an output share one object, which is removed on drop.
    let key = format!("/slipring-client-{}", std::process::id());
    let object = PosixShm::create(&key, 3 * TENSOR)?;
    let bytes = |start: i32| (start..start + 16).flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
    object.write_at(0, &bytes(0))?;
    object.write_at(TENSOR, &bytes(100))?;

    let region = "/v2/systemsharedmemory/region/example";
    let size = 3 * TENSOR;
    let register = format!(r#"{{"key":"{key}","offset":0,"byte_size":{size}}}"#);
    post(&mut server, &format!("{region}/register"), &register)?;

    let place = |offset| {
        format!(
            r#""parameters":{{"shared_memory_region":"example","shared_memory_offset":{offset},"shared_memory_byte_size":{TENSOR}}}"#
        )
    };
    let input =
        |name, place| format!(r#"{{"name":"{name}","datatype":"INT32","shape":[1,16],{place}}}"#);
    let (x, y) = (input("INPUT0", place(0)), input("INPUT1", place(TENSOR)));
    let output = format!(r#"{{"name":"OUTPUT0",{}}}"#, place(2 * TENSOR));
    let request = format!(r#"{{"inputs":[{x},{y}],"outputs":[{output}]}}"#);
    post(&mut server, "/v2/models/simple/infer", &request)?;

    let mut sums = [0; TENSOR as usize];
    object.read_at(2 * TENSOR, &mut sums)?;
    let sums: Vec<i32> = sums.as_chunks().0.iter().map(|sum| i32::from_le_bytes(*sum)).collect();
    let (first, last) = (sums[0], sums[15]);
    println!("OUTPUT0 = 16 sums, the first 0 + 100 = {first}, the last 15 + 115 = {last}");
    post(&mut server, &format!("{region}/unregister"), "")?;
    Ok(())
}
