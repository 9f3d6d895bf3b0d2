//! The server's side of one client: what it receives, what it executes, and how models and commits end.
//!
//! ```text
//!   ClientSession ◀── LoadedModel ◀── Committed ◀── executions under way
//!     ledger ─────────▶ models, commits, account
//! ```
//!
//! Arrows are `Arc`s. The ledger names what the client may use. A release, an unload or the end of the connection
//! removes the entry from the ledger, so that no new request finds it. The object ends when its last execution drops
//! it: its `Drop` first tells the service, then corrects the counts, and then answers the client.
//!
//! The reactor's thread runs [`receive`](ClientSession::receive). It runs an execution of an inline model itself and
//! queues every other one for the [workers](super::workers).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::account::{Account as MemoryAccount, Charge, Resource};
use crate::channel::{Copied, MessageKind};
use crate::commit::description::{Layout, MOST};
use crate::commit::server::account::Account;
use crate::commit::server::batch::Batch;
use crate::commit::server::handlers::{self, ControlRequest};
use crate::commit::server::host::{Host, guarded};
use crate::commit::server::service::{Buffers, Caller, Service};
use crate::commit::server::tally::Counted;
use crate::commit::slots::Slots;
use crate::commit::wire::message::{self, Answer, Request};
use crate::error::{CommitFault, Error, Fault, Result};
use crate::reactor::{Link, Message, Reactor};
use crate::shm::fork::Generation;
use crate::shm::{LARGE, discard};
use crate::transport::Connection;

/// Locks a mutex whose value every holder leaves whole: a panic under the lock poisons nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One client.
pub(super) struct ClientSession<S: Service> {
    host: Arc<Host<S>>,
    caller: Caller,
    link: Link,
    ledger: Mutex<Ledger<S>>,
    account: Arc<MemoryAccount>,
    /// Requests other than executions that wait for a worker.
    waiting: AtomicUsize,
    /// Bytes of those of them that are long.
    long_bytes: Arc<AtomicUsize>,
    /// The link has ended.
    gone: AtomicBool,
    /// The error that the link ended with. Empty: the client closed in order.
    why: OnceLock<Error>,
    _counted: Counted,
}

/// What a client may use.
pub(super) struct Ledger<S: Service> {
    pub models: Slots<Arc<LoadedModel<S>>>,
    pub commits: Slots<Arc<Committed<S>>>,
    pub account: Account,
}

impl<S: Service> ClientSession<S> {
    /// Serves a connection on a reactor, until either side ends it.
    pub(super) fn serve(
        host: &Arc<Host<S>>,
        reactor: &Reactor,
        mut connection: Connection,
    ) -> Result<()> {
        // A commit names at most MOST descriptors. Twice as many leave room for one that the client gave up.
        connection.sender().admit_descriptors(2 * MOST);
        let account = connection.sender().session().link.account().clone();
        let link = reactor.adopt(connection)?;
        let (models, commits) = (Slots::default(), Slots::default());
        let session = Arc::new(Self {
            host: host.clone(),
            caller: Caller::new(host.number(), link.peer().without_pidfd()),
            link: link.clone(),
            ledger: Mutex::new(Ledger { models, commits, account: Account::default() }),
            account,
            waiting: AtomicUsize::new(0),
            long_bytes: Arc::default(),
            gone: AtomicBool::new(false),
            why: OnceLock::new(),
            _counted: host.tally().client(),
        });
        let (ending, copied) = (session.clone(), session.clone());
        link.on_closed(move |_, ended| ending.close(ended));
        link.on_long(move |_, kind, message| copied.receive_long(kind, message));
        link.on_message(move |_, message| session.receive(message));
        link.on_tensors(|link, _| link.fail(unexpected(MessageKind::Tensors)));
        link.on_tensor_request(|link, request| {
            link.fail(unexpected(MessageKind::TensorRequest(request.id)));
        });
        Ok(())
    }

    /// Handles a message of the client, on the reactor's thread.
    #[inline]
    fn receive(self: &Arc<Self>, message: Message<'_>) {
        if message.kind() != MessageKind::Message {
            return self.link.fail(unexpected(message.kind()));
        }
        if self.host.is_ending() {
            return;
        }
        if let Some((ticket, id)) = message::is_execute_one(message.bytes()) {
            return self.start(ticket, id);
        }
        match message.bytes().try_to_vec().and_then(|copy| message.check().map(|()| copy)) {
            Ok(copy) => self.receive_other((copy, None)),
            Err(error) => self.link.fail(error),
        }
    }

