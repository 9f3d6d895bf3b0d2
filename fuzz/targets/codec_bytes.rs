//! BYTES elements: judging and reading agree, and what is read is written as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipring::codec::{self, Elements};
use slipring::{DType, Shape};

fuzz_target!(|bytes: &[u8]| {
    let count = Elements::new(bytes).count();
    let read: Result<Vec<_>, _> = Elements::new(bytes).collect();
    let judged = codec::check(DType::Bytes, &Shape::from([count]), bytes);
    assert_eq!(read.is_ok(), judged.is_ok());
    if let Ok(elements) = read {
        assert_eq!(codec::encoded_len(&elements).unwrap(), bytes.len());
        assert_eq!(codec::encode_bytes(&elements).unwrap(), bytes);
    }
});
