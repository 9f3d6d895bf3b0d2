//! An example as a process: what it says, and how it ends.

#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slipring::{Connection, Context};

/// How long anything may take before a test says that it hangs.
pub const HANG: Duration = Duration::from_secs(60);

pub fn soon() -> Instant {
    Instant::now() + HANG
}

/// A name that no other test has, on this machine.
pub fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("slipring-examples-{}-{number}", std::process::id())
}

/// A running example and what it has said so far, on both of its outputs. Killed when dropped.
pub struct Example {
    pub child: Child,
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Example {
    /// Starts an example with arguments separated by blanks.
    pub fn start(name: &str, arguments: &str) -> Self {
        let test = std::env::current_exe().unwrap();
        let folder = test.parent().and_then(|deps| deps.parent()).unwrap();
        let program: PathBuf = folder.join("examples").join(name);
        let mut child = Command::new(&program)
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let said = Arc::new(Mutex::new(String::new()));
        let out: Box<dyn Read + Send> = Box::new(child.stdout.take().unwrap());
        let err: Box<dyn Read + Send> = Box::new(child.stderr.take().unwrap());
        let read = |from: Box<dyn Read + Send>| {
            let said = said.clone();
            thread::spawn(move || {
                for line in BufReader::new(from).lines().map_while(Result::ok) {
                    *said.lock().unwrap() += &format!("{line}\n");
                }
            })
        };
        let readers = vec![read(out), read(err)];
        Self { child, said, readers }
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until the example has said this so many times.
    pub fn says_times(&self, text: &str, times: usize) {
        let deadline = soon();
        while self.said().matches(text).count() < times {
            assert!(Instant::now() < deadline, "{text:?} is missing from:\n{}", self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn says(&self, text: &str) {
        self.says_times(text, 1);
    }

    /// SIGKILL. What it said.
    pub fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.rest()
    }

    /// Waits for its end. Its exit code, and what it said.
    pub fn end(mut self) -> (Option<i32>, String) {
        let deadline = soon();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "does not end, and said:\n{}", self.said());
            thread::sleep(Duration::from_millis(5));
        };
        (status.code(), self.rest())
    }

    /// As [`end`](Self::end), of an example that succeeds.
    pub fn succeeds(self) -> String {
        let (code, said) = self.end();
        assert_eq!(code, Some(0), "{said}");
        said
    }

    /// As [`end`](Self::end), of an example that fails with a text.
    pub fn fails(self) -> String {
        let (code, said) = self.end();
        assert_eq!(code, Some(1), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }

    /// What was said, when nothing follows.
    fn rest(&mut self) -> String {
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.said()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn connect(name: &str) -> Connection {
    Context::new().unwrap().connect_retry(name, soon()).unwrap()
}

/// The number behind a text.
pub fn after<T: std::str::FromStr<Err: std::fmt::Debug>>(said: &str, text: &str) -> T {
    let rest = said.split_once(text).unwrap().1;
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}

pub fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
