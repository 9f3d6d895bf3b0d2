//! Unit tests of `tensor::descriptor`.

use super::*;
use proptest::prelude::*;

fn encoded(descriptor: &Descriptor<'_>) -> Vec<u8> {
    let mut bytes = vec![0xEE; descriptor.encoded_len()];
    assert!(descriptor.encode_to(&mut bytes).unwrap().is_empty(), "the length is exact");
    bytes
}

fn image() -> Descriptor<'static> {
    let shape = Shape::from([1, 3, 224, 224]);
    Descriptor { name: "", dtype: DType::Fp32, shape, place: Location::Attached }
}

#[test]
fn an_image_and_its_attachment_share_a_line_with_their_header() {
    assert_eq!(encoded(&image()), {
        let mut bytes = vec![11, 4, 0, 0];
        [1u32, 3, 224, 224].iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes
    });
    assert!(8 + 32 + image().encoded_len() <= 64);
}

#[test]
fn every_cut_says_how_much_was_needed() {
    let place = Location::Region { name: "frames", offset: 4096, len: 602112 };
    let whole = encoded(&Descriptor { name: "input", place, ..image() });
    for len in 0..whole.len() {
        match Descriptor::decode_at(&whole[..len], 3) {
            Err(TensorFault::Description { len: said, index: 3, needed }) => {
                assert!(said == len && needed > len);
            }
            other => panic!("{len} bytes: {other:?}"),
        }
    }
}

#[test]
fn a_lying_descriptor_is_a_fault() {
    let whole = encoded(&Descriptor { name: "a", ..image() });
    let lie = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        Descriptor::decode_at(&bytes, 0).unwrap_err()
    };
    assert_eq!(lie(0, 0), TensorFault::DataTypeCode { code: 0 });
    assert_eq!(lie(0, 17), TensorFault::DataTypeCode { code: 17 });
    assert_eq!(lie(1, 9), TensorFault::Rank { rank: 9, max: 8 });
    // A part lies on a GPU.
    for flags in [8, 10, 12, 16, 128, 255] {
        assert!(matches!(lie(2, flags), TensorFault::Field { field: "tensor.flags", .. }));
    }
    assert_eq!(lie(20, 0xFF), TensorFault::NameUtf8);
    let (wrapping, _) = Descriptor::decode_at(&whole, 0).unwrap();
    assert_eq!(
        wrapping.check_len(1),
        Err(TensorFault::Len { len: 1, expected: 4 * 3 * 224 * 224 })
    );
}

proptest! {
    #[test]
    fn a_descriptor_survives_its_bytes(
        code in 1u8..15,
        dims in proptest::collection::vec(
            prop_oneof![0usize..1000, any::<usize>()], 0..=MAX_RANK),
        name in "\\PC{0,40}",
        inline in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..100)),
        region in proptest::option::of(("[a-z_]{0,20}", any::<u64>(), any::<u64>())),
        gpu in proptest::option::of((any::<[u8; 32]>(), proptest::option::of(any::<u32>()))),
        rest in proptest::collection::vec(any::<u8>(), 0..8),
    ) {
        let on_gpu = gpu.map(|(bytes, _)| {
            std::array::from_fn::<u8, { GpuPlace::LEN }, _>(|at| bytes[at % 32])
        });
        let place = match (&inline, &region, &on_gpu) {
            (Some(bytes), ..) => Location::Inline(bytes),
            (None, Some((name, offset, len)), _) => {
                Location::Region { name, offset: *offset, len: *len }
            }
            (None, None, Some(place)) => match &gpu {
                Some((part, Some(of))) => Location::GpuPart { of: *of, part },
                _ => Location::Gpu(place),
            },
            (None, None, None) => Location::Attached,
        };
        let (dtype, shape) = (DType::from_code(code).unwrap(), Shape::of(&dims).unwrap());
        let descriptor = Descriptor { name: &name, dtype, shape, place };
        let mut bytes = encoded(&descriptor);
        bytes.extend(&rest);
        prop_assert_eq!(Descriptor::decode_at(&bytes, 0), Ok((descriptor, &rest[..])));
    }

    #[test]
    fn a_short_description_means_the_same_in_words(
        code in 0u8..20,
        flags in proptest::option::of(any::<u8>()),
        dims in proptest::collection::vec(
            prop_oneof![Just(0u32), 1..9u32, Just(1 << 16), any::<u32>()], 0..8),
        more in prop_oneof![3 => Just(0usize), 1 => 0..9usize],
        bytes in proptest::option::of(prop_oneof![Just(0u64), any::<u64>()]),
        garbage in any::<u64>(),
    ) {
        let mut encoded = vec![code, dims.len() as u8, flags.unwrap_or(0), 0];
        dims.iter().for_each(|dim| encoded.extend(dim.to_le_bytes()));
        let len = (encoded.len() + more).min(32);
        encoded.resize(40, garbage as u8);
        let words = core::array::from_fn(|at| {
            u64::from_ne_bytes(encoded[8 * at..][..8].try_into().unwrap())
        });
        let shape = Shape::of(&dims.iter().map(|dim| *dim as usize).collect::<Vec<_>>()).unwrap();
        let right = DType::from_code(code).and_then(|dtype| shape.len(dtype));
        let bytes = bytes.unwrap_or(right.ok().flatten().unwrap_or(7) as u64);
        let found = of_words(words, len, bytes);
        let whole = Descriptor::decode(&encoded[..len]).ok();
        let whole = whole.filter(|(tensor, rest)| {
            rest.is_empty()
                && matches!(tensor.place, Location::Attached)
                && tensor.check_len(bytes as usize).is_ok()
        });
        let whole = whole.filter(|_| encoded[2] == 0);
        prop_assert_eq!(found, whole.map(|(tensor, _)| (tensor.dtype, tensor.shape)));
        if let Some((dtype, shape)) = found {
            let (back, len) = to_words(dtype, &shape).unwrap();
            prop_assert_eq!(of_words(back, len, bytes), Some((dtype, shape)));
        }
    }

    #[test]
    fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut left = &bytes[..];
        let mut index = 0;
        while let Ok((descriptor, rest)) = Descriptor::decode_at(left, index) {
            let _ = descriptor.check_len(bytes.len());
            prop_assert!(rest.len() < left.len());
            left = rest;
            index += 1;
        }
    }
}
