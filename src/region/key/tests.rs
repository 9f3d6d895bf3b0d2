//! Unit tests of `region::key`.

use proptest::prelude::*;

use super::*;

#[test]
fn a_key_that_could_lead_elsewhere_is_refused() {
    let nothing = |key: &str| RegionFault::KeyNamesNothing { key: key.to_owned() };
    for key in ["", "/", "//", ".", "..", "/.", "/..", "//.."] {
        assert_eq!(Key::parse(key), Err(nothing(key)));
    }
    let cases = [
        ("/../x", '/', 3),
        ("../x", '/', 2),
        ("//x/y", '/', 3),
        ("x/y", '/', 1),
        ("/x/", '/', 2),
        ("a\0b", '\0', 1),
        ("a\nb", '\n', 1),
        ("a\u{85}b", '\u{85}', 1),
    ];
    for (key, character, at) in cases {
        assert_eq!(Key::parse(key), Err(RegionFault::KeyCharacter { character, at }), "{key:?}");
    }
    let long = "k".repeat(256);
    let too_long = RegionFault::KeyTooLong { len: 256, max: 255 };
    assert_eq!(Key::parse(&long), Err(too_long.clone()));
    assert_eq!(Key::parse(&format!("/{long}")), Err(too_long));
}

#[test]
fn the_keys_of_unmodified_clients_are_taken_as_they_are() {
    let longest = format!("/{}", "k".repeat(255));
    let keys = [
        "input_data",
        "/input_simple",
        "/onnx::MatMul_0",
        "images:0",
        "...",
        "//two",
        "/a b",
        "ключ",
        "a\\b",
    ];
    for key in keys.into_iter().chain([longest.as_str()]) {
        let parsed = Key::parse(key).unwrap();
        assert_eq!(parsed.given(), key);
        assert_eq!(parsed.path(), format!("/dev/shm/{}", key.trim_start_matches('/')));
    }
}

proptest! {
    #[test]
    fn no_key_leaves_the_directory(key in "[/.a\\x00 ]{0,6}|\\PC{0,12}") {
        if let Ok(key) = Key::parse(&key) {
            let path = key.path();
            let name = path.strip_prefix("/dev/shm/").unwrap();
            prop_assert!(!name.is_empty() && !name.contains('/') && !name.contains('\0'));
            prop_assert!(name != "." && name != "..");
        }
    }
}
