//! The description of tensors that a peer wrote: judged whatever it is, and written again as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipring::tensor::Descriptor;

fuzz_target!(|bytes: &[u8]| {
    let mut left = bytes;
    while let Ok((descriptor, rest)) = Descriptor::decode(left) {
        let again = descriptor.encode().unwrap();
        assert_eq!(Descriptor::decode(&again).unwrap(), (descriptor, &[][..]));
        assert!(rest.len() < left.len(), "it ends");
        left = rest;
    }
});
