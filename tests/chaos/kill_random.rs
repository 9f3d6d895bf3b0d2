//! Peers that are killed and stopped at random while everything moves.
//!
//! ```text
//!   survivor (one process, one context)                victims (a process for each death)
//!   four seats, each a thread ◀──────────────────────▶ connect, or listen and accept
//!   streams both ways, by blocking calls or by callbacks, messages and tensors, loans held on both sides
//!   SIGSTOP, SIGCONT, SIGKILL ───────────────────────▶ at any moment, of the meeting too
//!   sees the end, and how late ◀────────────────────── dies
//! ```
//!
//! There are 256 deaths, or 10,000 with `SLIPRING_TESTS=whole`. `SLIPRING_SEED` repeats a run. With `SLIPRING_JUDGE=1`
//! times are judged.

use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use slipring::{Connection, Context, ErrorKind, Listener, Options, Reactor};

use crate::support::census::Census;
use crate::support::other::{self, Other};
use crate::support::stream::{Dice, mix};
use crate::support::traffic::{Drive, Tally, talk};
use crate::support::{HANG, Witness, callbacks, pair_of, sample, soon, unique_name, wait_until};

const SEATS: usize = 4;

/// Lives of each seat between two looks at what is left.
const LIVES: u64 = 8;

const QUOTA: usize = 16 << 20;

/// How long a look at the listener takes at most before the victim's state is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Where times are judged: how late a death may be seen, of 99 in 100, and how long anything may wait.
const SEEN: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// One at a time: they measure.
static ALONE: Mutex<()> = Mutex::new(());

fn deaths() -> u64 {
    if sample::is_whole() { 10_000 } else { 256 }
}

fn options() -> Options {
    // One peer holds a small part of the quota. A stopped peer is not refused.
    Options::new().pool_quota(QUOTA as u64).loan_slots(32).handshake_timeout(HANG)
}

/// The fate of a victim.
#[derive(Debug, Clone)]
struct Fate {
    victim_connects: bool,
    victim: Drive,
    survivor: Drive,
    seed: u64,
    /// Counted from its start, and not from the meeting.
    early: bool,
    after: Duration,
    /// How long it is stopped first, and how long it goes on then.
    stopped: Option<(Duration, Duration)>,
}

impl Fate {
    fn of(dice: &mut Dice) -> Self {
        let drive = |throw| if throw == 0 { Drive::Calls } else { Drive::Callbacks };
        let mut time = |micros| Duration::from_micros(dice.throw(micros));
        let (after, early_after, pause, on) =
            (time(20_000), time(10_000), time(20_000), time(8_000));
        let early = dice.throw(8) == 0;
        let on = if dice.throw(2) == 0 { Duration::ZERO } else { on };
        Self {
            victim_connects: dice.throw(2) == 0,
            victim: drive(dice.throw(2)),
            survivor: drive(dice.throw(2)),
            seed: dice.throw(u64::MAX),
            early,
            after: if early { early_after } else { after },
            stopped: (dice.throw(3) == 0).then_some((pause, on)),
        }
    }

    fn argument(&self, name: &str) -> String {
        let (role, drive) = (u8::from(self.victim_connects), self.victim as u8);
        format!("{role} {drive} {} {name}", self.seed)
    }

    /// Carries it out. Returns when the victim was killed.
    fn befall(&self, child: &mut Child, met: &mpsc::Receiver<()>) -> Instant {
        let pid = Pid::from_child(child);
        if !self.early {
            // Nobody meets who has failed.
            let _ = met.recv_timeout(HANG);
        }
        thread::sleep(self.after);
        if let Some((pause, on)) = self.stopped {
            kill_process(pid, Signal::STOP).unwrap();
            thread::sleep(pause);
            if !on.is_zero() {
                kill_process(pid, Signal::CONT).unwrap();
                thread::sleep(on);
            }
        }
        let at = Instant::now();
        child.kill().unwrap();
        at
    }
}

