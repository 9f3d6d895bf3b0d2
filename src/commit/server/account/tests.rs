//! Unit tests of `commit::server::account`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

static SERIAL: AtomicU64 = AtomicU64::new(1);

fn claim(region: u32, object: u64, start: u64, end: u64, output: bool) -> Claim {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    Claim { serial, region, object: (1, object), start, end, output }
}

#[test]
fn memory_of_an_output_is_shared_with_no_other_region() {
    let (mut account, limits) = (Account::default(), ServerOptions::new());
    account.claim(&limits, 1, &[claim(0, 5, 0, 100, false), claim(1, 5, 100, 200, true)]).unwrap();
    // Inputs may share memory.
    account.claim(&limits, 2, &[claim(0, 5, 50, 100, false)]).unwrap();
    for (start, end, output) in [(199, 300, false), (0, 101, false), (0, 1, true), (99, 100, true)]
    {
        let fault = account.claim(&limits, 3, &[claim(7, 5, start, end, output)]).unwrap_err();
        assert!(matches!(fault, CommitFault::Overlap { region: 7, id: 1 | 2, .. }), "{fault}");
    }
    // Memory elsewhere, or in another object, is free.
    account.claim(&limits, 3, &[claim(0, 5, 200, 300, true), claim(1, 6, 0, 300, true)]).unwrap();
    // The rule holds within one commit, too.
    let twice = [claim(0, 9, 0, 10, false), claim(1, 9, 9, 10, true)];
    let fault = CommitFault::Overlap { region: 1, other: 0, id: 0 };
    assert_eq!(account.claim(&limits, 4, &twice), Err(fault));
    account.claim(&limits, 4, &twice[..1]).unwrap();
    account.unclaim(1, |_| true);
    account.unclaim(2, |_| true);
    account.claim(&limits, 5, &[claim(0, 5, 0, 200, true)]).unwrap();
}

#[test]
fn an_update_may_overlap_what_it_replaces() {
    let (mut account, limits) = (Account::default(), ServerOptions::new());
    let old = claim(0, 5, 0, 100, true);
    account.claim(&limits, 1, &[old, claim(1, 5, 100, 200, false)]).unwrap();
    assert!(account.claim(&limits, 1, &[claim(0, 5, 50, 150, true)]).is_err());
    let new = claim(0, 5, 50, 100, true);
    account.claim(&limits, 1, &[new]).unwrap();
    account.unclaim(1, |claim| *claim == old);
    assert_eq!((account.regions, account.bytes), (2, 150));
}

#[test]
fn quotas_are_named_and_nothing_is_taken_when_one_is_met() {
    let limits = ServerOptions::new().models(1).commits(1).regions(2).bytes(100);
    let mut account = Account::default();
    account.add_model(&limits).unwrap();
    account.add_commit(&limits).unwrap();
    let quota = |what, used, needed, limit| Err(CommitFault::Quota { what, used, needed, limit });
    assert_eq!(account.add_model(&limits), quota("models", 1, 1, 1));
    assert_eq!(account.add_commit(&limits), quota("commits", 1, 1, 1));
    account.claim(&limits, 1, &[claim(0, 5, 0, 60, false)]).unwrap();
    let over = account.claim(&limits, 1, &[claim(1, 6, 0, 41, false)]);
    assert_eq!(over, quota("bytes", 60, 41, 100));
    let many = [claim(1, 6, 0, 1, false), claim(2, 7, 0, 1, false)];
    assert_eq!(account.claim(&limits, 1, &many), quota("regions", 1, 2, 2));
    assert!(account.claim(&limits, 1, &[claim(1, 6, 0, u64::MAX, false)]).is_err());
    account.claim(&limits, 1, &[claim(1, 6, 0, 40, false)]).unwrap();
}
