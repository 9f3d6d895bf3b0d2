//! The memory of a decoded request, computed from its encoded bytes.
//!
//! An element of two encoded bytes, such as an empty string, takes dozens of bytes in memory. This module therefore
//! counts elements, field by field, without allocating. A malformed message counts up to its first fault; decoding
//! refuses it.

/// Bytes in memory of a tensor, a parameter, a string or raw tensor, and a number: the size of the generated type plus
/// the overhead of its allocations, approximately.
const TENSOR: usize = 512;
const PARAMETER: usize = 256;
const TEXT: usize = 64;
const NUMBER: usize = 8;

/// A field: its number, and its bytes if it is length-delimited. The others are numbers.
struct Field<'a>(u32, Option<&'a [u8]>);

/// The fields of a message, up to its first fault.
struct Fields<'a> {
    rest: &'a [u8],
    /// The field number of the map. prost decodes every map entry as length-delimited, whatever its key says.
    map: u32,
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(usize::try_from(len).ok()?)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Returns the value behind a key: its bytes if it is length-delimited.
    fn value(&mut self, key: u64) -> Option<Option<&'a [u8]>> {
        match key & 7 {
            0 => self.varint().map(|_| None),
            1 => self.bytes(8).map(|_| None),
            2 => {
                let len = self.varint()?;
                self.bytes(len).map(Some)
            }
            3 => self.group().map(|()| None),
            5 => self.bytes(4).map(|_| None),
            _ => None,
        }
    }

    /// Skips a group and the groups in it. prost does not decode groups, and they must not hide the fields behind
    /// them.
    fn group(&mut self) -> Option<()> {
        let mut depth = 1_usize;
        while depth > 0 {
            let key = self.varint()?;
            match key & 7 {
                3 => depth += 1,
                4 => depth -= 1,
                _ => drop(self.value(key)?),
            }
        }
        Some(())
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok()?;
        let key = if number == self.map { 2 } else { key };
        self.value(key).map(|bytes| Field(number, bytes))
    }
}

/// Returns the memory of a `ModelInferRequest`.
pub(super) fn of_request(message: &[u8]) -> usize {
    let fields = Fields { rest: message, map: 4 };
    let sizes = fields.map(|Field(number, bytes)| match (number, bytes) {
        (4, Some(_)) => PARAMETER,
        (5, Some(input)) => TENSOR + of_input(input),
        (6, Some(output)) => TENSOR + of_output(output),
        (7, Some(_)) => TEXT,
        _ => 0,
    });
    sizes.sum()
}

/// Returns the memory of a `RepositoryModelLoadRequest` or `RepositoryModelUnloadRequest`.
pub(super) fn of_control(message: &[u8]) -> usize {
    let fields = Fields { rest: message, map: 3 };
    let sizes = fields.map(|field| match field {
        Field(3, Some(entry)) => PARAMETER + of_control_parameter(entry),
        _ => 0,
    });
    sizes.sum()
}

/// Returns the memory of the texts of a parameter. Its bytes are a slice of the message.
fn of_control_parameter(entry: &[u8]) -> usize {
    let fields = Fields { rest: entry, map: 0 };
    let sizes = fields.map(|field| match field {
        Field(1, Some(name)) => name.len(),
        Field(2, Some(value)) => {
            let texts = Fields { rest: value, map: 0 };
            texts.map(|field| if let Field(3, Some(text)) = field { text.len() } else { 0 }).sum()
        }
        _ => 0,
    });
    sizes.sum()
}

fn of_input(message: &[u8]) -> usize {
    let fields = Fields { rest: message, map: 4 };
    let sizes = fields.map(|Field(number, bytes)| match (number, bytes) {
        (3, None) => NUMBER,
        (3, Some(packed)) => numbers(packed),
        (4, Some(_)) => PARAMETER,
        (5, Some(contents)) => of_contents(contents),
        _ => 0,
    });
    sizes.sum()
}

fn of_output(message: &[u8]) -> usize {
    let fields = Fields { rest: message, map: 2 };
    fields.filter(|field| matches!(field, Field(2, Some(_)))).count() * PARAMETER
}

fn of_contents(message: &[u8]) -> usize {
    let fields = Fields { rest: message, map: 0 };
    let sizes = fields.map(|Field(number, bytes)| match (number, bytes) {
        (1, Some(packed)) => packed.len(),
        (2..=5, Some(packed)) => numbers(packed),
        // These types have a fixed size, the same as encoded.
        (6 | 7, Some(packed)) => packed.len(),
        (8, Some(text)) => TEXT + text.len(),
        _ => NUMBER,
    });
    sizes.sum()
}

