use std::os::unix::fs::FileExt;

use super::layout::{self, ROW};
use super::page::Page;
use super::snapshot::Snapshot;
use super::{Awaited, Facts, Kind, Role, Row, State};

/// Returns the words of a row, as a tool reads them.
fn words(number: u64) -> Option<Vec<u64>> {
    let page = Page::get().unwrap();
    let file = std::fs::File::open(page.path()).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let words = |row: &[u8]| {
        row.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<u64>>()
    };
    bytes
        .chunks_exact(ROW)
        .map(words)
        .skip(1)
        .find(|row| row[0] == Kind::Topic as u64 | number << 8)
}

fn facts(own: u64) -> Facts<'static> {
    Facts {
        role: Role::Publishes,
        peer: (Some(7), 8),
        own,
        theirs: 9,
        context: 10,
        limit: 11,
        address: b"\0camera-left",
        ..Facts::of(Kind::Topic)
    }
}

#[test]
fn a_tool_reads_what_an_object_says_until_it_is_dropped() {
    let row = Row::open(&facts(12)).unwrap();
    let number = row.number();
    let told = words(number).unwrap();
    let at = |offset: usize| told[offset / 8];
    assert!(at(layout::SINCE) > 0);
    assert_eq!(at(layout::PEER), 7 | 8 << 32);
    assert_eq!((at(layout::OWN), at(layout::THEIRS)), (12, 9));
    assert_eq!((at(layout::CONTEXT), at(layout::LIMIT)), (10, 11));
    assert_eq!(at(layout::ADDRESS_LEN), 12);
    assert_eq!(at(layout::ADDRESS), u64::from_ne_bytes(*b"\0camera-"));
    assert_eq!(at(layout::ADDRESS + 8), u64::from_ne_bytes(*b"left\0\0\0\0"));
    drop(row);
    assert_eq!(words(number), None);
}

#[test]
fn a_half_says_what_it_waits_for_and_since_when() {
    let row = Row::open(&facts(13)).unwrap();
    let mut half = row.half(layout::RECEIVER);
    let state = || {
        let told = words(row.number()).unwrap();
        let at = |offset: usize| told[(layout::RECEIVER + offset) / 8];
        (at(layout::STATE), at(layout::STATE_SINCE), at(layout::MESSAGES))
    };
    half.passed(3, 300);
    half.wait(State::Polling, Awaited::Message);
    let (polls, began, messages) = state();
    assert_eq!((polls, messages), (State::Polling as u64 | (Awaited::Message as u64) << 8, 3));
    assert!(began > 0);
    // A wait that goes on keeps its start.
    std::thread::sleep(std::time::Duration::from_millis(20));
    half.wait(State::Parked, Awaited::Message);
    assert_eq!(
        (state().0, state().1),
        (State::Parked as u64 | (Awaited::Message as u64) << 8, began)
    );
    // So does one that begins anew after its deadline, as long as nothing passes.
    half.run();
    assert_eq!(state().0, State::Running as u64);
    half.wait(State::Parked, Awaited::Message);
    assert_eq!(state().1, began);
    half.run();
    half.passed(4, 400);
    half.wait(State::Parked, Awaited::Message);
    assert!(state().1 > began);
    // In a stream one count in sixteen is stored.
    (5..20).for_each(|count| assert!(!half.pass(count, 100 * count, true)));
    assert_eq!(state().2, 4);
    assert!(half.pass(20, 2000, true));
    assert_eq!(state().2, 20);
    half.leave();
    assert_eq!(state().0, State::Gone as u64);
}

/// Returns a row as a tool reads it, with one word of it changed.
fn read(row: &Row, at: usize, word: u64) -> Option<Snapshot> {
    let mut told = words(row.number()).unwrap();
    told[at / 8] = word;
    let bytes: Vec<u8> = told.into_iter().flat_map(u64::to_ne_bytes).collect();
    Snapshot::read(&bytes)
}

#[test]
fn a_row_with_a_word_that_cannot_be_is_none() {
    let policy = (2, 5);
    let facts = Facts { role: Role::Subscribes, policy, version: 1, ..Facts::of(Kind::Topic) };
    let row = Row::open(&facts).unwrap();
    let honest = read(&row, layout::OWN, 12).unwrap();
    assert_eq!((honest.kind, honest.role, honest.own), (Kind::Topic, Role::Subscribes, 12));
    assert_eq!((honest.policy, honest.depth, honest.version), (2, 5, 1));
    let state = layout::SENDER + layout::STATE;
    let waits = |awaited: u64| State::Parked as u64 | awaited << 8;
    assert_eq!(read(&row, state, waits(2)).unwrap().sender.awaited, Some(Awaited::Room));
    for (at, word) in [
        (layout::STAMP, 0),
        (layout::STAMP, 5),
        (layout::ROLE, 5),
        (layout::ADDRESS_LEN, 113),
        (layout::ADDRESS_LEN, u64::MAX),
        (state, 5),
        (state, waits(0)),
        (state, waits(5)),
    ] {
        assert!(read(&row, at, word).is_none(), "{at}: {word}");
    }
    let link = Kind::Link as u64;
    let mut told = words(row.number()).unwrap();
    (told[0], told[layout::END / 8]) = (link, 4);
    let bytes: Vec<u8> = told.into_iter().flat_map(u64::to_ne_bytes).collect();
    assert!(Snapshot::read(&bytes).is_none());
    assert!(Snapshot::read(&bytes[..511]).is_none());
}

#[test]
fn more_objects_than_rows_of_a_page_have_rows_of_their_own() {
    let rows: Vec<_> = (0..100).map(|own| Row::open(&facts(1000 + own)).unwrap()).collect();
    for (own, row) in rows.iter().enumerate() {
        let told = words(row.number()).unwrap();
        assert_eq!(told[layout::OWN / 8], 1000 + own as u64);
    }
}

#[test]
fn objects_beyond_the_last_row_share_the_spare_one() {
    let page = Page::make(64).unwrap();
    let taken: Vec<u32> = (0..100).map(|_| page.take().0).collect();
    let (own, spare): (Vec<u32>, Vec<u32>) =
        taken.iter().partition(|index| !Page::is_spare(**index));
    assert!(own.len() >= 40 && !spare.is_empty(), "{taken:?}");
    assert!(own.is_sorted_by(|one, other| one < other), "{taken:?}");
    page.give_back(own[3]);
    page.give_back(spare[0]);
    assert_eq!((page.take().0, page.take().0), (own[3], spare[0]));
}
