//! The loop's side of a link: its receiving half, and the dispatch of received messages to callbacks.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::channel::{KeptMessage, MessageKind, Receiver, RequestId, SLICE, Watch};
use crate::error::{Error, ErrorKind, Result, TryRecvError, contain};
use crate::link::LinkSocket;
use crate::reactor::command::{
    CallFn, ClosedFn, Command, Content, LongFn, MessageFn, ReadFn, TensorRequestFn, TensorsFn,
};
use crate::reactor::deferred::DeferredMessages;
use crate::reactor::interest::{InterestSet, Offered, Wish};
use crate::reactor::link::Link;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::message::Message;
use crate::reactor::write_queue::{Payload, Submitted};
use crate::shm::Bytes;
use crate::tensor::TensorSet;

/// The bytes of messages after which a link's turn ends. Source: [`SLICE`], the copy of which takes about 50 µs where the memory is in
/// a cache.
pub(crate) const QUANTUM: usize = SLICE;

/// A tensor of a set counts as this many bytes: it takes a microsecond or more to take it out.
pub(crate) const TENSOR: usize = 4096;

/// How the loop learns that a link has something.
///
/// ```text
///            silent, or the loop sleeps
///   Polled ─────────────────────────────▶ Armed
///     │  ▲◀───────────────────────────────  │
///     │  │       event of its socket
///     │  └── a callback arrives
///     ▼
///   Stalled: a message waits that no callback wants
///   Resting: a record waits for the link's share of time
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The loop polls the link's next header in every turn.
    Polled,
    /// The peer sends a packet with the next message.
    Armed,
    /// A message waits that no callback wants.
    Stalled,
    /// A record waits for packets, and the link has spent its share of the loop's time.
    Resting,
}

/// How a turn of a link ended.
pub(super) enum Outcome {
    /// The link goes on. Its next header shows whether more has come.
    Served,
    /// A message waits that no callback wants.
    Stalled,
    /// The next record waits so long for the link's share of time.
    Rests(Duration),
    /// The link has ended.
    Ended(Result<()>),
}

/// What follows from a flush.
pub(super) enum Flushed {
    /// Writes wait.
    Waiting,
    /// No write waits.
    Empty,
    /// No write waits, and the link closes.
    Closing,
}

/// How the dispatch of one message or trigger ended.
enum Dispatch {
    /// A message of so many bytes, or a trigger, has been handled.
    Served(usize),
    /// So many plain messages have been handled, of so many bytes together.
    Ran(usize, usize),
    /// The copy of a long message goes on in the next turn.
    Paused,
    Unwanted,
    /// Nothing has come, or the next record needs packets, which the link takes in a later turn.
    Empty,
    Ended(Result<()>),
}

fn panicked() -> Dispatch {
    Dispatch::Ended(Err(ErrorKind::CallbackPanicked.into()))
}

/// The loop's side of a link.
pub(super) struct ActiveLink {
    link: Link,
    receiver: Receiver,
    socket: LinkSocket,
    mode: Mode,
    /// Whether the loop flushes the link's writes, which wait for room.
    flushing: bool,
    deferred: DeferredMessages,
    interest: InterestSet,
}

impl ActiveLink {
    pub(super) fn new(
        link: Link,
        mut receiver: Receiver,
        socket: LinkSocket,
        deferred_limit: usize,
    ) -> Self {
        let deferred = DeferredMessages::of(&mut receiver, deferred_limit);
        receiver.take_triggers();
        receiver.take_turns();
        let (mode, interest) = (Mode::Polled, InterestSet::default());
        Self { link, receiver, socket, mode, flushing: false, deferred, interest }
    }

    #[inline(always)]
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns where the next record of the link shows, if the loop polls the link.
    pub(super) fn watch(&self) -> Option<Watch> {
        (self.mode == Mode::Polled).then(|| self.receiver.watch())
    }

    /// Moves a watch to the next record.
    #[inline(always)]
    pub(super) fn advance(&self, watch: &mut Watch) {
        self.receiver.advance(watch);
    }

    /// Polls the link from now on, if its peer sends a packet with the next message, or if it rests.
    pub(super) fn disarm(&mut self) {
        match self.mode {
            Mode::Armed => self.receiver.wake(),
            Mode::Resting => {}
            Mode::Polled | Mode::Stalled => return,
        }
        self.mode = Mode::Polled;
    }

