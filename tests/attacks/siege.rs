//! An attacker: a Python process that attacks until it is killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::load;
use crate::support::sample;

/// How long an attacker may prepare its attack.
const PREPARED: Duration = Duration::from_secs(30);

/// An attacker with its children. Killed on drop.
pub struct Siege {
    child: Child,
    since: Instant,
    /// Its processor time when it had begun.
    before: f64,
}

impl Siege {
    /// Starts an attack and waits until it has begun. `Ok(None)`: this machine cannot make it, said aloud.
    pub fn begin(address: &str, attack: &str) -> Result<Option<Self>, String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/siege.py")
            .replace("crates/slipring-triton/", "");
        let mut command = Command::new("python3");
        command.arg(script).env("PYTHONDONTWRITEBYTECODE", "1");
        if !sample::is_whole() {
            command.arg("--small");
        }
        // A group of its own: one signal reaches the attacker's children, too.
        command.args([address, attack]).process_group(0).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("skipped: there is no python3");
            return Ok(None);
        };
        let (to, said) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        let mut siege = Self { child, since: Instant::now(), before: 0.0 };
        match said.recv_timeout(PREPARED).as_deref() {
            Ok("begun") => {}
            Ok(why) if why.starts_with("skipped") => {
                eprintln!("{attack}: {why}");
                return Ok(None);
            }
            Ok(other) => return Err(format!("the attacker says {other}")),
            Err(error) => return Err(format!("the attacker does not begin: {error}")),
        }
        (siege.since, siege.before) = (Instant::now(), siege.spent());
        Ok(Some(siege))
    }

    /// Returns the group of the attacker and its children.
    pub fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The processor time of the group, in seconds.
    fn spent(&self) -> f64 {
        load::spent(self.group())
    }

    /// Returns the share of a processor that the attacker has used since it began.
    pub fn share(&self) -> f64 {
        ((self.spent() - self.before) / self.since.elapsed().as_secs_f64()).clamp(0.02, 1.0)
    }
}

impl Drop for Siege {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(self.group(), Signal::KILL);
        let _ = self.child.wait();
    }
}
