//! Every example without features does what its first lines say, also when its other side is killed.
//!
//! `cargo test` builds the examples; with `--test examples`, run `cargo build --examples` first.

#[path = "support/example.rs"]
mod example;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use slipring::{Tensor, TensorSet};

use example::{Example, connect, signal, soon, unique_name};

/// Options of a producer of frames with this many pixels, at full speed.
fn frames(pixels: usize) -> String {
    format!("--rate 0 --height 1 --width {pixels}")
}

#[test]
fn a_consumer_gets_every_tensor_of_a_producer_that_waited_for_it() {
    // Frames that end within a line, and longer ones.
    for pixels in [21, 7000] {
        let name = unique_name();
        let arguments = format!("--name {name} --count 10000");
        let producer = Example::start("producer", &format!("{arguments} {}", frames(pixels)));
        producer.says("waiting for a consumer: nobody listens");
        let consumer = Example::start("consumer", &arguments);
        assert!(producer.succeeds().contains("done, 10000 tensors were sent"));
        assert!(consumer.succeeds().contains("10000 tensors were received"));
    }
}

#[test]
fn a_fan_out_goes_on_when_a_receiver_stops_and_gets_its_memory_back() {
    let said = Example::start("fan_out", "").succeeds();
    assert!(said.contains("stops with frame 5"), "{said}");
    assert!(said.contains("holds 16 blocks, 4194304 bytes"), "{said}");
    assert!(said.contains("the peer has taken the memory back"), "{said}");
    assert!(said.contains("100 frames to 3 receivers"), "{said}");
    assert_eq!(said.matches(": 100 frames\n").count(), 3, "{said}");
}

#[test]
fn viewers_of_every_policy_go_on_when_their_camera_was_killed() {
    let name = unique_name();
    let frames = "--height 20 --width 30";
    let viewers =
        [("latest", "--slow 30"), ("newest=4", ""), ("every", "")].map(|(policy, slow)| {
            Example::start("viewer", &format!("--name {name} --policy {policy} {slow}"))
        });
    for round in 0..2 {
        let camera = Example::start("camera", &format!("--name {name} --rate 200 {frames}"));
        camera.says_times("Joined", 3);
        camera.says("a second, 3 viewers");
        for viewer in &viewers {
            viewer.says_times("another camera came", round);
        }
        camera.kill();
    }
    for (index, viewer) in viewers.into_iter().enumerate() {
        let said = viewer.kill();
        assert!(said.contains(" ms old, "), "{said}");
        let missed =
            said.lines().any(|line| line.contains("missed") && !line.contains(" 0 missed"));
        assert_eq!(missed, index == 0, "{said}");
    }
}

#[test]
fn a_camera_goes_on_when_a_viewer_was_killed_or_is_too_slow() {
    let name = unique_name();
    let camera =
        Example::start("camera", &format!("--name {name} --rate 500 --height 2 --width 3"));
    camera.says("publishing as");
    let viewer = Example::start("viewer", &format!("--name {name}"));
    camera.says("Joined");
    viewer.kill();
    camera.says("Died");
    let slow = Example::start("viewer", &format!("--name {name} --policy every --slow 2500"));
    assert!(slow.fails().contains("evicted"));
    camera.says("Evicted(Stalled)");
    Example::start("viewer", &format!("--name {name} --policy newest=4 --count 50")).succeeds();
    camera.says("Left");
}

#[test]
fn a_producer_goes_on_when_its_consumer_was_killed() {
    for pixels in [21, 7000] {
        let name = unique_name();
        let producer = Example::start("producer", &format!("--name {name} {}", frames(pixels)));
        let first = Example::start("consumer", &format!("--name {name}"));
        first.says(" GB/s, p50 ");
        first.kill();
        producer.says("the peer died");
        let second = Example::start("consumer", &format!("--name {name} --count 1000"));
        assert!(second.succeeds().contains("that is enough, 1000 tensors were received"));
        producer.says("the peer has closed the connection");
        let said = producer.kill();
        let starts: Vec<&str> = said.lines().filter(|line| line.contains("reads from")).collect();
        assert_eq!(starts.len(), 2, "{said}");
        assert!(starts[0].contains("number 0 ") && !starts[1].contains("number 0 "), "{said}");
    }
}

