//! A body that gives a long message only once all of it is there.
//!
//! ```text
//!   frame of gRPC   compressed u8 │ length u32, big-endian │ length bytes
//! ```
//!
//! Whoever decodes takes memory for as many bytes as a frame's head claims. Here frames are followed as they come,
//! and a claim above [`SHORT`] is handed on when it has turned out to be true.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Sleep;
use tonic::Status;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a message that may be claimed before they are there.
const SHORT: usize = 64 << 10;

/// Bytes of a frame's head.
const HEAD: usize = 5;

/// Where in its frames a body is.
#[derive(Debug, Default)]
struct Frames {
    head: [u8; HEAD],
    have: usize,
    /// Of the message at hand.
    len: usize,
    /// Of its bytes, how many are to come.
    left: usize,
}

impl Frames {
    /// Passes over what has come, up to a message that is longer than `longest`: its length.
    fn pass(&mut self, mut bytes: &[u8], longest: usize) -> Option<usize> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let taken = (HEAD - self.have).min(bytes.len());
            self.head[self.have..][..taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEAD {
                let [_, len @ ..] = self.head;
                self.len = u32::from_be_bytes(len) as usize;
                (self.left, self.have) = (self.len, 0);
                if self.len > longest {
                    return Some(self.len);
                }
            }
        }
        None
    }

    fn is_amid(&self) -> bool {
        self.left > 0 || self.have > 0
    }
}

/// A body whose long messages are whole.
pub(super) struct Gathered<B> {
    body: B,
    /// Messages that are longer are refused at once.
    longest: usize,
    frames: Frames,
    held: VecDeque<Bytes>,
    /// What is held is whole.
    is_whole: bool,
    /// What came behind the data.
    last: Option<Frame<Bytes>>,
    patience: Duration,
    /// While a message is half there.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<B> Gathered<B> {
    /// Amid a message, so long may no byte of it come.
    pub(super) fn new(body: B, longest: usize, patience: Duration) -> Self {
        Self {
            body,
            longest,
            frames: Frames::default(),
            held: VecDeque::new(),
            is_whole: false,
            last: None,
            patience,
            waits: None,
        }
    }

    /// Whether what has come is to wait for the rest of its message.
    fn is_to_wait(&self) -> bool {
        self.frames.left > 0 && self.frames.len > SHORT
    }

    /// Out of patience, if a message is half there.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.frames.is_amid() {
            return Poll::Pending;
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        waits.as_mut().poll(context)
    }
}

impl<B> Body for Gathered<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Failure>,
{
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = &mut *self;
        loop {
            if this.is_whole {
                if let Some(part) = this.held.pop_front() {
                    return Poll::Ready(Some(Ok(Frame::data(part))));
                }
                this.is_whole = false;
            }
            if let Some(last) = this.last.take() {
                return Poll::Ready(Some(Ok(last)));
            }
            let Poll::Ready(polled) = Pin::new(&mut this.body).poll_frame(context) else {
                ready!(this.poll_patience(context));
                let status = Status::deadline_exceeded("no more of a message has come");
                return Poll::Ready(Some(Err(status.into())));
            };
            this.waits = None;
            let frame = match polled {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None if this.held.is_empty() => return Poll::Ready(None),
                None => {
                    this.held.clear();
                    let Frames { len, left, .. } = this.frames;
                    let text = format!("message of {len} bytes ends after {}", len - left);
                    return Poll::Ready(Some(Err(Status::internal(text).into())));
                }
            };
            match frame.into_data() {
                Ok(part) => {
                    if let Some(len) = this.frames.pass(&part, this.longest) {
                        // As gRPC's own servers say it.
                        let text = format!(
                            "Received message larger than max ({len} vs. {})",
                            this.longest
                        );
                        return Poll::Ready(Some(Err(Status::resource_exhausted(text).into())));
                    }
                    if this.held.is_empty() && !this.is_to_wait() {
                        return Poll::Ready(Some(Ok(Frame::data(part))));
                    }
                    this.held.push_back(part);
                    this.is_whole = !this.is_to_wait();
                }
                Err(trailers) => this.last = Some(trailers),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks, and then nothing more or the end.
    struct Chunks(VecDeque<Bytes>, bool);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Failure;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
            match self.0.pop_front() {
                Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
                None if self.1 => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    const LONGEST: usize = 1 << 20;

    fn frame(len: usize) -> Vec<u8> {
        let mut frame = vec![0];
        frame.extend_from_slice(&(len as u32).to_be_bytes());
        frame.extend((0..len).map(|byte| byte as u8));
        frame
    }

    fn gathered(bytes: &[u8], chunk: usize, ends: bool) -> Gathered<Chunks> {
        let chunks = bytes.chunks(chunk).map(Bytes::copy_from_slice).collect();
        Gathered::new(Chunks(chunks, ends), LONGEST, Duration::from_millis(1))
    }

    async fn next(body: &mut Gathered<Chunks>) -> Option<Result<Bytes, Failure>> {
        let polled = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        polled.map(|frame| frame.map(|frame| frame.into_data().unwrap()))
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn all_bytes_come_in_their_order_however_they_are_cut() {
        let bytes = [frame(3), frame(0), frame(100_000), frame(SHORT), frame(200_000)].concat();
        for chunk in [1, 4, 5, 6, 16 << 10, 65_541, bytes.len()] {
            let mut body = gathered(&bytes, chunk, true);
            let got = run(async {
                let mut got = Vec::new();
                while let Some(part) = next(&mut body).await {
                    got.extend_from_slice(&part.unwrap());
                }
                got
            });
            assert!(got == bytes, "chunks of {chunk}");
        }
    }

    #[test]
    fn a_long_message_that_is_not_whole_is_not_handed_on() {
        let bytes = [frame(10), frame(100_000)].concat();
        for ends in [true, false] {
            let mut body = gathered(&bytes[..bytes.len() - 1], 15, ends);
            run(async {
                assert_eq!(next(&mut body).await.unwrap().unwrap().len(), 15);
                let failure = next(&mut body).await.unwrap().unwrap_err();
                let status = failure.downcast::<Status>().unwrap();
                let wanted = if ends { "ends after 99999" } else { "no more of a message" };
                assert!(status.message().contains(wanted), "{status}");
            });
        }
    }

    #[test]
    fn what_is_too_long_is_refused_by_its_head() {
        let mut bytes = frame(3);
        bytes.push(0);
        bytes.extend_from_slice(&(LONGEST as u32 + 1).to_be_bytes());
        let mut body = gathered(&bytes, bytes.len(), false);
        let failure = run(next(&mut body)).unwrap().unwrap_err();
        let status = failure.downcast::<Status>().unwrap();
        assert_eq!(status.message(), "Received message larger than max (1048577 vs. 1048576)");
    }
}
