//! Unit tests of `tensor::view`.

use super::*;
use crate::error::ErrorKind;
use half::f16;

#[test]
fn a_private_tensor_gives_back_its_elements() {
    let halves: Vec<f16> = (0..6u8).map(f16::from).collect();
    let tensor = Tensor::from_slice([2, 3], &halves).unwrap();
    assert_eq!((tensor.dtype(), tensor.byte_len()), (DType::Fp16, 12));
    assert_eq!(tensor.as_slice::<f16>().unwrap(), halves);
    assert_eq!(tensor.to_vec::<f16>().unwrap(), halves);
    let wrong = tensor.as_slice::<f32>().unwrap_err();
    assert_eq!(wrong.to_string(), "data type is FP16, not FP32");
    let short = Tensor::from_slice([2, 2], &halves).unwrap_err();
    let fault = TensorFault::Len { len: 12, expected: 8 };
    assert_eq!(*short.kind(), ErrorKind::Tensor(fault));
}

#[test]
fn chunks_come_in_order_and_whole() {
    let elements: Vec<u32> = (0..10_000).collect();
    let tensor = Tensor::from_slice([10_000], &elements).unwrap();
    let mut seen = Vec::new();
    tensor.for_each_chunk::<u32>(|chunk| seen.extend_from_slice(chunk)).unwrap();
    assert_eq!(seen, elements);
    let empty = Tensor::from_slice::<u32>([0, 7], &[]).unwrap();
    empty.for_each_chunk::<u32>(|_| panic!("there is nothing")).unwrap();
}

#[test]
fn debug_shows_what_a_tensor_is_on_one_line() {
    let tensor = Tensor::from_slice([2, 3], &[0.5f32; 6]).unwrap();
    let shown = r#"Tensor { dtype: Fp32, shape: [2, 3], len: 24, memory: "private" }"#;
    assert_eq!(format!("{tensor:?}"), shown);
    let context = crate::Context::new().unwrap();
    let tensor = context.alloc::<u8>([4]).unwrap();
    let shown = r#"TensorMut { dtype: Uint8, shape: [4], len: 4, memory: "pool" }"#;
    assert_eq!(format!("{tensor:?}"), shown);
    let tensor = tensor.share().unwrap();
    let shown = r#"Tensor { dtype: Uint8, shape: [4], len: 4, memory: "pool" }"#;
    assert_eq!(format!("{tensor:?}"), shown);
}

#[test]
fn bools_are_checked_wherever_they_come_from() {
    assert!(Tensor::from_bytes(DType::Bool, [2], &[0, 2]).is_err());
    let tensor = Tensor::from_slice([3], &[true, false, true]).unwrap();
    assert_eq!(tensor.to_vec::<bool>().unwrap(), [true, false, true]);
    assert_eq!(tensor.as_bytes().unwrap(), [1, 0, 1]);
}
