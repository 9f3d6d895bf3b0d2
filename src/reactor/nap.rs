//! Naps: how a loop of many hot links waits for whichever of them has something next.

use std::num::NonZeroU64;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use rustix::thread::{current_timer_slack, set_current_timer_slack};

/// With more hot links than these the loop naps instead of watching.
pub(super) const FEW: usize = 64;

/// How long it naps.
const NAP: Duration = Duration::from_micros(50);

/// After so long in vain it arms them all and sleeps: that costs about as much as its naps did.
pub(super) const IN_VAIN: Duration = Duration::from_millis(3);

/// Sleeps for a moment, or until the descriptor is readable: then true.
pub(super) fn nap(until: BorrowedFd<'_>) -> bool {
    // Not by epoll_wait, whose timeout is in milliseconds before Linux 5.11.
    let timeout = Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
    let mut fds = [PollFd::new(&until, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// While it lives, the kernel does not put off this thread's timers: by default it adds 50 µs.
pub(super) struct Punctual {
    before: Option<NonZeroU64>,
}

impl Punctual {
    pub(super) fn new() -> Self {
        let before = current_timer_slack().ok().and_then(NonZeroU64::new);
        if before.is_some() {
            // Where it is refused naps take longer.
            let _ = set_current_timer_slack(Some(NonZeroU64::MIN));
        }
        Self { before }
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        if self.before.is_some() {
            let _ = set_current_timer_slack(self.before);
        }
    }
}
