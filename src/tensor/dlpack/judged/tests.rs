//! Unit tests of `tensor::dlpack::judged`.

use super::*;
use crate::tensor::dlpack::abi::DLDataType;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_structure_is_judged(
        code in 0u8..8, bits in any::<u8>(), lanes in 0u16..3,
        dims in vec(prop_oneof![-1i64..9, any::<i64>()], 0..9),
        strides in vec(any::<i64>(), 8),
        data in any::<usize>(), byte_offset in any::<u64>(),
    ) {
        let tensor = DLTensor {
            data: core::ptr::without_provenance_mut(data),
            device: DLDevice::CPU,
            ndim: dims.len() as i32,
            dtype: DLDataType { code, bits: bits & 0xf8, lanes },
            shape: core::ptr::null_mut(),
            strides: core::ptr::null_mut(),
            byte_offset,
        };
        for strides in [None, Some(&strides[..dims.len()])] {
            if let Ok((dtype, shape, len)) = judge(&tensor, &dims, strides) {
                prop_assert_eq!(shape.len(dtype), Ok(Some(len)));
                let _ = start(&tensor, len);
            }
        }
    }
}
