//! The head of a recorded message: all but its bytes. No I/O.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use slipring::broadcast::Sample;
use slipring::message::{Metadata, Value};
use slipring::{DType, Shape};

use crate::failure::Failure;

/// The JSON before the bytes of a message.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The message's number at its publisher.
    sequence: u64,
    /// Messages that were missed before it.
    missed: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    metadata: Vec<(String, Field)>,
    /// `None`: a message of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<Described>>,
}

/// A value of metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Field {
    Integer(i64),
    /// As text: JSON has neither infinities nor NaN.
    Float(String),
    String(String),
    /// In nanoseconds from 1970 on.
    Time(i64),
    Bool(bool),
}

/// A tensor, whose bytes follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) name: String,
    dtype: String,
    shape: Vec<usize>,
    pub(crate) bytes: u64,
}

impl Head {
    /// Describes a message.
    pub(crate) fn of(sample: &Sample<'_>, missed: u64) -> Self {
        let tensors: Vec<Described> = sample
            .tensors()
            .map(|(name, tensor)| Described {
                name: name.into(),
                dtype: tensor.dtype().name().into(),
                shape: tensor.shape().dims().to_vec(),
                bytes: tensor.byte_len() as u64,
            })
            .collect();
        let has_tensors = sample.kind() == slipring::message::MessageKind::Tensors;
        let fields = sample.metadata().iter();
        let fields = fields.filter_map(|(name, value)| Some((name.to_owned(), field(value)?)));
        Self {
            sequence: sample.sequence(),
            missed,
            metadata: fields.collect(),
            tensors: has_tensors.then_some(tensors),
        }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the tensors, if it is a message of tensors.
    pub(crate) fn tensors(&self) -> Option<&[Described]> {
        self.tensors.as_deref()
    }

    /// Returns the metadata.
    pub(crate) fn metadata(&self) -> Result<Metadata, Failure> {
        let mut metadata = Metadata::new();
        for (name, field) in &self.metadata {
            let value = match field {
                Field::Integer(integer) => Value::Integer(*integer),
                Field::Float(text) => {
                    let float = text
                        .parse()
                        .map_err(|_| Failure::new("metadata has a float that is none"))?;
                    Value::Float(float)
                }
                Field::String(text) => Value::String(text),
                Field::Time(nanos) => Value::Time(time(*nanos)),
                Field::Bool(truth) => Value::Bool(*truth),
            };
            metadata.insert(name, value)?;
        }
        Ok(metadata)
    }
}

impl Described {
    /// Returns the data type and the shape, if the bytes fit them.
    pub(crate) fn parts(&self) -> Result<(DType, Shape), Failure> {
        let (dtype, shape) = (self.dtype.parse::<DType>()?, Shape::new(&self.shape)?);
        match shape.byte_len(dtype)? {
            Some(len) if len as u64 != self.bytes => {
                let bytes = self.bytes;
                Err(Failure::new(format!("a tensor of {len} bytes has {bytes} in the recording")))
            }
            _ => Ok((dtype, shape)),
        }
    }
}

/// Returns a value as it is recorded. `None`: a version of slipring that has further kinds of values wrote it.
fn field(value: Value<'_>) -> Option<Field> {
    Some(match value {
        Value::Integer(integer) => Field::Integer(integer),
        Value::Float(float) => Field::Float(float.to_string()),
        Value::String(text) => Field::String(text.into()),
        Value::Time(time) => Field::Time(nanos(time)),
        Value::Bool(truth) => Field::Bool(truth),
        _ => return None,
    })
}

/// Returns the nanoseconds from 1970 on: up to the year 2262, or its end.
fn nanos(time: SystemTime) -> i64 {
    let clamped = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => clamped(after),
        Err(before) => -clamped(before.duration()),
    }
}

fn time(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_as_it_was_recorded() {
        let at = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        let values = [
            ("i", Value::Integer(i64::MIN)),
            ("f", Value::Float(0.1)),
            ("inf", Value::Float(f64::NEG_INFINITY)),
            ("s", Value::String("\u{1b}\"")),
            ("t", Value::Time(at)),
            ("old", Value::Time(UNIX_EPOCH - Duration::from_nanos(7))),
            ("b", Value::Bool(true)),
        ];
        let metadata = values.map(|(name, value)| (name.to_owned(), field(value).unwrap()));
        let head = Head { sequence: u64::MAX, metadata: metadata.to_vec(), ..Head::default() };
        let json = serde_json::to_vec(&head).unwrap();
        let read: Head = serde_json::from_slice(&json).unwrap();
        assert_eq!(read, head);
        let read = read.metadata().unwrap();
        assert_eq!(read.iter().collect::<Vec<_>>(), values);
    }

    #[test]
    fn a_tensor_whose_bytes_do_not_fit_is_refused() {
        let tensor = |dtype: &str, shape: &[usize], bytes| Described {
            name: String::new(),
            dtype: dtype.into(),
            shape: shape.to_vec(),
            bytes,
        };
        assert!(tensor("FP32", &[2], 8).parts().is_ok());
        assert!(tensor("BYTES", &[2], 9).parts().is_ok());
        assert!(tensor("FP32", &[2], 9).parts().is_err());
        assert!(tensor("FP33", &[2], 8).parts().is_err());
        assert!(tensor("FP32", &[usize::MAX, 2], 8).parts().is_err());
    }
}
