//! Another process gets nothing by accident: a child of `fork` or `exec`, a process of another user that holds the
//! name, a process whose pid belonged to a dead peer.

#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use crate::support::other::{Other, fork, listen_for, say, wait_for_death};
use crate::support::raw::{self, Hello, RawPeer};
use crate::support::{pair_of, soon, unique_name, wait_until};
use slipring::region::{Lease, PosixShm, Registry, SigbusGuard, Source};
use slipring::{
    Address, Context, Error, ErrorKind, EventLoop, Reactor, Tensor, TensorMut, TensorSet,
};

/// Everything that holds descriptors or mappings, in use.
struct Everything {
    context: Context,
    listeners: [slipring::Listener; 2],
    links: Vec<slipring::Connection>,
    loop_: EventLoop,
    reactor: Reactor,
    served: slipring::Link,
    far: slipring::Connection,
    writing: TensorMut<u32>,
    drafting: TensorMut<u32>,
    tensors: Vec<Tensor>,
    object: PosixShm,
    registry: Registry,
    leases: Vec<Lease>,
}

impl Everything {
    fn new() -> Self {
        SigbusGuard::install().unwrap();
        let context = Context::new().unwrap();
        let path = std::env::temp_dir().join(unique_name());
        let address = Address::path(&path).unwrap();
        let listeners = [context.listen(unique_name()).unwrap(), context.listen(&address).unwrap()];
        let (mut near, mut far) = pair_of(&context, &context);
        near.send(&[1; 20_000]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 20_000);
        near.submit(b"a question that waits").unwrap();
        let _ = (near.as_fd(), far.as_fd());
        let mut tensors = vec![context.alloc::<u32>([5000]).unwrap().share().unwrap()];
        let frozen = context.alloc_frozen::<u32>([5000]).unwrap().share().unwrap();
        near.send_tensor(&tensors[0]).unwrap();
        near.send_tensor(&frozen).unwrap();
        assert!(far.recv_request().unwrap().is_some());
        for _ in 0..2 {
            tensors.push(far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap());
        }
        tensors.push(frozen);
        let reactor = Reactor::spawn(&context).unwrap();
        let (served, other_far) = pair_of(&context, &context);
        let served = reactor.adopt(served).unwrap();
        served.on_message(|link, message| link.write(message.to_vec()));
        let object = PosixShm::create(&format!("/{}", unique_name()), 10_000).unwrap();
        let memfd = raw::segment(8192).0;
        let registry = Registry::new().unwrap();
        registry.register("posix", Source::Posix(object.key()), 0, 10_000).unwrap();
        registry.register("memfd", Source::Memfd(memfd.as_fd()), 0, 8192).unwrap();
        let leases: Vec<_> = [("posix", 10_000), ("memfd", 8192)]
            .map(|(name, len)| registry.lease(name, 0, len).unwrap())
            .into();
        for lease in &leases {
            lease.in_place(|bytes| assert!(!bytes.is_empty())).unwrap();
        }
        Self {
            listeners,
            links: vec![near, far],
            loop_: EventLoop::new(&context).unwrap(),
            reactor,
            served,
            far: other_far,
            writing: context.alloc([5000]).unwrap(),
            drafting: context.alloc_frozen([5000]).unwrap(),
            tensors,
            object,
            registry,
            leases,
            context,
        }
    }

    /// Asserts that all of it works.
    fn goes_on(mut self) {
        let [near, far] = &mut self.links[..] else { unreachable!() };
        let mut tensors = self.tensors;
        tensors.push(self.writing.share().unwrap());
        tensors.push(self.drafting.share().unwrap());
        for tensor in &tensors {
            assert_eq!(tensor.to_vec::<u32>().unwrap().len(), 5000);
            near.send_tensor(tensor).unwrap();
            far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        }
        near.send(&[2; 300_000]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), [2; 300_000]);
        self.far.send(b"there?").unwrap();
        assert_eq!(self.far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"there?");
        assert!(self.served.is_open());
        self.leases[0].write_at(0, b"still").unwrap();
        let mut bytes = [0; 5];
        self.object.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"still");
        self.leases[1].in_place(|bytes| assert_eq!(bytes.len(), 8192)).unwrap();
        drop((self.leases, tensors));
        let _ = self.registry.unregister("posix").unwrap();
        for mut listener in self.listeners {
            let address = listener.address().unwrap().clone();
            std::thread::scope(|scope| {
                let connected = scope.spawn(|| self.context.connect_deadline(&address, soon()));
                listener.accept_deadline(soon()).unwrap();
                connected.join().unwrap().unwrap();
            });
        }
        self.loop_.poll_once(1).unwrap();
        drop(self.reactor);
    }
}

