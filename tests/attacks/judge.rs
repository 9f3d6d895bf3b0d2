//! One attack on one server, and a number of them.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::honest::{CONNECTED, Honest, visit};
use crate::load::Load;
use crate::siege::Siege;
use crate::subject::{Lack, Subject};
use crate::support::sample;

/// How long each rate is taken.
const SLICE: Duration = Duration::from_millis(150);

/// Slices in a turn.
const SLICES: usize = 3;

/// The turns of attacker and benign client: at least, and where the cell does not hold.
const TURNS: usize = 2;
const MOST_TURNS: usize = 6;

/// The turns that are made at most to have [`MOST_TURNS`] without much other load.
const PATIENT_TURNS: usize = 12;

/// The processors that other programs may use in a turn that is judged alone. With more of them a server that works for its
/// attacker waits for a processor behind these programs, and one that serves the benign client does not.
const OTHERS: f64 = 0.25;

/// The turns in which a new client may wait for longer than [`CONNECTED`]. After such a turn all [`MOST_TURNS`] are made.
const SLOW_TURNS: usize = 1;

/// How many cells of a kind a sample has.
const SAMPLE: usize = 2;

/// An attack: a siege of `tests/hostile/siege.py`.
pub struct Attack {
    pub name: &'static str,
    /// What its server lacks.
    pub lack: Lack,
    /// The heap memory of the server that it may take while it goes on, in MiB.
    pub heap: u64,
    /// The server copies long messages, a slice at a time. Its rate is judged in an optimised build: in another one a slice
    /// takes a millisecond.
    pub copies: bool,
}

impl Attack {
    pub const fn new(name: &'static str) -> Self {
        Self { name, lack: Lack::Nothing, heap: 256, copies: false }
    }

    pub const fn on(self, lack: Lack) -> Self {
        Self { lack, ..self }
    }

    pub const fn heap(self, heap: u64) -> Self {
        Self { heap, ..self }
    }
}

/// One turn of attacker and benign client.
#[derive(Debug, Default)]
struct Turn {
    /// The honest client's round trips a second, in slices.
    rates: Vec<u64>,
    benign_rates: Vec<u64>,
    /// How long new clients waited at most.
    connected: Duration,
    /// The processors that other programs used.
    others: f64,
}

/// Returns the honest client's round trips a second, in one slice.
fn rate(honest: &Honest) -> Result<u64, String> {
    let before = honest.trips()?;
    let start = Instant::now();
    thread::sleep(SLICE);
    let trips = (honest.trips()? - before) as f64;
    Ok((trips / start.elapsed().as_secs_f64()) as u64)
}

/// What a number of turns say.
#[derive(Debug)]
struct Verdict {
    turns: usize,
    rate: u64,
    benign_rate: u64,
    ratio: f64,
    /// The turns in which a new client waited for longer than [`CONNECTED`].
    slow: usize,
    connected: Duration,
    others: f64,
}

impl Verdict {
    fn of<'a>(turns: impl Iterator<Item = &'a Turn> + Clone) -> Self {
        let median = |rates: fn(&Turn) -> &[u64]| {
            let mut rates: Vec<u64> = turns.clone().flat_map(rates).copied().collect();
            rates.sort_unstable();
            rates.get(rates.len() / 2).copied().unwrap_or_default()
        };
        let (rate, benign_rate) = (median(|turn| &turn.rates), median(|turn| &turn.benign_rates));
        Self {
            turns: turns.clone().count(),
            rate,
            benign_rate,
            ratio: rate as f64 / benign_rate.max(1) as f64,
            slow: turns.clone().filter(|turn| turn.connected > CONNECTED).count(),
            connected: turns.clone().map(|turn| turn.connected).max().unwrap_or_default(),
            others: turns.map(|turn| turn.others).fold(0.0, f64::max),
        }
    }

    /// Returns the verdict of the turns without much other load, or of all where they are too few.
    fn reached(turns: &[Turn]) -> Self {
        let calm = Self::of(turns.iter().filter(|turn| turn.others <= OTHERS));
        if calm.turns >= TURNS { calm } else { Self::of(turns.iter()) }
    }

    /// Returns whether no further turn is needed, after so many of them.
    fn is_final(&self, made: usize) -> bool {
        let is_enough = self.is_calm() && self.turns >= MOST_TURNS;
        made >= PATIENT_TURNS || is_enough || made >= TURNS && self.holds() && self.slow == 0
    }

    /// Returns whether other programs used little of the processors.
    fn is_calm(&self) -> bool {
        self.others <= OTHERS
    }

    fn holds(&self) -> bool {
        self.ratio >= 0.5 && self.slow <= SLOW_TURNS
    }
}

