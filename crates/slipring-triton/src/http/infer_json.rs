//! The JSON of a request to infer.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::http::data;
use crate::json::Node;
use crate::refusal::Refusal;
use crate::request::{InputData, Parameter, RegionWindow, RequestInput, RequestedOutput};
use slipring::{DType, Shape};

/// Inputs, outputs or parameters of a request at most, and dimensions of one: no model has so many, and each takes more
/// memory than its text.
const MOST: usize = 1024;

/// What the JSON says, and what is yet to come.
#[derive(Debug, Default)]
pub(super) struct InferJson {
    pub(super) id: Option<String>,
    /// What else the client says to the model.
    pub(super) parameters: BTreeMap<String, Parameter>,
    /// Those whose bytes come behind the JSON hold none yet.
    pub(super) inputs: Vec<RequestInput>,
    /// How many bytes of each input come behind the JSON. `None`: its data is elsewhere.
    pub(super) tails: Vec<Option<u64>>,
    pub(super) outputs: Vec<RequestedOutput>,
    /// Of each output that is asked for, whether it goes behind the response's JSON.
    pub(super) binary: Vec<bool>,
    /// The same for outputs where none is asked for.
    pub(super) binary_output: bool,
}

/// Reads the JSON of a request.
pub(super) fn read(text: &[u8]) -> Result<InferJson, Refusal> {
    let root = Node::document(text)?;
    if !root.is_object() {
        return Err(Refusal::json_type("object"));
    }
    let mut head = InferJson::default();
    // Of two of one name, the first counts.
    let (mut inputs, mut outputs, mut members) = (None, None, None);
    for (name, value) in root.members() {
        match &*name {
            "id" if head.id.is_none() => {
                let id = value.string().ok_or_else(|| Refusal::json_type("string"));
                head.id = Some(id.map_err(|refusal| Refusal::parse("id", &refusal))?.into_owned());
            }
            "parameters" => members = members.or(Some(value)),
            "inputs" => inputs = inputs.or(Some(value)),
            "outputs" => outputs = outputs.or(Some(value)),
            _ => {}
        }
    }
    if let Some(members) = members {
        (head.binary_output, head.parameters) = parameters(members)?;
    }
    head.id = head.id.filter(|id| !id.is_empty());
    let inputs = inputs.ok_or_else(|| Refusal::member_missing("inputs"));
    let inputs = inputs.and_then(array).map_err(|refusal| Refusal::parse("inputs", &refusal))?;
    (head.inputs, head.tails) = few(inputs, "inputs", input)?.into_iter().unzip();
    if let Some(outputs) = outputs {
        let outputs = array(outputs).map_err(|refusal| Refusal::parse("outputs", &refusal))?;
        let read = |value: Node<'_>| output(value, head.binary_output);
        (head.outputs, head.binary) = few(outputs, "outputs", read)?.into_iter().unzip();
    }
    Ok(head)
}

fn array(node: Node<'_>) -> Result<Node<'_>, Refusal> {
    if node.is_array() { Ok(node) } else { Err(Refusal::json_type("array")) }
}

/// The elements of an array, each as `read` reads it, if they are not too many.
fn few<T>(
    array: Node<'_>,
    what: &str,
    mut read: impl FnMut(Node<'_>) -> Result<T, Refusal>,
) -> Result<Vec<T>, Refusal> {
    let mut all = Vec::new();
    for value in array.items() {
        if all.len() == MOST {
            return Err(Refusal::too_many(what, MOST));
        }
        all.push(read(value)?);
    }
    Ok(all)
}

/// The members of a tensor, the first of each name, found in one pass.
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

/// A member that must be there, as `parse` reads it.
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

/// Those of the whole request: whether outputs are binary, if nothing else is members, and what the model is told.
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
            if told.len() == MOST {
                return Err(Refusal::too_many("parameters", MOST));
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

/// What the parameters of a tensor say.
#[derive(Default)]
struct Place {
    binary_data_size: Option<u64>,
    binary_data: Option<bool>,
    region: Option<String>,
    offset: Option<u64>,
    byte_size: Option<u64>,
}

impl Place {
    fn read(parameters: Option<Node<'_>>) -> Result<Self, Refusal> {
        let mut place = Self::default();
        let Some(parameters) = parameters else { return Ok(place) };
        if !parameters.is_object() {
            return Err(Refusal::parse("parameters", &Refusal::json_type("object")));
        }
        for (name, value) in parameters.members() {
            let parsed = |refusal| Refusal::parse(&name, &refusal);
            match &*name {
                "binary_data_size" => {
                    place.binary_data_size.get_or_insert(unsigned(value).map_err(parsed)?);
                }
                "binary_data" => {
                    place.binary_data.get_or_insert(boolean(value, &name)?);
                }
                "shared_memory_region" => {
                    place.region.get_or_insert(string(value).map_err(parsed)?);
                }
                "shared_memory_offset" => {
                    place.offset.get_or_insert(unsigned(value).map_err(parsed)?);
                }
                "shared_memory_byte_size" => {
                    place.byte_size.get_or_insert(unsigned(value).map_err(parsed)?);
                }
                "classification" => return Err(Refusal::classification()),
                _ => {}
            }
        }
        Ok(place)
    }

    /// The part of a region, if one is named.
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
    let (mut place, data) = (Place::read(members.parameters)?, members.data);
    let window = place.window(&name)?;
    let sources = [
        (data.is_some(), "data"),
        (place.binary_data_size.is_some(), "binary_data_size"),
        (window.is_some(), "shared_memory_region"),
    ];
    let set = || sources.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
    if set().count() != 1 {
        return Err(Refusal::data_sources(&set().collect::<Vec<_>>()));
    }
    let bytes = match (window, data) {
        (Some(window), _) => InputData::Region(window),
        (None, Some(data)) => InputData::Inline(written(&name, &datatype, &shape, data)?),
        (None, None) => InputData::Inline(Bytes::new()),
    };
    Ok((RequestInput { name, datatype, shape, data: bytes }, place.binary_data_size))
}

fn dims(node: Node<'_>) -> Result<Vec<i64>, Refusal> {
    let dim = |node: Node<'_>| node.integer().ok_or_else(|| Refusal::json_type("signed-integer"));
    few(array(node)?, "dimensions", dim)
}

/// Data that is written as JSON.
fn written(name: &str, datatype: &str, shape: &[i64], data: Node<'_>) -> Result<Bytes, Refusal> {
    // What is wrong with data type or shape is told later, when the model is asked.
    let (Ok(dtype), Ok(shape)) = (datatype.parse(), Shape::try_from(shape)) else {
        return Ok(Bytes::new());
    };
    if matches!(dtype, DType::Fp16 | DType::Bf16) {
        return Err(Refusal::json_input(dtype.name(), name));
    }
    data::read(dtype, &shape, data).map_err(|refusal| Refusal::parse("data", &refusal))
}

fn output(node: Node<'_>, binary_output: bool) -> Result<(RequestedOutput, bool), Refusal> {
    let members = Members::of(node);
    let name = member(members.name, "name", string)?;
    let mut place = Place::read(members.parameters)?;
    let region = place.window(&name)?;
    if region.is_some() && place.binary_data == Some(true) {
        return Err(Refusal::output_places());
    }
    Ok((RequestedOutput { name, region }, place.binary_data.unwrap_or(binary_output)))
}
