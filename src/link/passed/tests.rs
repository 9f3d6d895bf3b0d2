//! Unit tests of `link::passed`.

use super::*;
use crate::account::Limits;

fn some(count: usize) -> UntrustedFds {
    let mut some = UntrustedFds::default();
    (0..count).for_each(|_| some.push(std::fs::File::open("/dev/null").unwrap().into()));
    some
}

/// Returns the descriptors of a link that may hold so many of them.
fn passed(limit: Option<u64>) -> PassedDescriptors {
    let mut limits = Limits::default();
    limit.into_iter().for_each(|limit| limits.set_link(Resource::Descriptors, limit));
    PassedDescriptors::new(Account::of_link((0, None), limits))
}

fn unknown(first: u64, count: usize) -> Fault {
    Fault::UnknownDescriptors { first, count }
}

#[test]
fn descriptors_are_taken_once_and_in_order() {
    let mut passed = passed(None);
    passed.admit(10);
    passed.add(0, 3, some(3)).unwrap();
    passed.add(3, 2, some(2)).unwrap();
    assert!(passed.reaches(5) && !passed.reaches(6));
    // The first one belongs to a record that its sender never published.
    assert_eq!(passed.take(1, 3).unwrap().unwrap().len(), 3);
    for first in [0, 1, 3] {
        assert_eq!(passed.take(first, 1).unwrap_err(), unknown(first, 1));
    }
    assert_eq!(passed.take(4, 1).unwrap().unwrap().len(), 1);
    for (first, count) in [(5, 1), (4, 1), (u64::MAX, 1), (5, usize::MAX)] {
        assert_eq!(passed.take(first, count).unwrap_err(), unknown(first, count));
    }
    assert!(passed.take(5, 0).unwrap().unwrap().is_empty());
}

#[test]
fn numbers_that_do_not_go_on_and_too_many_descriptors_are_faults() {
    let mut passed = passed(None);
    assert!(!passed.is_open());
    assert_eq!(passed.add(0, 1, some(1)), Err(Fault::HeldDescriptors { count: 1, limit: 0 }));
    passed.admit(4);
    for first in [1, u64::MAX] {
        let lie = Fault::Field { field: "descriptors.first", value: first };
        assert_eq!(passed.add(first, 1, some(1)), Err(lie));
    }
    passed.add(0, 3, some(3)).unwrap();
    let over = Fault::HeldDescriptors { count: 5, limit: 4 };
    assert_eq!(passed.add(3, 2, some(2)), Err(over));
    passed.take(0, 3).unwrap().unwrap();
    passed.add(3, 2, some(2)).unwrap();
}

#[test]
fn a_descriptor_over_the_limit_is_missing_and_one_that_was_taken_is_free() {
    let mut passed = passed(Some(2));
    passed.admit(10);
    passed.add(0, 3, some(3)).unwrap();
    let missed = passed.take(0, 3).unwrap().unwrap_err();
    let is_of_link = matches!(
        missed.kind(),
        ErrorKind::AccountFull { resource: "descriptors", account: "link", limit: 2, .. }
    );
    assert!(is_of_link, "{missed}");
    passed.add(3, 2, some(2)).unwrap();
    assert_eq!(passed.take(3, 2).unwrap().unwrap().len(), 2);
}

#[test]
fn what_there_was_no_room_for_is_missed_by_its_record_alone() {
    let mut passed = passed(None);
    passed.admit(10);
    passed.add(0, 3, some(1)).unwrap();
    passed.add(3, 1, some(1)).unwrap();
    let missed = passed.take(0, 3).unwrap().unwrap_err();
    assert!(matches!(missed.kind(), ErrorKind::DescriptorLimit { .. }), "{missed}");
    assert_eq!(passed.take(3, 1).unwrap().unwrap().len(), 1);
}
