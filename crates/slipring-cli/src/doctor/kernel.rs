//! Features of the kernel, each of which is tried where that is possible: a sandbox may forbid what the kernel has.
//!
//! `docs/platforms.md` says what each feature is for.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::{ClockId, MembarrierCommand, futex};
use slipring::{Address, Context, ErrorKind};

use crate::doctor::finding::Finding;
use crate::quantity::Nanos;

/// The oldest kernel that slipring runs on.
const OLDEST: (u32, u32) = (5, 1);

/// The kernel from which on a receiver gets the pidfd of a sender, and can ask whether a file has holes.
const WITH_SCM_PIDFD: (u32, u32) = (6, 5);

const UPDATE: &str = "a later kernel has it";

/// Looks at the kernel.
pub(super) fn findings() -> Vec<Finding> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    vec![version(release), memfd(), link(), waitv(), membarrier(), pidfd(), scm_pidfd(release)]
}

/// Returns the first two numbers of a release such as `6.8.0-45-generic`.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn version(release: &str) -> Finding {
    let shown = release.escape_debug();
    match numbers(release) {
        None => Finding::note("kernel", format!("release {shown:?}"), "slipring needs Linux 5.1"),
        Some(found) if found < OLDEST => {
            let fact = format!("Linux {shown} is older than 5.1");
            Finding::problem("kernel", fact, "slipring needs Linux 5.1")
        }
        Some(_) => Finding::ok("kernel", format!("Linux {shown}, 5.1 is needed")),
    }
}

fn memfd() -> Finding {
    // A system with vm.memfd_noexec = 2 wants the flag, which older kernels do not know.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = rustix::fs::memfd_create("slipring-doctor", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create("slipring-doctor", flags));
    // It stays empty: a length over RLIMIT_FSIZE would end this process.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    let sealed = made.and_then(|fd| rustix::fs::fcntl_add_seals(&fd, seals));
    match sealed {
        Ok(()) => Finding::ok("memfd", "memfd_create and its seals work"),
        Err(errno) => {
            let fact = format!("no sealed shared memory: {errno}");
            Finding::problem(
                "memfd",
                fact,
                "allow memfd_create and fcntl(F_ADD_SEALS) (docs/platforms.md)",
            )
        }
    }
}

/// Makes a link of this process with itself, which takes every call that a link needs.
fn link() -> Finding {
    let made = || -> slipring::Result<Duration> {
        let (context, address) = (Context::new()?, Address::fresh());
        let mut listener = context.listen(&address)?;
        let start = Instant::now();
        let accepted = thread::spawn(move || {
            let mut link = listener.accept_deadline(Instant::now() + Duration::from_secs(5))?;
            link.recv()
        });
        let mut link = context.connect(&address)?;
        link.send(b"doctor")?;
        link.close()?;
        accepted
            .join()
            .map(|received| received.map(|_| start.elapsed()))
            .unwrap_or_else(|_| Err(ErrorKind::PeerDied.into()))
    };
    match made() {
        Ok(time) => {
            let time = Nanos(time.as_nanos() as f64);
            Finding::ok(
                "link",
                format!("a link inside of this process works: connect, send and close took {time}"),
            )
        }
        Err(error) => Finding::problem(
            "link",
            format!("this process makes no link with itself: {error:#}"),
            "the other findings say what it lacks",
        ),
    }
}

fn waitv() -> Finding {
    let flags = futex::WaitvFlags::empty();
    match futex::waitv(&[], flags, None, ClockId::Monotonic) {
        // No futex to wait on is what a kernel that has the call refuses.
        Err(Errno::INVAL) | Ok(_) => {
            Finding::ok("futex_waitv", "a sleeper sees the end of its peer at once")
        }
        Err(errno) => Finding::note(
            "futex_waitv",
            format!("a sleeper wakes up every 25 ms to see whether its peer lives: {errno}"),
            "Linux 5.16 has it, and a sandbox may forbid it",
        ),
    }
}

fn membarrier() -> Finding {
    let registered = rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited);
    match registered.and_then(|()| rustix::thread::membarrier(MembarrierCommand::GlobalExpedited)) {
        Ok(()) => Finding::ok("membarrier", "a send to an awake peer needs no fence"),
        Err(errno) => Finding::note(
            "membarrier",
            format!("every send has a full fence: {errno}"),
            "Linux 4.16 has global expedited barriers, and a sandbox may forbid them",
        ),
    }
}

fn pidfd() -> Finding {
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::ok("pidfd", "the death of a peer is seen at once"),
        Err(errno) => Finding::note(
            "pidfd",
            format!("only the end of its socket shows that a peer has died: {errno}"),
            "Linux 5.3 has pidfd_open, and a sandbox may forbid it",
        ),
    }
}

fn scm_pidfd(release: &str) -> Finding {
    if numbers(release).is_some_and(|found| found >= WITH_SCM_PIDFD) {
        return Finding::ok("SCM_PIDFD", "a peer in another pid namespace is known, too");
    }
    let fact = "a peer in another pid namespace is known by its socket alone, and each page of a peer's segment is read before use";
    Finding::note("SCM_PIDFD", fact, format!("{UPDATE}: Linux 6.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(numbers("6.8.0-45-generic"), Some((6, 8)));
        assert_eq!(numbers("5.15.153.1-microsoft-standard-WSL2"), Some((5, 15)));
        assert_eq!(numbers("6.18-rc1"), Some((6, 18)));
        assert_eq!(numbers("weird"), None);
        assert!(version("4.19.0").is_problem() && version("5.0.21").is_problem());
        assert!(!version("5.1.0").is_problem() && !version("10.0").is_problem());
    }
}
