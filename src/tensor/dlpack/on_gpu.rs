//! Importing tensors of other libraries that lie in memory of a GPU. No driver.

#![allow(unsafe_code)]

use crate::error::{CudaFault, Result, TensorFault};
use crate::tensor::dlpack::abi::{DLDevice, DLManagedTensorVersioned};
use crate::tensor::dlpack::judged::Judged;
use crate::tensor::dtype::DType;
use crate::tensor::shape::Shape;

/// A tensor that another library made in memory of a GPU. Dropping it calls that library's deleter. Nothing here touches
/// the memory.
pub struct ImportedOnGpu {
    tensor: Judged,
}

// SAFETY: `from_raw` demands a deleter that any thread may call, and the memory is not read.
unsafe impl Send for ImportedOnGpu {}

impl ImportedOnGpu {
    /// Takes over the tensor behind `managed`, in memory of the GPU with this number.
    ///
    /// # Errors
    ///
    /// - [`CudaFault::NotExportable`]: it is managed memory.
    /// - [`TensorFault::DlpackNotOnGpu`], [`TensorFault::DlpackOtherGpu`].
    /// - As [`Imported::from_raw`](crate::tensor::dlpack::Imported::from_raw) otherwise.
    ///
    /// An error calls the deleter.
    ///
    /// # Safety
    ///
    /// - `managed` is null or points to a structure as `dlpack.h` describes it. The caller owns it and gives it away: nobody
    ///   else calls its deleter.
    /// - `ndim` lengths and as many strides lie where it says, and nobody writes them or the structure until the deleter is
    ///   called.
    /// - The deleter may be called on any thread and does not unwind.
    pub unsafe fn from_raw(managed: *mut DLManagedTensorVersioned, ordinal: u32) -> Result<Self> {
        // SAFETY: the caller's promise.
        let tensor = unsafe { Judged::from_raw(managed, |device| is_on(device, ordinal)) }?;
        Ok(Self { tensor })
    }

    /// Returns the address on the GPU. It means nothing if the tensor has no bytes.
    pub fn start(&self) -> u64 {
        self.tensor.range().0.addr().get() as u64
    }

    /// Returns the data type of the elements.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Returns the lengths of the dimensions.
    pub fn shape(&self) -> &Shape {
        self.tensor.shape()
    }
}

/// Checks that a device is the GPU with this number.
fn is_on(device: DLDevice, ordinal: u32) -> Result<()> {
    let DLDevice { device_type, device_id } = device;
    match device_type {
        DLDevice::CUDA if u32::try_from(device_id) == Ok(ordinal) => Ok(()),
        DLDevice::CUDA => Err(TensorFault::DlpackOtherGpu { device_id, ordinal }.into()),
        DLDevice::CUDA_MANAGED => {
            let why = "it is managed memory (cuMemAllocManaged), which moves between host and GPUs";
            Err(CudaFault::NotExportable { why }.into())
        }
        _ => Err(TensorFault::DlpackNotOnGpu { device_type }.into()),
    }
}

#[cfg(test)]
mod tests;
