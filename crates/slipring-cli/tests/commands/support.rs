//! Processes of `slipring`, which end with the test, whatever fails.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a test waits for what must come: only a hang takes it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns a name that no other test uses.
pub fn name() -> String {
    slipring::Address::fresh().to_string()
}

/// A running `slipring`. Its drop kills it.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    command: String,
}

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    /// The lines of standard output that were not taken before.
    pub lines: Vec<String>,
    pub stderr: String,
}

impl Done {
    /// Returns the last line, parsed.
    pub fn json(&self) -> Value {
        json(self.lines.last().unwrap_or_else(|| panic!("no output: {self:?}")))
    }
}

pub fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Starts the command with these arguments.
pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipring"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = format!("{command:?}");
    let mut child = command.spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let (line, lines) = channel();
    thread::spawn(move || {
        for read in BufReader::new(stdout).lines() {
            let Ok(read) = read else { return };
            if line.send(read).is_err() {
                return;
            }
        }
    });
    let stderr = thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.read_to_string(&mut text);
        text
    });
    let stdin = child.stdin.take();
    Running { child, stdin, lines, stderr: Some(stderr), command: shown }
}

/// Runs the command to its end.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Done {
    let mut running = start(arguments);
    running.close_stdin();
    running.finish()
}

impl Running {
    /// Returns the next line that the command prints.
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("{} prints nothing", self.command),
            Err(RecvTimeoutError::Disconnected) => {
                let stderr = self.finish().stderr;
                panic!("{} ended: {stderr}", self.command)
            }
        }
    }

    pub fn json(&mut self) -> Value {
        json(&self.line())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).and_then(|()| stdin.flush()).unwrap();
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the command.
    pub fn finish(&mut self) -> Done {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "{} does not end", self.command);
            thread::sleep(Duration::from_millis(2));
        };
        let stderr = self.stderr.take().map(|thread| thread.join().unwrap()).unwrap_or_default();
        Done { code: status.code(), lines: self.lines.iter().collect(), stderr }
    }

    /// Ends the command as a user does at the keyboard.
    pub fn interrupt(mut self) -> Done {
        self.signal(Signal::INT);
        self.finish()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
