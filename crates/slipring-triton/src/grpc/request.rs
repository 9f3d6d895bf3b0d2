//! Converts a protobuf request to an [`InferRequest`].

use crate::grpc::generated::inference::ModelInferRequest;
use crate::grpc::generated::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use crate::grpc::{contents, parameters};
use crate::refusal::Refusal;
use crate::request::{InferRequest, InputData, RequestInput, RequestedOutput};

/// Returns the number of elements and string bytes to convert.
pub(super) fn conversion_len(message: &ModelInferRequest) -> usize {
    message
        .inputs
        .iter()
        .filter_map(|input| input.contents.as_ref())
        .map(contents::conversion_len)
        .sum()
}

/// Converts a request.
///
/// # Errors
///
/// The refusal that the client receives.
pub(super) fn decode(message: ModelInferRequest) -> Result<InferRequest, Refusal> {
    let model = message.model_name;
    let parameters = parameters::of_request(message.parameters)?;
    let got = message.raw_input_contents.len();
    let mut raw = message.raw_input_contents.into_iter();
    let inputs: Vec<RequestInput> = message
        .inputs
        .into_iter()
        .map(|input| decode_input(input, &model, &mut raw, got > 0))
        .collect::<Result<_, _>>()?;
    if raw.len() > 0 {
        return Err(Refusal::raw_count(got - raw.len(), got, &model));
    }
    let outputs =
        message.outputs.into_iter().map(decode_output).collect::<Result<Vec<_>, Refusal>>()?;
    let given = |text: String| (!text.is_empty()).then_some(text);
    let (version, id) = (given(message.model_version), given(message.id));
    Ok(InferRequest { model, version, id, parameters, inputs, outputs })
}

/// Converts an input. `raw` holds the raw contents that no earlier input has taken.
fn decode_input(
    input: InferInputTensor,
    model: &str,
    raw: &mut impl Iterator<Item = bytes::Bytes>,
    is_raw: bool,
) -> Result<RequestInput, Refusal> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = input;
    let data = match (parameters::window(&name, &parameters)?, contents) {
        (Some(_), Some(_)) => return Err(Refusal::contents_and_region(&name, model)),
        (Some(window), None) => InputData::Region(window),
        (None, Some(_)) if is_raw => return Err(Refusal::contents_and_raw(&name, model)),
        (None, Some(contents)) => InputData::Inline(contents::bytes(&name, &datatype, &contents)?),
        (None, None) => {
            InputData::Inline(raw.next().ok_or_else(|| Refusal::no_data(&name, model))?)
        }
    };
    Ok(RequestInput { name, datatype, shape, data })
}

fn decode_output(output: InferRequestedOutputTensor) -> Result<RequestedOutput, Refusal> {
    let region = parameters::window(&output.name, &output.parameters)?;
    let classification = parameters::classification(&output.parameters)?;
    if region.is_some() && classification.is_some() {
        return Err(Refusal::output_classified());
    }
    Ok(RequestedOutput { name: output.name, region, classification })
}
