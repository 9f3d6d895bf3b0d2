//! A server in a process of its own, whose memory is seen from outside.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::grpc_served::Client;
use crate::grpc_served::inference::SystemSharedMemoryRegisterRequest;
use crate::http_served::models;
use crate::support::other::{Other, run_here, say, wait_for_death};
use crate::support::{HANG, unique_name};
use slipring::region::{PosixShm, SigbusGuard};
use slipring_triton::{Front, Limits};
use tonic::transport::Endpoint;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Memory of a server without tensors: new threads, buffers of connections.
pub const BESIDES: u64 = 24 * MIB;

/// These tests take gigabytes, so one runs at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the machine has this much memory. A skipped test reports why.
pub fn has_room(memory: u64, shared: u64) -> bool {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = kib(line.unwrap());
    let room = rustix::fs::statvfs("/dev/shm").unwrap();
    let room = room.f_bavail * room.f_frsize;
    if available < memory + shared || room < shared {
        eprintln!("skipped: {available} bytes of memory are free, {room} of them for /dev/shm");
        return false;
    }
    true
}

fn kib(text: &str) -> u64 {
    text.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * KIB
}

/// Returns a line of a process's status.
fn status(pid: u32, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    kib(text.lines().find_map(|is| is.strip_prefix(line)).unwrap())
}

/// A server process for both protocols.
pub struct Process {
    other: Other,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    runtime: tokio::runtime::Runtime,
}

impl Process {
    /// Starts the server. A test calls this first. `under_way` is the limit on bytes in flight.
    ///
    /// Its allocator has one arena. With several, memory that one thread has freed stays with its arena while another
    /// one takes more: up to twice the sum, by chance.
    pub fn start(test: &str, in_place: bool, under_way: u64) -> Self {
        let allocator = [("MALLOC_ARENA_MAX".to_owned(), "1".to_owned())];
        Self::start_with(test, in_place, under_way, &allocator)
    }

    /// As [`start`](Self::start), with this environment.
    pub fn start_with(
        test: &str,
        in_place: bool,
        under_way: u64,
        environment: &[(String, String)],
    ) -> Self {
        run_here(test, |argument| {
            let (in_place, under_way) = argument.split_once(' ').unwrap();
            let in_place = in_place.parse().unwrap();
            if in_place {
                SigbusGuard::install().unwrap();
            }
            let limits = Limits::new().bytes_in_flight(under_way.parse().unwrap());
            let front = models::add_all(Front::builder()).limits(limits).in_place(in_place);
            let front = front.build().unwrap();
            let http = crate::http_served::Served::of(front.clone());
            let grpc = crate::grpc_served::Served::of(front);
            say(&format!("{} {}", http.address, grpc.address));
            wait_for_death();
        });
        let other = Other::spawn_with(test, &format!("{in_place} {under_way}"), environment);
        let addresses = other.hear();
        let (http, grpc) = addresses.split_once(' ').unwrap();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let (http, grpc) = (http.parse().unwrap(), grpc.parse().unwrap());
        Self { other, http, grpc, runtime }
    }

    pub fn status(&self, line: &str) -> u64 {
        status(self.other.pid(), line)
    }

    /// Returns the peak of the process's memory, and resets it.
    pub fn peak(&self) -> u64 {
        let peak = self.status("VmHWM:");
        std::fs::write(format!("/proc/{}/clear_refs", self.other.pid()), "5").unwrap();
        peak
    }

    /// Returns the memory now. `peak` counts from here on.
    pub fn settled(&self) -> u64 {
        self.peak();
        self.peak()
    }

    /// Returns the peak of private memory while `act` runs, without shared memory.
    pub fn own_while(&self, act: impl FnOnce()) -> u64 {
        let (over, pid) = (AtomicBool::new(false), self.other.pid());
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut most = 0;
                while !over.load(Ordering::Relaxed) {
                    most = most.max(status(pid, "RssAnon:"));
                    std::thread::sleep(Duration::from_millis(1));
                }
                most
            });
            act();
            over.store(true, Ordering::Relaxed);
            looks.join().unwrap()
        })
    }

    #[track_caller]
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let done = self.runtime.block_on(async { tokio::time::timeout(HANG, future).await });
        done.expect("an answer in time")
    }

    pub fn client(&self) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        let client = Client::new(self.run(endpoint.connect()).unwrap());
        let most = i32::MAX as usize;
        client.max_decoding_message_size(most).max_encoding_message_size(most)
    }

    /// Creates an object of zeros and registers all of it under `name`.
    pub fn region(&self, name: &str, len: u64) -> PosixShm {
        let object = PosixShm::create(&format!("/{}", unique_name()), len).unwrap();
        let (name, key) = (name.to_owned(), object.key().to_owned());
        let request = SystemSharedMemoryRegisterRequest { name, key, offset: 0, byte_size: len };
        self.run(self.client().system_shared_memory_register(request)).unwrap();
        object
    }
}
