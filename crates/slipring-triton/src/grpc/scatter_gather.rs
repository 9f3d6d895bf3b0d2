//! A body that gives a message only once it is there, counted and plain.
//!
//! ```text
//!   frame of gRPC   compressed u8 │ length u32, big-endian │ length bytes
//! ```
//!
//! Whoever decodes takes memory for as many bytes as a frame's head claims, and decompresses whatever comes of it. So
//! frames are followed here as they come:
//!
//! 1. Each byte is taken from the bytes under way as it comes. It is given back when the next message of its call
//!    begins, or with the last that holds the call's [`Charge`].
//! 2. A plain message above [`SHORT`] is handed on when all of it is there.
//! 3. A compressed one is decompressed when all of it is there, a step at a time, each taken from the bytes under
//!    way as well, and handed on plain.
//! 4. What is handed on at a time ends with its message, and a call that takes one message gets no more.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use tokio::time::Sleep;
use tonic::Status;
use tonic::codec::CompressionEncoding;

use crate::budget::Charge;
use crate::grpc::inflate::Inflate;
use crate::limits::Limits;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a message that may be claimed before they are there.
const SHORT: usize = 64 << 10;

/// Bytes of a frame's head.
const HEAD: usize = 5;

/// Bytes of a message that is taken.
pub(super) fn longest(limits: &Limits) -> usize {
    usize::try_from(limits.request_bytes).unwrap_or(usize::MAX).min(u32::MAX as usize)
}

/// As gRPC's own servers say it.
fn too_long(len: usize, longest: usize) -> Status {
    Status::resource_exhausted(format!("Received message larger than max ({len} vs. {longest})"))
}

/// Of a plain message.
fn head(len: usize) -> Bytes {
    let [a, b, c, d] = (len as u32).to_be_bytes();
    Bytes::copy_from_slice(&[0, a, b, c, d])
}

/// A body whose messages are whole, plain and counted.
pub(super) struct ScatterGatherBody<B> {
    body: B,
    /// Of messages that say that they are compressed.
    encoding: Option<CompressionEncoding>,
    /// Whether its call takes more than one message.
    is_stream: bool,
    has_begun: bool,
    /// Messages that are longer are refused at once.
    longest: usize,
    charge: Charge,
    /// Come, and not yet looked at: from a frame's head on, or amid a message.
    rest: Bytes,
    /// Of the message at hand: its length, what of it is to come, and whether it is to be made plain.
    len: usize,
    left: usize,
    is_coded: bool,
    /// What has come of it, and waits.
    parts: VecDeque<Bytes>,
    inflate: Option<Inflate>,
    /// To be handed on.
    ready: VecDeque<Bytes>,
    /// What came behind the data.
    last: Option<Frame<Bytes>>,
    limits: Limits,
    /// While a message is half there.
    waits: Option<Pin<Box<Sleep>>>,
    /// When the message at hand was first waited for.
    since: Option<Instant>,
}

impl<B> ScatterGatherBody<B> {
    /// `charge` is the call's.
    pub(super) fn new(
        body: B,
        encoding: Option<CompressionEncoding>,
        is_stream: bool,
        limits: &Limits,
        charge: Charge,
    ) -> Self {
        Self {
            body,
            encoding,
            is_stream,
            has_begun: false,
            longest: longest(limits),
            charge,
            rest: Bytes::new(),
            len: 0,
            left: 0,
            is_coded: false,
            parts: VecDeque::new(),
            inflate: None,
            ready: VecDeque::new(),
            last: None,
            limits: *limits,
            waits: None,
            since: None,
        }
    }

    fn is_amid(&self) -> bool {
        self.left > 0 || !self.rest.is_empty()
    }

    /// Takes up what has come.
    fn receive(&mut self, part: Bytes) -> Result<(), Status> {
        self.charge.add(part.len() as u64)?;
        // What is left over is part of a head.
        self.rest =
            if self.rest.is_empty() { part } else { [&self.rest[..], &part].concat().into() };
        Ok(())
    }

