//! The loans of a pool, and the moment at which their memory can be reused. No driver: the caller supplies
//! tickets and events.
//!
//! ```text
//!   free ──take──▶ in use here ──lend──▶ on loan ──ticket back──▶ behind an event ──over──▶ free
//!                      │                    │                          ▲
//!                      │                    └── borrower's process died: nothing to wait for
//!                      └──────── the use here ends, with the event behind it ─┘
//! ```
//!
//! 1. A range is free when nothing in this process uses it, every ticket is back, and every event after a use
//!    is over, the writer's included.
//! 2. An event that a borrower records goes to another borrower only when its ticket is back and it is over.
//!    The event of a borrower that died is never reused: it may never be over. It is kept, because earlier
//!    borrowers may have it open.
//! 3. The event after which a range can be read is recorded once while the range is in use.

use std::collections::HashMap;

use crate::cuda::space::{ALIGNMENT, Space};
use crate::tensor::Fate;

/// The fewest ranges, loans and uses between two sweeps, while there is room.
const OFTEN: usize = 16;

/// The number of a range in use. It is never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Number(u64);

impl Number {
    pub(super) fn value(self) -> u64 {
        self.0
    }
}

/// The position of a range: the chunk, and the offset in it in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) chunk: usize,
    pub(super) offset: u64,
    /// In bytes, a multiple of [`ALIGNMENT`].
    pub(super) len: u64,
}

/// `T` is a ticket, `E` an event.
#[derive(Debug)]
pub(super) struct Ledger<T, E> {
    /// By the chunk's number. `None`: the chunk is freed.
    spaces: Vec<Option<Space>>,
    ranges: HashMap<Number, Entry<T, E>>,
    next: u64,
    /// Unused events.
    spare: Vec<E>,
    /// Events of dead borrowers, which may never be over. They are kept, because other processes may have them
    /// open.
    lost: Vec<E>,
    /// Ranges, loans and uses since the last sweep, and the number that were out then.
    since: (usize, usize),
}

/// The state of an event after a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Running,
    Over,
    /// It is over, and is dropped: an event of another GPU, which no stream of this one records.
    Spent,
    /// The process that recorded it is dead, and its work ended with it. The event may never be over.
    Lost,
}

#[derive(Debug)]
struct Entry<T, E> {
    range: Range,
    /// Handles in this process.
    uses: usize,
    /// The event after which the range can be read.
    ready: Option<E>,
    /// Each with the event that its borrower is to record before it gives the ticket back. Without one the ticket comes
    /// back after the last use is over.
    loans: Vec<(T, Option<E>)>,
    /// Events recorded after uses that have ended, each with the ticket of the borrower that was to record it,
    /// if any.
    behind: Vec<(Option<T>, E)>,
}

impl<T, E> Ledger<T, E> {
    pub(super) fn new() -> Self {
        let (spaces, ranges) = (Vec::new(), HashMap::new());
        Self { spaces, ranges, next: 0, spare: Vec::new(), lost: Vec::new(), since: (0, 0) }
    }

    /// Adds a chunk of `len` bytes. Returns its number.
    pub(super) fn add_chunk(&mut self, len: u64) -> usize {
        let space = Some(Space::new(len));
        match self.spaces.iter().position(Option::is_none) {
            Some(chunk) => {
                self.spaces[chunk] = space;
                chunk
            }
            None => {
                self.spaces.push(space);
                self.spaces.len() - 1
            }
        }
    }

    /// Removes the chunks without ranges in use for which `may` returns `true`.
    pub(super) fn drop_chunks(&mut self, mut may: impl FnMut(usize) -> bool) {
        for (chunk, space) in self.spaces.iter_mut().enumerate() {
            space.take_if(|space| space.is_idle() && may(chunk));
        }
    }

