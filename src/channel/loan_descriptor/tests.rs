//! Unit tests of `channel::loan_descriptor`.

use super::*;

#[test]
fn a_descriptor_survives_its_bytes() {
    let pooled =
        LoanDescriptor { segment: 7, slot: 255, offset: 1 << 40, len: 3, generation: u64::MAX };
    assert_eq!(LoanDescriptor::decode(&pooled.encode()), pooled);
}
