//! Requests whose body is the bytes of one tensor.

use bytes::Bytes;

use crate::metadata::ModelMetadata;
use crate::refusal::Refusal;
use crate::request::{InputData, RequestInput};

/// Builds the only input of a model. The free dimension follows from the length.
pub(super) fn input(model: &ModelMetadata, body: Bytes) -> Result<RequestInput, Refusal> {
    let [spec] = &model.inputs[..] else {
        return Err(Refusal::raw_inputs(model.inputs.len(), &model.name));
    };
    let (body, dims) = match spec.dtype.size() {
        None if spec.dims == [Some(1)] => (element(&body)?, vec![1]),
        None => return Err(Refusal::raw_bytes(&spec.name)),
        Some(size) => {
            if spec.dims.iter().filter(|dim| dim.is_none()).count() > 1 {
                return Err(Refusal::raw_dimensions(&spec.name));
            }
            let fixed = spec.dims.iter().flatten().fold(size, |all, dim| all.saturating_mul(*dim));
            let free = body.len() / fixed.max(1);
            let dims = spec.dims.iter().map(|dim| dim.unwrap_or(free) as i64);
            (body, dims.collect())
        }
    };
    let batch = (model.max_batch_size > 0).then_some(1);
    Ok(RequestInput {
        name: spec.name.clone(),
        datatype: spec.dtype.name().to_owned(),
        shape: batch.into_iter().chain(dims).collect(),
        data: InputData::Inline(body),
    })
}

/// Returns a BYTES element with its length prefix.
fn element(body: &[u8]) -> Result<Bytes, Refusal> {
    let len = u32::try_from(body.len()).map_err(|_| Refusal::no_memory(body.len()))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(4 + body.len()).map_err(|_| Refusal::no_memory(body.len()))?;
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(body);
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::TensorSpec;
    use slipring::DType;

    fn shape(
        dtype: DType,
        dims: &[Option<usize>],
        batch: usize,
        len: usize,
    ) -> Result<Vec<i64>, String> {
        let spec = TensorSpec::new("I", dtype, dims.iter().copied());
        let model = ModelMetadata::new("M").max_batch_size(batch).input(spec);
        let input = input(&model, Bytes::from(vec![0; len]));
        input.map(|input| input.shape).map_err(|refusal| refusal.text().to_owned())
    }

    #[test]
    fn a_shape_is_deduced_where_one_dimension_is_free() {
        assert_eq!(shape(DType::Fp32, &[None], 0, 64).unwrap(), [16]);
        assert_eq!(shape(DType::Fp32, &[None], 8, 64).unwrap(), [1, 16]);
        assert_eq!(shape(DType::Fp32, &[Some(2), None], 8, 64).unwrap(), [1, 2, 8]);
        assert_eq!(shape(DType::Fp32, &[Some(16)], 8, 60).unwrap(), [1, 16]);
        assert_eq!(shape(DType::Fp32, &[Some(0), None], 0, 60).unwrap(), [0, 60]);
        assert!(shape(DType::Fp32, &[None, None], 0, 64).is_err());
        assert_eq!(shape(DType::Bytes, &[Some(1)], 0, 5).unwrap(), [1]);
        assert!(shape(DType::Bytes, &[None], 0, 5).is_err());
    }
}
