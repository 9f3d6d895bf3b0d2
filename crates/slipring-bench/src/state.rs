//! Where the two CPUs are, by a short bounce of the writable line.

use crate::Outcome;
use crate::peer::{Peer, Slice, Slot};

/// Where the CPUs are. `Close` is reported as near, but never mixed with it: there the bounce takes
/// half as long, sealed pages cost nothing, and streams run several times as fast (two threads of one
/// core, by all appearances).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Close,
    Near,
    Far,
}

pub const STATES: usize = 3;

/// Round trips of the writable line: close takes 53 to 56 ns, near 90 to 115, far 330 to 500.
const CLOSE_BELOW: f64 = 75.0;
const NEAR_BELOW: f64 = 200.0;

/// How often the machine was seen in which state.
#[derive(Default)]
pub struct Weather {
    pub brackets: [u64; STATES],
    pub flips: u64,
    pub pairs: u64,
    pub dropped: u64,
}

/// The line that is bounced between slices, and what it has said.
pub struct Bracket {
    line: Slot,
    last: Option<State>,
    pub lines: [Vec<f64>; STATES],
    pub weather: Weather,
}

impl Bracket {
    /// Takes the row of the writable line.
    pub fn open(peer: &mut Peer, line: usize) -> Outcome<Bracket> {
        let line = peer.open(line, 8)?;
        Ok(Bracket { line, last: None, lines: Default::default(), weather: Weather::default() })
    }

    /// Where the CPUs are now. The least of four short batches, so that an interrupt in one of them
    /// is not taken for a move.
    pub fn take(&mut self, peer: &mut Peer) -> Outcome<State> {
        let slice = Slice { variant: 0, warm: 16, count: 250, asleep: false };
        let mut least = f64::INFINITY;
        for _ in 0..4 {
            let elapsed = peer.run(self.line, slice)?;
            least = least.min(elapsed.as_nanos() as f64 / slice.count as f64);
        }
        let state = match least {
            least if least < CLOSE_BELOW => State::Close,
            least if least < NEAR_BELOW => State::Near,
            _ => State::Far,
        };
        self.lines[state as usize].push(least);
        self.weather.brackets[state as usize] += 1;
        self.weather.flips += u64::from(self.last.is_some_and(|last| last != state));
        self.last = Some(state);
        Ok(state)
    }

    pub fn last(&self) -> Option<State> {
        self.last
    }
}
