//! Connections that are without a request for too long.
//!
//! They are looked through now and then. A timer for each request costs a wake-up of the runtime's driver, which made a
//! small request take half as long again (`benches/triton`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// So long nobody is taken for idle whose place another one wants.
const LEAST: Duration = Duration::from_secs(1);

// Relaxed throughout: counts and times, by which nothing else is read.

/// The state of one connection.
#[derive(Debug, Clone)]
pub(super) struct Idler(Arc<State>);

#[derive(Debug)]
struct State {
    made: Instant,
    /// When it last had a request or took some of an answer, in milliseconds since it was made.
    since: AtomicU64,
    /// Requests under way.
    busy: AtomicUsize,
    /// Whether it ever had one.
    has_asked: AtomicBool,
    /// Whether it takes nothing of an answer.
    is_blocked: AtomicBool,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Busy(Idler);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.moved();
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Idler {
    pub(super) fn new() -> Self {
        Self(Arc::new(State {
            made: Instant::now(),
            since: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            has_asked: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
        }))
    }

    /// A request is there, until what this gives is dropped.
    pub(super) fn works(&self) -> Busy {
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        self.0.has_asked.store(true, Ordering::Relaxed);
        Busy(self.clone())
    }

    fn moved(&self) {
        self.0.since.store(self.0.made.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn has_asked(&self) -> bool {
        self.0.has_asked.load(Ordering::Relaxed)
    }

    /// Whether nothing is to be done for it.
    pub(super) fn rests(&self) -> bool {
        self.0.busy.load(Ordering::Relaxed) == 0 && !self.is_blocked()
    }

    fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed)
    }

    /// For how long it has had no request.
    fn rested(&self) -> Option<Duration> {
        let since = Duration::from_millis(self.0.since.load(Ordering::Relaxed));
        let is_busy = self.0.busy.load(Ordering::Relaxed) > 0;
        (!is_busy).then(|| self.0.made.elapsed().saturating_sub(since))
    }
}

/// A stream whose connection tells whether its client takes what is sent.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    idler: Idler,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, idler: Idler) -> Self {
        Self { stream, idler }
    }

    fn wrote(&self, polled: &Poll<std::io::Result<usize>>) {
        self.idler.0.is_blocked.store(polled.is_pending(), Ordering::Relaxed);
        if polled.is_ready() {
            self.idler.moved();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, room)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }
}

/// All connections of an address.
#[derive(Debug)]
pub(super) struct Idlers {
    /// For how long a connection may be without its first request, or take nothing of an answer.
    patience: Duration,
    /// For how long it may be without another one. `None`: for ever.
    idle: Option<Duration>,
    watched: Vec<(Idler, AbortHandle)>,
    /// From as many on, those that have ended are forgotten.
    most: usize,
    round: Interval,
}

/// So few are looked through only in their turn.
const FEW: usize = 64;

impl Idlers {
    pub(super) fn new(patience: Duration, idle: Option<Duration>) -> Self {
        let shortest = idle.map_or(patience, |idle| idle.min(patience));
        let mut round = tokio::time::interval((shortest / 4).max(Duration::from_millis(1)));
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { patience, idle, watched: Vec::new(), most: FEW, round }
    }

    pub(super) fn watch(&mut self, idler: Idler, connection: AbortHandle) {
        if self.watched.len() >= self.most {
            self.watched.retain(|(_, connection)| !connection.is_finished());
            self.most = FEW.max(2 * self.watched.len());
        }
        self.watched.push((idler, connection));
    }

    /// Waits for its turn, and ends those that have rested too long.
    pub(super) async fn look(&mut self) {
        self.round.tick().await;
        let (patience, idle) = (self.patience, self.idle);
        self.watched.retain(|(idler, connection)| {
            let waits_for_more = idler.has_asked() && !idler.is_blocked();
            let longest = if waits_for_more { idle } else { Some(patience) };
            if let (Some(rested), Some(longest)) = (idler.rested(), longest)
                && rested > longest
            {
                connection.abort();
            }
            !connection.is_finished()
        });
    }

    /// Ends the one that has rested longest, whose place another one wants.
    pub(super) fn evict(&mut self) {
        self.watched.retain(|(_, connection)| !connection.is_finished());
        let rested = |(at, (idler, _)): (usize, &(Idler, AbortHandle))| Some((idler.rested()?, at));
        let longest = self.watched.iter().enumerate().filter_map(rested).max();
        if let Some((rested, at)) = longest
            && rested >= LEAST
        {
            self.watched.swap_remove(at).1.abort();
        }
    }
}
