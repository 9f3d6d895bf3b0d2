//! `tests/subscriber.py`, an independent subscriber written from `docs/wire.md` alone, driven by a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::Stage;
use crate::support::{HANG, python, wait_until};

/// `subscriber.py`, which answers a line with a line. Killed when dropped.
pub struct Driven {
    pub child: Child,
    to: ChildStdin,
    said: Receiver<String>,
}

impl Driven {
    /// Starts one with a policy. `None`, said aloud, where there is no Python.
    pub fn start(name: &str, arguments: &str) -> Option<Self> {
        let arguments = format!("{name} {arguments}");
        let mut child = python::spawn("subscriber.py", &arguments, Stdio::piped())?;
        let (sender, said) = channel();
        collect(child.stdout.take().unwrap(), sender.clone());
        collect(child.stderr.take().unwrap(), sender);
        let to = child.stdin.take().unwrap();
        Some(Self { child, to, said })
    }

    /// As [`start`](Self::start), and waits for its join.
    pub fn join(stage: &Stage, arguments: &str) -> Option<Self> {
        let mut driven = Self::start(&stage.name, arguments)?;
        let said = driven.line();
        assert!(said.starts_with("joined "), "{said}");
        Some(driven)
    }

    /// Returns the next line that it says.
    pub fn line(&mut self) -> String {
        self.said.recv_timeout(HANG).expect("subscriber.py says nothing")
    }

    pub fn tell(&mut self, command: &str) {
        writeln!(self.to, "{command}").unwrap();
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.line()
    }

    /// Returns the lines up to the end of the publisher, and what it says of that.
    pub fn all(&mut self) -> (Vec<String>, String) {
        self.tell("all");
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            match line.strip_prefix("end: ") {
                Some(end) => return (lines, end.to_owned()),
                None => lines.push(line),
            }
        }
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end. It says in one line what is wrong.
    pub fn fails(mut self, why: &str) {
        wait_until("the end of subscriber.py", || self.child.try_wait().unwrap().is_some());
        let said: Vec<String> = self.said.iter().collect();
        assert_eq!(self.child.wait().unwrap().code(), Some(1), "{said:?}");
        assert!(said.len() == 1 && said[0].contains(why), "{said:?}");
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let said: Vec<String> = self.said.try_iter().collect();
            eprintln!("subscriber.py said:\n{}", said.join("\n"));
        }
    }
}

fn collect(from: impl Read + Send + 'static, said: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(|line| line.ok()) {
            let _ = said.send(line);
        }
    });
}

/// Adler-32, which Python has.
fn sum(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1, 0);
    for part in bytes.chunks(5000) {
        for byte in part {
            low += u32::from(*byte);
            high += low;
        }
        (low, high) = (low % 65521, high % 65521);
    }
    high << 16 | low
}

/// Returns how many bytes there are, and their sum.
pub fn what(bytes: &[u8]) -> String {
    format!("{} {:08x}", bytes.len(), sum(bytes))
}

/// Returns the line of a message.
pub fn told(number: u64, missed: u64, message: &[u8]) -> String {
    format!("{number} {missed} message {}", what(message))
}
