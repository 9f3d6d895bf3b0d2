//! The handle of a link that a reactor serves.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::channel::{
    CallSpan, Copied, HalfStats, MessageKind, Metadata, RequestId, Sender, Token,
};
use crate::error::{Error, ErrorKind, Result, TrySendError, contain};
use crate::handshake::{Peer, UntrustedFd};
use crate::reactor::command::{CallFn, Command, Content, Response, TokenFn, WriteFn};
use crate::reactor::mailbox::Mailbox;
use crate::reactor::message::Message;
use crate::reactor::stats::{LinkStats, ReceiveCounters};
use crate::reactor::token_table::TokenTable;
use crate::reactor::write_queue::{Payload, Submitted, Write, WriteQueue};
use crate::tensor::{Outgoing, Tensor, TensorRequest, TensorSet};

/// A connection that a [`Reactor`](crate::Reactor) serves. The reactor's thread hands received messages to callbacks, and
/// any thread may write.
///
/// Cloning returns another handle of the same link. The link lives until one side [closes](Self::close) it, whether or
/// not handles are left. A callback may do with the link all that other code may do, closing included. A callback
/// that panics ends its link, and nothing else.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context, Reactor};
///
/// let address = Address::fresh();
/// let context = Context::new()?;
/// let mut listener = context.listen(&address)?;
/// let server = std::thread::spawn(move || {
///     let mut peer = listener.accept()?;
///     let request = peer.recv_request()?.expect("a request");
///     peer.respond(request.id, &request.body.to_ascii_uppercase())
/// });
///
/// let reactor = Reactor::spawn(&context)?;
/// let link = reactor.adopt(context.connect(&address)?)?;
/// let (sender, receiver) = std::sync::mpsc::channel();
/// link.call_with(b"hello", move |_, response| {
///     let _ = sender.send(response);
/// });
/// assert_eq!(receiver.recv().unwrap()?, b"HELLO");
/// server.join().unwrap()?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Clone)]
pub struct Link {
    core: Arc<LinkCore>,
}

struct LinkCore {
    key: u64,
    mailbox: Arc<Mailbox<Command>>,
    peer: Peer,
    max_message: u64,
    writes: Mutex<WriteQueue<WriteFn>>,
    tokens: Mutex<TokenTable<TokenFn>>,
    stale_tokens: AtomicU64,
    received: ReceiveCounters,
    /// Commands on their way to the loop that set a callback for messages or tensors. The next message is for the last
    /// such callback.
    pending_changes: AtomicUsize,
    /// A [`Command::Poll`] of this link waits in the mailbox. A second one would add nothing, and a link whose polls post
    /// polls would fill the mailbox.
    poll_pending: AtomicBool,
    /// Why the link ended, after its end.
    ended: OnceLock<ErrorKind>,
}

impl Link {
    pub(super) fn new(
        mailbox: Arc<Mailbox<Command>>,
        key: u64,
        peer: Peer,
        sender: Sender,
        write_limit: usize,
    ) -> Self {
        let max_message = sender.max_message();
        let core = LinkCore {
            key,
            mailbox,
            peer,
            max_message,
            writes: Mutex::new(WriteQueue::new(sender, write_limit)),
            tokens: Mutex::default(),
            stale_tokens: AtomicU64::new(0),
            received: ReceiveCounters::default(),
            pending_changes: AtomicUsize::new(0),
            poll_pending: AtomicBool::new(false),
            ended: OnceLock::new(),
        };
        Self { core: Arc::new(core) }
    }

