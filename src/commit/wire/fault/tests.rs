//! Unit tests of `commit::wire::fault`.

use super::*;

#[test]
fn a_fault_is_decoded_as_it_was_encoded() {
    let why = || "reason".to_owned();
    let faults = [
        CommitFault::Description { why: why() },
        CommitFault::Refused { code: 7, why: why() },
        CommitFault::Panicked,
        CommitFault::UnknownId { id: u64::MAX },
        CommitFault::Busy,
        CommitFault::Range { region: None, offset: 1, len: 2, size: 3 },
        CommitFault::Size { slot: Slot::Region { index: 4 }, len: 1, expected: 2 },
        CommitFault::Count { count: 1, expected: 2 },
        CommitFault::NotUpdatable { direction: Direction::Ext, index: 4 },
        CommitFault::Overlap { region: 1, other: 2, id: 3 },
        CommitFault::Unsealed { region: 1 },
        CommitFault::ReadOnly { region: 1 },
        CommitFault::Memory { region: 1, why: why() },
        CommitFault::Quota { what: "bytes", used: 1 << 40, needed: 2, limit: 1 << 41 },
        CommitFault::Resources { why: why() },
        CommitFault::UnknownRegion { index: 1, count: 2 },
        CommitFault::ModelClosed,
        CommitFault::Model { why: why() },
    ];
    for (code, fault) in (1..).zip(faults) {
        let (number, a, b, c, text) = to_wire(&fault);
        assert_eq!(number, code, "{fault}");
        assert_eq!(from_wire(number, a, b, c, text), fault);
    }
    for what in ["models", "commits", "bytes", "regions", "requests", "bytes of requests"] {
        let fault = CommitFault::Quota { what, used: 1, needed: 2, limit: 2 };
        let (number, a, b, c, text) = to_wire(&fault);
        assert_eq!(from_wire(number, a, b, c, text), fault);
    }
    let of_region = CommitFault::Range { region: Some(7), offset: 1, len: 2, size: 3 };
    let (number, a, b, c, text) = to_wire(&of_region);
    assert_eq!(from_wire(number, a, b, c, text), of_region);
}

#[test]
fn an_unknown_code_or_number_is_passed_on_as_it_came() {
    for code in [0, 19, u32::MAX, NOT_UPDATABLE, QUOTA] {
        let other = CommitFault::Other { code, why: "x".into() };
        assert_eq!(from_wire(code, u64::MAX, u64::MAX, u64::MAX, "x".into()), other);
    }
}
