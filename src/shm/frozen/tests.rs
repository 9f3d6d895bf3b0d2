//! Unit tests of `shm::frozen`.

use super::*;
use crate::error::{ErrorKind, Fault};
use crate::shm::{Backing, Segment, page_size};

fn frozen(byte: u8) -> Frozen {
    let mut draft = Draft::create(page_size()).unwrap();
    draft.bytes_mut(page_size()).fill(byte);
    draft.freeze().unwrap()
}

#[test]
fn frozen_memory_is_read_by_everybody_and_written_by_nobody() {
    let ours = frozen(7);
    let fd = ours.fd().try_clone_to_owned().unwrap();
    assert!(rustix::io::pwrite(&fd, b"no", 0).is_err());
    assert!(Mapping::map(&fd, page_size(), page_size()).is_err());
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    let theirs = Frozen::attach(fd, page_size()).unwrap();
    drop(ours);
    assert_eq!(theirs.bytes(1, 3), [7, 7, 7]);
}

#[test]
fn memory_that_its_owner_can_write_is_not_taken_for_frozen() {
    let writable = Segment::create(page_size(), page_size(), Backing::default()).unwrap();
    let fd = writable.fd().try_clone_to_owned().unwrap();
    let error = Frozen::attach(fd, page_size()).unwrap_err();
    let seals = matches!(error.kind(), ErrorKind::Fault(Fault::Seals { .. }));
    assert!(seals, "{error}");
}
