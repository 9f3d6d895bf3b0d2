//! Unit tests of `commit::slots`.

use super::*;

#[test]
fn an_id_is_never_used_twice_and_means_nothing_when_it_is_gone() {
    let mut slots = Slots::default();
    let mut numbers = 1..;
    let mut insert = |slots: &mut Slots<char>, value| {
        let id = slots.reserve(numbers.next().unwrap()).unwrap();
        slots.put(id, value);
        id
    };
    let (a, b) = (insert(&mut slots, 'a'), insert(&mut slots, 'b'));
    assert_eq!((slots.get(a), slots.get(b)), (Ok(&'a'), Ok(&'b')));
    assert_eq!(slots.remove(a), Ok('a'));
    let c = insert(&mut slots, 'c');
    assert_eq!(c & 0xffff, a & 0xffff, "the slot is used for another id");
    for id in [a, 0, c + (1 << 16), c - (1 << 16), c | 0xffff, u64::MAX] {
        assert_eq!(slots.get(id), Err(CommitFault::UnknownId { id }));
        assert_eq!(slots.remove(id), Err(CommitFault::UnknownId { id }));
    }
    assert_eq!(slots.remove_all(|value| *value == 'b'), ['b']);
    assert_eq!(slots.get(c), Ok(&'c'));
}

#[test]
fn slots_are_limited() {
    let mut slots = Slots::<()>::default();
    let ids: Vec<u64> = (1..=1 << 16).map(|number| slots.reserve(number).unwrap()).collect();
    assert_eq!(slots.reserve(1 << 20), None);
    slots.give_back(ids[7]);
    assert!(slots.reserve(1 << 20).is_some());
}