    /// Looks at what has come, up to the next message's head or end: whether there was anything to look at.
    fn pass(&mut self) -> Result<bool, Status> {
        if self.left == 0 {
            let Some(&[flag, a, b, c, d]) = self.rest.first_chunk() else { return Ok(false) };
            self.begin(flag, u32::from_be_bytes([a, b, c, d]) as usize)?;
        } else if self.rest.is_empty() {
            return Ok(false);
        }
        let part = self.rest.split_to(self.left.min(self.rest.len()));
        self.left -= part.len();
        if !part.is_empty() {
            self.parts.push_back(part);
        }
        if self.is_coded {
            if let (0, Some(encoding)) = (self.left, self.encoding) {
                self.inflate = Inflate::new(encoding, std::mem::take(&mut self.parts));
            }
        } else if self.left == 0 || self.len <= SHORT {
            self.ready.append(&mut self.parts);
        }
        Ok(true)
    }

    /// Takes up a message by its head.
    fn begin(&mut self, flag: u8, len: usize) -> Result<(), Status> {
        if len > self.longest {
            return Err(too_long(len, self.longest));
        }
        if self.has_begun && !self.is_stream {
            return Err(Status::internal("more messages than one in a call that takes one"));
        }
        self.has_begun = true;
        self.since = None;
        // Whoever wants another message is done with the one before.
        self.charge.set(self.rest.len() as u64);
        // What says that it is compressed where nobody has said how is for the decoder to refuse.
        self.is_coded = flag == 1 && self.encoding.is_some();
        self.len = len;
        self.left = len;
        if self.is_coded {
            self.rest.advance(HEAD);
        } else {
            self.left += HEAD;
        }
        Ok(())
    }

    /// Makes the message at hand plain. Pending: others have their turn.
    fn inflate(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let Some(mut inflate) = self.inflate.take() else { return Poll::Ready(Ok(())) };
        let longest = self.longest;
        let too_long = |len| (len > longest).then(|| too_long(len, longest));
        let Some(len) = inflate.turn(&self.charge, too_long)? else {
            self.inflate = Some(inflate);
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        self.ready.push_back(head(len));
        self.ready.append(&mut inflate.into_plain());
        // Its compressed bytes are gone.
        self.charge.set((len + self.rest.len()) as u64);
        Poll::Ready(Ok(()))
    }

    /// What is wrong where the body ends here.
    fn end(&mut self) -> Result<(), Status> {
        if !self.is_amid() {
            return Ok(());
        }
        self.parts.clear();
        let there = self.len.saturating_sub(self.left);
        let text = match self.left {
            0 => "a call ends within a message's head".to_owned(),
            _ => format!("message of {} bytes ends after {there}", self.len),
        };
        Err(Status::internal(text))
    }

    /// Out of stall_timeout, if a message is half there.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_amid() {
            return Poll::Pending;
        }
        let since = self.since.get_or_insert_with(Instant::now).elapsed();
        let came = self.len.saturating_sub(self.left) as u64;
        let longest =
            self.limits.stall_timeout.min(self.limits.waiting(came).saturating_sub(since));
        let waits = self.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        waits.as_mut().poll(context)
    }
}

