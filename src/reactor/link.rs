//! The handle of a link that a reactor serves.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::channel::MessageKind;
use crate::channel::RequestId;
use crate::channel::Sender;
use crate::channel::Token;
use crate::error::TrySendError;
use crate::error::{Error, ErrorKind, Result, contain};
use crate::handshake::Credentials;
use crate::handshake::UntrustedFd;
use crate::reactor::commands::{Command, TokenFn, WriteFn};
use crate::reactor::outgoing::{Outgoing, Remains, Submitted, What};
use crate::reactor::shared::Shared;
use crate::reactor::table::Table;
use crate::shm::Bytes;

/// A connection that a [`Reactor`](crate::Reactor) serves: what comes is given to callbacks on the
/// reactor's thread, what goes may be written from any thread.
///
/// Cloning gives another handle of the same link. The link lives until it is [closed](Self::close)
/// from either side, whoever holds handles. A callback may do with it whatever any other code may,
/// closing included. A callback that panics ends its link, and nothing else.
#[derive(Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    key: u64,
    shared: Arc<Shared>,
    credentials: Credentials,
    max_message: u64,
    outgoing: Mutex<Outgoing>,
    tokens: Mutex<Table<TokenFn>>,
    stale_tokens: AtomicU64,
    /// Message callbacks that are on their way to the loop: the next message is for the last of them.
    changes: AtomicUsize,
    over: OnceLock<ErrorKind>,
}

/// A message that was received, where it lies. See [`Link::on_message`].
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    kind: MessageKind,
    bytes: Bytes<'a>,
}

impl<'a> Message<'a> {
    pub(super) fn new(kind: MessageKind, bytes: Bytes<'a>) -> Self {
        Self { kind, bytes }
    }

    /// Whether it is a plain message or a request, to be [answered](Link::respond).
    pub fn kind(&self) -> MessageKind {
        self.kind
    }

    /// The message's bytes, to copy out or to read in place.
    pub fn bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// The message's length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A copy of the message.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.to_vec()
    }
}

