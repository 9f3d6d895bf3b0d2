//! Unit tests of `region::limits`.

use super::*;

#[test]
fn a_share_counts_until_it_is_dropped() {
    let totals = Arc::new(Totals::default());
    let limits = RegionLimits::new(2, 100);
    let first = totals.take(limits, 60).unwrap();
    let over = RegionFault::TooManyBytes { used: 60, needed: 41, limit: 100 };
    assert_eq!(totals.take(limits, 41).unwrap_err(), over);
    assert!(totals.take(limits, u64::MAX).is_err());
    let second = totals.take(limits, 40).unwrap();
    let full = RegionFault::TooManyRegions { count: 2, limit: 2 };
    assert_eq!(totals.take(limits, 0).unwrap_err(), full);
    drop(first);
    assert!(totals.take(limits, 60).is_ok());
    drop(second);
    assert!(totals.take(limits, 100).is_ok());
}
