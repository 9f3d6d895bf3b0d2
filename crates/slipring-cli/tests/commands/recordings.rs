//! `record` and `replay`.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::process::Signal;
use slipring::broadcast::{PublishOptions, SubscribeOptions, Subscriber};
use slipring::message::{Metadata, Value};
use slipring::{Context, DType, Tensor, TensorSet};

use crate::support::{PATIENCE, Running, name, run, start};
use crate::topics::{Folder, await_subscribers, publish};

fn metadata() -> Metadata {
    let at = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    Metadata::of([
        ("frame", Value::Integer(-7)),
        ("exposure", Value::Float(0.1)),
        ("eye", Value::String("left \u{1b}")),
        ("stamp", Value::Time(at)),
        ("ok", Value::Bool(true)),
    ])
    .unwrap()
}

fn set() -> TensorSet {
    let mut set = TensorSet::new();
    set.insert("ids", Tensor::from_slice([1, 3], &[7i64, 8, 9]).unwrap()).unwrap();
    set.insert("half", Tensor::from_bytes(DType::Bf16, [2], &[1, 2, 3, 4]).unwrap()).unwrap();
    set.insert("words", Tensor::from_bytes(DType::Bytes, [1], b"\x02\0\0\0hi").unwrap()).unwrap();
    set.push(Tensor::from_slice([0, 3], &[0f32; 0]).unwrap());
    set.set_metadata(metadata());
    set
}

/// A message, to be compared.
#[derive(Debug, PartialEq)]
struct Seen {
    bytes: Vec<u8>,
    metadata: Metadata,
    tensors: Vec<(String, DType, Vec<usize>, Vec<u8>)>,
}

fn next(subscriber: &mut Subscriber) -> Option<Seen> {
    let sample = subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap()?;
    let tensors = sample.tensors().map(|(name, tensor)| {
        let dims = tensor.shape().dims().to_vec();
        (name.to_owned(), tensor.dtype(), dims, tensor.bytes().unwrap().to_vec())
    });
    let tensors = tensors.collect();
    Some(Seen { bytes: sample.to_vec().unwrap(), metadata: sample.metadata().clone(), tensors })
}

/// Starts a replay that waits for a subscriber of each of its topics, and subscribes to all.
fn replay(arguments: &[&str], topics: usize) -> (Running, Vec<Subscriber>) {
    let more = ["--json", "replay", "--wait", "1", "--speed", "max"];
    let mut replay = start([&more[..], arguments].concat());
    let context = Context::new().unwrap();
    let subscribers = (0..topics).map(|_| {
        let address = replay.json()["replaying"].as_str().unwrap().to_owned();
        let options = SubscribeOptions::every().reconnect(false);
        context.subscribe(address.as_str(), options).unwrap()
    });
    let subscribers = subscribers.collect();
    (replay, subscribers)
}

