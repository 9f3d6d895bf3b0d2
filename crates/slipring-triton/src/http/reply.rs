//! Responses.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::budget::Charge;
use crate::json;
use crate::refusal::Refusal;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// The length of the JSON before the tensors, in bytes before compression.
pub(super) const HEADER_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");

/// A scatter-gather body: chunks that are sent without a copy.
#[derive(Debug, Default)]
pub(crate) struct BodyChunks {
    rest: VecDeque<Bytes>,
}

impl BodyChunks {
    pub(crate) fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        if !piece.is_empty() {
            self.rest.push_back(piece);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.rest.iter()
    }

    /// Returns the body as one chunk.
    pub(super) fn join(self) -> Bytes {
        match self.rest.len() {
            0 | 1 => self.rest.into_iter().next().unwrap_or_default(),
            _ => {
                let mut all = Vec::with_capacity(self.len() as usize);
                self.rest.iter().for_each(|piece| all.extend_from_slice(piece));
                all.into()
            }
        }
    }

    /// Returns the same chunks, which hold the charge until they are sent.
    pub(super) fn charged_to(self, charge: &Charge) -> Self {
        Self { rest: self.rest.into_iter().map(|piece| charge.attach(piece)).collect() }
    }

    pub(super) fn len(&self) -> u64 {
        self.rest.iter().map(|piece| piece.len() as u64).sum()
    }
}

impl<T: Into<Bytes>> From<T> for BodyChunks {
    fn from(piece: T) -> Self {
        let mut pieces = Self::default();
        pieces.push(piece);
        pieces
    }
}

impl http_body::Body for BodyChunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.rest.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len())
    }
}

pub(crate) type Reply = Response<BodyChunks>;

/// Returns status 200 with JSON.
pub(super) fn json(text: impl Into<Bytes>) -> Reply {
    with_status(StatusCode::OK, text)
}

/// Returns status 200 with a description.
pub(super) fn describing(value: &Value) -> Reply {
    let mut text = Vec::with_capacity(512);
    // A write to memory cannot fail.
    let _ = json::value(&mut text, value);
    json(text)
}

/// Returns status 200 without a body.
pub(super) fn empty() -> Reply {
    json(Bytes::new())
}

pub(super) fn with_status(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(BodyChunks::from(text));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, JSON);
    reply
}

/// Returns an error in the protocol's form.
pub(super) fn error(status: StatusCode, text: &str) -> Reply {
    let mut body = Vec::with_capacity(text.len() + 16);
    let _ = json::value(&mut body, &json!({ "error": text }));
    with_status(status, body)
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.kind().status());
        error(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), refusal.text())
    }
}
