//! A scatter-gather body: it yields a message only when all its bytes have arrived, decompressed and charged.
//!
//! ```text
//!   frame of gRPC   compressed u8 │ length u32, big-endian │ length bytes
//! ```
//!
//! tonic's decoder reserves memory for the length that a frame claims, and decompresses without a limit on the sum.
//! This body therefore follows the frames itself:
//!
//! 1. Each arriving byte is charged. The charge is released when the next message of the call begins, or with the last
//!    holder of the call's [`Charge`].
//! 2. A message above [`SHORT`] is put together in memory of its length, and passes tonic by ([`LongMessages`]).
//! 3. A compressed message is decompressed step by step when all of it has arrived. Each chunk is charged before there
//!    is memory for it. The message is passed on as plain.
//! 4. A chunk never spans two messages, and a call of one message receives only one.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use tokio::time::Sleep;
use tonic::Status;
use tonic::codec::CompressionEncoding;

use crate::budget::Charge;
use crate::grpc::inflate::Inflate;
use crate::grpc::long_messages::LongMessages;
use crate::limits::Limits;
use crate::pages::Assembly;
use crate::patience::Patience;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a message that tonic may reserve before they arrive, and copies.
const SHORT: usize = 64 << 10;

/// Bytes of a frame's header.
const HEAD: usize = 5;

/// Bytes put together before the task yields: some hundred microseconds, if the pages are new.
const YIELD_AFTER: usize = 128 << 10;

/// Returns the max_len message in bytes.
pub(super) fn max_len(limits: &Limits) -> usize {
    usize::try_from(limits.request_bytes).unwrap_or(usize::MAX).min(u32::MAX as usize)
}

/// Returns the status of tonic's own servers.
fn too_long(len: usize, max_len: usize) -> Status {
    Status::resource_exhausted(format!("Received message larger than max ({len} vs. {max_len})"))
}

/// Returns the header of a message.
fn head(flag: u8, len: usize) -> Bytes {
    let [a, b, c, d] = (len as u32).to_be_bytes();
    Bytes::copy_from_slice(&[flag, a, b, c, d])
}

/// Has the task polled again once the runtime has asked the kernel for events. A task that wakes itself comes before that
/// question, which other connections wait for: a worker asks it after 61 polls, or when no task is ready.
fn yields<T>(context: &mut Context<'_>) -> Poll<T> {
    let _ = pin!(tokio::task::yield_now()).poll(context);
    Poll::Pending
}

/// A body of complete, plain and charged messages.
pub(super) struct ScatterGatherBody<B> {
    body: B,
    /// The compression of messages that are marked as compressed.
    encoding: Option<CompressionEncoding>,
    /// Whether the call takes more than one message.
    is_stream: bool,
    has_begun: bool,
    /// The max_len message.
    max_len: usize,
    charge: Charge,
    /// Messages that pass tonic by.
    messages: LongMessages,
    /// Arrived bytes that are not yet examined. They start at a frame's header or inside of a message.
    rest: Bytes,
    /// The current message: its length, its bytes still to come, and whether it is compressed.
    len: usize,
    left: usize,
    flag: u8,
    is_compressed: bool,
    /// Arrived parts of the current message, if it is short or compressed.
    parts: VecDeque<Bytes>,
    inflate: Option<Inflate>,
    /// The current message as far as it is put together, and its decompressed chunks that are not yet in it.
    assembly: Option<Assembly>,
    chunks: VecDeque<Bytes>,
    /// Chunks to pass on.
    ready: VecDeque<Bytes>,
    /// Bytes put together after the last yield.
    turn: usize,
    /// The trailers.
    last: Option<Frame<Bytes>>,
    patience: Patience,
    /// The timer of an incomplete message, and the start of the wait for its next bytes.
    timer: Option<Pin<Box<Sleep>>>,
    since: Option<Instant>,
}

