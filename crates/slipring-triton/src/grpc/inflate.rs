//! Decompresses a message into chunks, each of which is charged before there is memory for it.

use std::collections::VecDeque;
use std::io::ErrorKind;

use bytes::Bytes;
use tonic::Status;
use tonic::codec::CompressionEncoding;

use crate::budget::Charge;
use crate::decompress::Decompressor;
use crate::pages::{HUGE, Pages};

/// Bytes of the first chunk. Each further one is as long as all before it, up to a huge page.
const FIRST: usize = 64 << 10;

/// Compressed bytes, and also plain bytes, after which the task yields: some hundred microseconds.
const YIELD_AFTER: usize = 128 << 10;

/// Returns the compression that a call names.
pub(super) fn encoding(name: &[u8]) -> Option<CompressionEncoding> {
    match name {
        b"gzip" => Some(CompressionEncoding::Gzip),
        b"deflate" => Some(CompressionEncoding::Deflate),
        _ => None,
    }
}

/// A message under decompression.
#[derive(Debug)]
pub(super) struct Inflate {
    decompressor: Decompressor,
    plain: VecDeque<Bytes>,
    /// Plain bytes, and the bytes of all chunks.
    len: usize,
    held: usize,
    /// The current chunk, its length and its filled length.
    chunk: Option<Pages>,
    room: usize,
    filled: usize,
}

impl Inflate {
    /// Returns `None` for an unknown compression.
    pub(super) fn new(encoding: CompressionEncoding, coded: VecDeque<Bytes>) -> Option<Self> {
        let mut decompressor = match encoding {
            CompressionEncoding::Gzip => Decompressor::gzip(),
            CompressionEncoding::Deflate => Decompressor::zlib(),
            _ => return None,
        };
        coded.into_iter().for_each(|piece| decompressor.push(piece));
        decompressor.complete();
        let plain = VecDeque::new();
        Some(Self { decompressor, plain, len: 0, held: 0, chunk: None, room: 0, filled: 0 })
    }

    /// Decompresses one turn. Returns the plain length once the message is complete.
    ///
    /// # Errors
    ///
    /// The data is not compressed as declared; the message is too long, with the status of `too_long`; or too many
    /// bytes are in flight.
    pub(super) fn turn(
        &mut self,
        charge: &Charge,
        too_long: impl Fn(usize) -> Option<Status>,
    ) -> Result<Option<usize>, Status> {
        self.decompressor.begin_turn(YIELD_AFTER);
        let before = self.len;
        while self.len - before < YIELD_AFTER {
            if self.filled == self.room {
                self.put_aside();
                self.begin_chunk(charge)?;
            }
            let Some(chunk) = &mut self.chunk else { return Ok(None) };
            let until = self.room.min(self.filled + YIELD_AFTER);
            let chunk = &mut chunk.as_mut_slice()[self.filled..until];
            let read = match self.decompressor.read(chunk) {
                Ok(0) => {
                    self.put_aside();
                    return Ok(Some(self.len));
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(Status::internal("failed to decompress a message")),
            };
            self.filled += read;
            self.len += read;
            if let Some(status) = too_long(self.len) {
                return Err(status);
            }
        }
        Ok(None)
    }

    /// Returns the bytes of the complete message's chunks.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns the chunks of the complete message.
    pub(super) fn into_plain(self) -> VecDeque<Bytes> {
        self.plain
    }

    /// Charges the next chunk, then takes the memory for it.
    fn begin_chunk(&mut self, charge: &Charge) -> Result<(), Status> {
        let room = self.held.clamp(FIRST, HUGE);
        charge.add(room as u64)?;
        self.held += room;
        self.chunk = Some(Pages::new(room)?);
        self.room = room;
        Ok(())
    }

    fn put_aside(&mut self) {
        if let Some(chunk) = self.chunk.take()
            && self.filled > 0
        {
            self.plain.push_back(chunk.into_bytes(self.filled));
        }
        (self.room, self.filled) = (0, 0);
    }
}
