//! What C pays: each operation through `libslipring_capi.so` beside the same one in Rust, by turns in one process.
//!
//! ```text
//! cargo bench -p slipring-capi --bench border
//! cargo bench -p slipring-capi --bench border -- publish       the rows whose names have the word
//! ```
//!
//! The library is loaded at run time, as C does it. Both sides take turns in slices, and a figure is the median of the slices in
//! nanoseconds. The floor is a call of the library that does nothing. The bench of two threads needs two CPUs.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::Instant;

use libloading::Library;
use slipring::{Address, Connection, Context};

type Handle = *mut c_void;

const SLICES: usize = 61;
const NONBLOCK: i64 = 0;
const DEFAULT: i64 = -1;
const FOREVER: i64 = i64::MAX;

#[repr(C)]
struct Message {
    data: *const u8,
    len: usize,
    kind: u32,
}

/// The functions of the library.
#[derive(Clone, Copy)]
struct C {
    version: unsafe extern "C" fn() -> *const c_char,
    context: unsafe extern "C" fn(Handle, *mut Handle) -> i32,
    pair: unsafe extern "C" fn(Handle, *mut Handle, *mut Handle) -> i32,
    send: unsafe extern "C" fn(Handle, *const c_void, usize, i64) -> i32,
    recv: unsafe extern "C" fn(Handle, *mut c_void, usize, *mut usize, i64) -> i32,
    reserve: unsafe extern "C" fn(Handle, usize, i64, *mut *mut u8) -> i32,
    publish: unsafe extern "C" fn(Handle) -> i32,
    peek: unsafe extern "C" fn(Handle, i64, *mut Message) -> i32,
    release: unsafe extern "C" fn(Handle) -> i32,
    new: unsafe extern "C" fn(Handle, u32, *const usize, usize, u32, i64, *mut Handle) -> i32,
    send_tensor: unsafe extern "C" fn(Handle, Handle, i64) -> i32,
    recv_tensor: unsafe extern "C" fn(Handle, i64, *mut Handle) -> i32,
    free: unsafe extern "C" fn(Handle) -> i32,
}

fn symbol<T: Copy>(library: &'static Library, name: &str) -> T {
    // SAFETY: the types above are those of the header.
    *unsafe { library.get::<T>(name) }.unwrap()
}

impl C {
    fn load() -> Self {
        let beside = std::env::current_exe().unwrap().with_file_name("libslipring_capi.so");
        // SAFETY: the library does nothing when it is loaded, and is never unloaded.
        let library = Box::leak(Box::new(unsafe { Library::new(beside) }.unwrap()));
        Self {
            version: symbol(library, "slipring_version"),
            context: symbol(library, "slipring_context_new"),
            pair: symbol(library, "slipring_pair"),
            send: symbol(library, "slipring_send"),
            recv: symbol(library, "slipring_recv"),
            reserve: symbol(library, "slipring_reserve"),
            publish: symbol(library, "slipring_publish"),
            peek: symbol(library, "slipring_peek"),
            release: symbol(library, "slipring_release"),
            new: symbol(library, "slipring_tensor_new"),
            send_tensor: symbol(library, "slipring_send_tensor"),
            recv_tensor: symbol(library, "slipring_recv_tensor"),
            free: symbol(library, "slipring_tensor_free"),
        }
    }

    fn connections(&self) -> [Side; 2] {
        let mut context = null_mut();
        // SAFETY: the arguments are as the header demands them.
        assert_eq!(unsafe { (self.context)(null_mut(), &mut context) }, 0);
        let (mut near, mut far) = (null_mut(), null_mut());
        // SAFETY: as above.
        assert_eq!(unsafe { (self.pair)(context, &mut near, &mut far) }, 0);
        [Side { c: *self, handle: near, context }, Side { c: *self, handle: far, context }]
    }
}

/// A connection of the library.
struct Side {
    c: C,
    handle: Handle,
    context: Handle,
}

// SAFETY: one thread at a time has it.
unsafe impl Send for Side {}

/// What is measured, in either language.
trait Link: Send {
    fn send(&mut self, message: &[u8; 8]);
    fn recv(&mut self, room: &mut [u8; 8]);
    fn write(&mut self, value: u64);
    fn read(&mut self) -> u64;
    /// Sends a new tensor of 8 KiB, untouched.
    fn hand(&mut self);
    /// Receives a tensor and gives it back.
    fn take(&mut self);
}

