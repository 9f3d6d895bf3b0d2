//! With the guard an access in place survives a truncation. A SIGBUS that belongs to no region goes to the handler that
//! was there before.
//!
//! A signal handler belongs to the process, so each test runs in a process of its own.

#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::thread;

use crate::support::other::{Other, fork, listen_for, say};
use crate::support::{unique_name, wait_until};
use libc::c_int;
use slipring::error::RegionFault;
use slipring::region::{PosixShm, Registry, SigbusGuard, Source};
use slipring::{Error, ErrorKind};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;
const TRUNCATED: RegionFault = RegionFault::TruncatedInPlace { len: PAGES * PAGE };

fn fault<T: std::fmt::Debug>(answer: Result<T, Error>) -> RegionFault {
    match answer.unwrap_err().kind() {
        ErrorKind::Region(fault) => fault.clone(),
        kind => panic!("{kind:?}"),
    }
}

/// Runs `body` in a process of its own, with a key whose object is removed afterwards.
fn apart(test: &str, body: impl FnOnce(&str)) -> ExitStatus {
    struct Removed(String);
    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = fs::remove_file(format!("/dev/shm{}", self.0));
        }
    }
    let key = Removed(format!("/{}", unique_name()));
    let mut other = Other::start(test, &key.0, |key| {
        // A process that dies on purpose leaves no core.
        rustix::process::setrlimit(
            rustix::process::Resource::Core,
            rustix::process::Rlimit { current: Some(0), maximum: Some(0) },
        )
        .unwrap();
        body(key);
    });
    other.wait()
}

#[track_caller]
fn succeeds(status: ExitStatus) {
    assert!(status.success(), "{status}");
}

#[track_caller]
fn dies_of_sigbus(status: ExitStatus) {
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

fn registered(key: &str) -> (Registry, PosixShm) {
    let object = PosixShm::create(key, PAGES * PAGE).unwrap();
    let registry = Registry::new().unwrap();
    registry.register("region", Source::Posix(key), 0, PAGES * PAGE).unwrap();
    (registry, object)
}

/// Memory that is no region's, and raises `SIGBUS` when it is touched.
fn touch_truncated_memory() {
    let fd: OwnedFd = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // SAFETY: a null address asks for fresh memory, which overlaps nothing.
    let mapped = unsafe {
        rustix::mm::mmap(
            ptr::null_mut(),
            PAGE as usize,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::SHARED,
            &fd,
            0,
        )
    };
    // SAFETY: mapped; the load raises the signal that this is about.
    unsafe { ptr::read_volatile(mapped.unwrap().cast::<u8>()) };
}

fn install_handler(handler: libc::sighandler_t, flags: c_int, masked: Option<c_int>) {
    let mut action = libc::sigaction {
        sa_sigaction: handler,
        // SAFETY: a set of integers, for which zeros are valid: no signals.
        sa_mask: unsafe { std::mem::zeroed() },
        sa_flags: flags,
        sa_restorer: None,
    };
    if let Some(signal) = masked {
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigaddset(&mut action.sa_mask, signal) };
    }
    // SAFETY: a valid action, whose handler only stores atomics or ends the process.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    assert_eq!(done, 0);
}

fn raise() {
    // SAFETY: a valid signal, to this thread.
    unsafe { libc::raise(libc::SIGBUS) };
}

fn is_blocked(signal: c_int) -> bool {
    // SAFETY: a set of integers, for which zeros are valid.
    let mut mask = unsafe { std::mem::zeroed() };
    // SAFETY: no new mask, and a place for the present one.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask) };
    // SAFETY: a valid set and a valid signal.
    unsafe { libc::sigismember(&mask, signal) == 1 }
}

#[test]
fn without_the_guard_a_truncated_mapping_kills() {
    let test = "without_the_guard_a_truncated_mapping_kills";
    dies_of_sigbus(apart(test, |_| touch_truncated_memory()));
}

