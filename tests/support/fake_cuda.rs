//! A CUDA driver without a GPU: `tests/fake_cuda`, compiled, and found as `libcuda.so.1` by processes that get the
//! environment which a [`FakeCuda`] gives.
//!
//! The loader reads its path when a process starts, so a test of CUDA runs in a process of its own:
//!
//! ```ignore
//! run_here(TEST, |_| { /* the body, to which CUDA is there */ });
//! let cuda = FakeCuda::new().delay(Duration::from_millis(2));
//! cuda.start(TEST, "").succeeds();
//! cuda.was_used_well();
//! ```
//!
//! With `SLIPRING_GPU` in the environment the same tests use the machine's own driver and GPU.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::cuda_driver;
use super::other::{Other, run_here, say, wait_for_death};

/// A driver and what its processes have in common. A clone is of the same session, with an environment of its own:
/// for a process that is to see other devices, or to meet other failures.
#[derive(Debug, Clone)]
pub struct FakeCuda {
    session: Arc<Session>,
    library: PathBuf,
    environment: Vec<(String, String)>,
}

/// The name of the variable with the kind of pools.
const KIND: &str = "SLIPRING_TEST_POOL";

/// How the pools of a test's processes export memory, and what orders their work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By a handle, and by events.
    Handles,
    /// By a descriptor, and by words.
    Words,
    /// By a descriptor, and synchronized.
    Synchronized,
    /// By a descriptor, and by events.
    Events,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Handles, Self::Words, Self::Synchronized, Self::Events];

    /// The kind that this process was told.
    pub fn told() -> Self {
        let told = std::env::var(KIND).ok().and_then(|told| told.parse::<usize>().ok());
        Self::ALL[told.unwrap_or(0)]
    }
}

/// A call in the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub process: u32,
    pub thread: u32,
    /// The device of the thread's current context.
    pub device: Option<u32>,
    /// As exported: `cuMemAlloc_v2`.
    pub name: String,
    /// As `tests/fake_cuda/fake_cuda.h` says: `mem:71.3`, `stream:0`, `4096`.
    pub arguments: Vec<String>,
    pub code: i32,
}

/// Names in `/dev/shm` and the trace's file, removed at the end, also after a death.
#[derive(Debug)]
struct Session {
    name: String,
    trace: PathBuf,
}