impl Link for Side {
    fn hand(&mut self) {
        let (len, mut tensor) = (8192, null_mut());
        // SAFETY: there is a place for the answer.
        let status = unsafe { (self.c.new)(self.context, 2, &len, 1, 0, DEFAULT, &mut tensor) };
        assert_eq!(status, 0);
        // SAFETY: the tensor is gone from here on.
        assert_eq!(unsafe { (self.c.send_tensor)(self.handle, tensor, DEFAULT) }, 0);
    }

    fn take(&mut self) {
        let mut tensor = null_mut();
        // SAFETY: there is a place for the answer.
        assert_eq!(unsafe { (self.c.recv_tensor)(self.handle, FOREVER, &mut tensor) }, 0);
        // SAFETY: it was received.
        assert_eq!(unsafe { (self.c.free)(tensor) }, 0);
    }

    fn send(&mut self, message: &[u8; 8]) {
        // SAFETY: the bytes are there.
        let status = unsafe { (self.c.send)(self.handle, message.as_ptr().cast(), 8, DEFAULT) };
        assert_eq!(status, 0);
    }

    fn recv(&mut self, room: &mut [u8; 8]) {
        let mut len = 0;
        // SAFETY: the bytes may be written.
        let status =
            unsafe { (self.c.recv)(self.handle, room.as_mut_ptr().cast(), 8, &mut len, NONBLOCK) };
        assert_eq!((status, len), (0, 8));
    }

    fn write(&mut self, value: u64) {
        let mut room = null_mut();
        // SAFETY: there is a place for the answer.
        let status = unsafe { (self.c.reserve)(self.handle, 64, DEFAULT, &mut room) };
        assert_eq!(status, 0);
        // SAFETY: 64 bytes are reserved.
        unsafe { room.cast::<[u64; 8]>().write([value; 8]) };
        // SAFETY: a message is reserved.
        assert_eq!(unsafe { (self.c.publish)(self.handle) }, 0);
    }

    fn read(&mut self) -> u64 {
        let mut message = Message { data: std::ptr::null(), len: 0, kind: 0 };
        // SAFETY: there is a place for the answer.
        let status = unsafe { (self.c.peek)(self.handle, FOREVER, &mut message) };
        assert_eq!((status, message.len, message.kind), (0, 64, 0));
        // SAFETY: the message has 64 bytes.
        let words = unsafe { message.data.cast::<[u64; 8]>().read_unaligned() };
        // SAFETY: a message is peeked at.
        assert_eq!(unsafe { (self.c.release)(self.handle) }, 0);
        black_box(words)[7]
    }
}

/// A connection and its context.
struct InRust(Connection, Context);

impl Link for InRust {
    fn hand(&mut self) {
        let tensor = self.1.allocation().dtype(slipring::DType::Uint8, [8192]).unwrap();
        self.0.sender().send_tensor(tensor).unwrap();
    }

    fn take(&mut self) {
        drop(self.0.receiver().recv_tensor().unwrap().unwrap());
    }

    fn send(&mut self, message: &[u8; 8]) {
        self.0.sender().send(message).unwrap();
    }

    fn recv(&mut self, room: &mut [u8; 8]) {
        assert_eq!(self.0.receiver().try_recv_to(room).unwrap(), Some(8));
    }

    fn write(&mut self, value: u64) {
        let mut room = self.0.sender().reserve(64).unwrap();
        // SAFETY: 64 bytes are reserved.
        unsafe { room.as_mut_ptr().cast::<[u64; 8]>().write_unaligned([value; 8]) };
        room.publish().unwrap();
    }

    fn read(&mut self) -> u64 {
        let received = self.0.receiver().peek().unwrap().unwrap();
        assert_eq!(received.len(), 64);
        // SAFETY: the message has 64 bytes.
        let words = unsafe { received.bytes().as_ptr().cast::<[u64; 8]>().read_unaligned() };
        received.release().unwrap();
        black_box(words)[7]
    }
}

