//! Unit tests of `error::panic`.

use super::*;

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Self);
    }
}

#[test]
fn a_panic_goes_no_further_whatever_its_payload_does() {
    assert_eq!(contain(|| 7), Some(7));
    assert_eq!(contain(|| panic!("on purpose")), None::<()>);
    assert_eq!(contain(|| std::panic::panic_any(Bomb)), None::<()>);
}
