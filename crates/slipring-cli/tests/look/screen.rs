//! `slipring top` in a terminal emulator of 80 columns and 24 lines.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::actor::{Actor, fresh_name, until};
use crate::slipring;

/// A command on a screen.
struct Screen {
    child: Child,
    keys: File,
    emulator: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    fn start(arguments: &[&str], (lines, columns): (u16, u16)) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("a size");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let open = || {
            let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty());
            slave.expect("the other end")
        };
        let child = Command::new(env!("CARGO_BIN_EXE_slipring"))
            .args(arguments)
            .env("TERM", "xterm-256color")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn();
        let keys = File::from(master);
        let size = |of: u16| of.try_into().expect("not empty");
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(size(lines), size(columns), 0)));
        let (mut shown, screen) = (keys.try_clone().expect("a copy"), emulator.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the command is an error here.
            while let Ok(read @ 1..) = shown.read(&mut bytes) {
                screen.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..read]);
            }
        });
        Self { child: child.expect("the command runs"), keys, emulator }
    }

    fn contents(&self) -> String {
        self.emulator.lock().unwrap_or_else(PoisonError::into_inner).screen().contents()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal that takes keys");
    }

    /// Waits until the screen shows this, and returns it.
    fn shows(&self, what: impl Fn(&str) -> bool) -> String {
        let contents = until(|| Some(self.contents()).filter(|contents| what(contents)));
        contents.unwrap_or_else(|| panic!("the screen shows\n{}", self.contents()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the line of a flow from one process to another.
fn line_of(contents: &str, from: u32, to: u32) -> Option<&str> {
    let (from, to) = (format!("{from} "), format!("{to} "));
    contents.lines().find(|line| line.contains(&from) && line.contains(&to))
}

#[test]
fn top_shows_flows_on_a_screen_of_80_columns_and_obeys_keys() {
    let name = fresh_name("top");
    let server = Actor::start("echo", &name);
    let client = Actor::start("ask", &name);
    let (s, c) = (server.pid(), client.pid());
    let mut screen = Screen::start(&["top", "--interval", "100ms"], (24, 80));
    let contents = screen.shows(|contents| {
        let rate = line_of(contents, c, s).and_then(|line| line.split_whitespace().nth(5));
        rate.is_some_and(|rate| rate != "0.0")
    });
    assert!(contents.starts_with("slipring top: "), "{contents}");
    for head in ["ADDRESS", "FROM", "TO", "MSG/S", "BYTES/S", "QUEUE", "LOANS", "STATE"] {
        assert!(contents.lines().nth(1).is_some_and(|line| line.contains(head)), "{contents}");
    }
    assert!(contents.contains("q quit"), "{contents}");

    screen.press("s");
    screen.shows(|contents| contents.contains("by bytes/s"));
    screen.press("/no-such-flow\r");
    screen.shows(|contents| contents.contains(": 0 flows") && line_of(contents, c, s).is_none());
    screen.press(&format!("/{name}\r"));
    screen.shows(|contents| line_of(contents, c, s).is_some());
    screen.press(" ");
    screen.shows(|contents| contents.contains(", frozen"));
    screen.press(" q");
    let ended = until(|| screen.child.try_wait().expect("a child")).expect("q ends the command");
    assert!(ended.success());
}

#[test]
fn top_without_a_terminal_prints_tables_and_json() {
    let name = fresh_name("top-lines");
    let server = Actor::start("flood", &name);
    let reader = Actor::start("read-one-and-stop", &name);
    let (s, r) = (server.pid(), reader.pid());
    let look = |arguments: &[&str]| {
        let common = ["top", &name, "--count", "1", "--interval", "50ms"];
        slipring(&[&common[..], arguments].concat())
    };
    let (text, code) = look(&[]);
    assert_eq!(code, 0, "{text}");
    let line = line_of(&text, s, r).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("room ") || line.contains("stopped (T)"), "{text}");
    let (json, code) = look(&["--json"]);
    assert_eq!(code, 0, "{json}");
    let table: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(table["flows"][0]["from"]["pid"], s, "{json}");
    assert!(table["flows"][0]["queue"].as_u64().is_some_and(|queue| queue > 0), "{json}");
}