/// Returns the memory of packed varints. The last byte of each has a clear highest bit.
fn numbers(packed: &[u8]) -> usize {
    packed.iter().filter(|byte| **byte & 0x80 == 0).count() * NUMBER
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::grpc::generated::inference::model_infer_request::InferInputTensor;
    use crate::grpc::generated::inference::model_repository_parameter::ParameterChoice;
    use crate::grpc::generated::inference::{
        InferTensorContents, ModelInferRequest, ModelRepositoryParameter,
        RepositoryModelLoadRequest,
    };

    fn size_of_contents(contents: InferTensorContents) -> usize {
        let input = InferInputTensor { contents: Some(contents), ..Default::default() };
        let request = ModelInferRequest { inputs: vec![input], ..Default::default() };
        of_request(&request.encode_to_vec())
    }

    #[test]
    fn what_is_small_on_the_wire_and_large_in_memory_is_heavy() {
        let many = 10_000;
        let bytes_contents = vec![Vec::new(); many];
        assert!(
            size_of_contents(InferTensorContents { bytes_contents, ..Default::default() })
                > many * 48
        );
        let int64_contents = vec![1; many];
        assert!(
            size_of_contents(InferTensorContents { int64_contents, ..Default::default() })
                >= many * 8
        );
        let inputs = vec![InferInputTensor::default(); many];
        let request = ModelInferRequest { inputs, ..Default::default() };
        assert!(of_request(&request.encode_to_vec()) > many * size_of::<InferInputTensor>());
    }

    #[test]
    fn raw_tensors_weigh_next_to_nothing() {
        let raw_input_contents = vec![vec![0; 1 << 20].into(); 2];
        let request = ModelInferRequest { raw_input_contents, ..Default::default() };
        assert!(of_request(&request.encode_to_vec()) < 1000);
    }

    #[test]
    fn parameters_of_a_load_weigh_their_texts_and_not_their_files() {
        let size = |count: usize, choice: &ParameterChoice| {
            let parameter = ModelRepositoryParameter { parameter_choice: Some(choice.clone()) };
            let parameters = (0..count).map(|at| (at.to_string(), parameter.clone())).collect();
            let request = RepositoryModelLoadRequest { parameters, ..Default::default() };
            of_control(&request.encode_to_vec())
        };
        assert!(size(1, &ParameterChoice::StringParam("a".repeat(1 << 20))) >= 1 << 20);
        assert!(size(1, &ParameterChoice::BytesParam(vec![0; 1 << 20].into())) < 1000);
        let each = size_of::<(String, ModelRepositoryParameter)>();
        assert!(size(10_000, &ParameterChoice::BoolParam(true)) > 10_000 * each);
    }

    #[test]
    fn a_group_hides_nothing() {
        // Field 100 as a group that holds a field of every kind and another group.
        let group =
            [0xa3, 6, 8, 1, 0x21, 0, 0, 0, 0, 0, 0, 0, 0, 0x22, 1, 0, 0xab, 6, 0xac, 6, 0xa4, 6];
        all_are_counted_behind(&group);
    }

    #[test]
    fn an_entry_of_a_map_hides_nothing_whatever_its_key_says() {
        // An empty entry of the request's parameters.
        for kind in 0..=7 {
            all_are_counted_behind(&[4 << 3 | kind, 0]);
        }
    }

    #[track_caller]
    fn all_are_counted_behind(field: &[u8]) {
        let message = [field, &[0x2a, 0].repeat(10_000)].concat();
        // A message that decoding refuses takes no memory.
        let decoded = ModelInferRequest::decode(&message[..]);
        let inputs = decoded.map_or(0, |message| message.inputs.len());
        assert!(of_request(&message) >= inputs * TENSOR, "{inputs} behind {field:?}");
        assert!(inputs == 10_000 || field[0] & 7 > 5, "{field:?}");
    }

    #[test]
    fn what_is_broken_is_counted_to_where_it_is_whole() {
        for message in [&[0xff; 20][..], &[0x2a], &[0x2a, 0xff], &[0x2b, 0x2b], &[7], &[0x3a, 0]] {
            of_request(message);
        }
        assert_eq!(of_request(&[0x3a, 0, 0x3a, 0, 0x3a, 9]), 2 * TEXT);
    }
}
