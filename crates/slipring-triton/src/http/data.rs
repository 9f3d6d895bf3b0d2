//! Converts tensors to JSON and back.

use std::fmt::{self, Write};
use std::io;

use bytes::Bytes;
use serde_core::{Serialize, Serializer};
use slipring::{DType, Shape};

use crate::json::{self, Node};
use crate::refusal::Refusal;
use crate::request::ResponseOutput;

/// Returns the bytes of a tensor written as JSON, nested or flat.
///
/// The elements are counted before memory is reserved for them.
pub(super) fn read(dtype: DType, shape: &Shape, data: Node<'_>) -> Result<Bytes, Refusal> {
    let elements = || data.leaves();
    // No text holds as many elements as an overflowing count.
    let count = shape.elements().unwrap_or(usize::MAX);
    if !data.is_array() || elements().take(count.saturating_add(1)).count() != count {
        return Err(Refusal::data_count());
    }
    if dtype == DType::Bytes {
        let strings =
            elements().map(|leaf| leaf.string().ok_or_else(|| Refusal::json_type("string")));
        let len: usize =
            strings.clone().map(|string| string.map_or(0, |string| 4 + string.len())).sum();
        let mut bytes = empty(len)?;
        for string in strings {
            let string = string?;
            // The JSON limit keeps a text below 4 GiB.
            bytes.extend_from_slice(&(string.len() as u32).to_le_bytes());
            bytes.extend_from_slice(string.as_bytes());
        }
        return Ok(bytes.into());
    }
    let mut bytes = empty(count.saturating_mul(dtype.size().unwrap_or(1)))?;
    for leaf in elements() {
        element(dtype, leaf, &mut bytes)?;
    }
    Ok(bytes.into())
}

/// Returns an empty list with room for `len` bytes, a length that follows from the client's text.
fn empty(len: usize) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Refusal::no_memory(len))?;
    Ok(bytes)
}

fn element(dtype: DType, leaf: Node<'_>, to: &mut Vec<u8>) -> Result<(), Refusal> {
    let signed = || leaf.integer().ok_or_else(|| number(leaf, "signed-integer", dtype));
    let unsigned = || leaf.unsigned().ok_or_else(|| number(leaf, "unsigned-integer", dtype));
    let float = || leaf.float().ok_or_else(|| Refusal::json_type("number"));
    // Only the words for infinity may yield an infinite value.
    let fits = |is_finite: bool| match is_finite || leaf.is_word() {
        true => Ok(()),
        false => Err(Refusal::data_range(dtype.name())),
    };
    let range = |_| Refusal::data_range(dtype.name());
    match dtype {
        DType::Bool => {
            let value = leaf.boolean().ok_or_else(|| Refusal::json_type("boolean"))?;
            to.push(value.into());
        }
        DType::Uint8 => to.push(u8::try_from(unsigned()?).map_err(range)?),
        DType::Uint16 => to.extend(u16::try_from(unsigned()?).map_err(range)?.to_le_bytes()),
        DType::Uint32 => to.extend(u32::try_from(unsigned()?).map_err(range)?.to_le_bytes()),
        DType::Uint64 => to.extend(unsigned()?.to_le_bytes()),
        DType::Int8 => to.extend(i8::try_from(signed()?).map_err(range)?.to_le_bytes()),
        DType::Int16 => to.extend(i16::try_from(signed()?).map_err(range)?.to_le_bytes()),
        DType::Int32 => to.extend(i32::try_from(signed()?).map_err(range)?.to_le_bytes()),
        DType::Int64 => to.extend(signed()?.to_le_bytes()),
        DType::Fp32 => {
            let value = float()? as f32;
            fits(value.is_finite())?;
            to.extend(value.to_le_bytes());
        }
        DType::Fp64 => {
            let value = float()?;
            fits(value.is_finite())?;
            to.extend(value.to_le_bytes());
        }
        // The caller has refused these types with the tensor's name.
        _ => {}
    }
    Ok(())
}

/// Returns the reason why a leaf is not the wanted integer.
fn number(leaf: Node<'_>, wanted: &str, dtype: DType) -> Refusal {
    match (leaf.integer(), leaf.unsigned()) {
        (None, None) => Refusal::json_type(wanted),
        _ => Refusal::data_range(dtype.name()),
    }
}

