//! The parts of gRPC that fuzz targets reach: frames, and inference messages.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use tonic::Streaming;
use tonic::codec::{Codec, CompressionEncoding};

use crate::fuzzing::{front, run};
use crate::grpc::codec::{BesideTonic, SizeCheckingCodec, with_bytes_beside, with_charge};
use crate::grpc::generated::inference::infer_parameter::ParameterChoice;
use crate::grpc::generated::inference::*;
use crate::grpc::scatter_gather::ScatterGatherBody;
use crate::grpc::{message_size, request, response};

/// A body in pieces.
struct PieceBody(VecDeque<Bytes>);

impl Body for PieceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

/// Reads frames of any bytes, or one frame with a message of any bytes: `flags | bytes at a time | body`. A decoded
/// message must take about its counted size. It is executed, and afterwards nothing is in flight.
pub fn message(input: &[u8]) {
    let [flags, piece, rest @ ..] = input else { return };
    let longest = front().limits().request_bytes as usize;
    let mut body = Vec::new();
    if flags & 1 != 0 {
        body.push(0);
        body.extend_from_slice(&(rest.len() as u32).to_be_bytes());
        let (size, message) = (message_size::of_request(rest), prost::Message::decode(rest));
        if let Ok(message) = message {
            let taken = taken(&message);
            let most = 3 * size + 4 * rest.len() + 4096;
            assert!(taken <= most, "{taken} bytes for {} counted as {size}", rest.len());
        }
    }
    body.extend_from_slice(rest);
    let pieces = body.chunks(usize::from(*piece) + 1).map(Bytes::copy_from_slice).collect();
    let codings = [None, Some(CompressionEncoding::Gzip), Some(CompressionEncoding::Deflate)];
    let coding = codings[usize::from(flags >> 1) % codings.len()];
    let charge = front().charge();
    let is_stream = flags & 8 == 0;
    let beside = BesideTonic::default();
    let body = ScatterGatherBody::new(
        PieceBody(pieces),
        coding,
        is_stream,
        front().limits(),
        charge.clone(),
        beside.messages(),
    );
    run(with_bytes_beside(
        beside,
        with_charge(charge, async {
            let mut codec = SizeCheckingCodec::<ModelInferResponse, ModelInferRequest>::default();
            let mut messages = Streaming::new_request(codec.decoder(), body, None, Some(longest));
            while let Ok(Some(message)) = messages.message().await {
                let Ok(request) = request::decode(message) else { continue };
                if let Ok(response) = front().infer(request).await {
                    let response = response::infer(response);
                    assert_eq!(response.outputs.len(), response.raw_output_contents.len());
                }
            }
        }),
    ));
    assert!(front().charge().add(front().limits().bytes_in_flight).is_ok(), "all is given back");
}

/// Returns the memory of a message, without the overhead of each allocation.
fn taken(message: &ModelInferRequest) -> usize {
    let ModelInferRequest { model_name, model_version, id, inputs, outputs, .. } = message;
    let texts = [model_name, model_version, id].map(String::capacity).iter().sum::<usize>();
    let of_inputs = inputs.iter().map(|input| {
        let contents = input.contents.as_ref().map_or(0, of_contents);
        let texts = input.name.capacity() + input.datatype.capacity();
        texts + 8 * input.shape.capacity() + of_parameters(&input.parameters) + contents
    });
    let of_outputs =
        outputs.iter().map(|output| output.name.capacity() + of_parameters(&output.parameters));
    texts
        + of_parameters(&message.parameters)
        + size_of_val(&*message.raw_input_contents)
        + inputs.capacity() * size_of::<model_infer_request::InferInputTensor>()
        + outputs.capacity() * size_of::<model_infer_request::InferRequestedOutputTensor>()
        + of_inputs.chain(of_outputs).sum::<usize>()
}

fn of_parameters(parameters: &BTreeMap<String, InferParameter>) -> usize {
    let sizes = parameters.iter().map(|(name, value)| {
        let text = match &value.parameter_choice {
            Some(ParameterChoice::StringParam(text)) => text.capacity(),
            _ => 0,
        };
        name.capacity() + text + size_of::<(String, InferParameter)>()
    });
    sizes.sum()
}

fn of_contents(contents: &InferTensorContents) -> usize {
    contents.bool_contents.capacity()
        + 4 * contents.int_contents.capacity()
        + 8 * contents.int64_contents.capacity()
        + 4 * contents.uint_contents.capacity()
        + 8 * contents.uint64_contents.capacity()
        + 4 * contents.fp32_contents.capacity()
        + 8 * contents.fp64_contents.capacity()
        + size_of::<Vec<u8>>() * contents.bytes_contents.capacity()
        + contents.bytes_contents.iter().map(Vec::capacity).sum::<usize>()
}
