//! Sleeping until the peer has done something, without a system call of the peer while we are awake.
//!
//! Two words for each reason to sleep, each in its writer's segment:
//!
//! ```text
//!   sleeper's segment                     waker's segment
//!   state: 0 awake                        bell: counts wake-ups; the sleeper's futex
//!          epoch << 3 | 1 parked
//!          epoch << 3 | 5 parked, and eager
//!          epoch << 3 | 2 armed
//!          3 gone (never comes back)
//! ```
//!
//! *Parked* is a thread that sleeps on the bell; *armed* is an event loop that sleeps on the link's
//! socket, and is woken by a packet. An *eager* sleeper wants to be rung already for what is only under way.
//!
//! | sleeper                          | waker                                |
//! |----------------------------------|--------------------------------------|
//! | load bell                        | make something visible               |
//! | store state = parked, new epoch  | **light barrier**                    |
//! | **heavy barrier**                | load state                           |
//! | last look at what it waits for   | parked, epoch not yet attended:      |
//! | futex wait while bell is as read | add 1 to bell, futex wake            |
//! | store state = awake              | armed: send a packet                 |
//!
//! 1. Either the last look sees what was made visible, or the waker's load sees the parked state:
//!    the two barriers exclude that both miss.
//! 2. A wake between the last look and the futex call changes the bell, so the call returns at once.
//! 3. A waker rings once an epoch, so a burst towards a sleeper that is on its way up costs one
//!    system call.
//! 4. The state is a hint between processes that need each other: a peer that lies about it loses
//!    its own wake-ups, or is rung for nothing once per lie.
//!
//! The heavy barrier is `membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED)` (Linux 4.16), which runs a
//! full barrier on every processor that runs a registered process, so the waker's can be a compiler
//! fence. Each side says in its Hello whether it issues the call; towards one that does not, or
//! when this process could not register, the waker pays a full fence.

use std::sync::OnceLock;

use rustix::thread::MembarrierCommand;

use crate::error::Fault;
use crate::shm::{OwnWords, PeerWords};
use crate::sync::{Edge, Ordering, compiler_fence};

const AWAKE: u64 = 0;
const PARKED: u64 = 1;
const ARMED: u64 = 2;
const EAGER: u64 = 4;
const GONE: u64 = 3;

/// The barriers of one link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    /// The peer issues `membarrier` before it sleeps and this process is registered for it.
    light: bool,
}

impl Barrier {
    /// The barrier towards a peer that says whether it issues `membarrier` itself.
    pub(crate) fn towards(peer_issues: bool) -> Self {
        Self { light: peer_issues && Self::registered() }
    }

    /// Whether this process issues `membarrier` before it sleeps, and is registered to receive it.
    pub(crate) fn registered() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| {
            rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
                && rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_ok()
        })
    }

    /// A barrier that does not rely on `membarrier`.
    #[cfg(all(test, slipring_loom))]
    pub(crate) fn full() -> Self {
        Self { light: false }
    }

    /// The waker's barrier.
    #[inline(always)]
    pub(crate) fn light(self) {
        if self.light {
            compiler_fence(Ordering::SeqCst);
        } else {
            // Pairs with Sleeper::park: whoever misses our store is seen parked by our load.
            Edge::Wake.barrier();
        }
    }

    /// The sleeper's barrier, between its states and its last looks.
    pub(crate) fn heavy() {
        // Pairs with Barrier::light: whoever misses our parked state is seen by our last look.
        Edge::Park.barrier();
        #[cfg(not(slipring_loom))]
        if Self::registered() {
            // Cannot fail once it has worked: the command has no arguments and allocates nothing
            // that it could not do without.
            let _ = rustix::thread::membarrier(MembarrierCommand::GlobalExpedited);
        }
    }
}

/// The sleeping side of one reason to sleep.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// Our state word in our segment, in bytes.
    state: usize,
    /// The bell in the peer's segment, in bytes.
    bell: usize,
    epoch: u64,
    /// [`EAGER`] or 0.
    eager: u64,
}

impl Sleeper {
    /// A sleeper whose state word is at `state` of our segment and whose bell at `bell` of the
    /// peer's.
    pub(crate) fn new(state: usize, bell: usize) -> Self {
        Self { state, bell, epoch: 0, eager: 0 }
    }

    /// Whether to be rung already for what is under way, from the next sleep on.
    pub(crate) fn set_eager(&mut self, is_eager: bool) {
        self.eager = if is_eager { EAGER } else { 0 };
    }