    /// Handles the copy of a long message of the client, on the reactor's thread.
    fn receive_long(self: &Arc<Self>, kind: MessageKind, message: Result<Copied>) {
        match message {
            _ if kind != MessageKind::Message => self.link.fail(unexpected(kind)),
            Ok(copied) if self.host.is_ending() => free(copied),
            Ok(copied) => self.receive_other(copied),
            Err(error) => self.link.fail(error),
        }
    }

    /// Starts one execution: here, if its model is inline, or else on a worker.
    #[inline]
    fn start(self: &Arc<Self>, ticket: u64, id: u64) {
        let commit = match self.begin(id) {
            Ok(commit) => commit,
            Err(fault) => return self.answer(ticket, &Answer::Failed(fault)),
        };
        if !commit.model.inline {
            return self.queue(move || commit.run(ticket));
        }
        commit.run(ticket);
        // A worker may have released the commit meanwhile. The service's `release` may take long: not here.
        if let Some(last) = Arc::into_inner(commit) {
            self.queue(move || drop(last));
        }
    }

    /// Finds a commit and marks it as in use.
    #[inline]
    fn begin(&self, id: u64) -> Result<Arc<Committed<S>>, CommitFault> {
        let commit = self.ledger().commits.get(id)?.clone();
        commit.begin().map(|()| commit)
    }

