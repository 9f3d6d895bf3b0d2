//! A connection never keeps other clients out, and never keeps the server from its end.

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::http_served::{Client, Gate, SIMPLE, Served, ints, request, simple_json};
use crate::support::HANG;
use slipring_triton::Limits;

/// Far longer than any test may take.
const NEVER: Duration = Duration::from_secs(600);

#[test]
fn who_has_no_request_does_not_hold_up_the_end() {
    let limits = Limits::new().shutdown_timeout(NEVER).stall_timeout(NEVER).idle_timeout(NEVER);
    let served = Served::with(|builder| builder.limits(limits));
    let mut clients: Vec<Client> = (0..3).map(|_| served.client()).collect();
    clients[1].send(b"GET /v2");
    clients[2].call("POST", SIMPLE, &request(&simple_json(), &[])).ok();
    clients[2].send(b"POST /v2/models/simple/inf");
    served.get("/v2/health/live").is_ok();
    let (over, hears) = channel();
    std::thread::spawn(move || {
        drop(served);
        over.send(()).unwrap();
    });
    hears.recv_timeout(HANG).expect("the server ends");
    let mut served = crate::grpc_served::Served::with(|builder| builder.limits(limits));
    let silent = TcpStream::connect(served.address).unwrap();
    let mut half = TcpStream::connect(served.address).unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    let idle = served.client();
    served.infer(crate::grpc_served::identity(&ints(0..16))).unwrap();
    served.end();
    drop((silent, half, idle));
}

#[test]
fn who_takes_too_long_does_not_hold_up_the_end() {
    let limits = Limits::new()
        .shutdown_timeout(Duration::from_millis(200))
        .stall_timeout(NEVER)
        .idle_timeout(NEVER);
    let served = Served::with(|builder| builder.limits(limits));
    let mut slow = served.client();
    slow.send(b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
    served.get("/v2/health/live").is_ok();
    let (over, hears) = channel();
    std::thread::spawn(move || {
        drop(served);
        over.send(()).unwrap();
    });
    hears.recv_timeout(HANG).expect("the server ends");
    assert!(slow.try_answer().is_none());
}

#[test]
fn silent_connections_make_room_for_who_asks() {
    let limits = Limits::new().connections(3).stall_timeout(NEVER).idle_timeout(NEVER);
    let served = Served::with(|builder| builder.limits(limits));
    let mut silent: Vec<Client> = (0..3).map(|_| served.client()).collect();
    silent[0].send(b"GET /v2/health");
    silent[1].call("POST", SIMPLE, &request(&simple_json(), &[])).ok();
    for _ in 0..3 {
        let mut client = served.client();
        client.call("POST", SIMPLE, &request(&simple_json(), &[])).ok();
        // The client stays connected, while an older one loses its place.
        silent.push(client);
    }
    let served = crate::grpc_served::Served::with(|builder| builder.limits(limits));
    let silent: Vec<_> = (0..3).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    let clients: Vec<_> = (0..3).map(|_| served.client()).collect();
    for mut client in clients {
        served.run(client.model_infer(crate::grpc_served::identity(&ints(0..16)))).unwrap();
    }
    drop(silent);
}

#[test]
fn who_waits_for_an_answer_keeps_its_place() {
    let (gate, hears, go) = Gate::new();
    let limits = Limits::new().connections(1);
    let served = Served::with(|builder| builder.model(gate).limits(limits));
    let mut first = served.client();
    let raw = "Inference-Header-Content-Length: 0\r\n";
    first.start("POST", "/v2/models/gate/infer", raw, b"x");
    hears.recv_timeout(HANG).unwrap();
    let mut second = served.client();
    second.start("GET", "/v2/health/live", "", b"");
    assert!(second.is_silent(Duration::from_millis(1500)));
    go.send(()).unwrap();
    first.answer().ok();
    second.answer().is_ok();
}

#[test]
fn a_body_that_comes_in_drops_is_not_waited_for_forever() {
    let limits = Limits::new().stall_timeout(Duration::from_millis(250));
    let served = Served::with(|builder| builder.limits(limits));
    let mut client = served.client();
    client
        .send(b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n");
    let mut drops = 0;
    while client.is_silent(Duration::from_millis(10)) {
        drops += 1;
        assert!(drops < 1500, "each within the time, for ever");
        client.send(b" ");
    }
    client.answer().is_error(400, "the request's body has not come in time");
}

#[test]
fn limits_may_be_as_high_as_they_can() {
    let limits = Limits::new()
        .connections(usize::MAX)
        .json_bytes(usize::MAX)
        .request_bytes(u64::MAX)
        .response_bytes(u64::MAX)
        .bytes_in_flight(u64::MAX)
        .stall_timeout(Duration::MAX)
        .idle_timeout(Duration::MAX)
        .shutdown_timeout(Duration::MAX);
    let served = Served::with(|builder| builder.limits(limits));
    let json = request(&simple_json(), &[]);
    served.client().call_chunked(SIMPLE, "", &[json.as_bytes()]).ok();
    served.post(SIMPLE, &json).ok();
    let served = crate::grpc_served::Served::with(|builder| builder.limits(limits));
    served.infer(crate::grpc_served::identity(&ints(0..16))).unwrap();
}
