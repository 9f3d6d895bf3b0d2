//! One link as the loop has it: its receiving half, and who wants what comes.

use crate::channel::MessageKind;
use crate::channel::Receiver;
use crate::channel::RequestId;
use crate::channel::SetAside;
use crate::channel::Watch;
use crate::error::TryRecvError;
use crate::error::{Error, ErrorKind, Result};
use crate::link::LinkSocket;
use crate::reactor::commands::{Adopted, CallFn, ClosedFn, Command, MessageFn, ReadFn, TensorsFn};
use crate::reactor::letters::Letters;
use crate::reactor::link::Link;
use crate::reactor::outgoing::{Submitted, What, Write};
use crate::reactor::shared::Shared;
use crate::reactor::wants::{Offered, Wants};
use crate::shm::Bytes;

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

impl Served {
    pub(super) fn new(adopted: Adopted) -> Self {
        let Adopted { link, mut receiver, socket, set_aside } = adopted;
        let letters = Letters::of(&mut receiver, set_aside);
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
            if !self.receiver.is_ready() && self.letters.is_empty() {
                self.receiver.publish_position();
                return (count + 1, Outcome::Caught);
            }
        }
        (budget, Outcome::More)
    }

    /// Serves the next message or trigger.
    #[inline]
    fn serve_one(&mut self) -> Step {
        if !self.letters.is_empty() {
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
        let (kind, len) = (received.kind(), received.size());
        // What is behind something that was set aside is not served before it, but for responses.
        let is_next = self.letters.is_empty() || matches!(kind, MessageKind::Response(_));
        let set_aside = !self.wants.calls.is_empty() && self.letters.admits(len);
        if kind == MessageKind::Tensors {
            let wanted = is_next && self.wants.on_tensors.is_some();
            if !wanted && !set_aside {
                return self.leave();
            }
            return match received.into_tensors() {
                Ok(tensors) if wanted => match self.wants.offer_tensors(&self.link, tensors) {
                    Ok(Offered::Panicked) => panicked(),
                    _ => Step::Served,
                },
                Ok(opened) => {
                    self.letters.push(SetAside::Tensors { opened, len });
                    Step::Served
                }
                Err(error) => self.over(Err(error)),
            };
        }
        let offered = if is_next {
            self.wants.offer(&self.link, kind, received.bytes())
        } else {
            Offered::Unwanted
        };
        match offered {
            Offered::Taken => {}
            Offered::Unwanted if set_aside => {
                self.letters.push_message(kind, received.bytes().to_vec());
            }
            Offered::Unwanted => return self.leave(),
            Offered::Panicked => return panicked(),
        }
        match received.release() {
            Ok(()) => Step::Served,
            Err(error) => self.over(Err(error)),
        }
    }

    /// What comes next stays where it is.
    #[cold]
    fn leave(&mut self) -> Step {
        if !self.socket.is_alive() {
            self.wants.fail_calls(&self.link);
        }
        Step::Unwanted
    }

    #[cold]
    fn serve_letter(&mut self) -> Step {
        let Some(letter) = self.letters.pop() else { return Step::Empty };
        let (offered, letter) = match letter {
            SetAside::Message(kind, body) => {
                let offered = self.wants.offer(&self.link, kind, Bytes::of(&body));
                (offered, SetAside::Message(kind, body))
            }
            SetAside::Tensors { opened, len } => {
                match self.wants.offer_tensors(&self.link, opened) {
                    Ok(Offered::Panicked) => return panicked(),
                    Ok(_) => return Step::Served,
                    Err(opened) => (Offered::Unwanted, SetAside::Tensors { opened, len }),
                }
            }
        };
        match offered {
            Offered::Taken => Step::Served,
            Offered::Unwanted => {
                self.letters.put_back(letter);
                Step::Unwanted
            }
            Offered::Panicked => panicked(),
        }
    }

    /// Nothing more comes. What was set aside is received before the end is told.
    #[cold]
    fn over(&mut self, result: Result<()>) -> Step {
        if self.letters.is_empty() {
            return Step::Over(result);
        }
        self.wants.fail_calls(&self.link);
        Step::Unwanted
    }

    /// Whether the next header shows everything that is left to do.
    pub(super) fn is_watched(&self) -> bool {
        let has_letters = !self.letters.is_empty() && self.wants.calls.is_empty();
        !has_letters && self.socket.is_alive()
    }

    pub(super) fn on_message(&mut self, callback: MessageFn) {
        let before = self.wants.on_message.replace(callback);
        self.link.discard(before);
    }

    pub(super) fn on_tensors(&mut self, callback: TensorsFn) {
        let before = self.wants.on_tensors.replace(callback);
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
        let submitted = self.link.outgoing().submit(&mut Some(What::Request(id)), request, None);
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
                Some((write, result)) => {
                    self.link.settle(Submitted::Done(write.into_done(), result))
                }
            }
        }
        budget
    }

    /// The link is over: closes it for the peer, and tells everybody who waits.
    pub(super) fn end(self, result: Result<()>, by_us: Option<ErrorKind>) {
        let Self { link, receiver, letters, wants, .. } = self;
        let Wants { on_message, on_tensors, on_closed, reads, calls } = wants;
        let kind = match &result {
            Err(error) => error.kind().clone(),
            Ok(()) => by_us.unwrap_or(ErrorKind::PeerClosed),
        };
        let mut remains = link.end(kind);
        remains.calls = calls.into_values().collect();
        drop((letters, receiver));
        for read in reads {
            link.guard(|| read(&link, link.nothing_to_read()));
        }
        remains.complete();
        link.discard(on_message);
        link.discard(on_tensors);
        if let Some(closed) = on_closed {
            // Behind the completions that wait to be called.
            link.post(Command::Closed(link.clone(), closed, result));
        }
    }
}
