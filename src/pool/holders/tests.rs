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
    assert_eq!((holders.links(greedy), holders.share(greedy, (QUOTA, QUOTA), 0)), (2, 600));
    holders.add(greedy, 600);
    let sibling = holders.join(holder(1, 11));
    assert_eq!(holders.share(sibling, (QUOTA, QUOTA), 0), 200);
    let stranger = holders.join(holder(2, 12));
    assert_eq!(holders.share(stranger, (QUOTA, QUOTA), 0), 300);
    holders.add(stranger, 300);
    holders.subtract(greedy, 600);
    assert_eq!(holders.share(greedy, (QUOTA, QUOTA), 0), 450);
}

#[test]
fn a_block_that_many_peers_hold_takes_no_more_of_their_shares_than_it_is_long() {
    let mut holders = Holders::default();
    let peers: Vec<usize> = (0..16).map(|pid| holders.join(holder(1, pid))).collect();
    peers.iter().for_each(|peer| holders.add(*peer, 100));
    assert_eq!(holders.share(peers[0], (QUOTA, 100), 0), (QUOTA * 3 / 4 - 100) * 2 / 3 + 1);
    assert_eq!(holders.share(peers[0], (QUOTA, QUOTA), 0), 0);
    let other = holders.join(holder(2, 50));
    assert_eq!(holders.share(other, (QUOTA, 100), 0), 550);
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

#[test]
fn a_link_may_hold_what_it_may_as_long_as_its_user_does_not_hold_too_much() {
    let mut holders = Holders::default();
    let share = |holders: &Holders, peer| holders.share(peer, (QUOTA, QUOTA), 700);
    let first = holders.join(holder(1, 10));
    assert_eq!(share(&holders, first), 700);
    holders.add(first, 700);
    let second = holders.join(holder(1, 11));
    assert_eq!(share(&holders, second), 200, "three quarters for the user");
    let other = holders.join(holder(2, 12));
    assert_eq!(share(&holders, other), 375, "three quarters of what the first user leaves");
}
