use std::collections::HashSet;

use super::*;

#[test]
fn links_let_their_sockets_be_read_at_different_sleeps() {
    let firsts: HashSet<u32> = (0..SLEEPS).map(|_| first_sleeps()).collect();
    assert!(firsts.len() > SLEEPS as usize / 2, "{firsts:?}");
    assert!(firsts.iter().all(|first| *first < SLEEPS), "{firsts:?}");
}
