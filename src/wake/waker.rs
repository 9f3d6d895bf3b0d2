//! The waking side of one reason to sleep.

use crate::error::Fault;
use crate::shm::{OwnWords, PeerWords};
use crate::wake::state::{self, load};

/// How a waker wakes its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attention {
    /// The peer sleeps: wake it by the futex at the bell, which was rung.
    Wake,
    /// The peer sleeps on its socket: send it a packet.
    Call,
    /// The peer never looks again.
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
    /// Returns a waker for the state word at `state` of the peer's segment, with its bell at `bell` of ours.
    pub(crate) fn new(state: usize, bell: usize) -> Self {
        Self { state, bell, attended: state::AWAKE }
    }

    /// Looks for a sleeper, after something was made visible to it. Returns `None` on the hot path: the peer is awake,
    /// or was already rung.
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
        match load(peer, self.state) {
            state if state == self.attended => Ok(None),
            state::HOT => Ok(None),
            state => self.attend(state, own),
        }
    }

    /// Looks for an eager sleeper, after something was written of a long message. Returns whether the sleeper was rung.
    /// It is not rung again for this epoch.
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
            // Not attended: every later look answers the same.
            _ if state == state::GONE => Ok(Some(Attention::Gone)),
            _ => Err(Fault::Parking { value: state }),
        }
    }

    /// Returns the bell's place in our segment, in bytes.
    pub(crate) fn bell(&self) -> usize {
        self.bell
    }
}
