//! Decompresses a message into chunks of a fixed size, each of which is charged.

use std::collections::VecDeque;
use std::io::{self, BufRead, ErrorKind, Read};

use bytes::{Buf, Bytes};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use tonic::Status;
use tonic::codec::CompressionEncoding;

use crate::budget::Charge;

/// Bytes of a chunk.
const CHUNK: usize = 256 << 10;

/// Compressed bytes, and also plain bytes, after which the task yields: about a millisecond.
const YIELD_AFTER: usize = 512 << 10;

/// Returns the compression that a call names.
pub(super) fn encoding(name: &[u8]) -> Option<CompressionEncoding> {
    match name {
        b"gzip" => Some(CompressionEncoding::Gzip),
        b"deflate" => Some(CompressionEncoding::Deflate),
        _ => None,
    }
}

/// Compressed bytes. `turn` limits how many the decompressor may read before it yields.
#[derive(Debug)]
struct CompressedInput {
    pieces: VecDeque<Bytes>,
    turn: usize,
}

impl BufRead for CompressedInput {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.pieces.front() {
            // The decompressor resumes here at the next turn.
            Some(_) if self.turn == 0 => Err(ErrorKind::WouldBlock.into()),
            Some(piece) => Ok(&piece[..piece.len().min(self.turn)]),
            None => Ok(&[]),
        }
    }

    fn consume(&mut self, len: usize) {
        self.turn -= len;
        if let Some(piece) = self.pieces.front_mut() {
            piece.advance(len);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

impl Read for CompressedInput {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut there = self.fill_buf()?;
        let len = there.read(out)?;
        self.consume(len);
        Ok(len)
    }
}

#[derive(Debug)]
enum Decoder {
    Gzip(GzDecoder<CompressedInput>),
    Deflate(ZlibDecoder<CompressedInput>),
}

/// A message under decompression.
#[derive(Debug)]
pub(super) struct Inflate {
    decoder: Decoder,
    plain: VecDeque<Bytes>,
    len: usize,
    /// The current chunk, and its filled length.
    chunk: Vec<u8>,
    filled: usize,
}

impl Inflate {
    /// Returns `None` for an unknown compression.
    pub(super) fn new(encoding: CompressionEncoding, coded: VecDeque<Bytes>) -> Option<Self> {
        let coded = CompressedInput { pieces: coded, turn: 0 };
        let decoder = match encoding {
            CompressionEncoding::Gzip => Decoder::Gzip(GzDecoder::new(coded)),
            CompressionEncoding::Deflate => Decoder::Deflate(ZlibDecoder::new(coded)),
            _ => return None,
        };
        Some(Self { decoder, plain: VecDeque::new(), len: 0, chunk: Vec::new(), filled: 0 })
    }

    /// Decompresses one turn, and charges the plain bytes. Returns the plain length once the message is complete.
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
        match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.get_mut().turn = YIELD_AFTER,
            Decoder::Deflate(decoder) => decoder.get_mut().turn = YIELD_AFTER,
        }
        let before = self.len;
        while self.len - before < YIELD_AFTER {
            if self.filled == self.chunk.len() {
                self.put_aside();
                self.chunk = vec![0; CHUNK];
            }
            let chunk = &mut self.chunk[self.filled..];
            let read = match &mut self.decoder {
                Decoder::Gzip(decoder) => decoder.read(chunk),
                Decoder::Deflate(decoder) => decoder.read(chunk),
            };
            let read = match read {
                Ok(0) => {
                    self.chunk.truncate(self.filled);
                    self.put_aside();
                    return Ok(Some(self.len));
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(Status::internal("failed to decompress a message")),
            };
            charge.add(read as u64)?;
            self.filled += read;
            self.len += read;
            if let Some(status) = too_long(self.len) {
                return Err(status);
            }
        }
        Ok(None)
    }

    /// Returns the chunks of the complete message.
    pub(super) fn into_plain(self) -> VecDeque<Bytes> {
        self.plain
    }

    fn put_aside(&mut self) {
        let chunk = std::mem::take(&mut self.chunk);
        if !chunk.is_empty() {
            // A boxed slice holds no spare capacity.
            self.plain.push_back(chunk.into_boxed_slice().into());
        }
        self.filled = 0;
    }
}
