//! The rates of flows, from one look to the next.

use std::collections::HashMap;
use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::look::Scene;
use crate::quantity::Len;
use crate::top::flow::{End, Flow, Key, flows};

/// The order of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Most messages a second
    Messages,
    /// Most bytes a second
    Bytes,
    /// Most messages that wait
    Queue,
    /// By address
    Address,
}

impl Sort {
    /// Returns the next one, for a key that goes through all of them.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Messages => Self::Bytes,
            Self::Bytes => Self::Queue,
            Self::Queue => Self::Address,
            Self::Address => Self::Messages,
        }
    }
}

/// Two looks at the same machine.
pub(crate) struct Rates {
    before: HashMap<Key, Flow>,
    /// When that was, in nanoseconds of the monotonic clock.
    then: u64,
    flows: Vec<Flow>,
    now: u64,
}

/// The rates of all flows.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    /// Seconds between the two looks.
    seconds: f64,
    pub(crate) flows: Vec<Rate>,
}

/// The rates of a flow.
#[derive(Debug, Serialize)]
pub(crate) struct Rate {
    pub(crate) address: String,
    pub(crate) from: End,
    pub(crate) to: Option<End>,
    pub(crate) messages_per_second: f64,
    pub(crate) bytes_per_second: Option<f64>,
    pub(crate) wakes_per_second: f64,
    pub(crate) queue: Option<u64>,
    pub(crate) loans: Option<u64>,
    pub(crate) loan_bytes: u64,
    pub(crate) pool_used: Option<u64>,
    pub(crate) pool_quota: Option<u64>,
    pub(crate) missed: u64,
    pub(crate) state: String,
}

impl Rates {
    pub(crate) fn new(scene: Scene) -> Self {
        let (flows, now) = (flows(&scene), scene.now());
        Self { before: HashMap::new(), then: now, flows, now }
    }

    /// Takes the next look.
    pub(crate) fn take(&mut self, scene: Scene) {
        let flows = std::mem::replace(&mut self.flows, flows(&scene));
        self.before = flows.into_iter().map(|flow| (flow.key, flow)).collect();
        (self.then, self.now) = (self.now, scene.now());
    }

    /// Returns the rates of the flows whose address or command has a text.
    pub(crate) fn table(&self, sort: Sort, filter: &str) -> Table {
        let seconds = self.now.saturating_sub(self.then) as f64 * 1e-9;
        let has = |flow: &&Flow| {
            let ends = [Some(&flow.from), flow.to.as_ref()];
            flow.address.contains(filter)
                || ends.into_iter().flatten().any(|end| end.to_string().contains(filter))
        };
        let mut flows: Vec<Rate> =
            self.flows.iter().filter(has).map(|flow| self.rate(flow, seconds)).collect();
        flows.sort_by(|one, other| {
            let first = match sort {
                Sort::Messages => other.messages_per_second.total_cmp(&one.messages_per_second),
                Sort::Bytes => {
                    let bytes = |rate: &Rate| rate.bytes_per_second.unwrap_or(0.0);
                    bytes(other).total_cmp(&bytes(one))
                }
                Sort::Queue => other.queue.cmp(&one.queue),
                Sort::Address => std::cmp::Ordering::Equal,
            };
            first
                .then_with(|| one.address.cmp(&other.address))
                .then_with(|| one.from.pid.cmp(&other.from.pid))
        });
        Table { seconds, flows }
    }

    fn rate(&self, flow: &Flow, seconds: f64) -> Rate {
        let before = self.before.get(&flow.key);
        // A counter that goes back is another object's, or a lie.
        let per_second = |now: u64, then: Option<u64>| match then {
            Some(then) if seconds > 0.0 => now.saturating_sub(then) as f64 / seconds,
            _ => 0.0,
        };
        let bytes_before = before.and_then(|before| before.bytes);
        Rate {
            address: flow.address.clone(),
            from: flow.from.clone(),
            to: flow.to.clone(),
            messages_per_second: per_second(flow.messages, before.map(|before| before.messages)),
            bytes_per_second: flow.bytes.map(|bytes| per_second(bytes, bytes_before)),
            wakes_per_second: per_second(flow.wakes, before.map(|before| before.wakes)),
            queue: flow.queue,
            loans: flow.loans,
            loan_bytes: flow.loan_bytes,
            pool_used: flow.pool.map(|(used, _)| used),
            pool_quota: flow.pool.map(|(_, quota)| quota),
            missed: flow.missed,
            state: flow.state.clone(),
        }
    }
}

/// The heads of the columns.
pub(crate) const HEADS: [&str; 9] =
    ["ADDRESS", "FROM", "TO", "MSG/S", "BYTES/S", "QUEUE", "LOANS", "WAKES/S", "STATE"];

impl Rate {
    /// Returns the columns.
    pub(crate) fn columns(&self) -> [String; 9] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".into());
        [
            self.address.clone(),
            self.from.to_string(),
            self.to.as_ref().map_or_else(|| "(topic)".into(), ToString::to_string),
            short(self.messages_per_second),
            or_dash(self.bytes_per_second.map(|bytes| Len(bytes.round()).to_string())),
            or_dash(self.queue.map(|queue| queue.to_string())),
            or_dash(self.loans.map(|loans| loans.to_string())),
            short(self.wakes_per_second),
            self.state.clone(),
        ]
    }
}

/// Shows a rate in at most five characters.
fn short(rate: f64) -> String {
    match rate {
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate if rate < 9999.5 => format!("{rate:.0}"),
        rate if rate < 999_500.0 => format!("{:.0} k", rate / 1e3),
        rate => format!("{:.1} M", rate / 1e6),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |columns: [&str; 9]| {
            let [address, from, to, messages, bytes, queue, loans, wakes, state] = columns;
            let line = format!(
                "{address:<20} {from:<18} {to:<18} {messages:>7} {bytes:>9} {queue:>6} {loans:>5} {wakes:>7}  {state}"
            );
            line.trim_end().to_string()
        };
        f.write_str(&line(HEADS))?;
        for rate in &self.flows {
            let columns = rate.columns();
            write!(f, "\n{}", line(columns.each_ref().map(String::as_str)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_takes_few_characters() {
        let rates = [0.0, 9.9, 60.0, 9999.0, 10_000.0, 999_499.0, 12_345_678.0];
        assert_eq!(rates.map(short), ["0.0", "9.9", "60", "9999", "10 k", "999 k", "12.3 M"]);
    }
}
