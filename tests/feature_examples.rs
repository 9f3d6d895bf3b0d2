//! Every example that needs a feature does what its first lines say.
//!
//! Before `cargo test --all-features --test feature_examples`, run `cargo build --all-features --examples`.

#[path = "support/example.rs"]
mod example;

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use example::{Example, HANG, after, connect, signal, soon, unique_name};

/// The lines of an example that times slipring beside something else: each ends in a ratio.
fn ratios(said: &str, starts: &[&str]) {
    for start in starts {
        let line = said.lines().find(|line| line.starts_with(start));
        let ratio = line.and_then(|line| line.rsplit(' ').next()).map(str::parse::<f64>);
        assert!(ratio.is_some_and(|ratio| ratio.is_ok_and(|ratio| ratio > 0.0)), "{start}: {said}");
    }
}

#[test]
fn an_async_link_is_timed_beside_a_socket() {
    ratios(&Example::start("async_echo", "").succeeds(), &["8 B: "]);
}

#[test]
fn a_classifier_executes_by_id() {
    let said = Example::start("commit", "").succeeds();
    for text in ["6 images by 2 sessions in turn: the scores are right", "updated to another image"]
    {
        assert!(said.contains(text), "{text}: {said}");
    }
}

#[test]
fn an_event_loop_serves_links_and_tcp() {
    use std::io::Write;

    let name = unique_name();
    let server = Example::start("event_loop", &format!("serve {name}"));
    server.says("listening on");
    let port: u16 = after(&server.said(), "127.0.0.1:");
    let mut patient = connect(&name);
    let rude = Example::start("event_loop", &format!("client {name}"));
    rude.succeeds();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(b"half a ").unwrap();
    let said = Example::start("event_loop", &format!("client {name} hello you")).succeeds();
    assert_eq!(said, "hello\nyou\n");
    stream.write_all(b"line\nrest").unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"half a line\n");
    // More than the ring has room for: the loop waits for room and goes on.
    for len in [0, 1, 100, 1 << 20] {
        patient.send(&vec![7; len]).unwrap();
        assert_eq!(patient.receiver().recv_deadline(soon()).unwrap(), Some(vec![7; len]));
    }
    drop(stream);
    patient.close().unwrap();
    server.says_times(": left", 4);
    server.says("7 lines, ");
}

#[test]
fn a_service_outlives_its_worker() {
    let service = Example::start("embed", "");
    service.says("counts words");
    let port: u16 = after(&service.said(), "127.0.0.1:");
    for (round, body) in ["one two three", "four five", ""].into_iter().enumerate() {
        service.says_times(" is there", round + 1);
        let answer = post(port, body);
        let words = body.split_whitespace().count();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&format!("\n{words}\n")));
        let said = service.said();
        let worker = said.lines().rfind(|line| line.contains(" is there")).unwrap();
        signal(after(worker, "worker "), rustix::process::Signal::KILL);
        service.says_times("the worker is lost", round + 1);
    }
    // Killed with a request in its hands: that one is refused, the next is answered.
    service.says_times(" is there", 4);
    let said = service.said();
    let worker = after(said.lines().rfind(|line| line.contains(" is there")).unwrap(), "worker ");
    signal(worker, rustix::process::Signal::STOP);
    let refused = thread::spawn(move || post(port, "a b"));
    thread::sleep(Duration::from_millis(200));
    signal(worker, rustix::process::Signal::KILL);
    let refused = refused.join().unwrap();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(post(port, "a b").ends_with("\n2\n"));
}

/// Asks for the number of words in a body.
fn post(port: u16, body: &str) -> String {
    use std::io::Write;

    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let length = body.len();
    let head = format!("Host: here\r\nConnection: close\r\nContent-Length: {length}\r\n");
    write!(stream, "POST /count HTTP/1.1\r\n{head}\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_of_metrics_tells_of_messages_that_go_on() {
    use std::io::Write;

    let example = Example::start("metrics", "--port 0");
    example.says("/metrics");
    let port = after(&example.said(), "http://127.0.0.1:");
    let page = || {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
        answer
    };
    let sent = || -> f64 {
        let page = page();
        let is_of = |line: &&str| {
            line.starts_with("slipring_messages_total{")
                && line.contains("slipring_role=\"connected\"")
                && line.contains("network_io_direction=\"transmit\"")
        };
        let line = page.lines().find(is_of);
        line.map_or(0.0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    };
    let deadline = soon();
    let mut first = 0.0;
    while first == 0.0 || sent() < first + 20.0 {
        first = if first == 0.0 { sent() } else { first };
        assert!(Instant::now() < deadline, "{}", page());
    }
    example.kill();
}

#[test]
fn http_and_grpc_go_over_slipring() {
    for example in ["http_over_slipring", "grpc_over_slipring"] {
        let said = Example::start(example, "--slices 2").succeeds();
        ratios(&said, &["64 B: ", "1 MiB: "]);
    }
}
