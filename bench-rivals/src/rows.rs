//! Every system with every work that it does. Both processes have the same table.

use std::sync::LazyLock;

use crate::Outcome;
use crate::exchange::{Exchange, Setup};
use crate::runner::Pace;
use crate::systems::{self, System};
use crate::work::{self, Work};
use slipring_bench::rows::Rows;

pub struct Row {
    pub system: &'static dyn System,
    pub work: Work,
    pub pace: Pace,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let all = systems::ALL.iter().flat_map(|system| work::ALL.map(|work| (*system, work)));
    let done = all.filter(|(system, work)| work.sizes().iter().any(|len| system.does(*work, *len)));
    done.map(|(system, work)| Row { system, work, pace: work.pace() }).collect()
});

pub fn all() -> &'static [Row] {
    &ROWS
}

pub fn row(index: usize) -> &'static Row {
    &ROWS[index]
}

/// The rows of this program.
pub struct Rivals;

impl Rows for Rivals {
    fn program(&self) -> &'static str {
        "bench-rivals"
    }

    fn pace(&self, index: usize) -> Pace {
        row(index).pace
    }

    fn variants(&self, index: usize, bytes: usize) -> Vec<u64> {
        row(index).system.variants(row(index).work, bytes)
    }

    fn open(&self, index: usize, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let Row { system, work, .. } = row(index);
        let what = format!("{}, {} of {} B", system.name(), work.name(), setup.bytes);
        let inner = explained(&what, system.open(*work, setup))?;
        Ok(Box::new(Named { what, inner }))
    }
}

/// Says who failed. A slice goes through it, a message does not.
struct Named {
    what: String,
    inner: Box<dyn Exchange>,
}

impl Exchange for Named {
    fn tune(&mut self, variant: u64) {
        self.inner.tune(variant);
    }

    fn lead(&mut self, count: u64) -> Outcome<()> {
        explained(&self.what, self.inner.lead(count))
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        explained(&self.what, self.inner.follow(count))
    }

    fn lead_stamped(&mut self, count: u64, stamps: &mut Vec<u64>) -> Outcome<()> {
        explained(&self.what, self.inner.lead_stamped(count, stamps))
    }
}

fn explained<T>(what: &str, outcome: Outcome<T>) -> Outcome<T> {
    outcome.map_err(|error| format!("{what}: {error}").into())
}

/// The row of the writable line, by whose bounce the harness sees where the CPUs are.
pub fn line() -> Option<usize> {
    all().iter().position(|row| row.system.name() == "line")
}