impl<B> ScatterGatherBody<B> {
    /// Returns a body. `charge` is that of the call.
    pub(super) fn new(
        body: B,
        encoding: Option<CompressionEncoding>,
        is_stream: bool,
        limits: &Limits,
        charge: Charge,
        messages: LongMessages,
    ) -> Self {
        Self {
            body,
            encoding,
            is_stream,
            has_begun: false,
            max_len: max_len(limits),
            charge,
            messages,
            rest: Bytes::new(),
            len: 0,
            left: 0,
            flag: 0,
            is_compressed: false,
            parts: VecDeque::new(),
            inflate: None,
            assembly: None,
            chunks: VecDeque::new(),
            ready: VecDeque::new(),
            turn: 0,
            last: None,
            patience: Patience::new(limits),
            timer: None,
            since: None,
        }
    }

    fn is_inside_message(&self) -> bool {
        self.left > 0 || !self.rest.is_empty()
    }

    /// Charges and keeps arrived bytes.
    fn receive(&mut self, part: Bytes) -> Result<(), Status> {
        self.charge.add(part.len() as u64)?;
        self.patience.receive(part.len());
        // A remainder is part of a header.
        self.rest =
            if self.rest.is_empty() { part } else { [&self.rest[..], &part].concat().into() };
        Ok(())
    }

    /// Examines arrived bytes up to the next header or the end of a message. Returns whether there were any.
    fn advance(&mut self) -> Result<bool, Status> {
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
        if self.is_compressed {
            if let (0, Some(encoding)) = (self.left, self.encoding) {
                self.inflate = Inflate::new(encoding, std::mem::take(&mut self.parts));
            }
        } else if self.len <= SHORT {
            self.ready.append(&mut self.parts);
        } else if self.left == 0 {
            let parts = std::mem::take(&mut self.parts);
            self.begin_assembly(self.len, parts)?;
        }
        Ok(true)
    }

    /// Starts a message at its header.
    fn begin(&mut self, flag: u8, len: usize) -> Result<(), Status> {
        if len > self.max_len {
            return Err(too_long(len, self.max_len));
        }
        if self.has_begun && !self.is_stream {
            return Err(Status::internal("more messages than one in a call that takes one"));
        }
        self.has_begun = true;
        // A caller that asks for the next message has consumed the one before.
        self.charge.set(self.rest.len() as u64);
        // tonic's decoder refuses a compressed message of a call that names no compression.
        self.is_compressed = flag == 1 && self.encoding.is_some();
        self.len = len;
        self.left = len;
        self.flag = if self.is_compressed { 0 } else { flag };
        if self.is_compressed || len > SHORT {
            self.rest.advance(HEAD);
        } else {
            self.messages.push(None);
            self.left += HEAD;
        }
        Ok(())
    }

    /// Starts to put a message of `len` bytes together, all of which have come and are charged.
    fn begin_assembly(&mut self, len: usize, chunks: VecDeque<Bytes>) -> Result<(), Status> {
        // A chunk goes with its last byte.
        let longest = chunks.iter().map(Bytes::len).max().unwrap_or(0);
        let longest = if self.is_compressed { longest } else { 0 };
        let assembly = Assembly::new(len)?;
        self.charge.add((longest + assembly.ahead()) as u64)?;
        self.assembly = Some(assembly);
        self.chunks = chunks;
        Ok(())
    }

    /// Hands the message that is put together to the decoder, and an empty one to tonic.
    fn pass_by(&mut self) {
        if let Some(assembly) = self.assembly.take() {
            self.charge.set((self.rest.len() + assembly.filled()) as u64);
            self.messages.push(Some(assembly.into_bytes()));
            self.ready.push_back(head(self.flag, 0));
        }
    }

    /// Puts the next decompressed bytes into the message.
    fn assemble(&mut self) {
        match (&mut self.assembly, self.chunks.front_mut()) {
            (Some(assembly), Some(chunk)) => {
                let part = chunk.split_to(chunk.len().min(YIELD_AFTER));
                assembly.push_charged(&part);
                self.turn += part.len();
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
            }
            _ => self.pass_by(),
        }
    }

    /// Decompresses the current message. Returns `Pending` to yield.
    fn inflate(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let Some(mut inflate) = self.inflate.take() else { return Poll::Ready(Ok(())) };
        let max_len = self.max_len;
        let too_long = |len| (len > max_len).then(|| too_long(len, max_len));
        let Some(len) = inflate.turn(&self.charge, too_long)? else {
            self.inflate = Some(inflate);
            return yields(context);
        };
        // The compressed bytes are gone.
        self.charge.set((inflate.held() + self.rest.len()) as u64);
        if len > SHORT {
            self.begin_assembly(len, inflate.into_plain())?;
        } else {
            self.messages.push(None);
            self.ready.push_back(head(0, len));
            self.ready.append(&mut inflate.into_plain());
        }
        Poll::Ready(Ok(()))
    }