#[test]
fn topics_are_replayed_as_they_were() {
    let (folder, context) = (Folder::new(), Context::new().unwrap());
    let (left, right, elsewhere, file) = (name(), name(), name(), folder.path("a.mcap"));
    let options = || PublishOptions::new();
    let mut eyes = [&left, &right].map(|at| context.publish(at.as_str(), options()).unwrap());
    let policy = ["--policy", "every"];
    let record = start(
        [&["--json", "record", &left, &right, "-o", &file, "--count", "4"][..], &policy].concat(),
    );
    eyes.iter().for_each(|eye| await_subscribers(eye, 1));
    let long: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
    eyes[0].send_with(b"tick", &metadata()).unwrap();
    eyes[0].send(&long).unwrap();
    eyes[0].send_tensors(&set()).unwrap();
    eyes[1].send_tensor(Tensor::from_slice([2], &[true, false]).unwrap()).unwrap();
    let mut record = record;
    let done = record.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    let told = done.json();
    assert_eq!((told["messages"].as_u64(), told["missed"].as_u64()), (Some(4), Some(0)), "{told}");
    assert_eq!(told["topics"][0]["messages"], 3);
    assert_eq!(told["bytes"], fs::metadata(&file).unwrap().len());

    let renamed = format!("{left}={elsewhere}");
    drop(eyes);
    let (mut replay, mut subscribers) = replay(&[&file, "--as", &renamed], 2);
    assert_eq!(next(&mut subscribers[0]).unwrap().bytes, b"tick");
    let seen = next(&mut subscribers[0]).unwrap();
    assert_eq!((seen.bytes == long, seen.metadata.len()), (true, 0));
    let seen = next(&mut subscribers[0]).unwrap();
    let expected = set();
    let tensors = expected.iter().map(|(name, tensor)| {
        let dims = tensor.shape().dims().to_vec();
        (name.to_owned(), tensor.dtype(), dims, tensor.bytes().unwrap().to_vec())
    });
    assert_eq!(seen, Seen { bytes: vec![], metadata: metadata(), tensors: tensors.collect() });
    let seen = next(&mut subscribers[1]).unwrap();
    assert_eq!(seen.tensors, [(String::new(), DType::Bool, vec![2], vec![1, 0])]);
    assert!(next(&mut subscribers[0]).is_none() && next(&mut subscribers[1]).is_none());
    let done = replay.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    let told = done.json();
    assert_eq!((told["messages"].as_u64(), told["complete"].as_bool()), (Some(4), Some(true)));
}

#[test]
fn a_recording_that_was_killed_is_replayed_up_to_there() {
    let (folder, address) = (Folder::new(), name());
    let (lines, file) = (folder.file("lines", b"tick\n"), folder.path("a.mcap"));
    let _publisher = publish(&address, &["--repeat", "--rate", "1000", "--wait", "1", &lines]);
    let record = start(["--json", "record", &address, "-o", &file]);
    let end = Instant::now() + PATIENCE;
    while fs::metadata(&file).map_or(0, |file| file.len()) < 20_000 {
        assert!(Instant::now() < end, "the recording does not grow");
        std::thread::sleep(Duration::from_millis(5));
    }
    record.signal(Signal::KILL);
    drop(record);
    let len = fs::metadata(&file).unwrap().len();
    // Half a record is there at worst.
    OpenOptions::new().write(true).open(&file).unwrap().set_len(len - 3).unwrap();
    let renamed = format!("{address}={}", name());
    let (mut replay, mut subscribers) = replay(&[&file, "--as", &renamed], 1);
    let mut messages = 0;
    while let Some(seen) = next(&mut subscribers[0]) {
        assert_eq!(seen.bytes, b"tick");
        messages += 1;
    }
    let done = replay.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    let told = done.json();
    assert_eq!(
        (told["messages"].as_u64(), told["complete"].as_bool()),
        (Some(messages), Some(false))
    );
    assert!(messages > 20_000 / 100, "{messages} messages in {len} bytes");
}

#[test]
fn a_slow_disk_costs_messages_and_holds_no_publisher_up() {
    let (folder, address) = (Folder::new(), name());
    let pipe = folder.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Nobody reads the pipe for now, whose 64 KiB are full soon.
    let mut disk = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let context = Context::new().unwrap();
    let mut camera = context.publish(address.as_str(), PublishOptions::new()).unwrap();
    let record = start(["--json", "record", &address, "-o", &pipe]);
    await_subscribers(&camera, 1);
    for _ in 0..2000 {
        camera.send(&[7; 1000]).unwrap();
    }
    assert_eq!((camera.sent(), camera.subscribers().len()), (2000, 1), "nobody was waited for");
    std::thread::spawn(move || {
        let mut buffer = [0; 1 << 16];
        while disk.read(&mut buffer).is_ok_and(|len| len > 0) {}
    });
    drop(camera);
    let mut record = record;
    let done = record.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    let told = done.json();
    let (messages, missed) = (told["messages"].as_u64().unwrap(), told["missed"].as_u64().unwrap());
    assert!(messages > 0 && missed > 0, "{told}");
    assert_eq!(messages + missed, 2000, "{told}");
}

