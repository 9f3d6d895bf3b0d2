//! Busy loops beside a measurement: processes that compute without a pause and count their iterations.
//!
//! Each loop may run on both CPUs of the measurement and counts in a cache line of its own. The counts tell how much the
//! measured processes slow the loops: their iterations a second during a slice, relative to those of the loops alone.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::memory::{Mapping, PAGE};
use crate::peer::{confine, end_with_parent};

/// Steps of an iteration, which takes about half a microsecond.
const STEPS: u64 = 1000;

/// How long the loops run before their rate alone is taken.
const START: Duration = Duration::from_millis(200);
/// Stretches of time in which that rate is taken. The best of them counts: something else may run in the others, and the
/// kernel may leave two loops on one CPU for a while.
const STRETCHES: usize = 10;
const STRETCH: Duration = Duration::from_millis(100);

/// A cache line, the size of a loop's count.
const LINE: usize = 64;

/// The busy loops of a run. Dropping kills them.
pub struct Loops {
    children: Vec<Child>,
    counts: Mapping,
    /// Iterations a second of all loops, beside nothing.
    alone: f64,
}

/// The iterations of all loops up to a moment.
#[derive(Clone, Copy)]
pub struct Reading {
    iterations: u64,
    at: Instant,
}

/// The iterations of all loops in some stretches of time.
#[derive(Clone, Copy, Default)]
pub struct Share {
    iterations: u64,
    seconds: f64,
}

impl Loops {
    /// Starts `count` loops on `cpus` and takes their rate alone.
    pub fn start(count: usize, cpus: (usize, usize)) -> Outcome<Loops> {
        if count > PAGE / LINE {
            return Err(format!("--busy takes at most {}, not {count}", PAGE / LINE).into());
        }
        let (counts, memory) = Mapping::create(PAGE, false)?;
        let mut loops = Loops { children: Vec::new(), counts, alone: f64::NAN };
        for number in 0..count {
            let child = Command::new(std::env::current_exe()?)
                .arg(format!("--follow={}", std::process::id()))
                .arg(format!("--cpus={},{}", cpus.0, cpus.1))
                .arg(format!("--loop={number}"))
                .stdin(Stdio::from(memory.try_clone()?))
                .spawn()?;
            loops.children.push(child);
        }
        thread::sleep(START);
        let rate = |_| {
            let before = loops.read();
            thread::sleep(STRETCH);
            let mut share = Share::default();
            share.add(before, loops.read());
            share.rate()
        };
        loops.alone = (0..STRETCHES).map(rate).fold(0.0, f64::max);
        if loops.alone > 0.0 { Ok(loops) } else { Err("the busy loops do not run".into()) }
    }

    /// Returns the number of loops.
    pub fn count(&self) -> usize {
        self.children.len()
    }

    /// Returns the iterations a second of all loops, beside nothing.
    pub fn alone(&self) -> f64 {
        self.alone
    }

    /// Returns the iterations of all loops up to now.
    pub fn read(&self) -> Reading {
        let count = |number| self.counts.watch(number * LINE).load();
        Reading { iterations: (0..self.count()).map(count).sum(), at: Instant::now() }
    }

    /// Returns the part of their rate alone that the loops had between two moments.
    pub fn part_between(&self, before: Reading, after: Reading) -> f64 {
        let mut share = Share::default();
        share.add(before, after);
        self.part(share)
    }

    /// Returns the part of their rate alone that the loops had.
    pub fn part(&self, share: Share) -> f64 {
        share.rate() / self.alone
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Fails only if the child has been reaped already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Share {
    /// Adds the iterations between two moments.
    pub fn add(&mut self, before: Reading, after: Reading) {
        self.iterations += after.iterations - before.iterations;
        self.seconds += (after.at - before.at).as_secs_f64();
    }

    fn rate(self) -> f64 {
        self.iterations as f64 / self.seconds
    }
}

/// Runs a loop. The standard input of its process is the memory of the counts.
pub fn run(parent: u32, number: usize, cpus: (usize, usize)) -> Outcome<()> {
    end_with_parent(parent)?;
    confine(cpus)?;
    let memory = std::io::stdin().as_fd().try_clone_to_owned()?;
    let counts = Mapping::attach(&memory, PAGE, true)?;
    let word = counts.word(number * LINE);
    for iteration in 1.. {
        for step in 0..STEPS {
            black_box(step);
        }
        // Relaxed: the count publishes nothing else.
        word.store(iteration, Ordering::Relaxed);
    }
    Ok(())
}
