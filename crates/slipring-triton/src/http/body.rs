//! The body of a request: decompressed bytes, counted as they arrive.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use http_body::Body;
use hyper::header::{CONTENT_LENGTH, HeaderMap};

use crate::budget::Charge;
use crate::decompress::Decompressor;
use crate::front::Front;
use crate::http::coding::Coding;
use crate::limits::Limits;
use crate::pages::Assembly;
use crate::patience::Patience;
use crate::refusal::Refusal;

/// Bytes decompressed at a time.
const CHUNK: usize = 64 << 10;

/// Bytes decompressed before the task yields, and also compressed bytes: some tenths of a millisecond.
const YIELD_AFTER: usize = 256 << 10;

/// The most addresses for a body of unknown length, if the limits are higher.
const MAX_ROOM: u64 = 1 << 40;

/// Bytes of a refused body that the server reads and drops, so that the connection stays usable.
const MAX_DRAINED: u64 = 256 << 20;

/// Returns the most plain bytes of so many compressed ones. Two bits yield 258 bytes at most (RFC 1951).
fn most_plain(coded: u64) -> u64 {
    coded.saturating_mul(1032)
}

/// A body, read once from start to end.
pub(super) struct Reader<B> {
    body: B,
    decompressor: Option<Decompressor>,
    /// The reason why the body cannot be decompressed. The first reader receives it.
    refused: Option<Refusal>,
    /// Compressed bytes that have come, and whether the compressed data has ended.
    coded: u64,
    has_decompressed: bool,
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
    /// The plain length, if the client has sent it, and the greatest one that follows from the length it has sent.
    length: Option<u64>,
    most: Option<u64>,
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
            most: length.map(|length| if coding.is_none() { length } else { most_plain(length) }),
            decompressor: coding.map(Coding::decompressor),
            refused,
            coded: 0,
            has_decompressed: false,
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
            let is_compressed = self.decompressor.is_some();
            if is_compressed {
                if !self.decompress().await? {
                    return Ok(false);
                }
            } else if self.over {
                return Ok(false);
            } else {
                self.plain = self.frame().await?;
            }
            self.count += self.plain.len() as u64;
            if self.count > self.limits.request_bytes {
                return Err(Refusal::body_too_long(self.limits.request_bytes));
            }
            if !is_compressed {
                self.charge.add(self.plain.len() as u64)?;
            }
        }
        Ok(true)
    }

    /// Decompresses and charges the next chunk, or receives what it needs for that. Returns `false` at the end.
    async fn decompress(&mut self) -> Result<bool, Refusal> {
        let Some(decompressor) = &mut self.decompressor else { return Ok(false) };
        if self.has_decompressed {
            // What follows the compressed data is dropped.
            self.frame().await?;
            return Ok(!self.over);
        }
        decompressor.begin_turn(YIELD_AFTER);
        // The memory comes after its charge.
        self.charge.add(CHUNK as u64)?;
        let mut chunk = vec![0; CHUNK];
        let mut len = 0;
        let mut blocks = false;
        while len < CHUNK && !blocks && !self.has_decompressed {
            match decompressor.read(&mut chunk[len..]) {
                Ok(more) => (len, self.has_decompressed) = (len + more, more == 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => blocks = true,
                Err(_) => return Err(Refusal::coded_body()),
            }
        }
        chunk.truncate(len);
        self.plain = chunk.into_boxed_slice().into();
        self.charge.release((CHUNK - len) as u64);
        self.turn += if blocks && !decompressor.is_dry() { YIELD_AFTER } else { len };
        if self.turn >= YIELD_AFTER {
            // A long run would block every connection of this thread. The yield is that of another task, as in
            // `Activity::take_turn`.
            self.turn = 0;
            let _ = tokio::spawn(tokio::task::yield_now()).await;
        } else if blocks && len == 0 {
            let piece = self.frame().await?;
            let Some(decompressor) = &mut self.decompressor else { return Ok(false) };
            if self.over {
                decompressor.complete();
                // An empty body is no compressed data.
                return Ok(self.coded > 0);
            }
            self.coded += piece.len() as u64;
            decompressor.push(piece);
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
        // The pages stay untouched until bytes arrive. One byte more than the limits makes an excess visible.
        let limits = self.limits.request_bytes.min(self.limits.bytes_in_flight).min(MAX_ROOM);
        let room = len.min(self.most.unwrap_or(u64::MAX).min(limits) as usize + 1);
        let mut bytes = Assembly::new(room)?;
        while bytes.left() > 0 && self.fill().await? {
            let part = self.plain.split_to(self.plain.len().min(bytes.left()));
            bytes.push(&part, &self.charge)?;
            self.charge.release(part.len() as u64);
        }
        Ok(bytes.into_bytes())
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
        self.plain = Bytes::new();
        self.decompressor = None;
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