#[test]
fn a_truncation_during_an_access_in_place_is_an_error() {
    succeeds(apart("a_truncation_during_an_access_in_place_is_an_error", |key| {
        let (registry, object) = registered(key);
        SigbusGuard::install().unwrap();
        SigbusGuard::install().unwrap();
        assert!(SigbusGuard::is_installed());
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        object.write_at(0, &[1; 8]).unwrap();
        assert_eq!(lease.in_place(|bytes| bytes.byte(7)).unwrap(), 1);
        for round in 0..3 {
            let seen = std::cell::Cell::new((1, 1));
            let answer = lease.in_place(|bytes| {
                assert_eq!(bytes.len() as u64, PAGES * PAGE);
                rustix::fs::ftruncate(&object, PAGE).unwrap();
                // Zeros take the place of all of it, also of what is still there: one signal.
                seen.set((bytes.slice(PAGE as usize, 64).to_vec()[0], bytes.byte(7)));
                bytes.to_vec().len()
            });
            assert_eq!(fault(answer), TRUNCATED, "round {round}");
            assert_eq!(seen.get(), (0, 0));
            let there = RegionFault::Truncated { there: PAGE, len: PAGES * PAGE };
            assert_eq!(fault(lease.in_place(|_| ())), there);
            // A part that is still there is mapped anew.
            let part = registry.lease("region", 0, PAGE).unwrap();
            assert_eq!(part.in_place(|bytes| bytes.byte(7)).unwrap(), 1);

            rustix::fs::ftruncate(&object, PAGES * PAGE).unwrap();
            let last = [round + 1];
            object.write_at(PAGES * PAGE - 1, &last).unwrap();
            assert_eq!(lease.in_place(|bytes| bytes.to_vec().pop()).unwrap(), Some(round + 1));
        }
    }));
}

#[test]
fn a_truncation_during_a_write_in_place_is_an_error() {
    succeeds(apart("a_truncation_during_a_write_in_place_is_an_error", |key| {
        let (registry, object) = registered(key);
        SigbusGuard::install().unwrap();
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        let content = vec![9; (PAGES * PAGE) as usize];
        lease.in_place_mut(|room| room.copy_from(&content)).unwrap();
        let answer = lease.in_place_mut(|room| {
            rustix::fs::ftruncate(&object, PAGE).unwrap();
            room.copy_from(&content);
        });
        assert_eq!(fault(answer), TRUNCATED);
        rustix::fs::ftruncate(&object, PAGES * PAGE).unwrap();
        lease.in_place_mut(|room| room.slice(4096, 3).copy_from(&[1, 2, 3])).unwrap();
        let mut there = [0; 3];
        object.read_at(PAGE, &mut there).unwrap();
        assert_eq!(there, [1, 2, 3]);
    }));
}

#[test]
fn a_panic_during_an_access_leaves_no_trace() {
    succeeds(apart("a_panic_during_an_access_leaves_no_trace", |key| {
        let (registry, _object) = registered(key);
        SigbusGuard::install().unwrap();
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        let panics = std::panic::AssertUnwindSafe(|| lease.in_place(|_| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(lease.in_place(|bytes| bytes.byte(0)).unwrap(), 0);
    }));
}

#[test]
fn a_truncation_fails_every_access_that_is_under_way() {
    succeeds(apart("a_truncation_fails_every_access_that_is_under_way", |key| {
        let (registry, object) = registered(key);
        SigbusGuard::install().unwrap();
        let (inside, cut) = (Barrier::new(5), Barrier::new(5));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (registry, inside, cut) = (&registry, &inside, &cut);
                scope.spawn(move || {
                    let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
                    let answer = lease.in_place(|bytes| {
                        inside.wait();
                        cut.wait();
                        // Different pages, some of which stay.
                        bytes.slice(thread * 4096, bytes.len() - thread * 4096).to_vec();
                    });
                    assert_eq!(fault(answer), TRUNCATED);
                });
            }
            inside.wait();
            rustix::fs::ftruncate(&object, 2 * PAGE).unwrap();
            cut.wait();
        });
    }));
}

