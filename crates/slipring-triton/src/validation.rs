//! A request against what its model takes and gives. Pure: it knows neither regions nor sockets.

use std::borrow::Cow;

use crate::metadata::{ModelMetadata, TensorSpec};
use crate::refusal::Refusal;
use crate::request::{InferRequest, InputData, RequestInput};
use crate::strings::Strings;
use slipring::{DType, Shape};

/// What a request was found to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValidRequest {
    /// Of each input, in the request's order.
    pub(super) inputs: Vec<(DType, Shape)>,
    /// Of each output to produce, in the request's order, else the model's: its place in the metadata, and in the
    /// request.
    pub(super) outputs: Vec<(usize, Option<usize>)>,
    /// 1 where the model does not batch.
    pub(super) batch: usize,
}

/// Bytes that are looked at for that: those of BYTES that came with the request.
pub(super) fn inline_strings_len(request: &InferRequest) -> usize {
    let lens = request.inputs.iter().map(|input| match &input.data {
        InputData::Inline(bytes) if input.datatype == DType::Bytes.name() => bytes.len(),
        _ => 0,
    });
    lens.sum()
}

/// Judges a request.
pub(super) fn validate(
    model: &ModelMetadata,
    request: &InferRequest,
) -> Result<ValidRequest, Refusal> {
    let outputs = outputs(model, request)?;
    count(model, request)?;
    let mut batch = None;
    let inputs = request.inputs.iter().map(|input| {
        let (spec, shape) = input_of(model, input)?;
        if model.max_batch_size > 0 {
            let size = shape.dims()[0];
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
    for (input, (dtype, shape)) in request.inputs.iter().zip(&inputs) {
        size(model, request, input, *dtype, shape)?;
    }
    Ok(ValidRequest { inputs, outputs, batch: batch.unwrap_or(1) })
}

fn outputs(
    model: &ModelMetadata,
    request: &InferRequest,
) -> Result<Vec<(usize, Option<usize>)>, Refusal> {
    if request.outputs.is_empty() {
        return Ok((0..model.outputs.len()).map(|spec| (spec, None)).collect());
    }
    let mut found = Vec::with_capacity(request.outputs.len().min(model.outputs.len()));
    for (at, output) in request.outputs.iter().enumerate() {
        let spec = model.outputs.iter().position(|spec| spec.name == output.name);
        let spec = spec.ok_or_else(|| Refusal::unknown_output(&output.name, &model.name))?;
        // At most as many as the model has are ever looked through.
        if found.iter().any(|(before, _)| *before == spec) {
            return Err(Refusal::output_twice(&output.name));
        }
        found.push((spec, Some(at)));
    }
    Ok(found)
}

/// That every input is there, once.
fn count(model: &ModelMetadata, request: &InferRequest) -> Result<(), Refusal> {
    let mut got: Vec<&str> = request.inputs.iter().map(|input| &*input.name).collect();
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

/// That there are as many bytes as the shape says.
fn size(
    model: &ModelMetadata,
    request: &InferRequest,
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
            let id = request.id.as_deref();
            Err(Refusal::input_size(id, &input.name, &model.name, expected, got))
        }
        (None, InputData::Inline(bytes)) => {
            let count = shape.elements().map_err(overflow)?;
            Strings::new(&input.name, Cow::Borrowed(bytes), count).map(|_| ())
        }
        // BYTES in a region are judged when the request is taken up.
        _ => Ok(()),
    }
}
