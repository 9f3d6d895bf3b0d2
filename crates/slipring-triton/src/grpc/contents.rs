//! Typed contents: a tensor as numbers and texts of protobuf, made into its bytes.

use bytes::Bytes;

use crate::grpc::generated::inference::InferTensorContents;
use crate::refusal::Refusal;
use slipring::DType;

/// How many numbers there are, and bytes of texts.
pub(super) fn work(contents: &InferTensorContents) -> usize {
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

/// The bytes of an input: little-endian, BYTES elements behind their lengths.
pub(super) fn bytes(
    input: &str,
    datatype: &str,
    contents: &InferTensorContents,
) -> Result<Bytes, Refusal> {
    let Ok(dtype) = datatype.parse::<DType>() else {
        // It is no model's, and is refused for that.
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
        DType::Bool => made(bools, |value| Some([u8::from(*value)])),
        DType::Int8 => made(ints, |value| Some(i8::try_from(*value).ok()?.to_le_bytes())),
        DType::Int16 => made(ints, |value| Some(i16::try_from(*value).ok()?.to_le_bytes())),
        DType::Int32 => made(ints, |value| Some(value.to_le_bytes())),
        DType::Int64 => made(longs, |value| Some(value.to_le_bytes())),
        DType::Uint8 => made(uints, |value| Some(u8::try_from(*value).ok()?.to_le_bytes())),
        DType::Uint16 => made(uints, |value| Some(u16::try_from(*value).ok()?.to_le_bytes())),
        DType::Uint32 => made(uints, |value| Some(value.to_le_bytes())),
        DType::Uint64 => made(ulongs, |value| Some(value.to_le_bytes())),
        DType::Fp32 => made(floats, |value| Some(value.to_le_bytes())),
        DType::Fp64 => made(doubles, |value| Some(value.to_le_bytes())),
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
        Made::Bytes(bytes) => Ok(Bytes::from(bytes)),
        Made::OutOfRange => Err(Refusal::contents_range(input, datatype)),
        Made::NoRoom(len) => Err(Refusal::no_memory(len)),
    }
}

/// What became of elements.
enum Made {
    Bytes(Vec<u8>),
    /// One of them does not fit into the data type.
    OutOfRange,
    /// For so many bytes.
    NoRoom(usize),
}

/// How many elements there are, and their bytes.
fn made<T, const N: usize>(elements: &[T], of: impl Fn(&T) -> Option<[u8; N]>) -> (usize, Made) {
    let made = filled(elements.len() * N, |room| {
        elements.iter().all(|element| match of(element) {
            Some(bytes) => {
                room.extend_from_slice(&bytes);
                true
            }
            None => false,
        })
    });
    (elements.len(), made)
}

fn framed(strings: &[Vec<u8>]) -> Made {
    let len = strings.iter().map(|string| 4 + string.len()).sum();
    filled(len, |room| {
        strings.iter().all(|string| {
            let Ok(len) = u32::try_from(string.len()) else { return false };
            room.extend_from_slice(&len.to_le_bytes());
            room.extend_from_slice(string);
            true
        })
    })
}

fn filled(len: usize, fill: impl FnOnce(&mut Vec<u8>) -> bool) -> Made {
    let mut room = Vec::new();
    if room.try_reserve_exact(len).is_err() {
        return Made::NoRoom(len);
    }
    if fill(&mut room) { Made::Bytes(room) } else { Made::OutOfRange }
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
