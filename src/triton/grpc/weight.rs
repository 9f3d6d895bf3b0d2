//! What a request takes in memory once it is decoded, counted while it is still bytes.
//!
//! An element of two bytes on the wire, such as an empty text, takes dozens in memory. So elements are counted, field
//! by field, without taking memory for any. What is broken weighs what was counted up to there: decoding refuses it.

/// Bytes in memory of a tensor's head, of a parameter, of a text or raw tensor, of a number: about as the
/// generated types have them, with what an allocation takes besides.
const TENSOR: usize = 512;
const PARAMETER: usize = 256;
const TEXT: usize = 64;
const NUMBER: usize = 8;

/// A field: its number, and its bytes if it has a length. Else it is a number.
struct Field<'a>(u32, Option<&'a [u8]>);

/// The fields of a message, up to where it is broken.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok()?;
        match key & 7 {
            0 => self.varint().map(|_| Field(number, None)),
            1 => self.bytes(8).map(|_| Field(number, None)),
            2 => {
                let len = self.varint()?;
                self.bytes(len).map(|bytes| Field(number, Some(bytes)))
            }
            5 => self.bytes(4).map(|_| Field(number, None)),
            // The start of a group and its end. Who decodes skips what is between, and here it counts as if it
            // stood outside: a group must not hide what comes behind it.
            3 | 4 => Some(Field(number, None)),
            _ => None,
        }
    }
}

/// Of a `ModelInferRequest`.
pub(super) fn of_request(message: &[u8]) -> usize {
    let weights = Fields(message).map(|Field(number, bytes)| match (number, bytes) {
        (4, Some(_)) => PARAMETER,
        (5, Some(input)) => TENSOR + of_input(input),
        (6, Some(output)) => TENSOR + of_output(output),
        (7, Some(_)) => TEXT,
        _ => 0,
    });
    weights.sum()
}

fn of_input(message: &[u8]) -> usize {
    let weights = Fields(message).map(|Field(number, bytes)| match (number, bytes) {
        (3, None) => NUMBER,
        (3, Some(packed)) => numbers(packed),
        (4, Some(_)) => PARAMETER,
        (5, Some(contents)) => of_contents(contents),
        _ => 0,
    });
    weights.sum()
}

fn of_output(message: &[u8]) -> usize {
    Fields(message).filter(|field| matches!(field, Field(2, Some(_)))).count() * PARAMETER
}

fn of_contents(message: &[u8]) -> usize {
    let weights = Fields(message).map(|Field(number, bytes)| match (number, bytes) {
        (1, Some(packed)) => packed.len(),
        (2..=5, Some(packed)) => numbers(packed),
        // As many bytes as on the wire.
        (6 | 7, Some(packed)) => packed.len(),
        (8, Some(text)) => TEXT + text.len(),
        _ => NUMBER,
    });
    weights.sum()
}

/// Of numbers, the last byte of each of which has no highest bit.
fn numbers(packed: &[u8]) -> usize {
    packed.iter().filter(|byte| **byte & 0x80 == 0).count() * NUMBER
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::triton::grpc::generated::inference::model_infer_request::InferInputTensor;
    use crate::triton::grpc::generated::inference::{InferTensorContents, ModelInferRequest};

    fn weight(contents: InferTensorContents) -> usize {
        let input = InferInputTensor { contents: Some(contents), ..Default::default() };
        let request = ModelInferRequest { inputs: vec![input], ..Default::default() };
        of_request(&request.encode_to_vec())
    }

    #[test]
    fn what_is_small_on_the_wire_and_large_in_memory_is_heavy() {
        let many = 10_000;
        let bytes_contents = vec![Vec::new(); many];
        assert!(weight(InferTensorContents { bytes_contents, ..Default::default() }) > many * 48);
        let int64_contents = vec![1; many];
        assert!(weight(InferTensorContents { int64_contents, ..Default::default() }) >= many * 8);
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
    fn a_group_hides_nothing() {
        // Field 100 as a group with a number in it, one in another, and one that is open to the end.
        let group = [0xa3, 0x06, 0x08, 0x01, 0xab, 0x06, 0xac, 0x06, 0xa4, 0x06];
        let inputs = [0x2a, 0].repeat(10_000);
        for before in [&group[..], &group[..2]] {
            assert!(of_request(&[before, &inputs].concat()) >= 10_000 * TENSOR);
        }
        let decoded = ModelInferRequest::decode(&[&group[..], &inputs].concat()[..]).unwrap();
        assert_eq!(decoded.inputs.len(), 10_000);
    }

    #[test]
    fn what_is_broken_is_counted_to_where_it_is_whole() {
        for message in [&[0xff; 20][..], &[0x2a], &[0x2a, 0xff], &[0x2b, 0x2b], &[7], &[0x3a, 0]] {
            of_request(message);
        }
        assert_eq!(of_request(&[0x3a, 0, 0x3a, 0, 0x3a, 9]), 2 * TEXT);
    }
}
