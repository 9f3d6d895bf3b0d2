//! The classification extension: the highest elements of an output as texts `value:index[:label]`.

use slipring::{DType, Shape};
use zerocopy::FromBytes;

use crate::budget::Charge;
use crate::metadata::TensorSpec;
use crate::refusal::Refusal;

/// The most elements of one batch item, as in the reference server. A sort of as many takes some 10 ms.
const MAX_ELEMENTS: usize = 1_000_000;

/// Refuses an output whose data type has no classification.
pub(crate) fn check(dtype: DType) -> Result<(), Refusal> {
    match dtype {
        DType::Bool | DType::Fp16 | DType::Bf16 | DType::Bytes => {
            Err(Refusal::classification_type(dtype.name()))
        }
        _ => Ok(()),
    }
}

/// What a client asks for, and what the texts may take.
#[derive(Debug)]
pub(crate) struct Classification<'a> {
    /// The most classes of each batch item.
    pub(crate) count: usize,
    /// Whether the first dimension is the batch.
    pub(crate) has_batch: bool,
    pub(crate) charge: &'a Charge,
    /// Bytes that may still go into the response, and the limit.
    pub(crate) left: &'a mut u64,
    pub(crate) most: u64,
}

impl Classification<'_> {
    /// Returns the shape and the bytes of the BYTES tensor that replaces an output with these row-major bytes. Its
    /// shape is `[batch, classes]`, or `[classes]` without a batch.
    pub(crate) fn of(
        self,
        spec: &TensorSpec,
        shape: &Shape,
        bytes: &[u8],
    ) -> Result<(Shape, Vec<u8>), Refusal> {
        check(spec.dtype)?;
        let items = match shape.dims() {
            [batch, ..] if self.has_batch && *batch > 0 => Some(*batch),
            _ => None,
        };
        let size = spec.dtype.size().unwrap_or(1);
        let elements = bytes.len() / size / items.unwrap_or(1);
        if elements > MAX_ELEMENTS {
            return Err(Refusal::classification_elements());
        }
        let classes = self.count.min(elements);
        let dims: Vec<usize> = items.into_iter().chain([classes]).collect();
        let shape =
            Shape::try_from(&dims[..]).map_err(|_| Refusal::response_too_long(self.most))?;
        // The indices of one item.
        let indices = 4 * elements as u64;
        self.charge.add(indices)?;
        let charge = self.charge;
        let written = match spec.dtype {
            DType::Uint8 => self.write::<u8>(spec, elements, bytes, u8::to_string),
            DType::Uint16 => self.write::<u16>(spec, elements, bytes, u16::to_string),
            DType::Uint32 => self.write::<u32>(spec, elements, bytes, u32::to_string),
            DType::Uint64 => self.write::<u64>(spec, elements, bytes, u64::to_string),
            DType::Int8 => self.write::<i8>(spec, elements, bytes, i8::to_string),
            DType::Int16 => self.write::<i16>(spec, elements, bytes, i16::to_string),
            DType::Int32 => self.write::<i32>(spec, elements, bytes, i32::to_string),
            DType::Int64 => self.write::<i64>(spec, elements, bytes, i64::to_string),
            DType::Fp32 => {
                self.write::<f32>(spec, elements, bytes, |value| decimal((*value).into()))
            }
            DType::Fp64 => self.write::<f64>(spec, elements, bytes, |value| decimal(*value)),
            other => Err(Refusal::classification_type(other.name())),
        };
        charge.release(indices);
        Ok((shape, written?))
    }

    /// Returns the texts of all batch items, each behind its length. `bytes` are items of `elements` elements.
    fn write<T: FromBytes + PartialOrd>(
        self,
        spec: &TensorSpec,
        elements: usize,
        bytes: &[u8],
        text_of: impl Fn(&T) -> String,
    ) -> Result<Vec<u8>, Refusal> {
        let mut texts = Vec::new();
        if elements == 0 {
            return Ok(texts);
        }
        for item in bytes.chunks_exact(elements * size_of::<T>()) {
            for index in highest::<T>(item, self.count) {
                let mut text = format!("{}:{index}", text_of(&element(item, index)));
                if let Some(label) = spec.labels.get(index).filter(|label| !label.is_empty()) {
                    text.push(':');
                    text.push_str(label);
                }
                let too_long = || Refusal::response_too_long(self.most);
                let len = u32::try_from(text.len()).map_err(|_| too_long())?;
                let more = 4 + u64::from(len);
                *self.left = self.left.checked_sub(more).ok_or_else(too_long)?;
                self.charge.add(more)?;
                texts.extend_from_slice(&len.to_le_bytes());
                texts.extend_from_slice(text.as_bytes());
            }
        }
        Ok(texts)
    }
}

/// Returns an element of a tensor in row-major, little-endian bytes.
fn element<T: FromBytes>(bytes: &[u8], index: usize) -> T {
    let (value, _) = T::read_from_prefix(&bytes[index * size_of::<T>()..])
        .unwrap_or_else(|_| unreachable!("the index is one of the elements"));
    value
}

