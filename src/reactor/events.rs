//! The loop and the kernel: events of sockets, and what is said to peers before a sleep.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::reactor::commands::Command;
use crate::reactor::event_loop::EventLoop;
use crate::reactor::served::{Mode, Served};
use crate::reactor::shared::BELL;
use crate::wake::before_last_look;

/// When so many links had to be woken up for since the last sleep, all that were hot before it are.
const LIVELY: usize = 16;

/// A timeout that nobody waits for.
const LONG: Timespec = Timespec { tv_sec: 1 << 30, tv_nsec: 0 };

impl EventLoop {
    /// Takes events, waiting for the first one as long as `timeout` says. Gives how much was done.
    pub(super) fn take_events(&mut self, timeout: Option<Duration>) -> Result<usize> {
        let mut events = [MaybeUninit::<Event>::uninit(); 128];
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap_or(LONG));
        let ready = match epoll::wait(&self.shared.epoll, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(0),
            Err(errno) => return Err(Error::os("epoll_wait", errno)),
        };
        let mut done = 0;
        for event in ready.iter() {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == BELL {
                continue;
            }
            if let Some(place) = self.links.place(key) {
                done += 1;
                self.link_event(place, flags);
            } else if self.doors.accept(key, &self.shared) {
                done += 1;
            }
        }
        self.doors.drop_silent(&self.shared);
        Ok(done)
    }

    fn link_event(&mut self, place: usize, flags: EventFlags) {
        let Some(served) = self.links.get(place) else { return };
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            served.socket.hang_up();
        }
        if served.mode == Mode::Stalled && served.socket.is_alive() {
            return;
        }
        self.look(place);
        self.woken += 1;
        if self.woken == LIVELY {
            self.warm_all();
        }
    }

    /// The links that were hot before the last sleep are hot again: without it each of them would have
    /// to be woken up for.
    fn warm_all(&mut self) {
        for place in 0..self.links.places() {
            if let Some(served) = self.links.get(place)
                && served.mode == Mode::Asleep
            {
                served.mode = Mode::Hot;
                served.receiver.wake();
                self.warm(place);
            }
        }
    }

    /// Says to every peer that this loop sleeps. `false`: something is there already.
    pub(super) fn fall_asleep(&mut self) -> bool {
        let hot = self.hot.places();
        self.woken = 0;
        let mut was_hot = false;
        for place in &self.flushing {
            if let Some(served) = self.links.get(*place) {
                make_way(served);
                was_hot |= served.link.outgoing().doze();
            }
        }
        let caught = self.arm(&hot, Mode::Asleep, was_hot);
        let flushed = if self.flushing.is_empty() { 0 } else { self.flush() };
        caught && flushed == 0 && !self.shared.is_pending()
    }

    /// Arms these links, with one barrier. `mode` says why; `was_hot`: a half that was armed before was hot. Returns
    /// `false` if some links have something, and stay in the hot set.
    pub(super) fn arm(&mut self, places: &[usize], mode: Mode, mut was_hot: bool) -> bool {
        for place in places {
            if let Some(served) = self.links.get(*place) {
                make_way(served);
                was_hot |= served.receiver.doze();
            }
        }
        if !places.is_empty() || !self.flushing.is_empty() {
            before_last_look(was_hot);
        }
        let mut caught = true;
        for place in places {
            let Some(served) = self.links.get(*place) else { continue };
            if served.receiver.is_ready() {
                served.receiver.wake();
                caught = false;
                if !served.socket.is_alive() {
                    // No header shows an end.
                    served.link.post(Command::Look(served.link.clone()));
                }
            } else {
                served.mode = mode;
                self.hot.remove(*place);
            }
        }
        caught
    }
}

/// Takes the wake-ups of earlier sleeps where they may be many: the loop may have slept often since it
/// asked for events. What is taken here makes no event any more.
fn make_way(served: &Served) {
    if served.socket.make_way().unwrap_or(true) {
        served.link.post(Command::Look(served.link.clone()));
    }
}
