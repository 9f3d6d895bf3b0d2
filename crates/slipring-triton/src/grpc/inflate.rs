//! A compressed message that is there, while it is made plain: in pieces of a fixed size, each counted.

use std::collections::VecDeque;
use std::io::{self, BufRead, ErrorKind, Read};

use bytes::{Buf, Bytes};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use tonic::Status;
use tonic::codec::CompressionEncoding;

use crate::budget::Charge;

/// Bytes of a piece.
const PIECE: usize = 256 << 10;

/// Compressed bytes, and as many plain ones, after which others have their turn: about a millisecond.
const TURN: usize = 512 << 10;

/// How messages of a call are compressed, by the name that it tells.
pub(super) fn encoding(name: &[u8]) -> Option<CompressionEncoding> {
    match name {
        b"gzip" => Some(CompressionEncoding::Gzip),
        b"deflate" => Some(CompressionEncoding::Deflate),
        _ => None,
    }
}

/// Compressed bytes, of which a turn may read so many.
#[derive(Debug)]
struct Coded {
    pieces: VecDeque<Bytes>,
    turn: usize,
}

impl BufRead for Coded {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.pieces.front() {
            // The decoder goes on from here when it is asked again.
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

impl Read for Coded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut there = self.fill_buf()?;
        let len = there.read(out)?;
        self.consume(len);
        Ok(len)
    }
}

#[derive(Debug)]
enum Decoder {
    Gzip(GzDecoder<Coded>),
    Deflate(ZlibDecoder<Coded>),
}

/// A message while it is made plain.
#[derive(Debug)]
pub(super) struct Inflate {
    decoder: Decoder,
    plain: VecDeque<Bytes>,
    len: usize,
    /// The piece at hand, and how much of it is filled.
    room: Vec<u8>,
    filled: usize,
}

impl Inflate {
    /// `None`: there is no decoder for that.
    pub(super) fn new(encoding: CompressionEncoding, coded: VecDeque<Bytes>) -> Option<Self> {
        let coded = Coded { pieces: coded, turn: 0 };
        let decoder = match encoding {
            CompressionEncoding::Gzip => Decoder::Gzip(GzDecoder::new(coded)),
            CompressionEncoding::Deflate => Decoder::Deflate(ZlibDecoder::new(coded)),
            _ => return None,
        };
        Some(Self { decoder, plain: VecDeque::new(), len: 0, room: Vec::new(), filled: 0 })
    }

    /// Does a turn of it: the plain message's length, if it is done. What becomes plain is taken from the charge.
    ///
    /// # Errors
    ///
    /// It is not so compressed; it is too long, whose status `too_long` makes; too much is under way.
    pub(super) fn turn(
        &mut self,
        charge: &Charge,
        too_long: impl Fn(usize) -> Option<Status>,
    ) -> Result<Option<usize>, Status> {
        match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.get_mut().turn = TURN,
            Decoder::Deflate(decoder) => decoder.get_mut().turn = TURN,
        }
        let before = self.len;
        while self.len - before < TURN {
            if self.filled == self.room.len() {
                self.put_aside();
                self.room = vec![0; PIECE];
            }
            let room = &mut self.room[self.filled..];
            let read = match &mut self.decoder {
                Decoder::Gzip(decoder) => decoder.read(room),
                Decoder::Deflate(decoder) => decoder.read(room),
            };
            let read = match read {
                Ok(0) => {
                    self.room.truncate(self.filled);
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

    /// The pieces, once it is done.
    pub(super) fn into_plain(self) -> VecDeque<Bytes> {
        self.plain
    }

    fn put_aside(&mut self) {
        let room = std::mem::take(&mut self.room);
        if !room.is_empty() {
            // As much memory as bytes.
            self.plain.push_back(room.into_boxed_slice().into());
        }
        self.filled = 0;
    }
}
