//! The listeners of a loop.
//!
//! A listener whose queue never empties gets a third of the loop's time: after a turn that used up its slice the loop does
//! not look at it for [`REST`] times as long, unless the loop has nothing else to do.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::error::contain;
use crate::reactor::command::AcceptFn;
use crate::transport::{ACCEPT_PAUSE, ACCEPT_SLICE, Listener};

/// The most connections that one listener accepts in one turn.
const ACCEPTS: usize = 16;

/// The rest of a listener after a long turn, in multiples of the turn.
const REST: u32 = 2;

/// A listener, and the callback that takes its connections.
struct Accepting {
    key: u64,
    listener: Listener,
    accept: AcceptFn,
    /// Until then epoll does not watch the listener.
    paused_until: Option<Instant>,
    /// The pause is a rest, which ends early if the loop has nothing to do. In other pauses the listener can neither accept
    /// nor reject the peer at the head of its queue.
    rests: bool,
}

/// The listeners of a loop.
#[derive(Default)]
pub(super) struct ListenerSet {
    listeners: Vec<Accepting>,
}

impl ListenerSet {
    pub(super) fn push(&mut self, key: u64, listener: Listener, accept: AcceptFn) {
        self.listeners.push(Accepting { key, listener, accept, paused_until: None, rests: false });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Returns the time until a pause ends.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let first = self.listeners.iter().filter_map(|each| each.paused_until).min();
        first.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Accepts connections of the listener with this key. Returns whether there is such a listener.
    pub(super) fn accept(&mut self, key: u64, epoll: impl AsFd) -> bool {
        let Some(at) = self.listeners.iter().position(|each| each.key == key) else {
            return false;
        };
        let start = Instant::now();
        for _ in 0..ACCEPTS {
            let Accepting { listener, accept, .. } = &mut self.listeners[at];
            let accepted = match listener.try_accept_soon() {
                Ok(Some(connection)) => Ok(connection),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            let failed = accepted.is_err();
            // A panic costs this connection, and the listener goes on.
            let answer = contain(|| accept(accepted));
            if answer.is_some_and(|answer| answer.is_break()) {
                let ended = self.listeners.swap_remove(at);
                let _ = epoll::delete(&epoll, &ended.listener);
                contain(|| drop(ended));
                return true;
            }
            if failed && self.listeners[at].pause_if_stuck(&epoll) {
                return true;
            }
            if failed || start.elapsed() >= ACCEPT_SLICE {
                break;
            }
        }
        let took = start.elapsed();
        if took >= ACCEPT_SLICE {
            self.listeners[at].pause(took * REST, true, &epoll);
        }
        true
    }

    /// Ends the rests of all listeners, for a loop that has nothing else to do. Returns whether one had a rest.
    pub(super) fn end_rests(&mut self, epoll: impl AsFd) -> bool {
        let mut ended = false;
        for each in self.listeners.iter_mut().filter(|each| each.rests) {
            if let Some(until) = each.paused_until {
                each.resume(until, &epoll);
                ended |= each.paused_until.is_none();
            }
        }
        ended
    }

    /// Watches the listeners whose pause is over.
    pub(super) fn pass_time(&mut self, epoll: impl AsFd) {
        if self.listeners.is_empty() {
            return;
        }
        let now = Instant::now();
        for each in &mut self.listeners {
            each.resume(now, &epoll);
        }
    }

    /// Closes every listener.
    pub(super) fn close(&mut self, epoll: impl AsFd) {
        for ended in self.listeners.drain(..) {
            let _ = epoll::delete(&epoll, &ended.listener);
            contain(|| drop(ended));
        }
    }
}

impl Accepting {
    /// Stops watching a stuck listener for a while: epoll would report it in every turn. Returns whether it is stuck.
    fn pause_if_stuck(&mut self, epoll: impl AsFd) -> bool {
        if self.listener.is_stuck() {
            self.pause(ACCEPT_PAUSE, false, epoll);
        }
        self.listener.is_stuck()
    }

    fn pause(&mut self, time: Duration, rests: bool, epoll: impl AsFd) {
        let data = EventData::new_u64(self.key);
        if self.paused_until.is_none()
            && epoll::modify(epoll, &self.listener, data, EventFlags::empty()).is_ok()
        {
            self.paused_until = Some(Instant::now() + time);
            self.rests = rests;
        }
    }

    /// Watches the listener if its pause is over at `now`.
    fn resume(&mut self, now: Instant, epoll: impl AsFd) {
        let Some(until) = self.paused_until else { return };
        if now < until {
            return;
        }
        let data = EventData::new_u64(self.key);
        self.paused_until = match epoll::modify(epoll, &self.listener, data, EventFlags::IN) {
            Ok(()) => None,
            Err(_) => Some(now + ACCEPT_PAUSE / 2),
        };
    }
}
