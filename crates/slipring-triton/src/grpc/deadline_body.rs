//! The deadline of a response in an application's own server.
//!
//! hyper asks a body for frames only while its client has room for them, and the tasks of the calls are the application's. So
//! a body cannot reset its stream, as `progress` does on connections of this crate. It can give up what it holds: the
//! messages, their bytes in flight, and the instance of a decoupled model.
//!
//! 1. The body hands on copies of its frames, which are short. A stream that nobody reads keeps a few of them, and no tensor.
//! 2. The time runs from a frame that the client has got until the client asks for the next one. It never runs while the
//!    server makes a response.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame};
use tonic::Status;

use crate::blocking::AbortOnDrop;
use crate::grpc::progress::ProgressBody;

/// A body that is dropped once its client has taken nothing for too long. The client finds an error in its place.
pub(super) struct DeadlineBody {
    source: Arc<Source>,
    stall_timeout: Duration,
    /// Runs from the first frame on that is not the last one.
    watch: Option<AbortOnDrop<()>>,
}

/// What the body and its watch share.
struct Source(Mutex<SourceState>);

struct SourceState {
    /// `None` after the deadline.
    body: Option<ProgressBody>,
    /// The moment at which the client got a frame. `None` while the server makes the next one.
    handed: Option<Instant>,
}

impl DeadlineBody {
    pub(super) fn new(body: ProgressBody, stall_timeout: Duration) -> Self {
        let state = SourceState { body: Some(body), handed: None };
        Self { source: Arc::new(Source(Mutex::new(state))), stall_timeout, watch: None }
    }
}

impl Source {
    fn state(&self) -> MutexGuard<'_, SourceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time that the client has left to take something. A body that is being polled has all of it.
    fn left(&self, stall_timeout: Duration) -> Duration {
        let handed = self.0.try_lock().ok().and_then(|state| state.handed);
        handed.map_or(stall_timeout, |handed| stall_timeout.saturating_sub(handed.elapsed()))
    }

    /// Drops the body once the client has had no time left.
    fn drop_stalled(&self) {
        let body = self.state().body.take();
        drop(body);
    }
}

/// Waits for the deadline. A body that its server drops goes at once, since its watch does not hold it.
async fn watch(source: Weak<Source>, stall_timeout: Duration) {
    while let Some(source) = source.upgrade() {
        let left = source.left(stall_timeout);
        if left.is_zero() {
            return source.drop_stalled();
        }
        drop(source);
        tokio::time::sleep(left).await;
    }
}

impl Body for DeadlineBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let mut state = this.source.state();
        let Some(body) = &mut state.body else {
            let text = "the response has waited for its client for longer than the stall timeout";
            return Poll::Ready(Some(Err(Status::cancelled(text))));
        };
        let polled = Pin::new(&mut *body).poll_frame(context);
        let goes_on = matches!(polled, Poll::Ready(Some(Ok(_)))) && !body.is_end_stream();
        state.handed = polled.is_ready().then(Instant::now);
        drop(state);
        if goes_on && this.watch.is_none() {
            let watch = watch(Arc::downgrade(&this.source), this.stall_timeout);
            this.watch = Some(AbortOnDrop(tokio::spawn(watch)));
        }
        polled.map_ok(|frame| frame.map_data(|data| Bytes::copy_from_slice(&data)))
    }

    fn is_end_stream(&self) -> bool {
        self.source.state().body.as_ref().is_some_and(Body::is_end_stream)
    }
}