/// Appends an output's elements as a flat array.
pub(super) fn write(
    output: &ResponseOutput,
    bytes: &[u8],
    to: &mut impl io::Write,
) -> io::Result<()> {
    to.write_all(b"[")?;
    match output.dtype {
        DType::Bytes => strings(bytes, to)?,
        DType::Bool => {
            list(bytes.as_chunks::<1>().0, to, |to, [byte]| json::value(to, &(byte != 0)))?
        }
        DType::Uint8 => integers(bytes.as_chunks().0, to, u8::from_le_bytes)?,
        DType::Uint16 => integers(bytes.as_chunks().0, to, u16::from_le_bytes)?,
        DType::Uint32 => integers(bytes.as_chunks().0, to, u32::from_le_bytes)?,
        DType::Uint64 => integers(bytes.as_chunks().0, to, u64::from_le_bytes)?,
        DType::Int8 => integers(bytes.as_chunks().0, to, i8::from_le_bytes)?,
        DType::Int16 => integers(bytes.as_chunks().0, to, i16::from_le_bytes)?,
        DType::Int32 => integers(bytes.as_chunks().0, to, i32::from_le_bytes)?,
        DType::Int64 => integers(bytes.as_chunks().0, to, i64::from_le_bytes)?,
        DType::Fp32 => list(bytes.as_chunks().0, to, |to, element| {
            json::float(to, f32::from_le_bytes(element))
        })?,
        DType::Fp64 => list(bytes.as_chunks().0, to, |to, element| {
            json::float(to, f64::from_le_bytes(element))
        })?,
        // The protocol has no JSON for FP16 and BF16.
        other => {
            let refusal = Refusal::json_output(other.name(), &output.name);
            return Err(io::Error::other(refusal));
        }
    }
    to.write_all(b"]")
}

fn list<const N: usize, W: io::Write>(
    elements: &[[u8; N]],
    to: &mut W,
    write: impl Fn(&mut W, [u8; N]) -> io::Result<()>,
) -> io::Result<()> {
    for (at, element) in elements.iter().enumerate() {
        if at > 0 {
            to.write_all(b",")?;
        }
        write(to, *element)?;
    }
    Ok(())
}

fn integers<const N: usize, T: Serialize>(
    elements: &[[u8; N]],
    to: &mut impl io::Write,
    of: impl Fn([u8; N]) -> T,
) -> io::Result<()> {
    list(elements, to, |to, element| json::value(to, &of(element)))
}

/// Bytes displayed as text. Invalid UTF-8 becomes the replacement character.
struct LossyText<'a>(&'a [u8]);

impl fmt::Display for LossyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| {
            f.write_str(chunk.valid())?;
            let is_text = chunk.invalid().is_empty();
            if is_text { Ok(()) } else { f.write_char(char::REPLACEMENT_CHARACTER) }
        })
    }
}

impl Serialize for LossyText<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