    /// Does not poll the link until its rest is over.
    pub(super) fn rest(&mut self) {
        self.mode = Mode::Resting;
    }

    /// Does not poll the link until a callback arrives.
    pub(super) fn stall(&mut self) {
        self.mode = Mode::Stalled;
    }

    /// Polls the link from now on, if it was stalled. Returns whether it was.
    pub(super) fn unstall(&mut self) -> bool {
        let was_stalled = self.mode == Mode::Stalled;
        if was_stalled {
            self.mode = Mode::Polled;
        }
        was_stalled
    }

    /// Says to the peer that the link is armed. Returns whether the receiver was hot. The caller passes
    /// [`before_last_look`](crate::wake::before_last_look), and then [`finish_arm`](Self::finish_arm).
    #[must_use]
    pub(super) fn begin_arm(&mut self) -> bool {
        self.note_sleep();
        self.receiver.doze()
    }

    /// Checks the link once more after [`begin_arm`](Self::begin_arm). Returns whether the link is armed. Otherwise the
    /// link has something, and the loop goes on to poll it.
    pub(super) fn finish_arm(&mut self) -> bool {
        if !self.receiver.is_ready() {
            self.mode = Mode::Armed;
            return true;
        }
        self.receiver.wake();
        self.receiver.check_held();
        if !self.socket.is_alive() {
            // No header shows that a link has ended.
            self.link.post_poll();
        }
        false
    }

    /// Says to the peer that the sending half sleeps until there is room. Returns whether that half was hot. The caller
    /// passes [`before_last_look`](crate::wake::before_last_look), and flushes once more.
    #[must_use]
    pub(super) fn arm_writes(&mut self) -> bool {
        self.note_sleep();
        self.link.writes().arm()
    }

    /// Notes that a half is about to sleep. Wake-up packets may be taken here, and a packet that is taken makes no event.
    fn note_sleep(&self) {
        if self.socket.note_sleep().unwrap_or(true) {
            self.link.post_poll();
        }
    }

    /// Takes an event of the link's socket. Returns whether the loop serves the link for it.
    pub(super) fn take_event(&mut self, hung_up: bool) -> bool {
        if hung_up {
            self.socket.hang_up();
        }
        matches!(self.mode, Mode::Polled | Mode::Armed) || !self.socket.is_alive()
    }

    /// Takes in what the socket holds. If it may hold more, the loop polls the link in the next turn, too, or after the time
    /// that this returns.
    pub(super) fn take_packets(&mut self) -> Option<Duration> {
        let rest = self.socket.take_in().then(|| self.receiver.socket_rest())?;
        if rest.is_none() {
            self.link.post_poll();
        }
        rest
    }

    /// Dispatches up to `budget` messages and triggers, fewer if they are long or a callback has sent the loop a command.
    /// Returns how many, too.
    pub(super) fn serve(&mut self, budget: usize, mailbox: &Mailbox<Command>) -> (usize, Outcome) {
        let (mut count, mut bytes, mut outcome) = (0, 0, Outcome::Served);
        while count < budget && bytes < QUANTUM {
            let run = self.dispatch_run((budget - count, QUANTUM - bytes), mailbox);
            match run.unwrap_or_else(|| self.dispatch_next()) {
                Dispatch::Served(len) => {
                    count += 1;
                    bytes += len;
                }
                Dispatch::Ran(run, len) => {
                    count += run;
                    bytes += len;
                }
                Dispatch::Paused => break,
                Dispatch::Empty => {
                    if self.receiver.is_ready()
                        && let Some(rest) = self.receiver.socket_rest()
                    {
                        outcome = Outcome::Rests(rest);
                    }
                    break;
                }
                Dispatch::Unwanted => {
                    outcome = Outcome::Stalled;
                    break;
                }
                Dispatch::Ended(result) => {
                    outcome = Outcome::Ended(result);
                    break;
                }
            }
            if mailbox.is_pending() {
                break;
            }
            if !self.receiver.is_ready() && self.deferred.is_empty() {
                self.receiver.publish_position();
                break;
            }
        }
        if count > 0 {
            self.link.publish_received(&self.receiver.stats());
        }
        if matches!(outcome, Outcome::Served) && !self.is_shown_by_header() {
            self.link.post_poll();
        }
        (count, outcome)
    }