/// Returns the indices of the highest elements, the highest first. Of equal ones the first comes first, and NaN comes
/// last.
fn highest<T: FromBytes + PartialOrd>(bytes: &[u8], count: usize) -> Vec<usize> {
    let elements = bytes.len() / size_of::<T>();
    let is_nan = |value: &T| value.partial_cmp(value).is_none();
    let order = |a: &u32, b: &u32| {
        let (first, second): (T, T) = (element(bytes, *a as usize), element(bytes, *b as usize));
        let by_value = second.partial_cmp(&first);
        by_value.unwrap_or_else(|| is_nan(&first).cmp(&is_nan(&second))).then(a.cmp(b))
    };
    let mut indices: Vec<u32> = (0..elements as u32).collect();
    if 0 < count && count < elements {
        indices.select_nth_unstable_by(count - 1, order);
    }
    indices.truncate(count);
    indices.sort_unstable_by(order);
    indices.into_iter().map(|index| index as usize).collect()
}

/// Returns a number as C's `%f` prints it.
fn decimal(value: f64) -> String {
    match (value.is_nan(), value.is_sign_negative()) {
        (true, true) => "-nan".to_owned(),
        (true, false) => "nan".to_owned(),
        (false, _) => format!("{value:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zerocopy::IntoBytes;

    use super::*;
    use crate::budget::Budget;
    use crate::strings::Strings;

    const MOST: u64 = 1 << 20;

    fn classify(
        spec: &TensorSpec,
        dims: &[usize],
        (count, has_batch, mut left): (usize, bool, u64),
        bytes: &[u8],
    ) -> Result<(Vec<usize>, Vec<String>), Refusal> {
        let charge = Arc::new(Budget::new(64 << 20)).charge();
        let (charge, left) = (&charge, &mut left);
        let asked = Classification { count, has_batch, charge, left, most: MOST };
        let (shape, texts) = asked.of(spec, &Shape::try_from(dims).unwrap(), bytes)?;
        let strings = Strings::new("", texts.into(), shape.elements().unwrap())?;
        let texts = strings.iter().map(|text| String::from_utf8(text.to_vec()).unwrap());
        Ok((shape.dims().to_vec(), texts.collect()))
    }

    fn spec(dtype: DType) -> TensorSpec {
        TensorSpec::new("O", dtype, [None])
    }

    #[test]
    fn the_highest_elements_come_first_with_their_labels() {
        let values = [1.0f32, 5.0, -10.5, 4.0];
        let labels = spec(DType::Fp32).labels(["one", "five", "ten"]);
        let found = classify(&labels, &[4], (3, false, MOST), values.as_bytes()).unwrap();
        let texts = ["5.000000:1:five", "4.000000:3", "1.000000:0:one"];
        assert_eq!(found, (vec![3], texts.map(str::to_owned).to_vec()));
        let unlabelled = spec(DType::Fp32).labels(["", ""]);
        let found = classify(&unlabelled, &[4], (1, false, MOST), values.as_bytes()).unwrap();
        assert_eq!(found.1, ["5.000000:1"]);
    }

    #[test]
    fn each_batch_item_has_classes_of_its_own_and_never_more_than_elements() {
        let values = [1i32, 2, 3, 30, 20, 10];
        let ask = (9, true, MOST);
        let (shape, texts) =
            classify(&spec(DType::Int32), &[2, 3], ask, values.as_bytes()).unwrap();
        assert_eq!((shape, texts[0].as_str(), texts[3].as_str()), (vec![2, 3], "3:2", "30:0"));
        let empty = classify(&spec(DType::Int32), &[0, 3], ask, &[]).unwrap();
        assert_eq!(empty, (vec![0], vec![]));
        let empty = classify(&spec(DType::Int32), &[2, 0], ask, &[]).unwrap();
        assert_eq!(empty, (vec![2, 0], vec![]));
    }

    #[test]
    fn values_compare_in_their_own_type() {
        let large = [u64::MAX - 1, u64::MAX, 0];
        let ask = (2, false, MOST);
        let found = classify(&spec(DType::Uint64), &[3], ask, large.as_bytes()).unwrap().1;
        assert_eq!(found, [format!("{}:1", u64::MAX), format!("{}:0", u64::MAX - 1)]);
        let odd = [f64::NAN, f64::NEG_INFINITY, 0.0, -0.0, f64::INFINITY, 1e-7];
        let ask = (6, false, MOST);
        let found = classify(&spec(DType::Fp64), &[6], ask, odd.as_bytes()).unwrap().1;
        let texts = ["inf:4", "0.000000:5", "0.000000:2", "-0.000000:3", "-inf:1", "nan:0"];
        assert_eq!(found, texts);
    }

    #[test]
    fn texts_beyond_the_limit_of_a_response_are_refused() {
        let values = [7u8; 4];
        let texts_len = 4 * (4 + 3);
        let ask = |left| classify(&spec(DType::Uint8), &[4], (4, false, left), &values);
        assert!(ask(texts_len).is_ok());
        assert_eq!(ask(texts_len - 1), Err(Refusal::response_too_long(MOST)));
        let many = vec![0; MAX_ELEMENTS + 1];
        let shape = [many.len()];
        let found = classify(&spec(DType::Uint8), &shape, (1, false, MOST), &many);
        assert_eq!(found, Err(Refusal::classification_elements()));
        assert!(
            classify(&spec(DType::Uint8), &[many.len() - 1], (1, false, MOST), &many[1..]).is_ok()
        );
    }
}
