//! Unit tests of `broadcast::stall`.

use super::*;

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn the_time_of_all_begins_with_the_first_wait_and_anew_when_one_reads_on() {
    let (mut stall, all) = (Stall::default(), || vec![(1, 5), (2, 5)]);
    let first = stall.until(7, (1, 5), LONG, all);
    assert_eq!(stall.until(7, (2, 5), LONG, all), first);
    assert_eq!(stall.until(7, (1, 5), LONG, all), first);
    let later = stall.until(7, (1, 6), LONG, all);
    assert!(later > first);
    assert_eq!(stall.until(7, (1, 6), LONG, all), later);
    assert_eq!(stall.until(7, (2, 5), LONG, all), first);
    // One that came meanwhile.
    assert!(stall.until(7, (3, 1), LONG, all) > first);
}

#[test]
fn a_send_has_an_end_however_its_subscribers_read_on() {
    let mut stall = Stall::default();
    let first = stall.until(7, (1, 0), Duration::ZERO, || vec![(1, 0)]);
    for position in 1..100 {
        assert!(stall.until(7, (1, position), LONG, Vec::new) <= first + Duration::from_secs(1));
    }
}

#[test]
fn a_newcomer_has_its_own_time_when_the_end_of_the_others_is_near() {
    let (mut stall, more) = (Stall::default(), LONG * 100);
    stall.until(7, (1, 0), LONG, || vec![(1, 0)]);
    let end = stall.until(7, (1, 1), more, Vec::new);
    assert!(stall.until(7, (2, 0), more, Vec::new) >= end + LONG);
}

#[test]
fn the_time_between_two_waits_puts_their_end_off() {
    let mut stall = Stall::default();
    stall.until(7, (1, 0), LONG, || vec![(1, 0)]);
    let end = stall.until(7, (1, 1), LONG * 100, Vec::new);
    let waited = Instant::now().checked_sub(LONG);
    // A machine that runs for less than LONG has no such moment.
    let Some(waited) = waited else { return };
    stall.waited = Some(waited);
    assert!(stall.until(7, (1, 1), LONG * 100, Vec::new) >= end + LONG);
    // Another message has waits of its own.
    assert!(stall.until(8, (1, 1), LONG, || vec![(1, 1)]) < end);
}
