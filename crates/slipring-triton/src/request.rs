//! A request to infer and its response, whichever wire they travel by.

use std::collections::BTreeMap;

use bytes::Bytes;

use slipring::{DType, Shape};

/// A request to infer.
#[derive(Debug, Clone, Default)]
pub struct InferRequest {
    /// The model's name.
    pub model: String,
    /// The version that is asked for. `None`: the last.
    pub version: Option<String>,
    /// What the client calls this request; echoed.
    pub id: Option<String>,
    /// What else the client says to the model.
    pub parameters: BTreeMap<String, Parameter>,
    /// The inputs, in any order.
    pub inputs: Vec<RequestInput>,
    /// What is asked for. None: all outputs of the model, inline.
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
    /// A whole number that is too large for [`Int`](Self::Int); over gRPC, any that is sent as unsigned.
    Uint(u64),
    /// Any other number.
    Double(f64),
    /// A text.
    Text(String),
}

/// An input of a request.
#[derive(Debug, Clone)]
pub struct RequestInput {
    /// Its name.
    pub name: String,
    /// Its data type, as the client wrote it.
    pub datatype: String,
    /// Its dimensions, as the client wrote them.
    pub shape: Vec<i64>,
    /// Its bytes.
    pub data: InputData,
}

/// Where the bytes of an input are: row-major, little-endian.
#[derive(Debug, Clone)]
pub enum InputData {
    /// They came with the request: bytes of the crate `bytes`.
    Inline(Bytes),
    /// In a region that the client has registered.
    Region(RegionWindow),
}

/// A range of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionWindow {
    /// The region's name.
    pub name: String,
    /// In bytes from the region's start.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
}

/// An output that is asked for.
#[derive(Debug, Clone)]
pub struct RequestedOutput {
    /// Its name.
    pub name: String,
    /// Where it shall go. `None`: into the response.
    pub region: Option<RegionWindow>,
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
    /// In the order of the request's outputs, else of the model's.
    pub outputs: Vec<ResponseOutput>,
}

/// An output of a response.
#[derive(Debug, Clone)]
pub struct ResponseOutput {
    /// Its name.
    pub name: String,
    /// What its elements are.
    pub dtype: DType,
    /// Its dimensions, with that of the batch.
    pub shape: Shape,
    /// Its bytes: row-major, little-endian. `None`: they are in the client's region.
    pub data: Option<Bytes>,
}
