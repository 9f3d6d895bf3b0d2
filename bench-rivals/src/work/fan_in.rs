//! 16 senders on one CPU, as fast as they can, to one receiver on the other.
//!
//! The senders are threads of the follower, each with an end of its own, and never stop by themselves: after
//! `WINDOW` the leader says so through a word of shared memory, and each ends with a message that says that
//! it is the last. The receiver checks that every sender's messages come in order and whole. It finds the
//! time a message took inside of the window, and how many messages the slowest sender got through beside a
//! sixteenth of all.
//!
//! ```text
//! message, 64 B: sender | number, the highest bit set in the last | six words filled from both
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::finding::{self, Finding};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::memory::{Mapping, PAGE};
use crate::payload;
use crate::work::QUICK;

pub const SENDERS: usize = 16;
pub const BYTES: usize = 64;
const LAST: u64 = 1 << 63;
/// Long against the time slices of the kernel's scheduler, which shares one CPU among the senders.
const WINDOW: Duration = Duration::from_millis(300);
/// The same in a run that only sees whether it works.
const QUICK_WINDOW: Duration = Duration::from_millis(20);
/// A message in so many, the clock is looked at.
const LOOK: u64 = 64;

pub type Message = [u8; BYTES];
/// Sends one message, however long that takes.
pub type Send1 = Box<dyn FnMut(&Message) -> Outcome<()>>;
/// Makes a sender, in the thread that will use it.
pub type Maker = Box<dyn FnOnce() -> Outcome<Send1> + Send>;
/// Receives, and gives everything to the tally, until that is done. Called once beforehand, with a tally that
/// is done, when all senders are there: who has to take notice of them does it then.
pub type Serve = Box<dyn FnMut(&Tally) -> Outcome<()>>;

pub enum Part {
    Receiver(Serve),
    Senders(Vec<Maker>),
}

/// What the receiver knows. Written by one thread only; atomic, so that callbacks may share it.
pub struct Tally {
    numbers: [AtomicU64; SENDERS],
    /// Messages of each sender, and of all, inside of the window.
    shares: [AtomicU64; SENDERS],
    ended: AtomicU64,
    seen: AtomicU64,
    closed: AtomicBool,
    wrong: AtomicBool,
    stop: Arc<Mapping>,
    round: AtomicU64,
    began: Mutex<Option<Instant>>,
    took: Mutex<Option<Duration>>,
}

impl Tally {
    fn new(stop: Arc<Mapping>) -> Tally {
        Tally {
            numbers: Default::default(),
            shares: Default::default(),
            ended: AtomicU64::new(SENDERS as u64),
            seen: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            wrong: AtomicBool::new(false),
            stop,
            round: AtomicU64::new(0),
            began: Mutex::new(None),
            took: Mutex::new(None),
        }
    }

    /// A message has come.
    pub fn take(&self, message: &Message) {
        let (words, _) = message.as_chunks::<8>();
        let word = |at: usize| u64::from_ne_bytes(words[at]);
        let (sender, number) = (word(0) as usize, word(1) & !LAST);
        let expected = payload::expected(BYTES - 16, payload::seed(number, sender as u64));
        let known = self.numbers.get(sender).is_some_and(|next| {
            next.swap_plain(number + 1) == number && payload::sum(&message[16..]) == expected
        });
        if !known {
            self.wrong.store(true, Ordering::Relaxed);
            return;
        }
        if word(1) & LAST != 0 {
            self.ended.add_plain(1);
        }
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        self.shares[sender].add_plain(1);
        if self.seen.add_plain(1).is_multiple_of(LOOK) {
            self.look();
        }
    }

    /// Closes the window when it is time.
    #[cold]
    fn look(&self) {
        let now = Instant::now();
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let start = *began.get_or_insert(now);
        let window = if QUICK.load(Ordering::Relaxed) { QUICK_WINDOW } else { WINDOW };
        if now - start >= window {
            *self.took.lock().unwrap_or_else(PoisonError::into_inner) = Some(now - start);
            self.closed.store(true, Ordering::Relaxed);
            let round = self.round.load(Ordering::Relaxed);
            self.stop.word(0).store(round, Ordering::Release);
        }
    }

    pub fn is_done(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == SENDERS as u64 || self.wrong.load(Ordering::Relaxed)
    }