/// Records two messages that are at least 100 ms apart. Returns the file.
fn two_messages(folder: &Folder, address: &str) -> String {
    let file = folder.path("two.mcap");
    let mut clock = Context::new().unwrap().publish(address, PublishOptions::new()).unwrap();
    let mut record = start(["record", address, "-o", &file, "-p", "every"]);
    await_subscribers(&clock, 1);
    let len = || fs::metadata(&file).unwrap().len();
    let (empty, end) = (len(), Instant::now() + PATIENCE);
    clock.send(b"one").unwrap();
    while len() == empty {
        assert!(Instant::now() < end, "the recording does not grow");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(100));
    clock.send(b"two").unwrap();
    drop(clock);
    let done = record.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.lines.last().unwrap().starts_with("2 messages in "), "{done:?}");
    file
}

#[test]
fn a_replay_keeps_the_distances_in_time() {
    let (folder, address) = (Folder::new(), name());
    let file = two_messages(&folder, &address);
    let start = Instant::now();
    let done = run(["replay", &file, "--speed", "0.25"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
}

#[test]
fn a_replay_in_a_loop_goes_on_until_the_user_ends_it() {
    let (folder, address) = (Folder::new(), name());
    let file = two_messages(&folder, &address);
    let (replay, mut subscribers) = replay(&[&file, "--loop"], 1);
    for _ in 0..5 {
        assert_eq!(next(&mut subscribers[0]).unwrap().bytes, b"one");
        assert_eq!(next(&mut subscribers[0]).unwrap().bytes, b"two");
    }
    drop(subscribers);
    let done = replay.interrupt();
    assert!(done.code == Some(0) && done.json()["messages"].as_u64() >= Some(10), "{done:?}");
}

#[test]
fn a_recording_tells_what_it_cannot_do() {
    let (folder, address) = (Folder::new(), name());
    let file = folder.path("a.mcap");
    let done = run(["record", &address, "-o", &file]);
    assert_eq!((done.code, fs::exists(&file).unwrap()), (Some(3), false), "{done:?}");
    assert!(done.stderr.contains(&address), "{done:?}");

    let there = folder.file("there", b"mine");
    let done = run(["record", &address, "-o", &there]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert_eq!(fs::read(&there).unwrap(), b"mine");
    let done = run(["replay", &there]);
    assert!(done.stderr.contains("there: no recording"), "{done:?}");

    let context = Context::new().unwrap();
    let mut camera = context.publish(address.as_str(), PublishOptions::new().history(9)).unwrap();
    (0..9).for_each(|_| camera.send(&[7; 1000]).unwrap());
    let done =
        run(["--json", "record", &address, "-o", &file, "--max-bytes", "4500", "-p", "every"]);
    assert_eq!((done.code, done.json()["messages"].as_u64()), (Some(0), Some(4)), "{done:?}");
    assert!(fs::metadata(&file).unwrap().len() < 4600);
}

#[test]
fn a_recording_steers_no_terminal() {
    let folder = Folder::new();
    let topic = format!("{}/\u{1b}[2J", folder.path("nowhere"));
    let mut file = b"\x89MCAP0\r\n\x04".to_vec();
    let mut channel = vec![0; 4];
    for text in [&topic, "slipring", ""] {
        channel.extend((text.len() as u32).to_le_bytes());
        channel.extend(text.bytes());
    }
    file.extend((channel.len() as u64).to_le_bytes());
    file.extend(channel);
    let file = folder.file("a.mcap", &file);
    for address in [&topic, &folder.path("\u{9b}2J")] {
        let done = run(["replay", &file, "--as", &format!("{topic}={address}")]);
        let told = done.lines.concat() + done.stderr.trim_end();
        assert!(!told.contains(char::is_control), "{told:?}");
        assert_eq!(done.code == Some(0), *address != topic, "{done:?}");
    }
}
