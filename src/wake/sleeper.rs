//! The sleeping side of one reason to sleep.
//!
//! 1. Each sleep has its own epoch, so a waker can tell two sleeps apart.
//! 2. Between the store of the state and the sleep lies one last look, behind the barrier.
//! 3. A sleeper is hot after [`HOT_AFTER`] bytes of its ring without a sleep.

use crate::shm::{OwnWords, PeerWords};
use crate::sync::{Edge, Ordering};
use crate::wake::barrier::before_last_look;
use crate::wake::state;

/// A sleeper that was awake for this many bytes of its ring is hot: 1,024 records of one line. A waker's fence takes some
/// 12 ns a record in a stream (`ping_pong --modes stream`), an interrupt some 12 µs.
const HOT_AFTER: u64 = 64 << 10;

/// The sleeping side of one reason to sleep.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// The state word in this side's segment, in bytes.
    state: usize,
    /// The bell in the peer's segment, in bytes.
    bell: usize,
    epoch: u64,
    /// [`state::EAGER`] or 0.
    eager: u64,
    /// Both processes are registered for `membarrier`.
    may_be_hot: bool,
    is_hot: bool,
    /// Our state word says that we sleep.
    is_asleep: bool,
    /// The position in the ring, in bytes, after the last sleep. `None` until it is known.
    awake_since: Option<u64>,
}

impl Sleeper {
    /// Returns a sleeper whose state word is at `state` of this side's segment and whose bell is at `bell` of the
    /// peer's.
    pub(crate) fn new(state: usize, bell: usize) -> Self {
        let (epoch, eager, awake_since) = (0, 0, Some(0));
        let (may_be_hot, is_hot, is_asleep) = (false, false, false);
        Self { state, bell, epoch, eager, may_be_hot, is_hot, is_asleep, awake_since }
    }

    /// Allows the sleeper to be hot: both processes are registered for `membarrier`.
    pub(crate) fn with_interrupts(mut self, may_be_hot: bool) -> Self {
        self.may_be_hot = may_be_hot;
        self
    }

    /// Sets whether the waker rings for the first part of a long message.
    pub(crate) fn set_eager(&mut self, is_eager: bool) {
        self.eager = if is_eager { state::EAGER } else { 0 };
    }

    /// Takes in the position in the ring, in bytes. After many bytes without a sleep the sleeper is hot. A half that has
    /// armed is not, until it says that it is awake: it may go on with other messages, and sleeps on the socket then.
    #[inline(always)]
    pub(crate) fn progress(&mut self, own: &impl OwnWords, position: u64) {
        if !self.is_hot && self.may_be_hot && !self.is_asleep {
            let since = *self.awake_since.get_or_insert(position);
            if position.wrapping_sub(since) >= HOT_AFTER {
                self.is_hot = true;
                own.store(self.state, state::HOT, Ordering::Relaxed);
            }
        }
    }

    /// Takes over a state word that says whether this sleeper is hot.
    pub(crate) fn set_hot(&mut self, is_hot: bool) {
        self.is_hot = is_hot;
    }

    /// Returns whether this sleeper is hot, and so its state word.
    pub(crate) fn is_hot(&self) -> bool {
        self.is_hot
    }

    /// Stores that this side sleeps. The caller checks once more what it waits for, and then sleeps while the bell's
    /// low half is the value returned.
    pub(crate) fn park(&mut self, own: &impl OwnWords, peer: &impl PeerWords) -> u32 {
        let bell = peer.load(self.bell) as u32;
        let was_hot = self.store_asleep(own, self.eager | state::PARKED);
        before_last_look(was_hot);
        bell
    }

    /// Stores that this side sleeps, checks `ready` once more, and calls `sleep`, which sleeps while the bell's low
    /// half is its argument. Returns `None` if the last look found something.
    pub(crate) fn sleep<T>(
        &mut self,
        own: &impl OwnWords,
        peer: &impl PeerWords,
        ready: impl FnOnce() -> bool,
        sleep: impl FnOnce(u32) -> T,
    ) -> Option<T> {
        let bell = self.park(own, peer);
        if ready() { None } else { Some(sleep(bell)) }
    }

    /// Stores that this side is about to sleep on the link's socket. Returns whether this sleeper was hot. The caller
    /// passes [`before_last_look`], once for any number of sleepers, and checks once more.
    #[must_use]
    pub(crate) fn arm(&mut self, own: &impl OwnWords) -> bool {
        self.store_asleep(own, state::ARMED)
    }

    fn store_asleep(&mut self, own: &impl OwnWords, how: u64) -> bool {
        self.epoch = self.epoch.wrapping_add(1);
        self.awake_since = None;
        self.is_asleep = true;
        own.store(self.state, self.epoch << 3 | how, Ordering::Relaxed);
        std::mem::take(&mut self.is_hot)
    }

    /// Stores that this side is awake, if the state word says that it sleeps.
    #[inline]
    pub(crate) fn unpark(&mut self, own: &impl OwnWords) {
        if std::mem::take(&mut self.is_asleep) {
            own.store(self.state, state::AWAKE, Ordering::Relaxed);
        }
    }

    /// Stores that this side has ended.
    pub(crate) fn leave(&mut self, own: &impl OwnWords) {
        own.store(self.state, state::GONE, Edge::Publish.store());
    }

    /// Returns the bell's place in the peer's segment, in bytes.
    pub(crate) fn bell(&self) -> usize {
        self.bell
    }
}
