//! Unit tests of `link::passed`.

use super::*;

fn some(count: usize) -> UntrustedFds {
    let mut some = UntrustedFds::default();
    (0..count).for_each(|_| some.push(std::fs::File::open("/dev/null").unwrap().into()));
    some
}

fn unknown(first: u64, count: usize) -> ErrorKind {
    ErrorKind::Fault(Fault::UnknownDescriptors { first, count })
}

#[test]
fn descriptors_are_taken_once_and_in_order() {
    let mut passed = PassedDescriptors::default();
    passed.admit(10);
    passed.add(0, 3, some(3)).unwrap();
    passed.add(3, 2, some(2)).unwrap();
    assert!(passed.reaches(5) && !passed.reaches(6));
    // The first one belongs to a record that its sender never published.
    assert_eq!(passed.take(1, 3).unwrap().len(), 3);
    for first in [0, 1, 3] {
        assert_eq!(*passed.take(first, 1).unwrap_err().kind(), unknown(first, 1));
    }
    assert_eq!(passed.take(4, 1).unwrap().len(), 1);
    for (first, count) in [(5, 1), (4, 1), (u64::MAX, 1), (5, usize::MAX)] {
        assert_eq!(*passed.take(first, count).unwrap_err().kind(), unknown(first, count));
    }
    assert!(passed.take(5, 0).unwrap().is_empty());
}

#[test]
fn numbers_that_do_not_go_on_and_too_many_descriptors_are_faults() {
    let mut passed = PassedDescriptors::default();
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
    passed.take(0, 3).unwrap();
    passed.add(3, 2, some(2)).unwrap();
}

#[test]
fn one_link_leaves_room_to_the_others() {
    let null = || some(1).pop().unwrap();
    let mut held = Vec::new();
    let mut fill = |room: u64| {
        let mut own = 0;
        while let Some(one) = Held::new(null(), own, room) {
            held.push(one);
            own += 1;
        }
        own
    };
    // Descriptors of other tests count too.
    let room = 90 + HELD.load(Ordering::Relaxed) as u64;
    let (first, second, third) = (fill(room), fill(room), fill(room));
    assert!(
        first.abs_diff(60) < 10 && second.abs_diff(20) < 10 && third > 0,
        "{first} {second} {third}"
    );
}

#[test]
fn what_there_was_no_room_for_is_missed_by_its_record_alone() {
    let mut passed = PassedDescriptors::default();
    passed.admit(10);
    passed.add(0, 3, some(1)).unwrap();
    passed.add(3, 1, some(1)).unwrap();
    let missed = passed.take(0, 3).unwrap_err();
    assert!(matches!(missed.kind(), ErrorKind::DescriptorLimit { .. }), "{missed}");
    assert_eq!(passed.take(3, 1).unwrap().len(), 1);
}