/// In the victim: talks until it is killed.
fn victim(argument: &str) {
    let fields: Vec<_> = argument.splitn(4, ' ').collect();
    let drive = if fields[1] == "0" { Drive::Calls } else { Drive::Callbacks };
    let (seed, name) = (fields[2].parse::<u64>().unwrap(), fields[3]);
    let context = Context::with_options(options()).unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let link = match fields[0] {
        "1" => context.connect_deadline(name, soon()).unwrap(),
        _ => context.listen(name).unwrap().accept_deadline(soon()).unwrap(),
    };
    let ends = talk(drive, (&context, &reactor), link, (seed + 1, seed), &Arc::new(Tally::fatal()));
    panic!("the survivor has ended: {ends:?}");
}

/// The process that stays.
struct Survivor {
    test: &'static str,
    context: Context,
    reactor: Reactor,
    tally: Arc<Tally>,
    leaks: AtomicU64,
    /// Round trips of the innocent.
    pings: AtomicU64,
    /// How late the deaths were seen, in each direction of each link.
    seen: Mutex<Vec<Duration>>,
}

impl Survivor {
    fn live(&self, fate: &Fate) {
        let name = unique_name();
        // Before the victim is there.
        let listener = fate.victim_connects.then(|| self.context.listen(&*name).unwrap());
        let mut command = other::command(self.test, &fate.argument(&name));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let (meets, met) = mpsc::channel();
        let dead = &AtomicBool::new(false);
        let (at, ends) = thread::scope(|scope| {
            let fated = scope.spawn(move || {
                let at = fate.befall(&mut child, &met);
                dead.store(true, Ordering::Relaxed);
                (at, child.wait().unwrap())
            });
            let link = self.meet(listener, &name, dead);
            let since = Instant::now();
            let _ = meets.send(());
            let ends = link.map(|link| {
                let ours = (&self.context, &self.reactor);
                talk(fate.survivor, ours, link, (fate.seed, fate.seed + 1), &self.tally)
            });
            let (at, status) = fated.join().unwrap();
            let killed = status.signal() == Some(Signal::KILL.as_raw());
            self.tally.check(killed, &format!("the victim: {status}, {fate:?}"));
            (at.max(since), ends)
        });
        for end in ends.into_iter().flatten() {
            let hung = matches!(end.kind, ErrorKind::TimedOut { .. });
            self.tally.count(&self.tally.hangs, !hung, "a death is not seen");
            self.tally
                .check(end.kind == ErrorKind::PeerDied, &format!("{:?} of {fate:?}", end.kind));
            self.seen.lock().unwrap().push(end.at.saturating_duration_since(at));
        }
    }

    /// The link to the victim. `None`: it died before there was one.
    fn meet(
        &self,
        listener: Option<Listener>,
        name: &str,
        dead: &AtomicBool,
    ) -> Option<Connection> {
        let mut listener = listener;
        loop {
            // A victim that is dead now neither connects nor listens.
            let late = dead.load(Ordering::Relaxed);
            let met = match &mut listener {
                Some(listener) => listener.accept_deadline(Instant::now() + LOOK),
                None => self.context.connect_deadline(name, soon()),
            };
            let error = match met {
                Ok(link) => return Some(link),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::TimedOut { .. } if listener.is_some() => {}
                // As in `connect_retry`.
                ErrorKind::NobodyListens { .. } => thread::sleep(Duration::from_millis(1)),
                ErrorKind::PeerClosed | ErrorKind::PeerDied => return None,
                _ => panic!("{error}"),
            }
            if late {
                return None;
            }
        }
    }

