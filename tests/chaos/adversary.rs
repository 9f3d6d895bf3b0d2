//! An adversary in Python (`tests/hostile/`), which knows the format from `docs/wire.md` alone, attacks the example
//! `echo_server`. The server also serves an honest client.
//!
//! After each attack the server lives and holds what it held before, and the honest client has got every byte. Each test
//! prints times (`--nocapture`), and judges them with `SLIPRING_JUDGE=1` on an idle machine. `SLIPRING_TESTS=whole` runs
//! the long form of each attack. `SLIPRING_ATTACK=flood` runs the attacks whose names contain `flood`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use slipring::{Context, Options};

use crate::support::{HANG, sample, soon, unique_name};

/// The user that is not us.
const OTHER: u32 = 65534;
/// The smallest mapping that is the server's pool, which it keeps, and not a ring of its own.
const POOL: u64 = 1_000_000;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn folder() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile")
}

fn echo_server() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/echo_server")
}

/// The descriptors and mappings of a server, without its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    mappings: usize,
}

/// A running `echo_server`, and what it said. Killed when dropped.
struct Server {
    child: Child,
    said: Arc<Mutex<String>>,
    complained: Arc<Mutex<String>>,
    name: String,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let name = unique_name();
        let built = echo_server().exists();
        assert!(built, "first: cargo build --example echo_server (with --release, if this is)");
        let command = command.arg(&name).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = collect(child.stdout.take().unwrap());
        let complained = collect(child.stderr.take().unwrap());
        let server = Self { child, said, complained, name };
        crate::support::wait_until("the server", || {
            server.said.lock().unwrap().contains("listening")
        });
        server
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap()
    }

    /// Lengths of mapped segments: of its own pool, and of all else.
    fn mapped(&self) -> (Vec<u64>, Vec<u64>) {
        let maps = self.file("maps");
        let segments = maps.lines().filter(|line| line.contains("/memfd:"));
        segments
            .map(|line| {
                let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let number = |hex| u64::from_str_radix(hex, 16).unwrap();
                (number(end) - number(start), line.contains("rw-s"))
            })
            .fold((vec![], vec![]), |(mut pool, mut other), (len, own)| {
                if own && len > POOL {
                    pool.push(len)
                } else {
                    other.push(len)
                }
                (pool, other)
            })
    }

    fn held(&self) -> Held {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count();
        let (pool, others) = self.mapped();
        Held { descriptors: fds.saturating_sub(pool.len()), mappings: others.len() }
    }

    /// Bytes in memory, its segments among them.
    fn memory(&self) -> u64 {
        let status = self.file("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    fn is_well(&mut self) {
        let complained = self.complained.lock().unwrap();
        assert!(self.child.try_wait().unwrap().is_none(), "the server is dead: {complained}");
        assert!(!complained.contains("panicked"), "{complained}");
    }

    /// Waits until it holds no more than it did then, and the side that it keeps ready. How long.
    fn comes_back(&self, then: Held, attack: &str) -> Duration {
        let start = Instant::now();
        loop {
            let now = self.held();
            if now.descriptors <= then.descriptors + 1 && now.mappings <= then.mappings + 2 {
                return start.elapsed();
            }
            assert!(start.elapsed() < HANG, "{attack}: held {then:?}, now {now:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// How links ended since the last call: what the server calls a fault, each once.
    fn faults(&self) -> BTreeSet<String> {
        let said = std::mem::take(&mut *self.said.lock().unwrap());
        let ends = said.lines().filter_map(|line| line.split_once("broke the protocol: "));
        ends.map(|(_, fault)| fault.to_owned()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(from: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    let to = said.clone();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            *to.lock().unwrap() += &format!("{line}\n");
        }
    });
    said
}

/// Between two messages of the honest client.
const PAUSE: Duration = Duration::from_micros(500);

/// The waits of the honest client in one interval.
#[derive(Clone)]
struct Waits {
    /// One for each round trip.
    all: Vec<Duration>,
    since: Instant,
    /// When the round trip began that is on its way.
    began: Instant,
}

impl Waits {
    fn new() -> Self {
        Self { all: Vec::new(), since: Instant::now(), began: Instant::now() }
    }

    fn longest(&self) -> Duration {
        self.all.iter().copied().max().unwrap_or_default().max(self.began.elapsed())
    }

    fn median(&self) -> Duration {
        let mut all = self.all.clone();
        let middle = all.len() / 2;
        if all.is_empty() { self.longest() } else { *all.select_nth_unstable(middle).1 }
    }

    fn rate(&self) -> f64 {
        self.all.len() as f64 / self.since.elapsed().as_secs_f64()
    }
}

/// A client that has its messages echoed, with a pause after each. On two processors a client without a pause would
/// share them with any process that computes.
struct Honest {
    waits: Arc<Mutex<Waits>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Honest {
    fn start(name: &str) -> Self {
        let mut link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
        let waits = Arc::new(Mutex::new(Waits::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (to, stopped) = (waits.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let mut message = [0; 48];
            for number in 0u64.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                message[..8].copy_from_slice(&number.to_le_bytes());
                message[8..].fill(number as u8);
                let began = Instant::now();
                to.lock().unwrap().began = began;
                link.sender().send_deadline(&message, soon()).unwrap();
                let back = link.receiver().recv_deadline(soon()).unwrap();
                assert_eq!(back.as_deref(), Some(&message[..]), "an honest client got wrong bytes");
                to.lock().unwrap().all.push(began.elapsed());
                thread::sleep(PAUSE);
            }
            link.close().unwrap();
        });
        Self { waits, stop, thread: Some(thread) }
    }

    /// Returns the waits after the last call, and starts a new interval.
    fn take(&self) -> Waits {
        assert!(!self.thread.as_ref().unwrap().is_finished(), "the honest client's link is over");
        let mut now = self.waits.lock().unwrap();
        let began = now.began;
        std::mem::replace(&mut *now, Waits { began, ..Waits::new() })
    }

    fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Connects, has a message echoed, and closes. Returns how long that took, or `None` if the server refused the link.
fn visit(context: &Context, name: &str) -> Option<Duration> {
    let start = Instant::now();
    let mut link = context.connect_deadline(name, soon()).ok()?;
    link.sender().send_deadline(b"new", soon()).ok()?;
    let back = link.receiver().recv_deadline(soon()).ok()?;
    assert_eq!(back.as_deref(), Some(&b"new"[..]));
    link.close().ok()?;
    Some(start.elapsed())
}

fn adversary(arguments: &[&str]) -> Command {
    let mut python = Command::new("python3");
    python.arg(format!("{}/attack.py", folder())).args(arguments);
    python.env("SLIPRING_ECHO", echo_server()).env("PYTHONDONTWRITEBYTECODE", "1");
    if sample::is_whole() {
        python.arg("--all");
    }
    python
}

/// The names of all attacks, or none where there is no Python.
fn attacks() -> Vec<String> {
    let Ok(listed) = adversary(&["--list"]).output() else {
        eprintln!("skipped: there is no python3");
        return vec![];
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().map(|line| line.split(' ').next().unwrap().to_owned());
    let only = std::env::var("SLIPRING_ATTACK").unwrap_or_default();
    names.filter(|name| name.contains(&only)).collect()
}

/// Runs an attack to its end, `meanwhile` again and again. What it printed, if this machine can do it.
fn run(
    name: &str,
    attack: &str,
    who: &str,
    alone: bool,
    mut meanwhile: impl FnMut(),
) -> Option<Value> {
    let mut command = adversary(&["--as", who, name, attack]);
    if alone {
        command.env("SLIPRING_ALONE", "1");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (said, complained) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (said, complained) = (collect(said), collect(complained));
    let patience = if sample::is_whole() { 60 * HANG } else { 3 * HANG };
    let start = Instant::now();
    let status = loop {
        meanwhile();
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > patience {
            let _ = child.kill();
            panic!("{attack} as {who} does not end");
        }
        thread::sleep(Duration::from_millis(10));
    };
    crate::support::wait_until("its output", || Arc::strong_count(&said) == 1);
    let said = said.lock().unwrap();
    let (complained, last) = (complained.lock().unwrap(), said.lines().last().unwrap_or("null"));
    let found: Value = serde_json::from_str(last).unwrap();
    match status.code() {
        Some(0) => Some(found),
        Some(2) => {
            eprintln!("skipped: {attack} as {who}: {}", found["skipped"]);
            None
        }
        _ => panic!("{attack} as {who}: {found:#}\n{complained}"),
    }
}

/// Says what is wrong with a time; only if times are judged.
fn judge(is_fine: bool, what: impl FnOnce() -> String) {
    if !is_fine && sample::is_judged() {
        panic!("{}", what());
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// One attack on a server that serves an honest client, in a line of the table.
fn withstand(
    server: &mut Server,
    honest: &Honest,
    context: &Context,
    then: Held,
    attack: &str,
    who: &str,
) {
    let judged = sample::is_judged();
    honest.take();
    thread::sleep(Duration::from_millis(if judged { 500 } else { 30 }));
    let before = honest.take().rate();
    let (mut slowest, mut turned_away, mut memory) = (Duration::ZERO, 0, 0);
    let began = Instant::now();
    let found = run(&server.name, attack, who, false, || {
        match visit(context, &server.name) {
            Some(took) => slowest = slowest.max(took),
            None => turned_away += 1,
        }
        memory = memory.max(server.memory());
    });
    let (during, lasted) = (honest.take(), began.elapsed());
    let back = server.comes_back(then, attack);
    server.is_well();
    assert!(visit(context, &server.name).is_some(), "nobody is served after {attack} as {who}");
    let Some(found) = found else { return };
    let (median, longest, ratio) = (during.median(), during.longest(), during.rate() / before);
    let closed = found["closed_ms"].as_f64();
    println!(
        "{attack:18} {who:12} {:>8.3} {:>8.1} {ratio:>6.2} {:>8.1} {turned_away:>5} {:>8} {:>7.0} {:>6}  {} {}",
        ms(median),
        ms(longest),
        ms(slowest),
        closed.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
        ms(back),
        memory >> 20,
        found["outcomes"],
        server.faults().len(),
    );
    let line = || format!("{attack} as {who}: {longest:?} {ratio:.2} {slowest:?} {back:?} {found}");
    judge(longest < Duration::from_secs(1), line);
    judge(ratio > 0.5 || lasted < Duration::from_millis(200), line);
    judge(slowest < Duration::from_secs(1) && turned_away == 0, line);
    judge(closed.is_none_or(|ms| ms < 100.0), line);
    judge(back < Duration::from_secs(1), line);
    let cut = found["cut_after_ms"].as_f64();
    judge(cut.is_none_or(|ms| (800.0..1200.0).contains(&ms)), line);
}

#[test]
fn an_adversary_harms_nobody_but_itself() {
    let attacks = attacks();
    if attacks.is_empty() {
        return;
    }
    let mut server = Server::start(Command::new(echo_server()));
    let honest = Honest::start(&server.name);
    let context = Context::with_options(Options::default()).unwrap();
    assert!(visit(&context, &server.name).is_some());
    thread::sleep(Duration::from_millis(200));
    let then = server.held();
    println!(
        "{:18} {:12} {:>8} {:>8} {:>6} {:>8} {:>5} {:>8} {:>7} {:>6}",
        "attack", "as", "p50 ms", "max ms", "rate", "new ms", "away", "closed", "back ms", "MiB"
    );
    let whole = sample::is_whole();
    for (number, attack) in attacks.iter().enumerate() {
        withstand(&mut server, &honest, &context, then, attack, "same");
        if !is_root() {
            continue;
        }
        if whole || number % 4 == 0 {
            withstand(&mut server, &honest, &context, then, attack, "other");
        }
        if whole || number % 12 == 1 {
            withstand(&mut server, &honest, &context, then, attack, "userns");
        }
        if whole || number % 12 == 2 {
            withstand(&mut server, &honest, &context, then, attack, "other-userns");
        }
    }
    if !is_root() {
        eprintln!("skipped: other users take root");
    }
    honest.finish();
}

#[test]
fn a_server_that_is_short_of_descriptors_serves_again_and_does_not_spin() {
    if attacks().is_empty() {
        return;
    }
    // Another user than root, whose descriptors in flight the kernel does not count.
    let (user, who) =
        if is_root() { (OTHER, "other") } else { (rustix::process::geteuid().as_raw(), "same") };
    let mut command = Command::new("python3");
    command
        .arg(format!("{}/limited.py", folder()))
        .args([&user.to_string(), "128"])
        .arg(echo_server());
    let mut server = Server::start(command);
    for attack in ["thrown", "in-flight", "thrown"] {
        let mut then = server.held();
        then.descriptors += 4; // a context's own, with the first link
        let Some(found) = run(&server.name, attack, who, true, || ()) else { continue };
        let back = server.comes_back(then, attack);
        server.is_well();
        println!("{attack:12} {:>7.0} ms  {found}", ms(back));
        judge(back < Duration::from_secs(1), || format!("{attack}: {back:?}"));
    }
}