    #[cold]
    fn receive_other(self: &Arc<Self>, (message, mut charge): Copied) {
        let (ticket, request) = match Request::decode(&message) {
            Ok((ticket, request, _)) => (ticket, request),
            Err(fault) => {
                free((message, charge));
                return self.link.fail(fault.into());
            }
        };
        let take = |first, count| self.link.take_descriptors(first, count);
        let descriptors = match &request {
            Request::Execute { ids } => return self.start_batch(ticket, ids),
            Request::Release { id } => return self.release(ticket, *id),
            Request::Unload { model } => return self.unload(ticket, *model),
            Request::Discard { before } => {
                // Taking none from there on drops those before.
                let _ = take(*before, 0);
                return;
            }
            Request::LoadDescriptor { passed, .. } => take(*passed, 1),
            Request::Commit { passed, .. } | Request::Update { passed, .. } => {
                take(passed.first, passed.count as usize)
            }
            _ => Ok(Vec::new()),
        };
        let counted = match self.count_request(message.len(), &mut charge) {
            Ok(counted) => counted,
            Err(fault) => {
                free((message, charge));
                return self.answer(ticket, &Answer::Failed(fault));
            }
        };
        let request = ControlRequest::new(ticket, request, (message, counted), descriptors);
        let session = self.clone();
        self.queue(move || {
            if !session.is_gone() {
                request.handle(&session);
            }
            session.waiting.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Removes a commit, whose end answers the request. No limit of requests refuses this: a commit is removed once.
    fn release(&self, ticket: u64, id: u64) {
        let removed = self.ledger().commits.remove(id);
        match removed {
            Ok(commit) => {
                commit.release_for(ticket);
                // The service's `release` may take long: not here.
                self.queue(move || drop(commit));
            }
            Err(fault) => self.answer(ticket, &Answer::Failed(fault)),
        }
    }

    /// Removes a model and its commits, as [`release`](Self::release) does. The end of the model answers the request.
    fn unload(&self, ticket: u64, id: u64) {
        let mut ledger = self.ledger();
        let removed = ledger.models.remove(id).map(|model| {
            let is_of = |commit: &Arc<Committed<S>>| Arc::ptr_eq(commit.model(), &model);
            let commits = ledger.commits.remove_all(is_of);
            (model, commits)
        });
        drop(ledger);
        match removed {
            Ok((model, commits)) => {
                model.close_for(ticket);
                self.queue(move || drop((commits, model)));
            }
            Err(fault) => self.answer(ticket, &Answer::Failed(fault)),
        }
    }

    /// Counts a request of `len` bytes that is to wait. Only the reactor's thread adds. `charge` is what the link's account
    /// holds for it already.
    fn count_request(
        &self,
        len: usize,
        charge: &mut Option<Charge>,
    ) -> Result<WaitingRequest, CommitFault> {
        let options = self.host.options();
        options.check_requests(self.waiting.load(Ordering::Relaxed))?;
        let is_long = len > LARGE;
        if is_long {
            options.check_long_request(self.long_bytes.load(Ordering::Relaxed), len)?;
        }
        let charge = match charge.take() {
            Some(charge) => charge,
            None => {
                let charge = self.account.charge(Resource::Memory, len as u64);
                charge.map_err(|error| handlers::lack_of_resources(&error))?
            }
        };
        let len = if is_long { len } else { 0 };
        self.long_bytes.fetch_add(len, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(WaitingRequest { len, all: self.long_bytes.clone(), _charge: charge })
    }

    /// Starts several executions: all of them, or none.
    fn start_batch(self: &Arc<Self>, ticket: u64, ids: &[u64]) {
        let mut commits = Vec::new();
        for id in ids {
            match self.begin(*id) {
                Ok(commit) => commits.push(commit),
                Err(fault) => {
                    commits.iter().for_each(|commit| commit.finish());
                    return self.answer(ticket, &Answer::Failed(fault));
                }
            }
        }
        Batch::start(self, ticket, commits);
    }

    /// Queues a job for the workers.
    pub(super) fn queue(&self, job: impl FnOnce() + Send + 'static) {
        self.host.workers().push(self.caller.number(), job);
    }

    pub(super) fn host(&self) -> &Arc<Host<S>> {
        &self.host
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger<S>> {
        lock(&self.ledger)
    }

    /// Returns whether the link has ended, or the server closes it: nothing that the client has asked for begins.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || self.host.is_closing()
    }

    /// Answers a request. A client that is gone hears nothing.
    pub(super) fn answer(&self, ticket: u64, answer: &Answer) {
        self.send(&answer.encode(ticket));
    }

    #[inline]
    fn send(&self, bytes: &[u8]) {
        if !self.is_gone() && self.link.try_send(bytes).is_err() {
            self.write(bytes);
        }
    }

    /// Sends an answer as soon as the client's ring has room. A shutdown waits for it.
    #[cold]
    fn write(&self, bytes: &[u8]) {
        let host = self.host.clone();
        host.unsent().add();
        self.link.write_with(bytes, move |link, written| {
            host.unsent().remove();
            // A client that has closed is served to the end of what it has sent.
            if let Err(error) = written
                && !error.is_disconnected()
            {
                link.fail(error);
            }
        });
    }

    /// The link has ended. A worker ends what the client had, as soon as nothing runs on it.
    fn close(self: &Arc<Self>, ended: Result<()>) {
        self.gone.store(true, Ordering::Relaxed);
        if let Err(error) = ended {
            let client = self.caller.number();
            tracing::warn!(client, error = format_args!("{error:#}"), "a client's link ended");
            let _ = self.why.set(error);
        }
        let session = self.clone();
        self.queue(move || {
            let mut ledger = session.ledger();
            let (commits, models) =
                (ledger.commits.remove_all(|_| true), ledger.models.remove_all(|_| true));
            // Their ends take this lock.
            drop(ledger);
            drop((commits, models));
        });
    }
}

impl<S: Service> Drop for ClientSession<S> {
    fn drop(&mut self) {
        let why = self.why.get();
        let service = self.host.service();
        let _ = catch_unwind(AssertUnwindSafe(|| service.client_gone(&self.caller, why)));
    }
}

/// A model that a client has loaded.
pub(super) struct LoadedModel<S: Service> {
    session: Arc<ClientSession<S>>,
    layout: Arc<Layout>,
    /// `None` only while the model ends.
    kept: Option<S::Model>,
    /// The service runs its executions inline.
    inline: bool,
    /// The request to unload the model: its end answers it.
    closing: Mutex<Option<u64>>,
    counted: Option<Counted>,
}

impl<S: Service> LoadedModel<S> {
    pub(super) fn new(
        session: Arc<ClientSession<S>>,
        layout: Arc<Layout>,
        (kept, inline): (S::Model, bool),
        counted: Counted,
    ) -> Self {
        let (kept, counted) = (Some(kept), Some(counted));
        Self { session, layout, kept, inline, closing: Mutex::default(), counted }
    }

    pub(super) fn session(&self) -> &Arc<ClientSession<S>> {
        &self.session
    }

    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// What the service keeps of the model. `None` only while the model ends.
    pub(super) fn kept(&self) -> Option<&S::Model> {
        self.kept.as_ref()
    }

    /// The end of the model answers this request.
    pub(super) fn close_for(&self, ticket: u64) {
        *lock(&self.closing) = Some(ticket);
    }
}

impl<S: Service> Drop for LoadedModel<S> {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            let service = self.session.host.service();
            let _ = catch_unwind(AssertUnwindSafe(|| service.unload(kept)));
        }
        self.session.ledger().account.remove_model();
        drop(self.counted.take());
        if let Some(ticket) = lock(&self.closing).take() {
            self.session.answer(ticket, &Answer::Done);
        }
    }
}

/// A session that a client has committed.
pub(super) struct Committed<S: Service> {
    model: Arc<LoadedModel<S>>,
    id: u64,
    /// An execution or an update is under way.
    busy: AtomicBool,
    /// `None` only while the commit ends.
    held: Mutex<Option<Held<S>>>,
    /// The request to release the commit: its end answers it.
    releasing: Mutex<Option<u64>>,
    counted: Option<Counted>,
}

/// What a commit holds.
pub(super) struct Held<S: Service> {
    pub buffers: Buffers,
    pub kept: S::Commit,
}

impl<S: Service> Committed<S> {
    pub(super) fn new(model: Arc<LoadedModel<S>>, id: u64, held: Held<S>) -> Self {
        let counted = Some(model.session.host.tally().commit());
        let (busy, held) = (AtomicBool::new(false), Mutex::new(Some(held)));
        Self { model, id, busy, held, releasing: Mutex::default(), counted }
    }

    /// Marks the commit as in use.
    #[inline]
    pub(super) fn begin(&self) -> Result<(), CommitFault> {
        // Pairs with `finish`: this use comes after the last one.
        if self.busy.swap(true, Ordering::Acquire) { Err(CommitFault::Busy) } else { Ok(()) }
    }

    /// Marks the commit as free. The answer follows: the client may use the commit at once.
    #[inline]
    pub(super) fn finish(&self) {
        // Pairs with `begin`.
        self.busy.store(false, Ordering::Release);
    }

    /// Executes the commit, which is marked as in use, and answers the client.
    #[inline]
    fn run(&self, ticket: u64) {
        let outcome = self.execute();
        self.finish();
        let session = &self.model.session;
        match outcome {
            Ok(()) => session.send(&message::executed(ticket)),
            Err(fault) => session.answer(ticket, &Answer::Executed { failures: vec![(0, fault)] }),
        }
    }

    /// Runs the service's handler.
    #[inline]
    pub(super) fn execute(&self) -> Result<(), CommitFault> {
        let session = &self.model.session;
        let outcome = match (lock(&self.held).as_mut(), self.model.kept()) {
            (Some(held), Some(model)) if !session.is_gone() => {
                guarded(|| session.host.service().execute(model, &mut held.kept, &held.buffers))
            }
            _ => Err(CommitFault::UnknownId { id: self.id }),
        };
        session.host.tally().executed(outcome.is_ok());
        outcome
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn model(&self) -> &Arc<LoadedModel<S>> {
        &self.model
    }

    pub(super) fn held(&self) -> MutexGuard<'_, Option<Held<S>>> {
        lock(&self.held)
    }

    /// The end of the commit answers this request.
    pub(super) fn release_for(&self, ticket: u64) {
        *lock(&self.releasing) = Some(ticket);
    }
}

impl<S: Service> Drop for Committed<S> {
    fn drop(&mut self) {
        let session = &self.model.session;
        let held = lock(&self.held).take();
        if let (Some(Held { buffers, kept }), Some(model)) = (held, self.model.kept()) {
            let service = session.host.service();
            let _ = catch_unwind(AssertUnwindSafe(|| service.release(model, kept)));
            session.host.tally().unmap(buffers.regions());
        }
        let mut ledger = session.ledger();
        ledger.account.unclaim(self.id, |_| true);
        ledger.account.remove_commit();
        drop(ledger);
        drop(self.counted.take());
        if let Some(ticket) = lock(&self.releasing).take() {
            session.answer(ticket, &Answer::Done);
        }
    }
}

/// The count of a request's bytes. It ends before the request is answered.
pub(super) struct WaitingRequest {
    /// Bytes of a long request.
    len: usize,
    all: Arc<AtomicUsize>,
    /// What the link's account holds for the request.
    _charge: Charge,
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.all.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Drops a message, a long one on another thread: the kernel takes some 0.1 s to free a GiB. The account holds the memory
/// until it is freed.
fn free(copied: Copied) {
    if copied.0.len() > LARGE
        && let Ok(generation) = Generation::current()
    {
        discard(copied, &generation);
    }
}

/// Returns the error of a record that no client of this library sends.
fn unexpected(kind: MessageKind) -> Error {
    let value = u64::from(kind.has_tensors()) + 1;
    Fault::Field { field: "commit.kind", value }.into()
}
