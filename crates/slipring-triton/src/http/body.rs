//! The body of a request: decompressed bytes, counted as they arrive.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use bytes::{Buf, Bytes};
use http_body::Body;
use hyper::header::{CONTENT_LENGTH, HeaderMap};

use crate::budget::Charge;
use crate::front::Front;
use crate::http::coding::{Coding, Decoder};
use crate::limits::Limits;
use crate::patience::Patience;
use crate::refusal::Refusal;

/// The memory reserved for a tensor before its bytes arrive, if the client has not sent a length.
const RESERVED_AHEAD: usize = 1 << 20;

/// Bytes decompressed before the task yields: some tenths of a millisecond.
const YIELD_AFTER: usize = 256 << 10;

/// Bytes of a refused body that the server reads and drops, so that the connection stays usable.
const MAX_DRAINED: u64 = 256 << 20;

/// A body, read once from start to end.
pub(super) struct Reader<B> {
    body: B,
    decoder: Option<Decoder>,
    /// The reason why the body cannot be decompressed. The first reader receives it.
    refused: Option<Refusal>,
    /// Compressed bytes that are not yet decompressed.
    coded: Bytes,
    /// Plain bytes that are not yet taken.
    plain: Bytes,
    /// Bytes decompressed after the last yield.
    turn: usize,
    has_begun: bool,
    /// Whether the body has ended.
    over: bool,
    /// Whether the rest is lost, so that the connection must close.
    broken: bool,
    /// Plain bytes that have arrived.
    count: u64,
    limits: Limits,
    patience: Patience,
    /// The plain length, if the client has sent it.
    length: Option<u64>,
    charge: Charge,
}

impl<B: Body<Data = Bytes> + Unpin> Reader<B> {
    pub(super) fn new(body: B, headers: &HeaderMap, front: &Front) -> Self {
        let length =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let (coding, refused) = match Coding::of_request(headers) {
            Ok(coding) => (coding, None),
            Err(refusal) => (None, Some(refusal)),
        };
        Self {
            body,
            length: if coding.is_none() { length } else { None },
            decoder: coding.map(Decoder::new),
            refused,
            coded: Bytes::new(),
            plain: Bytes::new(),
            turn: 0,
            has_begun: false,
            over: false,
            broken: false,
            count: 0,
            limits: *front.limits(),
            patience: Patience::new(front.limits()),
            charge: front.charge(),
        }
    }

    /// Returns the charge for the body's bytes.
    pub(super) fn charge(&self) -> Charge {
        self.charge.clone()
    }

    /// Returns whether the connection must close.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns whether any of the body was requested.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Abandons the rest of the body, so that the connection must close.
    pub(super) fn abandon(&mut self) {
        self.broken = true;
    }

