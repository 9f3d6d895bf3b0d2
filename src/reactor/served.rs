//! One link as the loop has it: its receiving half, and who wants what comes.

use std::collections::{HashMap, VecDeque};

use crate::error::{Error, ErrorKind, Result};
use crate::reactor::commands::{Adopted, CallFn, ClosedFn, Command, MessageFn, ReadFn};
use crate::reactor::link::{Link, Message};
use crate::reactor::outgoing::{Submitted, What, Write};
use crate::reactor::shared::Shared;
use crate::shm::Bytes;
use crate::transport::{LinkSocket, MessageKind, Receiver, RequestId, TryRecvError, Watch};

/// How a link is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Its next header is looked at in every turn.
    Hot,
    /// Its peer sends a packet, as the link was silent.
    Armed,
    /// The same, as the loop sleeps.
    Asleep,
    /// A message waits that nobody wants yet.
    Stalled,
}

impl Mode {
    /// Whether the peer sends a packet.
    pub(super) fn is_armed(self) -> bool {
        matches!(self, Self::Armed | Self::Asleep)
    }
}

/// What a turn of a link came to.
pub(super) enum Outcome {
    /// Nothing more is there.
    Caught,
    /// There may be more.
    More,
    /// A message waits that nobody wants yet.
    Stalled,
    /// The link is over.
    Over(Result<()>),
}

/// What became of one message or trigger.
enum Step {
    Served,
    Unwanted,
    Empty,
    Over(Result<()>),
}

fn panicked() -> Step {
    Step::Over(Err(ErrorKind::CallbackPanicked.into()))
}

/// A link that the loop serves.
pub(super) struct Served {
    pub(super) link: Link,
    pub(super) receiver: Receiver,
    pub(super) socket: LinkSocket,
    pub(super) mode: Mode,
    /// Writes wait for room.
    pub(super) flushing: bool,
    letters: Letters,
    wants: Wants,
}

/// Messages that were set aside: before the connection was adopted, or while calls wait for responses
/// behind them.
struct Letters {
    queue: VecDeque<(MessageKind, Vec<u8>)>,
    bytes: usize,
    limit: usize,
}

impl Letters {
    /// Whether `len` bytes more may be set aside.
    fn admit(&self, len: usize) -> bool {
        self.queue.is_empty() || self.bytes + len <= self.limit
    }

    fn push(&mut self, kind: MessageKind, body: Vec<u8>) {
        self.bytes += body.len();
        self.queue.push_back((kind, body));
    }
}

/// Who wants what comes.
#[derive(Default)]
struct Wants {
    on_message: Option<MessageFn>,
    on_closed: Option<ClosedFn>,
    reads: VecDeque<ReadFn>,
    calls: HashMap<RequestId, CallFn>,
}

/// What became of a message.
enum Offered {
    Taken,
    Unwanted,
    Panicked,
}

impl Wants {
    /// No response will come.
    fn fail_calls(&mut self, link: &Link) {
        for call in std::mem::take(&mut self.calls).into_values() {
            link.guard(|| call(link, Err(ErrorKind::PeerClosed.into())));
        }
    }

    #[inline]
    fn offer(&mut self, link: &Link, kind: MessageKind, bytes: Bytes<'_>) -> Offered {
        let ran = match kind {
            MessageKind::Response(id) => match self.calls.remove(&id) {
                Some(call) => link.guard(|| call(link, Ok(bytes.to_vec()))),
                // Its release says what is wrong with it.
                None => Some(()),
            },
            MessageKind::Message if !self.reads.is_empty() => {
                let read = self.reads.pop_front();
                read.map_or(Some(()), |read| link.guard(|| read(link, Ok(Some(bytes.to_vec())))))
            }
            _ => match &mut self.on_message {
                Some(callback) => link.guard(|| callback(link, Message::new(kind, bytes))),
                None => return Offered::Unwanted,
            },
        };
        if ran.is_some() { Offered::Taken } else { Offered::Panicked }
    }
}

impl Served {
    pub(super) fn new(adopted: Adopted) -> Self {
        let Adopted { link, mut receiver, socket, set_aside } = adopted;
        let mut letters = Letters { queue: VecDeque::new(), bytes: 0, limit: set_aside };
        while let Some((kind, body)) = receiver.pop_letter() {
            letters.push(kind, body);
        }
        receiver.take_triggers();
        let (mode, wants) = (Mode::Hot, Wants::default());
        Self { link, receiver, socket, mode, flushing: false, letters, wants }
    }

    pub(super) fn watch(&self) -> Watch {
        self.receiver.watch()
    }

    /// Gives what has come to who wants it: up to `budget` messages and triggers, fewer when a
    /// callback has asked the loop for something. Gives how many, too.
    pub(super) fn serve(&mut self, budget: usize, shared: &Shared) -> (usize, Outcome) {
        for count in 0..budget {
            match self.serve_one() {
                Step::Served => {}
                Step::Unwanted => return (count, Outcome::Stalled),
                Step::Empty => return (count, Outcome::Caught),
                Step::Over(result) => return (count, Outcome::Over(result)),
            }
            if shared.is_pending() {
                return (count + 1, Outcome::More);
            }
            if !self.receiver.is_ready() && self.letters.queue.is_empty() {
                self.receiver.rest();
                return (count + 1, Outcome::Caught);
            }
        }
        (budget, Outcome::More)
    }

