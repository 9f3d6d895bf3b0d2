//! A process in a role.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed when it is dropped.
pub struct Actor {
    child: Child,
    /// Kept: a process that prints where nobody reads ends.
    out: Option<BufReader<ChildStdout>>,
}

impl Actor {
    /// Starts a process, and waits until it says that it is ready.
    pub fn start(role: &str, argument: &str) -> Self {
        let mut actor = Self::spawn(role, argument);
        let mut out = BufReader::new(actor.child.stdout.take().expect("piped"));
        let ready = out.by_ref().lines().map_while(Result::ok).any(|line| line.contains("ready"));
        assert!(ready, "{role} {argument} ended before it was ready");
        actor.out = Some(out);
        actor
    }

    /// Starts a process.
    pub fn spawn(role: &str, argument: &str) -> Self {
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "roles::play", "--ignored", "--nocapture"])
            .env("LOOK_ROLE", role)
            .env("LOOK_ARGUMENT", argument)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        Self { child: child.expect("a process"), out: None }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a name that no other test has.
pub fn fresh_name(what: &str) -> String {
    format!("look-{what}-{}", std::process::id())
}

/// Asks again and again until there is an answer, or for a minute.
pub fn until<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Some(answer) => return Some(answer),
            None if Instant::now() >= deadline => return None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