fn in_rust() -> [InRust; 2] {
    let (context, address) = (Context::new().unwrap(), Address::fresh());
    let mut listener = context.listen(&address).unwrap();
    let far = std::thread::spawn(move || listener.accept().unwrap());
    let near = context.connect(&address).unwrap();
    [InRust(near, context.clone()), InRust(far.join().unwrap(), context)]
}

/// Returns nanoseconds for each of `count` calls of `act`.
#[inline(never)]
fn time(count: u64, mut act: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..count).for_each(&mut act);
    start.elapsed().as_nanos() as f64 / count as f64
}

fn copies([near, far]: &mut [impl Link; 2]) -> f64 {
    let mut room = [0; 8];
    time(100_000, |number| {
        near.send(&number.to_le_bytes());
        far.recv(&mut room);
    })
}

/// The two halves by turns: a run of messages is written, and then read. Returns the time of the writing, or of the
/// reading.
fn in_place([near, far]: &mut [impl Link; 2], is_read: bool) -> f64 {
    const RUN: u64 = 500;
    let times = (0..100).map(|_| {
        let write = time(RUN, |number| near.write(number));
        let read = time(RUN, |number| assert_eq!(far.read(), number));
        if is_read { read } else { write }
    });
    times.sum::<f64>() / 100.0
}

fn tensors([near, far]: &mut [impl Link; 2]) -> f64 {
    time(20_000, |_| {
        near.hand();
        far.take();
    })
}

/// A new tensor goes to the other thread, and one comes back.
fn hand_overs([near, far]: &mut [impl Link; 2]) -> f64 {
    const TRIPS: u64 = 10_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            (0..TRIPS + 1).for_each(|_| {
                far.take();
                far.hand();
            });
        });
        pin(0);
        let mut trip = || {
            near.hand();
            near.take();
        };
        trip();
        time(TRIPS, |_| trip())
    })
}

fn streams([near, far]: &mut [impl Link; 2]) -> f64 {
    const MESSAGES: u64 = 400_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            (0..MESSAGES).for_each(|number| near.write(number));
        });
        pin(0);
        assert_eq!(far.read(), 0);
        time(MESSAGES - 1, |number| assert_eq!(far.read(), number + 1))
    })
}

/// Moves the calling thread to a CPU, where there is one.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Prints a row: the medians of C and of Rust, the difference and the ratio.
fn row(name: &str, mut c: impl FnMut() -> f64, mut rust: impl FnMut() -> f64) {
    let mut wanted = std::env::args().skip(1).filter(|word| word != "--bench").peekable();
    if wanted.peek().is_some() && !wanted.any(|word| name.contains(&word)) {
        return;
    }
    let (mut in_c, mut in_rust) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        in_c.push(c());
        in_rust.push(rust());
    }
    let [c, rust] = [in_c, in_rust].map(|mut slices| {
        slices.sort_by(f64::total_cmp);
        slices[SLICES / 2]
    });
    println!("{name:<44}{c:>8.1}{rust:>8.1}{:>10.1}{:>10.2}", c - rust, c / rust);
}

fn main() {
    let c = C::load();
    pin(0);
    println!("{:<44}{:>8}{:>8}{:>10}{:>10}", "ns", "C", "Rust", "C - Rust", "C / Rust");
    let floor = || {
        // SAFETY: it has no arguments.
        time(1_000_000, |_| _ = black_box(unsafe { (c.version)() }))
    };
    row("a call that does nothing, beside none", floor, || {
        time(1_000_000, |number| _ = black_box(number))
    });
    let (mut of_c, mut of_rust) = (c.connections(), in_rust());
    row("8 B: send, recv, one thread", || copies(&mut of_c), || copies(&mut of_rust));
    row("a tensor: new, send, recv, free", || tensors(&mut of_c), || tensors(&mut of_rust));
    row(
        "64 B in place: reserve, publish",
        || in_place(&mut of_c, false),
        || in_place(&mut of_rust, false),
    );
    row(
        "64 B in place: peek, release",
        || in_place(&mut of_c, true),
        || in_place(&mut of_rust, true),
    );
    row(
        "a tensor: there, and one back, two threads",
        || hand_overs(&mut of_c),
        || hand_overs(&mut of_rust),
    );
    row("64 B in place, from thread to thread", || streams(&mut of_c), || streams(&mut of_rust));
}
