//! For event loops: looks from outside, saying that a half sleeps on the socket, and triggers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Fault, Result};
use crate::ring::Kind;
use crate::shm::{PeerMapping, PeerWords};
use crate::transport::arrivals::{DATA_WAKES, ROOM_WAKES};
use crate::transport::backlog::PINNED;
use crate::transport::inbox::{Flow, Inbox};
use crate::transport::link::Link;
use crate::transport::parcel::Claims;
use crate::transport::peer::Credentials;
#[cfg(feature = "tokio")]
use crate::transport::peer::Peer;
use crate::transport::receiver::{MessageKind, Received, Receiver, RequestId};
use crate::transport::sender::Sender;
use crate::transport::token::Token;
use crate::transport::wait::after;
use crate::wake::Spin;
#[cfg(feature = "tokio")]
use crate::wake::SpinPolicy;
use crate::wake::before_last_look;

impl Inbox {
    /// About to sleep on the socket: takes what has come there, says so to the peer, and looks once
    /// more. True: there is something to receive, or the link is over.
    pub(super) fn arm(&mut self) -> Result<bool> {
        let mut arrivals = self.link.arrivals();
        let taken = if self.link.by_descriptor() {
            arrivals.take_for_data(&self.link.socket)
        } else {
            arrivals.take(&self.link.socket)
        };
        if let Err(error) = taken {
            drop(arrivals);
            return Err(self.fail(error));
        }
        // One wake-up comes for each time that this half says so.
        let woken = arrivals.data_woken();
        if self.flow != Flow::Armed || woken {
            arrivals.expect(DATA_WAKES);
            self.flow = Flow::Armed;
            before_last_look(self.data.arm(&self.link));
        }
        drop(arrivals);
        Ok(self.is_ready())
    }

    /// Whether there is something to look at, or the link is over.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.consumer.is_ready() || !self.link.is_alive()
    }

    /// Awake again, if this half was about to sleep on the socket.
    pub(super) fn disarm(&mut self) {
        if self.flow == Flow::Armed {
            self.flow = Flow::Open;
            self.data.disarm(&self.link);
        }
    }
}

/// The word in which the next record will show, apart from everything else of its link: many of
/// them are looked at in turn.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    peer: PeerMapping,
    header: usize,
}

impl Watch {
    /// Whether something stands there, judged or not.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.peer.load(self.header) != 0
    }
}

/// What was set aside, copied.
#[derive(Debug)]
pub(crate) enum SetAside<T> {
    Message(MessageKind, Vec<u8>),
    /// A parcel, opened. Its description was `len` bytes long.
    Parcel {
        opened: T,
        len: usize,
    },
}

impl Receiver {
    /// Whether there is something to look at, or the link is over.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.inbox.is_ready()
    }

    /// About to sleep on the socket. True: there is something to look at.
    #[cfg(feature = "tokio")]
    pub(crate) fn arm(&mut self) -> Result<bool> {
        self.inbox.arm()
    }

    /// Says that this half sleeps on the socket, and leaves the rest to the caller: a heavy barrier,
    /// once for any number of halves, and one more look.
    pub(crate) fn doze(&mut self) -> bool {
        let Inbox { flow, data, link, .. } = &mut self.inbox;
        if *flow != Flow::Open {
            return false;
        }
        link.arrivals().expect(DATA_WAKES);
        *flow = Flow::Armed;
        data.arm(link)
    }

    /// Awake again.
    pub(crate) fn wake(&mut self) {
        self.inbox.disarm();
    }

    /// Where the next record will show.
    pub(crate) fn watch(&self) -> Watch {
        Watch { peer: self.inbox.link.peer.clone(), header: self.inbox.consumer.next_header() }
    }

    /// Moves a watch to the next record.
    #[inline(always)]
    pub(crate) fn advance(&self, watch: &mut Watch) {
        watch.header = self.inbox.consumer.next_header();
    }

    /// Tells the peer how far this half has read: nothing more is there.
    #[inline(always)]
    pub(crate) fn rest(&mut self) {
        self.inbox.tell_position();
    }

    /// From now on triggers are given out like messages: [`Received::token`] tells them apart.
    pub(crate) fn take_triggers(&mut self) {
        self.inbox.takes_triggers = true;
    }

    /// What was set aside before, oldest first; a response only if it was asked for. Parcels are given to
    /// `open`; where that fails the link ends.
    pub(crate) fn pop_letter<T>(
        &mut self,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<SetAside<T>>> {
        let Some(letter) = self.backlog.take(|_| true) else { return Ok(None) };
        match letter.kind {
            MessageKind::Tensors => {
                let len = letter.body.len() + letter.attachments.len() * PINNED;
                let opened = self.open_letter(letter, open)?;
                return Ok(Some(SetAside::Parcel { opened, len }));
            }
            MessageKind::Response(id) => self.calls.finish(id),
            _ => {}
        }
        Ok(Some(SetAside::Message(letter.kind, letter.body)))
    }

    /// As [`response`](Self::response), but does not wait.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_response(
        &mut self,
        id: RequestId,
    ) -> Result<Option<Vec<u8>>, super::TryRecvError> {
        self.response_with(id, super::wait::Patience::None)
    }

    pub(crate) fn start_call(&mut self) -> Result<RequestId> {
        self.calls.make()
    }

    /// The request was never sent.
    pub(crate) fn cancel_call(&mut self, id: RequestId) {
        self.calls.unmake(id);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn give_up(&mut self, id: RequestId) {
        self.abandon(id);
    }
}

