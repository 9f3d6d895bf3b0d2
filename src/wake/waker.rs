//! The waking side of one reason to sleep.
//!
//! 1. The waker wakes each epoch of a sleeper once.
//! 2. An impossible state word is a fault of the peer.

use crate::error::Fault;
use crate::shm::{OwnWords, PeerWords};
use crate::wake::state::{self, load};

/// The way in which a waker wakes its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attention {
    /// The peer sleeps on the bell, to which the waker has added: wake its futex.
    Wake,
    /// The peer sleeps on its socket: send it a packet.
    Call,
    /// The peer has ended.
    Gone,
}

/// The waking side of one reason to sleep.
#[derive(Debug)]
pub(crate) struct Waker {
    /// The peer's state word in its segment, in bytes.
    state: usize,
    /// The bell in this side's segment, in bytes.
    bell: usize,
    /// The state that was last attended to.
    attended: u64,
}

impl Waker {
    /// Returns a waker for the state word at `state` of the peer's segment, with its bell at `bell` of this
    /// side's.
    pub(crate) fn new(state: usize, bell: usize) -> Self {
        Self { state, bell, attended: state::AWAKE }
    }

    /// Checks for a sleeper, after the caller made something visible to it. Returns `None` on the hot path: the peer is
    /// awake, or the waker has rung for this epoch.
    ///
    /// # Errors
    ///
    /// [`Fault::Parking`]: the state word holds no state.
    #[inline(always)]
    pub(crate) fn look(
        &mut self,
        own: &impl OwnWords,
        peer: &impl PeerWords,
    ) -> Result<Option<Attention>, Fault> {
        let state = self.load(peer);
        self.judge(state, own)
    }

    /// Loads the state word, after the caller made something visible to the peer, for [`judge`](Self::judge).
    #[inline(always)]
    pub(crate) fn load(&self, peer: &impl PeerWords) -> u64 {
        load(peer, self.state)
    }

    /// As [`look`](Self::look), with the state word as [loaded](Self::load).
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    #[inline(always)]
    pub(crate) fn judge(
        &mut self,
        state: u64,
        own: &impl OwnWords,
    ) -> Result<Option<Attention>, Fault> {
        match state {
            state if self.is_attended(state) => Ok(None),
            state::HOT => Ok(None),
            state => self.attend(state, own),
        }
    }

    /// Returns whether the waker has attended to this state.
    #[inline(always)]
    pub(crate) fn is_attended(&self, state: u64) -> bool {
        state == self.attended
    }

    /// Checks for an eager sleeper, after the caller wrote a part of a long message. Returns whether the waker rang for
    /// it. The waker rings once an epoch.
    pub(crate) fn look_ahead(&mut self, own: &impl OwnWords, peer: &impl PeerWords) -> bool {
        let state = load(peer, self.state);
        state != self.attended
            && state & 7 == state::EAGER | state::PARKED
            && matches!(self.attend(state, own), Ok(Some(Attention::Wake)))
    }

    #[cold]
    fn attend(&mut self, state: u64, own: &impl OwnWords) -> Result<Option<Attention>, Fault> {
        match state & 3 {
            state::PARKED => {
                self.attended = state;
                own.add(self.bell, 1);
                Ok(Some(Attention::Wake))
            }
            state::ARMED => {
                self.attended = state;
                Ok(Some(Attention::Call))
            }
            _ if state == state::AWAKE => {
                self.attended = state;
                Ok(None)
            }
            // Not attended: every later check returns the same.
            _ if state == state::GONE => Ok(Some(Attention::Gone)),
            _ => Err(Fault::Parking { value: state }),
        }
    }

    /// Returns the bell's offset in this side's segment, in bytes.
    pub(crate) fn bell(&self) -> usize {
        self.bell
    }
}