    /// Serves the next message or trigger.
    #[inline]
    fn serve_one(&mut self) -> Step {
        if !self.letters.queue.is_empty() {
            let step = self.serve_letter();
            // A response may come behind messages that nobody wants.
            if !matches!(step, Step::Unwanted) || self.wants.calls.is_empty() {
                return step;
            }
        }
        let received = match self.receiver.try_peek() {
            Ok(Some(received)) => received,
            Ok(None) => return self.over(Ok(())),
            Err(TryRecvError::Empty) => return Step::Empty,
            Err(TryRecvError::Failed(error)) => return self.over(Err(error)),
        };
        if let Some(token) = received.token() {
            let known = self.link.run(token);
            received.finish_trigger(known != Some(false));
            return if known.is_some() { Step::Served } else { panicked() };
        }
        let (kind, bytes) = (received.kind(), received.bytes());
        match self.wants.offer(&self.link, kind, bytes) {
            Offered::Taken => {}
            Offered::Unwanted
                if !self.wants.calls.is_empty() && self.letters.admit(bytes.len()) =>
            {
                self.letters.push(kind, bytes.to_vec());
            }
            Offered::Unwanted => {
                if !self.socket.is_alive() {
                    self.wants.fail_calls(&self.link);
                }
                return Step::Unwanted;
            }
            Offered::Panicked => return panicked(),
        }
        match received.release() {
            Ok(()) => Step::Served,
            Err(error) => self.over(Err(error)),
        }
    }

    #[cold]
    fn serve_letter(&mut self) -> Step {
        let Some((kind, body)) = self.letters.queue.pop_front() else { return Step::Empty };
        match self.wants.offer(&self.link, kind, Bytes::of(&body)) {
            Offered::Taken => {
                self.letters.bytes -= body.len();
                Step::Served
            }
            Offered::Unwanted => {
                self.letters.queue.push_front((kind, body));
                Step::Unwanted
            }
            Offered::Panicked => panicked(),
        }
    }

    /// Nothing more comes. What was set aside is received before the end is told.
    #[cold]
    fn over(&mut self, result: Result<()>) -> Step {
        if self.letters.queue.is_empty() {
            return Step::Over(result);
        }
        self.wants.fail_calls(&self.link);
        Step::Unwanted
    }

    /// Whether the next header shows everything that is left to do.
    pub(super) fn is_watched(&self) -> bool {
        let has_letters = !self.letters.queue.is_empty() && self.wants.calls.is_empty();
        !has_letters && self.socket.is_alive()
    }

    pub(super) fn on_message(&mut self, callback: MessageFn) {
        let before = self.wants.on_message.replace(callback);
        self.link.discard(before);
    }

    pub(super) fn on_closed(&mut self, callback: ClosedFn) {
        let before = self.wants.on_closed.replace(callback);
        self.link.discard(before);
    }

    pub(super) fn read(&mut self, callback: ReadFn) {
        self.wants.reads.push_back(callback);
    }

    /// Makes a request. `None`: a callback panicked.
    pub(super) fn call(&mut self, request: Vec<u8>, callback: CallFn) -> Option<()> {
        let id = match self.receiver.start_call() {
            Ok(id) => id,
            Err(error) => return self.link.guard(|| callback(&self.link, Err(error))),
        };
        self.wants.calls.insert(id, callback);
        let submitted = self.link.outgoing().submit(What::Request(id), request, None);
        match submitted {
            Submitted::Done(_, Err(error)) => {
                // It was not sent, so no response can come.
                self.link.suspect();
                self.unsent(id, error)
            }
            submitted => {
                self.link.settle(submitted);
                Some(())
            }
        }
    }

    /// A request was not sent, so no response can come. `None`: its callback panicked.
    fn unsent(&mut self, id: RequestId, error: Error) -> Option<()> {
        self.receiver.cancel_call(id);
        match self.wants.calls.remove(&id) {
            Some(callback) => self.link.guard(|| callback(&self.link, Err(error))),
            None => Some(()),
        }
    }

    /// Sends what waits for room, up to `budget` writes. Gives how many.
    pub(super) fn flush(&mut self, budget: usize) -> usize {
        for count in 0..budget {
            let flushed = self.link.outgoing().flush_one();
            match flushed {
                None => return count,
                Some((Write { what: What::Request(id), .. }, Err(error))) => {
                    self.link.suspect();
                    if self.unsent(id, error).is_none() {
                        let error = ErrorKind::CallbackPanicked.into();
                        self.link.post(Command::Abort(self.link.clone(), Some(error)));
                    }
                }
                // Behind the completions of writes that were done at once.
                Some((write, result)) => self.link.settle(Submitted::Done(write.done, result)),
            }
        }
        budget
    }

    /// The link is over: closes it for the peer, and tells everybody who waits.
    pub(super) fn end(self, result: Result<()>, by_us: Option<ErrorKind>) {
        let Self { link, receiver, wants, .. } = self;
        let Wants { on_message, on_closed, reads, calls } = wants;
        let kind = match &result {
            Err(error) => error.kind().clone(),
            Ok(()) => by_us.unwrap_or(ErrorKind::PeerClosed),
        };
        let mut remains = link.end(kind);
        remains.calls = calls.into_values().collect();
        drop(receiver);
        for read in reads {
            link.guard(|| read(&link, link.nothing_to_read()));
        }
        remains.complete();
        link.discard(on_message);
        if let Some(closed) = on_closed {
            // Behind the completions that wait to be called.
            link.post(Command::Closed(link.clone(), closed, result));
        }
    }
}
