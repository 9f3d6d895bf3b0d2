//! The row of one object, and its lines of counters.

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use crate::error::Result;
#[cfg(feature = "metrics")]
use crate::shm::PeerMapping;
use crate::shm::{MappedRing, OwnRing, OwnWords};
#[cfg(feature = "metrics")]
use crate::status::census;
use crate::status::layout::{self, ADDRESS_MOST};
use crate::status::page::Page;
use crate::status::words::{Awaited, Kind, Role, State};
use crate::sync::Ordering;

/// Bytes of a line.
const LINE: u64 = 64;

/// Messages of a stream from one stored count to the next. With a count for each message, between the stores of the messages
/// themselves, a stream of 64 bytes took twice as long (`ping_pong --modes stream --sizes 64`, far).
const STRIDE: u64 = 16;

/// The facts of an object, which stay while it lives. See [`layout`] for each field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    /// A subscriber's policy and depth.
    pub(crate) policy: (u8, u32),
    pub(crate) peer: (Option<u32>, u32),
    pub(crate) own: u64,
    pub(crate) theirs: u64,
    pub(crate) context: u64,
    pub(crate) limit: u64,
    pub(crate) version: u16,
    /// The address as in `sun_path`.
    pub(crate) address: &'a [u8],
}

impl Facts<'_> {
    /// Returns those of an object of which no more is known.
    pub(crate) fn of(kind: Kind) -> Self {
        Self {
            kind,
            role: Role::None,
            policy: (0, 0),
            peer: (None, 0),
            own: 0,
            theirs: 0,
            context: 0,
            limit: 0,
            version: 0,
            address: &[],
        }
    }
}

/// The row of an object. The drop frees it.
#[derive(Debug)]
pub(crate) struct Row {
    page: Arc<Page>,
    index: u32,
    #[cfg(test)]
    number: u64,
}

impl Row {
    /// Returns the row of a new object.
    ///
    /// # Errors
    ///
    /// As those of a segment: this process has no page yet, and none can be made.
    pub(crate) fn open(facts: &Facts<'_>) -> Result<Arc<Self>> {
        let page = Page::get()?;
        let (index, number) = page.take();
        let row = Self {
            page,
            index,
            #[cfg(test)]
            number,
        };
        if !Page::is_spare(index) {
            #[cfg(feature = "metrics")]
            census::admit(
                facts.kind,
                facts.role,
                &facts.address[..facts.address.len().min(ADDRESS_MOST)],
            );
            row.fill(number, facts);
        }
        Ok(Arc::new(row))
    }

    fn fill(&self, number: u64, facts: &Facts<'_>) {
        let words = self.page.words();
        let start = Page::start(self.index);
        let store = |at: usize, value| words.store(start + at, value, Ordering::Relaxed);
        (layout::SINCE..layout::ROW).step_by(8).for_each(|at| store(at, 0));
        store(layout::SINCE, now(ClockId::Monotonic));
        let (policy, depth) = facts.policy;
        store(layout::ROLE, facts.role as u64 | u64::from(policy) << 8 | u64::from(depth) << 32);
        let (pid, uid) = facts.peer;
        store(layout::PEER, u64::from(pid.unwrap_or(0)) | u64::from(uid) << 32);
        store(layout::OWN, facts.own);
        store(layout::THEIRS, facts.theirs);
        store(layout::CONTEXT, facts.context);
        store(layout::LIMIT, facts.limit);
        store(layout::LINK_VERSION, facts.version.into());
        let address = &facts.address[..facts.address.len().min(ADDRESS_MOST)];
        store(layout::ADDRESS_LEN, address.len() as u64);
        for (at, bytes) in address.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            store(layout::ADDRESS + 8 * at, u64::from_ne_bytes(word));
        }
        let stamp = facts.kind as u64 | number << 8;
        words.store(start + layout::STAMP, stamp, Ordering::Release);
    }

    /// Returns the number in the stamp.
    #[cfg(test)]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Lets `metrics` read the word of the peer that tells its position in the ring of this side, of so many bytes, or in a
    /// topic.
    #[cfg(feature = "metrics")]
    pub(crate) fn follow(&self, peer: &PeerMapping, offset: usize, capacity: u64) {
        if !Page::is_spare(self.index) {
            census::follow(self.index, peer, offset, capacity);
        }
    }

    /// Returns the line at an offset in the row.
    pub(crate) fn line(self: &Arc<Self>, at: usize) -> Line {
        let words = self.page.words().ring(Page::start(self.index) + at, LINE);
        Line { words, row: self.clone() }
    }

    /// Returns the line of a half.
    pub(crate) fn half(self: &Arc<Self>, at: usize) -> Half {
        Half { line: self.line(at), awaited: None, began: None, stored: 0 }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        // In a forked child the page is not mapped.
        if self.page.generation().is_current() {
            if !Page::is_spare(self.index) {
                let stamp = Page::start(self.index) + layout::STAMP;
                let clear = || self.page.words().store(stamp, 0, Ordering::Relaxed);
                #[cfg(feature = "metrics")]
                census::end(&self.page, self.index, clear);
                #[cfg(not(feature = "metrics"))]
                clear();
            }
            self.page.give_back(self.index);
        }
    }
}

