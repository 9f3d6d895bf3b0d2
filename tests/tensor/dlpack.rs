//! Tensors pass to and from another implementation of DLPack: `dlpark`, whose structures are generated from
//! `dlpack.h`.

#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};
use std::sync::Arc;

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice};
use dlpark::metadata::Dynamic;
use dlpark::versioned::Dlpack;
use dlpark::{DlpackElement, DlpackFlags};
use half::{bf16, f16};
use slipring::tensor::Element;
use slipring::tensor::dlpack::{self, DLManagedTensorVersioned, Imported};
use slipring::{DType, Shape};

/// Bytes that somebody else can see being dropped.
struct Owner(Vec<u8>, #[expect(dead_code)] Arc<()>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A tensor of ours, as `dlpark` takes it.
fn to_dlpark(bytes: Vec<u8>, alive: &Arc<()>, dtype: DType, shape: &Shape) -> Dlpack {
    let raw = DLManagedTensorVersioned::export(Owner(bytes, alive.clone()), dtype, shape).unwrap();
    // SAFETY: the tensor was made above, and is given away here. The test of layouts shows that both
    // libraries mean the same structure.
    unsafe { Dlpack::from_raw(raw.cast()) }.unwrap()
}

/// A tensor that `dlpark` made.
fn of_dlpark<T: DlpackElement + Send + 'static>(values: Vec<T>, shape: &[i64]) -> Dlpack {
    let mut values = Box::new(values);
    let data = values.as_mut_ptr().cast();
    let mut made = Dynamic::compact(shape).prepare().unwrap().initialize(values);
    made.set_data(data).set_device(DLDevice::CPU).set_dtype(<T as DlpackElement>::DTYPE);
    // SAFETY: the vector is the tensor's context, and lives as long as the tensor.
    unsafe { made.finish() }
}

fn import(tensor: Dlpack) -> slipring::Result<Imported> {
    // SAFETY: `into_raw` gives the tensor away, and the test of layouts shows that both libraries mean the
    // same structure.
    unsafe { Imported::from_raw(tensor.into_raw().cast()) }
}

/// Values go there, and those that came from there come back.
fn travel<T: Element + DlpackElement + PartialEq + std::fmt::Debug>(values: [T; 6]) {
    let dtype = <T as Element>::DTYPE;
    let alive = Arc::new(());
    let mut bytes = Vec::new();
    Element::encode(&values, &mut bytes);
    let there = to_dlpark(bytes, &alive, dtype, &Shape::from([2, 3]));
    assert_eq!(there.flags(), DlpackFlags::READ_ONLY);
    let tensor = there.validate().unwrap();
    assert_eq!((tensor.shape(), tensor.strides()), (&[2, 3][..], Some(&[3, 1][..])));
    // SAFETY: the tensor's owner is alive, and nobody writes its bytes.
    assert_eq!(unsafe { tensor.cpu_slice::<T>() }.unwrap(), values);

    // Back to us: the owner is still the same.
    let back = import(there).unwrap();
    assert_eq!(back.elements::<T>().unwrap(), values);
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(back);
    assert_eq!(Arc::strong_count(&alive), 1);

    let imported = import(of_dlpark(values.to_vec(), &[3, 1, 2])).unwrap();
    assert_eq!((imported.dtype(), imported.shape().dims()), (dtype, &[3, 1, 2][..]));
    assert_eq!(imported.elements::<T>().unwrap(), values);
    assert!(!imported.is_read_only());
}

#[test]
fn numbers_of_every_type_go_there_and_come_back() {
    travel([0u8, 1, 2, 3, 4, u8::MAX]);
    travel([0u16, 1, 2, 3, 4, u16::MAX]);
    travel([0u32, 1, 2, 3, 4, u32::MAX]);
    travel([0u64, 1, 2, 3, 4, u64::MAX]);
    travel([0i8, 1, 2, 3, i8::MIN, i8::MAX]);
    travel([0i16, 1, 2, 3, i16::MIN, i16::MAX]);
    travel([0i32, 1, 2, 3, i32::MIN, i32::MAX]);
    travel([0i64, 1, 2, 3, i64::MIN, i64::MAX]);
    travel([0.0f32, 1.5, -2.0, f32::MAX, f32::MIN, f32::INFINITY]);
    travel([0.0f64, 1.5, -2.0, f64::MAX, f64::MIN, f64::INFINITY]);
    travel([f16::ZERO, f16::ONE, f16::MAX, f16::MIN, f16::PI, f16::E]);
    travel([bf16::ZERO, bf16::ONE, bf16::MAX, bf16::MIN, bf16::PI, bf16::E]);
}

#[test]
fn bools_are_bools_on_both_sides() {
    let alive = Arc::new(());
    let there = to_dlpark(vec![1, 0, 1], &alive, DType::Bool, &Shape::from([3]));
    let tensor = there.validate().unwrap();
    let element = DLDataType { code: DLDataTypeCode::BOOL, bits: 8, lanes: 1 };
    assert_eq!(tensor.dtype(), element);
    // SAFETY: the tensor's owner is alive, and nobody writes its bytes.
    assert_eq!(unsafe { tensor.cpu_bytes() }.unwrap(), [1, 0, 1]);
    assert_eq!(import(there).unwrap().elements::<bool>().unwrap(), [true, false, true]);
}

#[test]
fn scalars_and_empty_tensors_go_there_and_come_back() {
    let alive = Arc::new(());
    for (shape, bytes) in [(Shape::from([]), vec![7u8]), (Shape::from([0, 3]), vec![])] {
        let there = to_dlpark(bytes.clone(), &alive, DType::Uint8, &shape);
        let tensor = there.validate().unwrap();
        assert_eq!((tensor.ndim(), tensor.num_bytes()), (shape.rank(), bytes.len()));
        let back = import(there).unwrap();
        assert_eq!((back.shape(), back.bytes()), (&shape, &bytes[..]));
    }
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_tensor_of_a_device_is_given_back() {
    let alive = Arc::new(());
    let mut values = Box::new((vec![1f32; 4], alive.clone()));
    let data = values.0.as_mut_ptr().cast();
    let mut made = Dynamic::compact([4i64]).prepare().unwrap().initialize(values);
    made.set_data(data).set_device(DLDevice::cuda(0)).set_dtype(<f32 as DlpackElement>::DTYPE);
    // SAFETY: nobody reads what is said to be on a device.
    let error = import(unsafe { made.finish() }).unwrap_err();
    let text = "tensor of another library (DLPack): device type 2 is no memory of the host";
    assert!(error.to_string().starts_with(text), "{error}");
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn both_libraries_mean_the_same_structure() {
    use dlpark::ffi::{DLManagedTensorVersioned as Theirs, DLTensor as TheirTensor};
    use slipring::tensor::dlpack::{DLManagedTensorVersioned as Ours, DLTensor as OurTensor};

    macro_rules! same {
        ($ours:ty, $theirs:ty: $($field:ident)*) => {
            assert_eq!((size_of::<$ours>(), align_of::<$ours>()), (size_of::<$theirs>(), align_of::<$theirs>()));
            $(assert_eq!(offset_of!($ours, $field), offset_of!($theirs, $field), stringify!($field));)*
        };
    }
    same!(Ours, Theirs: version manager_ctx deleter flags dl_tensor);
    same!(OurTensor, TheirTensor: data device ndim dtype shape strides byte_offset);
    same!(dlpack::DLDataType, DLDataType: code bits lanes);
    same!(dlpack::DLDevice, DLDevice: device_type device_id);
    same!(dlpack::DLPackVersion, dlpark::ffi::DLPackVersion: major minor);
}
