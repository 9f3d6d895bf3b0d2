//! The listeners of a loop.

use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::error::contain;
use crate::reactor::commands::Accepting;
use crate::reactor::shared::Shared;
use crate::transport::ACCEPT_PAUSE as PAUSE;

/// Connections of one listener in one turn.
const ACCEPTS: usize = 16;

/// Listeners, and who wants their connections.
#[derive(Default)]
pub(super) struct Doors {
    listeners: Vec<Accepting>,
    /// Listeners that are not watched until then, by their keys: the peer at the head of their queue can be
    /// neither accepted nor turned away.
    resting: Vec<(u64, Instant)>,
}

impl Doors {
    pub(super) fn push(&mut self, accepting: Accepting) {
        self.listeners.push(accepting);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// How long until a peer that has connected and stays silent is to be dropped.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let silent = self.listeners.iter().filter_map(|each| each.listener.next_deadline());
        let first = silent.chain(self.resting.iter().map(|(_, until)| *until)).min();
        first.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Gives the connections of the listener with this key to who wants them. `false`: there is none.
    pub(super) fn accept(&mut self, key: u64, shared: &Shared) -> bool {
        let Some(at) = self.listeners.iter().position(|accepting| accepting.key == key) else {
            return false;
        };
        for _ in 0..ACCEPTS {
            let Accepting { listener, accept, .. } = &mut self.listeners[at];
            let accepted = match listener.try_accept() {
                Ok(Some(connection)) => Ok(connection),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            let failed = accepted.is_err();
            // A panic costs this connection; the listener goes on.
            let go_on = contain(|| accept(accepted));
            if go_on.is_some_and(|go_on| go_on.is_break()) {
                let gone = self.listeners.swap_remove(at);
                self.resting.retain(|(resting, _)| *resting != gone.key);
                let _ = epoll::delete(&shared.epoll, &gone.listener);
                contain(|| drop(gone));
                break;
            }
            if failed {
                self.rest(at, shared);
                break;
            }
        }
        true
    }

    /// Watches a listener that is stuck no more for a while: it would be told of at once.
    fn rest(&mut self, at: usize, shared: &Shared) {
        let Accepting { key, listener, .. } = &self.listeners[at];
        let is_resting = self.resting.iter().any(|(resting, _)| resting == key);
        if listener.is_stuck() && !is_resting {
            let data = EventData::new_u64(*key);
            if epoll::modify(&shared.epoll, listener, data, EventFlags::empty()).is_ok() {
                self.resting.push((*key, Instant::now() + PAUSE));
            }
        }
    }

    /// Watches those again that have rested.
    fn wake(&mut self, now: Instant, shared: &Shared) {
        let listeners = &self.listeners;
        self.resting.retain_mut(|(key, until)| {
            let listener = listeners.iter().find(|each| each.key == *key);
            let Some(Accepting { listener, .. }) = listener else { return false };
            let data = EventData::new_u64(*key);
            let stays = now < *until
                || epoll::modify(&shared.epoll, listener, data, EventFlags::IN).is_err();
            *until = (*until).max(now + PAUSE / 2);
            stays
        });
    }

    /// Closes all of them.
    pub(super) fn close(&mut self, shared: &Shared) {
        for gone in self.listeners.drain(..) {
            let _ = epoll::delete(&shared.epoll, &gone.listener);
            contain(|| drop(gone));
        }
    }

    /// Drops peers that have connected and stay silent.
    pub(super) fn drop_silent(&mut self, shared: &Shared) {
        if self.listeners.is_empty() {
            return;
        }
        let now = Instant::now();
        self.wake(now, shared);
        let is_late = |each: &&Accepting| {
            each.listener.next_deadline().is_some_and(|deadline| deadline <= now)
        };
        let late: Vec<u64> = self.listeners.iter().filter(is_late).map(|each| each.key).collect();
        for key in late {
            self.accept(key, shared);
        }
    }
}
