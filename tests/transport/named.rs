//! Errors name the process that they are about.

use std::time::{Duration, Instant};

use crate::support::other::{Other, say, wait_for_death};
use crate::support::{soon, unique_name, wait_until};
use slipring::{Context, ErrorKind};

/// Returns the command of the test's processes, as the kernel cuts it.
fn own_command() -> String {
    std::fs::read_to_string("/proc/self/comm").unwrap().trim_end().to_string()
}

#[test]
fn a_timeout_and_a_death_name_the_process_and_its_command() {
    let test = "named::a_timeout_and_a_death_name_the_process_and_its_command";
    let name = unique_name();
    let mut other = Other::start(test, &name, |name| {
        let mut link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
        say("connected");
        let _ = link.recv();
        wait_for_death();
    });
    let context = Context::new().unwrap();
    let mut link = context.listen(&*name).unwrap().accept_deadline(soon()).unwrap();
    other.expect("connected");
    let process = format!("process {} ({})", other.pid(), own_command());

    let late =
        link.receiver().recv_deadline(Instant::now() + Duration::from_millis(1)).unwrap_err();
    assert!(late.is_timeout());
    assert!(
        format!("{late:#}").ends_with(&format!(": no message came from {process}")),
        "{late:#}"
    );

    other.kill();
    let died = link.receiver().recv_deadline(soon()).unwrap_err();
    assert_eq!(*died.kind(), ErrorKind::PeerDied);
    assert!(format!("{died:#}").starts_with(&format!("the peer died: {process}")), "{died:#}");
    // The socket of a process ends before the process does. Nobody has waited for this child yet.
    let told = format!("the peer died: {process}: signal 9 ended it");
    wait_until("the exit is told", || format!("{:#}", link.send(b"late").unwrap_err()) == told);
    other.wait();
    let died = link.send(b"late").unwrap_err();
    assert_eq!(format!("{died:#}"), format!("the peer died: {process}"));
}

#[test]
fn a_connect_names_the_listener_that_does_not_answer() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let listener = context.listen(&*name).unwrap();
    let late =
        context.connect_deadline(&*name, Instant::now() + Duration::from_millis(20)).unwrap_err();
    let process = format!("process {} ({}), which listens", std::process::id(), own_command());
    assert!(late.is_timeout());
    assert!(format!("{late:#}").contains(&process), "{late:#}");
    drop(listener);
}

#[test]
fn the_commands_name_steers_no_terminal() {
    let test = "named::the_commands_name_steers_no_terminal";
    let name = unique_name();
    let mut other = Other::start(test, &name, |name| {
        std::fs::write("/proc/self/comm", "\u{1b}[2J\u{7}x").unwrap();
        let _link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
        say("connected");
        wait_for_death();
    });
    let context = Context::new().unwrap();
    let mut link = context.listen(&*name).unwrap().accept_deadline(soon()).unwrap();
    other.expect("connected");
    let late =
        link.receiver().recv_deadline(Instant::now() + Duration::from_millis(1)).unwrap_err();
    let text = format!("{late:#}");
    assert!(text.contains(r"(\x1b[2J\x07x)"), "{text}");
    assert!(!text.contains(|c: char| c.is_control()), "{text}");
    other.kill();
}