    /// Returns whether no range is in use.
    pub(super) fn is_idle(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Takes a range of `len` bytes for one use in this process. Returns `None` if no chunk has room.
    pub(super) fn take(&mut self, len: u64) -> Option<(Number, Range)> {
        let len = len.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let fits = self.spaces.iter().enumerate().filter_map(|(chunk, space)| {
            let fit = space.as_ref()?.fit(len)?;
            Some((fit, chunk))
        });
        let (_, chunk) = fits.min()?;
        let offset = self.spaces[chunk].as_mut()?.take(len)?;
        let range = Range { chunk, offset, len };
        let number = Number(self.next);
        self.next += 1;
        self.since.0 += 1;
        let (loans, behind) = (Vec::new(), Vec::new());
        self.ranges.insert(number, Entry { range, uses: 1, ready: None, loans, behind });
        Some((number, range))
    }

    /// Stores the event after which a range can be read.
    pub(super) fn set_ready(&mut self, number: Number, event: E) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.ready = Some(event);
        }
    }

    /// Returns the event after which a range can be read.
    pub(super) fn ready(&self, number: Number) -> Option<&E> {
        self.ranges.get(&number)?.ready.as_ref()
    }

    /// Lends a range. The ticket comes back after `done` is recorded, or after the last use is over if there is no event.
    pub(super) fn lend(&mut self, number: Number, ticket: T, done: Option<E>) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.loans.push((ticket, done));
            self.since.0 += 1;
        }
    }

    /// Ends a use in this process when `event` is over.
    pub(super) fn put_behind(&mut self, number: Number, event: E) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.behind.push((None, event));
            self.since.0 += 1;
        }
    }

    /// Keeps a range in use forever.
    pub(super) fn keep(&mut self, number: Number) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.uses += 1;
        }
    }

    /// Drops the last handle of this process.
    pub(super) fn end_use(&mut self, number: Number) {
        if let Some(entry) = self.ranges.get_mut(&number) {
            entry.uses -= 1;
        }
    }

    /// Returns the tickets that were out at the last [sweep](Self::sweep), or were handed out since.
    pub(super) fn tickets(&self) -> impl Iterator<Item = &T> {
        self.ranges.values().flat_map(|entry| &entry.loans).map(|(ticket, _)| ticket)
    }

    /// Returns an unused event.
    pub(super) fn spare(&mut self) -> Option<E> {
        self.spare.pop()
    }

    /// Puts back an event that the caller did not use.
    pub(super) fn put_spare(&mut self, event: E) {
        self.spare.push(event);
    }

    /// Returns whether enough ranges were taken since the last sweep that another one costs each of them
    /// little.
    pub(super) fn is_due(&self) -> bool {
        let (more, left) = self.since;
        more >= left.max(OFTEN)
    }

    /// Returns whether a sweep pays when no event is spare: a new event costs more than a sweep.
    pub(super) fn is_due_for_events(&self) -> bool {
        let (more, left) = self.since;
        self.spare.is_empty() && more > left / 2
    }

    /// Checks which tickets are back and which events are over.
    pub(super) fn sweep(
        &mut self,
        mut fate: impl FnMut(&mut T) -> Fate,
        look: impl Fn(Option<&T>, &E) -> Look,
    ) {
        let Self { spaces, ranges, spare, lost, .. } = self;
        ranges.retain(|_, entry| {
            let Entry { range, uses, ready, loans, behind } = entry;
            let back = loans.extract_if(.., |(ticket, _)| fate(ticket) == Fate::Back);
            behind.extend(back.filter_map(|(ticket, done)| Some((Some(ticket), done?))));
            let dead = loans.extract_if(.., |(ticket, _)| fate(ticket) == Fate::Dead);
            lost.extend(dead.filter_map(|(_, done)| done));
            if *uses == 0 && loans.is_empty() {
                // The writer may not be done yet.
                behind.extend(ready.take().map(|ready| (None, ready)));
            }
            let mut running = Vec::new();
            for (ticket, event) in behind.drain(..) {
                match look(ticket.as_ref(), &event) {
                    Look::Running => running.push((ticket, event)),
                    Look::Over => spare.push(event),
                    Look::Spent => {}
                    Look::Lost => lost.push(event),
                }
            }
            *behind = running;
            if *uses > 0 || !loans.is_empty() || !behind.is_empty() {
                return true;
            }
            if let Some(space) = &mut spaces[range.chunk] {
                space.put(range.offset, range.len);
            }
            false
        });
        let out = |entry: &Entry<T, E>| 1 + entry.loans.len() + entry.behind.len();
        self.since = (0, self.ranges.values().map(out).sum());
    }
}

#[cfg(test)]
mod tests;