impl FakeCuda {
    /// One device of 4 GiB, a driver of CUDA 13.0.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", std::process::id());
        let trace = scratch().join(format!("fake-cuda-trace-{name}"));
        // A process with the same number may have died here.
        let _ = fs::remove_file(&trace);
        let library = if is_real() { PathBuf::new() } else { build("", &[]) };
        Self { session: Arc::new(Session { name, trace }), library, environment: Vec::new() }
    }

    pub fn devices(self, count: u32) -> Self {
        self.with("FAKE_CUDA_DEVICES", count)
    }

    /// The first device's UUID, 32 hex digits.
    pub fn uuid(self, base: &str) -> Self {
        assert_eq!(base.len(), 32);
        self.with("FAKE_CUDA_UUID", base)
    }

    /// As `cuDriverGetVersion` gives it: 13000 is CUDA 13.0.
    pub fn version(self, version: u32) -> Self {
        self.with("FAKE_CUDA_VERSION", version)
    }

    /// The last attribute of devices that the driver knows: 124 before CUDA 12.
    pub fn attributes(self, last: u32) -> Self {
        self.with("FAKE_CUDA_ATTRIBUTES", last)
    }

    /// Memory of each device, in each process.
    pub fn bytes(self, bytes: u64) -> Self {
        self.with("FAKE_CUDA_BYTES", bytes)
    }

    /// How long a stream waits before each copy, memset and record.
    pub fn delay(self, delay: Duration) -> Self {
        self.with("FAKE_CUDA_DELAY_US", delay.as_micros())
    }

    /// Work that a process had recorded when it died never ends, as with the driver of a GPU.
    pub fn stuck(self) -> Self {
        self.with("FAKE_CUDA_STUCK", 1)
    }

    /// Lets calls fail: `call:code[:nth[:more]]`, separated by commas. The `nth` (1) call of this name in a process
    /// and `more` (0) after it give `code`, and do nothing.
    pub fn fail(self, plan: &str) -> Self {
        self.with("FAKE_CUDA_FAIL", plan)
    }

    /// Devices that share neither memory nor events.
    pub fn without_ipc(self) -> Self {
        self.with("FAKE_CUDA_NO_IPC", 1)
    }

    /// Devices that export no memory as file descriptors.
    pub fn without_descriptors(self) -> Self {
        self.with("FAKE_CUDA_NO_DESCRIPTORS", 1)
    }

    /// Devices whose streams cannot wait for words.
    pub fn without_words(self) -> Self {
        self.with("FAKE_CUDA_NO_WORDS", 1)
    }

    /// Pairs of devices, as `1-0,2-0`, of which the first cannot use memory of the second.
    pub fn without_peers(self, pairs: &str) -> Self {
        self.with("FAKE_CUDA_NO_PEERS", pairs)
    }

    /// Devices that register no memory of the host.
    pub fn without_pins(self) -> Self {
        self.with("FAKE_CUDA_NO_PINS", 1)
    }

    /// Devices that register no memory of the host that the process may only read.
    pub fn without_read_only_pins(self) -> Self {
        self.with("FAKE_CUDA_NO_READ_ONLY_PINS", 1)
    }

    /// How long memory of the host takes to be registered.
    pub fn registers_in(self, time: Duration) -> Self {
        self.with("FAKE_CUDA_REGISTER_MS", time.as_millis())
    }

    /// Streams of one priority share a queue of the device, as with `CUDA_DEVICE_MAX_CONNECTIONS=1`.
    pub fn one_queue(self) -> Self {
        self.with("FAKE_CUDA_CONNECTIONS", 1)
    }

    /// Streams have no priorities.
    pub fn without_priorities(self) -> Self {
        self.with("FAKE_CUDA_NO_PRIORITIES", 1)
    }

    /// Frees wait for all work of the device, and every other call waits for them.
    pub fn locked(self) -> Self {
        self.with("FAKE_CUDA_LOCKED", 1)
    }

    /// Lets the pools of the tests' processes be of a kind.
    pub fn of_kind(self, kind: Kind) -> Self {
        self.with(KIND, kind as u32)
    }

    /// Alters the driver without a GPU. The machine's own stays as it is.
    pub fn if_fake(self, alter: impl FnOnce(Self) -> Self) -> Self {
        if is_real() { self } else { alter(self) }
    }

    /// A driver that finds no device.
    pub fn without_device(self) -> Self {
        self.with("FAKE_CUDA_NO_DEVICE", 1)
    }

    /// Every stream is being captured into a graph.
    pub fn capturing(self) -> Self {
        self.with("FAKE_CUDA_CAPTURING", 1)
    }

    /// A library of a driver before CUDA 11.7, whose streams know no words.
    pub fn before_words(mut self) -> Self {
        self.library = build("-before-words", &["-DWITHOUT_WORDS"]);
        self
    }

    /// A library that has no `cuIpcGetEventHandle`.
    pub fn without_ipc_events(mut self) -> Self {
        self.library = build("-without-ipc-events", &["-DWITHOUT_IPC_EVENTS"]);
        self
    }

    fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.retain(|(other, _)| other != name);
        self.environment.push((name.into(), value.to_string()));
        self
    }

    /// Whether it can be had here: the machine's own driver fails by itself alone, and has the devices that it has.
    /// Otherwise it says so.
    pub fn is_there(&self, test: &str) -> bool {
        let harmless = ["FAKE_CUDA_DELAY_US", "FAKE_CUDA_STUCK", KIND];
        let altered = self.environment.iter().any(|(name, _)| !harmless.contains(&name.as_str()));
        if is_real() && altered {
            eprintln!("skipped: {test} needs a driver that does as it is told");
            return false;
        }
        true
    }

    /// Whether it tells what was called. Otherwise it says so.
    pub fn tells(&self, test: &str) -> bool {
        if is_real() {
            eprintln!("skipped: {test} asks what was called, which a real driver does not tell");
        }
        !is_real()
    }

    /// Whether it is the driver of a GPU, whose speed means something. Otherwise it says so.
    pub fn has_speed(&self, test: &str) -> bool {
        if !is_real() {
            eprintln!("skipped: {test} measures a GPU, and there is none (SLIPRING_GPU)");
        }
        is_real()
    }

    /// Returns the environment of a process that uses this driver.
    pub fn command_env(&self) -> Vec<(String, String)> {
        if is_real() {
            let kind = self.environment.iter().filter(|(name, _)| name == KIND);
            return kind.cloned().collect();
        }
        let mut path = self.library.parent().unwrap().to_str().unwrap().to_owned();
        if let Ok(before) = std::env::var("LD_LIBRARY_PATH")
            && !before.is_empty()
        {
            path = format!("{path}:{before}");
        }
        let mut environment = self.environment.clone();
        environment.extend([
            ("LD_LIBRARY_PATH".into(), path),
            ("FAKE_CUDA_SESSION".into(), self.session.name.clone()),
            ("FAKE_CUDA_TRACE".into(), self.session.trace.to_str().unwrap().into()),
        ]);
        environment
    }

    /// Starts the other process of `test`.
    pub fn start(&self, test: &str, argument: &str) -> Other {
        Other::spawn_with(test, argument, &self.command_env())
    }

    /// Runs `body` in a process to which CUDA is as `cuda` says. Memory and events end with it.
    pub fn alone(test: &str, cuda: impl FnOnce() -> Self, body: impl FnOnce()) -> Self {
        run_here(test, |_| body());
        let cuda = cuda();
        cuda.start(test, "").succeeds();
        assert!(cuda.objects().is_empty(), "{:?}", cuda.objects());
        cuda
    }

    /// A process of `test` that has to call [`keep_gate`] for the argument "gate", and its event's handle as a word.
    /// Work that waits for the event continues when the process is killed.
    pub fn gate(&self, test: &str) -> (Other, String) {
        let keeper = self.clone().delay(Duration::from_secs(3600)).start(test, "gate");
        let word = keeper.hear();
        (keeper, word)
    }

    /// Every call so far, in the order in which they ended, of all processes.
    pub fn trace(&self) -> Vec<Call> {
        self.lines().iter().filter(|line| !is_misuse(line)).map(|line| Call::parse(line)).collect()
    }

    /// Every misuse so far: `<call>: <what>`.
    pub fn misuses(&self) -> Vec<String> {
        let told = |line: &String| line.splitn(4, ' ').nth(3).expect(line).to_owned();
        self.lines().iter().filter(|line| is_misuse(line)).map(told).collect()
    }

    /// That the driver was used at all, and never misused.
    pub fn was_used_well(&self) {
        if is_real() {
            return;
        }
        assert!(!self.trace().is_empty(), "nobody has called the driver");
        let misuses = self.misuses();
        assert!(misuses.is_empty(), "{misuses:#?}, after\n{}", self.lines().join("\n"));
    }

    /// Memory and events in `/dev/shm`, of all processes.
    pub fn objects(&self) -> Vec<PathBuf> {
        self.session.objects()
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.session.trace).unwrap_or_default();
        // The last line may be half there while its page ends.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }
}

