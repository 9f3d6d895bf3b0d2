//! Unit tests of `channel::calls`.

use super::*;

#[test]
fn a_response_comes_once_and_only_to_a_request() {
    let mut calls = Calls::default();
    let (first, second) = (calls.make().unwrap(), calls.make().unwrap());
    assert_eq!(calls.answered(first), Ok(true));
    assert_eq!(calls.answered(first), Err(Fault::UnknownRequest { id: 1 }));
    calls.abandon(second);
    assert_eq!(calls.answered(second), Ok(false));
    for id in [0, 3, u64::MAX] {
        assert!(calls.answered(RequestId(id)).is_err());
    }
    calls.finish(first, None);
    assert!(!calls.is_made(first));
}

#[test]
fn a_response_that_goes_to_the_caller_at_once_is_taken_once() {
    let mut calls = Calls::default();
    let [first, second, third] = std::array::from_fn(|_| calls.make().unwrap());
    assert_eq!(calls.take(second), Ok(true), "out of order");
    assert!(calls.is_made(first) && !calls.is_made(second) && calls.is_made(third));
    assert_eq!(calls.take(second), Err(Fault::UnknownRequest { id: 2 }));
    calls.abandon(third);
    assert_eq!(calls.take(third), Ok(false), "not wanted");
    assert_eq!(calls.take(first), Ok(true));
    assert_eq!(calls.take(RequestId(4)), Err(Fault::UnknownRequest { id: 4 }));
}

#[test]
fn requests_in_flight_are_bounded() {
    let mut calls = Calls::default();
    let ids: Vec<_> = (0..LIMIT).map(|_| calls.make().unwrap()).collect();
    assert!(calls.make().is_err());
    calls.abandon(ids[0]);
    assert!(calls.make().is_ok(), "nobody waits for an abandoned request");
    assert!(calls.make().is_err());
}

#[test]
fn the_oldest_abandoned_requests_are_forgotten_and_may_be_answered_once_each() {
    let mut calls = Calls::default();
    let wanted = calls.make().unwrap();
    let ids: Vec<_> = (0..LIMIT + 10)
        .map(|_| {
            let id = calls.make().unwrap();
            calls.abandon(id);
            id
        })
        .collect();
    assert_eq!(calls.abandoned.len(), LIMIT);
    // The last that is forgotten, one that is remembered, and an old one that somebody waits for.
    for id in [ids[9], ids[10]] {
        assert_eq!(calls.answered(id), Ok(false));
    }
    assert_eq!(calls.answered(ids[10]), Err(Fault::UnknownRequest { id: ids[10].0 }));
    assert_eq!(calls.answered(wanted), Ok(true));
    for id in &ids[..9] {
        assert_eq!(calls.answered(*id), Ok(false));
    }
    for id in [0, ids[0].0, ids[9].0, wanted.0] {
        assert_eq!(calls.answered(RequestId(id)), Err(Fault::UnknownRequest { id }));
    }
}
