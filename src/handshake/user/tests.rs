//! Unit tests of `handshake::user`.

use super::*;

#[test]
fn a_map_is_whole_only_if_it_lacks_nobody() {
    assert!(is_whole("         0          0 4294967295\n"));
    assert!(is_whole("0 0 65534\n65534 65534 4294901761\n"));
    for map in ["", "0 1000 1\n", "65534 65534 1\n", "0 100000 65536\n", "0 0\n", "0 0 all\n"] {
        assert!(!is_whole(map), "{map:?}");
    }
}
