//! Converts typed contents, which are protobuf numbers and strings, to the bytes of a tensor.

use bytes::Bytes;
use slipring::DType;

use crate::grpc::generated::inference::InferTensorContents;
use crate::refusal::Refusal;

/// Returns the number of elements, plus the bytes of strings.
pub(super) fn conversion_len(contents: &InferTensorContents) -> usize {
    let texts = contents.bytes_contents.iter().map(|text| 4 + text.len()).sum::<usize>();
    let numbers = [
        contents.bool_contents.len(),
        contents.int_contents.len(),
        contents.int64_contents.len(),
        contents.uint_contents.len(),
        contents.uint64_contents.len(),
        contents.fp32_contents.len(),
        contents.fp64_contents.len(),
    ];
    texts + numbers.iter().sum::<usize>()
}

/// Returns the bytes of an input, little-endian; BYTES elements with their length prefixes.
pub(super) fn bytes(
    input: &str,
    datatype: &str,
    contents: &InferTensorContents,
) -> Result<Bytes, Refusal> {
    let Ok(dtype) = datatype.parse::<DType>() else {
        // Validation refuses a type that no model has.
        return Ok(Bytes::new());
    };
    let InferTensorContents {
        bool_contents: bools,
        int_contents: ints,
        int64_contents: longs,
        uint_contents: uints,
        uint64_contents: ulongs,
        fp32_contents: floats,
        fp64_contents: doubles,
        bytes_contents: strings,
    } = contents;
    let (count, made) = match dtype {
        DType::Bool => convert(bools, |value| Some([u8::from(*value)])),
        DType::Int8 => convert(ints, |value| Some(i8::try_from(*value).ok()?.to_le_bytes())),
        DType::Int16 => convert(ints, |value| Some(i16::try_from(*value).ok()?.to_le_bytes())),
        DType::Int32 => convert(ints, |value| Some(value.to_le_bytes())),
        DType::Int64 => convert(longs, |value| Some(value.to_le_bytes())),
        DType::Uint8 => convert(uints, |value| Some(u8::try_from(*value).ok()?.to_le_bytes())),
        DType::Uint16 => convert(uints, |value| Some(u16::try_from(*value).ok()?.to_le_bytes())),
        DType::Uint32 => convert(uints, |value| Some(value.to_le_bytes())),
        DType::Uint64 => convert(ulongs, |value| Some(value.to_le_bytes())),
        DType::Fp32 => convert(floats, |value| Some(value.to_le_bytes())),
        DType::Fp64 => convert(doubles, |value| Some(value.to_le_bytes())),
        DType::Bytes => (strings.len(), framed(strings)),
        _ => return Err(Refusal::contents_unknown(input, datatype)),
    };
    let all = [
        bools.len(),
        ints.len(),
        longs.len(),
        uints.len(),
        ulongs.len(),
        floats.len(),
        doubles.len(),
        strings.len(),
    ];
    if all.iter().sum::<usize>() != count {
        return Err(Refusal::contents_type(input, datatype));
    }
    match made {
        Converted::Bytes(bytes) => Ok(Bytes::from(bytes)),
        Converted::OutOfRange => Err(Refusal::contents_range(input, datatype)),
        Converted::NoMemory(len) => Err(Refusal::no_memory(len)),
    }
}

/// The result of a conversion.
enum Converted {
    Bytes(Vec<u8>),
    /// An element does not fit the data type.
    OutOfRange,
    /// There is no memory for this many bytes.
    NoMemory(usize),
}

/// Returns the number of elements, and their bytes.
fn convert<T, const N: usize>(
    elements: &[T],
    of: impl Fn(&T) -> Option<[u8; N]>,
) -> (usize, Converted) {
    let made = filled(elements.len() * N, |buffer| {
        elements.iter().all(|element| match of(element) {
            Some(bytes) => {
                buffer.extend_from_slice(&bytes);
                true
            }
            None => false,
        })
    });
    (elements.len(), made)
}

fn framed(strings: &[Vec<u8>]) -> Converted {
    let len = strings.iter().map(|string| 4 + string.len()).sum();
    filled(len, |buffer| {
        strings.iter().all(|string| {
            let Ok(len) = u32::try_from(string.len()) else { return false };
            buffer.extend_from_slice(&len.to_le_bytes());
            buffer.extend_from_slice(string);
            true
        })
    })
}

fn filled(len: usize, fill: impl FnOnce(&mut Vec<u8>) -> bool) -> Converted {
    let mut buffer = Vec::new();
    if buffer.try_reserve_exact(len).is_err() {
        return Converted::NoMemory(len);
    }
    if fill(&mut buffer) { Converted::Bytes(buffer) } else { Converted::OutOfRange }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(values: &[i32]) -> InferTensorContents {
        InferTensorContents { int_contents: values.to_vec(), ..Default::default() }
    }

    #[test]
    fn numbers_become_little_endian_bytes_of_their_width() {
        assert_eq!(*bytes("i", "INT8", &ints(&[1, -1])).unwrap(), [1, 255]);
        assert_eq!(*bytes("i", "INT16", &ints(&[1, -2])).unwrap(), [1, 0, 254, 255]);
        assert_eq!(*bytes("i", "INT32", &ints(&[258])).unwrap(), [2, 1, 0, 0]);
    }

    #[test]
    fn texts_stand_behind_their_lengths() {
        let strings = vec![b"ab".to_vec(), Vec::new()];
        let contents = InferTensorContents { bytes_contents: strings, ..Default::default() };
        assert_eq!(*bytes("i", "BYTES", &contents).unwrap(), *b"\x02\0\0\0ab\0\0\0\0");
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_and_never_cut() {
        for (datatype, value) in [("INT8", 128), ("INT8", -129), ("INT16", 1 << 15)] {
            let refusal = bytes("i", datatype, &ints(&[0, value])).unwrap_err();
            assert!(refusal.text().contains("do not fit"), "{refusal}");
        }
    }

    #[test]
    fn contents_of_another_type_or_of_two_are_refused() {
        assert!(bytes("i", "FP32", &ints(&[1])).is_err());
        let two = InferTensorContents { fp32_contents: vec![1.0], ..ints(&[1]) };
        assert!(bytes("i", "INT32", &two).is_err());
        assert!(bytes("i", "FP16", &ints(&[])).is_err());
    }
}