/// Returns the descriptors that a program started by this process finds open, without the folder that it lists.
fn seen_by_a_program() -> Vec<String> {
    let listed = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    assert!(listed.status.success());
    let text = String::from_utf8(listed.stdout).unwrap();
    let targets = text.lines().filter_map(|line| line.split_once(" -> "));
    // Pipes are the ones of this very call.
    let mut targets: Vec<String> = targets
        .map(|(_, target)| target.split(['[', '/']).next().unwrap().to_owned() + kind_of(target))
        .collect();
    targets.sort();
    targets
}

/// Which file it is, as far as it does not change from call to call.
fn kind_of(target: &str) -> &str {
    let named = ["slipring", "socket", "pidfd", "eventpoll", "eventfd", "/dev/shm"];
    named.into_iter().find(|name| target.contains(name)).unwrap_or("")
}

/// Descriptors that stay open over `exec`. The test's own process may have some from its parent.
fn inherited() -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo").unwrap() {
        let path = entry.unwrap().path();
        // The one of this very look is gone.
        let Ok(info) = fs::read_to_string(&path) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        if flags & libc::O_CLOEXEC == 0 {
            found.push(path.file_name().unwrap().to_str().unwrap().parse().unwrap());
        }
    }
    found.sort();
    found
}

#[test]
fn a_program_that_is_started_inherits_nothing() {
    let test = "a_program_that_is_started_inherits_nothing";
    let mut other = Other::start(test, "", |_| {
        let before = (seen_by_a_program(), inherited());
        let everything = Everything::new();
        // Also each descriptor by itself, whatever the standard library does before `exec`.
        assert_eq!((seen_by_a_program(), inherited()), before);
        everything.goes_on();
    });
    other.succeeds();
}

/// Mappings of shared memory, and the flags of each (`VmFlags` of `proc_pid_smaps(5)`).
fn shared_mappings() -> Vec<(String, String)> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    let mut name = None;
    for line in smaps.lines() {
        if line.contains("/memfd:") || line.contains("/dev/shm/") {
            name = Some(line.to_owned());
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && let Some(name) = name.take()
        {
            found.push((name, flags.to_owned()));
        }
    }
    found
}

fn is_forked<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert_eq!(*answer.unwrap_err().kind(), ErrorKind::Forked);
}

#[test]
fn a_forked_child_has_no_shared_memory_and_cannot_use_what_it_inherited() {
    let test = "a_forked_child_has_no_shared_memory_and_cannot_use_what_it_inherited";
    let mut other = Other::start(test, "", |_| {
        let everything = Everything::new();
        let mappings = shared_mappings();
        assert!(mappings.len() > 10, "{mappings:?}");
        for (name, flags) in &mappings {
            // "dc": do not copy on fork.
            assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{name}: {flags}");
        }
        let mut kept = Some(everything);
        let status = fork(|| {
            assert_eq!(shared_mappings(), []);
            let mut all = kept.take().unwrap();
            let [near, far] = &mut all.links[..] else { unreachable!() };
            is_forked(near.send(b"x"));
            is_forked(far.recv());
            is_forked(near.send_tensor(&all.tensors[0]));
            is_forked(far.recv_tensor());
            is_forked(far.receiver().recv_tensors());
            is_forked(near.sender().send_tensors(&TensorSet::new()));
            is_forked(all.context.alloc::<u8>([5000]));
            is_forked(all.context.alloc_frozen::<u8>([5000]));
            is_forked(all.context.connect(unique_name()));
            is_forked(all.listeners[0].try_accept());
            is_forked(all.listeners[1].try_accept());
            is_forked(all.reactor.adopt(all.links.pop().unwrap()));
            is_forked(all.served.register(|_| ()));
            is_forked(all.loop_.poll_once(1));
            is_forked(all.loop_.run());
            is_forked(all.leases[0].read_at(0, &mut [0; 8]));
            is_forked(all.leases[0].write_at(0, &[0; 8]));
            is_forked(all.leases[0].in_place(|_| ()));
            is_forked(all.leases[1].bytes().map(|bytes| bytes.len()));
            is_forked(all.registry.statuses());
            is_forked(all.registry.lease("memfd", 0, 1));
            is_forked(all.object.write_at(0, b"child"));
            is_forked(all.object.read_at(0, &mut [0; 8]));
            // All of it is dropped here.
        });
        assert_eq!(status, 0, "the child panicked or was killed");
        kept.take().unwrap().goes_on();
    });
    other.succeeds();
}