#[test]
fn an_object_that_is_truncated_at_full_speed_costs_errors_only() {
    succeeds(apart("an_object_that_is_truncated_at_full_speed_costs_errors_only", |key| {
        let (registry, object) = registered(key);
        SigbusGuard::install().unwrap();
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        let stopped = AtomicBool::new(false);
        let counts = [const { AtomicU32::new(0) }; 3];
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    rustix::fs::ftruncate(&object, 3 * PAGE).unwrap();
                    rustix::fs::ftruncate(&object, PAGES * PAGE).unwrap();
                    // Whole for a while, so that an access can succeed.
                    thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            for write in [false, true] {
                let (lease, counts, stopped) = (&lease, &counts, &stopped);
                scope.spawn(move || {
                    let content = vec![1; (PAGES * PAGE) as usize];
                    while !stopped.load(Ordering::Relaxed) {
                        let answer = match write {
                            false => lease.in_place(|bytes| drop(bytes.to_vec())),
                            true => lease.in_place_mut(|room| room.copy_from(&content)),
                        };
                        let count = match answer.map_err(|error| error.kind().clone()) {
                            Ok(()) => 0,
                            Err(ErrorKind::Region(RegionFault::Truncated { .. })) => 1,
                            Err(ErrorKind::Region(RegionFault::TruncatedInPlace { .. })) => 2,
                            Err(kind) => panic!("{kind:?}"),
                        };
                        counts[count].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            wait_until("whole and truncated accesses", || {
                let seen = |at: usize| counts[at].load(Ordering::Relaxed);
                seen(0) > 20 && seen(2) > 20
            });
            stopped.store(true, Ordering::Relaxed);
        });
    }));
}

#[test]
fn another_process_that_truncates_costs_errors_only() {
    let key = format!("/{}", unique_name());
    let test = "another_process_that_truncates_costs_errors_only";
    // This process is the one that accesses: nothing else in this binary runs in it, but for tests
    // that only start processes.
    let mut other = Other::start(test, &key, |key| {
        let object = PosixShm::create(key, PAGES * PAGE).unwrap();
        say("there");
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    rustix::fs::ftruncate(&object, 3 * PAGE).unwrap();
                    rustix::fs::ftruncate(&object, PAGES * PAGE).unwrap();
                    thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            listen_for("stop");
            stopped.store(true, Ordering::Relaxed);
        });
    });
    other.expect("there");
    let registry = Registry::new().unwrap();
    wait_until("a moment when it is whole", || {
        registry.register("region", Source::Posix(&key), 0, PAGES * PAGE).is_ok()
    });
    SigbusGuard::install().unwrap();
    let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
    let (mut whole, mut cut) = (0, 0);
    wait_until("whole and truncated accesses", || {
        for _ in 0..100 {
            match lease.in_place(|bytes| bytes.to_vec().len() as u64) {
                Ok(len) => whole += u32::from(len == PAGES * PAGE),
                Err(error) => {
                    let ErrorKind::Region(fault) = error.kind() else { panic!("{error:?}") };
                    cut += u32::from(*fault == TRUNCATED);
                }
            }
        }
        whole > 20 && cut > 20
    });
    other.tell("stop");
    other.succeeds();
}

#[test]
fn a_thread_that_blocks_the_signal_is_guarded_too() {
    succeeds(apart("a_thread_that_blocks_the_signal_is_guarded_too", |key| {
        let (registry, object) = registered(key);
        SigbusGuard::install().unwrap();
        // SAFETY: a set of integers, for which zeros are valid.
        let mut all = unsafe { std::mem::zeroed() };
        // SAFETY: a place for a set.
        unsafe { libc::sigfillset(&mut all) };
        // SAFETY: a valid set; this thread's mask only.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut()) };
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        let answer = lease.in_place(|bytes| {
            rustix::fs::ftruncate(&object, 0).unwrap();
            bytes.byte(0)
        });
        assert_eq!(fault(answer), TRUNCATED);
        assert!(is_blocked(libc::SIGBUS) && is_blocked(libc::SIGUSR1));
    }));
}

#[test]
fn a_signal_that_is_no_regions_kills_as_ever() {
    let test = "a_signal_that_is_no_regions_kills_as_ever";
    dies_of_sigbus(apart(test, |key| {
        let (registry, _object) = registered(key);
        SigbusGuard::install().unwrap();
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        // Within an access, too.
        let _ = lease.in_place(|_| touch_truncated_memory());
    }));
}

