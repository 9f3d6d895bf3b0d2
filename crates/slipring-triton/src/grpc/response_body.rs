//! The body of a response: its messages with their tails, whose bytes stay charged until they are sent.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::budget::Charge;
use crate::grpc::tail::Tails;

/// Bytes of a frame's header: whether the message is compressed, and its length.
const HEAD: usize = 5;

/// Shorter chunks are sent at once and not charged separately.
const SHORT: usize = 16 << 10;

/// A body that holds the call's charge. Its chunks hold it too, since they wait in the connection after the body ends.
pub(super) struct ChargedBody {
    body: tonic::body::Body,
    tails: Tails,
    charge: Charge,
    /// Chunks to send.
    ready: VecDeque<Bytes>,
}

impl ChargedBody {
    pub(super) fn new(body: tonic::body::Body, tails: Tails, charge: Charge) -> Self {
        Self { body, tails, charge, ready: VecDeque::new() }
    }

    /// Puts the tails behind the messages of a chunk, which are complete. What has no tail stays together.
    fn append_tails(&mut self, mut chunk: Bytes) {
        let mut at = 0;
        while let Some([flag, len @ ..]) =
            chunk.get(at..).and_then(|rest| rest.first_chunk::<HEAD>())
        {
            let len = u32::from_be_bytes(*len) as usize;
            let tail = self.tails.pop();
            if tail.is_empty() {
                at += HEAD + len;
                continue;
            }
            let all = len + tail.iter().map(Bytes::len).sum::<usize>();
            let mut head = BytesMut::with_capacity(HEAD);
            head.put_u8(*flag);
            head.put_u32(all as u32);
            let before = chunk.split_to(at);
            let message = chunk.split_to(HEAD + len).split_off(HEAD);
            self.ready.extend([before, head.freeze(), message].into_iter().chain(tail));
            at = 0;
        }
        self.ready.push_back(chunk);
        self.ready.retain(|piece| !piece.is_empty());
    }
}

impl Body for ChargedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ready.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)?).map(Frame::into_data) {
                Some(Ok(chunk)) => self.append_tails(chunk),
                Some(Err(other)) => return Poll::Ready(Some(Ok(other))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.ready.pop_front().unwrap_or_default();
        let piece = if piece.len() > SHORT { self.charge.attach(piece) } else { piece };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
