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
pub(super) struct Activity(Arc<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    made: Instant,
    /// When it last had a request or took some of an answer, in milliseconds since it was made.
    since: AtomicU64,
    /// Requests under way.
    busy: AtomicUsize,
    /// Whether it ever had one.
    has_had_request: AtomicBool,
    /// Whether it takes nothing of an answer.
    is_blocked: AtomicBool,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct ActiveRequest(Activity);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.record_progress();
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(ActivityState {
            made: Instant::now(),
            since: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            has_had_request: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
        }))
    }

    /// A request is there, until what this gives is dropped.
    pub(super) fn begin_request(&self) -> ActiveRequest {
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        self.0.has_had_request.store(true, Ordering::Relaxed);
        ActiveRequest(self.clone())
    }

    fn record_progress(&self) {
        self.0.since.store(self.0.made.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn has_had_request(&self) -> bool {
        self.0.has_had_request.load(Ordering::Relaxed)
    }

    /// Whether nothing is to be done for it.
    pub(super) fn is_idle(&self) -> bool {
        self.0.busy.load(Ordering::Relaxed) == 0 && !self.is_blocked()
    }

    fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed)
    }

    /// For how long it has had no request.
    fn idle_time(&self) -> Option<Duration> {
        let since = Duration::from_millis(self.0.since.load(Ordering::Relaxed));
        let is_busy = self.0.busy.load(Ordering::Relaxed) > 0;
        (!is_busy).then(|| self.0.made.elapsed().saturating_sub(since))
    }
}

/// A stream whose connection tells whether its client takes what is sent.
#[derive(Debug)]
pub(super) struct ActivityStream<S> {
    stream: S,
    activity: Activity,
}

impl<S> ActivityStream<S> {
    pub(super) fn new(stream: S, activity: Activity) -> Self {
        Self { stream, activity }
    }

    fn wrote(&self, polled: &Poll<std::io::Result<usize>>) {
        self.activity.0.is_blocked.store(polled.is_pending(), Ordering::Relaxed);
        if polled.is_ready() {
            self.activity.record_progress();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, room)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
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
pub(super) struct IdleTimeouts {
    /// For how long a connection may be without its first request, or take nothing of an answer.
    stall_timeout: Duration,
    /// For how long it may be without another one. `None`: for ever.
    idle: Option<Duration>,
    watched: Vec<(Activity, AbortHandle)>,
    /// From as many on, those that have ended are forgotten.
    most: usize,
    round: Interval,
}

/// So few are looked through only in their turn.
const FEW: usize = 64;

impl IdleTimeouts {
    pub(super) fn new(stall_timeout: Duration, idle: Option<Duration>) -> Self {
        let shortest = idle.map_or(stall_timeout, |idle| idle.min(stall_timeout));
        let mut round = tokio::time::interval((shortest / 4).max(Duration::from_millis(1)));
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { stall_timeout, idle, watched: Vec::new(), most: FEW, round }
    }

    pub(super) fn add(&mut self, activity: Activity, connection: AbortHandle) {
        if self.watched.len() >= self.most {
            self.watched.retain(|(_, connection)| !connection.is_finished());
            self.most = FEW.max(2 * self.watched.len());
        }
        self.watched.push((activity, connection));
    }

    /// Waits for its turn, and ends those that have rested too long.
    pub(super) async fn close_expired(&mut self) {
        self.round.tick().await;
        let (stall_timeout, idle) = (self.stall_timeout, self.idle);
        self.watched.retain(|(activity, connection)| {
            let waits_for_more = activity.has_had_request() && !activity.is_blocked();
            let longest = if waits_for_more { idle } else { Some(stall_timeout) };
            if let (Some(rested), Some(longest)) = (activity.idle_time(), longest)
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
        let rested = |(at, (activity, _)): (usize, &(Activity, AbortHandle))| {
            Some((activity.idle_time()?, at))
        };
        let longest = self.watched.iter().enumerate().filter_map(rested).max();
        if let Some((rested, at)) = longest
            && rested >= LEAST
        {
            self.watched.swap_remove(at).1.abort();
        }
    }
}
