//! The other process runs the same test binary, with a filter for the calling test and an argument in its environment.
//! It runs the body of the other side and exits.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use slipring::{Connection, Context, Options};

use super::{HANG, pair_with, soon, unique_name};

const TEST: &str = "SLIPRING_TEST";
const ARGUMENT: &str = "SLIPRING_ARGUMENT";
/// Marks a line for the other process among the lines of the test harness.
const MARK: &str = "@@";
/// The time after which a whole body counts as hanging. Each wait in it has [`HANG`].
const BODY: Duration = HANG.saturating_mul(6);

/// A process that runs the other side's body. The drop kills it, and prints what it has complained about: beside the
/// failure of the test that started it, where there is one.
#[derive(Debug)]
pub struct Other {
    process: Child,
    to: Option<ChildStdin>,
    said: mpsc::Receiver<String>,
    complaints: File,
}

impl Other {
    /// Runs `body(argument)` in another process. `test` is the name of the calling test; in the
    /// other process this call does not return, so nothing before it may have effects.
    pub fn start(test: &str, argument: &str, body: impl FnOnce(&str)) -> Self {
        run_here(test, body);
        Self::spawn(test, argument)
    }

    /// As [`start`](Self::start), also from within the other process.
    pub fn spawn(test: &str, argument: &str) -> Self {
        Self::spawn_with(test, argument, &[])
    }

    /// As [`spawn`](Self::spawn), with more in the environment, such as where the loader finds libraries.
    pub fn spawn_with(test: &str, argument: &str, environment: &[(String, String)]) -> Self {
        Self::begin(command(test, argument).envs(environment.iter().cloned())).unwrap()
    }

    /// As [`spawn_with`](Self::spawn_with), in a namespace of its own. `None`, said aloud: that is not permitted
    /// here.
    pub fn spawn_apart(
        test: &str,
        argument: &str,
        environment: &[(String, String)],
        namespace: Namespace,
    ) -> Option<Self> {
        let mut command = command(test, argument);
        // SAFETY: it makes system calls alone.
        unsafe { command.pre_exec(move || namespace.enter()) };
        match Self::begin(command.envs(environment.iter().cloned())) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: {test} needs a namespace of its own, which is not permitted");
                None
            }
            other => Some(other.unwrap()),
        }
    }

    fn begin(command: &mut Command) -> io::Result<Self> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let complaints = File::from(rustix::fs::memfd_create("complaints", flags)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints.try_clone()?);
        let mut process = command.spawn()?;
        // The command would keep its clone.
        command.stderr(Stdio::null());
        let said = listen(process.stdout.take().unwrap());
        Ok(Self { to: process.stdin.take(), said, process, complaints })
    }

    /// Waits until the other process says `word`.
    pub fn expect(&self, word: &str) {
        assert_eq!(self.hear(), word);
    }

    /// The next word that the other process says.
    pub fn hear(&self) -> String {
        self.said.recv_timeout(HANG).expect("the other process says nothing")
    }

    /// Says a word to the other process.
    pub fn tell(&mut self, word: &str) {
        writeln!(self.to.as_mut().unwrap(), "{word}").unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    fn print_complaints(&mut self) {
        let mut complaints = Vec::new();
        let _ = self.complaints.rewind();
        let _ = self.complaints.read_to_end(&mut complaints);
        if thread::panicking() {
            eprint!("{}", String::from_utf8_lossy(&complaints));
        } else {
            // The test harness does not keep this to itself: a process says aloud what it skips.
            let _ = io::stderr().write_all(&complaints);
        }
    }

    /// Stops the other process until somebody kills it, or it is to [go on](Self::go_on).
    pub fn stop(&self) {
        // SAFETY: sends a signal to a child that nobody has waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, libc::SIGSTOP) }, 0);
    }

    /// Has a stopped process go on.
    pub fn go_on(&self) {
        // SAFETY: sends a signal to a child that nobody has waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, libc::SIGCONT) }, 0);
    }

    /// Kills the other process as it stands.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Waits for the end of the other process.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + BODY;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the other process does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// That the other process has done its part.
    pub fn succeeds(&mut self) {
        let status = self.wait();
        assert!(status.success(), "the other process failed: {status}");
    }
}

/// A namespace that a process has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// System V IPC and message queues.
    Ipc,
    /// Process ids.
    Pid,
    /// Both, as of a container.
    PidAndIpc,
}

impl Namespace {
    /// Between `fork` and `exec`.
    fn enter(self) -> io::Result<()> {
        let flag = match self {
            Self::Ipc => libc::CLONE_NEWIPC,
            Self::Pid => libc::CLONE_NEWPID,
            Self::PidAndIpc => libc::CLONE_NEWPID | libc::CLONE_NEWIPC,
        };
        // SAFETY: changes this process, which has one thread, and its children to come.
        if unsafe { libc::unshare(flag) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if self == Self::Ipc {
            return Ok(());
        }
        // A child is the first process of the new namespace, and this one waits for it and ends as it does.
        // SAFETY: both make system calls alone until they end or call `exec`.
        let child = unsafe { libc::fork() };
        match child {
            -1 => return Err(io::Error::last_os_error()),
            0 => return Ok(()),
            _ => {}
        }
        // The parent waits for the end of a pipe.
        // SAFETY: nothing here uses a descriptor any more.
        unsafe { libc::close_range(0, libc::c_uint::MAX, 0) };
        let mut status = 0;
        // SAFETY: the child is this process's, and `status` has room for an int.
        unsafe { libc::waitpid(child, &mut status, 0) };
        let code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 101 };
        // SAFETY: it ends the process, and runs nothing of its parent's.
        unsafe { libc::_exit(code) }
    }
}