    /// Says that we sleep. The caller looks once more at what it waits for, and then sleeps for as
    /// long as the bell's low half is the value returned.
    pub(crate) fn park(&mut self, own: &impl OwnWords, peer: &impl PeerWords) -> u32 {
        let bell = peer.load(self.bell) as u32;
        self.epoch = self.epoch.wrapping_add(1);
        own.store(self.state, self.epoch << 3 | self.eager | PARKED, Ordering::Relaxed);
        Barrier::heavy();
        bell
    }

    /// One sleep: says that we sleep, looks once more, and sleeps by `sleep` for as long as the bell's
    /// low half is the value it is given. `None`: there was something to wake up for.
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

    /// Says that we are about to sleep on the link's socket. The caller passes
    /// [`Barrier::heavy`], once for any number of sleepers, and looks once more.
    pub(crate) fn arm(&mut self, own: &impl OwnWords) {
        self.epoch = self.epoch.wrapping_add(1);
        own.store(self.state, self.epoch << 3 | ARMED, Ordering::Relaxed);
    }

    /// Says that we are awake again.
    pub(crate) fn unpark(&mut self, own: &impl OwnWords) {
        own.store(self.state, AWAKE, Ordering::Relaxed);
    }

    /// Says that we will never look again.
    pub(crate) fn leave(&mut self, own: &impl OwnWords) {
        own.store(self.state, GONE, Edge::Publish.store());
    }

    /// The bell's place in the peer's segment, in bytes.
    pub(crate) fn bell(&self) -> usize {
        self.bell
    }
}

/// What a waker has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attention {
    /// The peer sleeps: wake it by the futex at the bell, which was rung.
    Wake,
    /// The peer sleeps on its socket: send it a packet.
    Call,
    /// The peer will never look again.
    Gone,
}

/// The waking side of one reason to sleep.
#[derive(Debug)]
pub(crate) struct Waker {
    /// The peer's state word in its segment, in bytes.
    state: usize,
    /// The bell in our segment, in bytes.
    bell: usize,
    /// The state that was last attended to.
    attended: u64,
}

impl Waker {
    /// A waker for the state word at `state` of the peer's segment, with its bell at `bell` of ours.
    pub(crate) fn new(state: usize, bell: usize) -> Self {
        Self { state, bell, attended: AWAKE }
    }

    /// Looks for a sleeper, after something was made visible to it. `None` on the hot path: the
    /// peer is awake, or was already rung.
    ///
    /// # Errors
    ///
    /// [`Fault::Parking`]: the state is none.
    #[inline(always)]
    pub(crate) fn look(
        &mut self,
        barrier: Barrier,
        own: &impl OwnWords,
        peer: &impl PeerWords,
    ) -> Result<Option<Attention>, Fault> {
        barrier.light();
        let state = peer.load(self.state);
        if state == self.attended { Ok(None) } else { self.attend(state, own) }
    }

    /// Looks for an eager sleeper, after it was told of what is under way: whether it was rung. It is not rung again
    /// for this epoch, so it must have seen what was told, or been rung: that needs the barrier.
    pub(crate) fn look_ahead(
        &mut self,
        barrier: Barrier,
        own: &impl OwnWords,
        peer: &impl PeerWords,
    ) -> bool {
        barrier.light();
        let state = peer.load(self.state);
        state != self.attended
            && state & 7 == EAGER | PARKED
            && matches!(self.attend(state, own), Ok(Some(Attention::Wake)))
    }

    #[cold]
    fn attend(&mut self, state: u64, own: &impl OwnWords) -> Result<Option<Attention>, Fault> {
        match state & 3 {
            PARKED => {
                self.attended = state;
                own.add(self.bell, 1);
                Ok(Some(Attention::Wake))
            }
            ARMED => {
                self.attended = state;
                Ok(Some(Attention::Call))
            }
            _ if state == AWAKE => {
                self.attended = AWAKE;
                Ok(None)
            }
            // Not attended: every later look answers the same.
            _ if state == GONE => Ok(Some(Attention::Gone)),
            _ => Err(Fault::Parking { value: state }),
        }
    }

    /// The bell's place in our segment, in bytes.
    pub(crate) fn bell(&self) -> usize {
        self.bell
    }
}

/// Whether a parking word says that its side sleeps.
#[inline(always)]
pub(crate) fn is_parked(state: u64) -> bool {
    matches!(state & 3, PARKED | ARMED)
}

/// Whether a parking word says that its side will never look again.
pub(crate) fn has_left(state: u64) -> bool {
    state == GONE
}
