//! Unit tests of `channel::announced`.

use super::*;

#[test]
fn a_segment_is_due_until_the_reader_has_passed_the_record_that_names_it() {
    for named in [0, 64, u64::MAX - 63, 1 << 63] {
        let sent = Sent { len: 4096, named: Some(named) };
        assert!(sent.is_due(named) && sent.is_due(named.wrapping_sub(64)));
        assert!(!sent.is_due(named.wrapping_add(64)));
        assert!(!sent.is_due(named.wrapping_add(1 << 40)));
    }
    assert!(!Sent { len: 4096, named: None }.is_due(0));
}