/// Tries cells one after another, each with a server of its own, and reports all failures at the end.
pub fn try_cells<'a>(
    kind: &str,
    cells: impl Iterator<Item = &'a Attack>,
    start: impl Fn(&Attack) -> Subject,
) {
    // Rates are taken of one server at a time, though tests run at the same time.
    static ALONE: Mutex<()> = Mutex::new(());
    let only = std::env::var("SLIPRING_ATTACK").unwrap_or_default();
    let mut cells: Vec<&Attack> = cells.filter(|attack| attack.name.contains(&only)).collect();
    if !sample::is_whole() && only.is_empty() {
        let seed = std::env::var("SLIPRING_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
        println!("{kind}: SLIPRING_SEED={seed}");
        let mut state = seed ^ kind.bytes().fold(0, |hash, byte| hash * 31 + u64::from(byte));
        while cells.len() > SAMPLE {
            // splitmix64, https://prng.di.unimi.it/splitmix64.c
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            cells.swap_remove(((mixed ^ mixed >> 31) % cells.len() as u64) as usize);
        }
    }
    let mut failed = Vec::new();
    for attack in cells {
        let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Err(error) = withstand(kind, attack, start(attack)) {
            println!("{kind:10} {:24} FAILED: {error}", attack.name);
            failed.push(format!("{}: {error}", attack.name));
        }
    }
    assert!(failed.is_empty(), "{kind}:\n{}", failed.join("\n"));
}

/// One cell. An error says what the attack does to others.
fn withstand(kind: &str, attack: &Attack, subject: Subject) -> Result<(), String> {
    let dial = &*subject.dial;
    // What a server makes once, it makes now.
    for _ in 0..4 {
        visit(dial)?;
    }
    let honest = Honest::start(dial)?;
    drop(Honest::benign(dial, 1.0)?);
    thread::sleep(Duration::from_millis(50));
    let then = subject.held()?;
    let (mut turns, mut heap) = (Vec::new(), 0);
    let server = subject.process.pid();
    let verdict = loop {
        let mut turn = Turn::default();
        let Some(siege) = Siege::begin(&subject.address, attack.name)? else { return Ok(()) };
        let load = Load::now(server, Some(siege.group()));
        for _ in 0..SLICES {
            turn.rates.push(rate(&honest)?);
            turn.connected = turn.connected.max(visit(dial)?);
            heap = heap.max(subject.heap()?);
        }
        turn.others = load.of_others(&Load::now(server, Some(siege.group())));
        let share = siege.share();
        drop(siege);
        // What is left of the attack is not to be found in the benign client's turn.
        subject.comes_back(then)?;
        let benign = Honest::benign(dial, share)?;
        let load = Load::now(server, None);
        for _ in 0..SLICES {
            turn.benign_rates.push(rate(&honest)?);
            visit(dial)?;
        }
        turn.others = turn.others.max(load.of_others(&Load::now(server, None)));
        benign.trips()?;
        turns.push(turn);
        let verdict = Verdict::reached(&turns);
        if verdict.is_final(turns.len()) {
            break verdict;
        }
    };
    let back = subject.comes_back(then)?;
    println!(
        "{kind:10} {:24} rate {:4.0} % ({:5}/s, {:5}/s beside benign), new {:6.1?}, longest {:6.1?}, heap {heap} MiB, back {back:.0?}, turns {} of {}, others {:.2}",
        attack.name,
        verdict.ratio * 100.0,
        verdict.rate,
        verdict.benign_rate,
        verdict.connected,
        honest.longest(),
        verdict.turns,
        turns.len(),
        verdict.others,
    );
    honest.trips()?;
    if heap > then.heap + attack.heap {
        return Err(format!("takes {heap} MiB of the server's memory, {} before", then.heap));
    }
    if !verdict.holds() && !verdict.is_calm() && !sample::is_judged() {
        println!("{kind:10} {:24} not judged: other programs use the processors", attack.name);
        return Ok(());
    }
    if verdict.ratio < 0.5 && attack.copies && cfg!(debug_assertions) {
        println!("{kind:10} {:24} rate not judged: this build copies slowly", attack.name);
    } else if verdict.ratio < 0.5 {
        return Err(format!(
            "the honest client keeps {:.0} % of its rate: {turns:?}",
            verdict.ratio * 100.0
        ));
    }
    if verdict.slow > SLOW_TURNS {
        return Err(format!(
            "a new client waits for more than {CONNECTED:?} in {} turns: {turns:?}",
            verdict.slow
        ));
    }
    Ok(())
}
