//! Unit tests of `pool::holders`.

use super::*;

const QUOTA: u64 = 1200;

fn holder(uid: u32, pid: u32) -> Holder {
    Holder { uid, pid: Some(pid) }
}

#[test]
fn the_links_of_a_process_share_what_its_user_and_others_leave() {
    let mut holders = Holders::default();
    let greedy = holders.join(holder(1, 10));
    assert_eq!(holders.join(holder(1, 10)), greedy);
    assert_eq!((holders.links(greedy), holders.share(greedy, QUOTA)), (2, 600));
    holders.add(greedy, 600);
    let sibling = holders.join(holder(1, 11));
    assert_eq!(holders.share(sibling, QUOTA), 200);
    let stranger = holders.join(holder(2, 12));
    assert_eq!(holders.share(stranger, QUOTA), 300);
    holders.add(stranger, 300);
    holders.subtract(greedy, 600);
    assert_eq!(holders.share(greedy, QUOTA), 450);
}

#[test]
fn a_peer_without_links_is_forgotten_and_its_place_used_anew() {
    let mut holders = Holders::default();
    let first = holders.join(holder(1, 10));
    holders.join(holder(1, 10));
    holders.leave(first);
    assert_eq!(holders.links(first), 1);
    holders.leave(first);
    assert_eq!(holders.join(holder(3, 30)), first);
    assert_eq!((holders.links(first), holders.bytes(first)), (1, 0));
}