#[test]
fn with_the_default_disposition_a_fault_and_a_sent_signal_kill() {
    for (number, sent) in [false, true].into_iter().enumerate() {
        let test = "with_the_default_disposition_a_fault_and_a_sent_signal_kill";
        let mut other = Other::start(test, &number.to_string(), |number| {
            install_handler(libc::SIG_DFL, 0, None);
            SigbusGuard::install().unwrap();
            if number == "1" { raise() } else { touch_truncated_memory() }
        });
        let status = other.wait();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "sent: {sent}: {status}");
    }
}

#[test]
fn where_it_was_ignored_a_sent_signal_is_and_a_fault_kills() {
    let test = "where_it_was_ignored_a_sent_signal_is_and_a_fault_kills";
    dies_of_sigbus(apart(test, |_| {
        install_handler(libc::SIG_IGN, 0, None);
        SigbusGuard::install().unwrap();
        raise();
        raise();
        touch_truncated_memory();
    }));
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static MASK: AtomicU32 = AtomicU32::new(0);

fn note_call() {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let mask = u32::from(is_blocked(libc::SIGBUS)) | u32::from(is_blocked(libc::SIGUSR1)) << 1;
    MASK.store(mask, Ordering::Relaxed);
}

extern "C" fn plain(_: c_int) {
    note_call();
}

extern "C" fn informed(_: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    note_call();
    assert!(!context.is_null());
    // SAFETY: the description that the kernel made, passed on.
    CODE.store(unsafe { (*info).si_code }, Ordering::Relaxed);
}

/// The simplest handler that recovers by itself.
extern "C" fn leave(_: c_int) {
    // SAFETY: ends the process without running anything.
    unsafe { libc::_exit(42) };
}

#[test]
fn the_previous_handler_gets_what_is_not_a_regions_in_its_own_way() {
    succeeds(apart("the_previous_handler_gets_what_is_not_a_regions_in_its_own_way", |key| {
        let (registry, object) = registered(key);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = informed;
        install_handler(handler as usize, libc::SA_SIGINFO, Some(libc::SIGUSR1));
        SigbusGuard::install().unwrap();
        raise();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        assert_eq!(CODE.load(Ordering::Relaxed), libc::SI_TKILL);
        // Its own mask, and the signal itself, while it ran; nothing of it afterwards.
        assert_eq!(MASK.load(Ordering::Relaxed), 0b11);
        assert!(!is_blocked(libc::SIGBUS) && !is_blocked(libc::SIGUSR1));
        // A region's does not reach it.
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        let answer = lease.in_place(|bytes| {
            rustix::fs::ftruncate(&object, 0).unwrap();
            bytes.byte(0)
        });
        assert_eq!(fault(answer), TRUNCATED);
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    }));
}

/// Whether the next call that only reads the disposition of `SIGBUS` is followed by the installation of [`plain`].
static INSTALLS_BETWEEN: AtomicBool = AtomicBool::new(false);

/// Stands in front of the C library's `sigaction` in this binary, as another thread's installation between two calls of
/// the guard would.
// SAFETY: the only definition of this name here. It does what the C library's does, and passes every call on to it.
#[unsafe(no_mangle)]
extern "C" fn sigaction(
    signal: c_int,
    next: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    type Real = extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: a name that the C library has.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
    // SAFETY: the C library's function of this name has this type.
    let real: Real = unsafe { std::mem::transmute(real) };
    let done = real(signal, next, before);
    let is_read = signal == libc::SIGBUS && next.is_null();
    if is_read && INSTALLS_BETWEEN.swap(false, Ordering::Relaxed) {
        let handler: extern "C" fn(c_int) = plain;
        install_handler(handler as usize, 0, None);
    }
    done
}

#[test]
fn a_handler_that_is_installed_while_the_guard_is_gets_its_signals() {
    succeeds(apart("a_handler_that_is_installed_while_the_guard_is_gets_its_signals", |_| {
        INSTALLS_BETWEEN.store(true, Ordering::Relaxed);
        SigbusGuard::install().unwrap();
        assert!(!INSTALLS_BETWEEN.load(Ordering::Relaxed), "the guard reads before it installs");
        raise();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    }));
}

#[test]
fn a_plain_handler_with_no_defer_is_called_so() {
    succeeds(apart("a_plain_handler_with_no_defer_is_called_so", |_| {
        let handler: extern "C" fn(c_int) = plain;
        install_handler(handler as usize, libc::SA_NODEFER, None);
        SigbusGuard::install().unwrap();
        raise();
        raise();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
        assert_eq!(MASK.load(Ordering::Relaxed), 0);
    }));
}

#[test]
fn a_handler_that_wanted_one_call_gets_one() {
    let test = "a_handler_that_wanted_one_call_gets_one";
    dies_of_sigbus(apart(test, |_| {
        let handler: extern "C" fn(c_int) = plain;
        install_handler(handler as usize, libc::SA_RESETHAND, None);
        SigbusGuard::install().unwrap();
        raise();
        if CALLS.load(Ordering::Relaxed) == 1 {
            raise();
        }
    }));
}

#[test]
fn a_previous_handler_that_recovers_from_faults_still_does() {
    let status = apart("a_previous_handler_that_recovers_from_faults_still_does", |_| {
        let handler: extern "C" fn(c_int) = leave;
        install_handler(handler as usize, 0, None);
        SigbusGuard::install().unwrap();
        touch_truncated_memory();
    });
    assert_eq!(status.code(), Some(42), "{status}");
}

#[test]
fn a_forked_child_guards_its_own_regions_and_not_its_parents() {
    succeeds(apart("a_forked_child_guards_its_own_regions_and_not_its_parents", |key| {
        let (registry, object) = registered(key);
        SigbusGuard::install().unwrap();
        let lease = registry.lease("region", 0, PAGES * PAGE).unwrap();
        lease.in_place(|bytes| bytes.byte(0)).unwrap();
        let status = fork(|| {
            let registry = Registry::new().unwrap();
            registry.register("own", Source::Posix(key), 0, PAGES * PAGE).unwrap();
            let lease = registry.lease("own", 0, PAGES * PAGE).unwrap();
            let answer = lease.in_place(|bytes| {
                rustix::fs::ftruncate(&object, 0).unwrap();
                bytes.byte(0)
            });
            assert_eq!(fault(answer), TRUNCATED);
        });
        assert_eq!(status, 0);
        assert!(matches!(fault(lease.in_place(|_| ())), RegionFault::Truncated { there: 0, .. }));
        // Addresses of the parent's mapping are nobody's in the child: a fault there is no region's.
        rustix::fs::ftruncate(&object, PAGES * PAGE).unwrap();
        lease.in_place(|bytes| bytes.byte(0)).unwrap();
        let status = fork(touch_truncated_memory);
        assert_eq!(status & 0x7f, libc::SIGBUS);
    }));
}

#[test]
fn more_mappings_than_can_be_guarded_are_refused_and_all_places_are_reused() {
    succeeds(apart(
        "more_mappings_than_can_be_guarded_are_refused_and_all_places_are_reused",
        |key| {
            let object = PosixShm::create(key, PAGES * PAGE).unwrap();
            SigbusGuard::install().unwrap();
            slipring::Context::raise_descriptor_limit().unwrap();
            let others = Registry::new().unwrap();
            others.register("honest", Source::Posix(key), 0, PAGE).unwrap();
            for _ in 0..2 {
                // Its mapping to read has a place already, and keeps it.
                let honest = others.lease("honest", 0, 8).unwrap();
                honest.in_place(|bytes| assert_eq!(bytes.byte(0), 0)).unwrap();
                let registry = Registry::with_limits(2100, u64::MAX).unwrap();
                let mut refused = 0;
                for number in 0..2051 {
                    let name = number.to_string();
                    registry.register(&name, Source::Memfd(object.as_fd()), 0, PAGE).unwrap();
                    let lease = registry.lease(&name, 0, 8).unwrap();
                    let read = lease.in_place(|bytes| assert_eq!(bytes.byte(0), 0));
                    for answer in [read, lease.in_place_mut(|room| room.copy_from(&[0; 8]))] {
                        if answer.is_err() {
                            assert_eq!(fault(answer), RegionFault::GuardFull { limit: 4096 });
                            refused += 1;
                        }
                    }
                }
                assert_eq!(refused, 7);
                honest.in_place(|bytes| assert_eq!(bytes.byte(0), 0)).unwrap();
                // What needs no place goes on as well.
                honest.read_at(0, &mut [1; 8]).unwrap();
            }
        },
    ));
}
