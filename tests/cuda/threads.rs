//! The threads that give loans back and free memory: when they start, how often they wake up, and what they say.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use slipring::Context;
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    alone, device, exchange, hear_out, is_closed, pool_options, recv, small_pool,
};
use crate::support::other::{run_here, say};
use crate::support::quiet::without_threads;
use crate::support::{HANG, pair_of, soon, unique_name, wait_until};

/// A stream's pause before each of its acts.
const SLOW: Duration = Duration::from_millis(20);

/// The `/proc` of a thread of this process.
fn thread(name: &str) -> Option<std::path::PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    { tasks }.find(|task| {
        let is = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        is.trim_end() == name
    })
}

#[test]
fn a_thread_that_could_not_be_started_is_started_later() {
    const TEST: &str = "a_thread_that_could_not_be_started_is_started_later";
    const FIRST: u64 = 1 << 40;
    const SECOND: u64 = 2 << 40;
    let cuda = FakeCuda::new().of_kind(Kind::Synchronized).delay(SLOW);
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            for _ in 0..2 {
                let draft = pool.alloc::<u8>([64], &stream).unwrap();
                link.send_tensor(draft.share().unwrap()).unwrap();
            }
            hear_out(&mut link);
        },
        |mut link| {
            let device = device();
            let (own, stream) = (device.pool(), device.stream().unwrap());
            let mut gate = own.alloc::<u64>([1], &stream).unwrap();
            gate.fill(0).unwrap();
            let at = gate.device_ptr();
            let (raw, opener) = (stream.as_raw() as usize, device.stream().unwrap());
            let tensors = [recv(&mut link), recv(&mut link)];
            // A view whose stream works until the gate is open, and a chunk to free.
            let closed = |tensor, value| {
                let view = device.open(tensor, &stream).unwrap();
                driver::begin(0);
                assert_eq!(driver::cuStreamWaitValue64_v2(raw, at, value, 0), 0);
                view
            };
            let open = |value| {
                let opener = opener.as_raw() as usize;
                driver::begin(0);
                assert_eq!(driver::cuStreamWriteValue64_v2(opener, at, value, 0), 0);
            };
            let made = [(); 2].map(|()| {
                let pool = device.pool();
                drop(pool.alloc::<u8>([1], &stream).unwrap());
                stream.synchronize().unwrap();
                pool
            });
            let [first, second] = made;
            let is_open = AtomicBool::new(false);
            std::thread::scope(|threads| {
                let (to, from) = std::sync::mpsc::channel();
                let (closed, is_open, tensor) = (&closed, &is_open, &tensors[0]);
                let refused = threads.spawn(move || {
                    without_threads();
                    let view = closed(tensor, FIRST);
                    to.send(()).unwrap();
                    drop((view, first));
                    assert!(is_open.load(Ordering::Relaxed), "the thread that drops it waits");
                });
                from.recv().unwrap();
                // Enough for a thread that does not wait to come through.
                std::thread::sleep(5 * SLOW);
                is_open.store(true, Ordering::Relaxed);
                open(FIRST);
                refused.join().unwrap();
            });
            let names = ["slipring-loans", "slipring-cuda"];
            assert_eq!(names.map(|name| thread(name).is_some()), [false; 2]);
            // Another thread waits: nobody else opens the gate.
            drop((closed(&tensors[1], SECOND), second));
            open(SECOND);
            wait_until("both have their names", || names.iter().all(|name| thread(name).is_some()));
            stream.synchronize_deadline(soon()).unwrap();
            drop((gate, own, tensors, link));
            is_closed(&device);
        },
    );
}

