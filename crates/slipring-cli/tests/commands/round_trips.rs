//! `echo`, `ping` and `bench`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use slipring::{Context, Tensor, TensorSet, meta};

use crate::support::{self, Running, name, run, start};

/// Starts an echo, and waits until it listens.
fn echo(more: &[&str]) -> (Running, String) {
    let address = name();
    let mut echo = start([&["--json", "echo", &address], more].concat());
    assert_eq!(echo.json()["listening"], address);
    (echo, address)
}

#[test]
fn an_echo_sends_everything_back_as_it_came() {
    let (echo, address) = echo(&[]);
    let context = Context::new().unwrap();
    let mut link = context.connect(address.as_str()).unwrap();
    let metadata = meta! { "frame" => 7 }.unwrap();

    link.sender().send_with(b"hello", &metadata).unwrap();
    let (back, with) = link.receiver().recv_with().unwrap().unwrap();
    assert_eq!((&back[..], with.get("frame")), (&b"hello"[..], metadata.get("frame")));

    let (back, with) = link.call_with(&[7; 100_000], &metadata).unwrap();
    assert_eq!((back, with.get("frame")), (vec![7; 100_000], metadata.get("frame")));

    let mut set = TensorSet::new();
    set.insert("ids", Tensor::from_slice([1, 3], &[7i64, 8, 9]).unwrap()).unwrap();
    set.set_metadata(metadata.clone());
    link.sender().send_tensors(&set).unwrap();
    let back = link.receiver().recv_tensors().unwrap().unwrap();
    assert_eq!(back["ids"].to_vec::<i64>().unwrap(), [7, 8, 9]);
    assert_eq!(back.metadata().get("frame"), metadata.get("frame"));
    let back = link.call_tensors(&set).unwrap();
    assert_eq!(back["ids"].to_vec::<i64>().unwrap(), [7, 8, 9]);
    drop(back);
    link.close().unwrap();

    let done = echo.interrupt();
    assert_eq!(done.code, Some(0), "{done:?}");
    let served = done.json();
    assert_eq!((served["messages"].as_u64(), served["error"].as_str()), (Some(4), None));
    assert_eq!(served["pid"], std::process::id());
}

#[test]
fn ping_prints_each_reply_and_a_summary() {
    let (mut echo, address) = echo(&["--once"]);
    let done = run(["--json", "ping", &address, "--count", "3", "--interval", "1ms", "-s", "3"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.lines.len(), 4, "{done:?}");
    assert_eq!(support::json(&done.lines[2])["number"], 3);
    let summary = done.json();
    assert_eq!((summary["sent"].as_u64(), summary["received"].as_u64()), (Some(3), Some(3)));
    assert!(summary["nanos"]["min"].as_u64() <= summary["nanos"]["max"].as_u64());
    let served = echo.finish();
    assert_eq!((served.code, served.json()["bytes"].as_u64()), (Some(0), Some(9)));
}

#[test]
fn ping_sends_tensors_and_floods() {
    let (echo, address) = echo(&[]);
    let done = run(["ping", &address, "--tensor", "--flood", "-c", "500", "--size", "4KiB"]);
    assert_eq!((done.code, done.lines.len()), (Some(0), 2), "{done:?}");
    assert!(done.lines[1].starts_with("500 messages of 4096 bytes were sent, 500 came back: min "));
    assert_eq!(echo.interrupt().json()["bytes"], 500 * 4096);
}

#[test]
fn an_interrupted_ping_prints_its_summary() {
    let (_echo, address) = echo(&[]);
    let mut ping = start(["--json", "ping", &address]);
    ping.json();
    let done = ping.interrupt();
    assert_eq!((done.code, done.json()["sent"].as_u64()), (Some(0), Some(1)), "{done:?}");
}

#[test]
fn ping_tells_that_the_echo_is_stopped() {
    let (echo, address) = echo(&[]);
    let mut ping = start(["--json", "ping", &address, "-i", "1ms", "--timeout", "1s"]);
    ping.json();
    echo.signal(Signal::STOP);
    let done = ping.finish();
    assert_eq!(done.code, Some(6), "{done:?}");
    let who = format!("from process {} (slipring), which is stopped (T)", echo.pid());
    assert!(done.stderr.contains(&who), "{done:?}");
    assert!(done.json()["sent"].as_u64() > done.json()["received"].as_u64());
}

#[test]
fn ping_tells_who_is_not_there_and_who_died() {
    let done = run(["ping", &name()]);
    assert_eq!((done.code, done.lines.len()), (Some(3), 0), "{done:?}");
    assert!(done.stderr.contains("nobody listens on @"), "{done:?}");

    let (echo, address) = echo(&[]);
    let mut ping = start(["--json", "ping", &address, "-i", "1ms"]);
    ping.json();
    echo.signal(Signal::KILL);
    assert_eq!(ping.finish().code, Some(5));
}

#[test]
fn ping_refuses_a_reply_that_is_not_its_message() {
    let (context, address) = (Context::new().unwrap(), name());
    let mut listener = context.listen(address.as_str()).unwrap();
    let mut ping = start(["ping", &address]);
    let mut link = listener.accept_deadline(Instant::now() + support::PATIENCE).unwrap();
    link.recv().unwrap();
    link.send(&[1; 64]).unwrap();
    let done = ping.finish();
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("sends something else back"), "{done:?}");
}

#[test]
fn bench_prints_a_row_a_length_beside_its_floor() {
    let (_echo, address) = echo(&[]);
    let done = run(["--json", "bench", &address, "--sizes", "8,100KiB", "--duration", "1ms"]);
    assert_eq!((done.code, done.lines.len()), (Some(0), 2), "{done:?}");
    let row = done.json();
    assert_eq!(row["bytes"], 102_400);
    assert!(row["nanos"]["p50"].as_u64() > Some(0) && row["floor_nanos"]["p50"].as_u64() > Some(0));
    assert!(row["messages_per_second"].as_f64() > Some(0.0), "{row}");

    let done = run(["bench", &address, "--sizes", "2GiB"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("2147483648 bytes, a link takes 1073741824"), "{done:?}");
}

#[test]
fn an_echo_without_peers_ends_in_time() {
    let (mut echo, _) = echo(&["--timeout", "50ms"]);
    let done = echo.finish();
    assert_eq!(done.code, Some(6), "{done:?}");
}

#[test]
fn a_reader_that_leaves_ends_the_command_silently() {
    let (_echo, address) = echo(&[]);
    let mut ping = Command::new(env!("CARGO_BIN_EXE_slipring"))
        .args(["ping", &address, "-i", "1ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(ping.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let end = Instant::now() + support::PATIENCE;
    while ping.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            ping.kill().unwrap();
            panic!("ping does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let done = ping.wait_with_output().unwrap();
    assert_eq!((done.status.code(), done.stderr), (Some(0), vec![]));
}