/// In a process that is a [`FakeCuda::gate`] and has a current context: records an event after work that lasts until
/// the process is killed, and says its handle.
pub fn keep_gate() -> ! {
    let event = cuda_driver::shared_event();
    assert_eq!(cuda_driver::cuEventRecord(event, 0), 0);
    let handle = cuda_driver::handle(|handle| cuda_driver::cuIpcGetEventHandle(handle, event));
    say(&cuda_driver::to_word(handle));
    wait_for_death();
}

/// Whether tests are to use the driver and the GPU of this machine.
fn is_real() -> bool {
    std::env::var_os("SLIPRING_GPU").is_some()
}

fn is_misuse(line: &str) -> bool {
    line.starts_with("MISUSE ")
}

impl Call {
    fn parse(line: &str) -> Self {
        let (call, code) = line.rsplit_once(" = ").expect(line);
        let mut words = call.split(' ');
        let mut word = || words.next().expect(line);
        let (process, thread) = (word().parse().unwrap(), word().parse().unwrap());
        let device = word().parse().ok();
        let name = word().to_owned();
        let arguments = words.map(str::to_owned).collect();
        Self { process, thread, device, name, arguments, code: code.parse().unwrap() }
    }
}

impl Session {
    fn objects(&self) -> Vec<PathBuf> {
        let ours = format!("fake-cuda-{}-", self.name);
        let entries = fs::read_dir("/dev/shm").unwrap().map_while(Result::ok);
        let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&ours);
        entries.filter(named).map(|entry| entry.path()).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for path in self.objects() {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_file(&self.trace);
    }
}

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The library, compiled where nobody did so before. Its folder's name tells its source, and it comes there complete,
/// so that tests of several processes may build it at once.
fn build(variant: &str, options: &[&str]) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const ALWAYS: [&str; 10] = [
        "-std=c11",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        // Its streams' threads stay.
        "-Wl,-z,nodelete",
        "-Wl,-soname,libcuda.so.1",
    ];
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("tests/fake_cuda"))
        .find(|folder| folder.is_dir())
        .unwrap();
    let mut sources: Vec<PathBuf> =
        fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.sort();
    let mut hasher = DefaultHasher::new();
    ALWAYS.hash(&mut hasher);
    for source in &sources {
        fs::read(source).unwrap().hash(&mut hasher);
    }
    let folder = scratch().join(format!("fake-cuda-{:016x}{variant}", hasher.finish()));
    let library = folder.join("libcuda.so.1");
    if library.exists() {
        return library;
    }
    fs::create_dir_all(&folder).unwrap();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let unfinished = folder.join(format!("unfinished-{}-{number}", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    sources.retain(|source| source.extension().is_some_and(|extension| extension == "c"));
    let output = Command::new(compiler)
        .args(ALWAYS)
        .args(options)
        .arg("-o")
        .arg(&unfinished)
        .args(&sources)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(unfinished, &library).unwrap();
    library
}
