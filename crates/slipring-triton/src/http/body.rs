//! A request's body: plain bytes, as they come, counted.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http_body::Body;
use hyper::header::{CONTENT_LENGTH, HeaderMap};

use crate::budget::Charge;
use crate::front::Front;
use crate::http::coding::{Coding, Decoder};
use crate::limits::Limits;
use crate::refusal::Refusal;

/// BoundedBuffer that is made for a tensor before its bytes are there, where nobody has said how many come in all.
const ROOM: usize = 1 << 20;

/// Bytes that are decoded before others have their turn: some tenths of a millisecond.
const TURN: usize = 256 << 10;

/// Bytes of a body that was refused which are read and dropped, so that the connection can go on.
const DRAIN: u64 = 256 << 20;

/// A body that is read once, from its start to its end.
pub(super) struct Reader<B> {
    body: B,
    decoder: Option<Decoder>,
    /// Why it cannot be decoded, told to who wants to read it.
    refused: Option<Refusal>,
    /// Compressed, and not yet decoded.
    coded: Bytes,
    /// Plain, and not yet taken.
    plain: Bytes,
    /// Bytes that were decoded since others had their turn.
    turn: usize,
    has_begun: bool,
    /// Whether the body has ended.
    over: bool,
    /// Whether its rest cannot be had, so that the connection is of no more use.
    broken: bool,
    /// Plain bytes that have come.
    count: u64,
    limits: Limits,
    /// Bytes that have come as they travel, and how long they were waited for.
    came: u64,
    waited: Duration,
    /// Plain bytes in all, if that is known.
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
            came: 0,
            waited: Duration::ZERO,
            charge: front.charge(),
        }
    }

    /// What its bytes have taken of those under way.
    pub(super) fn charge(&self) -> Charge {
        self.charge.clone()
    }

    /// Whether the connection is out of step, or at its end.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether anybody has asked for any of it.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Leaves the rest where it is: the connection is of no more use.
    pub(super) fn leave(&mut self) {
        self.broken = true;
    }

    /// Bytes as they travel; empty at the end.
    async fn frame(&mut self) -> Result<Bytes, Refusal> {
        self.has_begun = true;
        loop {
            // A timer only for what is not there yet.
            let now = poll_fn(|context| Poll::Ready(Pin::new(&mut self.body).poll_frame(context)));
            let next = match now.await {
                Poll::Ready(next) => Ok(next),
                Poll::Pending => {
                    let left = self.limits.waiting(self.came).saturating_sub(self.waited);
                    let (longest, started) = (self.limits.stall_timeout.min(left), Instant::now());
                    let next = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
                    let next = tokio::time::timeout(longest, next).await;
                    self.waited += started.elapsed();
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
            // Trailers say nothing here.
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                self.came += data.len() as u64;
                return Ok(data);
            }
        }
    }

    /// Makes sure that there are plain bytes, but at the end. `false`: it is the end.
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
                    if self.turn >= TURN {
                        // All of it in a row would hold up every connection of the thread.
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

    /// The next `len` bytes, or fewer at the end. What has come in one piece is not copied.
    pub(super) async fn take(&mut self, len: usize) -> Result<Bytes, Refusal> {
        if len == 0 || !self.fill().await? {
            return Ok(Bytes::new());
        }
        if self.plain.len() >= len {
            return Ok(self.plain.split_to(len));
        }
        // BoundedBuffer for all of it where the client has said that so much comes: it is not touched before it does.
        let known = self
            .length
            .is_some_and(|length| length >= len as u64 && length <= self.limits.request_bytes);
        let mut bytes = Vec::new();
        let room = if known { len } else { len.min(ROOM) };
        bytes.try_reserve_exact(room).map_err(|_| Refusal::no_memory(len))?;
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

    /// All bytes to the end, at most `most`.
    pub(super) async fn rest(&mut self, most: usize) -> Result<Bytes, Refusal> {
        if self.length.is_some_and(|length| length > most as u64) {
            return Err(Refusal::json_too_long(most));
        }
        // One more than may be, so that it shows.
        let wanted = self.length.map_or(most.saturating_add(1), |length| length as usize);
        let bytes = self.take(wanted).await?;
        if bytes.len() > most { Err(Refusal::json_too_long(most)) } else { Ok(bytes) }
    }

    /// Whether all bytes were taken.
    pub(super) async fn is_at_end(&mut self) -> Result<bool, Refusal> {
        Ok(!self.fill().await?)
    }

    /// Plain bytes of the whole body, which is read and dropped for that where it must be.
    pub(super) async fn count_all(&mut self) -> Result<u64, Refusal> {
        if let Some(length) = self.length {
            return Ok(length);
        }
        while self.fill().await? {
            self.plain.clear();
        }
        Ok(self.count)
    }

    /// Drops what is left, so that the next request is found where it starts. If that is too much, the connection
    /// is not to go on.
    pub(super) async fn drain(&mut self) {
        let mut dropped = 0;
        while !self.over && !self.broken {
            match self.frame().await {
                Ok(frame) => dropped += frame.len() as u64,
                Err(_) => return,
            }
            if dropped > DRAIN {
                self.broken = true;
            }
        }
    }
}