fn strings(bytes: &[u8], to: &mut impl io::Write) -> io::Result<()> {
    let mut rest = bytes;
    let mut first = true;
    while let Some((len, behind)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) as usize;
        let (element, behind) = behind.split_at(len.min(behind.len()));
        if !first {
            to.write_all(b",")?;
        }
        json::value(&mut *to, &LossyText(element))?;
        (rest, first) = (behind, false);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::budget::Budget;
    use crate::http::buffer::{BoundedBuffer, BufferLimit, refusal};

    fn read_as(dtype: DType, dims: &[usize], text: &str) -> Result<Vec<u8>, String> {
        let node = Node::document(text.as_bytes()).unwrap();
        let read = read(dtype, &Shape::new(dims).unwrap(), node);
        read.map(|bytes| bytes.to_vec()).map_err(|refusal| refusal.text().to_owned())
    }

    fn round(dtype: DType, dims: &[usize], text: &str) -> String {
        let bytes = read_as(dtype, dims, text).unwrap();
        let output = ResponseOutput {
            name: "O".to_owned(),
            dtype,
            shape: Shape::new(dims).unwrap(),
            data: None,
        };
        let mut out = Vec::new();
        write(&output, &bytes, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn nested_and_flat_mean_the_same() {
        for text in ["[[1,2],[3,-4]]", "[1,2,3,-4]", "[[[1],[2,3]],-4]"] {
            assert_eq!(round(DType::Int16, &[2, 2], text), "[1,2,3,-4]");
        }
    }

    #[test]
    fn each_type_keeps_its_extremes() {
        for (dtype, text) in [
            (DType::Bool, "[true,false]"),
            (DType::Uint8, "[0,255]"),
            (DType::Uint64, "[0,18446744073709551615]"),
            (DType::Int8, "[-128,127]"),
            (DType::Int64, "[-9223372036854775808,9223372036854775807]"),
            (DType::Fp32, "[0.1,-3.4028235e+38]"),
            (DType::Fp64, "[0.1,5e-324]"),
            (DType::Fp64, "[NaN,-Infinity]"),
            (DType::Bytes, "[\"\",\"ä\\\"\"]"),
        ] {
            assert_eq!(round(dtype, &[2], text), text);
        }
        assert_eq!(round(DType::Fp32, &[2], "[7,-1]"), "[7.0,-1.0]");
    }

    #[test]
    fn texts_that_are_none_show_where_they_are_none() {
        let mut out = Vec::new();
        json::value(&mut out, &LossyText(b"a\xff\xc3\"\xe4\xb8\xadz\xe4")).unwrap();
        assert_eq!(str::from_utf8(&out).unwrap(), "\"a\u{fffd}\u{fffd}\\\"\u{4e2d}z\u{fffd}\"");
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_there() {
        let most = 100_000;
        for (dtype, bytes) in [
            (DType::Uint8, vec![200; 40_000]),
            (DType::Bytes, [&40_000u32.to_le_bytes()[..], &[1; 40_000]].concat()),
            (DType::Bytes, [&40_000u32.to_le_bytes()[..], &[0xff; 40_000]].concat()),
            (DType::Bytes, vec![0; 160_000]),
        ] {
            let (name, shape) = ("O".to_owned(), Shape::new(&[1]).unwrap());
            let output = ResponseOutput { name, dtype, shape, data: None };
            let refused = |charge: u64, most: u64| {
                let charge = Arc::new(Budget::new(charge)).charge();
                let mut buffer = BoundedBuffer::new(BufferLimit { charge, most });
                refusal(write(&output, &bytes, &mut buffer).unwrap_err()).text().to_owned()
            };
            assert_eq!(refused(u64::MAX, most), "response of more than 100000 bytes");
            assert_eq!(refused(most, u64::MAX), Refusal::too_many_bytes().text());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (dtype, text) in [
            (DType::Uint8, "[256]"),
            (DType::Uint8, "[-1]"),
            (DType::Int8, "[128]"),
            (DType::Int64, "[9223372036854775808]"),
            (DType::Fp32, "[1e39]"),
            (DType::Fp32, "[-1e999]"),
            (DType::Fp64, "[1e999]"),
        ] {
            let text = read_as(dtype, &[1], text).unwrap_err();
            assert_eq!(text, format!("a number is out of the range of {dtype}"));
        }
        let text = read_as(DType::Int32, &[1], "[1.0]").unwrap_err();
        assert_eq!(text, "attempt to access JSON non-signed-integer as signed-integer");
        assert!(read_as(DType::Bool, &[1], "[1]").is_err());
        assert!(read_as(DType::Bytes, &[1], "[1]").is_err());
        assert!(read_as(DType::Fp32, &[1], "[\"1\"]").is_err());
        assert!(read_as(DType::Fp32, &[1], "[null]").is_err());
        for (dims, text) in
            [(&[2, 2][..], "[1,2,3]"), (&[2], "[1,2,3]"), (&[1], "1"), (&[0], "[1]")]
        {
            assert_eq!(
                read_as(DType::Int32, dims, text).unwrap_err(),
                "Shape does not match true shape of 'data' field"
            );
        }
        // The count is refused before memory is reserved.
        let dims = [1 << 30, 1 << 30];
        assert!(read_as(DType::Int32, &dims, "[1]").is_err());
        assert!(read_as(DType::Int32, &[usize::MAX, 3], "[1]").is_err());
    }
}