/// A line of a row. It keeps the row.
#[derive(Debug)]
pub(crate) struct Line {
    words: MappedRing,
    row: Arc<Row>,
}

impl Line {
    /// Stores a word, by its offset in the line. The caller has checked that it is no forked child.
    #[inline(always)]
    pub(crate) fn store(&self, at: usize, value: u64) {
        self.words.store(at as u64, value, Ordering::Relaxed);
    }

    /// Returns whether the calling process made the page.
    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        self.row.page.generation().is_current()
    }
}

/// The line of a sender or a receiver: the counts of what has passed it, and its state.
#[derive(Debug)]
pub(crate) struct Half {
    line: Line,
    /// The thing that it waits for, as far as the line says.
    awaited: Option<Awaited>,
    /// The thing that the last wait was for, and the count of messages when it began.
    began: Option<(Awaited, u64)>,
    /// The stored count of messages.
    stored: u64,
}

impl Half {
    /// As [`passed`](Self::passed). In a stream of messages (`is_hot`) it stores one count in [`STRIDE`]. Returns whether it has
    /// stored this one.
    #[inline(always)]
    pub(crate) fn pass(&mut self, messages: u64, bytes: u64, is_hot: bool) -> bool {
        let is_due = !is_hot || messages.wrapping_sub(self.stored) >= STRIDE;
        if is_due {
            self.passed(messages, bytes);
        }
        is_due
    }

    /// Stores how many messages and bytes have passed.
    #[inline(always)]
    pub(crate) fn passed(&mut self, messages: u64, bytes: u64) {
        self.stored = messages;
        self.line.store(layout::MESSAGES, messages);
        self.line.store(layout::BYTES, bytes);
    }

    /// Stores another word.
    #[inline]
    pub(crate) fn store(&self, at: usize, value: u64) {
        self.line.store(at, value);
    }

    /// Stores how the half waits, and for what. A wait keeps its start as long as it is for the same, and nothing has passed: a
    /// caller that waits by a deadline each time waits for all of that time.
    pub(crate) fn wait(&mut self, state: State, awaited: Awaited) {
        if self.awaited.is_none() && self.began != Some((awaited, self.stored)) {
            self.began = Some((awaited, self.stored));
            self.line.store(layout::STATE_SINCE, now(ClockId::MonotonicCoarse));
        }
        self.awaited = Some(awaited);
        self.line.store(layout::STATE, state as u64 | (awaited as u64) << 8);
    }

    /// Stores that the half runs its user's code.
    #[inline]
    pub(crate) fn run(&mut self) {
        if self.awaited.take().is_some() {
            self.line.store(layout::STATE, State::Running as u64);
        }
    }

    /// Stores that the half is dropped.
    pub(crate) fn leave(&mut self) {
        self.line.store(layout::STATE_SINCE, now(ClockId::MonotonicCoarse));
        self.line.store(layout::STATE, State::Gone as u64);
    }
}

pub(super) fn now(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