    /// Round trips over links of the same context that have nothing to do with any victim: one that a
    /// thread serves, one that the reactor does.
    fn ping(&self, over: &AtomicBool) {
        let (mut near, mut far) = pair_of(&self.context, &self.context);
        let (served, mut client) = pair_of(&self.context, &self.context);
        let served = self.reactor.adopt(served).unwrap();
        served.on_message(|link, message| link.write(message.to_vec()));
        thread::scope(|scope| {
            scope.spawn(move || {
                while let Ok(Some(message)) = far.recv() {
                    far.send(&message).unwrap();
                }
            });
            for number in 0u64.. {
                let message = mix(number).to_le_bytes();
                for link in [&mut near, &mut client] {
                    let back = self.tally.time(|| {
                        link.sender().send_deadline(&message, soon())?;
                        link.receiver().recv_deadline(soon())
                    });
                    self.tally.check(back.unwrap().unwrap() == message, "an innocent link");
                }
                self.pings.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            near.close().unwrap();
        });
    }

    /// Everything is as it was.
    fn settle(&self, innocent: &mut Witness, before: Census) {
        innocent.check();
        let count = |back: bool, what: &str| self.tally.count(&self.leaks, back, what);
        let whole = self.context.allocation().until(soon()).typed::<u8>([QUOTA]);
        count(whole.is_ok(), "memory is lost");
        drop(whole);
        self.context.trim();
        let back = || before.comes_back_but_for_a_spare();
        count(
            catch_unwind(AssertUnwindSafe(back)).is_ok(),
            "descriptors, mappings or threads are lost",
        );
    }

    /// Whether nothing went wrong so far.
    fn is_fine(&self) -> bool {
        let failures = [&self.tally.hangs, &self.tally.wrong, &self.leaks];
        failures.iter().all(|failures| failures.load(Ordering::Relaxed) == 0)
    }

    fn report(&self, kills: u64) {
        let Tally { hangs, wrong, things, longest_wait, .. } = &*self.tally;
        let number = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap();
        seen.sort();
        let (half, most, last) =
            (percentile(&seen, 50), percentile(&seen, 99), percentile(&seen, 100));
        let waited = Duration::from_nanos(number(longest_wait));
        println!(
            "@@{kills} kills, {} things received, {} hangs, {} wrong, {} leaks; longest wait {waited:.1?}; death \
             seen after p50 {half:.1?}, p99 {most:.1?}, at most {last:.1?} ({} ends)",
            number(things),
            number(hangs),
            number(wrong),
            number(&self.leaks),
            seen.len(),
        );
        assert_eq!((number(hangs), number(wrong), number(&self.leaks)), (0, 0, 0));
        assert!(seen.len() as u64 > kills, "most of them had met");
        if sample::is_judged() {
            assert!(most <= SEEN, "{most:?}");
        }
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// In the survivor: rounds of lives.
fn survive(test: &'static str, seed: u64) {
    let context = Context::with_options(options()).unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let mut innocent = Witness::new(&context);
    let longest = if sample::is_judged() { LONGEST_WAIT } else { HANG };
    let tally = Arc::new(Tally::new(longest));
    let [leaks, pings] = [const { AtomicU64::new(0) }; 2];
    let survivor = Survivor { test, context, reactor, tally, leaks, pings, seen: Mutex::default() };
    let over = AtomicBool::new(false);
    let kills = deaths().next_multiple_of(SEATS as u64 * LIVES);
    thread::scope(|scope| {
        scope.spawn(|| survivor.ping(&over));
        // Whatever the links of the innocent need is there.
        let pinged = || survivor.pings.load(Ordering::Relaxed) > 1;
        wait_until("a round trip", pinged);
        innocent.check();
        survivor.context.trim();
        let before = Census::take();
        for round in 0..kills / (SEATS as u64 * LIVES) {
            thread::scope(|scope| {
                for seat in 0..SEATS as u64 {
                    let survivor = &survivor;
                    scope.spawn(move || {
                        let mut dice = Dice(mix(seed ^ mix(round * SEATS as u64 + seat)));
                        for _ in 0..LIVES {
                            if survivor.is_fine() {
                                survivor.live(&Fate::of(&mut dice));
                            }
                        }
                    });
                }
            });
            survivor.settle(&mut innocent, before);
            if !survivor.is_fine() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    survivor.report(kills);
}

#[test]
fn peers_may_be_killed_and_stopped_at_any_moment() {
    let test = "peers_may_be_killed_and_stopped_at_any_moment";
    other::run_here(test, |argument| match argument.strip_prefix("survivor ") {
        Some(seed) => survive(test, seed.parse().unwrap()),
        None => victim(argument),
    });
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = std::env::var("SLIPRING_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        mix(now.as_nanos() as u64)
    });
    println!("SLIPRING_SEED={seed}");
    // A process of its own, for its census.
    let mut survivor = other::command(test, &format!("survivor {seed}"));
    let survivor = survivor.env("RUST_BACKTRACE", "0").output().unwrap();
    let said = String::from_utf8_lossy(&survivor.stdout);
    said.lines().filter_map(|line| line.split_once("@@")).for_each(|(_, line)| println!("{line}"));
    let cried = String::from_utf8_lossy(&survivor.stderr);
    assert!(survivor.status.success(), "{cried}");
}

/// How long the stopped peers are stopped, and how long is measured before.
const STOP: Duration = Duration::from_secs(2);

/// From one round trip of a link to the next.
const PACE: Duration = Duration::from_millis(1);

/// A message of those that are sent ahead: more of them than a ring holds come while the peer stands.
fn ahead(number: u64) -> Vec<u8> {
    mix(number).to_le_bytes().repeat(50)
}

/// When each round trip of a link began and ended. One comes after the other, and every answer is the
/// message.
type Trips = Vec<(Instant, Instant)>;

/// A peer of one link, in a process of its own, that answers every message with it.
fn echo(name: &str) {
    let context = Context::new().unwrap();
    let mut link = context.connect_retry(name, soon()).unwrap();
    while let Some(message) = link.recv().unwrap() {
        link.send(&message).unwrap();
    }
}

/// Round trips by blocking calls.
fn call(mut link: Connection, over: &AtomicBool) -> Trips {
    let mut trips = Trips::new();
    for number in 0u64.. {
        let message = mix(number).to_le_bytes();
        let start = Instant::now();
        link.sender().send_deadline(&message, soon()).unwrap();
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), message);
        trips.push((start, Instant::now()));
        if over.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(PACE);
    }
    link.close().unwrap();
    trips
}

/// Round trips by callbacks of a reactor.
fn call_back(link: Connection, reactor: &Reactor, over: &AtomicBool) -> Trips {
    let link = reactor.adopt(link).unwrap();
    let (say, said) = callbacks::diary();
    link.on_message(move |_, message| say((message.to_vec(), Instant::now())));
    let mut trips = Trips::new();
    for number in 0u64.. {
        let message = mix(number).to_le_bytes();
        let start = Instant::now();
        link.write(message);
        let (back, end) = callbacks::hear(&said);
        assert_eq!(back, message);
        trips.push((start, end));
        if over.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(PACE);
    }
    let (closed, end) = callbacks::diary();
    link.on_closed(move |_, result| closed(result.is_ok()));
    link.close();
    assert!(callbacks::hear(&end));
    trips
}

/// Sends ahead by blocking calls while answers come. Returns the longest silence.
fn call_ahead(link: Connection, over: &AtomicBool) -> Duration {
    let (mut sender, mut receiver) = link.split();
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                sender.send_deadline(&ahead(sent), soon()).unwrap();
                sent += 1;
                thread::sleep(PACE);
            }
            sent
        });
        let (mut came, mut last, mut silence) = (0, Instant::now(), Duration::ZERO);
        while let Some(message) = receiver.recv_deadline(soon()).unwrap() {
            assert!(message == ahead(came), "message {came} is lost");
            came += 1;
            silence = silence.max(last.elapsed());
            last = Instant::now();
        }
        assert_eq!(came, sending.join().unwrap());
        silence
    })
}

