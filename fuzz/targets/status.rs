//! A status page of another process, copied twice: any bytes are read, and each row that is taken keeps its bounds.
//!
//! The input is one copy. The second one differs in the byte that the first byte names.
#![no_main]

use slipring::status;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let [at, first @ ..] = input else { return };
    let mut second = first.to_vec();
    let at = usize::from(*at) * 8;
    if let Some(byte) = second.get_mut(at) {
        *byte ^= 1;
    }
    let _ = status::owner(first);
    let rows: Vec<_> = status::rows(first, &second).collect();
    assert!(rows.len() <= first.len() / status::ROW_BYTES);
    for row in rows {
        assert!(row.address.len() <= 112, "{row:?}");
        for half in [row.sender, row.receiver] {
            assert_eq!(half.awaited.is_some(), half.state.waits(), "{row:?}");
        }
    }
});
