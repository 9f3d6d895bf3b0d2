//! The steps by which a loop polls many halves, sleeps on their sockets, and rests a half that has used up its share.

use std::thread;
use std::time::{Duration, Instant};

use crate::channel::inbox::receiver::Receiver;
use crate::channel::inbox::{Flow, Inbox};
use crate::channel::readiness::Watch;
use crate::error::{Fault, Result, TryRecvError};
use crate::patience::RecvPatience;
use crate::shm::Bytes;
use crate::status::Awaited;

impl Receiver {
    /// Returns whether a promised record is missing, of which no header tells.
    pub(crate) fn is_cut(&self) -> bool {
        self.inbox.consumer.is_cut()
    }

    /// Publishes that this half sleeps on the socket. The caller issues one barrier for any number of halves, and then
    /// checks each once more.
    pub(crate) fn doze(&mut self) -> bool {
        let Inbox { flow, data, link, .. } = &mut self.inbox;
        if *flow != Flow::Open {
            return false;
        }
        *flow = Flow::Armed;
        data.arm(link, Awaited::Message)
    }

    /// Publishes that this half is awake.
    pub(crate) fn wake(&mut self) {
        self.inbox.disarm();
    }

    /// Returns a watch of the next record's header.
    pub(crate) fn watch(&self) -> Watch {
        Watch::new(self.inbox.ring.clone(), self.inbox.consumer.next_header())
    }

    /// Moves a watch to the next record.
    #[inline(always)]
    pub(crate) fn advance(&self, watch: &mut Watch) {
        watch.move_to(&self.inbox.ring, self.inbox.consumer.next_header());
    }

    /// Calls `each` with the plain messages that come next in the ring, up to `max` of them, until it returns false. Releases each
    /// message after its call, and returns their count. Nothing was set aside before them.
    #[inline(always)]
    pub(crate) fn take_run(&mut self, max: usize, each: impl FnMut(Bytes<'_>) -> bool) -> usize {
        // The loop gives way by its other work. Messages of 64 B take 19 ns, and 25 if it looks ahead.
        let count = self.inbox.drain_run((max, false), each);
        let Inbox { data, link, consumer, .. } = &mut self.inbox;
        data.progress(link, consumer.position());
        count
    }

    /// Publishes the position up to which this half has read.
    #[inline(always)]
    pub(crate) fn publish_position(&mut self) {
        self.inbox.publish_position();
    }

    /// Ends the link if its peer has taken back the header of a record that this half has seen and left in the ring. No header
    /// shows that record.
    #[cold]
    pub(crate) fn check_held(&mut self) {
        if self.inbox.flow == Flow::Held && !self.inbox.consumer.is_ready() {
            self.inbox.fail(Fault::RecordHeader { header: 0 });
        }
    }

    /// Returns how long the record at the ring's position waits for the [share](crate::link::share) of the link's socket.
    /// `None`: it waits for another turn at most.
    #[cold]
    pub(crate) fn socket_rest(&self) -> Option<Duration> {
        self.inbox.link.control_socket().rest()
    }

    /// Returns how long something that is left waits, after a `try_` form found nothing. Zero: until the other links had their turns.
    /// `None`: nothing is left, and an event of the descriptor tells when something comes. Only a receiver that
    /// [takes turns](Self::take_turns) leaves something.
    ///
    /// A loop that watches level-triggered does not watch the descriptor until that time is over: the descriptor is readable
    /// meanwhile.
    pub fn rest(&self) -> Option<Duration> {
        if !self.inbox.generation.is_current() {
            return None;
        }
        let socket = self.inbox.link.control_socket();
        (self.is_ready() || socket.is_left()).then(|| socket.rest().unwrap_or_default())
    }

    /// Makes triggers appear like messages. [`Received::token`] tells them apart.
    pub(crate) fn take_triggers(&mut self) {
        self.inbox.takes_triggers = true;
    }
}

impl Inbox {
    /// Waits while the socket rests, if the caller waits. The caller then looks once more.
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`]: the caller does not wait.
    #[cold]
    pub(crate) fn await_share(&self, patience: RecvPatience) -> Result<(), TryRecvError> {
        let rest = self.link.control_socket().rest().unwrap_or_default();
        let start = Instant::now();
        match patience {
            RecvPatience::None => return Err(TryRecvError::Empty),
            RecvPatience::Until(deadline) => {
                thread::sleep(rest.min(deadline.saturating_duration_since(start)));
            }
            RecvPatience::Forever => thread::sleep(rest),
        }
        patience.check(start)
    }
}
