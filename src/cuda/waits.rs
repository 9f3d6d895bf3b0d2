//! The words that streams of this process await. While one of them is not written, the process frees no memory of a GPU.
//!
//! A driver that frees memory may wait for all work on a GPU, and may hold a lock meanwhile that every other call needs. A
//! stream that waits for a dead peer's word goes on when this process writes the word. So a free that began before would wait
//! for a call that waits for the free. The table is of all GPUs, because a stream of one may wait for a stream of another.
//!
//! 1. A word that comes while memory is freed waits for the end of the free, and no other free begins before the word is in the
//!    table.
//! 2. A free may wait for the GPU for long, and the word does not: it is added when the free has had its head start of 20 ms.
//!    By then the first call of the driver has begun, unless its thread got no CPU, and what a stream gets from then on comes
//!    behind that call. It may come before a later call of the same drop, which then waits for the word. Memory has one call
//!    that waits for the GPU, with short ones before it (events) and behind it (addresses, the allocation's handle). The owner of
//!    adopted memory is a user's code: if it frees memory of the GPU later than that, nothing keeps a word from coming before.
//! 3. Addresses and handles to which nothing was ever mapped are no memory that a GPU has used. They go back at once, on the thread
//!    of the call that fails, also where the last handle frees an allocation (`cuMemRelease`).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::cuda::parked::PAUSE;

/// How long a free waits for words that come to be awaited later, too.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a word waits for a free, from the beginning of the free on.
const HEAD_START: Duration = PAUSE.1;

/// A word that a stream awaits.
pub(super) trait Wait: Send + Sync {
    /// Has the word read, and written if its writer is dead.
    fn ask(self: Arc<Self>);
}

/// The awaited words of the process. A clone is the same table.
#[derive(Clone, Default)]
pub(super) struct Waits {
    core: Arc<WaitsCore>,
}

struct WaitsCore {
    table: Mutex<Table>,
    /// Signalled when a free is over.
    freed: Condvar,
    /// How long a word waits for a free, from the beginning of the free on.
    head_start: Duration,
}

impl Default for WaitsCore {
    fn default() -> Self {
        Self { table: Mutex::default(), freed: Condvar::new(), head_start: HEAD_START }
    }
}

#[derive(Default)]
struct Table {
    /// When the free that is under way has begun.
    freeing_since: Option<Instant>,
    /// The words that wait to be added.
    adding: usize,
    next: u64,
    awaited: HashMap<u64, Entry>,
}

struct Entry {
    word: Weak<dyn Wait>,
    /// Whether the word lets its stream go on.
    is_open: Arc<AtomicBool>,
}

impl Waits {
    /// Returns those of this process, which has loaded the driver.
    pub(super) fn of_process() -> Self {
        static WAITS: OnceLock<Waits> = OnceLock::new();
        WAITS.get_or_init(Self::default).clone()
    }

    /// Adds a word that a stream will await. A free that is under way is waited for, at most until it has had its
    /// [head start](HEAD_START).
    pub(super) fn add<W: Wait + 'static>(&self, make: impl FnOnce(Place) -> W) -> Arc<W> {
        let mut table = self.table();
        table.adding += 1;
        while let Some(left) = table.left_of(self.core.head_start, Instant::now()) {
            let waited = self.core.freed.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        table.adding -= 1;
        let number = table.next;
        table.next += 1;
        let is_open = Arc::new(AtomicBool::new(false));
        let word = make(Place { waits: self.clone(), number, is_open: is_open.clone() });
        let word = Arc::new(word);
        let awaited: Weak<W> = Arc::downgrade(&word);
        table.awaited.insert(number, Entry { word: awaited, is_open });
        word
    }

    /// Has all words read.
    pub(super) fn ask_all(&self) {
        let words: Vec<_> = self.table().awaited.values().map(|entry| entry.word.clone()).collect();
        // Outside of the lock, which the last handle of a word takes in its drop.
        words.iter().filter_map(Weak::upgrade).for_each(Wait::ask);
    }

    /// Returns the permission to free memory of a GPU, or `None` while a stream may wait for a word, or a word waits to be
    /// added. The words are read then. After a while, words that were not awaited when the permission was first `refused` count no
    /// more: there may always be some.
    pub(super) fn begin_freeing(&self, refused: &mut Option<Refused>) -> Option<Freeing> {
        let mut table = self.table();
        if table.adding > 0 {
            return None;
        }
        let before = refused.as_ref().filter(|refused| refused.since.elapsed() > PATIENCE);
        let before = before.map_or(table.next, |refused| refused.before);
        let closed = table.closed(before);
        if closed.is_empty() {
            table.freeing_since = Some(Instant::now());
            return Some(Freeing { waits: self.clone() });
        }
        refused.get_or_insert(Refused { since: Instant::now(), before: table.next });
        drop(table);
        closed.iter().filter_map(Weak::upgrade).for_each(Wait::ask);
        None
    }

    /// Returns whether a stream may wait for a word, as far as the words were read.
    pub(super) fn are_there(&self) -> bool {
        let table = self.table();
        table.adding > 0 || !table.closed(table.next).is_empty()
    }

    /// Waits until no stream may wait for a word, at most for `patience`. The words are read. Returns whether none does.
    pub(super) fn are_over(&self, patience: Duration) -> bool {
        let (deadline, mut pause) = (Instant::now() + patience, PAUSE.0);
        loop {
            let table = self.table();
            let (is_adding, closed) = (table.adding > 0, table.closed(table.next));
            drop(table);
            if !is_adding && closed.is_empty() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            closed.iter().filter_map(Weak::upgrade).for_each(Wait::ask);
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE.1);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.core.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Returns the words with a number below `before` for which a stream may wait.
    fn closed(&self, before: u64) -> Vec<Weak<dyn Wait>> {
        let waits = |number: u64, wait: &Entry| {
            number < before && !wait.is_open.load(Ordering::Acquire) && wait.word.strong_count() > 0
        };
        { self.awaited.iter() }
            .filter(|(number, wait)| waits(**number, wait))
            .map(|(_, wait)| wait.word.clone())
            .collect()
    }

    /// Returns how long the free that is under way has a head start yet. `None`: no longer, or there is none.
    fn left_of(&self, head_start: Duration, now: Instant) -> Option<Duration> {
        let had = now.saturating_duration_since(self.freeing_since?);
        head_start.checked_sub(had).filter(|left| !left.is_zero())
    }
}

/// The place of a word in the table, until its drop.
pub(super) struct Place {
    waits: Waits,
    number: u64,
    is_open: Arc<AtomicBool>,
}

impl Place {
    /// Notes that the word lets its stream go on.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    /// Takes the word out of the table.
    pub(super) fn leave(&self) {
        self.waits.table().awaited.remove(&self.number);
    }
}

/// When a free had to wait for the first time.
pub(super) struct Refused {
    since: Instant,
    /// The number of the next word.
    before: u64,
}

/// A free that is under way.
pub(super) struct Freeing {
    waits: Waits,
}

impl Drop for Freeing {
    fn drop(&mut self) {
        self.waits.table().freeing_since = None;
        self.waits.core.freed.notify_all();
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests;
