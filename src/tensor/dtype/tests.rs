//! Unit tests of `tensor::dtype`.

use super::*;

#[test]
fn a_data_type_survives_its_code_and_its_name() {
    for dtype in DType::ALL {
        assert_eq!(DType::from_code(dtype.code()), Ok(dtype));
        assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
    }
    for code in [0, 17, 18, 255] {
        assert_eq!(DType::from_code(code), Err(TensorFault::DataTypeCode { code }));
    }
    for name in ["", "fp32", "STRING", "FP8", "FP8_E4M3", "FP32 "] {
        assert!(name.parse::<DType>().is_err(), "{name:?}");
    }
}
