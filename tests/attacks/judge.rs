//! One attack on one server, and a number of them.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::honest::{Honest, visit};
use crate::siege::Siege;
use crate::subject::{Lack, Subject};
use crate::support::sample;

/// How long each rate is taken.
const SLICE: Duration = Duration::from_millis(150);

/// Slices in a turn.
const SLICES: usize = 3;

/// The turns of attacker and benign client: at least, and where the ratio is too low.
const TURNS: usize = 2;
const MOST_TURNS: usize = 6;

/// How many cells of a kind a sample has.
const SAMPLE: usize = 2;

/// An attack: a siege of `tests/hostile/siege.py`.
pub struct Attack {
    pub name: &'static str,
    /// What its server lacks.
    pub lack: Lack,
    /// The heap memory of the server that it may take while it goes on, in MiB.
    pub heap: u64,
}

impl Attack {
    pub const fn new(name: &'static str) -> Self {
        Self { name, lack: Lack::Nothing, heap: 256 }
    }

    pub const fn on(self, lack: Lack) -> Self {
        Self { lack, ..self }
    }

    pub const fn heap(self, heap: u64) -> Self {
        Self { heap, ..self }
    }
}

/// The honest client's round trips in each slice.
#[derive(Default)]
struct Rates(Vec<u64>);

impl Rates {
    fn take(&mut self, honest: &Honest) -> Result<(), String> {
        let before = honest.trips()?;
        let start = Instant::now();
        thread::sleep(SLICE);
        let trips = (honest.trips()? - before) as f64;
        self.0.push((trips / start.elapsed().as_secs_f64()) as u64);
        Ok(())
    }

    fn median(&self) -> u64 {
        let mut rates = self.0.clone();
        let middle = rates.len() / 2;
        *rates.select_nth_unstable(middle).1
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
    let (mut beside, mut beside_benign) = (Rates::default(), Rates::default());
    let (mut connected, mut heap) = (Duration::ZERO, 0);
    let mut turn = 0;
    let ratio = loop {
        let Some(siege) = Siege::begin(&subject.address, attack.name)? else { return Ok(()) };
        for _ in 0..SLICES {
            beside.take(&honest)?;
            connected = connected.max(visit(dial)?);
            heap = heap.max(subject.heap()?);
        }
        let share = siege.share();
        drop(siege);
        // What is left of the attack is not to be found in the benign client's turn.
        subject.comes_back(then)?;
        let benign = Honest::benign(dial, share)?;
        for _ in 0..SLICES {
            beside_benign.take(&honest)?;
            visit(dial)?;
        }
        benign.trips()?;
        turn += 1;
        let ratio = beside.median() as f64 / beside_benign.median().max(1) as f64;
        if turn >= MOST_TURNS || turn >= TURNS && ratio >= 0.5 {
            break ratio;
        }
    };
    let back = subject.comes_back(then)?;
    println!(
        "{kind:10} {:24} rate {:4.0} % ({:5}/s, {:5}/s beside benign), new {:6.1?}, longest {:6.1?}, heap {heap} MiB, back {back:.0?}",
        attack.name,
        ratio * 100.0,
        beside.median(),
        beside_benign.median(),
        connected,
        honest.longest(),
    );
    honest.trips()?;
    if ratio < 0.5 {
        return Err(format!(
            "the honest client keeps {:.0} % of its rate: {:?}/s, beside a benign client {:?}/s",
            ratio * 100.0,
            beside.0,
            beside_benign.0
        ));
    }
    if heap > then.heap + attack.heap {
        return Err(format!("takes {heap} MiB of the server's memory, {} before", then.heap));
    }
    Ok(())
}