    /// Dispatches the plain messages that come next, up to so many and about so many bytes, fewer if a callback has sent the loop a
    /// command. `None`: another message, or nothing, comes next, or no callback takes all of them in place.
    #[inline(always)]
    fn dispatch_run(
        &mut self,
        (budget, quantum): (usize, usize),
        mailbox: &Mailbox<Command>,
    ) -> Option<Dispatch> {
        let Self { link, receiver, interest, deferred, .. } = self;
        let callback = interest.plain().filter(|_| deferred.is_empty())?;
        let (mut bytes, mut has_panicked) = (0, false);
        let count = receiver.take_run(budget, |message| {
            bytes += message.len();
            has_panicked = contain(|| callback(link, Message::plain(message))).is_none();
            !has_panicked && bytes < quantum && !mailbox.is_pending()
        });
        if has_panicked {
            return Some(panicked());
        }
        (count > 0).then_some(Dispatch::Ran(count, bytes))
    }

    /// Dispatches the next message or trigger.
    #[inline]
    fn dispatch_next(&mut self) -> Dispatch {
        if !self.deferred.is_empty() {
            let dispatched = self.dispatch_deferred();
            // A response may come behind messages that no callback wants.
            if !matches!(dispatched, Dispatch::Unwanted) || !self.interest.has_calls() {
                return dispatched;
            }
        }
        let mut received = match self.receiver.try_next() {
            Ok(Some(received)) => received,
            Ok(None) => return self.end_of_input(Ok(())),
            Err(TryRecvError::Empty) => return Dispatch::Empty,
            Err(TryRecvError::Failed(error)) => return self.end_of_input(Err(error)),
        };
        if let Some(token) = received.token() {
            let known = self.link.run(token);
            received.finish_trigger(known != Some(false));
            return if known.is_some() { Dispatch::Served(0) } else { panicked() };
        }
        let (kind, len) = (received.kind(), received.size());
        // A message behind deferred ones waits for them. A response passes them.
        let is_next = self.deferred.is_empty() || kind.answers().is_some();
        let may_defer = self.interest.has_calls() && self.deferred.admits(len);
        if kind.has_tensors() {
            let wanted = is_next && self.interest.wants_tensors(kind);
            let charge = if !wanted && may_defer { self.deferred.charge(len) } else { None };
            if !wanted && charge.is_none() {
                received.leave();
                return self.keep_unwanted();
            }
            match received.is_at_hand() {
                Ok(true) => {}
                Ok(false) => {
                    received.leave();
                    return Dispatch::Empty;
                }
                Err(error) => return self.end_of_input(Err(error)),
            }
            if wanted {
                return match received.into_tensors() {
                    Ok(tensors) => self.dispatch_tensors(kind, tensors),
                    Err(error) => self.end_of_input(Err(error)),
                };
            }
            let kept = received.keep().and_then(|kept| {
                self.deferred
                    .push(KeptMessage { charge, ..kept })
                    .map_err(|error| self.receiver.end(error))
            });
            return match kept {
                Ok(()) => Dispatch::Served(len),
                Err(error) => self.end_of_input(Err(error)),
            };
        }
        let is_alive = || self.socket.is_alive();
        let wish = if is_next { self.interest.wish(kind, len, is_alive) } else { Wish::Nobody };
        let offered = if wish == Wish::LeftOut {
            Offered::Taken
        } else if wish == Wish::InPlace {
            let content = (received.bytes(), received.metadata());
            self.interest.offer(&self.link, Message::new(kind, content, received.lender()))
        } else if wish == Wish::Nobody && !may_defer {
            received.leave();
            return self.keep_unwanted();
        } else {
            let Some(copy) = received.copy_slice() else {
                received.leave();
                return Dispatch::Paused;
            };
            let mut copy = copy.and_then(|copied| received.check().map(|()| copied));
            if wish == Wish::Copy {
                self.interest.offer_copy(&self.link, kind, copy)
            } else {
                let charge = match &mut copy {
                    Ok((_, charge)) => charge.take().or_else(|| self.deferred.charge(len)),
                    Err(_) => None,
                };
                let is_refused = match &copy {
                    Ok(_) => charge.is_none(),
                    Err(error) => matches!(error.kind(), ErrorKind::AccountFull { .. }),
                };
                if is_refused {
                    received.leave();
                    return self.keep_unwanted();
                }
                let metadata = received.metadata().clone();
                let aside =
                    |body| KeptMessage { kind, body, metadata, attachments: Vec::new(), charge };
                let push = |(body, _)| self.deferred.push(aside(body));
                if let Err(error) = copy.and_then(push) {
                    let error = received.fail(error);
                    return self.end_of_input(Err(error));
                }
                Offered::Taken
            }
        };
        if matches!(offered, Offered::Panicked) {
            return panicked();
        }
        match received.release() {
            // It has taken no time that depends on its length.
            Ok(()) if wish == Wish::LeftOut => Dispatch::Served(0),
            Ok(()) => Dispatch::Served(len),
            Err(error) => self.end_of_input(Err(error)),
        }
    }