    /// Sets the callback that gets every later message and request, in order and in the peer's memory. It replaces an
    /// earlier one, also from inside that one.
    ///
    /// Messages wait in the ring while the link has neither such a callback nor a pending [read](Self::read_with). A
    /// pending read comes first. Tensors go to [`on_tensors`](Self::on_tensors).
    ///
    /// A peer that ends the link can take the memory of a long message back. The callback does not get a message whose
    /// memory was taken back before. If the peer takes it back during the callback, [`Message::check`] says so there, and
    /// the link ends with [`ErrorKind::LoanRevoked`] afterwards. A callback that acts on a long message copies it and
    /// checks first.
    pub fn on_message(&self, callback: impl FnMut(&Link, Message<'_>) + Send + 'static) {
        self.begin_change();
        self.post(Command::OnMessage(self.clone(), Box::new(callback)));
    }

    /// Sets the callback that gets a copy of each long message for which [`on_message`](Self::on_message) has a callback.
    /// The loop makes the copy in slices, as for [`read_with`](Self::read_with). The callback gets what the link's account
    /// holds for the copy, too. Long messages of a peer that has ended are left out: the loop does not copy them.
    #[doc(hidden)]
    pub fn on_long(
        &self,
        callback: impl FnMut(&Link, MessageKind, Result<Copied>) + Send + 'static,
    ) {
        self.post(Command::OnLong(self.clone(), Box::new(callback)));
    }

    /// Sets the callback that gets the tensors of every later message that has some, in order with the messages
    /// that [`on_message`](Self::on_message) gets. It replaces an earlier one, also from inside that one.
    ///
    /// The callback owns the set. Dropping the set, on any thread, returns the loans in it to the peer.
    ///
    /// While the link has no such callback, tensors wait in the ring, and the messages behind them wait too.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::{Address, Context, Reactor, Tensor};
    ///
    /// let address = Address::fresh();
    /// let context = Context::new()?;
    /// let reactor = Reactor::spawn(&context)?;
    /// let serving = reactor.clone();
    /// reactor.accept_with(context.listen(&address)?, move |accepted| {
    ///     if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
    ///         link.on_tensors(|link, inputs| {
    ///             let values = inputs.get("values").and_then(|values| values.to_vec::<f32>().ok());
    ///             let sum: f32 = values.unwrap_or_default().iter().sum();
    ///             link.write_tensor(Tensor::from_slice([], &[sum]).unwrap());
    ///         });
    ///     }
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    ///
    /// let mut client = context.connect(&address)?;
    /// let mut values = context.alloc::<f32>([1000])?;
    /// values.fill(0.5);
    /// let mut inputs = slipring::TensorSet::new();
    /// inputs.insert("values", values.share()?)?;
    /// client.sender().send_tensors(&inputs)?;
    /// let sum = client.recv_tensor()?.expect("an answer");
    /// assert_eq!(sum.to_vec::<f32>()?, [500.0]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn on_tensors(&self, callback: impl FnMut(&Link, TensorSet) + Send + 'static) {
        self.begin_change();
        self.post(Command::OnTensors(self.clone(), Box::new(callback)));
    }

    /// Sets the callback that gets every later request with tensors, in order with the other messages. It replaces an
    /// earlier one, also from inside that one. [`respond_tensors`](Self::respond_tensors) answers the request, now or later.
    ///
    /// While the link has no such callback, requests with tensors wait in the ring, and the messages behind them wait too.
    pub fn on_tensor_request(&self, callback: impl FnMut(&Link, TensorRequest) + Send + 'static) {
        self.begin_change();
        self.post(Command::OnTensorRequest(self.clone(), Box::new(callback)));
    }

    /// Sets the callback that the loop calls once, after every other callback of the link, when the link has ended. It
    /// gets `Ok` if either side closed the link in order and the loop received every message before that. It replaces
    /// an earlier one.
    pub fn on_closed(&self, callback: impl FnOnce(&Link, Result<()>) + Send + 'static) {
        self.post(Command::OnClosed(self.clone(), Box::new(callback)));
    }

    /// Hands the next message to `callback`. Several such reads get one message each, in order. `None` says that the
    /// peer has closed the link in order.
    ///
    /// The loop copies a long message in slices, and serves other links in between. It copies one message of a link at a
    /// time. Dropping a long copy takes time, too: hand it to another thread.
    pub fn read_with(
        &self,
        callback: impl FnOnce(&Link, Result<Option<Vec<u8>>>) + Send + 'static,
    ) {
        self.post(Command::Read(self.clone(), Box::new(callback)));
    }

    /// Makes a request, and hands the response to `callback`. The loop copies a long response in slices, as in
    /// [`read_with`](Self::read_with).
    pub fn call_with(
        &self,
        request: impl Into<Vec<u8>>,
        callback: impl FnOnce(&Link, Result<Vec<u8>>) + Send + 'static,
    ) {
        let request = Content::Bytes(request.into(), Metadata::new());
        self.call(request, Response::into_bytes, callback);
    }

