//! Unit tests of `pool::class`.

use super::*;

#[test]
fn a_block_holds_its_request_and_wastes_little() {
    let mut len = 1u64;
    while len < 1 << 40 {
        for request in [len - 1, len, len + 1] {
            let block = block_len(request).unwrap();
            assert!(block >= request && block.is_multiple_of(SMALLEST));
            assert!(block <= SMALLEST || block - request <= (request / 4).max(SMALLEST));
        }
        len *= 2;
    }
    assert_eq!(block_len(1 << 20), Some(1 << 20));
    assert_eq!(block_len((1 << 20) + 1), Some((1 << 20) + (1 << 18)));
    assert_eq!(block_len(u64::MAX), None);
}

#[test]
fn the_rotation_is_bounded_and_never_empty() {
    assert_eq!(rotation(64 << 10, 2 << 20), 32);
    assert_eq!(rotation(512 << 10, 2 << 20), 4);
    assert_eq!(rotation(640 << 10, 2 << 20), 4);
    assert_eq!(rotation(1 << 20, 2 << 20), 4);
    assert_eq!(rotation((1 << 20) + 4096, 2 << 20), 2);
    assert_eq!(rotation(16 << 20, 2 << 20), 2);
    assert_eq!(rotation((16 << 20) + 4096, 2 << 20), 1);
    assert_eq!(rotation(1 << 30, 2 << 20), 1);
    assert_eq!(rotation(4096, 64 << 20), 1024);
    assert_eq!(rotation(4096, 1), 2);
    assert_eq!(rotation(1 << 62, u64::MAX), 4);
}