#[test]
fn a_child_that_drops_what_it_inherited_waits_for_no_lock() {
    let test = "a_child_that_drops_what_it_inherited_waits_for_no_lock";
    let mut other = Other::start(test, "", |_| {
        // Threads that have the locks of pool, link and registry again and again.
        let everything = Everything::new();
        let context = everything.context.clone();
        let served = everything.served.clone();
        let registry = Registry::new().unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let busy = |work: &(dyn Fn() + Sync)| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                work();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| busy(&|| drop(context.alloc::<u8>([5000]).unwrap())));
            scope.spawn(|| busy(&|| drop(context.alloc_frozen::<u8>([5000]).unwrap())));
            scope.spawn(|| {
                busy(&|| drop(served.register(|_| ()).map(|token| served.unregister(token))))
            });
            scope.spawn(|| busy(&|| drop(registry.statuses().unwrap())));
            let mut kept = Some(everything);
            for _ in 0..50 {
                let status = fork(|| drop(kept.take()));
                assert_eq!(status, 0, "a child that hangs is ended by its alarm");
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            kept.take().unwrap().goes_on();
        });
    });
    other.succeeds();
}

#[test]
fn a_child_that_shares_what_it_inherited_waits_for_no_lock() {
    let test = "a_child_that_shares_what_it_inherited_waits_for_no_lock";
    let mut other = Other::start(test, "", |_| {
        let context = Context::new().unwrap();
        let (mut near, mut far) = crate::support::pair_of(&context, &context);
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(context.alloc::<u8>([5000]).unwrap());
                }
            });
            // Tensors of this length have been read by a peer, so writing them is timed now and then.
            for _ in 0..300 {
                near.send_tensor(context.alloc::<u8>([100_000]).unwrap().share().unwrap()).unwrap();
                drop(far.recv_tensor().unwrap().unwrap());
                let mut kept = context.alloc::<u8>([100_000]).unwrap();
                kept[0] = 1;
                let mut kept = Some(kept);
                let status = fork(|| drop(kept.take().map(|kept| kept.share())));
                assert_eq!(status, 0, "a child that hangs is ended by its alarm");
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
    other.succeeds();
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: another user needs root to become one");
    }
    root
}

fn become_nobody() {
    // SAFETY: sets ids of this process, in which nobody else relies on them.
    assert_eq!(unsafe { libc::setgid(65534) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setuid(65534) }, 0);
}

#[test]
fn another_user_that_squats_a_name_is_given_nothing() {
    let test = "another_user_that_squats_a_name_is_given_nothing";
    let name = unique_name();
    let mut squatter = Other::start(test, &name, |name| {
        become_nobody();
        let socket = raw::listen(name);
        say("listening");
        for _ in 0..3 {
            let peer = raw::accept(&socket);
            // An end, and before it neither a packet nor a descriptor.
            assert!(raw::receive(&peer).is_none(), "something came");
        }
        say("nothing came");
        listen_for("end");
    });
    if !is_root() {
        return;
    }
    squatter.expect("listening");
    let context = Context::new().unwrap();
    let refused = ErrorKind::PeerNotAdmitted { uid: 65534 };
    assert_eq!(context.connect_deadline(&name, soon()).unwrap_err().kind(), &refused);
    assert_eq!(context.connect_retry(&name, soon()).unwrap_err().kind(), &refused);
    // Over a socket that somebody else has connected.
    let inherited = raw::dial(&name);
    assert_eq!(context.connect_socket(inherited).unwrap_err().kind(), &refused);
    let in_use = context.listen(&name).unwrap_err();
    assert!(matches!(in_use.kind(), ErrorKind::AddressInUse { .. }), "{in_use}");
    squatter.expect("nothing came");
    squatter.tell("end");
    squatter.succeeds();
}