impl Received<'_> {
    /// The token that the peer triggers, if this is no message.
    #[inline(always)]
    pub(crate) fn token(&self) -> Option<Token> {
        if self.head.header.kind() == Kind::Trigger { self.read_token() } else { None }
    }

    fn read_token(&self) -> Option<Token> {
        let mut token = [0; Token::LEN];
        self.bytes().copy_to(&mut token);
        Some(u32::from_le_bytes(token).into())
    }

    /// Gives a trigger back. `known`: it does something here.
    #[inline(always)]
    pub(crate) fn finish_trigger(self, known: bool) {
        let inbox = &mut self.receiver.inbox;
        inbox.stats.stale_tokens += u64::from(!known);
        inbox.discard(self.head.header);
    }
}

impl Receiver {
    /// Ends the connection, because of what the peer sent.
    #[doc(hidden)]
    pub fn fail(&mut self, fault: Fault) -> Error {
        self.inbox.fail(fault)
    }
}

impl Sender {
    /// About to sleep on the socket until there is room: takes what has come there and says so to the
    /// peer. The caller looks once more.
    pub(crate) fn arm(&mut self) -> Result<()> {
        let link = &*self.link;
        let mut arrivals = link.arrivals();
        let taken = if link.by_descriptor() {
            arrivals.want_room();
            arrivals.take_for_room(&link.socket)
        } else {
            arrivals.take(&link.socket)
        };
        taken.map_err(|error| link.fail(error))?;
        arrivals.room_woken();
        arrivals.expect(ROOM_WAKES);
        before_last_look(self.room.arm(link));
        Ok(())
    }

    /// Says that this half sleeps on the socket, and leaves the rest to the caller: a heavy barrier,
    /// and one more look.
    pub(crate) fn doze(&mut self) -> bool {
        self.link.arrivals().expect(ROOM_WAKES);
        self.room.arm(&self.link)
    }

    /// When an operation that waits as long as [`Options::send_timeout`](crate::Options::send_timeout) allows
    /// gives up.
    #[doc(hidden)]
    pub fn default_deadline(&self) -> Instant {
        after(self.session.core.options.send_timeout)
    }

    /// Whether nothing has ended the link yet.
    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// Awake again.
    pub(crate) fn rouse(&mut self) {
        self.room.disarm(&self.link);
    }
}

/// The socket of a link, which wakes its halves when they are armed.
#[derive(Debug, Clone)]
pub struct LinkSocket {
    link: Arc<Link>,
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "for runtimes"))]
    spin: Spin,
}

impl LinkSocket {
    pub(super) fn new(link: Arc<Link>, spin: Spin) -> Self {
        Self { link, spin }
    }

    /// From now on somebody sleeps on it.
    pub fn use_descriptor(&self) {
        self.link.use_descriptor();
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn spin(&self) -> SpinPolicy {
        SpinPolicy::new(self.spin)
    }

    /// Whether no `fork` lies between the caller and the link's process.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_here(&self) -> bool {
        self.link.own.generation().is_current()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn peer(&self) -> &Peer {
        &self.link.identity
    }

    /// A half is about to say once more that it sleeps on the socket: takes the wake-ups of earlier
    /// sleeps if they may be many. True: one of them was for the receiving half, which may sleep.
    pub(crate) fn make_way(&self) -> Result<bool> {
        let mut arrivals = self.link.arrivals();
        if !arrivals.is_crowded() {
            return Ok(false);
        }
        let taken = arrivals.take_late(&self.link.socket);
        let woken = arrivals.data_woken();
        drop(arrivals);
        taken.map(|()| woken).map_err(|error| self.link.fail(error))
    }

    /// Something may have come: takes in descriptors, where any are admitted, that no record may ever name. True: more may
    /// be there. The caller looks at the receiving half next, whether it was woken or not.
    pub(crate) fn take_in(&self) -> bool {
        if !self.is_alive() {
            return false;
        }
        let taken = self.link.arrivals().take_in(&self.link.socket);
        taken.map_err(|error| self.link.fail(error)).unwrap_or(false)
    }

    /// What the kernel vouches for about the peer.
    pub(crate) fn credentials(&self) -> Credentials {
        self.link.identity.credentials
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_alive()
    }

    /// The kernel says that the peer's end is closed.
    pub(crate) fn hang_up(&self) {
        self.link.hang_up();
    }

    /// Whether a wake-up for the sending half was taken, which it has not heard of.
    #[cfg(feature = "tokio")]
    pub(crate) fn room_woken(&self) -> bool {
        self.link.arrivals().room_woken()
    }

    /// Whether a wake-up for the receiving half was taken; it hears of that when it arms.
    #[cfg(feature = "tokio")]
    pub(crate) fn data_woken(&self) -> bool {
        self.link.arrivals().is_data_woken()
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }
}

impl AsRawFd for LinkSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.link.socket.as_raw_fd()
    }
}