#[test]
fn a_consumer_goes_on_when_its_producer_was_killed() {
    let name = unique_name();
    let consumer = Example::start("consumer", &format!("--name {name} --count 1000000000"));
    for (round, pixels) in [21, 7000].into_iter().enumerate() {
        let producer = Example::start("producer", &format!("--name {name} {}", frames(pixels)));
        consumer.says_times("producer with pid", round + 1);
        producer.says(" tensors, ");
        producer.kill();
        consumer.says_times("the peer died", round + 1);
    }
    Example::start("producer", &format!("--name {name} --count 1000 --rate 2000 --width 1"))
        .succeeds();
    consumer.says("the producer closed in order");
    let said = consumer.kill();
    assert!(!said.contains("was due"), "{said}");
}

#[test]
fn a_consumer_tells_what_is_wrong() {
    let name = unique_name();
    let consumer = Example::start("consumer", &format!("--name {name} --count 4"));
    // Number, stamp and checksum of no bytes, as examples/stream/mod.rs has them.
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x100_0000_01b3);
    let start = step(0, 0);
    let sum = (0..8).fold(start, |sum, lane| step(sum, 0xcbf2_9ce4_8422_2325 + lane));
    let set = |head: &[u64]| {
        let mut set = TensorSet::new();
        set.insert("slipring.head", Tensor::from_slice([head.len()], head).unwrap()).unwrap();
        set.insert("frame", Tensor::from_slice::<u8>([0], &[]).unwrap()).unwrap();
        set
    };
    let mut link = connect(&name);
    link.sender().send_tensors(&set(&[7, 0, sum])).unwrap();
    link.sender().send_tensors(&set(&[9, u64::MAX, sum])).unwrap();
    link.sender().send_tensors(&set(&[10, 0, sum ^ 1])).unwrap();
    link.sender().send_tensors(&TensorSet::new()).unwrap();
    let said = consumer.fails();
    for text in
        ["number 9 where 8 was due", "checksum 0x", "without a head", "3 of 4 tensors were wrong"]
    {
        assert!(said.contains(text), "{said}");
    }
}

/// A robot of five nodes, whose logger writes a file that goes with it.
struct Robot {
    name: String,
    log: PathBuf,
}

impl Robot {
    fn new() -> Self {
        let name = unique_name();
        let log = std::env::temp_dir().join(format!("{name}.csv"));
        Self { name, log }
    }

    fn start(&self, node: &str) -> Example {
        let options = match node {
            "camera" => "--height 240 --width 320 --rate 30".into(),
            "logger" => format!("--log {}", self.log.display()),
            _ => String::new(),
        };
        Example::start("robot", &format!("{node} --name {} {options}", self.name))
    }

