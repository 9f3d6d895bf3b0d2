//! Pairs of processes that run at once, not pinned, each doing round trips: what happens on a machine that has fewer CPUs
//! than processes.
//!
//! ```text
//! a round:  futex | eventfd | socket | slipring | slipring-never     each for the same time, in fresh processes
//! ```
//!
//! All processes may run on both CPUs of the measurement. A side answers at once. A pair's mean is its time divided by its
//! round trips. The mean of a round is the time of all pairs divided by the round trips of all pairs. The figures are
//! medians of the rounds, and a ratio is a ratio of medians. A pair starves in a round if its mean is more than
//! [`STARVED`] times the median pair's.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use slipring::options::Spin;
use slipring::{Address, Options};

use super::{report, subjects};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, receive_fd, send_fd};
use crate::floors::{eventfd, futex, socket};
use crate::loops::Loops;
use crate::peer::{confine, end_with_parent};
use crate::results::{PairFigure, Results};
use crate::runner::median;
use crate::units::time;

/// Bytes of a message.
const BYTES: usize = 64;

/// Rounds of a run. Each measures every carrier once.
const ROUNDS: u32 = 5;

/// The seconds of a carrier in all rounds together, without `--seconds`.
const SECONDS: f64 = 5.0;

/// Round trips before the time starts.
const WARM: u64 = 100;

/// A starved pair's mean is more than this many times the median pair's.
const STARVED: f64 = 3.0;

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A way to carry the messages.
struct Carrier {
    name: &'static str,
    open: fn(&Setup) -> Outcome<Box<dyn Exchange>>,
}

/// All carriers. The first is the floor.
const CARRIERS: [Carrier; 5] = [
    Carrier { name: "futex", open: futex::Futex::prompt },
    Carrier { name: "eventfd", open: eventfd::Eventfd::open },
    Carrier { name: "socket", open: socket::Socket::prompt },
    Carrier { name: "slipring", open: |setup| subjects::direct(setup, Options::new()) },
    Carrier {
        name: "slipring-never",
        open: |setup| subjects::direct(setup, Options::new().spin(Spin::Never)),
    },
];

/// The figures of a carrier: a value each round, in nanoseconds.
#[derive(Default)]
struct Figures {
    mean: Vec<f64>,
    fastest: Vec<f64>,
    slowest: Vec<f64>,
    longest: Vec<f64>,
    /// Round trips a second of all pairs.
    rate: Vec<f64>,
    starved: usize,
    loops: Vec<f64>,
}

/// The result of a pair: its round trips, their nanoseconds, and the longest of them.
#[derive(Clone, Copy)]
struct Done {
    trips: u64,
    time: u64,
    longest: u64,
}

/// Measures the carriers that `--modes` names, and the floor.
pub fn measure(options: &super::Options) -> Outcome<()> {
    if let Some(mode) = options.modes.iter().flatten().find(|mode| find(mode).is_none()) {
        let names = CARRIERS.map(|carrier| carrier.name).join(", ");
        return Err(format!("no mode {mode:?} with --pairs, there are: {names}").into());
    }
    let wanted = |name: &str| match &options.modes {
        Some(modes) => name == CARRIERS[0].name || modes.iter().any(|mode| mode == name),
        None => true,
    };
    let carriers: Vec<&Carrier> = CARRIERS.iter().filter(|carrier| wanted(carrier.name)).collect();
    let seconds = options.seconds.unwrap_or(SECONDS) / f64::from(ROUNDS);
    let stretch = Duration::try_from_secs_f64(seconds)?;
    let loops =
        if options.busy > 0 { Some(Loops::start(options.busy, options.cpus)?) } else { None };
    let facts = report::facts(options.cpus, loops.as_ref());
    let mut all: Vec<Figures> = carriers.iter().map(|_| Figures::default()).collect();
    for _ in 0..ROUNDS {
        for (carrier, figures) in carriers.iter().zip(&mut all) {
            let pairs: Outcome<Vec<Pair>> =
                (0..options.pairs).map(|_| Pair::start(carrier, options.cpus)).collect();
            let mut pairs = pairs?;
            for pair in &pairs {
                pair.wait_until_ready()?;
            }
            let before = loops.as_ref().map(Loops::read);
            for pair in &pairs {
                pair.go(stretch)?;
            }
            let done: Outcome<Vec<Done>> = pairs.iter().map(Pair::done).collect();
            let after = loops.as_ref().map(Loops::read);
            figures.add(&done?);
            if let (Some(loops), Some((before, after))) = (&loops, before.zip(after)) {
                figures.loops.push(loops.part_between(before, after));
            }
            pairs.clear();
        }
    }
    let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
    let floor = middle(&all[0].mean);
    let figures: Vec<PairFigure> = carriers
        .iter()
        .zip(&all)
        .map(|(carrier, figures)| PairFigure {
            pairs: options.pairs,
            mode: carrier.name.into(),
            bytes: BYTES,
            busy: options.busy,
            mean_ns: middle(&figures.mean),
            fastest_ns: middle(&figures.fastest),
            slowest_ns: middle(&figures.slowest),
            longest_ns: middle(&figures.longest),
            trips_per_s: middle(&figures.rate),
            ratio: middle(&figures.mean) / floor,
            starved: figures.starved,
            rounds: figures.mean.len(),
            loops: median(&figures.loops),
        })
        .collect();
    print(options, &figures, loops.as_ref())?;
    match &options.csv {
        Some(path) => Results { facts, figures }.write(path),
        None => Ok(()),
    }
}

