//! A message to threads that all sleep, and beside it a bare futex on which as many threads sleep.
//!
//! The leader idles while the threads fall asleep, and then wakes them. The figure is the time of the call that wakes them, or
//! the time until the last one is awake. The harness takes the idle time out.
//!
//! ```text
//! leader      idle │ wake │ poll the follower's count
//! follower    each thread: sleep │ count         its main thread: parked until all have counted
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::options::Spin;
use slipring::{Address, Context, Options};

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, sleeps_in};
use crate::floors::futex::idle;
use crate::memory::{Mapping, PAGE};

/// Threads that sleep.
const SLEEPERS: u64 = 8;

/// The word in the follower's segment that counts the wake-ups of all threads.
const AWAKE: usize = 0;

/// The futex in the leader's segment: the number of the last wake-up, or `END`.
const NUMBER: usize = 0;
const END: u32 = u32::MAX;

/// Wakes all threads once.
type Wake = Box<dyn FnMut() -> Outcome<()>>;

/// Sleeps once. Returns whether a wake-up ended it, and not the end of the exchange.
type Sleep = Box<dyn FnMut() -> Outcome<bool> + Send>;

/// The side that wakes.
struct Waker {
    wake: Wake,
    /// The follower's segment.
    counts: Mapping,
    rounds: u64,
    /// Whether the figure is the time until the last thread is awake.
    until_last: bool,
}

impl Waker {
    /// Wakes all threads, and returns once the last one is awake. Returns the nanoseconds that count.
    fn round(&mut self) -> Outcome<u64> {
        let start = Instant::now();
        // As long as both sides of other rows idle.
        idle();
        idle();
        (self.wake)()?;
        let woken = start.elapsed();
        self.rounds += 1;
        self.counts.watch(AWAKE).until(|count| count >= self.rounds * SLEEPERS);
        let counted = if self.until_last { start.elapsed() } else { woken };
        Ok(counted.as_nanos() as u64)
    }
}

impl Exchange for Waker {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        (0..count).try_for_each(|_| self.round().map(drop))
    }

    fn follow(&mut self, _count: u64) -> Outcome<()> {
        Err("the leader wakes".into())
    }

    fn lead_stamped(&mut self, count: u64, stamps: &mut Vec<u64>) -> Outcome<()> {
        for _ in 0..count {
            stamps.push(self.round()?);
        }
        Ok(())
    }

    /// The leader waits for nothing asleep. The follower's sleeps alone decide whether a slice counts.
    fn sleeps(&self) -> u64 {
        self.rounds
    }
}

/// The side whose threads sleep. Dropping waits for their end, which the leader brings about.
struct Sleepers {
    threads: Vec<JoinHandle<()>>,
    /// The files that tell how often each thread has slept.
    status: Vec<String>,
    counts: Arc<Mapping>,
    rounds: u64,
}

impl Sleepers {
    fn start(counts: Mapping, sleeps: Vec<Sleep>) -> Outcome<Self> {
        let (counts, main) = (Arc::new(counts), thread::current());
        let (started, ids) = mpsc::channel();
        let start = |mut sleep: Sleep| {
            let (counts, main, started) = (counts.clone(), main.clone(), started.clone());
            thread::spawn(move || {
                let _ = started.send(rustix::thread::gettid().as_raw_nonzero());
                loop {
                    match sleep() {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(error) => {
                            eprintln!("ping_pong, a thread that sleeps: {error}");
                            std::process::exit(1);
                        }
                    }
                    let before = counts.word(AWAKE).fetch_add(1, Ordering::Release);
                    if (before + 1).is_multiple_of(SLEEPERS) {
                        main.unpark();
                    }
                }
            })
        };
        let threads: Vec<_> = sleeps.into_iter().map(start).collect();
        let ids = ids.iter().take(threads.len());
        let status = ids.map(|id| format!("/proc/self/task/{id}/status")).collect();
        Ok(Self { threads, status, counts, rounds: 0 })
    }
}

impl Exchange for Sleepers {
    fn lead(&mut self, _count: u64) -> Outcome<()> {
        Err("the follower sleeps".into())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        self.rounds += count;
        while self.counts.watch(AWAKE).load() < self.rounds * SLEEPERS {
            thread::park();
        }
        Ok(())
    }

    fn sleeps(&self) -> u64 {
        self.status.iter().map(|path| sleeps_in(path)).sum::<u64>() / SLEEPERS
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Opens the topic, for the time until the last subscriber is awake.
pub fn slipring_last(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    slipring(setup, true)
}

/// Opens the topic, for the time of the send.
pub fn slipring_send(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    slipring(setup, false)
}

fn slipring(setup: &Setup, until_last: bool) -> Outcome<Box<dyn Exchange>> {
    let context = Context::with_options(Options::new().spin(Spin::Never))?;
    let address = Address::named(setup.name)?;
    let (mine, theirs) = setup.segments(PAGE, false)?;
    if setup.role == Role::Leader {
        let mut publisher = context.publish(address, PublishOptions::default())?;
        let message = vec![7; setup.bytes];
        // The follower subscribes between the two.
        setup.meet()?;
        setup.meet()?;
        let wake: Wake = Box::new(move || Ok(publisher.send(&message)?));
        return Ok(Box::new(Waker { wake, counts: theirs, rounds: 0, until_last }));
    }
    setup.meet()?;
    let sleep = |_| -> Outcome<Sleep> {
        let options = SubscribeOptions::every().reconnect(false);
        let mut subscriber = context.subscribe(&address, options)?;
        Ok(Box::new(move || Ok(subscriber.recv()?.is_some())))
    };
    let sleeps = (0..SLEEPERS).map(sleep).collect::<Outcome<_>>()?;
    setup.meet()?;
    Ok(Box::new(Sleepers::start(mine, sleeps)?))
}

/// Opens the bare futex, for the time until the last thread is awake.
pub fn futex_last(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    bare(setup, true)
}

/// Opens the bare futex, for the time of the system call.
pub fn futex_send(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
    bare(setup, false)
}

fn bare(setup: &Setup, until_last: bool) -> Outcome<Box<dyn Exchange>> {
    let (mine, theirs) = setup.segments(PAGE, false)?;
    if setup.role == Role::Leader {
        let mut bell = Bell(mine);
        let wake: Wake = Box::new(move || bell.ring());
        return Ok(Box::new(Waker { wake, counts: theirs, rounds: 0, until_last }));
    }
    let number = Arc::new(theirs);
    let sleep = |_| -> Sleep {
        let (number, mut last) = (number.clone(), 0);
        Box::new(move || {
            let number = number.futex(NUMBER);
            while number.load(Ordering::Acquire) == last {
                match futex::wait(number, Flags::empty(), last, None) {
                    Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            last = number.load(Ordering::Acquire);
            Ok(last != END)
        })
    };
    Ok(Box::new(Sleepers::start(mine, (0..SLEEPERS).map(sleep).collect())?))
}

/// The futex of the leader. Dropping ends those that sleep on it.
struct Bell(Mapping);

impl Bell {
    fn ring(&mut self) -> Outcome<()> {
        let number = self.0.futex(NUMBER);
        // Pairs with the Acquire loads of the sleepers.
        number.fetch_add(1, Ordering::Release);
        futex::wake(number, Flags::empty(), SLEEPERS as u32)?;
        Ok(())
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let number = self.0.futex(NUMBER);
        number.store(END, Ordering::Release);
        let _ = futex::wake(number, Flags::empty(), SLEEPERS as u32);
    }
}