    /// The whole lines of the log about a topic, split at their commas.
    fn rows(&self, topic: &str) -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let rows = whole.lines().map(|line| line.split(',').map(str::to_owned).collect());
        rows.filter(|row: &Vec<String>| row[0] == topic).collect()
    }

    /// Waits for more tracks in the log.
    fn goes_on(&self, nodes: &[Example]) {
        let (deadline, before) = (soon(), self.rows("tracks").len());
        while self.rows("tracks").len() < before + 30 {
            let said: Vec<_> = nodes.iter().map(Example::said).collect();
            assert!(Instant::now() < deadline, "no tracks come:\n{}", said.join("\n"));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The tracks that follow ten others of one tracker, of which each is about the next frame or the one after it: the filter
    /// has found the velocity.
    fn steady(&self) -> Vec<Vec<String>> {
        let number = |row: &[String]| row[1].parse::<u64>().unwrap();
        let follows = |two: &[Vec<String>]| {
            two[1][4] == "0" && matches!(number(&two[1]).wrapping_sub(number(&two[0])), 1 | 2)
        };
        let tracks = self.rows("tracks");
        let windows = tracks.windows(11).filter(|window| window.windows(2).all(follows));
        windows.map(|window| window[10].clone()).collect()
    }

    /// How far the position of a row of the log is from the disc in its frame, in pixels, and how far its velocity is, if the
    /// row has one, in pixels a frame. The frame has 240 x 320 pixels, and the disc runs along an ellipse in 240 frames.
    fn is_off(row: &[String]) -> (f64, f64) {
        let number = |at: usize| row[at].parse::<f64>().unwrap();
        let turn = std::f64::consts::TAU / 240.0;
        let (sin, cos) = (turn * number(1)).sin_cos();
        let position = (number(5) - 160.0 - 112.0 * cos).hypot(number(6) - 120.0 - 84.0 * sin);
        let velocity = || (number(7) + turn * 112.0 * sin).hypot(number(8) - turn * 84.0 * cos);
        (position, if row[7].is_empty() { 0.0 } else { velocity() })
    }
}

impl Drop for Robot {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.log);
    }
}

