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
    calls.finish(first);
    assert!(!calls.is_made(first));
}

#[test]
fn requests_in_flight_are_bounded() {
    let mut calls = Calls::default();
    let ids: Vec<_> = (0..LIMIT).map(|_| calls.make().unwrap()).collect();
    assert!(calls.make().is_err());
    calls.abandon(ids[0]);
    assert!(calls.make().is_err(), "an abandoned request still waits for its response");
    calls.answered(ids[0]).unwrap();
    assert!(calls.make().is_ok());
}
