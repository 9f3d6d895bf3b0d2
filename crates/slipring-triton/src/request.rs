//! An inference request and its response, independent of the protocol.

use std::collections::BTreeMap;

use bytes::Bytes;
use slipring::{DType, Shape};

/// An inference request.
#[derive(Debug, Clone, Default)]
pub struct InferRequest {
    /// The model's name.
    pub model: String,
    /// The version that the client asks for. `None`: the last one.
    pub version: Option<String>,
    /// The client's id of the request. The response repeats it.
    pub id: Option<String>,
    /// Further parameters for the model.
    pub parameters: BTreeMap<String, Parameter>,
    /// The inputs, in any order.
    pub inputs: Vec<RequestInput>,
    /// The outputs that the client asks for. Empty: all outputs of the model, inline.
    pub outputs: Vec<RequestedOutput>,
}

/// The value of a parameter.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Parameter {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number that exceeds [`Int`](Self::Int). Over gRPC: any number that the client sends as unsigned.
    Uint(u64),
    /// Any other number.
    Double(f64),
    /// A text.
    Text(String),
}

/// An input of a request.
#[derive(Debug, Clone)]
pub struct RequestInput {
    /// The input's name.
    pub name: String,
    /// The data type, as the client wrote it.
    pub datatype: String,
    /// The dimensions, as the client wrote them.
    pub shape: Vec<i64>,
    /// The input's bytes.
    pub data: InputData,
}

/// The place of an input's bytes, which are row-major and little-endian.
#[derive(Debug, Clone)]
pub enum InputData {
    /// The bytes came with the request. `Bytes` is of the crate `bytes`.
    Inline(Bytes),
    /// The bytes lie in a region that the client has registered.
    Region(RegionWindow),
}

/// A range of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionWindow {
    /// The region's name.
    pub name: String,
    /// Bytes from the region's start.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
}

/// An output that the client asks for.
#[derive(Debug, Clone)]
pub struct RequestedOutput {
    /// The output's name.
    pub name: String,
    /// The destination. `None`: the response.
    pub region: Option<RegionWindow>,
    /// The highest elements as BYTES `value:index[:label]`, at most this many of each batch item, instead of the
    /// tensor. Such an output has no region.
    pub classification: Option<usize>,
}

/// The response to a request.
#[derive(Debug, Clone)]
pub struct InferResponse {
    /// The model's name.
    pub model: String,
    /// The version that was executed.
    pub version: String,
    /// The request's id.
    pub id: Option<String>,
    /// The outputs, in the order of the request, or of the model if the request names none.
    pub outputs: Vec<ResponseOutput>,
}

/// An output of a response.
#[derive(Debug, Clone)]
pub struct ResponseOutput {
    /// The output's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions, including the batch.
    pub shape: Shape,
    /// Its bytes, row-major and little-endian. `None`: they lie in the client's region.
    pub data: Option<Bytes>,
}
