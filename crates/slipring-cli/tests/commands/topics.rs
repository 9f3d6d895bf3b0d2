//! `pub`, `sub` and `hz`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use slipring::broadcast::{PublishOptions, Publisher, SubscribeOptions};
use slipring::message::Metadata;
use slipring::{Context, Tensor, TensorSet, meta};

use crate::support::{PATIENCE, Running, json, name, run, start};

/// A folder of a test, which is removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(name());
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a publisher, and waits until it is there.
pub fn publish(address: &str, more: &[&str]) -> Running {
    let mut running = start([&["--json", "pub", address], more].concat());
    assert_eq!(running.json()["publishing"], address);
    running
}

fn publisher(options: PublishOptions) -> (Publisher, String) {
    let address = name();
    (Context::new().unwrap().publish(address.as_str(), options).unwrap(), address)
}

/// Waits until so many subscribers are there.
pub fn await_subscribers(publisher: &Publisher, count: usize) {
    let end = Instant::now() + PATIENCE;
    while publisher.subscribers().len() < count {
        assert!(Instant::now() < end, "no subscriber comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A `.npy` file as NumPy 2.3 writes `arange(6, dtype=float32).reshape(2, 3)`.
pub fn npy() -> Vec<u8> {
    let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    let mut file = b"\x93NUMPY\x01\0v\0".to_vec();
    file.extend(format!("{dict:<117}\n").bytes());
    file.extend((0..6u8).flat_map(|number| f32::from(number).to_le_bytes()));
    file
}

#[test]
fn lines_reach_a_subscriber_with_their_metadata() {
    let address = name();
    let mut publisher =
        publish(&address, &["--wait", "1", "-m", "frame=7", "-m", "eye=left", "-m", "ok=true"]);
    let sub = ["--json", "sub", &address, "--policy", "every", "--wait", "30s"];
    let mut subscriber = start(sub);
    publisher.write(b"one\n\nthree");
    publisher.close_stdin();
    let first = subscriber.json();
    assert_eq!(
        (first["sequence"].as_u64(), first["bytes"].as_u64(), first["text"].as_str()),
        (Some(1), Some(3), Some("one"))
    );
    assert_eq!(first["metadata"].to_string(), r#"{"eye":"left","frame":7,"ok":true}"#, "{first}");
    assert_eq!(subscriber.json()["text"], "");
    assert_eq!(subscriber.json()["text"], "three");
    let (published, subscribed) = (publisher.finish(), subscriber.finish());
    assert_eq!((published.code, subscribed.code), (Some(0), Some(0)), "{subscribed:?}");
    assert_eq!(published.json().to_string(), r#"{"bytes":8,"messages":3,"subscribers":1}"#);
    assert_eq!(subscribed.json().to_string(), r#"{"missed":0,"received":3}"#);
}

#[test]
fn nothing_that_a_publisher_sends_steers_the_terminal() {
    let harmful = "\u{1b}]0;owned\u{7}\u{9b}2J\u{7f}\u{202e}\r";
    let (mut camera, address) = publisher(PublishOptions::new().history(3));
    let metadata = Metadata::of([(harmful, harmful.into())]).unwrap();
    camera.send_with(harmful.as_bytes(), &metadata).unwrap();
    camera.send(b"\x9b2J\xff\x1b[31m").unwrap();
    let mut set = TensorSet::new();
    set.insert(harmful, Tensor::from_slice([1], &[1u8]).unwrap()).unwrap();
    camera.send_tensors(&set).unwrap();
    for mode in ["--json", "--preview=64"] {
        let done = run(["sub", &address, mode, "--policy", "newest:3", "--count", "3"]);
        assert_eq!((done.code, done.lines.len()), (Some(0), 4), "{done:?}");
        for line in &done.lines {
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
        assert!(done.lines[0].contains("owned"), "{done:?}");
        if mode == "--json" {
            assert_eq!(json(&done.lines[0])["text"], harmful);
            assert_eq!(json(&done.lines[0])["metadata"][harmful], harmful);
            assert_eq!(json(&done.lines[1])["hex"], "9b324aff1b5b33316d");
            assert_eq!(json(&done.lines[2])["tensors"][0]["name"], harmful);
        }
    }
}

#[test]
fn tensors_come_out_of_files_and_go_into_files() {
    let (folder, address) = (Folder::new(), name());
    let array = npy();
    let weights = {
        let head = r#"{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[],"data_offsets":[4,5]}}"#;
        let head = format!("{head:<112}");
        [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &[1, 2, 3, 4, 5]].concat()
    };
    let files = [
        folder.file("a.npy", &array),
        folder.file("w.safetensors", &weights),
        folder.file("x", b"raw\nbytes\xff"),
    ];
    let out = folder.path("out");
    let more = [&["--raw", "--wait", "1"][..], &[&files[2]]].concat();
    for (more, expected) in [
        (["--wait", "1", &files[0], &files[1]].to_vec(), ["npy", "safetensors"].to_vec()),
        (more, ["bin"].to_vec()),
    ] {
        let mut publisher = publish(&address, &more);
        let done = run(["--json", "sub", &address, "-p", "every", "-w", "30s", "--out", &out]);
        assert_eq!((done.code, publisher.finish().code), (Some(0), Some(0)), "{done:?}");
        for (line, ending) in done.lines.iter().zip(&expected) {
            let file = &json(line)["files"][0];
            assert!(file.as_str().unwrap().ends_with(ending), "{line}");
        }
        assert_eq!(done.lines.len(), expected.len() + 1, "{done:?}");
        if expected.len() == 2 {
            let first = &json(&done.lines[0])["tensors"][0];
            assert_eq!(
                (first["dtype"].as_str(), first["bytes"].as_u64()),
                (Some("FP32"), Some(24))
            );
            assert_eq!(fs::read(format!("{out}/00000001.npy")).unwrap(), array);
            let stored = fs::read(format!("{out}/00000002.safetensors")).unwrap();
            assert_eq!(stored[stored.len() - 5..], [1, 2, 3, 4, 5]);
            fs::remove_dir_all(&out).unwrap();
        } else {
            assert_eq!(fs::read(format!("{out}/00000001.bin")).unwrap(), b"raw\nbytes\xff");
        }
    }
    // The folder has a first message already, which stays.
    let mut publisher = publish(&address, &["--wait", "1", &files[2]]);
    let done = run(["sub", &address, "-w", "30s", "--out", &out]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("00000001.bin: File exists"), "{done:?}");
    publisher.finish();
    assert_eq!(fs::read(format!("{out}/00000001.bin")).unwrap(), b"raw\nbytes\xff");
}

#[test]
fn tensors_without_a_common_format_get_files_of_their_own() {
    let folder = Folder::new();
    let (mut camera, address) = publisher(PublishOptions::new().history(1));
    let mut set = TensorSet::new();
    set.push(Tensor::from_bytes(slipring::DType::Bytes, [1], b"\x02\0\0\0hi").unwrap());
    set.push(Tensor::from_slice([2], &[true, false]).unwrap());
    camera.send_tensors(&set).unwrap();
    let out = folder.path("out");
    let done = run(["--json", "sub", &address, "-c", "1", "-o", &out, "-p", "latest"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(fs::read(format!("{out}/00000001-0.bytes")).unwrap(), b"\x02\0\0\0hi");
    assert!(fs::read(format!("{out}/00000001-1.npy")).unwrap().ends_with(b"\n\x01\0"));
}

#[test]
fn a_line_names_a_few_of_many_tensors() {
    let (mut camera, address) = publisher(PublishOptions::new().history(1));
    let mut set = TensorSet::new();
    for place in 0..200 {
        set.insert(&format!("t{place}"), Tensor::from_slice([1], &[1u8]).unwrap()).unwrap();
    }
    camera.send_tensors(&set).unwrap();
    let done = run(["sub", &address, "-c", "1", "-p", "latest"]);
    assert!(done.lines[0].ends_with("t7 UINT8 [1] and 192 further tensors"), "{done:?}");
}

#[test]
fn a_subscriber_asks_for_what_the_publisher_admits() {
    let options = PublishOptions::new().every(false).newest_limit(2).history(1);
    let (mut camera, address) = publisher(options);
    camera.send(b"tick").unwrap();
    let done = run(["sub", &address, "--count", "1"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    for policy in ["every", "newest:3"] {
        let done = run(["sub", &address, "--policy", policy]);
        assert_eq!((done.code, done.lines.len()), (Some(4), 0), "{done:?}");
        assert!(done.stderr.contains("does not admit this policy"), "{done:?}");
    }
}

#[test]
fn a_subscriber_that_is_stopped_says_that_it_was_evicted() {
    let options = PublishOptions::new().stall_after(Duration::from_millis(50)).slots(4);
    let (mut camera, address) = publisher(options);
    let mut subscriber = start(["--json", "sub", &address, "-p", "every"]);
    await_subscribers(&camera, 1);
    camera.send(b"tick").unwrap();
    subscriber.json();
    subscriber.signal(Signal::STOP);
    while camera
        .take_events()
        .iter()
        .all(|event| !matches!(event.kind(), slipring::broadcast::EventKind::Evicted(_)))
    {
        camera.send(b"tick").unwrap();
    }
    subscriber.signal(Signal::CONT);
    let done = subscriber.finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    assert!(done.stderr.contains("evicted this subscriber"), "{done:?}");
    assert_eq!(done.json()["missed"], 0, "the summary comes, too");
}

#[test]
fn a_subscriber_tells_how_it_ended() {
    let done = run(["sub", &name()]);
    assert_eq!((done.code, done.lines.len()), (Some(3), 0), "{done:?}");

    let (camera, address) = publisher(PublishOptions::new());
    let done = run(["--json", "sub", &address, "--timeout", "20ms"]);
    assert_eq!((done.code, done.json()["received"].as_u64()), (Some(6), Some(0)), "{done:?}");
    let subscriber = start(["--json", "sub", &address]);
    await_subscribers(&camera, 1);
    let done = subscriber.interrupt();
    assert_eq!((done.code, done.json()["received"].as_u64()), (Some(0), Some(0)), "{done:?}");

    let (folder, address) = (Folder::new(), name());
    let file = folder.file("lines", b"tick\n");
    let publisher = publish(&address, &["--keep", "--history", "1", &file]);
    let mut subscriber = start(["--json", "sub", &address, "-p", "latest"]);
    subscriber.json();
    publisher.signal(Signal::KILL);
    let done = subscriber.finish();
    assert_eq!((done.code, done.json()["received"].as_u64()), (Some(5), Some(1)), "{done:?}");
}

#[test]
fn a_subscriber_follows_the_next_publisher() {
    let (folder, address) = (Folder::new(), name());
    let file = folder.file("lines", b"tick\n");
    let more = ["--wait", "1", "--repeat", "--rate", "100", &file];
    let mut subscriber =
        start(["--json", "sub", &address, "--follow", "-p", "latest", "--wait", "30s"]);
    let first = publish(&address, &more);
    assert_eq!(subscriber.json()["restarted"], false);
    first.signal(Signal::KILL);
    drop(first);
    let _second = publish(&address, &more);
    let end = Instant::now() + PATIENCE;
    while subscriber.json()["restarted"] == false {
        assert!(Instant::now() < end);
    }
    assert_eq!(subscriber.interrupt().code, Some(0));
}

#[test]
fn hz_tells_rate_and_gaps() {
    let (folder, address) = (Folder::new(), name());
    let file = folder.file("lines", b"12345678\n");
    let publisher = publish(&address, &["--repeat", "--rate", "200", "--wait", "1", &file]);
    let done = run(["--json", "hz", &address, "--interval", "200ms", "--count", "2"]);
    assert_eq!((done.code, done.lines.len()), (Some(0), 3), "{done:?}");
    let all = done.json();
    let (rate, bytes) = (all["rate"].as_f64().unwrap(), all["bytes_per_second"].as_f64().unwrap());
    assert!(rate > 0.0 && (bytes - 8.0 * rate).abs() < 1e-6 * bytes, "{all}");
    let gaps = &all["gaps"];
    assert!(gaps["min"].as_f64() <= gaps["mean"].as_f64(), "{all}");
    assert!(gaps["mean"].as_f64() <= gaps["max"].as_f64(), "{all}");
    assert_eq!(publisher.interrupt().code, Some(0));
}

#[test]
fn hz_counts_what_it_missed_and_says_when_nothing_comes() {
    let (mut clock, address) = publisher(PublishOptions::new());
    let mut hz = start(["--json", "hz", &address, "-p", "latest", "--interval", "20ms"]);
    await_subscribers(&clock, 1);
    hz.signal(Signal::STOP);
    for _ in 0..100 {
        clock.send(b"tick").unwrap();
    }
    hz.signal(Signal::CONT);
    let (end, mut told) = (Instant::now() + PATIENCE, 0);
    while told < 100 {
        assert!(Instant::now() < end, "hz tells of {told} messages");
        let window = hz.json();
        told += window["messages"].as_u64().unwrap() + window["missed"].as_u64().unwrap();
    }
    let all = hz.interrupt().json();
    assert_eq!(all["messages"].as_u64().unwrap() + all["missed"].as_u64().unwrap(), 100, "{all}");

    let done = run(["hz", &address, "--timeout", "20ms"]);
    assert_eq!(
        (done.code, done.lines.last().unwrap().starts_with("0.0 messages/s")),
        (Some(6), true)
    );
}

#[test]
fn a_publisher_tells_what_it_cannot_send() {
    let folder = Folder::new();
    let bad = folder.file("bad.npy", b"no array");
    let short = folder.file("short.npy", &npy()[..140]);
    let address = name();
    for (more, told) in [
        (vec!["--repeat"], "--repeat takes files"),
        (vec![&bad[..]], "bad.npy: no .npy file"),
        (vec![&short[..]], "short.npy: failed to fill whole buffer"),
        (vec!["/nowhere/at/all"], "/nowhere/at/all: No such file"),
        (vec!["--wait", "1", "--timeout", "20ms"], "0 of 1 subscribers have come to @"),
        (vec!["--meta", &"n=".repeat(200)], "n"),
    ] {
        let done = run([&["pub", &address], &more[..]].concat());
        assert!(matches!(done.code, Some(1 | 6)), "{done:?}");
        assert!(done.stderr.contains(told), "{told}: {done:?}");
    }
}

#[test]
fn a_kept_message_reaches_those_who_come_late() {
    let address = name();
    let mut publisher = publish(&address, &["--keep", "--history", "1"]);
    publisher.write(b"map\n");
    publisher.close_stdin();
    let context = Context::new().unwrap();
    let options = SubscribeOptions::every();
    let mut late = context.subscribe(address.as_str(), options).unwrap();
    let message = late.recv_deadline(Instant::now() + PATIENCE).unwrap().unwrap();
    assert_eq!(message.to_vec().unwrap(), b"map");
    assert_eq!(meta! {}.unwrap().len(), message.metadata().len());
    assert_eq!(publisher.interrupt().json()["subscribers"], 1);
}
