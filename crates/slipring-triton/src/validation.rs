//! Validates a request against the metadata of its model. This module is pure: it knows no regions and no sockets.

use std::borrow::Cow;

use slipring::{DType, Shape};

use crate::classification;
use crate::metadata::{ModelMetadata, TensorSpec};
use crate::refusal::Refusal;
use crate::request::{InferRequest, InputData, RequestInput, RequestedOutput};
use crate::strings::Strings;

/// The facts of a valid request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ValidRequest {
    /// The type and shape of each input, in the order of the request.
    pub(crate) inputs: Vec<(DType, Shape)>,
    /// The outputs to produce: the index in the metadata, and the index in the request. They have the order of the
    /// request, or of the metadata if the request names none.
    pub(crate) outputs: Vec<(usize, Option<usize>)>,
    /// The batch size; 1 for a model without batches.
    pub(crate) batch: usize,
}

/// Returns the bytes of inline BYTES inputs, which validation reads one by one.
pub(crate) fn inline_strings_len(request: &InferRequest) -> usize {
    let lens = request.inputs.iter().map(|input| match &input.data {
        InputData::Inline(bytes) if input.datatype == DType::Bytes.name() => bytes.len(),
        _ => 0,
    });
    lens.sum()
}

/// Validates a request.
pub(crate) fn validate(
    model: &ModelMetadata,
    request: &InferRequest,
) -> Result<ValidRequest, Refusal> {
    let valid = shapes(model, &request.inputs, &request.outputs)?;
    for (input, (dtype, shape)) in request.inputs.iter().zip(&valid.inputs) {
        size(model, request.id.as_deref(), input, *dtype, shape)?;
    }
    Ok(valid)
}

/// Validates a request whose bytes have not come. `tails` are the lengths of the inputs whose bytes will.
pub(crate) fn validate_tails(
    model: &ModelMetadata,
    id: Option<&str>,
    inputs: &[RequestInput],
    outputs: &[RequestedOutput],
    tails: &[Option<u64>],
) -> Result<(), Refusal> {
    let valid = shapes(model, inputs, outputs)?;
    for ((input, (dtype, shape)), tail) in inputs.iter().zip(&valid.inputs).zip(tails) {
        let expected = shape.byte_len(*dtype);
        let expected = expected.map_err(|_| Refusal::shape_overflow(&input.name, &model.name))?;
        if let (Some(expected), Some(got)) = (expected, *tail)
            && got != expected as u64
        {
            return Err(Refusal::input_size(id, &input.name, &model.name, expected, got));
        }
    }
    Ok(())
}

/// Validates everything but the bytes.
fn shapes(
    model: &ModelMetadata,
    inputs: &[RequestInput],
    outputs: &[RequestedOutput],
) -> Result<ValidRequest, Refusal> {
    let outputs = found_outputs(model, outputs)?;
    count(model, inputs)?;
    let mut batch = None;
    let inputs = inputs.iter().map(|input| {
        let (spec, shape) = input_of(model, input)?;
        if model.max_batch_size > 0 {
            let size = shape.dims()[0];
            if size == 0 {
                return Err(Refusal::batch_empty(&model.name));
            }
            if *batch.get_or_insert(size) != size {
                return Err(Refusal::batch_differs(&input.name, &model.name));
            }
        }
        Ok((spec.dtype, shape))
    });
    let inputs: Vec<(DType, Shape)> = inputs.collect::<Result<_, _>>()?;
    if let Some(batch) = batch
        && batch > model.max_batch_size
    {
        return Err(Refusal::batch_size(&model.name, model.max_batch_size));
    }
    Ok(ValidRequest { inputs, outputs, batch: batch.unwrap_or(1) })
}

fn found_outputs(
    model: &ModelMetadata,
    outputs: &[RequestedOutput],
) -> Result<Vec<(usize, Option<usize>)>, Refusal> {
    if outputs.is_empty() {
        return Ok((0..model.outputs.len()).map(|spec| (spec, None)).collect());
    }
    let mut found = Vec::with_capacity(outputs.len().min(model.outputs.len()));
    for (at, output) in outputs.iter().enumerate() {
        let spec = model.outputs.iter().position(|spec| spec.name == output.name);
        let spec = spec.ok_or_else(|| Refusal::unknown_output(&output.name, &model.name))?;
        // `found` never holds more outputs than the model has.
        if found.iter().any(|(before, _)| *before == spec) {
            return Err(Refusal::output_twice(&output.name));
        }
        if output.classification.is_some() {
            if output.region.is_some() {
                return Err(Refusal::output_classified());
            }
            classification::check(model.outputs[spec].dtype)?;
        }
        found.push((spec, Some(at)));
    }
    Ok(found)
}

/// Checks that the request has each input exactly once.
fn count(model: &ModelMetadata, inputs: &[RequestInput]) -> Result<(), Refusal> {
    let mut got: Vec<&str> = inputs.iter().map(|input| &*input.name).collect();
    got.sort_unstable();
    if let Some(twice) = got.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Refusal::input_twice(twice[0]));
    }
    if got.len() != model.inputs.len() {
        let missing = model.inputs.iter().map(|spec| &*spec.name);
        let missing: Vec<&str> = missing.filter(|name| got.binary_search(name).is_err()).collect();
        return Err(Refusal::inputs_count(&model.name, model.inputs.len(), &got, &missing));
    }
    Ok(())
}

fn input_of<'m>(
    model: &'m ModelMetadata,
    input: &RequestInput,
) -> Result<(&'m TensorSpec, Shape), Refusal> {
    let spec = model.input_of(&input.name);
    let spec = spec.ok_or_else(|| Refusal::unknown_input(&input.name, &model.name))?;
    if input.datatype != spec.dtype.name() {
        let (is, expected) = (&input.datatype, spec.dtype.name());
        return Err(Refusal::data_type(&input.name, is, &model.name, expected));
    }
    let shape = Shape::try_from(&input.shape[..]).ok().filter(|shape| model.admits(spec, shape));
    let shape = shape.ok_or_else(|| {
        let (expected, batches) = (model.shape_of(spec), model.max_batch_size > 0);
        Refusal::shape(&input.name, &model.name, &expected, &input.shape, batches)
    })?;
    Ok((spec, shape))
}

/// Checks that the input has as many bytes as its shape needs.
fn size(
    model: &ModelMetadata,
    id: Option<&str>,
    input: &RequestInput,
    dtype: DType,
    shape: &Shape,
) -> Result<(), Refusal> {
    let overflow = |_| Refusal::shape_overflow(&input.name, &model.name);
    let got = match &input.data {
        InputData::Inline(bytes) => bytes.len() as u64,
        InputData::Region(window) => window.len,
    };
    match (shape.byte_len(dtype).map_err(overflow)?, &input.data) {
        (Some(expected), _) if got != expected as u64 => {
            Err(Refusal::input_size(id, &input.name, &model.name, expected, got))
        }
        (None, InputData::Inline(bytes)) => {
            let count = shape.elements().map_err(overflow)?;
            Strings::new(&input.name, Cow::Borrowed(bytes), count).map(|_| ())
        }
        // `Inputs::check_strings` validates BYTES in a region, when the request starts.
        _ => Ok(()),
    }
}
