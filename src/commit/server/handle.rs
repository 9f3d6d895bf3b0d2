//! The server: the thread that receives, the workers, and their end.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::commit::server::client_session::ClientSession;
use crate::commit::server::host::Host;
use crate::commit::server::options::ServerOptions;
use crate::commit::server::service::Service;
use crate::commit::server::tally::{ServerStats, Tally};
use crate::error::{Error, Result};
use crate::reactor::{EventLoop, Reactor};
use crate::transport::{Context, Listener};

/// Runs a [`Service`] for any number of clients.
///
/// Dropping the server ends it. Executions that run and requests that wait are finished and answered, and later ones are
/// not begun. Then the server closes every client's link in order. It does so after
/// [`ServerOptions::shutdown_timeout`] at the latest: handlers that still run are finished, though their clients get no
/// answer, and what waits is never begun. A server that one of its own handlers drops closes the links at once.
///
/// # Examples
///
/// ```
/// use slipring::commit::{
///     Buffer, BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused, Server, Service,
/// };
/// use slipring::{Address, Context, DType};
///
/// /// Adds one to every byte of its input.
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
///     fn runs_inline(&self, _: &()) -> bool {
///         true // takes less than a microsecond, and never blocks
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
#[must_use = "the server ends when it is dropped"]
pub struct Server {
    reactor: Reactor,
    tally: Arc<Tally>,
    /// Ends what clients have asked for. True: waits for it first.
    finish: Box<dyn Fn(bool) + Send + Sync>,
    /// The first one receives, the others are workers.
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves every client that connects to `listener`, with the default options.
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
        let (reactor, tally) = (events.reactor(), Arc::new(Tally::default()));
        let host = Arc::new(Host::new(service, options, tally.clone()));
        let (adopting, admitting) = (reactor.clone(), host.clone());
        reactor.accept_with(listener, move |accepted| {
            let served = accepted
                .and_then(|connection| ClientSession::serve(&admitting, &adopting, connection));
            if let Err(error) = served {
                tracing::warn!(error = format_args!("{error:#}"), "a client could not connect");
            }
            ControlFlow::Continue(())
        })?;
        let (finishing, inline) = (host.clone(), reactor.clone());
        let finish = Box::new(move |waits: bool| {
            finishing.end();
            if waits {
                let (start, limit) = (Instant::now(), finishing.options().shutdown_limit());
                let left = || limit.saturating_sub(start.elapsed());
                // Behind this nothing runs inline, and nothing more is queued.
                let (done, is_done) = mpsc::channel();
                inline.defer(move || {
                    let _ = done.send(());
                });
                let _ = is_done.recv_timeout(limit);
                finishing.workers().finish(left());
                finishing.unsent().wait(left());
            }
            finishing.close();
        });
        let mut server = Self { reactor, tally, finish, threads: Vec::new() };
        let receiving = host.clone();
        server.start("slipring-commit", move || {
            if let Err(error) = events.run() {
                tracing::error!(error = format_args!("{error:#}"), "the server stopped");
            }
            // Closes every link, which queues the end of every client.
            drop(events);
            receiving.workers().stop();
        })?;
        for _ in 0..options.worker_count() {
            let host = host.clone();
            server.start("slipring-worker", move || host.workers().run())?;
        }
        Ok(server)
    }

    fn start(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        // After an error the caller drops the server, which ends the threads that have started.
        self.threads.push(thread.map_err(|error| Error::os("thread spawn", error))?);
        Ok(())
    }

    /// Returns the server's counts.
    pub fn stats(&self) -> ServerStats {
        self.tally.read()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let this = std::thread::current().id();
        let is_handler = self.threads.iter().any(|thread| thread.thread().id() == this);
        (self.finish)(!is_handler);
        self.reactor.shutdown();
        // A handler may drop the server. The workers end after the thread that receives, so that thread waits for none.
        if self.threads.first().is_some_and(|receives| receives.thread().id() == this) {
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.thread().id() != this {
                let _ = thread.join();
            }
        }
    }
}
