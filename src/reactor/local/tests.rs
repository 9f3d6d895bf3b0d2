//! Unit tests of `reactor::local`.

use super::*;

#[test]
fn a_value_lives_as_long_as_its_handle_and_places_are_used_anew() {
    let value = Rc::new(());
    let first = Local::new(value.clone());
    let second = Local::new(2);
    assert_eq!(Rc::strong_count(&value), 2);
    drop(first);
    assert_eq!(Rc::strong_count(&value), 1);
    let third = Local::new("third");
    assert!(third.index != second.index);
    second.with(|number| *number += 1);
    assert_eq!((second.with(|number| *number), third.with(|text| text.len())), (3, 5));
}

#[test]
fn another_thread_does_not_reach_the_value_and_does_not_drop_it() {
    let value = Rc::new(());
    let handle = Local::new(value.clone());
    let other = std::thread::spawn(move || {
        // A value of that thread has the same place.
        let _own = Local::new(1);
        let reached =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handle.with(|_| ())));
        drop(handle);
        reached.is_ok()
    });
    assert!(!other.join().unwrap(), "another thread reached the value");
    assert_eq!(Rc::strong_count(&value), 2);
}

#[test]
fn the_drop_of_a_value_may_use_other_values() {
    struct Last(Local<u32>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.with(|number| assert_eq!(*number, 7));
        }
    }
    drop(Local::new(Last(Local::new(7))));
}
