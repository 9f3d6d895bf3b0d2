//! The deadline of a response: a client that takes nothing of it loses it.
//!
//! hyper asks a body for its next frame once the connection has room for it. So the frames that a body hands on show
//! how fast its client takes them, if they are short. hyper runs each call as a task of its own, which the executor of
//! this module ends. An application's server has an executor of its own: `deadline_body`.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tonic::Status;
use tonic::body::Body as AnyBody;

/// The longest frame. A client takes one in each stall timeout, or loses the response.
const LONGEST: usize = 256 << 10;

/// The longest last frame: bytes that stay with a connection whose client takes no more.
const LAST: usize = 16 << 10;

tokio::task_local! {
    /// The state of the response of the current call.
    static RESPONSE: Cell<State>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The server makes the response, or its next part.
    Made,
    /// The client has got this many frames, and the next ones wait for it.
    Handed(u64),
}

/// Runs the calls of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallExecutor {
    stall_timeout: Duration,
}

impl CallExecutor {
    pub(super) fn new(stall_timeout: Duration) -> Self {
        Self { stall_timeout }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallExecutor {
    fn execute(&self, call: F) {
        tokio::spawn(RESPONSE.scope(Cell::new(State::Made), watched(call, self.stall_timeout)));
    }
}

/// Runs a call to its end, or until its response waits for its client for too long. The stream is then reset.
async fn watched(call: impl Future<Output = ()>, longest: Duration) {
    let mut call = pin!(call);
    let (mut before, mut timer) = (State::Made, None);
    poll_fn(|context| {
        if call.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let state = RESPONSE.with(Cell::get);
        if state != before {
            (before, timer) = (state, None);
        }
        if state == State::Made {
            return Poll::Pending;
        }
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        timer.as_mut().poll(context)
    })
    .await;
}

/// A body that hands on short frames and notes each.
pub(super) struct ProgressBody {
    body: AnyBody,
    /// The rest of a long frame.
    rest: Bytes,
    frames: u64,
}

impl ProgressBody {
    pub(super) fn new(body: AnyBody) -> Self {
        Self { body, rest: Bytes::new(), frames: 0 }
    }

    /// Returns the next short frame of the rest.
    fn cut(&mut self) -> Frame<Bytes> {
        let len = match self.rest.len() {
            ..=LAST => self.rest.len(),
            len => (len - LAST).min(LONGEST),
        };
        Frame::data(self.rest.split_to(len))
    }
}

impl Body for ProgressBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let polled = if this.rest.is_empty() {
            let polled = Pin::new(&mut this.body).poll_frame(context);
            polled.map_ok(|frame| match frame.into_data() {
                Ok(data) if data.len() > LAST => {
                    this.rest = data;
                    this.cut()
                }
                Ok(data) => Frame::data(data),
                Err(other) => other,
            })
        } else {
            Poll::Ready(Some(Ok(this.cut())))
        };
        this.frames += 1;
        let state = if polled.is_pending() { State::Made } else { State::Handed(this.frames) };
        // An application's own server does not set the state.
        let _ = RESPONSE.try_with(|response| response.set(state));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rest.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}
