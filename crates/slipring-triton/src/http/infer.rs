//! Inference over HTTP.

use std::io::{self, Write};

use bytes::Bytes;
use http_body::Body;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use serde_core::Serialize;
use slipring::DType;

use crate::blocking::run_blocking_if;
use crate::front::Front;
use crate::http::body::Reader;
use crate::http::buffer::{BoundedBuffer, BufferLimit, refusal};
use crate::http::coding::Coding;
use crate::http::infer_json::{self, InferJson};
use crate::http::reply::{self, BodyChunks, HEADER_LENGTH, OCTETS, Reply};
use crate::http::{data, raw};
use crate::json;
use crate::metadata::{ModelMetadata, TensorSpec};
use crate::refusal::Refusal;
use crate::request::{InferRequest, InferResponse, InputData};
use crate::validation;

/// Bytes converted from or to JSON, or compressed, on the runtime's own thread: some hundred microseconds.
const CONVERTED_INLINE: usize = 64 << 10;

/// Bodies up to this length are sent as one chunk, since a copy costs less than a list of chunks.
const SINGLE_CHUNK: u64 = 16 << 10;

/// Binary tensors above this length are judged before their bytes are read. Shorter ones have come with the JSON.
const JUDGED_FIRST: u64 = 64 << 10;

/// Serves one inference request.
pub(super) async fn infer<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    model: &str,
    version: Option<&str>,
    headers: &HeaderMap,
    body: &mut Reader<B>,
) -> Result<Reply, Refusal> {
    let found = front.repository().find(model, version)?;
    if found.entry.is_decoupled() {
        return Err(Refusal::decoupled("HTTP end point"));
    }
    let metadata = found.entry.metadata.clone();
    // A body that comes slowly does not hold the model, which may be unloaded.
    drop(found);
    let metadata = &*metadata;
    let json_part = match header_length(headers, body).await? {
        Some(0) => raw_json(metadata, body, front.limits().request_bytes).await?,
        length => read_json(front, metadata, length, body).await?,
    };
    check_json(metadata, &json_part)?;
    let InferJson { id, parameters, inputs, outputs, binary, binary_output, .. } = json_part;
    let request = InferRequest {
        model: model.to_owned(),
        version: version.map(str::to_owned),
        id,
        parameters,
        inputs,
        outputs,
    };
    let charge = body.charge();
    let response = front.infer_charged(request, charge.clone()).await?;
    let len: usize =
        response.outputs.iter().filter_map(|output| output.data.as_ref()).map(Bytes::len).sum();
    // The request's bytes are gone.
    charge.set(len as u64);
    let limit = BufferLimit { charge, most: front.limits().response_bytes };
    let coding = Coding::of_response(headers);
    let is_binary = move |at: usize| binary.get(at).copied().unwrap_or(binary_output);
    let converts = coding.is_some() || (0..response.outputs.len()).any(|at| !is_binary(at));
    let make = move || respond(response, is_binary, coding, limit).map_err(refusal);
    run_blocking_if(converts && len > CONVERTED_INLINE, make).await
}

/// Refuses outputs as JSON whose type has no JSON form. Without this check the refusal would come after the model has
/// run and has written other outputs to regions.
fn check_json(metadata: &ModelMetadata, json_part: &InferJson) -> Result<(), Refusal> {
    let half = |spec: &&TensorSpec| matches!(spec.dtype, DType::Fp16 | DType::Bf16);
    let found = if json_part.outputs.is_empty() {
        metadata.outputs.iter().filter(|_| !json_part.binary_output).find(half)
    } else {
        let asked = json_part.outputs.iter().zip(&json_part.binary);
        let asked = asked.filter(|(output, binary)| {
            !**binary && output.region.is_none() && output.classification.is_none()
        });
        asked.filter_map(|(output, _)| metadata.output_of(&output.name)).find(half)
    };
    match found {
        Some(spec) => Err(Refusal::json_output(spec.dtype.name(), &spec.name)),
        None => Ok(()),
    }
}

/// Returns the length of the JSON, if a header tells it.
async fn header_length<B: Body<Data = Bytes> + Unpin>(
    headers: &HeaderMap,
    body: &mut Reader<B>,
) -> Result<Option<usize>, Refusal> {
    let Some(value) = headers.get(&HEADER_LENGTH) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::header_length_text(text));
    }
    match text.parse() {
        Ok(length) => Ok(Some(length)),
        // The number is negative or exceeds every body.
        Err(_) => Err(Refusal::header_length_range(body.count_all().await?, text)),
    }
}

