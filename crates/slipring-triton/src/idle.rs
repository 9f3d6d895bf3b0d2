//! Closes connections that are idle for too long, and has those that are never idle let others run.
//!
//! A periodic sweep finds them. A timer for each request wakes the runtime's driver and makes a small request take 1.5
//! times as long (`benches/triton`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// A connection that has been idle for less time never loses its place to a new client: after a request, and before the
/// first one.
const MIN_EVICTABLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(100));

/// The time for which requests that come without a pause are served before other connections run.
const TURN: Duration = Duration::from_micros(100);

// All operations are relaxed: the counts and times order no other memory.

/// The activity of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Activity(Arc<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    start: Instant,
    /// The last moment at which the connection had a request or took part of a response, in milliseconds from `start`.
    last_progress: AtomicU64,
    /// Requests in flight.
    requests: AtomicUsize,
    /// Whether the connection ever had a request.
    has_had_request: AtomicBool,
    /// Whether the client takes nothing of a response.
    is_blocked: AtomicBool,
    /// The moment from which on requests have come without a pause, in nanoseconds from `start`. 0: the next one begins a turn.
    turn_start: AtomicU64,
    /// Held by the call that begins.
    beginning: Mutex<()>,
}

/// A request in flight. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Activity);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.record_progress();
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self(Arc::new(ActivityState {
            start: Instant::now(),
            last_progress: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            has_had_request: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            turn_start: AtomicU64::new(0),
            beginning: Mutex::new(()),
        }))
    }

    /// Counts a request until the returned value is dropped.
    pub(crate) fn begin_request(&self) -> ActiveRequest {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        self.0.has_had_request.store(true, Ordering::Relaxed);
        ActiveRequest(self.clone())
    }

    /// Lets other connections run if requests of this one have come without a pause for [`TURN`].
    ///
    /// The dispatcher of a connection serves what has arrived in a loop. A worker of the runtime asks the kernel for events of
    /// other connections once it has nothing else to run, or after 61 polls. A yield comes behind that question. It is that of
    /// another task: the dispatcher polls a pending request again in the same loop, which ends a yield of its own.
    pub(crate) async fn take_turn(&self) {
        let now = (self.0.start.elapsed().as_nanos() as u64).max(1);
        let began = self.0.turn_start.load(Ordering::Relaxed);
        if began == 0 {
            self.0.turn_start.store(now, Ordering::Relaxed);
        } else if now.saturating_sub(began) >= TURN.as_nanos() as u64 {
            self.0.turn_start.store(0, Ordering::Relaxed);
            let _ = tokio::spawn(tokio::task::yield_now()).await;
        }
    }

    /// Waits until a call of many in flight may begin. Calls begin one after another, so that those of one connection do not
    /// fill the queue of a runtime, and they [take turns](Self::take_turn).
    pub(crate) async fn begin_call(&self) {
        let _beginning = self.0.beginning.lock().await;
        self.take_turn().await;
    }

    /// Notes that nothing has come. The next request begins a turn, unless others are in flight.
    pub(crate) fn pause(&self) {
        if self.0.requests.load(Ordering::Relaxed) <= 1 {
            self.0.turn_start.store(0, Ordering::Relaxed);
        }
    }

    fn record_progress(&self) {
        self.0.last_progress.store(self.0.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn has_had_request(&self) -> bool {
        self.0.has_had_request.load(Ordering::Relaxed)
    }

    /// Returns whether the connection has neither a request in flight nor a response to send.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) == 0 && !self.is_blocked()
    }

    fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed)
    }

    /// Returns the time without a request; `None` while a request is in flight.
    fn idle_time(&self) -> Option<Duration> {
        let last_progress = Duration::from_millis(self.0.last_progress.load(Ordering::Relaxed));
        let is_busy = self.0.requests.load(Ordering::Relaxed) > 0;
        (!is_busy).then(|| self.0.start.elapsed().saturating_sub(last_progress))
    }
}

/// A stream that records whether its client takes the bytes that the server sends, and when nothing has come from it.
#[derive(Debug)]
pub(crate) struct ActivityStream<S> {
    stream: S,
    activity: Activity,
}

impl<S> ActivityStream<S> {
    pub(crate) fn new(stream: S, activity: Activity) -> Self {
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
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_pending() {
            self.activity.pause();
        }
        polled
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

/// The idle timeouts of all connections of one address.
#[derive(Debug)]
pub(crate) struct IdleTimeouts {
    /// The longest time before the first request, or without progress of a response.
    stall_timeout: Duration,
    /// The longest time between two requests. `None`: no limit.
    idle: Option<Duration>,
    watched: Vec<(Activity, AbortHandle)>,
    /// At this length the list drops the connections that have ended.
    sweep_len: usize,
    round: Interval,
}

/// The smallest length at which the list drops ended connections.
const MIN_SWEEP_LEN: usize = 64;

impl IdleTimeouts {
    pub(crate) fn new(stall_timeout: Duration, idle: Option<Duration>) -> Self {
        let shortest = idle.map_or(stall_timeout, |idle| idle.min(stall_timeout));
        let mut round = tokio::time::interval((shortest / 4).max(Duration::from_millis(1)));
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { stall_timeout, idle, watched: Vec::new(), sweep_len: MIN_SWEEP_LEN, round }
    }

    pub(crate) fn add(&mut self, activity: Activity, connection: AbortHandle) {
        if self.watched.len() >= self.sweep_len {
            self.watched.retain(|(_, connection)| !connection.is_finished());
            self.sweep_len = MIN_SWEEP_LEN.max(2 * self.watched.len());
        }
        self.watched.push((activity, connection));
    }

    /// Waits for the next sweep, and closes the connections whose time is over.
    pub(crate) async fn close_expired(&mut self) {
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

    /// Closes the connection that has been idle longest, to make place for another one. Those without any request come first.
    pub(crate) fn evict(&mut self) {
        self.watched.retain(|(_, connection)| !connection.is_finished());
        let evictable = |(at, (activity, _)): (usize, &(Activity, AbortHandle))| {
            let (rested, is_new) = (activity.idle_time()?, !activity.has_had_request());
            let least = if is_new { MIN_EVICTABLE.1 } else { MIN_EVICTABLE.0 };
            (rested >= least).then_some((is_new, rested, at))
        };
        if let Some((.., at)) = self.watched.iter().enumerate().filter_map(evictable).max() {
            self.watched.swap_remove(at).1.abort();
        }
    }
}
