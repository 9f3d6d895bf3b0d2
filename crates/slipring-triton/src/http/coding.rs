//! Compression of bodies in both directions: `gzip`, and `deflate`, which is the zlib format.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder, ZlibDecoder, ZlibEncoder};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue};

use crate::http::buffer::{BoundedBuffer, BufferLimit};
use crate::http::reply::BodyChunks;
use crate::refusal::Refusal;

/// Compressed bytes that one step decompresses. A byte expands to at most 1,032 (RFC 1951: 258 bytes from two bits),
/// so a step yields at most 4 MiB.
pub(super) const STEP: usize = 4 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
}

impl Coding {
    fn of(name: &str) -> Option<Self> {
        match name {
            _ if name.eq_ignore_ascii_case("gzip") => Some(Self::Gzip),
            _ if name.eq_ignore_ascii_case("deflate") => Some(Self::Deflate),
            _ => None,
        }
    }

    /// Returns the coding of a request's body. `None`: the body is plain.
    pub(super) fn of_request(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(None) };
        let name = value.to_str().unwrap_or("?").trim();
        if name.is_empty() || name.eq_ignore_ascii_case("identity") {
            return Ok(None);
        }
        Self::of(name).map(Some).ok_or_else(|| Refusal::content_coding(name))
    }

    /// Returns the coding that the client prefers for the response: the one with the greatest quality, `gzip` at a
    /// tie.
    pub(super) fn of_response(headers: &HeaderMap) -> Option<Self> {
        let mut best: Option<(Self, f32)> = None;
        let values =
            headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        for part in values.flat_map(|value| value.split(',')) {
            let (name, parameters) = part.split_once(';').unwrap_or((part, ""));
            let quality =
                parameters.trim().strip_prefix("q=").map_or(Some(1.0), |q| q.parse().ok());
            let (Some(coding), Some(quality)) = (Self::of(name.trim()), quality) else { continue };
            let better = best.is_none_or(|(is, most)| {
                quality > most || (quality == most && is == Self::Deflate)
            });
            if quality > 0.0 && better {
                best = Some((coding, quality));
            }
        }
        best.map(|(coding, _)| coding)
    }

    pub(super) fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        })
    }

    /// Compresses a body.
    pub(super) fn encode(self, body: &BodyChunks, limit: BufferLimit) -> io::Result<Bytes> {
        let coded = BoundedBuffer::new(limit);
        let done = match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(coded, Compression::fast());
                let mut written = body.iter().map(|piece| encoder.write_all(piece));
                written.find(Result::is_err).unwrap_or(Ok(())).and_then(|()| encoder.finish())
            }
            Self::Deflate => {
                let mut encoder = ZlibEncoder::new(coded, Compression::fast());
                let mut written = body.iter().map(|piece| encoder.write_all(piece));
                written.find(Result::is_err).unwrap_or(Ok(())).and_then(|()| encoder.finish())
            }
        };
        done.map(BoundedBuffer::into_bytes)
    }
}

/// A decompressor.
#[derive(Debug)]
pub(super) enum Decoder {
    /// Any number of gzip members.
    Gzip(MultiGzDecoder<Vec<u8>>),
    Deflate(ZlibDecoder<Vec<u8>>),
}

impl Decoder {
    pub(super) fn new(coding: Coding) -> Self {
        match coding {
            Coding::Gzip => Self::Gzip(MultiGzDecoder::new(Vec::new())),
            Coding::Deflate => Self::Deflate(ZlibDecoder::new(Vec::new())),
        }
    }

    /// Decompresses up to [`STEP`] bytes. Returns the number of bytes taken, and their plain bytes. Bytes behind the
    /// end of the compressed data are ignored.
    pub(super) fn decode(&mut self, coded: &[u8]) -> Result<(usize, Vec<u8>), Refusal> {
        let step = &coded[..coded.len().min(STEP)];
        let (taken, out) = match self {
            Self::Gzip(decoder) => (decoder.write(step), decoder.get_mut()),
            Self::Deflate(decoder) => (decoder.write(step), decoder.get_mut()),
        };
        let taken = taken.map_err(|_| Refusal::coded_body())?;
        Ok((if taken == 0 { step.len() } else { taken }, std::mem::take(out)))
    }