#[test]
fn memory_that_no_thread_can_free_waits_and_its_owner_does_not() {
    const TEST: &str = "memory_that_no_thread_can_free_waits_and_its_owner_does_not";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        // A subscriber of traces calls the library.
        static TRIMMED: AtomicUsize = AtomicUsize::new(0);
        tracing::subscriber::set_global_default(Log).unwrap();
        let trim = || {
            TRIMMED.fetch_max(device().trim().unwrap(), Ordering::Relaxed);
        };
        HEARS.set(trim).unwrap();
        let device = device();
        let (own, stream) = (device.pool(), device.stream().unwrap());
        let idle = device.pool();
        drop(idle.alloc::<u8>([1], &stream).unwrap());
        stream.synchronize().unwrap();
        let gate = own.alloc::<u64>([1], &stream).unwrap();
        let (at, value) = (gate.device_ptr(), 1 << 40);
        driver::begin(0);
        // A free waits for this stream.
        let raw = stream.as_raw() as usize;
        assert_eq!(driver::cuStreamWaitValue64_v2(raw, at, value, 0), 0);
        let (to, from) = std::sync::mpsc::channel();
        let drops = std::thread::spawn(move || {
            without_threads();
            drop(idle);
            to.send(()).unwrap();
        });
        let dropped = from.recv_timeout(HANG);
        assert!(thread("slipring-cuda").is_none());
        let opener = device.stream().unwrap();
        let opener = (opener.as_raw() as usize, opener);
        assert_eq!(driver::cuStreamWriteValue64_v2(opener.0, at, value, 0), 0);
        drops.join().unwrap();
        dropped.expect("it waits for the stream");
        assert!(LINES.lock().unwrap()[0].contains("no thread to free memory of GPUs"));
        assert!(TRIMMED.load(Ordering::Relaxed) > 0, "what waits for a thread counts");
        stream.synchronize_deadline(soon()).unwrap();
        // A later call has the thread started.
        drop((gate, own, opener));
        is_closed(&device);
        assert!(thread("slipring-cuda").is_some());
    });
    cuda.was_used_well();
}

/// Nobody tells the log under a lock, and a subscriber that panics stops nothing.
#[test]
fn a_subscriber_that_calls_the_library_or_panics_harms_nothing() {
    const TEST: &str = "a_subscriber_that_calls_the_library_or_panics_harms_nothing";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    run_here(TEST, |what| {
        tracing::subscriber::set_global_default(Log).unwrap();
        let hear: fn() = match what {
            "calls" => || {
                device().trim().unwrap();
            },
            "panics" => || panic!("a subscriber"),
            other => panic!("{other}"),
        };
        HEARS.set(hear).unwrap();
        let device = device();
        let stream = device.stream().unwrap();
        let pool = device.pool_with(pool_options()).unwrap();
        let (mut near, mut far) = pair_of(&Context::new().unwrap(), &Context::new().unwrap());
        near.send_tensor(pool.alloc::<u8>([64], &stream).unwrap().share().unwrap()).unwrap();
        let tensor = recv(&mut far);
        // Its memory is out, so it is freed when a later call finds it back.
        drop(pool);
        drop((tensor, near, far));
        let (to, from) = std::sync::mpsc::channel();
        let sweeps = (device.clone(), stream.clone());
        let sweeper = std::thread::spawn(move || {
            without_threads();
            let (device, stream) = sweeps;
            let left = device.trim().unwrap();
            // A failed call, and the memory that it leaves.
            let pool = device.pool_with(pool_options()).unwrap();
            let failed = pool.alloc::<u8>([64], &stream).map(drop);
            to.send((left, failed.is_err())).unwrap();
        });
        let (left, has_failed) = from.recv_timeout(HANG).expect("it waits for a lock");
        sweeper.join().unwrap();
        assert!(left > 0 && has_failed);
        assert!(thread("slipring-cuda").is_none());
        let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let told = lines.iter().filter(|line| line.contains("no thread to free memory of GPUs"));
        assert_eq!(told.count(), 1, "{lines:#?}");
        drop(stream);
        is_closed(&device);
    });
    for what in ["calls", "panics"] {
        let cuda = cuda.clone().fail("cuMemSetAccess:999:2");
        cuda.start(TEST, what).succeeds();
        cuda.was_used_well();
    }
}

