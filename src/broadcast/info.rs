//! What a publisher knows of a subscriber.

use std::time::Duration;

use crate::broadcast::seat::Seat;
use crate::handshake::{Peer, Policy, layout};
use crate::shm::PeerWords;
use crate::wake::{is_asleep_word, is_gone};

/// What a subscriber does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscriberState {
    /// It is awake: it reads, polls or does something else.
    Awake,
    /// It sleeps until the next message.
    Asleep,
    /// Its process is stopped.
    Stopped,
    /// It has left, and still holds messages.
    Left,
}

/// What a publisher knows of a subscriber, at one moment.
#[derive(Debug, Clone)]
pub struct SubscriberInfo {
    id: u64,
    pid: Option<u32>,
    uid: u32,
    policy: Policy,
    lag: u64,
    held: usize,
    joined: Duration,
    state: SubscriberState,
}

impl SubscriberInfo {
    pub(super) fn of(id: u64, seat: &Seat, newest: u64) -> Self {
        let peer = seat.link().identity();
        Self {
            id,
            pid: peer.pid(),
            uid: peer.uid(),
            policy: seat.policy(),
            lag: (newest + 1).saturating_sub(seat.position(newest)),
            held: seat.held().count(),
            joined: seat.joined().elapsed(),
            state: state_of(seat, peer),
        }
    }

    /// Returns the number of the subscriber, which [`Publisher::evict`](super::Publisher::evict) takes.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the subscriber's process, if it is in this process's pid namespace.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns the subscriber's effective user id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns what the subscriber asked for.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns how many messages the subscriber has not read. It tells its position after an eighth of the slots, or when it
    /// has read all, so the number may be too high.
    pub fn lag(&self) -> u64 {
        self.lag
    }

    /// Returns how many messages in the pool the subscriber holds.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns how long ago the subscriber joined.
    pub fn joined(&self) -> Duration {
        self.joined
    }

    /// Returns what the subscriber does.
    pub fn state(&self) -> SubscriberState {
        self.state
    }
}

fn state_of(seat: &Seat, peer: &Peer) -> SubscriberState {
    let word = seat.link().peer().load(layout::RECEIVER_STATE);
    if is_gone(word) {
        SubscriberState::Left
    } else if is_stopped(peer) {
        SubscriberState::Stopped
    } else if is_asleep_word(word) {
        SubscriberState::Asleep
    } else {
        SubscriberState::Awake
    }
}

/// Returns whether the kernel shows the process as stopped.
fn is_stopped(peer: &Peer) -> bool {
    let stat = peer.pid().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    // The name in parentheses may hold anything.
    stat.and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with(['T', 't']))).unwrap_or(false)
}
