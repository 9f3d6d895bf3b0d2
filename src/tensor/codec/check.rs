//! Checking bytes against a data type and a shape.

use crate::error::TensorFault;
use crate::tensor::codec::elements::check_elements;
use crate::tensor::dtype::DType;
use crate::tensor::element::check_bools;
use crate::tensor::shape::Shape;

/// Checks that `bytes` are a whole tensor of this data type and shape and nothing else.
pub(crate) fn check_tensor(dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<(), TensorFault> {
    let Some(expected) = shape.len(dtype)? else { return check_elements(shape.count()?, bytes) };
    if bytes.len() != expected {
        return Err(TensorFault::Len { len: bytes.len() as u64, expected: expected as u64 });
    }
    if dtype == DType::Bool {
        check_bools(bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