    fn begin(&self) {
        self.round.add_plain(1);
        for share in &self.shares {
            share.store(0, Ordering::Relaxed);
        }
        self.seen.store(0, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        self.closed.store(false, Ordering::Relaxed);
        *self.began.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn finish(&self) -> Outcome<Finding> {
        if self.wrong.load(Ordering::Relaxed) {
            return Err("a message came out of order, twice, or changed".into());
        }
        let took = self.took.lock().unwrap_or_else(PoisonError::into_inner).take();
        let took = took.ok_or("the window never closed")?;
        // The first look is what begins the window.
        let messages = self.seen.load(Ordering::Relaxed).saturating_sub(LOOK).max(1) as f64;
        let slowest = self.shares.iter().map(|share| share.load(Ordering::Relaxed)).min();
        let fair = self.seen.load(Ordering::Relaxed) as f64 / SENDERS as f64;
        Ok(Finding {
            value: Some(took.as_nanos() as f64 / messages),
            beside: slowest.map(|slowest| slowest as f64 / fair),
        })
    }
}

/// One thread writes, so no read-modify-write is needed.
trait Plain {
    fn add_plain(&self, more: u64) -> u64;
    fn swap_plain(&self, new: u64) -> u64;
}

impl Plain for AtomicU64 {
    fn add_plain(&self, more: u64) -> u64 {
        let sum = self.load(Ordering::Relaxed) + more;
        self.store(sum, Ordering::Relaxed);
        sum
    }

    fn swap_plain(&self, new: u64) -> u64 {
        let old = self.load(Ordering::Relaxed);
        self.store(new, Ordering::Relaxed);
        old
    }
}

/// How many senders there are, which round they are in, and how many of them have not finished it.
#[derive(Default)]
pub struct Turnstile {
    made: usize,
    round: u64,
    busy: usize,
    failed: Option<String>,
    over: bool,
}

type Gate = Arc<(Mutex<Turnstile>, Condvar)>;

pub enum FanIn {
    Leader { serve: Serve, tally: Arc<Tally> },
    Follower { gate: Gate, threads: Vec<thread::JoinHandle<()>> },
}

impl FanIn {
    /// `open` is given the tally, for callbacks that need one of their own.
    pub fn open(
        setup: &Setup,
        open: impl FnOnce(&Setup, &Arc<Tally>) -> Outcome<Part>,
    ) -> Outcome<Box<dyn Exchange>> {
        let (mine, theirs) = setup.segments(PAGE, false)?;
        let stop = Arc::new(if setup.role == Role::Leader { mine } else { theirs });
        let tally = Arc::new(Tally::new(stop.clone()));
        let part = open(setup, &tally)?;
        let fan_in = match part {
            Part::Receiver(mut serve) => {
                setup.meet()?;
                serve(&tally)?;
                FanIn::Leader { serve, tally }
            }
            Part::Senders(makers) => {
                let gate = Gate::default();
                let threads = makers.into_iter().enumerate();
                let threads = threads.map(|(sender, maker)| {
                    let (gate, stop) = (gate.clone(), stop.clone());
                    thread::spawn(move || keep_sending(sender as u64, maker, &gate, &stop))
                });
                let follower = FanIn::Follower { threads: threads.collect(), gate: gate.clone() };
                wait(&gate, |turnstile| turnstile.made < SENDERS)?;
                setup.meet()?;
                follower
            }
        };
        Ok(Box::new(fan_in))
    }
}

impl Exchange for FanIn {
    /// The count is not looked at: a slice is a window.
    fn lead(&mut self, _count: u64) -> Outcome<()> {
        let FanIn::Leader { serve, tally } = self else {
            return Err("the senders do not lead".into());
        };
        tally.begin();
        serve(tally)?;
        finding::put(tally.finish()?);
        Ok(())
    }

    fn follow(&mut self, _count: u64) -> Outcome<()> {
        let FanIn::Follower { gate, .. } = self else {
            return Err("the receiver does not follow".into());
        };
        let (turnstile, turned) = &**gate;
        {
            let mut turnstile = turnstile.lock().unwrap_or_else(PoisonError::into_inner);
            turnstile.round += 1;
            turnstile.busy = SENDERS;
            turned.notify_all();
        }
        wait(gate, |turnstile| turnstile.busy > 0)
    }
}

/// Waits for the senders, or for one of them to fail.
fn wait(gate: &Gate, unfinished: impl Fn(&Turnstile) -> bool) -> Outcome<()> {
    let (turnstile, turned) = &**gate;
    let mut turnstile = turnstile.lock().unwrap_or_else(PoisonError::into_inner);
    while unfinished(&turnstile) && turnstile.failed.is_none() {
        turnstile = turned.wait(turnstile).unwrap_or_else(PoisonError::into_inner);
    }
    match turnstile.failed.take() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

impl Drop for FanIn {
    fn drop(&mut self) {
        let FanIn::Follower { gate, threads } = self else { return };
        let (turnstile, turned) = &**gate;
        turnstile.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        turned.notify_all();
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn keep_sending(sender: u64, maker: Maker, gate: &Gate, stop: &Mapping) {
    let (turnstile, turned) = &**gate;
    let fail = |error: String| {
        turnstile.lock().unwrap_or_else(PoisonError::into_inner).failed = Some(error);
        turned.notify_all();
    };
    let mut send = match maker() {
        Ok(send) => send,
        Err(error) => return fail(error.to_string()),
    };
    turnstile.lock().unwrap_or_else(PoisonError::into_inner).made += 1;
    turned.notify_all();
    let (mut round, mut number) = (0, 0);
    loop {
        {
            let mut turnstile = turnstile.lock().unwrap_or_else(PoisonError::into_inner);
            while turnstile.round == round && !turnstile.over {
                turnstile = turned.wait(turnstile).unwrap_or_else(PoisonError::into_inner);
            }
            if turnstile.over {
                return;
            }
            round = turnstile.round;
        }
        loop {
            let last = stop.watch(0).load() >= round;
            let mut message = [0; BYTES];
            message[..8].copy_from_slice(&sender.to_ne_bytes());
            let mark = if last { number | LAST } else { number };
            message[8..16].copy_from_slice(&mark.to_ne_bytes());
            payload::fill(&mut message[16..], payload::seed(number, sender));
            if let Err(error) = send(&message) {
                return fail(error.to_string());
            }
            number += 1;
            if last {
                break;
            }
        }
        let mut turnstile = turnstile.lock().unwrap_or_else(PoisonError::into_inner);
        turnstile.busy -= 1;
        turned.notify_all();
    }
}
