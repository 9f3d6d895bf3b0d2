//! Unit tests of `link::share`.

use std::time::Duration;

use super::*;

#[test]
fn a_link_that_has_overdrawn_rests_four_times_as_long() {
    let mut share = SocketShare::new();
    let start = share.at + Duration::from_secs(1);
    let after = |millis: u64| move || start + Duration::from_micros(millis * 1000);
    assert!(!share.rests(|| unreachable!("no clock is read")));
    // It has done nothing for a second, and saves up no more for it.
    share.spend(MOST + 4_400_000, after(0));
    // The look ends, and the link lacks 4.4 ms.
    assert!(share.rests(after(18)));
    let mut share = SocketShare::new();
    share.spend(MOST + 4_400_000, after(0));
    share.begin_look();
    assert!(share.rests(after(1)) && share.rests(after(17)));
    assert!(!share.rests(after(18)));
    // What it saves up is limited.
    share.spend(MOST, after(18));
    share.begin_look();
    assert!(!share.rests(after(1_000_000)));
    assert_eq!(share.left, MOST);
}
