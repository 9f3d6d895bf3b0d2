//! Unit tests of `channel::metadata`.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

fn fault(result: Result<impl fmt::Debug>) -> MetadataFault {
    match result.unwrap_err().kind() {
        ErrorKind::Metadata(fault) | ErrorKind::Fault(crate::error::Fault::Metadata(fault)) => {
            *fault
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the section of these entries.
fn section(entries: &[u8]) -> Vec<u8> {
    let mut bytes = (entries.len() as u16).to_le_bytes().to_vec();
    bytes.extend(entries);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn judged(section: &[u8]) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    metadata.replace(section).map(|()| metadata)
}

#[test]
fn values_survive_their_section_in_order() {
    let early = UNIX_EPOCH - Duration::from_nanos(1);
    let metadata = meta! {
        "integer" => i64::MIN, "float" => -0.5, "string" => "ü", "empty" => "", "time" => SystemTime::now(),
        "early" => early, "yes" => true, "no" => false,
    }
    .unwrap();
    assert!(metadata.section().len().is_multiple_of(8));
    let again = judged(metadata.section()).unwrap();
    assert_eq!(again, metadata);
    assert_eq!(again.len(), 8);
    assert_eq!(again.iter().nth(5), Some(("early", Value::Time(early))));
    assert_eq!(format!("{:?}", meta! { "a" => 1 }.unwrap()), r#"{"a": Integer(1)}"#);
    assert!(meta! {}.unwrap().section().is_empty());
}

#[test]
fn what_does_not_fit_is_an_error_and_changes_nothing() {
    let mut metadata = meta! { "a" => 1 }.unwrap();
    let long = "x".repeat(256);
    let far = UNIX_EPOCH + Duration::from_secs(1 << 40);
    assert_eq!(fault(metadata.insert("", 1)), MetadataFault::Name { len: 0, max: 63 });
    assert_eq!(fault(metadata.insert(&long[..64], 1)), MetadataFault::Name { len: 64, max: 63 });
    assert_eq!(fault(metadata.insert("a", 2)), MetadataFault::SameName { first: 0, second: 1 });
    assert_eq!(fault(metadata.insert("b", &long)), MetadataFault::Text { len: 256, max: 255 });
    assert_eq!(fault(metadata.insert("b", far)), MetadataFault::Time);
    metadata.insert("b", &long[..255]).unwrap();
    // 11 bytes, 259 bytes, and 242 that fill the rest.
    assert_eq!(
        fault(metadata.insert("c", &long[..239])),
        MetadataFault::Len { len: 513, max: 512 }
    );
    assert_eq!(metadata.len(), 2);
    metadata.insert("c", &long[..238]).unwrap();
    assert_eq!(metadata.section().len(), LONGEST);
    assert_eq!(judged(metadata.section()).unwrap(), metadata);
}

#[test]
fn each_lie_in_a_section_is_a_fault() {
    let integer = |code, name: &str, value: i64| {
        let mut entry = vec![code, name.len() as u8];
        entry.extend(name.as_bytes());
        entry.extend(value.to_le_bytes());
        entry
    };
    let one = integer(INTEGER, "a", 1);
    let lies = [
        (section(&[]), MetadataFault::Len { len: 0, max: 512 }),
        (section(&[0; 513]), MetadataFault::Len { len: 513, max: 512 }),
        (section(&one)[..8].to_vec(), MetadataFault::Len { len: 11, max: 512 }),
        (section(&integer(0, "a", 1)), MetadataFault::Type { index: 0, code: 0 }),
        (section(&integer(6, "a", 1)), MetadataFault::Type { index: 0, code: 6 }),
        (section(&integer(BOOLEAN, "a", 2)), MetadataFault::Bool { index: 0, value: 2 }),
        (section(&integer(INTEGER, "", 1)), MetadataFault::Name { len: 0, max: 63 }),
        (
            section(&[one.clone(), one.clone()].concat()),
            MetadataFault::SameName { first: 0, second: 1 },
        ),
        (section(&[INTEGER]), MetadataFault::Cut { index: 0 }),
        (section(&[INTEGER, 2, b'a']), MetadataFault::Cut { index: 0 }),
        (section(&one[..10]), MetadataFault::Cut { index: 0 }),
        (section(&[STRING, 1, b'a']), MetadataFault::Cut { index: 0 }),
        (section(&[STRING, 1, b'a', 2, b'x']), MetadataFault::Cut { index: 0 }),
        (section(&[STRING, 1, b'a', 1, 0xFF]), MetadataFault::Utf8 { index: 0 }),
        (section(&[STRING, 1, 0xFF, 0]), MetadataFault::Utf8 { index: 0 }),
        ([section(&one), vec![0; 8]].concat(), MetadataFault::Padding),
    ];
    for (lie, expected) in lies {
        assert_eq!(fault(judged(&lie)), expected, "{lie:?}");
    }
    let mut padded = section(&one);
    *padded.last_mut().unwrap() = 1;
    assert_eq!(fault(judged(&padded)), MetadataFault::Padding);
    assert!(judged(&section(&one)).is_ok());
}

#[test]
fn as_many_values_as_fit_are_judged() {
    let entries: Vec<u8> = (0..128).flat_map(|name| [STRING, 1, name, 0]).collect();
    assert_eq!(judged(&section(&entries)).unwrap().len(), 128);
}

proptest! {
    #[test]
    fn a_section_that_is_taken_shows_each_of_its_values(
        bytes in prop::collection::vec(prop_oneof![0..8u8, any::<u8>()], 0..80),
    ) {
        if let Ok(metadata) = judged(&section(&bytes)) {
            let mut again = Metadata::new();
            for (name, value) in metadata.iter() {
                again.insert(name, value).unwrap();
            }
            prop_assert_eq!(again, metadata);
        }
    }
}
