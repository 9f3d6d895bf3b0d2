//! Clients send anything over HTTP, slowly or in part. The server answers or hangs up, and goes on.
//!
//! These tests count descriptors and memory of their process, so they have a binary of their own.

#[path = "../served/http.rs"]
mod http_served;
#[path = "../../../../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use http_served::{Client, Gate, SIMPLE, Served, ints, request, simple_json, tensor, window};
use slipring_triton::{Front, Limits};
use support::census::descriptors;
use support::{HANG, wait_until};

fn lives(served: &Served) {
    served.post(SIMPLE, &request(&simple_json(), &[])).ok();
}

/// Returns a request to `simple` with binary tensors.
fn whole() -> Vec<u8> {
    let binary = |name| tensor(name, "INT32", "[1,16]", r#""parameters":{"binary_data_size":64}"#);
    let json = request(&[binary("INPUT0"), binary("INPUT1")], &[]);
    let head = format!(
        "POST {SIMPLE} HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
        json.len(),
        json.len() + 128
    );
    [head.as_bytes(), json.as_bytes(), &ints(0..32)].concat()
}

#[test]
fn requests_without_a_pause_leave_the_runtime_to_other_connections() {
    // The worker asks for events of other connections after 61 polls, and a poll serves up to 16 requests.
    const MOST: u64 = 300;
    let front = http_served::models::add_all(Front::builder()).build().unwrap();
    let served = Served::on(front, 1);
    let requests = || {
        let counted = served.front.statistics(Some("simple"), None).unwrap();
        counted[0].counts.success.count
    };
    let sending = TcpStream::connect(served.address).unwrap();
    let mut reading = sending.try_clone().unwrap();
    let writer = {
        let (mut sending, requests) = (sending.try_clone().unwrap(), whole().repeat(256));
        thread::spawn(move || while sending.write_all(&requests).is_ok() {})
    };
    let reader = thread::spawn(move || {
        let mut room = vec![0; 1 << 20];
        while reading.read(&mut room).is_ok_and(|len| len > 0) {}
    });
    wait_until("requests are served", || requests() > 0);
    let mut honest = served.client();
    let mut beside: Vec<u64> = (0..31)
        .map(|_| {
            let before = requests();
            honest.call("GET", "/v2/health/live", "").is_ok();
            requests() - before
        })
        .collect();
    sending.shutdown(Shutdown::Both).unwrap();
    writer.join().unwrap();
    reader.join().unwrap();
    beside.sort_unstable();
    assert!(beside[15] <= MOST, "requests of the other connection beside each: {beside:?}");
}

#[test]
fn half_requests_and_hang_ups_lose_nothing() {
    let served = Served::new();
    let whole = whole();
    lives(&served);
    let before = descriptors();
    for len in 0..whole.len() {
        let mut client = served.client();
        client.send(&whole[..len]);
        client.hang_up();
    }
    wait_until("connections are given back", || descriptors() <= before + 40);
    let mut client = served.client();
    // Two segments, cut at any byte, also inside of the path.
    for cut in (0..whole.len()).step_by(7) {
        client.send(&whole[..cut]);
        client.send(&whole[cut..]);
        client.answer().ok();
    }
    lives(&served);
}

#[test]
fn requests_may_follow_each_other_without_waiting() {
    let served = Served::new();
    let mut client = served.client();
    let bad = format!("POST {SIMPLE} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{{x}}");
    let requests = [whole(), bad.into_bytes(), whole()].concat();
    client.send(&requests);
    client.answer().ok();
    client.answer().has_error(500, "failed to parse");
    client.answer().ok();
}

#[test]
fn long_bodies_of_refused_requests_leave_the_connection_in_step() {
    let served = Served::new();
    let mut client = served.client();
    let body = vec![b'x'; 8 << 20];
    for (path, status) in [("/v2/models/none/infer", 404), ("/nowhere", 404), ("/v2", 405)] {
        let answer = client.call_with("POST", path, "", &body);
        assert_eq!(answer.status, status);
    }
    let header = "Inference-Header-Content-Length: junk\r\n";
    client.call_with("POST", SIMPLE, header, &body).has_error(400, "Unable to parse");
    client.call("POST", SIMPLE, &request(&simple_json(), &[])).ok();
}

#[test]
fn slow_clients_are_not_waited_for_forever() {
    let patience = Duration::from_millis(300);
    let limits = Limits::new().stall_timeout(patience).idle_timeout(patience);
    let served = Served::with(|builder| builder.limits(limits));
    let whole = whole();
    // Inside of the header, and before it.
    for len in [0, 20] {
        let mut client = served.client();
        client.send(&whole[..len]);
        assert!(client.try_answer().is_none(), "{len} bytes of a head");
    }
    // Inside of the body.
    for missing in [1, 100, 300] {
        let mut client = served.client();
        client.send(&whole[..whole.len() - missing]);
        let answer = client.answer();
        answer.is_error(400, "the request's body has not come in time");
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.try_answer().is_none());
    }
    // A slow client makes progress: each byte arrives in time.
    let mut client = served.client();
    for byte in whole.chunks(whole.len() / 4) {
        client.send(byte);
        std::thread::sleep(patience / 4);
    }
    client.answer().ok();
}