impl Link {
    pub(super) fn new(
        shared: Arc<Shared>,
        key: u64,
        credentials: Credentials,
        sender: Sender,
        write_limit: usize,
    ) -> Self {
        let max_message = sender.max_message();
        let inner = Inner {
            key,
            shared,
            credentials,
            max_message,
            outgoing: Mutex::new(Outgoing::new(sender, write_limit)),
            tokens: Mutex::default(),
            stale_tokens: AtomicU64::new(0),
            changes: AtomicUsize::new(0),
            over: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Gives every message and request from now on to `callback`, in order, where it lies. It replaces
    /// an earlier one, also from inside of it.
    ///
    /// Messages wait in the ring as long as there is neither this nor a pending
    /// [read](Self::read_with), which comes first. Tensors are for [`on_tensors`](Self::on_tensors).
    pub fn on_message(&self, callback: impl FnMut(&Link, Message<'_>) + Send + 'static) {
        self.change();
        self.post(Command::OnMessage(self.clone(), Box::new(callback)));
    }

    /// Calls `callback` once when the link is over, after every other callback of it: `Ok` if it was
    /// closed in order by either side, and everything that came before was received. It replaces an
    /// earlier one.
    pub fn on_closed(&self, callback: impl FnOnce(&Link, Result<()>) + Send + 'static) {
        self.post(Command::OnClosed(self.clone(), Box::new(callback)));
    }

    /// Gives the next message to `callback`; several such reads get a message each, in order. `None`:
    /// the peer has closed in order.
    pub fn read_with(
        &self,
        callback: impl FnOnce(&Link, Result<Option<Vec<u8>>>) + Send + 'static,
    ) {
        self.post(Command::Read(self.clone(), Box::new(callback)));
    }

    /// Sends a message, at once or as soon as there is room, in order, and then calls `callback`:
    /// with an error if it was not sent.
    pub fn write_with(
        &self,
        message: impl Into<Vec<u8>>,
        callback: impl FnOnce(&Link, Result<()>) + Send + 'static,
    ) {
        self.put(What::Message, message.into(), Some(Box::new(callback)));
    }

    /// As [`write_with`](Self::write_with), for somebody who learns of failures by
    /// [`on_closed`](Self::on_closed): a write that cannot be sent, or may not even wait
    /// ([`Options::write_limit`](crate::Options::write_limit)), ends the link.
    pub fn write(&self, message: impl Into<Vec<u8>>) {
        self.put(What::Message, message.into(), None);
    }

    /// Bytes of the writes that wait for room.
    pub fn waiting_bytes(&self) -> usize {
        if self.is_here() { self.outgoing().bytes() } else { 0 }
    }

    /// Sends a message if there is room and nothing else waits for it. The cheapest way.
    ///
    /// # Errors
    ///
    /// - [`TrySendError::Full`]: nothing was sent.
    /// - [`TrySendError::Failed`]: as [`Sender::send`](crate::Sender::send), and
    ///   [`ErrorKind::LinkClosed`].
    #[inline]
    pub fn try_send(&self, message: &[u8]) -> Result<(), TrySendError> {
        self.try_with(message.len(), |sender| sender.try_send(message))
    }

    /// Answers a request, as [`write`](Self::write).
    pub fn respond(&self, request: RequestId, body: impl Into<Vec<u8>>) {
        self.put(What::Response(request), body.into(), None);
    }

    /// Makes a request, and gives the response to `callback`.
    pub fn call_with(
        &self,
        request: impl Into<Vec<u8>>,
        callback: impl FnOnce(&Link, Result<Vec<u8>>) + Send + 'static,
    ) {
        self.post(Command::Call(self.clone(), request.into(), Box::new(callback)));
    }

    /// Registers a function for this link's peer to trigger: hand it the token in a message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TokensSpent`]: 65536 tokens of this link are registered, or spent.
    /// - What the link ended with, if it is over.
    pub fn register(&self, function: impl FnMut(&Link) + Send + 'static) -> Result<Token> {
        self.inner.shared.generation().check()?;
        let function = Box::new(function);
        let mut tokens = self.tokens();
        let answer = match self.inner.over.get() {
            Some(kind) => Err((kind.clone(), function as TokenFn)),
            None => tokens.register(function).map_err(|back| (ErrorKind::TokensSpent, back)),
        };
        // The function is dropped without the lock: it may hold handles of this link.
        drop(tokens);
        answer.map_err(|(kind, _)| kind.into())
    }

    /// Takes a token back: from now on it means nothing. `false`: it meant nothing before.
    pub fn unregister(&self, token: Token) -> bool {
        if !self.is_here() {
            return false;
        }
        let function = self.tokens().unregister(token);
        // Dropped without the lock: it may hold handles of this link.
        function.is_some()
    }

    /// Runs the function that the peer has registered under a token, in order with the messages.
    pub fn trigger(&self, token: Token) {
        self.put(What::Trigger(token), Vec::new(), None);
    }

    /// Tokens that the peer triggered and that did nothing: stale, or invented.
    pub fn stale_tokens(&self) -> u64 {
        self.inner.stale_tokens.load(Ordering::Relaxed)
    }

    /// Ends the link in order, after the writes that wait. What was sent is delivered. It takes as long as
    /// the peer does to make room for them.
    pub fn close(&self) {
        if self.is_here() {
            self.outgoing().close();
        }
        self.post(Command::Close(self.clone()));
    }

    /// Ends the link in order, at once: the writes that wait get an error.
    pub fn abort(&self) {
        self.post(Command::Abort(self.clone(), None));
    }

    /// Ends the link, because of what the peer sent.
    #[doc(hidden)]
    pub fn fail(&self, error: Error) {
        self.post(Command::Abort(self.clone(), Some(error)));
    }

    /// As [`Sender::take_descriptors`].
    #[doc(hidden)]
    pub fn take_descriptors(&self, first: u64, count: usize) -> Result<Vec<UntrustedFd>> {
        self.outgoing().take_descriptors(first, count)
    }

    /// Whether the link is not over yet.
    pub fn is_open(&self) -> bool {
        self.inner.over.get().is_none()
    }

    /// Who is on the other side, as the kernel vouched for when the connection was made.
    pub fn credentials(&self) -> Credentials {
        self.inner.credentials
    }

    /// The longest message in bytes: the smaller of both sides' limits.
    pub fn max_message(&self) -> u64 {
        self.inner.max_message
    }

    /// Whether a message callback is on its way to the loop.
    #[inline]
    pub(super) fn is_changing(&self) -> bool {
        self.inner.changes.load(Ordering::Relaxed) > 0
    }

    /// A message callback is about to be on its way to the loop.
    pub(super) fn change(&self) {
        self.inner.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// A message callback has arrived.
    pub(super) fn changed(&self) {
        self.inner.changes.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn key(&self) -> u64 {
        self.inner.key
    }

    pub(super) fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        // Nothing panics under the lock but a bug of ours, and every step leaves the queue whole.
        self.inner.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self) -> MutexGuard<'_, Table<TokenFn>> {
        self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that has the link: in a forked child some thread of the parent's may
    /// have held a lock for ever.
    fn is_here(&self) -> bool {
        self.inner.shared.generation().is_current()
    }

    /// Sends at once, or not at all.
    #[inline]
    pub(super) fn try_with(
        &self,
        needed: usize,
        send: impl FnOnce(&mut Sender) -> Result<(), TrySendError>,
    ) -> Result<(), TrySendError> {
        self.inner.shared.generation().check()?;
        let answer = self.outgoing().try_with(needed, send);
        self.explain(answer)
    }

    /// Writes at once, or later.
    pub(super) fn put(&self, what: What<'_>, body: Vec<u8>, done: Option<WriteFn>) {
        if !self.is_here() {
            if let Some(done) = done {
                self.guard(|| done(self, Err(ErrorKind::Forked.into())));
            }
            return;
        }
        let mut what = Some(what);
        let submitted = self.outgoing().submit(&mut what, body, done);
        // Memory that is not needed any more goes back before the completion is called.
        drop(what);
        self.settle(submitted);
    }

    pub(super) fn post(&self, command: Command) {
        self.inner.shared.post(command);
    }

    /// Sees to a write that was tried.
    pub(super) fn settle(&self, submitted: Submitted) {
        if let Submitted::Done(_, Err(_)) = &submitted {
            self.suspect();
        }
        match submitted {
            Submitted::Done(Some(done), result) => {
                let result = result.map_err(|error| self.reason(error));
                self.post(Command::Written(self.clone(), done, result));
            }
            // Nobody else would learn that something is missing.
            Submitted::Done(None, Err(error))
                if !says_an_end(error.kind()) && self.outgoing().is_alive() =>
            {
                self.post(Command::Abort(self.clone(), Some(error)));
            }
            Submitted::First => self.post(Command::Flush(self.clone())),
            Submitted::Done(None, _) | Submitted::Behind => {}
        }
    }

    fn explain(&self, answer: Result<(), TrySendError>) -> Result<(), TrySendError> {
        match answer {
            Err(TrySendError::Failed(error)) => {
                self.suspect();
                Err(self.reason(error).into())
            }
            answer => answer,
        }
    }

    /// A write has failed. If that ended the link, no event tells the loop of it.
    #[cold]
    pub(super) fn suspect(&self) {
        if self.is_open() {
            self.post(Command::Look(self.clone()));
        }
    }

    /// What a link that is over ended with says more than that it is over.
    fn reason(&self, error: Error) -> Error {
        match self.inner.over.get() {
            Some(kind) if *error.kind() == ErrorKind::LinkClosed => kind.clone().into(),
            _ => error,
        }
    }

    /// Why nothing can be done with the link any more.
    pub(super) fn over(&self) -> Error {
        self.inner.over.get().cloned().unwrap_or(ErrorKind::LinkClosed).into()
    }

    /// What a read of a link that is over gets: nothing, if the peer has closed in order.
    pub(super) fn nothing_to_read(&self) -> Result<Option<Vec<u8>>> {
        let error = self.over();
        if *error.kind() == ErrorKind::PeerClosed { Ok(None) } else { Err(error) }
    }

    /// What an `on_closed` of a link that is over gets.
    pub(super) fn ended(&self) -> Result<()> {
        let error = self.over();
        match error.kind() {
            ErrorKind::PeerClosed | ErrorKind::LinkClosed => Ok(()),
            _ => Err(error),
        }
    }

    /// Drops what a user gave, which may panic.
    pub(super) fn discard<T>(&self, given: T) {
        self.guard(|| drop(given));
    }

    /// Runs a callback. `None`: it panicked.
    #[inline]
    pub(super) fn guard<T>(&self, callback: impl FnOnce() -> T) -> Option<T> {
        contain(callback)
    }

    /// Runs the function under a token. `Some`: whether there is one. `None`: it panicked.
    pub(super) fn run(&self, token: Token) -> Option<bool> {
        let Some(mut function) = self.tokens().take(token) else {
            self.inner.stale_tokens.fetch_add(1, Ordering::Relaxed);
            return Some(false);
        };
        let ran = self.guard(|| function(self));
        let gone =
            if ran.is_some() { self.tokens().put_back(token, function) } else { Some(function) };
        self.discard(gone);
        ran.map(|()| true)
    }

    /// The link is over: from now on everything answers `kind`.
    pub(super) fn end(&self, kind: ErrorKind) -> Remains {
        let kind = self.inner.over.get_or_init(|| kind).clone();
        let (sender, writes) = self.outgoing().end();
        let tokens = std::mem::take(&mut *self.tokens());
        self.discard(tokens);
        Remains { link: self.clone(), kind, sender, writes, calls: Vec::new() }
    }
}

/// Whether a link with this error is over, or about to be found so behind what has come.
fn says_an_end(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PeerClosed
            | ErrorKind::PeerDied
            | ErrorKind::Fault(_)
            | ErrorKind::LinkClosed
            | ErrorKind::CallbackPanicked
            | ErrorKind::ReactorStopped
            | ErrorKind::Forked
    )
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("key", &self.inner.key)
            .field("over", &self.inner.over)
            .finish()
    }
}
