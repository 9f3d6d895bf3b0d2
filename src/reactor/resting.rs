//! The links of a loop that wait until their [share](crate::link::share) of its time has grown.

use std::time::{Duration, Instant};

/// The links that rest, by their places in the link table.
#[derive(Default)]
pub(super) struct RestingSet {
    links: Vec<(Instant, usize)>,
}

impl RestingSet {
    /// Lets the link at `place` rest for `time`.
    pub(super) fn insert(&mut self, place: usize, time: Duration) {
        self.remove(place);
        self.links.push((Instant::now() + time, place));
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.links.retain(|(_, resting)| *resting != place);
    }

    /// Returns the time until the first rest ends.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let first = self.links.iter().map(|(until, _)| *until).min();
        first.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Takes the places of the links whose rest is over.
    pub(super) fn take_rested(&mut self) -> Vec<usize> {
        if self.links.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        self.links.extract_if(.., |(until, _)| *until <= now).map(|(_, place)| place).collect()
    }
}
