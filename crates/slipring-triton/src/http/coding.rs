//! Compression of bodies in both directions: `gzip`, and `deflate`, which is the zlib format.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue};

use crate::decompress::Decompressor;
use crate::http::buffer::{BoundedBuffer, BufferLimit};
use crate::http::reply::BodyChunks;
use crate::refusal::Refusal;

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

    /// Returns a decompressor of a body. A gzip body has any number of members.
    pub(super) fn decompressor(self) -> Decompressor {
        match self {
            Self::Gzip => Decompressor::gzip_members(),
            Self::Deflate => Decompressor::zlib(),
        }
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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
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

    /// Decompresses pieces of `size` bytes, as they come, into pieces of 1,000.
    fn decode(coding: Coding, coded: &[u8], size: usize) -> io::Result<Vec<u8>> {
        let (mut decompressor, mut plain) = (coding.decompressor(), Vec::new());
        let mut pieces = coded.chunks(size);
        let mut room = [0; 1000];
        loop {
            decompressor.begin_turn(size);
            match decompressor.read(&mut room) {
                Ok(0) => return Ok(plain),
                Ok(len) => plain.extend_from_slice(&room[..len]),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) => match pieces.next() {
                    Some(piece) => decompressor.push(Bytes::copy_from_slice(piece)),
                    None => decompressor.complete(),
                },
            }
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_however_it_is_cut() {
        let body: Vec<u8> = (0..100_000u32).flat_map(|word| (word % 1000).to_le_bytes()).collect();
        for coding in [Coding::Gzip, Coding::Deflate] {
            let coded = encode(coding, body.clone());
            for size in [1, 7, 1000, coded.len()] {
                assert!(decode(coding, &coded, size).unwrap() == body, "{coding:?} by {size}");
            }
            assert!(decode(coding, &coded[..coded.len() - 1], 1000).is_err(), "{coding:?}");
        }
    }

    #[test]
    fn every_member_of_a_gzip_body_is_decoded() {
        let two = [encode(Coding::Gzip, b"one".to_vec()), encode(Coding::Gzip, b"two".to_vec())];
        let coded = two.concat();
        for size in [1, coded.len()] {
            assert_eq!(decode(Coding::Gzip, &coded, size).unwrap(), b"onetwo");
        }
        let broken = [&two[0][..], b"no member at all"].concat();
        assert!(decode(Coding::Gzip, &broken, 1000).is_err());
    }

    #[test]
    fn bytes_behind_a_deflate_body_are_ignored() {
        let coded = [&encode(Coding::Deflate, b"one".to_vec())[..], b"and more"].concat();
        assert_eq!(decode(Coding::Deflate, &coded, 1000).unwrap(), b"one");
    }
}
