//! Unit tests of `handshake::address`.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn fault(address: Result<Address>) -> ErrorKind {
    address.unwrap_err().kind().clone()
}

#[test]
fn a_name_has_1_to_107_bytes_and_no_nul() {
    assert!(Address::named("x").is_ok());
    assert!(Address::named([b'x'; 107]).is_ok());
    assert_eq!(fault(Address::named("")), ErrorKind::AddressEmpty);
    let long = ErrorKind::AddressTooLong { len: 108, max: 107 };
    assert_eq!(fault(Address::named([b'x'; 108])), long);
    assert_eq!(fault(Address::named("cam\0era")), ErrorKind::AddressNul { at: 3 });
}

#[test]
fn a_text_with_a_slash_is_a_path_and_any_other_an_abstract_name() {
    let parsed = |text: &str| text.parse::<Address>().unwrap();
    for name in ["camera", "@camera"] {
        assert_eq!(parsed(name), Address::named("camera").unwrap());
    }
    for path in ["/run/camera", "./camera", "run/camera", "@run/camera", "/"] {
        assert_eq!(parsed(path), Address::path(path).unwrap());
        assert!(parsed(path).as_path().is_some(), "{path}");
    }
    assert_eq!(parsed("./camera"), Address::path("camera").unwrap());
    assert_eq!(parsed("./camera").to_string(), "./camera");
    assert_eq!(parsed("a\\b"), Address::named("a\\b").unwrap());
    assert_eq!(parsed("@a\\x2fb"), Address::named("a/b").unwrap());
}

#[test]
fn an_escape_that_stands_for_no_byte_is_refused_where_it_starts() {
    for (text, at) in [("@\\", 1), ("@ab\\q", 3), ("@\\x", 1), ("@\\x+1", 1), ("@\\xé", 1)] {
        assert_eq!(fault(text.parse()), ErrorKind::AddressEscape { at }, "{text}");
    }
    assert_eq!(fault("@".parse()), ErrorKind::AddressEmpty);
    assert_eq!(fault("@a\\x00".parse()), ErrorKind::AddressNul { at: 1 });
}

#[test]
fn a_fresh_address_parses() {
    let fresh = Address::fresh();
    assert_eq!(fresh.to_string().parse::<Address>().unwrap(), fresh);
}

proptest! {
    #[test]
    fn an_abstract_name_parses_what_it_prints(name in vec(1u8.., 1..=LONGEST)) {
        let address = Address::named(&name).unwrap();
        prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }

    #[test]
    fn a_path_parses_what_it_prints(path in "[a-z./@\\\\ é]{1,40}") {
        let address = Address::path(&path).unwrap();
        prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }

    #[test]
    fn a_text_that_parses_prints_one_that_parses_to_the_same(text in "[a-z./@\\\\x0-9 é]{0,40}") {
        if let Ok(address) = text.parse::<Address>() {
            prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }
    }
}
