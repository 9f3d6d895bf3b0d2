//! Unit tests of accounts.

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::account::Resource::{Descriptors, Mappings};

fn ledger() -> &'static Ledger {
    Ledger::new(None)
}

fn limits(process: u64) -> Limits {
    let mut limits = Limits::default();
    limits.set_process(Mappings, process);
    limits
}

/// Charges one unit at a time until the account is full. Returns the charges, and whose account was full.
fn fill(account: &Arc<Account>) -> (Vec<Charge>, &'static str) {
    let mut charges = Vec::new();
    loop {
        match account.charge(Mappings, 1) {
            Ok(charge) => charges.push(charge),
            Err(error) => match error.kind() {
                ErrorKind::AccountFull { account, .. } => return (charges, account),
                other => panic!("{other:?}"),
            },
        }
    }
}

#[test]
fn one_peer_leaves_room_to_others_of_its_user_and_its_user_to_other_users() {
    let (ledger, limits) = (ledger(), limits(120));
    let link = Account::open(ledger, (1, Some(1)), limits);
    let (charges, full) = fill(&link);
    assert_eq!((charges.len(), full), (60, "peer"));
    let more = Account::open(ledger, (1, Some(1)), limits);
    assert_eq!(fill(&more).0.len(), 0, "a second link of the same process");
    let second = Account::open(ledger, (1, Some(2)), limits);
    let (more, full) = fill(&second);
    assert_eq!((more.len(), full), (20, "peer"), "two thirds of the user's other 30");
    let other = Account::open(ledger, (2, Some(3)), limits);
    assert_eq!(fill(&other).0.len(), 20, "two thirds of three quarters of 40");
    drop((charges, more));
    assert_eq!(fill(&link).0.len(), 60, "a dropped charge is free");
}

#[test]
fn a_greedy_peer_with_many_links_leaves_something_to_other_peers() {
    let (ledger, limits) = (ledger(), limits(16384));
    let links: Vec<_> = (0..50).map(|_| Account::open(ledger, (1, Some(1)), limits)).collect();
    let held: Vec<_> = links.iter().map(fill).collect();
    assert_eq!(held.iter().map(|(charges, _)| charges.len()).sum::<usize>(), 8192);
    let honest = Account::open(ledger, (1, Some(2)), limits);
    assert!(fill(&honest).0.len() > 1024);
    let unknown = Account::open(ledger, (1, None), limits);
    assert!(fill(&unknown).0.len() > 512);
}

#[test]
fn set_limits_count_and_name_the_account_that_is_full() {
    let ledger = ledger();
    let mut set = limits(100);
    set.set_link(Mappings, 3);
    set.set_user(Mappings, 5);
    let one = Account::open(ledger, (1, Some(1)), set);
    let two = Account::open(ledger, (1, Some(2)), set);
    let (first, full) = fill(&one);
    assert_eq!((first.len(), full), (3, "link"));
    let (second, full) = fill(&two);
    assert_eq!((second.len(), full), (2, "user"));
    let error = two.charge(Mappings, 1).unwrap_err();
    let expected = ErrorKind::AccountFull {
        resource: "mappings",
        account: "user",
        used: 5,
        needed: 1,
        limit: 5,
    };
    assert_eq!(*error.kind(), expected);
    // A refused charge has changed no account.
    drop((first, second));
    assert_eq!(ledger.process.0[Mappings.index()].load(Ordering::Relaxed), 0);
    assert_eq!(one.user.0[Mappings.index()].load(Ordering::Relaxed), 0);
}

#[test]
fn impossible_amounts_are_refused_and_nothing_always_passes() {
    let (ledger, limits) = (ledger(), limits(100));
    let link = Account::open(ledger, (1, None), limits);
    let most = link.charge(Mappings, 50).unwrap();
    assert!(link.charge(Mappings, 1).is_err());
    assert!(link.charge(Mappings, 0).is_ok());
    drop(most);
    assert!(link.charge(Mappings, 51).is_err());
    assert!(link.charge(Mappings, u64::MAX).is_err());
}

#[test]
fn a_user_without_links_is_forgotten() {
    let ledger = ledger();
    for uid in 0..100 {
        drop(Account::open(ledger, (uid, None), limits(1)));
    }
    let _last = Account::open(ledger, (0, None), limits(1));
    assert_eq!(ledger.parties.lock().unwrap().len(), 2);
}

#[test]
fn threads_never_hold_more_than_the_limit() {
    static HELD: AtomicUsize = AtomicUsize::new(0);
    let (ledger, limits) = (ledger(), limits(6));
    std::thread::scope(|scope| {
        for uid in 0..4 {
            scope.spawn(move || {
                let link = Account::open(ledger, (uid, None), limits);
                for _ in 0..20_000 {
                    if let Ok(charge) = link.charge(Mappings, 1) {
                        assert!(HELD.fetch_add(1, Ordering::Relaxed) < 6);
                        HELD.fetch_sub(1, Ordering::Relaxed);
                        drop(charge);
                    }
                }
            });
        }
    });
    assert_eq!(ledger.process.0[Mappings.index()].load(Ordering::Relaxed), 0);
}

#[test]
fn defaults_follow_the_process() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    assert_eq!(Descriptors.default_limit(), limit / 4 * 3);
    for resource in Resource::ALL {
        assert!(resource.default_limit() > 0, "{resource:?}");
    }
}

#[test]
fn peers_that_are_not_admitted_take_an_eighth_and_leave_something_to_those_of_other_users() {
    let (ledger, limits) = (ledger(), limits(240));
    let stranger = |uid| Account::open_stranger(ledger, uid, limits);
    let (_flood, full) = fill(&stranger(1));
    assert_eq!((_flood.len(), full), (20, "strangers of a user"));
    assert_eq!(fill(&stranger(1)).0.len(), 0);
    let other = fill(&stranger(2)).0;
    assert_eq!(other.len(), 7, "two thirds of what the first user leaves of 30");
    let admitted = Account::open(ledger, (1, Some(1)), limits);
    assert_eq!(fill(&admitted).0.len(), (240 - 27) * 3 / 4 * 2 / 3 + 1);
}