/// How often a thread has gone to sleep.
fn sleeps(name: &str) -> u64 {
    let status = std::fs::read_to_string(thread(name).unwrap().join("status")).unwrap();
    let count = { status.lines() }.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn a_process_with_more_peers_than_descriptors_to_open_sleeps() {
    const TEST: &str = "a_process_with_more_peers_than_descriptors_to_open_sleeps";
    const LINKS: usize = 40;
    run_here(TEST, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        let device = device();
        let stream = device.stream().unwrap();
        if role == "owner" {
            let context = Context::new().unwrap();
            let pool = small_pool(&device);
            let tensor = pool.alloc::<u8>([64], &stream).unwrap().share().unwrap();
            let mut links: Vec<_> = (0..LINKS).map(|_| context.connect(name).unwrap()).collect();
            links.iter_mut().for_each(|link| link.send_tensor(&tensor).unwrap());
            links.iter_mut().for_each(hear_out);
            drop((tensor, pool, links));
            return is_closed(&device);
        }
        let mut listener = Context::new().unwrap().listen(name).unwrap();
        say("listening");
        let mut links: Vec<_> =
            (0..LINKS).map(|_| listener.accept_deadline(soon()).unwrap()).collect();
        let tensors: Vec<_> = links.iter_mut().map(recv).collect();
        // The thread watches the socket of each link.
        tensors.iter().for_each(|tensor| drop(device.open(tensor, &stream).unwrap()));
        let own = device.pool();
        let mut other = own.alloc::<u8>([1], &stream).unwrap();
        std::thread::sleep(5 * SLOW);
        let before = sleeps("slipring-loans");
        let files = rustix::process::Resource::Nofile;
        let limit = rustix::process::getrlimit(files);
        let fewer = rustix::process::Rlimit { current: Some(LINKS as u64 / 2), ..limit };
        rustix::process::setrlimit(files, fewer).unwrap();
        // A loan that goes back wakes the thread up.
        let view = device.open(&tensors[0], &stream).unwrap();
        (0..2).for_each(|_| other.fill(1).unwrap());
        drop(view);
        std::thread::sleep(50 * SLOW);
        rustix::process::setrlimit(files, limit).unwrap();
        let more = sleeps("slipring-loans") - before;
        assert!(more < 25, "{more} times in a second");
        drop((other, own, tensors, links));
        is_closed(&device);
    });
    let cuda = FakeCuda::new().of_kind(Kind::Synchronized).delay(SLOW);
    let name = unique_name();
    let mut reader = cuda.start(TEST, &format!("reader {name}"));
    reader.expect("listening");
    let mut owner = cuda.start(TEST, &format!("owner {name}"));
    reader.succeeds();
    owner.succeeds();
    cuda.was_used_well();
}

/// Keeps what the library says at the level of a warning.
struct Log;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What it does beside that.
static HEARS: OnceLock<fn()> = OnceLock::new();

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("slipring") && *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
        HEARS.get().into_iter().for_each(|hear| hear());
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_context_that_is_over_is_told_of_once() {
    // CUDA_ERROR_ILLEGAL_ADDRESS, of every call on a stream or an event.
    let calls = ["cuEventRecord", "cuEventQuery", "cuEventDestroy_v2", "cuStreamQuery"];
    let calls = [&calls[..], &["cuStreamSynchronize", "cuMemsetD8Async", "cuMemFree_v2"]].concat();
    let plan: Vec<String> = calls.iter().map(|call| format!("{call}:700:1:1000000")).collect();
    let cuda = || FakeCuda::new().fail(&plan.join(","));
    FakeCuda::alone("a_context_that_is_over_is_told_of_once", cuda, || {
        tracing::subscriber::set_global_default(Log).unwrap();
        let device = device();
        let (pool, stream) = (device.pool(), device.stream().unwrap());
        for _ in 0..50 {
            drop(pool.alloc::<u8>([64], &stream).unwrap());
        }
        drop((pool, stream));
        is_closed(&device);
        let lines = LINES.lock().unwrap();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{lines:#?}");
        assert!(lines[0].contains("no more is said of it"), "{lines:#?}");
    });
}