/// Starts a process with a pid of our choice (`clone3` with `set_tid`, Linux 5.5). `None`: this
/// machine does not allow it.
fn start_as(pid: i32, child: impl FnOnce()) -> Option<i32> {
    let tids = [pid];
    let mut arguments = [0u64; 11];
    arguments[4] = libc::SIGCHLD as u64;
    arguments[8] = tids.as_ptr() as u64;
    arguments[9] = 1;
    // SAFETY: like `fork`; the child runs `child` and ends by `_exit`.
    let started =
        unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    match started {
        0 => {
            child();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) };
        }
        -1 => {
            eprintln!("skipped: clone3: {}", std::io::Error::last_os_error());
            None
        }
        started => Some(started as i32),
    }
}

fn end(pid: i32) {
    // SAFETY: a child of ours that was not waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // SAFETY: as above; nobody asks how it ended.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

fn raw_hello(socket: OwnedFd) -> RawPeer {
    RawPeer::greet(socket, Hello::honest())
}

#[test]
fn a_peer_whose_pid_is_used_again_is_dead() {
    let test = "a_peer_whose_pid_is_used_again_is_dead";
    let mut other = Other::start(test, "", |_| {
        let context = Context::new().unwrap();
        let name = unique_name();
        let mut listener = context.listen(&name).unwrap();
        let start = |child: &dyn Fn()| {
            // SAFETY: this process has no other thread that the child would miss.
            match unsafe { libc::fork() } {
                0 => {
                    child();
                    // SAFETY: ends this process at once.
                    unsafe { libc::_exit(0) };
                }
                pid => pid,
            }
        };
        // It says Hello, and a child of its own holds the socket after its end.
        let speaks = |ends: bool| {
            let peer = raw_hello(raw::dial(&name));
            // SAFETY: the child sleeps until it is killed with its parent's parent.
            if unsafe { libc::fork() } == 0 {
                let orphan = rustix::process::Signal::KILL;
                rustix::process::set_parent_process_death_signal(Some(orphan)).ok();
                std::thread::sleep(crate::support::HANG);
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(0) };
            }
            std::mem::forget(peer);
            if !ends {
                wait_for_death();
            }
        };
        let sleeps = || wait_for_death();

        // Met while it lived: its end is seen although its pid lives.
        let pid = start(&|| speaks(false));
        let mut link = listener.accept_deadline(soon()).unwrap();
        assert_eq!(link.peer().pid(), Some(pid as u32));
        end(pid);
        let Some(again) = start_as(pid, sleeps) else { return };
        assert_eq!(again, pid);
        let ended = link.receiver().recv_deadline(soon()).unwrap_err();
        assert_eq!(*ended.kind(), ErrorKind::PeerDied);
        end(again);

        // Met after its end, when another process has its pid: that one is not taken for it.
        let pid = start(&|| speaks(true));
        // SAFETY: a child of ours.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        let again = start_as(pid, sleeps).unwrap();
        assert_eq!(again, pid);
        match listener
            .accept_deadline(std::time::Instant::now() + std::time::Duration::from_secs(1))
        {
            // The process is dead, and its descriptor names no living one.
            Ok(mut link) => {
                let ended = link.receiver().recv_deadline(soon()).unwrap_err();
                assert_eq!(*ended.kind(), ErrorKind::PeerDied);
                let signal = rustix::process::Signal::KILL;
                if let Some(pidfd) = link.peer().pidfd() {
                    let _ = rustix::process::pidfd_send_signal(pidfd, signal);
                }
            }
            Err(error) => assert!(error.is_timeout(), "{error}"),
        }
        // SAFETY: signal 0 only asks.
        assert_eq!(unsafe { libc::kill(again, 0) }, 0, "the other process was hit");
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        let waited = unsafe { libc::waitpid(again, &mut status, libc::WNOHANG) };
        assert_eq!(waited, 0, "the other process was hit");
        end(again);
        wait_until("the end of the peers", || listener.try_accept().unwrap().is_none());
    });
    other.succeeds();
}