    /// Returns bytes as they arrive; empty at the end.
    async fn frame(&mut self) -> Result<Bytes, Refusal> {
        self.has_begun = true;
        loop {
            // A timer exists only while bytes are missing.
            let now = poll_fn(|context| Poll::Ready(Pin::new(&mut self.body).poll_frame(context)));
            let next = match now.await {
                Poll::Ready(next) => Ok(next),
                Poll::Pending => {
                    let (longest, started) = (self.patience.left(), Instant::now());
                    let next = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
                    let next = tokio::time::timeout(longest, next).await;
                    self.patience.wait(started.elapsed());
                    next
                }
            };
            let frame = match next {
                Ok(None) => {
                    self.over = true;
                    return Ok(Bytes::new());
                }
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(_))) => {
                    self.broken = true;
                    return Err(Refusal::body_cut());
                }
                Err(_) => {
                    self.broken = true;
                    return Err(Refusal::body_late());
                }
            };
            // Trailers carry no information.
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                self.patience.receive(data.len());
                return Ok(data);
            }
        }
    }

    /// Ensures that plain bytes are at hand. Returns `false` at the end.
    async fn fill(&mut self) -> Result<bool, Refusal> {
        if let Some(refusal) = &self.refused {
            return Err(refusal.clone());
        }
        while self.plain.is_empty() {
            if self.over && self.coded.is_empty() {
                return Ok(false);
            }
            self.plain = match &mut self.decoder {
                None => self.frame().await?,
                Some(_) if self.coded.is_empty() => {
                    self.coded = self.frame().await?;
                    match &mut self.decoder {
                        Some(decoder) if self.over => Bytes::from(decoder.finish()?),
                        _ => Bytes::new(),
                    }
                }
                Some(decoder) => {
                    let (taken, plain) = decoder.decode(&self.coded)?;
                    self.coded.advance(taken);
                    self.turn += plain.len();
                    if self.turn >= YIELD_AFTER {
                        // A long run would block every connection of this thread.
                        self.turn = 0;
                        tokio::task::yield_now().await;
                    }
                    Bytes::from(plain)
                }
            };
            self.count += self.plain.len() as u64;
            if self.count > self.limits.request_bytes {
                return Err(Refusal::body_too_long(self.limits.request_bytes));
            }
            self.charge.add(self.plain.len() as u64)?;
        }
        Ok(true)
    }

    /// Returns the next `len` bytes, or fewer at the end. Bytes that arrived in one piece are not copied.
    pub(super) async fn take(&mut self, len: usize) -> Result<Bytes, Refusal> {
        if len == 0 || !self.fill().await? {
            return Ok(Bytes::new());
        }
        if self.plain.len() >= len {
            return Ok(self.plain.split_to(len));
        }
        // If the client has sent the length, all memory is reserved at once. Its pages stay untouched until bytes
        // arrive.
        let known = self
            .length
            .is_some_and(|length| length >= len as u64 && length <= self.limits.request_bytes);
        let mut bytes = Vec::new();
        let reserved = if known { len } else { len.min(RESERVED_AHEAD) };
        bytes.try_reserve_exact(reserved).map_err(|_| Refusal::no_memory(len))?;
        while bytes.len() < len && self.fill().await? {
            let part = self.plain.split_to(self.plain.len().min(len - bytes.len()));
            if bytes.capacity() - bytes.len() < part.len() {
                let more = bytes.len().max(part.len()).min(len - bytes.len());
                bytes.try_reserve_exact(more).map_err(|_| Refusal::no_memory(len))?;
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes.into())
    }

    /// Returns all bytes to the end, at most `most`.
    pub(super) async fn rest(&mut self, most: usize) -> Result<Bytes, Refusal> {
        if self.length.is_some_and(|length| length > most as u64) {
            return Err(Refusal::json_too_long(most));
        }
        // One byte more than the limit makes an excess visible.
        let wanted = self.length.map_or(most.saturating_add(1), |length| length as usize);
        let bytes = self.take(wanted).await?;
        if bytes.len() > most { Err(Refusal::json_too_long(most)) } else { Ok(bytes) }
    }

    /// Returns whether all bytes were taken.
    pub(super) async fn is_at_end(&mut self) -> Result<bool, Refusal> {
        Ok(!self.fill().await?)
    }

    /// Returns the plain length of the whole body. The body is read and dropped if the client has not sent the length.
    pub(super) async fn count_all(&mut self) -> Result<u64, Refusal> {
        if let Some(length) = self.length {
            return Ok(length);
        }
        while self.fill().await? {
            self.charge.release(self.plain.len() as u64);
            self.plain.clear();
        }
        Ok(self.count)
    }

    /// Drops the bytes at hand, and releases the charge for the body: the request is refused.
    pub(super) fn refuse(&mut self) {
        (self.plain, self.coded) = (Bytes::new(), Bytes::new());
        self.decoder = None;
        self.charge.set(0);
    }

    /// Drops the rest, so that the next request starts at its first byte. A rest that is too long closes the
    /// connection.
    pub(super) async fn drain(&mut self) {
        let mut dropped = 0;
        while !self.over && !self.broken {
            match self.frame().await {
                Ok(frame) => dropped += frame.len() as u64,
                Err(_) => return,
            }
            if dropped > MAX_DRAINED {
                self.broken = true;
            }
        }
    }
}