    /// Checks that the body may end here.
    fn end(&mut self) -> Result<(), Status> {
        if !self.is_inside_message() {
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

    /// Completes when an incomplete message has waited for too long.
    fn poll_stall_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_inside_message() {
            return Poll::Pending;
        }
        self.since.get_or_insert_with(Instant::now);
        let longest = self.patience.left();
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        timer.as_mut().poll(context)
    }
}

impl<B> Body for ScatterGatherBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            if let Some(part) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            if this.turn >= YIELD_AFTER {
                this.turn = 0;
                return yields(context);
            }
            if this.inflate.is_some() {
                ready!(this.inflate(context))?;
                continue;
            }
            if this.assembly.is_some() {
                this.assemble();
                continue;
            }
            if this.advance()? {
                continue;
            }
            if let Some(last) = this.last.take() {
                return Poll::Ready(Some(Ok(last)));
            }
            let Poll::Ready(polled) = Pin::new(&mut this.body).poll_frame(context) else {
                ready!(this.poll_stall_timeout(context));
                let status = Status::deadline_exceeded("no more of a message has come");
                return Poll::Ready(Some(Err(status.into())));
            };
            this.timer = None;
            if let Some(since) = this.since.take() {
                this.patience.wait(since.elapsed());
            }
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

    /// Chunks, followed by the end or by silence.
    struct Chunks(VecDeque<Bytes>, bool);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
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
        charged_body_of(bytes, chunk, ends, Arc::new(Budget::new(u64::MAX)).charge())
    }

    /// As `body_of`, for a stream that may be compressed.
    fn charged_body_of(
        bytes: &[u8],
        chunk: usize,
        ends: bool,
        charge: Charge,
    ) -> ScatterGatherBody<Chunks> {
        let chunks = Chunks(bytes.chunks(chunk).map(Bytes::copy_from_slice).collect(), ends);
        let limits =
            Limits::new().request_bytes(LONGEST as u64).stall_timeout(Duration::from_millis(1));
        let encoding = Some(CompressionEncoding::Gzip);
        ScatterGatherBody::new(chunks, encoding, true, &limits, charge, LongMessages::default())
    }

    async fn next(body: &mut ScatterGatherBody<Chunks>) -> Option<Result<Bytes, BoxError>> {
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
            let got = run(all(&mut body)).unwrap();
            assert!(got == bytes, "chunks of {chunk}");
        }
    }

    /// Returns a compressed frame of `len` zeros.
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
        let (mut frames, mut all) = (&got[..], Vec::new());
        while let Some(([flag, len @ ..], rest)) = frames.split_first_chunk::<HEAD>() {
            let (message, rest) = rest.split_at(u32::from_be_bytes(*len) as usize);
            let long = body.messages.pop();
            let message = long.as_deref().unwrap_or(message);
            all.extend_from_slice(&head(*flag, message.len()));
            all.extend_from_slice(message);
            frames = rest;
        }
        Ok(all)
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
        let budget = Arc::new(Budget::new(400_000));
        let left = |bytes: u64| budget.charge().add(bytes).is_ok();
        // Three messages of one call fit, since one is charged at a time. Two messages of two calls do not.
        let bytes = [frame(250_000), coded(250_000), frame(250_000)].concat();
        let mut first = charged_body_of(&bytes, 10_000, true, budget.charge());
        assert!(run(all(&mut first)).unwrap().len() > 750_000);
        assert!(left(150_000) && !left(150_001));
        for message in [frame(250_000), coded(250_000)] {
            let status = run(all(&mut charged_body_of(&message, 10_000, true, budget.charge())))
                .unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unavailable);
        }
        drop(first);
        assert!(left(400_000));
    }

    /// A byte at intervals, without an end.
    struct Drops(Pin<Box<Sleep>>);

    impl Body for Drops {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
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
            let mut body =
                ScatterGatherBody::new(drops, None, true, &limits, charge, LongMessages::default());
            // The header of a message of 1 MiB, and almost none of its bytes.
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