    /// Makes a request with tensors, and hands the response with tensors to `callback`. While the request waits for room it
    /// keeps the memory of the tensors, as [`write_tensors`](Self::write_tensors) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::{Address, Context, Reactor, Tensor, TensorSet};
    ///
    /// let address = Address::fresh();
    /// let context = Context::new()?;
    /// let reactor = Reactor::spawn(&context)?;
    /// let serving = reactor.clone();
    /// reactor.accept_with(context.listen(&address)?, move |accepted| {
    ///     if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
    ///         link.on_tensor_request(|link, request| {
    ///             link.respond_tensors(request.id, request.tensors);
    ///         });
    ///     }
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    ///
    /// let link = reactor.adopt(context.connect(&address)?)?;
    /// let mut inputs = TensorSet::new();
    /// inputs.insert("ids", Tensor::from_slice([2], &[7, 8])?)?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// link.call_tensors_with(inputs, move |_, outputs| {
    ///     let _ = sender.send(outputs);
    /// });
    /// assert_eq!(receiver.recv().unwrap()?["ids"].to_vec::<i32>()?, [7, 8]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn call_tensors_with(
        &self,
        request: TensorSet,
        callback: impl FnOnce(&Link, Result<TensorSet>) + Send + 'static,
    ) {
        self.call(Content::Tensors(request), Response::into_tensors, callback);
    }

    fn call<T: 'static>(
        &self,
        mut request: Content,
        open: fn(Response) -> Result<T>,
        callback: impl FnOnce(&Link, Result<T>) + Send + 'static,
    ) {
        let mut span = CallSpan::begin(|| self.writes().link());
        request.carry(&mut span);
        let answered = move |link: &Link, response: Result<Response>| {
            let response = response.and_then(open);
            span.end(&response);
            callback(link, response);
        };
        self.post(Command::Call(self.clone(), request, Box::new(answered)));
    }

    /// Sends a message if there is room and no write waits. This is the cheapest way to send.
    ///
    /// # Errors
    ///
    /// - [`TrySendError::Full`]: the link sent nothing.
    /// - [`TrySendError::Failed`]: as [`Sender::send`](crate::Sender::send), and
    ///   [`ErrorKind::LinkClosed`].
    #[inline]
    pub fn try_send(&self, message: &[u8]) -> Result<(), TrySendError> {
        self.try_with(message.len(), |sender| sender.try_send(message))
    }

    /// Sends a tensor if there is room and no write waits. [`Sender::send_tensor`](crate::Sender::send_tensor) says
    /// which tensors the link hands over and which it copies.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_send_tensor(&self, tensor: &Tensor) -> Result<(), TrySendError> {
        self.try_with(tensor.byte_len(), |sender| sender.try_send_tensor(tensor))
    }

    /// Sends a set of tensors in one message, as [`try_send_tensor`](Self::try_send_tensor) does.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send), and as [`Sender::send_tensors`](crate::Sender::send_tensors).
    pub fn try_send_tensors(&self, tensors: &TensorSet) -> Result<(), TrySendError> {
        let needed =
            tensors.iter().fold(0usize, |sum, (_, tensor)| sum.saturating_add(tensor.byte_len()));
        self.try_with(needed, |sender| sender.try_send_tensors(tensors))
    }

    /// Sends a message, at once or as soon as there is room. Writes leave in order.
    ///
    /// A write that fails, or that may not wait ([`Options::write_limit`](crate::Options::write_limit)), ends the link:
    /// [`on_closed`](Self::on_closed) gets the error. [`write_with`](Self::write_with) reports the error of each write.
    pub fn write(&self, message: impl Into<Vec<u8>>) {
        self.put(Payload::Message, message.into(), None);
    }

    /// Sends a message as [`write`](Self::write) does, and then calls `callback`: with an error if the link did not send
    /// the message.
    pub fn write_with(
        &self,
        message: impl Into<Vec<u8>>,
        callback: impl FnOnce(&Link, Result<()>) + Send + 'static,
    ) {
        self.put(Payload::Message, message.into(), Some(Box::new(callback)));
    }

    /// Sends a tensor, at once or as soon as there is room, in order with the other [writes](Self::write). While the
    /// write waits it keeps the tensor's memory. A waiting `&Tensor` that another peer lent is copied.
    ///
    /// The write waits for room in the pool, too. A write whose private bytes exceed the limit ends the link as in
    /// [`write`](Self::write).
    pub fn write_tensor<'a>(&self, tensor: impl Into<Outgoing<'a>>) {
        self.put(Payload::Tensor(Box::new(tensor.into())), Vec::new(), None);
    }

    /// Sends a tensor as [`write_tensor`](Self::write_tensor) does, and then calls `callback`: with an error if the link
    /// did not send the tensor.
    pub fn write_tensor_with<'a>(
        &self,
        tensor: impl Into<Outgoing<'a>>,
        callback: impl FnOnce(&Link, Result<()>) + Send + 'static,
    ) {
        let payload = Payload::Tensor(Box::new(tensor.into()));
        self.put(payload, Vec::new(), Some(Box::new(callback)));
    }

    /// Sends a set of tensors in one message, as [`write_tensor`](Self::write_tensor) does.
    pub fn write_tensors(&self, tensors: TensorSet) {
        self.put(Payload::Tensors(tensors), Vec::new(), None);
    }

    /// Sends a set of tensors as [`write_tensors`](Self::write_tensors) does, and then calls `callback`: with an error
    /// if the link did not send the tensors.
    pub fn write_tensors_with(
        &self,
        tensors: TensorSet,
        callback: impl FnOnce(&Link, Result<()>) + Send + 'static,
    ) {
        self.put(Payload::Tensors(tensors), Vec::new(), Some(Box::new(callback)));
    }

    /// Sends the response to a request, as [`write`](Self::write) sends a message.
    pub fn respond(&self, request: RequestId, body: impl Into<Vec<u8>>) {
        self.put(Payload::Response(request), body.into(), None);
    }

    /// Sends tensors as the response to a request, as [`write_tensors`](Self::write_tensors) sends a set.
    pub fn respond_tensors(&self, request: RequestId, tensors: TensorSet) {
        self.put(Payload::TensorResponse(request, tensors), Vec::new(), None);
    }

    /// Registers a function for the peer to trigger. Send the peer the token in a message.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TokensSpent`]: 65536 tokens of this link are registered or spent.
    /// - After the end of the link, the error that it ended with.
    pub fn register(&self, function: impl FnMut(&Link) + Send + 'static) -> Result<Token> {
        self.core.mailbox.generation().check()?;
        let function = Box::new(function);
        let mut tokens = self.tokens();
        let answer = match self.core.ended.get() {
            Some(kind) => Err((kind.clone(), function as TokenFn)),
            None => tokens.register(function).map_err(|back| (ErrorKind::TokensSpent, back)),
        };
        // The function may hold handles of this link, so it is dropped without the lock.
        drop(tokens);
        answer.map_err(|(kind, _)| kind.into())
    }

    /// Makes a token name nothing. Returns `false` if it named nothing before.
    pub fn unregister(&self, token: Token) -> bool {
        if !self.is_here() {
            return false;
        }
        let function = self.tokens().unregister(token);
        // The function may hold handles of this link, so it is dropped without the lock.
        function.is_some()
    }

    /// Has the peer run the function that it registered under a token, in order with the messages.
    pub fn trigger(&self, token: Token) {
        self.put(Payload::Trigger(token), Vec::new(), None);
    }

    /// Returns the number of tokens that the peer triggered and that name no function here.
    pub fn stale_tokens(&self) -> u64 {
        self.core.stale_tokens.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the writes that wait for room.
    pub fn waiting_bytes(&self) -> usize {
        if self.is_here() { self.writes().waiting_bytes() } else { 0 }
    }

    /// Returns the counters of the link. After a fork, the child's are zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::{Address, Context, Reactor};
    ///
    /// let address = Address::fresh();
    /// let context = Context::new()?;
    /// let mut listener = context.listen(&address)?;
    /// let peer = std::thread::spawn(move || listener.accept());
    /// let reactor = Reactor::spawn(&context)?;
    /// let link = reactor.adopt(context.connect(&address)?)?;
    /// let mut peer = peer.join().unwrap()?;
    ///
    /// link.try_send(b"hello").unwrap();
    /// assert_eq!(peer.recv()?.as_deref(), Some(&b"hello"[..]));
    /// let stats = link.stats();
    /// assert_eq!((stats.sent.messages, stats.sent.bytes), (1, 5));
    /// assert_eq!(stats.waiting_writes, 0);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn stats(&self) -> LinkStats {
        let mut stats = LinkStats::default();
        if self.is_here() {
            let writes = self.writes();
            stats.sent = writes.stats();
            stats.waiting_writes = writes.waiting() as u64;
            stats.waiting_bytes = writes.waiting_bytes() as u64;
            drop(writes);
            self.core.received.fill(&mut stats);
            stats.stale_tokens = self.stale_tokens();
        }
        stats
    }

    /// Closes the link in order, after the writes that wait. The peer receives every message that the link sent. Closing
    /// takes as long as the peer takes to make room for the writes.
    pub fn close(&self) {
        if self.is_here() {
            self.writes().close();
        }
        self.post(Command::Close(self.clone()));
    }

    /// Closes the link at once, and takes back at once all memory that the peer holds, as [`Sender::abort`] does. The
    /// completions of writes that wait get an error.
    pub fn abort(&self) {
        if self.is_here() {
            self.writes().revoke();
        }
        self.post(Command::Abort(self.clone(), None));
    }

    /// Ends the link because of a fault in a message of the peer.
    #[doc(hidden)]
    pub fn fail(&self, error: Error) {
        self.post(Command::Abort(self.clone(), Some(error)));
    }

    /// As [`Sender::take_descriptors`].
    #[doc(hidden)]
    pub fn take_descriptors(&self, first: u64, count: usize) -> Result<Vec<UntrustedFd>> {
        self.writes().take_descriptors(first, count)
    }

    /// Returns whether the link has not ended.
    pub fn is_open(&self) -> bool {
        self.core.ended.get().is_none()
    }

    /// Returns the process on the other side, as the kernel described it when the connection was made.
    pub fn peer(&self) -> &Peer {
        &self.core.peer
    }

    /// Returns the longest message in bytes: the smaller of both sides' limits.
    pub fn max_message(&self) -> u64 {
        self.core.max_message
    }

    /// Returns whether a callback for messages or tensors is on its way to the loop.
    #[inline]
    pub(super) fn is_changing(&self) -> bool {
        self.core.pending_changes.load(Ordering::Relaxed) > 0
    }

    fn begin_change(&self) {
        self.core.pending_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a callback for messages or tensors has arrived at the loop.
    pub(super) fn end_change(&self) {
        self.core.pending_changes.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn key(&self) -> u64 {
        self.core.key
    }

    pub(super) fn writes(&self) -> MutexGuard<'_, WriteQueue<WriteFn>> {
        // Nothing panics under the lock unless the library has a bug, and each step leaves the queue whole.
        self.core.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self) -> MutexGuard<'_, TokenTable<TokenFn>> {
        self.core.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this process has the link. In a forked child a lock may be held for ever by a thread of the
    /// parent.
    fn is_here(&self) -> bool {
        self.core.mailbox.generation().is_current()
    }

    /// Sends at once, or not at all.
    #[inline]
    fn try_with(
        &self,
        needed: usize,
        send: impl FnOnce(&mut Sender) -> Result<(), TrySendError>,
    ) -> Result<(), TrySendError> {
        self.core.mailbox.generation().check()?;
        let answer = self.writes().try_with(needed, send);
        match answer {
            Err(TrySendError::Failed(error)) => {
                self.poll_after_failure();
                Err(self.explain(error).into())
            }
            answer => answer,
        }
    }

    /// Sends at once, or as soon as there is room.
    fn put(&self, payload: Payload<'_>, body: Vec<u8>, done: Option<WriteFn>) {
        if !self.is_here() {
            if let Some(done) = done {
                contain(|| done(self, Err(ErrorKind::Forked.into())));
            }
            return;
        }
        let mut payload = Some(payload);
        let submitted = self.writes().submit(&mut payload, body, done);
        // The payload's memory is free before the completion runs.
        drop(payload);
        self.settle(submitted);
    }

    pub(super) fn post(&self, command: Command) {
        command.post(&self.core.mailbox);
    }

    /// Has the loop do what follows from the answer to a write.
    pub(super) fn settle(&self, submitted: Submitted<WriteFn>) {
        if let Submitted::Done(_, Err(_)) = &submitted {
            self.poll_after_failure();
        }
        match submitted {
            Submitted::Done(Some(done), result) => {
                let result = result.map_err(|error| self.explain(error));
                self.post(Command::Written(self.clone(), done, result));
            }
            // The write has no completion, so the end of the link reports that it failed.
            Submitted::Done(None, Err(error))
                if !is_end(error.kind()) && self.writes().is_alive() =>
            {
                self.post(Command::Abort(self.clone(), Some(error)));
            }
            Submitted::First => self.post(Command::Flush(self.clone())),
            Submitted::Done(None, _) | Submitted::Behind => {}
        }
    }

    /// Has the loop poll the link after a failed write. If the failure ended the link, no event reports it.
    #[cold]
    pub(super) fn poll_after_failure(&self) {
        if self.is_open() {
            self.post_poll();
        }
    }

    /// Has the loop poll the link, unless a command to do so waits already.
    pub(super) fn post_poll(&self) {
        // Pairs with `begin_poll`: a caller that finds the mark relies on a poll that has yet to begin.
        if !self.core.poll_pending.swap(true, Ordering::AcqRel) {
            self.post(Command::Poll(self.clone()));
        }
    }

    /// Notes that the loop begins the poll of a command. The poll sees everything that was there when a caller of
    /// [`post_poll`](Self::post_poll) found the mark.
    pub(super) fn begin_poll(&self) {
        // Pairs with `post_poll`.
        self.core.poll_pending.swap(false, Ordering::AcqRel);
    }

    /// Returns the error that the link ended with, if `error` says only that it ended.
    fn explain(&self, error: Error) -> Error {
        match self.core.ended.get() {
            Some(kind) if *error.kind() == ErrorKind::LinkClosed => kind.clone().into(),
            _ => error,
        }
    }

    /// Returns the error that the link ended with.
    pub(super) fn end_error(&self) -> Error {
        self.core.ended.get().cloned().unwrap_or(ErrorKind::LinkClosed).into()
    }

    /// Returns the result of a read after the end: nothing if the peer closed the link in order.
    pub(super) fn read_after_end(&self) -> Result<Option<Vec<u8>>> {
        let error = self.end_error();
        if *error.kind() == ErrorKind::PeerClosed { Ok(None) } else { Err(error) }
    }

    /// Returns the result that a last callback gets that was set after the end.
    pub(super) fn end_result(&self) -> Result<()> {
        let error = self.end_error();
        match error.kind() {
            ErrorKind::PeerClosed | ErrorKind::LinkClosed => Ok(()),
            _ => Err(error),
        }
    }

    /// Publishes the counts of the receiver.
    #[inline(always)]
    pub(super) fn publish_received(&self, stats: &HalfStats) {
        self.core.received.publish(stats);
    }

    /// Runs the function under a token. Returns whether there is one, or `None` if it panicked.
    pub(super) fn run(&self, token: Token) -> Option<bool> {
        let Some(mut function) = self.tokens().take(token) else {
            self.core.stale_tokens.fetch_add(1, Ordering::Relaxed);
            return Some(false);
        };
        let ran = contain(|| function(self));
        let removed =
            if ran.is_some() { self.tokens().put_back(token, function) } else { Some(function) };
        contain(|| drop(removed));
        ran.map(|()| true)
    }

    /// Ends the link with `kind`, unless it has ended. The caller completes what remains.
    pub(super) fn end(&self, kind: ErrorKind) -> Remains {
        let kind = self.core.ended.get_or_init(|| kind).clone();
        let (sender, writes) = self.writes().end();
        let tokens = std::mem::take(&mut *self.tokens());
        contain(|| drop(tokens));
        Remains { link: self.clone(), kind, sender, writes }
    }
}

/// Returns whether a link with this error has ended, or ends as soon as the loop has received what came before.
fn is_end(kind: &ErrorKind) -> bool {
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

/// Shows the peer's process, and why the link ended if it has.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Link");
        shown.field("peer_pid", &self.core.peer.pid());
        if let Some(kind) = self.core.ended.get() {
            shown.field("ended", kind);
        }
        shown.finish_non_exhaustive()
    }
}

/// What an ended link leaves behind: its sender, and writes with completions.
pub(super) struct Remains {
    link: Link,
    kind: ErrorKind,
    sender: Option<Sender>,
    writes: VecDeque<Write<WriteFn>>,
}

impl Remains {
    /// Closes the link for the peer, and calls the completions of its writes and `calls`.
    pub(super) fn complete(self, calls: Vec<CallFn>) {
        let Self { link, kind, sender, writes } = self;
        drop(sender);
        let error = || Error::from(kind.clone());
        for write in writes {
            link.settle(Submitted::Done(write.into_done(), Err(error())));
        }
        for call in calls {
            contain(|| call(&link, Err(error())));
        }
    }
}