/// As [`call_ahead`], by a reactor.
fn call_back_ahead(link: Connection, reactor: &Reactor, over: &AtomicBool) -> Duration {
    let link = reactor.adopt(link).unwrap();
    let (say, said) = callbacks::diary();
    link.on_message(move |_, message| say((message.to_vec(), Instant::now())));
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        link.write(ahead(sent));
        sent += 1;
        thread::sleep(PACE);
    }
    let answers: Vec<_> = (0..sent).map(|_| callbacks::hear(&said)).collect();
    for (number, (answer, _)) in answers.iter().enumerate() {
        assert!(*answer == ahead(number as u64), "message {number} is lost");
    }
    link.close();
    let silences = answers.windows(2).map(|two| two[1].1 - two[0].1);
    silences.max().unwrap()
}

/// The 99th percentile of the trips that began between two moments.
fn slowest(trips: &[Trips], from: Instant, to: Instant) -> Duration {
    let within = trips.iter().flatten().filter(|(start, _)| (from..to).contains(start));
    let mut times: Vec<_> = within.map(|(start, end)| *end - *start).collect();
    times.sort();
    assert!(times.len() > 10, "they go on: {}", times.len());
    percentile(&times, 99)
}

#[test]
fn a_stopped_peer_holds_up_nobody_else_and_loses_nothing() {
    let test = "a_stopped_peer_holds_up_nobody_else_and_loses_nothing";
    other::run_here(test, echo);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let context = Context::new().unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let name = unique_name();
    let mut listener = context.listen(&*name).unwrap();
    let mut peer = || {
        let process = Other::spawn(test, &name);
        (listener.accept_deadline(soon()).unwrap(), process)
    };
    let (links, mut processes): (Vec<_>, Vec<_>) = (0..6).map(|_| peer()).unzip();
    let [first, second, calling @ .., one, other] = <[Connection; 6]>::try_from(links).unwrap();
    let over = AtomicBool::new(false);
    let (calls, callbacks, silences, [begin, stop, go_on]) = thread::scope(|scope| {
        let (over, reactor) = (&over, &reactor);
        // These two will be stopped.
        let ahead = scope.spawn(|| call_ahead(first, over));
        let back_ahead = scope.spawn(|| call_back_ahead(second, reactor, over));
        let calls = calling.map(|link| scope.spawn(|| call(link, over)));
        let callbacks = [one, other].map(|link| scope.spawn(|| call_back(link, reactor, over)));
        let stopped = [0, 1].map(|at: usize| Pid::from_raw(processes[at].pid() as i32).unwrap());
        let tell = |signal| stopped.iter().for_each(|pid| kill_process(*pid, signal).unwrap());
        let begin = Instant::now();
        thread::sleep(STOP);
        let stop = Instant::now();
        tell(Signal::STOP);
        thread::sleep(STOP);
        let go_on = Instant::now();
        tell(Signal::CONT);
        thread::sleep(STOP / 4);
        over.store(true, Ordering::Relaxed);
        let calls = calls.map(|run| run.join().unwrap());
        let callbacks = callbacks.map(|run| run.join().unwrap());
        let silences = [ahead, back_ahead].map(|run| run.join().unwrap());
        (calls, callbacks, silences, [begin, stop, go_on])
    });
    processes.iter_mut().for_each(Other::succeeds);
    assert!(silences.iter().all(|silence| *silence > STOP / 2), "they were stopped: {silences:?}");
    for (who, trips) in [("blocking", calls), ("reactor", callbacks)] {
        let (before, during) = (slowest(&trips, begin, stop), slowest(&trips, stop, go_on));
        println!("{who}: round trip p99 {before:.1?}, while another peer is stopped {during:.1?}");
        if sample::is_judged() {
            assert!(during <= 2 * before, "{who}: {during:?}, before {before:?}");
        }
    }
}
