//! `doctor`.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use serde_json::Value;
use slipring::broadcast::PublishOptions;
use slipring::options::PeerPolicy;
use slipring::{Address, Context, Options};

use crate::support::{Done, json, name, run, start};
use crate::topics::Folder;

/// How long the doctor waits for a listener that answers, and for one that does not.
const LONG: &str = "30s";
const SHORT: &str = "200ms";

/// Returns what the doctor says of an address.
fn diagnose(address: &str, timeout: &str) -> (Done, Value) {
    let done = run(["--json", "doctor", address, "--timeout", timeout]);
    let finding = done.json();
    assert_eq!(finding["about"], "handshake", "{done:?}");
    (done, finding)
}

#[track_caller]
fn assert_problem(address: &str, code: i32, told: &[&str]) {
    let (done, finding) = diagnose(address, if code == 6 { SHORT } else { LONG });
    assert_eq!(finding["level"], "problem", "{finding}");
    assert_eq!(done.code, Some(code), "{done:?}");
    for told in told {
        assert!(finding["fact"].as_str().unwrap().contains(told), "{told}: {finding}");
    }
    assert!(finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding}");
}

/// Returns a socket of slipring's type that listens, and accepts nobody by itself.
fn silent(address: &str, queue: i32) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let name = SocketAddrUnix::new_abstract_name(address.trim_start_matches('@').as_bytes());
    rustix::net::bind(&socket, &name.unwrap()).unwrap();
    rustix::net::listen(&socket, queue).unwrap();
    socket
}

#[test]
fn the_machine_is_described_by_findings() {
    let done = run(["--json", "doctor"]);
    let findings: Vec<Value> = done.lines.iter().map(|line| json(line)).collect();
    let problems = findings.iter().filter(|finding| finding["level"] == "problem").count();
    assert_eq!(done.code, Some(i32::from(problems > 0)), "{done:?}");
    let of = |about| findings.iter().find(|finding| finding["about"] == about);
    for about in ["kernel", "memfd", "link", "descriptors", "seccomp", "user namespace", "GPU"] {
        assert!(of(about).is_some(), "{about}: {done:?}");
    }
    // The other tests could not run otherwise.
    assert_eq!(of("link").unwrap()["level"], "ok", "{done:?}");
    for finding in &findings {
        assert!(finding["level"] == "ok" || finding["remedy"].is_string(), "{finding}");
    }
}

#[test]
fn limits_that_are_too_low_are_found() {
    let script = r#"ulimit -f 1 && ulimit -Sn 200 && exec "$0" --json doctor"#;
    let done = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_slipring")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let lines = String::from_utf8(done.stdout).unwrap();
    let level = |about: &str| {
        let mut findings = lines.lines().map(json);
        findings.find(|finding| finding["about"] == about).unwrap()["level"].clone()
    };
    assert_eq!((level("file size"), level("link")), ("problem".into(), "problem".into()));
    assert_eq!((level("descriptors"), level("memfd")), ("note".into(), "ok".into()));
}

#[test]
fn a_listener_that_answers_is_named() {
    let address = name();
    let mut echo = start(["--json", "echo", &address]);
    echo.json();
    let (_, finding) = diagnose(&address, LONG);
    assert_eq!(finding["level"], "ok", "{finding}");
    let who = format!("process {} (slipring) of user ", echo.pid());
    assert!(finding["fact"].as_str().unwrap().starts_with(&who), "{finding}");

    echo.signal(Signal::STOP);
    let who = format!("process {} (slipring)", echo.pid());
    assert_problem(&address, 6, &[&who, "does not answer", "it is stopped (T)"]);
    echo.signal(Signal::CONT);
}

#[test]
fn a_publisher_answers_and_gets_no_subscriber() {
    let address = name();
    let context = Context::new().unwrap();
    let camera = context.publish(address.as_str(), PublishOptions::new()).unwrap();
    let (_, finding) = diagnose(&address, LONG);
    assert_eq!(finding["level"], "ok", "{finding}");
    assert!(finding["fact"].as_str().unwrap().contains(" publishes on @"), "{finding}");
    assert!(camera.take_events().is_empty());
}

#[test]
fn who_refuses_whom_is_told() {
    let address = name();
    let options = Options::new().peer_policy(PeerPolicy::Custom(Arc::new(|_| false)));
    let mut listener = Context::with_options(options).unwrap().listen(address.as_str()).unwrap();
    thread::spawn(move || while listener.accept().is_ok() {});
    let who = format!("process {} ", std::process::id());
    assert_problem(&address, 4, &[&who, "does not admit this process, of user "]);
}