impl<B> Body for ScatterGatherBody<B>
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
            if let Some(part) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            if this.inflate.is_some() {
                ready!(this.inflate(context))?;
                continue;
            }
            if this.pass()? {
                continue;
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
            match polled.transpose().map_err(Into::into)?.map(Frame::into_data) {
                Some(Ok(part)) => this.receive(part)?,
                Some(Err(trailers)) => {
                    this.end()?;
                    this.last = Some(trailers);
                }
                None => {
                    this.end()?;
                    return Poll::Ready(None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::time::Duration;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::budget::Budget;

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

    fn body_of(bytes: &[u8], chunk: usize, ends: bool) -> ScatterGatherBody<Chunks> {
        shared(bytes, chunk, ends, Arc::new(Budget::new(u64::MAX)).charge())
    }

    /// As `body_of`, of a stream that may be compressed.
    fn shared(bytes: &[u8], chunk: usize, ends: bool, charge: Charge) -> ScatterGatherBody<Chunks> {
        let chunks = Chunks(bytes.chunks(chunk).map(Bytes::copy_from_slice).collect(), ends);
        let limits =
            Limits::new().request_bytes(LONGEST as u64).stall_timeout(Duration::from_millis(1));
        ScatterGatherBody::new(chunks, Some(CompressionEncoding::Gzip), true, &limits, charge)
    }

    async fn next(body: &mut ScatterGatherBody<Chunks>) -> Option<Result<Bytes, Failure>> {
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
            let mut body = body_of(&bytes, chunk, true);
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

    /// A frame of as many zeros, compressed.
    fn coded(len: usize) -> Vec<u8> {
        let mut coder = GzEncoder::new(Vec::new(), Compression::fast());
        coder.write_all(&vec![0; len]).unwrap();
        let coded = coder.finish().unwrap();
        [&[1][..], &(coded.len() as u32).to_be_bytes(), &coded].concat()
    }

    async fn all(body: &mut ScatterGatherBody<Chunks>) -> Result<Vec<u8>, Status> {
        let mut got = Vec::new();
        while let Some(part) = next(body).await {
            got.extend_from_slice(&part.map_err(|failure| *failure.downcast::<Status>().unwrap())?);
        }
        Ok(got)
    }

    #[test]
    fn compressed_messages_are_handed_on_plain() {
        let bytes = [coded(0), frame(3), coded(LONGEST), coded(10)].concat();
        let zeros = |len: usize| [&[0][..], &(len as u32).to_be_bytes(), &vec![0; len]].concat();
        let plain = [zeros(0), frame(3), zeros(LONGEST), zeros(10)].concat();
        for chunk in [1, 6, bytes.len()] {
            assert!(run(all(&mut body_of(&bytes, chunk, true))).unwrap() == plain, "{chunk}");
        }
        let status = run(all(&mut body_of(&coded(LONGEST + 1), 100, true))).unwrap_err();
        assert!(status.message().contains("larger than max"), "{status}");
        let mut broken = coded(1000);
        broken[20] ^= 1;
        let status = run(all(&mut body_of(&broken, 100, true))).unwrap_err();
        assert_eq!(status.message(), "failed to decompress a message");
    }

    #[test]
    fn every_byte_is_under_way_until_the_next_message() {
        let budget = Arc::new(Budget::new(250_000));
        let left = |bytes: u64| budget.charge().add(bytes).is_ok();
        // Three messages in a row fit, as there is one at a time; two of two calls do not.
        let bytes = [frame(150_000), coded(150_000), frame(150_000)].concat();
        let mut first = shared(&bytes, 10_000, true, budget.charge());
        assert!(run(all(&mut first)).unwrap().len() > 450_000);
        assert!(left(100_000 - HEAD as u64) && !left(100_000 - HEAD as u64 + 1));
        for message in [frame(150_000), coded(150_000)] {
            let status =
                run(all(&mut shared(&message, 10_000, true, budget.charge()))).unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unavailable);
        }
        drop(first);
        assert!(left(250_000));
    }

    /// A byte now and then, for ever.
    struct Drops(Pin<Box<Sleep>>);

    impl Body for Drops {
        type Data = Bytes;
        type Error = Failure;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
            ready!(self.0.as_mut().poll(context));
            self.0 = Box::pin(tokio::time::sleep(Duration::from_millis(5)));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0])))))
        }
    }

    #[test]
    fn a_message_that_comes_in_drops_is_not_waited_for_forever() {
        let limits = Limits::new().stall_timeout(Duration::from_millis(100));
        run(async {
            let drops = Drops(Box::pin(tokio::time::sleep(Duration::ZERO)));
            let charge = Arc::new(Budget::new(u64::MAX)).charge();
            let mut body = ScatterGatherBody::new(drops, None, true, &limits, charge);
            // The head of a message of 1 MiB, and then none of it to speak of.
            body.receive(Bytes::from_static(&[0, 0, 16, 0, 0])).unwrap();
            let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let failure = tokio::time::timeout(Duration::from_secs(20), next).await;
            let failure = failure.expect("an end").unwrap().unwrap_err();
            assert!(failure.to_string().contains("no more of a message"), "{failure}");
        });
    }

    #[test]
    fn a_call_that_takes_one_message_gets_no_second_one() {
        let mut body = body_of(&[frame(3), frame(3)].concat(), 4, true);
        body.is_stream = false;
        let status = run(all(&mut body)).unwrap_err();
        assert_eq!(status.message(), "more messages than one in a call that takes one");
    }

    #[test]
    fn a_long_message_that_is_not_whole_is_not_handed_on() {
        let bytes = [frame(10), frame(100_000)].concat();
        for ends in [true, false] {
            let mut body = body_of(&bytes[..bytes.len() - 1], 15, ends);
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
        let mut body = body_of(&bytes, bytes.len(), false);
        let status = run(all(&mut body)).unwrap_err();
        assert_eq!(status.message(), "Received message larger than max (1048577 vs. 1048576)");
    }
}
