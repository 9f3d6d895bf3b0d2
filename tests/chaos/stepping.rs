//! Deaths of a victim at each instruction of an operation, and the process that stays.
//!
//! A file with operations has a [`Survivor`] and the victims' bodies. [`sweep`] starts the survivor as a process of its own,
//! and [`try_all`] lets it outlive one victim for each place of each operation.

use std::fmt::Debug;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::support::census::Census;
use crate::support::other;
use crate::support::steps::{self, Place, Walk, is_asleep};
use crate::support::{sample, trace};

/// The longest time to the notice of a death on a busy machine. A survivor that is not woken takes much longer.
pub const SEEN: Duration = Duration::from_secs(5);

/// When the victim is killed.
#[derive(Debug, Clone)]
pub enum Plan {
    /// In front of this instruction.
    Before(Place),
    WhenAsleep,
    /// At the operation's end; all of its instructions are noted.
    AtTheEnd,
}

/// How it went.
#[derive(Debug)]
pub enum Death {
    /// There, or not.
    Killed(bool),
    Walked(Walk),
}

/// It, and when the victim was gone.
pub type Run<'a> = ScopedJoinHandle<'a, Option<(Death, Instant)>>;

/// Runs a victim as the plan says. `thread`: the operation is that of the victim's thread with this name.
pub fn run(
    (test, argument): (&str, &str),
    plan: &Plan,
    thread: Option<&str>,
    begun: impl FnOnce(libc::pid_t),
) -> Option<(Death, Instant)> {
    let death = match plan {
        Plan::Before(place) => steps::kill(test, argument, thread, place, begun).map(Death::Killed),
        _ => steps::walk(test, argument, thread, begun).map(Death::Walked),
    };
    death.map(|death| (death, Instant::now()))
}

/// In the victim: an operation, between the announcements of its begin and its end.
pub fn step<T>(operation: impl FnOnce() -> T) -> ! {
    steps::begin();
    let _result = operation();
    steps::end()
}

/// Waits until a thread of the victim sleeps. False: the victim has died before.
pub fn falls_asleep(run: &Run<'_>, thread: libc::pid_t) -> bool {
    while !run.is_finished() {
        if is_asleep(thread) {
            return true;
        }
        thread::park_timeout(Duration::from_micros(50));
    }
    false
}

/// Kills the process of a thread.
pub fn kill(thread: libc::pid_t) {
    let thread = rustix::process::Pid::from_raw(thread).unwrap();
    rustix::process::kill_process(thread, rustix::process::Signal::KILL).unwrap();
}

/// The process that stays.
pub trait Survivor {
    type Operation: Copy + Debug;

    /// One life and death of a victim. `None`: it cannot be watched here.
    fn once(&mut self, operation: Self::Operation, plan: &Plan) -> Option<Death>;

    /// Everything is as it was before the victim came.
    fn settle(&mut self);

    /// Returns how late a death was seen at most, after the last call.
    fn latest(&mut self) -> Duration;

    /// Returns whether the victim sleeps in the operation.
    fn sleeps(operation: Self::Operation) -> bool;

    /// Returns how many places the sample tries. 0: it leaves the operation out.
    fn places(operation: Self::Operation) -> usize;
}

/// In the survivor: victims, each killed one place later.
pub fn try_all<S: Survivor>(survivor: &mut S, operations: &[S::Operation]) {
    let which = std::env::var("SLIPRING_STEPS").ok();
    let meant = |one: &&S::Operation| match which.as_deref() {
        Some(which) => which == format!("{one:?}"),
        None => sample::is_whole() || S::places(**one) > 0,
    };
    let asked = std::env::var("SLIPRING_PLACES").ok().map(|count| count.parse().unwrap());
    // Whatever the links of the innocent need is there.
    survivor.settle();
    let before = Census::take();
    for operation in operations.iter().filter(meant) {
        let walked = survivor.once(*operation, &Plan::AtTheEnd);
        let Some(Death::Walked(walk)) = walked else { return };
        survivor.settle();
        let count = walk.count();
        let (mut tried, mut killed) = (0, 0);
        let most = if sample::is_whole() { count } else { S::places(*operation).max(1) };
        for at in sample::spread(count, asked.unwrap_or(most)) {
            tried += 1;
            eprintln!("{operation:?}: instruction {at} of {count}");
            let death = survivor.once(*operation, &Plan::Before(walk.place(at))).unwrap();
            killed += usize::from(matches!(death, Death::Killed(true)));
            survivor.settle();
            before.comes_back_but_for_a_spare();
        }
        if S::sleeps(*operation) {
            eprintln!("{operation:?}: asleep");
            survivor.once(*operation, &Plan::WhenAsleep).unwrap();
            survivor.settle();
            before.comes_back_but_for_a_spare();
        }
        let latest = survivor.latest();
        println!(
            "@@{operation:?}: {count} instructions, {tried} tried, {killed} victims killed within, 0 wedges, \
             seen after {latest:.1?} at most"
        );
        // The others took another path than the one that was walked.
        assert!(killed > tried / 4);
    }
}

/// Runs the survivor as a process of its own, for its census. In a victim of `test`, runs its body with the number of its
/// operation and the rest of its argument.
pub fn sweep(test: &str, survive: impl FnOnce(), victim: impl FnOnce(usize, &str)) {
    other::run_here(test, |argument| match argument.split_once(' ') {
        None => survive(),
        Some((number, name)) => {
            trace::watch_me();
            victim(number.parse().unwrap(), name);
        }
    });
    let survivor = other::command(test, "survivor").env("RUST_BACKTRACE", "0").output().unwrap();
    let cried = String::from_utf8_lossy(&survivor.stderr);
    // The last places are enough.
    let lines: Vec<_> = cried.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n");
    assert!(survivor.status.success(), "{last}");
    let said = String::from_utf8_lossy(&survivor.stdout);
    said.lines().filter_map(|line| line.split_once("@@")).for_each(|(_, line)| println!("{line}"));
}