    /// Leaves the next message in the ring.
    #[cold]
    fn keep_unwanted(&mut self) -> Dispatch {
        if !self.socket.is_alive() {
            self.interest.fail_calls(&self.link);
        }
        Dispatch::Unwanted
    }

    /// Dispatches tensors that a callback wants.
    fn dispatch_tensors(&mut self, kind: MessageKind, tensors: TensorSet) -> Dispatch {
        let took = TENSOR * tensors.len().saturating_sub(1);
        match self.interest.offer_tensors(&self.link, kind, tensors) {
            Offered::Panicked => panicked(),
            _ => Dispatch::Served(took),
        }
    }

    /// Dispatches the first deferred message.
    #[cold]
    fn dispatch_deferred(&mut self) -> Dispatch {
        let Some(message) = self.deferred.pop() else { return Dispatch::Empty };
        let kind = message.kind;
        if kind.has_tensors() && self.interest.wants_tensors(kind) {
            return match self.receiver.open_set_of(message) {
                Ok(tensors) => self.dispatch_tensors(kind, tensors),
                Err(error) if self.deferred.is_empty() => Dispatch::Ended(Err(error)),
                // Those behind it come first, and then the error from the ring.
                Err(_) => Dispatch::Served(0),
            };
        }
        let wish = match kind.has_tensors() {
            true => Wish::Nobody,
            false => self.interest.wish(kind, message.body.len(), || true),
        };
        let offered = match wish {
            Wish::Copy => {
                let len = message.body.len();
                let copied = Ok((message.body, message.charge));
                return match self.interest.offer_copy(&self.link, kind, copied) {
                    Offered::Panicked => panicked(),
                    _ => Dispatch::Served(len),
                };
            }
            Wish::InPlace => {
                let content = (Bytes::of(&message.body), &message.metadata);
                self.interest.offer(&self.link, Message::new(kind, content, None))
            }
            Wish::Nobody | Wish::LeftOut => Offered::Unwanted,
        };
        match offered {
            Offered::Taken => Dispatch::Served(0),
            Offered::Unwanted => {
                self.deferred.push_front(message);
                Dispatch::Unwanted
            }
            Offered::Panicked => panicked(),
        }
    }

    /// The ring holds nothing more. The link ends after the deferred messages.
    #[cold]
    fn end_of_input(&mut self, result: Result<()>) -> Dispatch {
        if self.deferred.is_empty() {
            return Dispatch::Ended(result);
        }
        self.interest.fail_calls(&self.link);
        Dispatch::Unwanted
    }

    /// Returns whether the next header shows all work that the link has.
    fn is_shown_by_header(&self) -> bool {
        let has_deferred = !self.deferred.is_empty() && !self.interest.has_calls();
        !has_deferred && self.socket.is_alive() && !self.receiver.is_cut()
    }

    pub(super) fn on_message(&mut self, callback: MessageFn) {
        self.interest.set_message(callback);
    }

    pub(super) fn on_long(&mut self, callback: LongFn) {
        self.interest.set_long(callback);
    }