    /// Returns the remaining plain bytes after the last compressed byte.
    pub(super) fn finish(&mut self) -> Result<Vec<u8>, Refusal> {
        let (done, out) = match self {
            Self::Gzip(decoder) => (decoder.try_finish(), decoder.get_mut()),
            Self::Deflate(decoder) => (decoder.try_finish(), decoder.get_mut()),
        };
        done.map_err(|_| Refusal::coded_body())?;
        Ok(std::mem::take(out))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::budget::Budget;
    use crate::http::buffer::refusal;
    use crate::refusal::RefusalKind;

    fn encode(coding: Coding, body: Vec<u8>) -> Bytes {
        coding.encode(&BodyChunks::from(body), limit(u64::MAX)).unwrap()
    }

    fn limit(most: u64) -> BufferLimit {
        BufferLimit { charge: Arc::new(Budget::new(most)).charge(), most }
    }

    #[test]
    fn what_becomes_too_long_is_refused() {
        let mut state = 1_u32;
        let random = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let body = BodyChunks::from(random.take(200_000).collect::<Vec<u8>>());
        for coding in [Coding::Gzip, Coding::Deflate] {
            let refusal = refusal(coding.encode(&body, limit(100_000)).unwrap_err());
            assert_eq!(refusal.kind(), RefusalKind::Unavailable, "{refusal}");
        }
    }

    fn headers(name: hyper::header::HeaderName, value: &'static str) -> HeaderMap {
        [(name, HeaderValue::from_static(value))].into_iter().collect()
    }

    #[test]
    fn the_greatest_quality_wins() {
        for (value, expected) in [
            ("gzip", Some(Coding::Gzip)),
            ("deflate, gzip;q=1.0, *;q=0.5", Some(Coding::Gzip)),
            ("deflate;q=0.9, GZIP;q=0.8", Some(Coding::Deflate)),
            ("gzip;q=0", None),
            ("br, identity", None),
            ("gzip;q=x", None),
        ] {
            assert_eq!(Coding::of_response(&headers(ACCEPT_ENCODING, value)), expected, "{value}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_however_it_is_cut() {
        let body: Vec<u8> = (0..100_000u32).flat_map(|word| (word % 1000).to_le_bytes()).collect();
        for coding in [Coding::Gzip, Coding::Deflate] {
            let coded = encode(coding, body.clone());
            for size in [1, 7, 1000, usize::MAX] {
                let mut decoder = Decoder::new(coding);
                let mut plain = Vec::new();
                for mut part in coded.chunks(size.min(coded.len())) {
                    while !part.is_empty() {
                        let (taken, out) = decoder.decode(part).unwrap();
                        plain.extend(out);
                        part = &part[taken..];
                    }
                }
                plain.extend(decoder.finish().unwrap());
                assert!(plain == body, "{coding:?} by {size}");
            }
        }
    }

    #[test]
    fn every_member_of_a_gzip_body_is_decoded() {
        let two = [encode(Coding::Gzip, b"one".to_vec()), encode(Coding::Gzip, b"two".to_vec())];
        let coded = two.concat();
        for size in [1, coded.len()] {
            let (mut decoder, mut plain) = (Decoder::new(Coding::Gzip), Vec::new());
            for mut part in coded.chunks(size) {
                while !part.is_empty() {
                    let (taken, out) = decoder.decode(part).unwrap();
                    plain.extend(out);
                    part = &part[taken..];
                }
            }
            plain.extend(decoder.finish().unwrap());
            assert_eq!(plain, b"onetwo");
        }
        let mut decoder = Decoder::new(Coding::Gzip);
        let (taken, _) = decoder.decode(&coded[..coded.len() / 2]).unwrap();
        assert!(decoder.decode(b"no member at all").is_err(), "behind {taken} bytes");
    }

    #[test]
    fn a_step_of_a_bomb_is_bounded() {
        let coded = encode(Coding::Gzip, vec![0; 64 << 20]);
        let mut decoder = Decoder::new(Coding::Gzip);
        let mut rest = &coded[..];
        while !rest.is_empty() {
            let (taken, out) = decoder.decode(rest).unwrap();
            assert!(out.len() <= 1032 * STEP + (64 << 10), "{}", out.len());
            rest = &rest[taken..];
        }
    }
}
