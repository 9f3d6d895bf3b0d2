//! The JSON of an inference request.

use std::collections::BTreeMap;

use bytes::Bytes;
use slipring::{DType, Shape};

use crate::http::data;
use crate::json::Node;
use crate::metadata::DTYPES;
use crate::refusal::Refusal;
use crate::request::{InputData, Parameter, RegionWindow, RequestInput, RequestedOutput};

/// The most inputs, outputs and parameters of a request, and dimensions of a tensor. No model needs as many, and each
/// takes more memory than its text.
const MAX_ITEMS: usize = 1024;

/// The content of the JSON, and the lengths of the bytes behind it.
#[derive(Debug, Default)]
pub(super) struct InferJson {
    pub(super) id: Option<String>,
    /// Further parameters for the model.
    pub(super) parameters: BTreeMap<String, Parameter>,
    /// The inputs. An input whose bytes follow the JSON is still empty.
    pub(super) inputs: Vec<RequestInput>,
    /// The bytes of each input that follow the JSON. `None`: its data lies elsewhere.
    pub(super) tails: Vec<Option<u64>>,
    pub(super) outputs: Vec<RequestedOutput>,
    /// Whether each requested output goes behind the JSON of the response.
    pub(super) binary: Vec<bool>,
    /// Whether outputs go behind the JSON of the response if the request names none.
    pub(super) binary_output: bool,
}

/// Reads the JSON of a request.
pub(super) fn read(text: &[u8]) -> Result<InferJson, Refusal> {
    let root = Node::document(text)?;
    if !root.is_object() {
        return Err(Refusal::json_type("object"));
    }
    let mut json = InferJson::default();
    // The first of two equal names counts.
    let (mut inputs, mut outputs, mut settings) = (None, None, None);
    for (name, value) in root.members() {
        match &*name {
            "id" if json.id.is_none() => {
                let id = value.string().ok_or_else(|| Refusal::json_type("string"));
                json.id = Some(id.map_err(|refusal| Refusal::parse("id", &refusal))?.into_owned());
            }
            "parameters" => settings = settings.or(Some(value)),
            "inputs" => inputs = inputs.or(Some(value)),
            "outputs" => outputs = outputs.or(Some(value)),
            _ => {}
        }
    }
    if let Some(settings) = settings {
        (json.binary_output, json.parameters) = parameters(settings)?;
    }
    json.id = json.id.filter(|id| !id.is_empty());
    let inputs = inputs.ok_or_else(|| Refusal::member_missing("inputs"));
    let inputs = inputs.and_then(array).map_err(|refusal| Refusal::parse("inputs", &refusal))?;
    (json.inputs, json.tails) = read_list(inputs, "inputs", input)?.into_iter().unzip();
    if let Some(outputs) = outputs {
        let outputs = array(outputs).map_err(|refusal| Refusal::parse("outputs", &refusal))?;
        let read = |value: Node<'_>| output(value, json.binary_output);
        (json.outputs, json.binary) = read_list(outputs, "outputs", read)?.into_iter().unzip();
    }
    Ok(json)
}