fn print(options: &super::Options, figures: &[PairFigure], loops: Option<&Loops>) -> Outcome<()> {
    let mut out = std::io::stdout();
    if options.json {
        for figure in figures {
            writeln!(out, "{}", json(figure))?;
        }
        return Ok(());
    }
    if let Some(loops) = loops {
        writeln!(out, "{}\n", report::loops(loops))?;
    }
    let (one, other) = options.cpus;
    writeln!(
        out,
        "{} pairs at once on CPUs {one} and {other}, round trips of {BYTES} B, medians of {ROUNDS} rounds\n\n{HEAD}",
        options.pairs
    )?;
    for figure in figures {
        writeln!(out, "{}", line(figure))?;
    }
    Ok(())
}

const HEAD: &str = "\
mode                   mean    fastest    slowest    longest  round trips/s  ratio   starved  loops";

fn line(figure: &PairFigure) -> String {
    let loops = figure.loops.map_or(String::new(), |part| format!("{:.0} %", 100.0 * part));
    format!(
        "{:<16} {:>10} {:>10} {:>10} {:>10} {:>14.0} {:>6.2} {:>9} {loops:>6}",
        figure.mode,
        time(figure.mean_ns),
        time(figure.fastest_ns),
        time(figure.slowest_ns),
        time(figure.longest_ns),
        figure.trips_per_s,
        figure.ratio,
        format!("{} of {}", figure.starved, figure.pairs * figure.rounds),
    )
}