#[test]
fn a_robot_goes_on_when_any_of_its_nodes_was_killed_and_started_again() {
    let robot = Robot::new();
    // Each waits for the next one.
    let names = ["logger", "viewer", "tracker", "detector", "camera"];
    let mut nodes = names.map(|node| robot.start(node));
    robot.goes_on(&nodes);
    nodes[4].says("camera: subscriber with pid");
    let descriptors = |camera: &Example| {
        camera.says_times("3 subscribers", camera.said().matches("3 subscribers").count() + 1);
        std::fs::read_dir(format!("/proc/{}/fd", camera.child.id())).unwrap().count()
    };
    let before = descriptors(&nodes[4]);
    for at in 0..nodes.len() {
        if names[at] == "camera" {
            let after = descriptors(&nodes[at]);
            // The pool may have grown by a segment. What three dead readers left would be more.
            assert!(after <= before + 2, "{before} descriptors, and {after} after three deaths");
        }
        nodes[at].child.kill().unwrap();
        nodes[at].child.wait().unwrap();
        let said = nodes[at].said();
        if names[at] == "camera" {
            assert_eq!(said.matches(": Died").count(), 3, "{said}");
        }
        nodes[at] = robot.start(names[at]);
        robot.goes_on(&nodes);
        if names[at] == "viewer" {
            // It sees another tracker only if it has seen this one.
            nodes[at].says(" pixels off");
        }
    }
    // Each that lived longer than a publisher of its has seen another one.
    for (at, topic) in [(0, "tracks"), (1, "tracks"), (2, "detections"), (3, "camera/frames")] {
        let seen = |said: &str| {
            said.lines().any(|line| line.contains(topic) && line.contains(" 1 restarts"))
        };
        let deadline = soon();
        while !seen(&nodes[at].said()) {
            assert!(Instant::now() < deadline, "no restart of {topic}:\n{}", nodes[at].said());
            thread::sleep(Duration::from_millis(20));
        }
    }
    let (steady, deadline) = (|| robot.steady(), soon());
    while steady().len() < 20 {
        assert!(Instant::now() < deadline, "{} tracks are steady", steady().len());
        thread::sleep(Duration::from_millis(20));
    }
    let steady = steady();
    nodes.into_iter().for_each(|node| drop(node.kill()));
    // An abstract name ends with its last socket.
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!sockets.contains(&robot.name), "{sockets}");

    let missed = |row: &Vec<String>| row[3] != "0";
    let frames = robot.rows("camera/frames");
    assert!(frames.len() > 100 && !frames.iter().any(missed), "the logger gets every frame");
    let worst = |rows: &[&[String]]| {
        let off = rows.iter().map(|row| Robot::is_off(row));
        off.fold((0.0, 0.0), |worst: (f64, f64), off| (worst.0.max(off.0), worst.1.max(off.1)))
    };
    let detections = robot.rows("detections");
    let off = worst(&detections.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert!(off.0 < 0.5, "a detection is {} pixels off", off.0);
    let off = worst(&steady.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert!(off.0 < 0.6 && off.1 < 0.6, "a track and its velocity are {off:?} pixels off");
}

#[test]
fn a_robot_goes_on_when_its_logger_stood_still_and_the_logger_does_too() {
    let robot = Robot::new();
    let nodes = ["logger", "viewer", "tracker", "detector", "camera"].map(|node| robot.start(node));
    robot.goes_on(&nodes);
    let logger = nodes[0].child.id().cast_signed();
    signal(logger, rustix::process::Signal::STOP);
    nodes[4].says(": Evicted(Stalled)");
    signal(logger, rustix::process::Signal::CONT);
    nodes[0].says("robot: camera/frames: ");
    nodes[0].says("; it subscribes once more");
    // More than the topic has places for: they are of the new subscription.
    let (deadline, before) = (soon(), robot.rows("camera/frames").len());
    while robot.rows("camera/frames").len() < before + 40 {
        assert!(Instant::now() < deadline, "no frames come:\n{}", nodes[0].said());
        thread::sleep(Duration::from_millis(20));
    }
    robot.goes_on(&nodes);
}

#[test]
fn a_robot_has_one_camera_and_says_what_is_wrong() {
    let robot = Robot::new();
    let camera = robot.start("camera");
    camera.says("camera publishes camera/frames");
    assert!(robot.start("camera").fails().contains("another process publishes camera/frames of"));
    camera.says(" frames, 0 subscribers");
    let said = Example::start("robot", "--help").succeeds();
    assert!(said.starts_with("usage: robot NODE"), "{said}");
    for (arguments, text) in [
        ("", "no node is named, there are: camera, detector, tracker, viewer, logger"),
        ("lidar", "no node \"lidar\", there are: camera,"),
        ("viewer --rate 5", "a viewer has no option --rate"),
        ("camera --height 9", "a frame of 9 x 1920 pixels is too small: each side needs 64"),
        ("logger --log /nowhere/robot.csv", "/nowhere/robot.csv: No such file"),
    ] {
        let said = Example::start("robot", arguments).fails();
        assert!(said.contains(text), "{arguments}: {said}");
    }
}

/// A file in the safetensors format with a tensor of each of these names and lengths.
fn safetensors(tensors: &[(&str, &str, &[usize], usize)]) -> PathBuf {
    let (mut head, mut bytes) = (String::new(), Vec::new());
    for (name, dtype, shape, len) in tensors {
        let (from, to) = (bytes.len(), bytes.len() + len);
        head += &format!(
            "{}\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{from},{to}]}}",
            if head.is_empty() { "" } else { "," }
        );
        bytes.extend((from..to).map(|at| if *dtype == "BOOL" { at as u8 % 2 } else { at as u8 }));
    }
    let head = format!("{{{head}}}");
    let path = std::env::temp_dir().join(format!("{}.safetensors", unique_name()));
    let file = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &bytes].concat();
    std::fs::write(&path, file).unwrap();
    path
}

