//! Decompression of input that comes in pieces, into memory of the caller.

use std::collections::VecDeque;
use std::io::{self, BufRead, ErrorKind, Read};

use bytes::{Buf, Bytes};
use flate2::bufread::{GzDecoder, MultiGzDecoder, ZlibDecoder};

/// Compressed bytes that have come. `turn` limits how many the decompressor may read before it stops.
#[derive(Debug, Default)]
struct CompressedInput {
    pieces: VecDeque<Bytes>,
    is_complete: bool,
    turn: usize,
}

impl BufRead for CompressedInput {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self.pieces.front() {
            // The decompressor goes on here later.
            Some(_) if self.turn == 0 => Err(ErrorKind::WouldBlock.into()),
            Some(piece) => Ok(&piece[..piece.len().min(self.turn)]),
            None if self.is_complete => Ok(&[]),
            None => Err(ErrorKind::WouldBlock.into()),
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

/// The formats.
#[derive(Debug)]
enum Decoder {
    Gzip(GzDecoder<CompressedInput>),
    GzipMembers(MultiGzDecoder<CompressedInput>),
    Zlib(ZlibDecoder<CompressedInput>),
}

/// A decompressor, and its input.
#[derive(Debug)]
pub(crate) struct Decompressor(Decoder);

impl Decompressor {
    /// Returns a decompressor of one gzip member.
    pub(crate) fn gzip() -> Self {
        Self(Decoder::Gzip(GzDecoder::new(CompressedInput::default())))
    }

    /// Returns a decompressor of any number of gzip members.
    pub(crate) fn gzip_members() -> Self {
        Self(Decoder::GzipMembers(MultiGzDecoder::new(CompressedInput::default())))
    }

    /// Returns a decompressor of the zlib format, which both protocols call `deflate`.
    pub(crate) fn zlib() -> Self {
        Self(Decoder::Zlib(ZlibDecoder::new(CompressedInput::default())))
    }

    fn input(&mut self) -> &mut CompressedInput {
        match &mut self.0 {
            Decoder::Gzip(decoder) => decoder.get_mut(),
            Decoder::GzipMembers(decoder) => decoder.get_mut(),
            Decoder::Zlib(decoder) => decoder.get_mut(),
        }
    }

    /// Appends a piece of the input.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.input().pieces.push_back(piece);
        }
    }

    /// Marks the input as complete.
    pub(crate) fn complete(&mut self) {
        self.input().is_complete = true;
    }

    /// Returns whether all of the input was read that has come.
    pub(crate) fn is_dry(&mut self) -> bool {
        self.input().pieces.is_empty()
    }

    /// Lets the following reads take so many bytes of the input.
    pub(crate) fn begin_turn(&mut self, len: usize) {
        self.input().turn = len;
    }

    /// Decompresses into `out`, which is not empty. Returns the number of bytes; 0 at the end of the data.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WouldBlock`]: the input is dry, or the turn is over. Else the data is not what it should be.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Decoder::Gzip(decoder) => decoder.read(out),
            Decoder::GzipMembers(decoder) => decoder.read(out),
            Decoder::Zlib(decoder) => decoder.read(out),
        }
    }
}
