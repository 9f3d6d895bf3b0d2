//! The peer process: its start, its commands, its end.
//!
//! The leader starts its own program once more with `--follow`, hands it a socket as standard input, and gives commands
//! through a page of shared memory. The two then act in step:
//!
//! ```text
//! line 0, leader writes:    sequence | verb | slot | four details (see `DETAIL`)
//! line 1, follower writes:  sequence of the last command done | sleeps during it
//! ```
//!
//! The death of either process ends the run. The kernel kills the follower when its parent dies (`PR_SET_PDEATHSIG`). A
//! watchdog thread of the leader ends the run when the follower dies, or when a command takes longer than `PATIENCE`.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::thread::CpuSet;

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, receive_fd, send_fd};
use crate::memory::{Mapping, PAGE};
use crate::rows::Rows;

/// How long a command may take. On a busy machine none takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The time between two checks of the watchdog.
const TICK: Duration = Duration::from_millis(500);

const SEQUENCE: usize = 0;
const VERB: usize = 8;
const SLOT: usize = 16;
/// Details of the verb. Open: row, bytes. Run: variant, warm-up, count, whether to count sleeps.
const DETAIL: [usize; 4] = [24, 32, 40, 48];
const DONE: usize = 64;
const SLEEPS: usize = 72;

const OPEN: u64 = 1;
const RUN: u64 = 2;
const CLOSE: u64 = 3;
const QUIT: u64 = 4;

/// An exchange that is open on both sides.
#[derive(Clone, Copy)]
pub struct Slot(usize);

/// A slice to run. The warm-up is not timed.
#[derive(Clone, Copy)]
pub struct Slice {
    /// The variant that [`Exchange::tune`] gets.
    pub variant: u64,
    /// Round trips of the warm-up.
    pub warm: u64,
    /// Round trips that are timed.
    pub count: u64,
    /// Whether to count the sleeps of both sides.
    pub asleep: bool,
}

type Slots = Vec<Option<Box<dyn Exchange>>>;

/// The follower, as the leader commands it. Dropping kills it.
pub struct Peer {
    rows: &'static dyn Rows,
    child: Child,
    socket: OwnedFd,
    mailbox: Mapping,
    sequence: u64,
    slots: Slots,
    watchdog: Arc<Watchdog>,
}

impl Peer {
    /// Starts the follower on the second CPU and pins this thread to the first.
    pub fn start(rows: &'static dyn Rows, cpus: (usize, usize)) -> Outcome<Peer> {
        let (socket, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let child = Command::new(std::env::current_exe()?)
            .arg(format!("--follow={}", std::process::id()))
            .arg(format!("--cpus={},{}", cpus.0, cpus.1))
            .stdin(Stdio::from(theirs))
            .spawn()?;

        let watchdog = Arc::new(Watchdog::new(rows.program()));
        let (mailbox, fd) = Mapping::create(PAGE, false)?;
        // A failure below drops `peer`, which ends the child.
        let peer =
            Peer { rows, child, socket, mailbox, sequence: 0, slots: Slots::new(), watchdog };
        let pid = Pid::from_raw(peer.id().cast_signed()).ok_or("the peer has no pid")?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let watchdog = Arc::clone(&peer.watchdog);
        thread::spawn(move || watchdog.run(&pidfd));
        send_fd(peer.socket.as_fd(), PAGE as u64, fd.as_fd())?;
        pin(cpus.0)?;
        Ok(peer)
    }

    /// Returns the rows of the program.
    pub fn rows(&self) -> &'static dyn Rows {
        self.rows
    }

    /// Returns the id of the follower's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Opens a row on both sides.
    pub fn open(&mut self, row: usize, bytes: usize) -> Outcome<Slot> {
        let slot = self.slots.len();
        self.post(OPEN, slot, [row as u64, bytes as u64, 0, 0]);
        let name = name(self.rows, std::process::id(), self.sequence);
        let setup = Setup { role: Role::Leader, bytes, name: &name, socket: self.socket.as_fd() };
        let exchange = self.rows.open(row, &setup)?;
        self.slots.push(Some(exchange));
        self.finish();
        Ok(Slot(slot))
    }

    /// Closes both sides of an exchange.
    pub fn close(&mut self, slot: Slot) {
        self.post(CLOSE, slot.0, [0; 4]);
        self.slots[slot.0] = None;
        self.finish();
    }

    /// Runs a slice and returns the time of all its round trips.
    pub fn run(&mut self, slot: Slot, slice: Slice) -> Outcome<Duration> {
        self.slice(slot, slice, |exchange| {
            let start = Instant::now();
            exchange.lead(slice.count)?;
            Ok(start.elapsed())
        })
    }

    /// Runs a slice and returns the nanoseconds of each round trip, and the sleeps of both sides together.
    pub fn run_stamped(&mut self, slot: Slot, slice: Slice) -> Outcome<(Vec<u64>, u64)> {
        let mut stamps = Vec::with_capacity(slice.count as usize);
        let slept = self.slice(slot, slice, |exchange| {
            let before = if slice.asleep { exchange.sleeps() } else { 0 };
            exchange.lead_stamped(slice.count, &mut stamps)?;
            Ok(if slice.asleep { exchange.sleeps() - before } else { 0 })
        })?;
        Ok((stamps, slept + self.mailbox.watch(SLEEPS).load()))
    }

    fn slice<R>(
        &mut self,
        slot: Slot,
        slice: Slice,
        act: impl FnOnce(&mut Box<dyn Exchange>) -> Outcome<R>,
    ) -> Outcome<R> {
        self.post(RUN, slot.0, [slice.variant, slice.warm, slice.count, u64::from(slice.asleep)]);
        let exchange = self.slots[slot.0].as_mut().ok_or("the exchange is closed")?;
        exchange.tune(slice.variant);
        exchange.lead(slice.warm)?;
        let result = act(exchange)?;
        self.finish();
        Ok(result)
    }

