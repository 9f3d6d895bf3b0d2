//! BYTES elements: judging and reading agree, and what is read is written as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipring::tensor::{BytesBuilder, BytesElements};
use slipring::{DType, Shape};

fuzz_target!(|bytes: &[u8]| {
    let count = BytesElements::new(bytes).count();
    let read: Result<Vec<_>, _> = BytesElements::new(bytes).collect();
    let judged = DType::Bytes.check(&Shape::from([count]), bytes);
    assert_eq!(read.is_ok(), judged.is_ok());
    if let Ok(elements) = read {
        assert_eq!(BytesBuilder::encoded_len(&elements).unwrap(), bytes.len());
        assert_eq!(BytesBuilder::encode(&elements).unwrap(), bytes);
    }
});
