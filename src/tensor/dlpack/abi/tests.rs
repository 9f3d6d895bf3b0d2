//! Unit tests of `tensor::dlpack::abi`.

use super::*;

#[test]
fn a_data_type_survives_its_element_type() {
    for dtype in DType::ALL {
        match DLDataType::of(dtype) {
            Some(written) => assert_eq!(written.dtype(), Ok(dtype)),
            None => assert_eq!(dtype, DType::Bytes),
        }
    }
    let written = |code, bits| DLDataType { code, bits, lanes: 1 };
    assert_eq!(DLDataType::of(DType::Bool), Some(written(6, 8)));
    assert_eq!(DLDataType::of(DType::Bf16), Some(written(4, 16)));
    assert_eq!(DLDataType::of(DType::Fp64), Some(written(2, 64)));
    assert_eq!(DLDataType::of(DType::Fp8E4m3fn), Some(written(10, 8)));
    assert_eq!(DLDataType::of(DType::Fp8E5m2), Some(written(12, 8)));
}

#[test]
fn element_types_without_a_data_type_are_refused() {
    // float128, complex64, float8_e3m4, 1-bit bool, float4 (a vector), none at all.
    for (code, bits, lanes) in
        [(2, 128, 1), (5, 64, 1), (7, 8, 1), (6, 1, 1), (2, 32, 4), (2, 32, 0)]
    {
        let fault = TensorFault::DlpackType { code, bits, lanes };
        assert_eq!(DLDataType { code, bits, lanes }.dtype(), Err(fault));
    }
}