#[test]
fn every_tensor_of_a_file_arrives_as_the_file_has_it() {
    let tensors: [(&str, &str, &[usize], usize); 6] = [
        ("embed.weight", "F32", &[100, 64], 25_600),
        ("norm.bias", "BF16", &[64], 128),
        ("mask", "BOOL", &[7], 7),
        ("scales", "F8_E4M3", &[33], 33),
        ("empty", "F32", &[0, 3], 0),
        ("step", "I64", &[], 8),
    ];
    let path = safetensors(&tensors);
    let other = safetensors(&tensors[1..]);
    let name = unique_name();
    let file = format!("--name {name} --file {}", path.display());
    let consumer = Example::start("consumer", &file);
    consumer.says("listening");
    assert!(Example::start("producer", &file).succeeds().contains("done, 6 tensors were sent"));
    assert!(consumer.succeeds().contains("6 tensors were received"));
    let consumer = Example::start("consumer", &format!("--name {name} --file {}", other.display()));
    consumer.says("listening");
    let producer = Example::start("producer", &file);
    let said = consumer.fails();
    assert!(said.contains("embed.weight is not in the file"), "{said}");
    producer.kill();
    let said =
        Example::start("weights", &format!("--readers 3 --file {}", path.display())).succeeds();
    assert!(said.contains("6 tensors") && said.contains("reader 3"), "{said}");
    for path in [path, other] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn weights_are_in_memory_once() {
    let said = Example::start("weights", "--readers 3 --mib 32").succeeds();
    let all = said.lines().find_map(|line| line.strip_prefix("all together: ")).unwrap();
    let mib: f64 = all.trim_end_matches(" MiB").parse().unwrap();
    assert!((32.0..64.0).contains(&mib), "{said}");
}

#[test]
fn an_echo_server_survives_its_clients() {
    let name = unique_name();
    let server = Example::start("echo_server", &name);
    let mut patient = connect(&name);
    // A client that never reads and is killed.
    let rude = Example::start("producer", &format!("--name {name} {}", frames(21)));
    rude.says("reads from");
    let pid = rude.child.id();
    server.says(&format!("pid {pid}, uid "));
    rude.kill();
    server.says("the peer died");
    let said = Example::start("echo_server", &format!("{name} hello you")).succeeds();
    assert_eq!(said, "hello\nyou\n");
    for len in [0, 1, 100, 1 << 20] {
        patient.send(&vec![7; len]).unwrap();
        assert_eq!(patient.receiver().recv_deadline(soon()).unwrap(), Some(vec![7; len]));
    }
    patient.close().unwrap();
    server.says_times("left in order", 2);
}

#[test]
fn requests_are_answered_in_any_order_or_time_out() {
    let name = unique_name();
    let server = Example::start("request_response", &format!("serve {name}"));
    server.says("listening on");
    let said = Example::start("request_response", &format!("call {name} 100 hello")).succeeds();
    assert!(said.contains("100: 100 after ") && said.contains("hello: HELLO after "), "{said}");
    let said = Example::start("request_response", &format!("call {name} 5000 you")).fails();
    assert!(said.contains("5000: no answer within 500ms"), "{said}");

    let mut link = connect(&name);
    let slow = link.submit(b"300").unwrap();
    assert_eq!(link.call_deadline(b"quick", soon()).unwrap(), b"QUICK");
    assert_eq!(link.wait_deadline(slow, soon()).unwrap(), b"300");
    link.close().unwrap();
}

#[test]
fn a_caller_says_that_its_server_died() {
    let name = unique_name();
    let server = Example::start("request_response", &format!("serve {name}"));
    server.says("listening on");
    let mut link = connect(&name);
    let request = link.submit(b"60000").unwrap();
    server.kill();
    assert!(link.wait_deadline(request, soon()).unwrap_err().is_disconnected());
    let said = Example::start("request_response", &format!("call {name} hello")).fails();
    assert!(said.contains("nobody listens on"), "{said}");
}

#[test]
fn what_is_asked_wrongly_ends_in_a_text_and_exit_code_1() {
    let name = unique_name();
    let consumer = Example::start("consumer", &format!("--name {name}"));
    consumer.says("listening on");
    let large = format!("--name {name} --height 99999999");
    for (example, arguments, text) in [
        ("consumer", format!("--name {name}").as_str(), "is in use"),
        ("consumer", "--name", "consumer: "),
        ("producer", "--width many", "producer: "),
        ("producer", "--file /nowhere.safetensors", "/nowhere.safetensors: No such file"),
        ("weights", "--file /dev/null", "weights: "),
        ("producer", "--speed 1", "--speed"),
        ("producer", &large, "bytes in use and needs"),
        ("echo_server", "", "usage: "),
        ("request_response", "serve", "usage: "),
    ] {
        let said = Example::start(example, arguments).fails();
        assert!(said.contains(text), "{example} {arguments}: {said}");
    }
}

#[test]
#[cfg(feature = "commit")]
fn ping_pong_prints_one_json_object_a_line() {
    let example = Example::start("ping_pong", "--modes direct --sizes 8 --seconds 0.2 --json");
    let said = example.succeeds();
    let mut subjects = 0;
    for line in said.lines().filter(|line| line.starts_with('{')) {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        subjects += u32::from(row["what"] == "slipring");
        for field in ["what", "mode", "state"] {
            assert!(row[field].is_string(), "{field}: {line}");
        }
        assert_eq!(row["bytes"], 8, "{line}");
        let time = &row["rtt_ns"];
        assert!(time["p50"].as_f64().is_some_and(|time| time > 0.0), "{line}");
        // So short a run may have too few single round trips for these: then they are null.
        for tail in ["p99", "p999"] {
            assert!(time[tail].is_number() || time[tail].is_null(), "{tail}: {line}");
        }
        assert!(row["n"].as_u64().is_some_and(|count| count > 0), "{line}");
    }
    // On a machine that others use, every slice of so short a run may have been disturbed.
    assert!(subjects > 0 || said.contains("no slice was kept"), "{said}");
}

#[test]
fn ping_pong_beside_a_busy_loop_tells_the_loops_part_and_writes_results() {
    let file = std::env::temp_dir().join(format!("{}.csv", unique_name()));
    let arguments = "--modes direct --sizes 8 --seconds 0.5 --busy 1 --csv";
    let said = Example::start("ping_pong", &format!("{arguments} {}", file.display())).succeeds();
    assert!(said.contains("beside 1 busy loops"), "{said}");
    let results = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    for fact in ["# date: ", "# machine: ", "# commit: ", "# busy loops: 1"] {
        assert!(results.contains(fact), "{fact}: {results}");
    }
    let measured = results.contains("\ndirect,slipring,8,round trip,");
    assert!(measured || said.contains("no slice was kept"), "{results}{said}");
}

#[test]
fn pairs_that_run_at_once_are_compared_to_a_bare_futex() {
    let said = Example::start("ping_pong", "--pairs 2 --seconds 0.5 --json").succeeds();
    let rows: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let modes: Vec<&str> = rows.iter().filter_map(|row| row["mode"].as_str()).collect();
    assert_eq!(modes, ["futex", "eventfd", "socket", "slipring", "slipring-never"]);
    for row in &rows {
        let [fastest, mean, slowest] =
            ["fastest", "mean", "slowest"].map(|name| row["rtt_ns"][name].as_f64().unwrap());
        assert!(0.0 < fastest && fastest <= slowest && mean > 0.0, "{row}");
    }
    assert_eq!(rows[0]["ratio"], 1.0);
}

#[test]
fn many_links_exchange_messages_beside_their_floor() {
    let arguments = "--links 50 --rate 20 --seconds 1";
    let said = Example::start("many_links", arguments).succeeds();
    for text in ["slipring: ", "floor: ", "ratio: p50 ", "each link: ", "silent: "] {
        assert!(said.contains(text), "{text}: {said}");
    }
    let rate = |start| -> f64 {
        let line = said.lines().find_map(|line| line.strip_prefix(start)).unwrap();
        line.split(' ').next().unwrap().parse().unwrap()
    };
    // Every message comes back; the floor may overtake itself where the machine is busy.
    assert!(rate("slipring: ") > 0.0 && rate("floor: ") > 0.0, "{said}");

    let said = Example::start("many_links", "--links 100000000").fails();
    assert!(said.contains("RLIMIT_NOFILE"), "{said}");
}
