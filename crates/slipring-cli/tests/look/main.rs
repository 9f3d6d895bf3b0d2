//! `slipring ls`, `top` and `why` beside real processes: stopped ones, killed ones, full ones, ones that wait in a circle, and
//! ones that lie.
//!
//! Each process is this binary once more, in a role ([`roles`]).

mod actor;
mod liars;
mod roles;
mod screen;

use std::process::Command;

use crate::actor::{Actor, fresh_name, until};

/// Runs `slipring` and returns what it printed, and its exit code.
fn slipring(arguments: &[&str]) -> (String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipring"));
    let output = command.args(arguments).output().expect("the command runs");
    let text =
        String::from_utf8(output.stdout).expect("text") + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code().unwrap_or(-1))
}

/// Runs `slipring` until it prints all of this, or panics with what it printed last.
fn slipring_tells(arguments: &[&str], parts: &[String]) -> String {
    let mut last = String::new();
    until(|| {
        last = slipring(arguments).0;
        parts.iter().all(|part| last.contains(part.as_str())).then(|| last.clone())
    })
    .unwrap_or_else(|| panic!("{arguments:?} does not tell {parts:?}:\n{last}"))
}

#[test]
fn a_stopped_reader_is_named_with_the_remedy() {
    let name = fresh_name("stopped");
    let writer = Actor::start("flood", &name);
    let reader = Actor::start("read-one-and-stop", &name);
    let (w, r) = (writer.pid(), reader.pid());
    let told = [
        format!("(pid {w}) waits for room to send to"),
        format!("(pid {r}) (@{name}) since"),
        "messages lie unread".into(),
        format!("(pid {r}) is stopped (T)"),
        format!("kill -CONT {r} continues it"),
    ];
    slipring_tells(&["why", &name], &told);
    slipring_tells(&["why", &w.to_string()], &told);
    slipring_tells(&["why", &r.to_string()], &told);
    slipring_tells(&["ls", &name], &["parked for room".into(), "stopped (T)".into()]);
    let json = slipring(&["ls", &name, "--json"]).0;
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let link = lines.iter().find(|line| line["kind"] == "link").expect("a link");
    assert_eq!(link["version"], 1, "{json}");
}

#[test]
fn a_reader_that_keeps_all_loans_is_named_with_what_it_holds() {
    let name = fresh_name("keeps");
    let writer = Actor::start("lend", &name);
    let reader = Actor::start("keep", &name);
    let (w, r) = (writer.pid(), reader.pid());
    let told = [
        format!("(pid {w}) waits for memory to send to"),
        format!("(pid {r}) (@{name}) since"),
        ": the peer holds ".into(),
        " of at most 16 blocks (".into(),
        "; the pool has taken ".into(),
    ];
    let text = slipring_tells(&["why", &name], &told);
    assert!(!text.contains("holds 0 of"), "{text}");
}

#[test]
fn a_circle_of_three_is_named() {
    let names: Vec<String> = (0..3).map(|nth| fresh_name(&format!("circle-{nth}"))).collect();
    let roles = (0..3).map(|nth| format!("{}:{}", names[nth], names[(nth + 1) % 3]));
    let actors: Vec<Actor> = roles.map(|role| Actor::start("wait-for-next", &role)).collect();
    let pid = actors[0].pid().to_string();
    let told = slipring_tells(&["why", &pid], &["they wait in a circle: ".into()]);
    for actor in &actors {
        assert!(
            told.contains(&format!("(pid {}) waits for a message from", actor.pid())),
            "{told}"
        );
    }
    let json = slipring(&["why", &pid, "--json"]).0;
    let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(answer["cycles"][0]["processes"].as_array().map(Vec::len), Some(3), "{json}");
}

#[test]
fn a_publisher_that_waits_names_the_subscriber() {
    let name = fresh_name("topic");
    let publisher = Actor::start("publish", &name);
    let subscriber = Actor::start("subscribe-one-and-stop", &name);
    let (p, s) = (publisher.pid(), subscriber.pid());
    let told = [
        format!("(pid {p}) waits for "),
        format!("(pid {s}), a subscriber of @{name}, to read on since"),
        " messages behind, in ".into(),
        format!("(pid {s}) is stopped (T)"),
    ];
    slipring_tells(&["why", &name], &told);
    let listed = slipring(&["ls", &name]).0;
    assert!(listed.contains("1 subscribers") && listed.contains("(every)"), "{listed}");
}

#[test]
fn the_death_of_a_peer_is_seen() {
    let name = fresh_name("killed");
    let server = Actor::start("keep-link", &name);
    let client = Actor::start("idle", &name);
    slipring_tells(&["ls", &name], &[format!("{} ", client.pid()), "accepted 1".into()]);
    drop(client);
    slipring_tells(&["ls", &name], &["the peer has died".into(), "has died".into()]);
    drop(server);
    assert!(!slipring(&["ls", &name]).0.contains(&name));
}

#[test]
fn processes_that_come_and_go_disturb_no_look() {
    let name = fresh_name("restless");
    let server = Actor::start("accept-all", &name);
    for _ in 0..10 {
        let clients: Vec<Actor> = (0..4).map(|_| Actor::spawn("idle", &name)).collect();
        let (text, code) = slipring(&["ls"]);
        assert_eq!(code, 0, "{text}");
        drop(clients);
        let (text, code) = slipring(&["why", &server.pid().to_string()]);
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn what_is_not_there_has_an_exit_code() {
    for whom in ["1", &fresh_name("nobody")] {
        let (text, code) = slipring(&["why", whom]);
        assert_eq!(code, 3, "{text}");
    }
    assert_eq!(slipring(&["why"]).1, 2);
}

#[test]
fn another_user_sees_nothing() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root may become another user");
        return;
    }
    let name = fresh_name("private");
    let server = Actor::start("keep-link", &name);
    let _client = Actor::start("idle", &name);
    slipring_tells(&["ls", &name], &["accepted 1".into()]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipring"));
    let output = match command.uid(65534).gid(65534).args(["ls"]).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: the other user cannot run the command here: {error}");
            return;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains(&name), "{text}");
    assert!(text.contains("processes cannot be looked into"), "{text}");
    let output = Command::new(env!("CARGO_BIN_EXE_slipring"))
        .uid(65534)
        .gid(65534)
        .args(["why", &server.pid().to_string()])
        .output()
        .expect("as before");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("cannot be looked into"), "{text}");
}