#[test]
fn an_address_without_a_listener_is_told_from_a_stale_file() {
    assert_problem(&name(), 3, &["nobody listens on @", "in this network namespace"]);
    let folder = Folder::new();
    let path = folder.path("socket");
    assert_problem(&path, 3, &["there is no such file"]);
    let context = Context::new().unwrap();
    let other = folder.path("other");
    let listener = context.listen(Address::path(&path).unwrap()).unwrap();
    fs::hard_link(&path, &other).unwrap();
    drop(listener);
    assert_problem(&other, 3, &["its listener is gone"]);
}

#[test]
fn a_listener_that_is_no_slipring_is_told() {
    let folder = Folder::new();
    let path = folder.path("stream");
    let _stream = UnixListener::bind(&path).unwrap();
    let who = format!("process {} ", std::process::id());
    assert_problem(&path, 1, &[&who, "socket of another type"]);

    let address = name();
    let silent = silent(&address, 9);
    assert_problem(&address, 6, &[&who, "does not answer"]);
    let (closes, address) = (silent, address);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The first is the one of the probe before.
            for _ in 0..2 {
                drop(rustix::net::accept(&closes).unwrap());
            }
        });
        assert_problem(&address, 5, &[&who, "closed the connection instead of answering"]);
    });
}

#[test]
fn what_another_version_or_no_slipring_answers_is_told() {
    // docs/wire.md, "Packets": a Refusal of a bad Hello, by a side that speaks versions 7 to 9.
    let mut refusal = [0; 128];
    refusal[..8].copy_from_slice(b"slipring");
    refusal[8] = 2;
    (refusal[16], refusal[18], refusal[20]) = (7, 9, 2);
    let answers: [(&[u8], _); 3] = [
        (&refusal, ["version", "7 to 9"]),
        (&[0; 128], ["does not speak slipring's protocol", "magic"]),
        (b"220 mail.example ESMTP", ["does not speak slipring's protocol", "22 bytes"]),
    ];
    for (answer, told) in answers {
        let address = name();
        let silent = silent(&address, 9);
        thread::scope(|scope| {
            scope.spawn(|| {
                let socket = rustix::net::accept(&silent).unwrap();
                rustix::net::send(&socket, answer, SendFlags::NOSIGNAL).unwrap();
                // Until the other side has read it, and closes.
                while rustix::net::recv(&socket, &mut [0; 256][..], RecvFlags::empty()).unwrap().0
                    > 0
                {}
            });
            let who = format!("process {} ", std::process::id());
            assert_problem(&address, 1, &[&[&*who][..], &told[..]].concat());
        });
    }
}

#[test]
fn an_abstract_name_of_a_stream_is_told() {
    use std::os::linux::net::SocketAddrExt;
    let address = name();
    let bare = address.trim_start_matches('@').as_bytes();
    let bound = std::os::unix::net::SocketAddr::from_abstract_name(bare).unwrap();
    let _stream = UnixListener::bind_addr(&bound).unwrap();
    let who = format!("process {} ", std::process::id());
    assert_problem(&address, 3, &[&who, "socket of another type"]);
}

#[test]
fn a_full_queue_is_told() {
    let address = name();
    let _silent = silent(&address, 0);
    assert_problem(&address, 6, &["does not answer"]); // stays in the queue, which has one place
    let who = format!("process {} ", std::process::id());
    assert_problem(&address, 6, &["the queue on @", &who, "is full"]);
}

#[test]
fn a_listener_in_another_network_namespace_is_found() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this process may make no network namespace");
        return;
    }
    let address = name();
    let mut echo = unshare()
        .args([env!("CARGO_BIN_EXE_slipring"), "echo", &address])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 9];
    std::io::Read::read_exact(echo.stdout.as_mut().unwrap(), &mut line).unwrap();
    let who = format!("but process {} (slipring) does in another one", echo.id());
    let told = std::panic::catch_unwind(|| assert_problem(&address, 3, &[&who]));
    echo.kill().unwrap();
    echo.wait().unwrap();
    told.unwrap();
}

#[test]
fn the_name_of_a_process_steers_no_terminal() {
    let address = name();
    let _silent = silent(&address, 9);
    let comm = fs::read("/proc/self/comm").unwrap();
    fs::write("/proc/self/comm", "a\u{1b}[2J\u{9b}1m").unwrap();
    let done = run(["doctor", &address, "--timeout", "20ms"]);
    fs::write("/proc/self/comm", comm).unwrap();
    assert!(done.lines.last().unwrap().contains(r"(a\u{1b}[2J\u{9b}1m)"), "{done:?}");
}