#[test]
fn many_slow_clients_hold_up_nobody() {
    let served = Served::new();
    let whole = whole();
    let slow: Vec<Client> = (0..200)
        .map(|at| {
            let mut client = served.client();
            client.send(&whole[..at % whole.len()]);
            client
        })
        .collect();
    lives(&served);
    drop(slow);
}

#[test]
fn limits_bound_what_is_read() {
    let limits = Limits::new().request_bytes(1 << 20).json_bytes(10_000);
    let served = Served::with(|builder| builder.limits(limits));
    let mut client = served.client();
    let spaces = " ".repeat(10_001);
    client.call("POST", SIMPLE, &spaces).is_error(400, "request JSON of more than 10000 bytes");
    client
        .call_chunked(SIMPLE, "", &[spaces.as_bytes()])
        .is_error(400, "request JSON of more than 10000 bytes");
    client.infer("simple", &spaces, b"").is_error(400, "request JSON of more than 10000 bytes");
    let input = |len: usize| {
        let source = format!(r#""parameters":{{"binary_data_size":{len}}}"#);
        request(&[tensor("INPUT0", "UINT8", &format!("[1,{len}]"), &source)], &[])
    };
    let long = vec![0; 1 << 20];
    let answer = client.infer("identity_uint8", &input(1 << 20), &long);
    answer.is_error(400, "request of more than 1048576 bytes");
    let raw = "Inference-Header-Content-Length: 0\r\n";
    client.call_with("POST", "/v2/models/identity_uint8/infer", raw, &long).ok();
    let longer = [&long[..], b"x"].concat();
    client.call_with("POST", "/v2/models/identity_uint8/infer", raw, &longer).error();
    client.infer("identity_uint8", &input(1000), &long[..1000]).ok();
    // A registration has a few bytes.
    let key = format!(r#"{{"key":"{}","byte_size":64}}"#, "k".repeat(70_000));
    client
        .call("POST", "/v2/systemsharedmemory/region/r/register", &key)
        .has_error(400, "more than");
}

#[test]
fn bytes_under_way_are_bounded_together() {
    let (gate, hears, go) = Gate::new();
    let limits = Limits::new().bytes_in_flight(1500 << 10);
    let served = Served::with(|builder| builder.model(gate).limits(limits));
    let raw = "Inference-Header-Content-Length: 0\r\n";
    let path = "/v2/models/identity_uint8/infer";
    let bytes = vec![1; 600 << 10];
    let mut first = served.client();
    first.start("POST", "/v2/models/gate/infer", raw, &bytes);
    hears.recv_timeout(HANG).unwrap();
    let mut second = served.client();
    let full = "too many bytes are in flight: retry later, or raise Limits::bytes_in_flight";
    second.call_with("POST", path, raw, &bytes).is_error(503, full);
    second.call_with("POST", path, raw, &bytes[..400 << 10]).ok();
    go.send(()).unwrap();
    first.answer().ok();
    second.call_with("POST", path, raw, &bytes).ok();
}

#[test]
fn what_runs_on_is_under_way_though_its_client_is_gone() {
    let (gate, hears, go) = Gate::new();
    let limits = Limits::new().bytes_in_flight(1500 << 10);
    let served = Served::with(|builder| builder.model(gate).limits(limits));
    let raw = "Inference-Header-Content-Length: 0\r\n";
    let path = "/v2/models/identity_uint8/infer";
    let bytes = vec![1; 600 << 10];
    let mut first = served.client();
    first.start("POST", "/v2/models/gate/infer", raw, &bytes);
    hears.recv_timeout(HANG).unwrap();
    first.hang_up();
    // Long enough for the server to notice.
    let mut second = served.client();
    for _ in 0..50 {
        second.call_with("POST", path, raw, &bytes).has_error(503, "in flight");
        std::thread::sleep(Duration::from_millis(4));
    }
    go.send(()).unwrap();
    wait_until("its bytes come back", || second.call_with("POST", path, raw, &bytes).status == 200);
}

#[test]
fn a_refused_request_gives_its_bytes_back_before_its_body_has_come() {
    let limits = Limits::new().bytes_in_flight(1500 << 10).request_bytes(1 << 20);
    let served = Served::with(|builder| builder.limits(limits));
    let start = |header: &str, body: &[u8]| {
        let mut client = served.client();
        let path = "/v2/models/identity_uint8/infer";
        let len = 8 << 20;
        client.send(
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len}\r\n{header}\r\n")
                .as_bytes(),
        );
        client.send(body);
        client
    };
    let no_json = format!("Inference-Header-Content-Length: {}\r\n", 700 << 10);
    let coded = "Content-Encoding: gzip\r\n";
    let coded_raw = format!("{coded}Inference-Header-Content-Length: 0\r\n");
    let no_length = format!("{coded}Inference-Header-Content-Length: {}\r\n", u64::MAX);
    // The shape of one element, and the bytes of many.
    let many = format!(r#""parameters":{{"binary_data_size":{}}}"#, 900 << 10);
    let json = request(&[tensor("INPUT0", "UINT8", "[1,1]", &many)], &[]);
    let mismatch = format!("Inference-Header-Content-Length: {}\r\n", json.len());
    let stopped = [
        start(&no_json, &vec![b'x'; 900 << 10]),
        start(coded, &bomb(b'x', 2)),
        start(&coded_raw, &bomb(0, 4)),
        start(&no_length, &bomb(b' ', 1)),
        start(&mismatch, &[json.as_bytes(), &vec![0; 899 << 10]].concat()),
    ];
    let raw = "Inference-Header-Content-Length: 0\r\n";
    let mut honest = served.client();
    // Long enough for the server to read what the others have sent.
    for _ in 0..30 {
        let path = "/v2/models/identity_uint8/infer";
        let mut is_served = || honest.call_with("POST", path, raw, &[1; 600 << 10]).status == 200;
        wait_until("a refused request has no share", &mut is_served);
        thread::sleep(Duration::from_millis(4));
    }
    drop(stopped);
}

/// Returns the peak memory of this process in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Returns equal bytes, compressed.
fn bomb(byte: u8, mib: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let block = vec![byte; 1 << 20];
    (0..mib).for_each(|_| encoder.write_all(&block).unwrap());
    encoder.finish().unwrap()
}

#[test]
fn bombs_take_bounded_memory() {
    let limits = Limits::new().request_bytes(32 << 20).json_bytes(8 << 20);
    let served = Served::with(|builder| builder.limits(limits));
    lives(&served);
    let before = peak();
    let mut client = served.client();
    let coded = "Content-Encoding: gzip\r\n";
    for byte in [b' ', b'[', b'1'] {
        let answer = client.call_with("POST", SIMPLE, coded, &bomb(byte, 320));
        answer.has_error(400, "request JSON of more than");
    }
    let raw = format!("{coded}Inference-Header-Content-Length: 0\r\n");
    client.call_with("POST", "/v2/models/identity_uint8/infer", &raw, &bomb(0, 320)).error();
    // A claimed length takes no memory.
    let header = format!("{coded}Inference-Header-Content-Length: {}\r\n", u64::MAX / 2);
    client.call_with("POST", SIMPLE, &header, &bomb(b' ', 320)).error();
    // Deep, long, and with long numbers, inside of the limits.
    for text in [
        "[".repeat(8 << 20),
        "{\"a\":".repeat(1 << 20),
        format!("{{\"inputs\":[{}7]}}", "7,".repeat(3 << 20)),
        format!("{{\"inputs\":[{}{{}}]}}", "{},".repeat(2 << 20)),
        format!(
            "{{\"inputs\":[{{\"name\":\"I\",\"datatype\":\"INT32\",\"shape\":[{}1]}}]}}",
            "1,".repeat(3 << 20)
        ),
        format!(
            "{{\"inputs\":[{{\"name\":\"I\",\"datatype\":\"INT32\",\"shape\":[{}]}}]}}",
            "9".repeat(7 << 20)
        ),
        format!("{{\"inputs\":[],\"id\":\"{}\"}}", "\\u0000".repeat(1 << 20)),
        format!("{{\"parameters\":{{\"x\":1e{}}},\"inputs\":[]}}", "9".repeat(7 << 20)),
        format!("{{{}\"x\":1}}", "\"parameters\":{},".repeat(400_000)),
    ] {
        let started = Instant::now();
        client.call("POST", SIMPLE, &text).error();
        assert!(started.elapsed() < Duration::from_secs(10), "{}", &text[..40]);
    }
    lives(&served);
    let grown = peak() - before;
    // The test's own requests, the limits, and copies of texts. The clients have sent 1.6 GiB.
    assert!(grown < 250 << 20, "{} MiB", grown >> 20);
}

#[test]
fn bodies_that_are_not_what_they_say() {
    let served = Served::new();
    let mut client = served.client();
    let json = request(&simple_json(), &[]);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(json.as_bytes()).unwrap();
    let coded = encoder.finish().unwrap();
    let mut call = |header: &str, body: &[u8]| {
        client.call_with("POST", SIMPLE, &format!("Content-Encoding: {header}\r\n"), body)
    };
    call("gzip", &coded).ok();
    for cut in [0, 5, 12, coded.len() / 2, coded.len() - 1] {
        call("gzip", &coded[..cut]).error();
    }
    call("gzip", json.as_bytes()).is_error(400, "failed to decompress the request");
    call("deflate", &coded).is_error(400, "failed to decompress the request");
    for at in 10..coded.len() {
        let mut wrong = coded.clone();
        wrong[at] ^= 0x55;
        // The damaged data may still decompress. Its checksum or its JSON then fails.
        call("gzip", &wrong).error();
    }
    lives(&served);
}

#[test]
fn whatever_bytes_come_the_server_goes_on() {
    let served = Served::new();
    let object = served.region("r", 4096);
    object.write_at(0, &[1; 4096]).unwrap();
    let shared = request(
        &[tensor("INPUT0", "INT32", "[1,16]", &window("r", 0, 64))],
        &[format!(r#"{{"name":"OUTPUT0",{}}}"#, window("r", 64, 64))],
    );
    let shared = format!(
        "POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{shared}",
        shared.len()
    );
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for original in [whole(), shared.into_bytes()] {
        for _ in 0..1500 {
            let mut bytes = original.clone();
            for _ in 0..1 + random() % 4 {
                let at = random() % bytes.len();
                match random() % 4 {
                    0 => bytes[at] = random() as u8,
                    1 => bytes[at] = b"0189-\"{}[],:\r\n "[random() % 15],
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, bytes[random() % bytes.len()]),
                }
            }
            let mut client = served.client();
            client.try_send(&bytes);
            client.stop_sending();
            while client.try_answer().is_some() {}
        }
        lives(&served);
    }
}