fn array(node: Node<'_>) -> Result<Node<'_>, Refusal> {
    if node.is_array() { Ok(node) } else { Err(Refusal::json_type("array")) }
}

/// Reads the elements of an array, at most [`MAX_ITEMS`].
fn read_list<T>(
    array: Node<'_>,
    what: &str,
    mut read: impl FnMut(Node<'_>) -> Result<T, Refusal>,
) -> Result<Vec<T>, Refusal> {
    let mut all = Vec::new();
    for value in array.items() {
        if all.len() == MAX_ITEMS {
            return Err(Refusal::too_many(what, MAX_ITEMS));
        }
        all.push(read(value)?);
    }
    Ok(all)
}

/// The members of a tensor, found in one pass. The first of two equal names counts.
#[derive(Default)]
struct Members<'a> {
    name: Option<Node<'a>>,
    datatype: Option<Node<'a>>,
    shape: Option<Node<'a>>,
    parameters: Option<Node<'a>>,
    data: Option<Node<'a>>,
}

impl<'a> Members<'a> {
    fn of(node: Node<'a>) -> Self {
        let mut members = Self::default();
        for (name, value) in node.members() {
            let member = match &*name {
                "name" => &mut members.name,
                "datatype" => &mut members.datatype,
                "shape" => &mut members.shape,
                "parameters" => &mut members.parameters,
                "data" => &mut members.data,
                _ => continue,
            };
            member.get_or_insert(value);
        }
        members
    }
}

/// Parses a required member.
fn member<'a, T>(
    node: Option<Node<'a>>,
    name: &str,
    parse: impl Fn(Node<'a>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let value = node.ok_or_else(|| Refusal::member_missing(name));
    value.and_then(parse).map_err(|refusal| Refusal::parse(name, &refusal))
}

pub(super) fn string(node: Node<'_>) -> Result<String, Refusal> {
    Ok(node.string().ok_or_else(|| Refusal::json_type("string"))?.into_owned())
}

pub(super) fn unsigned(node: Node<'_>) -> Result<u64, Refusal> {
    node.unsigned().ok_or_else(|| Refusal::json_type("unsigned-integer"))
}

/// Reads the parameters of the request: the default for binary outputs, and the parameters for the model.
fn parameters(node: Node<'_>) -> Result<(bool, BTreeMap<String, Parameter>), Refusal> {
    if !node.is_object() {
        return Err(Refusal::parse("parameters", &Refusal::json_type("object")));
    }
    let (mut binary, mut told) = (None, BTreeMap::new());
    for (name, value) in node.members() {
        if name.starts_with("triton_") {
            return Err(Refusal::reserved_parameter(&name));
        }
        if name == "binary_data_output" {
            binary = binary.or(Some(boolean(value, &name)?));
        } else {
            let value = parameter(value).ok_or_else(|| Refusal::parameter_type(&name))?;
            if told.len() == MAX_ITEMS {
                return Err(Refusal::too_many("parameters", MAX_ITEMS));
            }
            told.entry(name).or_insert(value);
        }
    }
    Ok((binary.unwrap_or(false), told))
}

fn parameter(node: Node<'_>) -> Option<Parameter> {
    if let Some(text) = node.string() {
        return Some(Parameter::Text(text.into_owned()));
    }
    let whole = node.integer().map(Parameter::Int).or_else(|| node.unsigned().map(Parameter::Uint));
    let other = || node.boolean().map(Parameter::Bool);
    whole.or_else(other).or_else(|| node.float().map(Parameter::Double))
}

fn boolean(node: Node<'_>, name: &str) -> Result<bool, Refusal> {
    let value = node.boolean().ok_or_else(|| Refusal::json_type("boolean"));
    value.map_err(|refusal| Refusal::parse(name, &refusal))
}

/// The parameters of a tensor.
#[derive(Default)]
struct TensorParameters {
    binary_data_size: Option<u64>,
    binary_data: Option<bool>,
    region: Option<String>,
    offset: Option<u64>,
    byte_size: Option<u64>,
    classification: Option<u64>,
}

impl TensorParameters {
    fn read(node: Option<Node<'_>>) -> Result<Self, Refusal> {
        let mut parameters = Self::default();
        let Some(node) = node else { return Ok(parameters) };
        if !node.is_object() {
            return Err(Refusal::parse("parameters", &Refusal::json_type("object")));
        }
        for (name, value) in node.members() {
            let parsed = |refusal| Refusal::parse(&name, &refusal);
            match &*name {
                "binary_data_size" => {
                    parameters.binary_data_size.get_or_insert(unsigned(value).map_err(parsed)?);
                }
                "binary_data" => {
                    parameters.binary_data.get_or_insert(boolean(value, &name)?);
                }
                "shared_memory_region" => {
                    parameters.region.get_or_insert(string(value).map_err(parsed)?);
                }
                "shared_memory_offset" => {
                    parameters.offset.get_or_insert(unsigned(value).map_err(parsed)?);
                }
                "shared_memory_byte_size" => {
                    parameters.byte_size.get_or_insert(unsigned(value).map_err(parsed)?);
                }
                "classification" => {
                    parameters.classification.get_or_insert(unsigned(value).map_err(parsed)?);
                }
                _ => {}
            }
        }
        Ok(parameters)
    }

    /// Returns the window of a region, if the parameters name one.
    fn window(&mut self, tensor: &str) -> Result<Option<RegionWindow>, Refusal> {
        match (self.region.take(), self.byte_size, self.offset) {
            (Some(name), Some(len), offset) => {
                Ok(Some(RegionWindow { name, offset: offset.unwrap_or(0), len }))
            }
            (Some(_), None, _) => Err(Refusal::window_incomplete(tensor)),
            (None, Some(_), _) => {
                Err(Refusal::window_without_region("shared_memory_byte_size", tensor))
            }
            (None, None, Some(_)) => {
                Err(Refusal::window_without_region("shared_memory_offset", tensor))
            }
            (None, None, None) => Ok(None),
        }
    }
}

fn input(node: Node<'_>) -> Result<(RequestInput, Option<u64>), Refusal> {
    let members = Members::of(node);
    let name = member(members.name, "name", string)?;
    let datatype = member(members.datatype, "datatype", string)?;
    let shape = member(members.shape, "shape", dims)?;
    let (mut parameters, data) = (TensorParameters::read(members.parameters)?, members.data);
    let window = parameters.window(&name)?;
    let sources = [
        (data.is_some(), "data"),
        (parameters.binary_data_size.is_some(), "binary_data_size"),
        (window.is_some(), "shared_memory_region"),
    ];
    let set = || sources.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
    if set().count() != 1 {
        return Err(Refusal::data_sources(&set().collect::<Vec<_>>()));
    }
    let bytes = match (window, data) {
        (Some(window), _) => InputData::Region(window),
        (None, Some(data)) => InputData::Inline(read_data(&name, &datatype, &shape, data)?),
        (None, None) => InputData::Inline(Bytes::new()),
    };
    Ok((RequestInput { name, datatype, shape, data: bytes }, parameters.binary_data_size))
}

fn dims(node: Node<'_>) -> Result<Vec<i64>, Refusal> {
    let dim = |node: Node<'_>| node.integer().ok_or_else(|| Refusal::json_type("signed-integer"));
    read_list(array(node)?, "dimensions", dim)
}

/// Reads data written as JSON.
fn read_data(name: &str, datatype: &str, shape: &[i64], data: Node<'_>) -> Result<Bytes, Refusal> {
    // Validation against the model reports a wrong data type or shape.
    let (Ok(dtype), Ok(shape)) = (datatype.parse(), Shape::try_from(shape)) else {
        return Ok(Bytes::new());
    };
    if !DTYPES.contains(&dtype) {
        return Ok(Bytes::new());
    }
    if matches!(dtype, DType::Fp16 | DType::Bf16) {
        return Err(Refusal::json_input(dtype.name(), name));
    }
    data::read(dtype, &shape, data).map_err(|refusal| Refusal::parse("data", &refusal))
}

fn output(node: Node<'_>, binary_output: bool) -> Result<(RequestedOutput, bool), Refusal> {
    let members = Members::of(node);
    let name = member(members.name, "name", string)?;
    let mut parameters = TensorParameters::read(members.parameters)?;
    let region = parameters.window(&name)?;
    if region.is_some() && parameters.classification.is_some() {
        return Err(Refusal::output_place_or_classes());
    }
    if region.is_some() && parameters.binary_data == Some(true) {
        return Err(Refusal::output_places());
    }
    // As in the reference server, 0 asks for the tensor.
    let classification = parameters.classification.filter(|count| *count > 0);
    let classification = classification.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let output = RequestedOutput { name, region, classification };
    Ok((output, parameters.binary_data.unwrap_or(binary_output)))
}
