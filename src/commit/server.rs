//! The server: who connects, what comes, and who does it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::commit::acts::{Ask, guarded, mapped};
use crate::commit::crew::{Crew, Job, Task, Was};
use crate::commit::description::MOST;
use crate::commit::guest::{Committed, Guest, lock};
use crate::commit::limits::{REQUESTS, ServerOptions, ServerStats, Tally};
use crate::commit::memory::Memory;
use crate::commit::message::{self, Answer, Request};
use crate::commit::pocket::{self, Carried, Errand};
use crate::commit::service::{Caller, Execute, Service};
use crate::error::{CommitFault, Error, Fault, Result};
use crate::reactor::{EventLoop, Message, Reactor};
use crate::transport::{Connection, Context, Listener, MessageKind};

/// An execution below this is no longer than waking a thread.
const SHORT: Duration = Duration::from_micros(20);

/// So many of them in a row make those that follow short.
const CALM: u32 = 16;

/// Runs a [`Service`] for any number of clients. Dropping it ends it: what runs is finished, and every client is told.
///
/// # Examples
///
/// ```
/// use slipring::commit::{
///     Buffer, BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused, Server, Service,
/// };
/// use slipring::{Address, Context, DType};
///
/// /// Adds one to every byte.
/// struct Increment;
///
/// impl Service for Increment {
///     type Model = ();
///     type Commit = ();
///
///     fn load(&self, _: &Caller, _: ModelSource<'_>) -> Result<((), Description), Refused> {
///         let buffer = |label, direction| BufferInfo::new(label, direction, DType::Uint8, [8]);
///         let description = Description::new()
///             .with_own_region(buffer("x", Direction::In))
///             .with_own_region(buffer("y", Direction::Out));
///         Ok(((), description))
///     }
///
///     fn commit(&self, _: &(), _: &Buffers) -> Result<(), Refused> {
///         Ok(())
///     }
///
///     fn execute(&self, _: &(), _: &mut (), buffers: &Buffers) -> Result<(), Refused> {
///         let mut bytes = buffers.input(0)?.to_vec()?;
///         bytes.iter_mut().for_each(|byte| *byte += 1);
///         Ok(buffers.output(0)?.write_at(0, &bytes)?)
///     }
/// }
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let server = Server::new(&context, context.listen(&address)?, Increment)?;
///
/// let client = Client::connect(&context, &address)?;
/// let model = client.load(b"")?;
/// let session = model.session(0)?;
/// let (x, y) = (Buffer::alloc(8)?, Buffer::alloc(8)?);
/// session.set_all(&[&x, &y])?;
/// session.commit()?;
/// x.write_at(0, b"GdkknV12")?;
/// session.execute()?; // no descriptor travels, nothing is mapped
/// assert_eq!(y.to_vec()?, b"HelloW23");
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    reactor: Reactor,
    tally: Arc<Tally>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves whoever connects to `listener`, with the default options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit),
    /// [`ErrorKind::Os`](crate::ErrorKind::Os).
    pub fn new(context: &Context, listener: Listener, service: impl Service) -> Result<Self> {
        Self::with_options(context, listener, service, ServerOptions::new())
    }

    /// As [`new`](Self::new), with these options.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_options<S: Service>(
        context: &Context,
        listener: Listener,
        service: S,
        options: ServerOptions,
    ) -> Result<Self> {
        let mut events = EventLoop::new(context)?;
        let reactor = events.reactor();
        let tally = Arc::new(Tally::default());
        let host = Arc::new(Host {
            service,
            options,
            tally: tally.clone(),
            crew: Crew::new(events, options.workers),
            numbers: AtomicU64::new(1),
        });
        let (adopting, admitting) = (reactor.clone(), host.clone());
        reactor.accept_with(listener, move |accepted| {
            let admitted = accepted.and_then(|connection| admit(&admitting, &adopting, connection));
            if let Err(error) = admitted {
                tracing::warn!(error = format_args!("{error:#}"), "a client could not connect");
            }
            ControlFlow::Continue(())
        })?;
        let mut server = Self { reactor, tally, threads: Vec::new() };
        for _ in 0..=options.workers {
            let host = host.clone();
            server.start("slipring-commit", move || host.work())?;
        }
        server.start("slipring-catch", move || host.crew.watch())?;
        Ok(server)
    }

    fn start(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        // Without it, dropping the server ends those that there are.
        self.threads.push(thread.map_err(|error| Error::os("thread spawn", error))?);
        Ok(())
    }

    /// What it has, and what it has done.
    pub fn stats(&self) -> ServerStats {
        self.tally.read()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.reactor.shutdown();
        for thread in self.threads.drain(..) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// What all threads of a server share.
pub(super) struct Host<S: Service> {
    pub(super) service: S,
    pub(super) options: ServerOptions,
    pub(super) tally: Arc<Tally>,
    crew: Crew<Work<S>>,
    numbers: AtomicU64,
}

/// Something for a worker.
enum Work<S: Service> {
    One(Carried),
    /// One of several that run side by side.
    Part {
        batch: Arc<Batch<S>>,
        at: usize,
    },
    Together(Arc<Batch<S>>),
    Ask {
        guest: Arc<Guest<S>>,
        ask: Box<Ask>,
    },
    Gone(Arc<Guest<S>>),
}

impl<S: Service> Job for Work<S> {
    #[inline]
    fn is_long(&self) -> bool {
        match self {
            Self::One((errand, _)) => errand.is_long(),
            _ => true,
        }
    }
}

/// Executions that a client asked for together.
struct Batch<S: Service> {
    guest: Arc<Guest<S>>,
    ticket: u64,
    commits: Vec<Arc<Committed<S>>>,
    failures: std::sync::Mutex<Vec<(u32, CommitFault)>>,
    left: AtomicUsize,
}

impl<S: Service> Host<S> {
    /// A number that was never given before. Not 0.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// These regions are mapped now.
    pub(super) fn remember(&self, regions: &[Arc<Memory>]) -> Result<(), CommitFault> {
        mapped::remember(&self.tally, regions)
    }

    /// They are unmapped next.
    pub(super) fn forget(&self, regions: &[Arc<Memory>]) {
        mapped::forget(&self.tally, regions);
    }

    /// The life of a thread.
    fn work(&self) {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut was = Was::Fresh;
        loop {
            was = match self.crew.next(was) {
                Task::Do(work) => {
                    self.run(work);
                    Was::Working
                }
                Task::Lead(events) => self.lead(events),
                Task::Stop => return,
            };
        }
    }

    /// Turns the loop until there is something to do for the crew.
    fn lead(&self, mut events: Box<EventLoop>) -> Was {
        loop {
            let turned = events.turn_until(|| self.crew.is_ready());
            let carried = pocket::take();
            if !matches!(turned, Ok(true)) {
                if let Err(error) = turned {
                    tracing::error!(error = format_args!("{error:#}"), "the server stopped");
                }
                carried.into_iter().for_each(|carried| self.crew.push(Work::One(carried)));
                // Every client is told, and leaves.
                drop(events);
                self.crew.stop();
                return Was::Fresh;
            }
            let Some((errand, ticket)) = carried else { return Was::Leading(events) };
            if let Err(events) = self.crew.step_aside(events) {
                self.crew.push(Work::One((errand, ticket)));
                return Was::Leading(events);
            }
            errand.run(ticket);
            match self.crew.step_back() {
                Some(back) => events = back,
                None => return Was::Working,
            }
        }
    }

    #[inline]
    fn run(&self, work: Work<S>) {
        match work {
            Work::One((errand, ticket)) => errand.run(ticket),
            Work::Part { batch, at } => {
                let outcome = self.execute(&batch.commits[at]);
                batch.commits[at].finish();
                if let Err(fault) = outcome {
                    lock(&batch.failures).push((at as u32, fault));
                }
                // Release and acquire: whoever is last answers for all.
                if batch.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    batch.answer();
                }
            }
            Work::Together(batch) => self.run_together(&batch),
            Work::Ask { guest, ask } => {
                if !guest.gone.load(Ordering::Relaxed) {
                    ask.serve(&guest);
                }
                guest.asked.fetch_sub(1, Ordering::Relaxed);
            }
            Work::Gone(guest) => guest.leave(),
        }
    }

    #[inline]
    fn run_one(&self, commit: &Committed<S>, ticket: u64) {
        let caught = self.crew.caught();
        let long = commit.long.load(Ordering::Relaxed);
        let start = long.then(Instant::now);
        let outcome = self.execute(commit);
        match start {
            Some(start) if start.elapsed() < SHORT => {
                let before = commit.short.fetch_add(1, Ordering::Relaxed);
                commit.long.store(before < CALM, Ordering::Relaxed);
            }
            Some(_) => commit.short.store(0, Ordering::Relaxed),
            None if self.crew.caught() != caught => {
                commit.short.store(0, Ordering::Relaxed);
                commit.long.store(true, Ordering::Relaxed);
            }
            None => {}
        }
        commit.finish();
        match outcome {
            Ok(()) => commit.guest().answer_executed(ticket),
            Err(fault) => {
                let failures = vec![(0, fault)];
                commit.guest().answer(ticket, &Answer::Executed { failures });
            }
        }
    }

    /// Executes a commit that is in use for it.
    #[inline]
    fn execute(&self, commit: &Committed<S>) -> Result<(), CommitFault> {
        let outcome = {
            let mut held = lock(&commit.held);
            match (held.as_mut(), &commit.model.kept) {
                (Some(held), Some(model)) if !commit.guest().gone.load(Ordering::Relaxed) => {
                    guarded(|| self.service.execute(model, &mut held.kept, &held.buffers))
                }
                _ => Err(CommitFault::UnknownId { id: commit.id }),
            }
        };
        self.count(&outcome);
        outcome
    }

    fn count(&self, outcome: &Result<(), CommitFault>) {
        let count = if outcome.is_ok() { &self.tally.executions } else { &self.tally.failures };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn run_together(&self, batch: &Batch<S>) {
        let mut held: Vec<_> = batch.commits.iter().map(|commit| lock(&commit.held)).collect();
        let pairs = batch.commits.iter().zip(&mut held);
        let mut executes: Vec<Execute<'_, S>> = pairs
            .filter_map(|(commit, held)| {
                let (held, model) = (held.as_mut()?, commit.model.kept.as_ref()?);
                Some(Execute { model, commit: &mut held.kept, buffers: &held.buffers })
            })
            .collect();
        let count = batch.commits.len();
        let outcomes = guarded(|| {
            let outcomes = self.service.execute_batch(&mut executes);
            if outcomes.len() == count {
                return Ok(outcomes);
            }
            Err(format!("{} answers for {count} executions", outcomes.len()).into())
        });
        drop(executes);
        drop(held);
        let outcomes: Vec<Result<(), CommitFault>> = match outcomes {
            Ok(outcomes) => {
                outcomes.into_iter().map(|outcome| outcome.map_err(CommitFault::from)).collect()
            }
            Err(fault) => vec![Err(fault); count],
        };
        for (at, outcome) in (0..).zip(outcomes) {
            self.count(&outcome);
            if let Err(fault) = outcome {
                lock(&batch.failures).push((at, fault));
            }
        }
        batch.commits.iter().for_each(|commit| commit.finish());
        batch.answer();
    }

    /// Something came from a client.
    #[inline]
    fn receive(&self, guest: &Arc<Guest<S>>, message: Message<'_>) {
        if message.kind() != MessageKind::Message {
            return guest.link.fail(not_a_message(message.kind()));
        }
        if let Some((ticket, id)) = message::is_execute_one(message.bytes()) {
            return self.start(guest, ticket, id);
        }
        self.receive_other(guest, message.to_vec());
    }

    #[inline]
    fn start(&self, guest: &Arc<Guest<S>>, ticket: u64, id: u64) {
        let found = lock(&guest.ledger).commits.get(id).cloned();
        match found.and_then(|commit| commit.begin().map(|()| commit)) {
            Ok(commit) => self.crew_do(commit, ticket),
            Err(fault) => guest.answer(ticket, &Answer::Failed(fault)),
        }
    }

    #[inline]
    fn crew_do(&self, errand: Arc<Committed<S>>, ticket: u64) {
        if errand.is_long() {
            return self.crew.push(Work::One((errand, ticket)));
        }
        if let Err(carried) = pocket::put((errand, ticket)) {
            self.crew.push(Work::One(carried));
        }
    }

    #[cold]
    fn receive_other(&self, guest: &Arc<Guest<S>>, message: Vec<u8>) {
        let (ticket, request) = match Request::decode(&message) {
            Ok((ticket, request, _)) => (ticket, request),
            Err(fault) => return guest.link.fail(fault.into()),
        };
        let take = |first, count| guest.link.take_descriptors(first, count);
        let descriptors = match &request {
            Request::Execute { ids } => return self.start_batch(guest, ticket, ids),
            Request::Discard { before } => {
                // Taking none drops those before.
                let _ = take(*before, 0);
                return;
            }
            Request::LoadDescriptor { passed, .. } => take(*passed, 1),
            Request::Commit { passed, .. } | Request::Update { passed, .. } => {
                take(passed.first, passed.count as usize)
            }
            _ => Ok(Vec::new()),
        };
        let asked = guest.asked.fetch_add(1, Ordering::Relaxed);
        if asked >= REQUESTS {
            guest.asked.fetch_sub(1, Ordering::Relaxed);
            let (what, used, limit) = ("requests", asked as u64, REQUESTS as u64);
            let fault = CommitFault::Quota { what, used, needed: 1, limit };
            return guest.answer(ticket, &Answer::Failed(fault));
        }
        let ask = Box::new(Ask { ticket, request, message, descriptors });
        self.crew.push(Work::Ask { guest: guest.clone(), ask });
    }

    /// All of them, or none.
    fn start_batch(&self, guest: &Arc<Guest<S>>, ticket: u64, ids: &[u64]) {
        let mut commits: Vec<Arc<Committed<S>>> = Vec::new();
        for id in ids {
            let found = lock(&guest.ledger).commits.get(*id).cloned();
            match found.and_then(|commit| commit.begin().map(|()| commit)) {
                Ok(commit) => commits.push(commit),
                Err(fault) => {
                    commits.iter().for_each(|commit| commit.finish());
                    return guest.answer(ticket, &Answer::Failed(fault));
                }
            }
        }
        let (guest, left) = (guest.clone(), AtomicUsize::new(commits.len()));
        let batch = Arc::new(Batch { guest, ticket, commits, failures: Default::default(), left });
        if self.service.takes_batches() {
            return self.crew.push(Work::Together(batch));
        }
        for at in 0..batch.commits.len() {
            self.crew.push(Work::Part { batch: batch.clone(), at });
        }
    }
}

impl<S: Service> Errand for Committed<S> {
    #[inline]
    fn is_long(&self) -> bool {
        self.long.load(Ordering::Relaxed)
    }

    fn run(self: Arc<Self>, ticket: u64) {
        self.guest().host.run_one(&self, ticket);
    }
}

impl<S: Service> Batch<S> {
    fn answer(&self) {
        let mut failures = std::mem::take(&mut *lock(&self.failures));
        failures.sort_by_key(|(at, _)| *at);
        self.guest.answer(self.ticket, &Answer::Executed { failures });
    }
}

/// Something that no client sends.
fn not_a_message(kind: MessageKind) -> Error {
    let value = u64::from(kind == MessageKind::Tensors) + 1;
    Fault::Field { field: "commit.kind", value }.into()
}

/// A client has connected.
fn admit<S: Service>(
    host: &Arc<Host<S>>,
    reactor: &Reactor,
    mut connection: Connection,
) -> Result<()> {
    connection.sender().admit_descriptors(2 * MOST);
    let link = reactor.adopt(connection)?;
    let caller = Caller { number: host.number(), credentials: link.credentials() };
    let guest = Arc::new(Guest::new(host.clone(), caller, link.clone()));
    let leaving = guest.clone();
    link.on_closed(move |_, ended| {
        leaving.gone.store(true, Ordering::Relaxed);
        if let Err(error) = ended {
            tracing::warn!(
                client = leaving.caller.number,
                error = format_args!("{error:#}"),
                "a client's link ended"
            );
            let _ = leaving.why.set(error);
        }
        let host = leaving.host.clone();
        host.crew.push(Work::Gone(leaving));
    });
    link.on_message(move |_, message| guest.host.receive(&guest, message));
    link.on_tensors(|link, _| link.fail(not_a_message(MessageKind::Tensors)));
    Ok(())
}
