//! What fuzz targets reach of the inside.

use crate::tensor::descriptor::Descriptor;

/// Takes a description apart, and what could be taken together again: it must be the same.
pub fn description(bytes: &[u8]) {
    let (mut left, mut index) = (bytes, 0);
    while let Ok((descriptor, rest)) = Descriptor::decode(left, index) {
        let _ = descriptor.judge_len(bytes.len());
        let mut again = vec![0; descriptor.encoded_len()];
        assert!(descriptor.encode(&mut again).is_ok_and(|rest| rest.is_empty()));
        assert_eq!(Descriptor::decode(&again, index).map(|(same, _)| same), Ok(descriptor));
        assert!(rest.len() < left.len(), "it ends");
        (left, index) = (rest, index + 1);
    }
}
