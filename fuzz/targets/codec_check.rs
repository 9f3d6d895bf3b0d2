//! A tensor of any data type, shape and bytes is judged, and decoded if it passes.
//!
//! The input is `code | rank | dimensions, a byte each | the tensor's bytes`. A dimension's byte is a
//! number of 4 bits, moved up by 4 times the other 4 bits, so that products wrap.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipring::tensor::{BytesElements, Element};
use slipring::{DType, Shape};

fuzz_target!(|input: &[u8]| {
    let [code, rank, rest @ ..] = input else { return };
    let Some((dims, bytes)) = rest.split_at_checked(usize::from(*rank)) else { return };
    let dims: Vec<usize> =
        dims.iter().map(|dim| usize::from(dim & 15) << (dim >> 4 << 2)).collect();
    let (Ok(dtype), Ok(shape)) = (DType::from_code(*code), Shape::new(&dims)) else { return };
    let judged = dtype.check(&shape, bytes).is_ok();
    let decoded = match dtype {
        DType::Bool => bool::decode(bytes).map(|values| values.len()),
        DType::Uint16 => u16::decode(bytes).map(|values| values.len()),
        DType::Fp64 => f64::decode(bytes).map(|values| values.len()),
        DType::Bytes => BytesElements::decode(&shape, bytes).map(|elements| elements.len()),
        _ => return,
    };
    assert_eq!(judged, decoded.is_ok_and(|count| shape.elements().ok() == Some(count)));
});