async fn raw_json<B: Body<Data = Bytes> + Unpin>(
    metadata: &ModelMetadata,
    body: &mut Reader<B>,
    most: u64,
) -> Result<InferJson, Refusal> {
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(isize::MAX as usize - 1);
    let bytes = body.rest(most).await?;
    let input = raw::input(metadata, bytes)?;
    Ok(InferJson { inputs: vec![input], binary_output: true, ..InferJson::default() })
}

async fn read_json<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    metadata: &ModelMetadata,
    length: Option<usize>,
    body: &mut Reader<B>,
) -> Result<InferJson, Refusal> {
    let most = front.limits().json_bytes;
    let text = match length {
        None => body.rest(most).await?,
        Some(length) => {
            let text = if length > most { Bytes::new() } else { body.take(length).await? };
            if text.len() < length {
                let all = body.count_all().await?;
                return Err(match all < length as u64 {
                    true => Refusal::header_length_range(all, &length.to_string()),
                    false => Refusal::json_too_long(most),
                });
            }
            text
        }
    };
    let is_long = text.len() > CONVERTED_INLINE;
    let mut json_part = run_blocking_if(is_long, move || infer_json::read(&text)).await?;
    let tails = || json_part.tails.iter().flatten();
    if tails().fold(0, |sum: u64, len| sum.saturating_add(*len)) > JUDGED_FIRST {
        let InferJson { id, inputs, outputs, tails, .. } = &json_part;
        validation::validate_tails(metadata, id.as_deref(), inputs, outputs, tails)?;
    }
    for (input, tail) in json_part.inputs.iter_mut().zip(&json_part.tails) {
        let Some(len) = *tail else { continue };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let bytes = body.take(len).await?;
        if bytes.len() < len {
            let missing = len - bytes.len();
            return Err(Refusal::input_short(&input.name, missing, &metadata.name));
        }
        input.data = InputData::Inline(bytes);
    }
    if !body.is_at_end().await? {
        return Err(Refusal::body_long(&metadata.name));
    }
    Ok(json_part)
}

/// Appends a member of an object; `name` includes all text before the value.
fn member<T: Serialize + ?Sized>(
    text: &mut BoundedBuffer,
    name: &[u8],
    value: &T,
) -> io::Result<()> {
    text.write_all(name)?;
    json::value(text, value)
}

/// Builds the response: the JSON, then the binary outputs.
fn respond(
    response: InferResponse,
    is_binary: impl Fn(usize) -> bool,
    coding: Option<Coding>,
    limit: BufferLimit,
) -> io::Result<Reply> {
    let mut text = BoundedBuffer::new(limit.clone());
    if let Some(id) = &response.id {
        member(&mut text, b"{\"id\":", id)?;
        member(&mut text, b",\"model_name\":", &response.model)?;
    } else {
        member(&mut text, b"{\"model_name\":", &response.model)?;
    }
    member(&mut text, b",\"model_version\":", &response.version)?;
    text.write_all(b",\"outputs\":[")?;
    let mut tail = Vec::new();
    for (at, output) in response.outputs.iter().enumerate() {
        let start: &[u8] = if at > 0 { b",{\"name\":" } else { b"{\"name\":" };
        member(&mut text, start, &output.name)?;
        member(&mut text, b",\"datatype\":", output.dtype.name())?;
        member(&mut text, b",\"shape\":", output.shape.dims())?;
        match &output.data {
            None => {}
            Some(bytes) if is_binary(at) => {
                member(&mut text, b",\"parameters\":{\"binary_data_size\":", &bytes.len())?;
                text.write_all(b"}")?;
                tail.push(bytes.clone());
            }
            Some(bytes) => {
                text.write_all(b",\"data\":")?;
                data::write(output, bytes, &mut text)?;
            }
        }
        text.write_all(b"}")?;
    }
    text.write_all(b"]}")?;
    drop(response);
    let text = text.into_bytes();
    let header_len = text.len();
    let mut pieces = BodyChunks::from(text);
    tail.into_iter().for_each(|bytes| pieces.push(bytes));
    let has_tail = pieces.len() > header_len as u64;
    if let Some(coding) = coding {
        pieces = coding.encode(&pieces, limit.clone())?.into();
    }
    let len = pieces.len();
    limit.check(len).map_err(io::Error::other)?;
    let mut reply = if len <= SINGLE_CHUNK {
        reply::json(pieces.join())
    } else {
        limit.charge.set(len);
        Reply::new(pieces.charged_to(&limit.charge))
    };
    if let Some(coding) = coding {
        reply.headers_mut().insert(CONTENT_ENCODING, coding.header());
    }
    let headers = reply.headers_mut();
    if has_tail {
        headers.insert(CONTENT_TYPE, OCTETS);
        headers.insert(HEADER_LENGTH, HeaderValue::from(header_len));
    } else {
        headers.insert(CONTENT_TYPE, reply::JSON);
    }
    Ok(reply)
}
