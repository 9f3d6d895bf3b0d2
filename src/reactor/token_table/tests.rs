//! Unit tests of `reactor::token_table`.

use super::*;

#[test]
fn a_token_names_one_registration_for_ever() {
    let mut table = TokenTable::default();
    let first = table.register("a").unwrap();
    let second = table.register("b").unwrap();
    assert_eq!(table.take(first), Some("a"));
    assert_eq!(table.take(first), None, "it is running");
    assert_eq!(table.put_back(first, "a"), None);
    assert_eq!(table.unregister(first), Some(Some("a")));
    assert_eq!(table.unregister(first), None);
    let third = table.register("c").unwrap();
    assert_ne!(first, third);
    assert_eq!(table.take(first), None);
    assert_eq!(table.take(second), Some("b"));
    assert_eq!(table.unregister(second), Some(None), "unregistered by itself");
    assert_eq!(table.put_back(second, "b"), Some("b"));
    for forged in [0, 1, 2, 0xFFFF, 0x1_0000, 0xFFFF_0000, u32::MAX] {
        let forged = Token::from(forged);
        assert!(forged == third || table.take(forged).is_none(), "{forged:?}");
    }
    assert_eq!(table.take(third), Some("c"));
}

#[test]
fn generations_run_out_safely() {
    let mut table = TokenTable::default();
    let mut seen = std::collections::HashSet::new();
    for turn in 0..200_000 {
        let token = table.register(turn).unwrap();
        assert!(seen.insert(token), "{token:?} in turn {turn}");
        assert_eq!(table.unregister(token), Some(Some(turn)));
    }
    assert!(table.slots.len() <= 4);
}

#[test]
fn a_full_table_says_so() {
    let mut table = TokenTable::default();
    let tokens: Vec<_> = (0..1 << 16).map(|value| table.register(value).unwrap()).collect();
    assert_eq!(table.register(9), Err(9));
    table.unregister(tokens[7]).unwrap();
    assert!(table.register(0).is_ok());
}