fn json(figure: &PairFigure) -> String {
    let PairFigure { pairs, mode, bytes, mean_ns, fastest_ns, slowest_ns, longest_ns, .. } = figure;
    let PairFigure { trips_per_s, ratio, starved, rounds, loops, .. } = figure;
    let loops = loops.map_or(String::new(), |part| format!(r#","loops":{part:.3}"#));
    format!(
        r#"{{"pairs":{pairs},"mode":"{mode}","bytes":{bytes},"rtt_ns":{{"mean":{mean_ns:.1},"fastest":{fastest_ns:.1},"slowest":{slowest_ns:.1},"longest":{longest_ns:.0}}},"trips_per_s":{trips_per_s:.0},"ratio":{ratio:.3},"starved":{starved},"rounds":{rounds}{loops}}}"#,
    )
}

fn find(name: &str) -> Option<&'static Carrier> {
    CARRIERS.iter().find(|carrier| carrier.name == name)
}

impl Figures {
    /// Adds what all pairs have done in a round.
    fn add(&mut self, done: &[Done]) {
        let mean = |done: &Done| done.time as f64 / done.trips as f64;
        let mut means: Vec<f64> = done.iter().map(mean).collect();
        means.sort_unstable_by(f64::total_cmp);
        let (Some(first), Some(last), Some(middle)) = (means.first(), means.last(), median(&means))
        else {
            return;
        };
        let time: u64 = done.iter().map(|done| done.time).sum();
        let trips: u64 = done.iter().map(|done| done.trips).sum();
        let longest = done.iter().map(|done| done.longest).max().unwrap_or(0);
        self.mean.push(time as f64 / trips as f64);
        self.fastest.push(*first);
        self.slowest.push(*last);
        self.longest.push(longest as f64);
        self.rate.push(done.iter().map(|done| 1e9 / mean(done)).sum());
        self.starved += means.iter().filter(|mean| **mean > STARVED * middle).count();
    }
}

/// Two processes. Dropping kills them.
struct Pair {
    /// The follower comes first and is killed first, so that it does not see its leader die.
    sides: [Side; 2],
}

/// A process, and the socket over which it gets its commands.
struct Side {
    child: Child,
    socket: OwnedFd,
}

impl Pair {
    fn start(carrier: &Carrier, cpus: (usize, usize)) -> Outcome<Pair> {
        let (one, other) = socket_pair()?;
        let name = Address::fresh().to_string();
        let name = name.trim_start_matches('@');
        let follower = Side::start(carrier, cpus, Role::Follower, name, &one)?;
        let leader = Side::start(carrier, cpus, Role::Leader, name, &other)?;
        Ok(Pair { sides: [follower, leader] })
    }

    fn leader(&self) -> &OwnedFd {
        &self.sides[1].socket
    }

    fn wait_until_ready(&self) -> Outcome<()> {
        receive::<1>(self.leader()).map(drop)
    }

    fn go(&self, time: Duration) -> Outcome<()> {
        send(self.leader(), &[time.as_nanos() as u64])
    }

    fn done(&self) -> Outcome<Done> {
        let [trips, time, longest] = receive(self.leader())?;
        Ok(Done { trips, time, longest })
    }
}

impl Side {
    fn start(
        carrier: &Carrier,
        cpus: (usize, usize),
        role: Role,
        name: &str,
        between: &OwnedFd,
    ) -> Outcome<Side> {
        let (socket, theirs) = socket_pair()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        let child = Command::new(std::env::current_exe()?)
            .arg(format!("--follow={}", std::process::id()))
            .arg(format!("--cpus={},{}", cpus.0, cpus.1))
            .arg(format!("--pair={},{name}", carrier.name))
            .stdin(Stdio::from(theirs))
            .spawn()?;
        let side = Side { child, socket };
        send_fd(side.socket.as_fd(), u64::from(role == Role::Leader), between.as_fd())?;
        Ok(side)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Fails only if the child has been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket_pair() -> Outcome<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

fn send(socket: impl AsFd, words: &[u64]) -> Outcome<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive<const N: usize>(socket: impl AsFd) -> Outcome<[u64; N]> {
    let mut words = [[0; 8]; N];
    let room = words.as_flattened_mut();
    let (expected, (got, _)) =
        (room.len(), rustix::net::recv(socket, &mut *room, RecvFlags::empty())?);
    if got != expected {
        return Err("a process of a pair ended early".into());
    }
    Ok(words.map(u64::from_ne_bytes))
}

/// Runs one side of a pair. The argument is the carrier's name and a name for the pair's socket.
pub fn serve(parent: u32, argument: &str, cpus: (usize, usize)) -> Outcome<()> {
    end_with_parent(parent)?;
    confine(cpus)?;
    let (carrier, name) = argument.split_once(',').ok_or("--pair takes a carrier and a name")?;
    let carrier = find(carrier).ok_or("no such carrier")?;
    let control = std::io::stdin().as_fd().try_clone_to_owned()?;
    let (leads, socket) = receive_fd(control.as_fd())?;
    let role = if leads != 0 { Role::Leader } else { Role::Follower };
    let setup = Setup { role, bytes: BYTES, name, socket: socket.as_fd() };
    let mut exchange = (carrier.open)(&setup)?;
    if role == Role::Follower {
        // The loop ends when the parent kills this process.
        loop {
            exchange.follow(1)?;
        }
    }
    exchange.lead(WARM)?;
    send(&control, &[0])?;
    let [time] = receive(&control)?;
    let time = Duration::from_nanos(time);
    let (start, mut trips, mut longest) = (Instant::now(), 0, Duration::ZERO);
    let mut before = start;
    while before - start < time {
        exchange.lead(1)?;
        trips += 1;
        let now = Instant::now();
        longest = longest.max(now - before);
        before = now;
    }
    send(&control, &[trips, (before - start).as_nanos() as u64, longest.as_nanos() as u64])?;
    // The parent kills the follower first, which must not see the link close.
    receive::<1>(&control).map(drop)
}
