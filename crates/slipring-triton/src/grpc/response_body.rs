//! The body of a response, whose bytes stay charged until they are sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::budget::Charge;

/// Shorter chunks are sent at once and not charged separately.
const SHORT: usize = 16 << 10;

/// A body that holds the call's charge. Its chunks hold it too, since they wait in the connection after the body ends.
pub(super) struct ChargedBody {
    body: tonic::body::Body,
    charge: Charge,
}

impl ChargedBody {
    pub(super) fn new(body: tonic::body::Body, charge: Charge) -> Self {
        Self { body, charge }
    }
}

impl Body for ChargedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        let charged = |piece: Bytes| match piece.len() {
            ..=SHORT => piece,
            _ => self.charge.attach(piece),
        };
        Poll::Ready(polled.map(|frame| frame.map(|frame| frame.map_data(charged))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