    fn post(&mut self, verb: u64, slot: usize, details: [u64; 4]) {
        self.watchdog.extend();
        self.mailbox.word(VERB).store(verb, Ordering::Relaxed);
        self.mailbox.word(SLOT).store(slot as u64, Ordering::Relaxed);
        for (offset, detail) in DETAIL.into_iter().zip(details) {
            self.mailbox.word(offset).store(detail, Ordering::Relaxed);
        }
        self.sequence += 1;
        // Pairs with the fence of `until` in `follow`: the follower sees the whole command with its sequence.
        self.mailbox.word(SEQUENCE).store(self.sequence, Ordering::Release);
    }

    fn finish(&self) {
        self.mailbox.watch(DONE).until(|done| done == self.sequence);
    }

    /// Ends the follower in order.
    pub fn quit(mut self) -> Outcome<()> {
        self.post(QUIT, 0, [0; 4]);
        self.finish();
        self.watchdog.finished.store(true, Ordering::Relaxed);
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the peer ended: {status}").into()) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.watchdog.finished.store(true, Ordering::Relaxed);
        // Fails only if the child has been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of the watchdog thread.
struct Watchdog {
    program: &'static str,
    /// Ticks of the current command. A clock would go on while the host stops the virtual machine.
    ticks: AtomicU64,
    finished: AtomicBool,
}

impl Watchdog {
    fn new(program: &'static str) -> Watchdog {
        Watchdog { program, ticks: AtomicU64::new(0), finished: AtomicBool::new(false) }
    }

    fn extend(&self) {
        self.ticks.store(0, Ordering::Relaxed);
    }

    /// Ends this process, with an error, when the follower ends or hangs before `finished`.
    fn run(&self, pidfd: &OwnedFd) {
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        loop {
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            let ended = rustix::event::poll(&mut fds, Some(&tick)).is_ok_and(|ready| ready > 0);
            if self.finished.load(Ordering::Relaxed) {
                return;
            }
            let ticks = self.ticks.fetch_add(1, Ordering::Relaxed);
            if ended {
                // An error of the leader's own says more, and gets a moment to appear.
                thread::sleep(Duration::from_millis(100));
            } else if TICK * ticks as u32 > PATIENCE {
                eprintln!("{}: a step took longer than {} s", self.program, PATIENCE.as_secs());
                let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
            } else {
                continue;
            }
            let status =
                rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            if self.finished.load(Ordering::Relaxed) {
                return;
            }
            let signal = status.ok().flatten().and_then(|status| status.terminating_signal());
            let how = signal.map_or(String::new(), |signal| format!(", killed by signal {signal}"));
            eprintln!("{}: the peer process ended early{how}", self.program);
            std::process::exit(1);
        }
    }
}

/// Runs the follower until the leader ends it.
pub fn follow(rows: &dyn Rows, parent: u32, cpu: usize) -> Outcome<()> {
    end_with_parent(parent)?;
    pin(cpu)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let (_, fd) = receive_fd(socket.as_fd())?;
    let mailbox = Mapping::attach(&fd, PAGE, true)?;
    let mut slots = Slots::new();
    for sequence in 1.. {
        mailbox.watch(SEQUENCE).until(|word| word == sequence);
        let detail = DETAIL.map(|offset| mailbox.watch(offset).load());
        let slot = mailbox.watch(SLOT).load() as usize;
        match mailbox.watch(VERB).load() {
            OPEN => {
                let name = name(rows, parent, sequence);
                let bytes = detail[1] as usize;
                let setup =
                    Setup { role: Role::Follower, bytes, name: &name, socket: socket.as_fd() };
                slots.push(Some(rows.open(detail[0] as usize, &setup)?));
            }
            RUN => {
                let exchange = slots[slot].as_mut().ok_or("the exchange is closed")?;
                let [variant, warm, count, asleep] = detail;
                exchange.tune(variant);
                exchange.follow(warm)?;
                let before = if asleep != 0 { exchange.sleeps() } else { 0 };
                exchange.follow(count)?;
                let after = if asleep != 0 { exchange.sleeps() } else { 0 };
                mailbox.word(SLEEPS).store(after - before, Ordering::Relaxed);
            }
            CLOSE => slots[slot] = None,
            _ => {
                mailbox.word(DONE).store(sequence, Ordering::Release);
                return Ok(());
            }
        }
        // Pairs with the fence of `until` in `finish`: the leader sees the sleeps of a command that is done.
        mailbox.word(DONE).store(sequence, Ordering::Release);
    }
    Ok(())
}

fn name(rows: &dyn Rows, leader: u32, sequence: u64) -> String {
    format!("slipring-{}-{leader}-{sequence}", rows.program())
}

/// Has the kernel kill this process when its parent, the process with this id, dies.
pub fn end_with_parent(parent: u32) -> Outcome<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if now == Some(parent.cast_signed()) { Ok(()) } else { Err("the parent is gone".into()) }
}

fn pin(cpu: usize) -> Outcome<()> {
    allow(&[cpu])
}

/// Lets this thread run on both CPUs, and on no other.
pub fn confine(cpus: (usize, usize)) -> Outcome<()> {
    allow(&[cpus.0, cpus.1])
}

fn allow(cpus: &[usize]) -> Outcome<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(format!("CPU {cpu} is more than {}", CpuSet::MAX_CPU - 1).into());
        }
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| format!("CPUs {cpus:?}: {error}").into())
}