    pub(super) fn on_tensors(&mut self, callback: TensorsFn) {
        self.interest.set_tensors(callback);
    }

    pub(super) fn on_tensor_request(&mut self, callback: TensorRequestFn) {
        self.interest.set_tensor_requests(callback);
    }

    pub(super) fn on_closed(&mut self, callback: ClosedFn) {
        self.interest.set_closed(callback);
    }

    pub(super) fn read(&mut self, callback: ReadFn) {
        self.interest.push_read(callback);
    }

    /// Makes a request. Returns `None` if a callback panicked.
    pub(super) fn call(&mut self, request: Content, callback: CallFn) -> Option<()> {
        let id = match self.receiver.start_call() {
            Ok(id) => id,
            Err(error) => return contain(|| callback(&self.link, Err(error))),
        };
        self.interest.insert_call(id, callback);
        let (payload, body) = match request {
            Content::Bytes(body, metadata) => (Payload::Request(id, metadata), body),
            Content::Tensors(tensors) => (Payload::TensorRequest(id, tensors), Vec::new()),
        };
        let mut payload = Some(payload);
        let submitted = self.link.writes().submit(&mut payload, body, None);
        drop(payload);
        match submitted {
            Submitted::Done(_, Err(error)) => {
                self.link.poll_after_failure();
                self.cancel_call(id, error)
            }
            submitted => {
                self.link.settle(submitted);
                Some(())
            }
        }
    }

    /// Cancels the call of a request that the link did not send: no response can come. Returns `None` if its callback
    /// panicked.
    fn cancel_call(&mut self, id: RequestId, error: Error) -> Option<()> {
        self.receiver.cancel_call(id);
        match self.interest.remove_call(id) {
            Some(callback) => contain(|| callback(&self.link, Err(error))),
            None => Some(()),
        }
    }

    /// Begins to flush. Returns `false` if the loop flushes the link's writes already.
    pub(super) fn begin_flushing(&mut self) -> bool {
        !std::mem::replace(&mut self.flushing, true)
    }

    /// Sends up to `budget` of the writes that wait for room, fewer if they are long. Returns how many, and what follows.
    pub(super) fn flush(&mut self, budget: usize) -> (usize, Flushed) {
        let (mut count, mut bytes) = (0, 0);
        while count < budget
            && bytes < QUANTUM
            && let Some(sent) = self.flush_one()
        {
            count += 1;
            bytes += sent;
        }
        let writes = self.link.writes();
        let flushed = match (writes.waiting(), writes.is_closing()) {
            (0, true) => Flushed::Closing,
            (0, false) => Flushed::Empty,
            _ => Flushed::Waiting,
        };
        self.flushing = matches!(flushed, Flushed::Waiting);
        (count, flushed)
    }

    /// Sends the first write that waits for room. Returns the bytes that it counts, or `None` if none waits or there is no
    /// room.
    fn flush_one(&mut self) -> Option<usize> {
        let (write, result) = self.link.writes().flush_one()?;
        let bytes = write.bytes();
        match (write.request(), result) {
            (Some(id), Err(error)) => {
                self.link.poll_after_failure();
                if self.cancel_call(id, error).is_none() {
                    let error = ErrorKind::CallbackPanicked.into();
                    self.link.post(Command::Abort(self.link.clone(), Some(error)));
                }
            }
            // The completion stands behind those of writes that were sent at once.
            (_, result) => self.link.settle(Submitted::Done(write.into_done(), result)),
        }
        Some(bytes)
    }

    /// Ends the link: closes it for the peer, and calls every callback that waits. `by_us` says why, if this side ended
    /// it.
    pub(super) fn end(self, result: Result<()>, by_us: Option<ErrorKind>) {
        let Self { link, receiver, deferred, mut interest, .. } = self;
        let kind = match &result {
            Err(error) => error.kind().clone(),
            Ok(()) => by_us.unwrap_or(ErrorKind::PeerClosed),
        };
        link.publish_received(&receiver.stats());
        let remains = link.end(kind);
        // The spans of its calls end, which runs the application's code.
        contain(|| drop((deferred, receiver)));
        interest.end_reads(&link);
        remains.complete(interest.take_calls());
        interest.close(&link, result);
    }
}

impl AsFd for ActiveLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
