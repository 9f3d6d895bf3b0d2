//! Unit tests of `tensor::dlpack::on_gpu`.

use super::*;
use crate::error::ErrorKind;
use crate::tensor::dlpack::export_on;

fn import(device: DLDevice, shape: [usize; 2]) -> Result<ImportedOnGpu> {
    let len = 4 * shape[0] * shape[1];
    let raw = export_on(device, (), (0x7000, len), DType::Fp32, &Shape::from(shape));
    // SAFETY: it was made above and is given away here.
    unsafe { ImportedOnGpu::from_raw(raw.unwrap(), 3) }
}

#[test]
fn a_tensor_of_the_gpu_is_taken_without_a_look_at_its_memory() {
    let imported = import(DLDevice::cuda(3), [2, 5]).unwrap();
    assert_eq!(imported.start(), 0x7000);
    assert_eq!((imported.dtype(), imported.shape().dims()), (DType::Fp32, &[2, 5][..]));
    assert!(import(DLDevice::cuda(3), [0, 5]).unwrap().start() < 0x1000);
}

#[test]
fn other_memory_is_refused() {
    let refused = |device_type, device_id| {
        let error = import(DLDevice { device_type, device_id }, [1, 1]).err().unwrap();
        error.kind().clone()
    };
    for device_id in [-1, 0, 4, i32::MAX] {
        let fault = TensorFault::DlpackOtherGpu { device_id, ordinal: 3 };
        assert_eq!(refused(2, device_id), ErrorKind::Tensor(fault));
    }
    for device_type in [0, 1, 3, 10, i32::MIN] {
        let fault = TensorFault::DlpackNotOnGpu { device_type };
        assert_eq!(refused(device_type, 3), ErrorKind::Tensor(fault));
    }
    let managed = refused(13, 3);
    assert!(
        matches!(managed, ErrorKind::Cuda(CudaFault::NotExportable { why }) if why.contains("managed"))
    );
}