/// In a process that was started for `test`: runs `body` with its argument, and ends. Elsewhere it
/// does nothing.
pub fn run_here(test: &str, body: impl FnOnce(&str)) {
    if !own_path().is_some_and(|path| is_path_of(&path, test)) {
        return;
    }
    let parent = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(parent)).unwrap();
    let argument = std::env::var(ARGUMENT).unwrap();
    let run = std::panic::AssertUnwindSafe(|| body(&argument));
    let done = std::panic::catch_unwind(run).is_ok();
    std::process::exit(if done { 0 } else { 101 });
}

/// Returns a command that starts the test binary for the body of `test` with `argument`.
pub fn command(test: &str, argument: &str) -> Command {
    let path = path_of(test);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&path, "--exact", "--nocapture", "--test-threads=1", "--include-ignored"])
        .env(TEST, &path)
        .env(ARGUMENT, argument);
    command
}

/// Returns the full name of `test`, with the modules that it is in.
///
/// # Panics
///
/// If the binary has no such test, or more than one.
fn path_of(test: &str) -> String {
    if let Some(path) = own_path().filter(|path| is_path_of(path, test)) {
        return path;
    }
    static ALL: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut list = Command::new(std::env::current_exe().unwrap());
        list.args(["--list", "--format=terse", "--include-ignored"]);
        let listed = String::from_utf8(list.output().unwrap().stdout).unwrap();
        listed.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
    });
    let found: Vec<&String> = ALL.iter().filter(|path| is_path_of(path, test)).collect();
    assert!(found.len() == 1, "one test must be named {test}, not {}: {found:?}", found.len());
    found[0].clone()
}

/// Returns the full name of the test that this process was started for.
fn own_path() -> Option<String> {
    std::env::var(TEST).ok()
}

/// Returns whether this process runs one test alone, so that what the process holds is what the test holds.
pub fn is_alone() -> bool {
    own_path().is_some()
}

fn is_path_of(path: &str, test: &str) -> bool {
    path == test || path.rsplit("::").next() == Some(test)
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove_objects_of(self.process.id());
        self.print_complaints();
    }
}

/// Removes what a process that is gone has left in /dev/shm: it may have been killed, or failed to remove it.
pub fn remove_objects_of(pid: u32) {
    let of = format!("slipring-test-{pid}-");
    let objects = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    for object in objects.filter(|object| object.file_name().to_string_lossy().starts_with(&of)) {
        let _ = std::fs::remove_file(object.path());
    }
}

fn listen(from: ChildStdout) -> mpsc::Receiver<String> {
    let (to, said) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if let Some((_, word)) = line.split_once(MARK)
                && to.send(word.to_owned()).is_err()
            {
                return;
            }
        }
    });
    said
}

/// Runs `body` in a process of its own. `test` is the name of the calling test.
pub fn alone(test: &str, body: impl FnOnce()) {
    Other::start(test, "", |_| body()).succeeds();
}

/// Waits until a thread of this process sleeps on a futex.
pub fn wait_until_asleep(thread: rustix::thread::Pid) {
    let path = format!("/proc/self/task/{}/syscall", thread.as_raw_nonzero());
    super::wait_until("sleep", || {
        // Where the kernel does not tell, some time has to do.
        let Ok(call) = std::fs::read_to_string(&path) else {
            thread::sleep(Duration::from_millis(100));
            return true;
        };
        let number = call.split(' ').next().and_then(|number| number.parse().ok());
        number == Some(libc::SYS_futex_waitv) || number == Some(libc::SYS_futex)
    });
}

/// In the other process: says a word to the test.
pub fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{word}").unwrap();
    out.flush().unwrap();
}

/// In the other process: waits for a word of the test.
pub fn listen_for(word: &str) {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), word);
}

/// In the other process: waits to be killed.
pub fn wait_for_death() -> ! {
    loop {
        thread::park();
    }
}

/// Runs one exchange twice: between two threads, and between two processes.
pub fn over_threads_and_processes(
    test: &str,
    options: impl Fn() -> Options,
    near: impl Fn(Connection) + Sync,
    far: impl Fn(Connection) + Send + Sync,
) {
    // The other process gets no further than this.
    let name = unique_name();
    let mut other = Other::start(test, &name, |name| {
        let context = Context::with_options(options()).unwrap();
        far(context.connect_retry(name, soon()).unwrap());
    });
    let context = Context::with_options(options()).unwrap();
    let mut listener = context.listen(&name).unwrap();
    near(listener.accept_deadline(soon()).unwrap());
    other.succeeds();

    let (far_end, near_end) = pair_with(options(), options());
    thread::scope(|scope| {
        let far = scope.spawn(|| far(far_end));
        near(near_end);
        far.join().unwrap();
    });
}

/// Runs `act` with another effective user of the calling thread, which is root's.
pub fn as_user<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    become_user(uid);
    let done = act();
    become_user(0);
    done
}

fn become_user(uid: u32) {
    // `seteuid` of the C library would wait for every thread, also for one that hangs.
    let keep = libc::uid_t::MAX;
    // SAFETY: it changes an id of the calling thread and nothing else.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, keep, uid, keep) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// Runs `child` in a forked child that ends in time, and gives how it ended.
pub fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: no thread of this process holds a lock of the allocator's for long, and glibc takes
    // them over `fork`; the child ends by `_exit`, or by the signal of its alarm.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: sets a timer of this process.
        unsafe { libc::alarm(HANG.as_secs() as u32 / 2) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
        // SAFETY: `_exit` runs no handlers, as a child of a threaded process must not.
        unsafe { libc::_exit(if done { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `pid` is our child, `status` a valid place to write to.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status
}
