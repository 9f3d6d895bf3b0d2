//! The words of a command about a message.

use std::fmt;
use std::time::SystemTime;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use slipring::broadcast::Sample;
use slipring::message::{Metadata, Value};
use slipring::{DType, Tensor};

use crate::escaped::Escaped;
use crate::failure::Failure;
use crate::stamp::Stamp;

/// The tensors of a message that a line names. JSON names all.
const TENSORS: usize = 8;

/// The words of a line, or the fields of an object, about a message.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The message's number at its publisher.
    sequence: u64,
    /// When it was received.
    time: String,
    /// The bytes of the message, or of all its tensors.
    bytes: u64,
    missed: u64,
    restarted: bool,
    metadata: Named,
    #[serde(flatten)]
    start: Option<Start>,
    tensors: Vec<TensorReport>,
    /// The file in which the message was stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
}

/// The first bytes of a message.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Start {
    Text(String),
    Hex(String),
}

/// Metadata of a peer.
#[derive(Debug)]
struct Named(Metadata);

#[derive(Debug, Serialize)]
struct TensorReport {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: u64,
}

impl Report {
    /// Reports a message, with at most `preview` of its first bytes.
    pub(crate) fn of(sample: &Sample<'_>, preview: usize) -> Result<Self, Failure> {
        let tensors: Vec<TensorReport> =
            sample.tensors().map(|(name, tensor)| TensorReport::of(name, tensor)).collect();
        let start = if tensors.is_empty() {
            let bytes = sample.bytes()?;
            let start = bytes.slice(0, bytes.len().min(preview)).to_vec();
            sample.bytes()?; // the publisher has not written over what was read
            Some(Start::of(start))
        } else {
            None
        };
        let of_tensors: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        Ok(Self {
            sequence: sample.sequence(),
            time: Stamp(SystemTime::now()).to_string(),
            bytes: sample.len() as u64 + of_tensors,
            missed: sample.missed(),
            restarted: sample.restarted(),
            metadata: Named(sample.metadata().clone()),
            start,
            tensors,
            files: Vec::new(),
        })
    }

    /// Returns the report of a message that lies in these files.
    pub(crate) fn stored(self, files: Vec<String>) -> Self {
        Self { files, ..self }
    }
}

impl Start {
    /// Returns text, whose last character may be cut off, or else digits.
    fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => {
                let (whole, is_cut) =
                    (error.utf8_error().valid_up_to(), error.utf8_error().error_len().is_none());
                let bytes = error.into_bytes();
                match str::from_utf8(&bytes[..whole]) {
                    Ok(text) if is_cut && whole > 0 => Self::Text(text.into()),
                    _ => Self::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
                }
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Hex(hex) => hex.len() / 2,
        }
    }
}

impl TensorReport {
    fn of(name: &str, tensor: &Tensor) -> Self {
        let (name, dtype, bytes) = (name.into(), tensor.dtype().name(), tensor.byte_len() as u64);
        Self { name, dtype, shape: tensor.shape().dims().to_vec(), bytes }
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0.iter() {
            match value {
                Value::Integer(integer) => map.serialize_entry(name, &integer)?,
                Value::Float(float) => map.serialize_entry(name, &float)?,
                Value::String(text) => map.serialize_entry(name, text)?,
                Value::Time(time) => map.serialize_entry(name, &Stamp(time).to_string())?,
                Value::Bool(truth) => map.serialize_entry(name, &truth)?,
                other => map.serialize_entry(name, &format!("{other:?}"))?,
            }
        }
        map.end()
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.0.iter() {
            write!(f, " {}=", Escaped(name.as_bytes()))?;
            match value {
                Value::Integer(integer) => write!(f, "{integer}")?,
                Value::Float(float) => write!(f, "{float:?}")?,
                Value::String(text) => write!(f, "\"{}\"", Escaped(text.as_bytes()))?,
                Value::Time(time) => write!(f, "{}", Stamp(time))?,
                Value::Bool(truth) => write!(f, "{truth}")?,
                other => write!(f, "{}", Escaped(format!("{other:?}").as_bytes()))?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for TensorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.name.is_empty() {
            write!(f, "{} ", Escaped(self.name.as_bytes()))?;
        }
        write!(f, "{} {:?}", self.dtype, self.shape)?;
        if self.dtype == DType::Bytes.name() { write!(f, " in {} B", self.bytes) } else { Ok(()) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.restarted {
            writeln!(f, "another publisher came")?;
        }
        write!(f, "{} {} {} B{}", self.sequence, self.time, self.bytes, self.metadata)?;
        if self.missed > 0 {
            write!(f, " ({} missed before)", self.missed)?;
        }
        match &self.start {
            Some(Start::Text(text)) => write!(f, " \"{}\"", Escaped(text.as_bytes()))?,
            Some(Start::Hex(hex)) => write!(f, " 0x{hex}")?,
            None => {}
        }
        if self.start.as_ref().is_some_and(|start| (start.len() as u64) < self.bytes) {
            f.write_str("...")?;
        }
        for (place, tensor) in self.tensors.iter().take(TENSORS).enumerate() {
            write!(f, "{} {tensor}", if place == 0 { ":" } else { "," })?;
        }
        if self.tensors.len() > TENSORS {
            write!(f, " and {} further tensors", self.tensors.len() - TENSORS)?;
        }
        for file in &self.files {
            write!(f, " -> {file}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_other_bytes() {
        let shown = |bytes: &[u8]| match Start::of(bytes.to_vec()) {
            Start::Text(text) => text,
            Start::Hex(hex) => format!("0x{hex}"),
        };
        assert_eq!(shown(b"hello"), "hello");
        assert_eq!(shown(b"h\xc3\xa9"), "hé");
        assert_eq!(shown(b"h\xc3"), "h");
        assert_eq!(shown(b"\xc3"), "0xc3");
        assert_eq!(shown(b"h\xff!"), "0x68ff21");
    }
}
