//! The head of a `.safetensors` file: several tensors with names. No I/O but the reading of the head.
//!
//! ```text
//!   u64 length │ JSON: name -> dtype, shape, offsets from the first tensor on, and __metadata__, padded with spaces │ tensors
//! ```
//!
//! Source: <https://github.com/huggingface/safetensors>, section "Format".

use std::collections::BTreeMap;
use std::io::Read;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use slipring::{DType, Shape};

use crate::failure::Failure;

/// The longest head: that of the format's own library.
const LONGEST: u64 = 100_000_000;

/// The key of what is no tensor.
const METADATA: &str = "__metadata__";

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Described {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Returns the format's name of a data type. `None`: it has none.
fn name_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "BOOL",
        DType::Uint8 => "U8",
        DType::Uint16 => "U16",
        DType::Uint32 => "U32",
        DType::Uint64 => "U64",
        DType::Int8 => "I8",
        DType::Int16 => "I16",
        DType::Int32 => "I32",
        DType::Int64 => "I64",
        DType::Fp16 => "F16",
        DType::Fp32 => "F32",
        DType::Fp64 => "F64",
        DType::Bf16 => "BF16",
        DType::Fp8E4m3fn => "F8_E4M3",
        DType::Fp8E5m2 => "F8_E5M2",
        _ => return None,
    })
}

fn len_of(dtype: DType, shape: &[usize]) -> Option<u64> {
    let len = Shape::new(shape).and_then(|shape| shape.byte_len(dtype));
    len.ok().flatten().map(|len| len as u64)
}

/// Returns the bytes before the tensors, which follow each other in this order. `None`: the format does not know one of the data
/// types.
pub(crate) fn head(entries: &[Entry], metadata: BTreeMap<String, String>) -> Option<Vec<u8>> {
    let mut described = Map::new();
    if !metadata.is_empty() {
        described.insert(METADATA.into(), serde_json::to_value(metadata).ok()?);
    }
    let mut offset = 0;
    for Entry { name, dtype, shape } in entries {
        let end = offset + len_of(*dtype, shape)?;
        let (dtype, shape) = (name_of(*dtype)?.into(), shape.clone());
        let one = Described { dtype, shape, data_offsets: (offset, end) };
        described.insert(name.clone(), serde_json::to_value(one).ok()?);
        offset = end;
    }
    let mut json = serde_json::to_vec(&described).ok()?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.extend(json);
    Some(head)
}

/// Reads the bytes before the tensors. Returns these, in the order of their bytes.
pub(crate) fn read_head(file: &mut impl Read) -> Result<Vec<Entry>, Failure> {
    let mut len = [0; 8];
    file.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > LONGEST {
        return Err(Failure::new(format!("a head of {len} bytes, at most {LONGEST} are read")));
    }
    let mut json = Vec::new();
    file.take(len).read_to_end(&mut json)?;
    let wrong =
        |what: &dyn std::fmt::Display| Failure::new(format!("no .safetensors file: {what}"));
    let described: Map<String, Value> =
        serde_json::from_slice(&json).map_err(|error| wrong(&error))?;
    let mut entries = Vec::new();
    for (name, value) in described.into_iter().filter(|(name, _)| name != METADATA) {
        let one: Described = serde_json::from_value(value).map_err(|error| wrong(&error))?;
        let dtype = DType::ALL.into_iter().find(|dtype| name_of(*dtype) == Some(&one.dtype));
        let dtype = dtype.ok_or_else(|| {
            let dtype = one.dtype.escape_debug();
            Failure::new(format!("elements of type {dtype} are not sent: convert them"))
        })?;
        entries.push((one.data_offsets, Entry { name, dtype, shape: one.shape }));
    }
    entries.sort_by_key(|(offsets, _)| *offsets);
    let mut end = 0;
    for ((from, to), entry) in &entries {
        let len = len_of(entry.dtype, &entry.shape);
        if *from != end || to.checked_sub(*from) != len {
            return Err(wrong(&format_args!(
                "offsets {from} to {to} do not follow byte {end}, or do not fit the shape"
            )));
        }
        end = *to;
    }
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let of = |name: &str, dtype, shape: &[usize]| Entry {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
        };
        let entries = [of("z", DType::Bf16, &[2, 3]), of("a\"", DType::Bool, &[1])];
        let head = head(&entries, BTreeMap::from([("frame".into(), "7".into())])).unwrap();
        assert_eq!(head.len() % 8, 0);
        assert_eq!(read_head(&mut &head[..]).unwrap(), entries);
        assert!(super::head(&[of("b", DType::Bytes, &[1])], BTreeMap::new()).is_none());
    }

    #[test]
    fn heads_that_lie_are_refused() {
        let read = |json: &str| {
            let mut head = (json.len() as u64).to_le_bytes().to_vec();
            head.extend(json.as_bytes());
            read_head(&mut &head[..])
        };
        let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert_eq!(read(good).unwrap().len(), 1);
        for (part, lie) in [
            ("[0,8]", "[0,7]"),
            ("[0,8]", "[8,0]"),
            ("[0,8]", "[4,12]"),
            ("[2]", "[3]"),
            ("[2]", "[18446744073709551615,2]"),
            ("F32", "F4"),
            ("}}", "}"),
        ] {
            assert!(read(&good.replace(part, lie)).is_err(), "{lie}");
        }
        assert!(read_head(&mut &[0xff; 8][..]).is_err());
        assert!(read_head(&mut &[64, 0, 0, 0, 0, 0, 0, 0, b'{'][..]).is_err());
    }
}
