//! `tests/peer.py`, an independent peer written from `docs/wire.md` alone, run by a test.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use slipring::{Connection, Context, Listener, Options};

use super::{HANG, soon, unique_name, wait_until};

/// A body that tells its place and its message, so that a shifted or an old byte shows.
pub fn body(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (seed * 31 + at * 7 + (at >> 8)) as u8).collect()
}

/// Starts a script of `tests` with arguments separated by blanks, and pipes for what it says. `None`, said aloud, where there
/// is no Python.
pub fn spawn(script: &str, arguments: &str, stdin: Stdio) -> Option<Child> {
    let started = Command::new("python3")
        .arg(format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR")))
        .args(arguments.split_whitespace())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    match started {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: there is no python3");
            None
        }
        other => Some(other.unwrap()),
    }
}

/// `peer.py` and what it has said so far, on both of its outputs. Killed when dropped.
pub struct Python {
    pub child: Child,
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Python {
    /// Starts it with arguments separated by blanks; `None` where there is no Python.
    pub fn start(arguments: &str) -> Option<Self> {
        let mut child = spawn("peer.py", arguments, Stdio::null())?;
        let said = Arc::new(Mutex::new(String::new()));
        let out = collect(child.stdout.take().unwrap(), &said);
        let err = collect(child.stderr.take().unwrap(), &said);
        Some(Self { child, said, readers: vec![out, err] })
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end. Its exit code, and what it said.
    pub fn end(&mut self) -> (Option<i32>, String) {
        wait_until("the end of peer.py", || !self.is_running());
        (self.child.wait().unwrap().code(), self.rest())
    }

    /// As [`end`](Self::end), of one that found everything in order.
    pub fn succeeds(mut self) -> String {
        let (code, said) = self.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.lines().last().unwrap().starts_with("close"), "{said}");
        said
    }

    /// As [`end`](Self::end), of one that says in one line what is wrong. Where that line stands
    /// among the others is chance, as two threads collect them.
    pub fn fails(mut self, why: &str) {
        let (code, said) = self.end();
        let complaint: Vec<&str> =
            said.lines().filter(|line| line.starts_with("peer.py: ")).collect();
        assert!(code == Some(1) && !said.contains("Traceback"), "{code:?}: {said}");
        assert!(complaint.len() == 1 && complaint[0].contains(why), "{said}");
    }

    /// Returns the whole output, at its end.
    pub fn rest(&mut self) -> String {
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            // The link can only say that its peer died; what peer.py says is why.
            eprintln!("peer.py said:\n{}", self.rest());
        }
    }
}

fn collect(from: impl Read + Send + 'static, said: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let said = said.clone();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(|line| line.ok()) {
            *said.lock().unwrap() += &format!("{line}\n");
        }
    })
}

/// Returns the answer of an operation. An operation that nobody wakes polls once at its deadline and may succeed; here
/// that is a failure.
pub fn in_time<T>(operation: impl FnOnce(Instant) -> T) -> T {
    let deadline = soon();
    let answer = operation(deadline);
    assert!(Instant::now() < deadline, "nobody woke it");
    answer
}

/// A context whose operations give up before the test hangs.
pub fn context(options: Options) -> Context {
    Context::with_options(options.send_timeout(HANG)).unwrap()
}

/// A listener, and a peer.py that connects to it.
pub fn called(options: Options, mode: &str) -> Option<(Listener, Python)> {
    called_as(&format!("connect {mode}"), options)
}

/// As [`called`], with a peer.py that does what the first word says.
pub fn called_as(mode: &str, options: Options) -> Option<(Listener, Python)> {
    let name = unique_name();
    let listener = context(options).listen(&name).unwrap();
    let (mode, rest) = mode.split_once(' ').unwrap_or((mode, ""));
    Some((listener, Python::start(&format!("{mode} {name} {rest}"))?))
}

/// A link to a peer.py that echoes.
pub struct Echo {
    pub context: Context,
    pub link: Connection,
    pub python: Python,
}

impl Echo {
    pub fn new(options: Options) -> Option<Self> {
        Self::start("listen", options)
    }

    /// As [`new`](Self::new), with a peer.py that listens in another way.
    pub fn start(mode: &str, options: Options) -> Option<Self> {
        let (name, context) = (unique_name(), context(options));
        let python = Python::start(&format!("{mode} {name}"))?;
        let link = context.connect_retry(name.as_str(), soon()).unwrap();
        Some(Self { context, link, python })
    }

    pub fn send(&mut self, message: &[u8]) {
        in_time(|deadline| self.link.sender().send_deadline(message, deadline)).unwrap();
    }

    pub fn comes_back(&mut self, message: &[u8]) {
        let back = in_time(|deadline| self.link.receiver().recv_deadline(deadline)).unwrap();
        let len = back.as_ref().map(Vec::len);
        assert!(back.as_deref() == Some(message), "{len:?} instead of {}", message.len());
    }

    pub fn round_trip(&mut self, message: &[u8]) {
        self.send(message);
        self.comes_back(message);
    }

    /// Ends the link in order, which peer.py must see, and answer in order.
    pub fn close(self) -> String {
        self.link.close().unwrap();
        self.python.succeeds()
    }
}
