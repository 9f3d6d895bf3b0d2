//! Unit tests of `shm::frozen`.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc;

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
    let theirs = Frozen::attach(fd, page_size(), false).unwrap();
    drop(ours);
    assert_eq!(theirs.bytes(1, 3), [7, 7, 7]);
}

#[test]
fn memory_that_its_owner_can_write_is_not_taken_for_frozen() {
    let writable =
        Segment::create("slipring.test", (page_size(), page_size()), Backing::default()).unwrap();
    let fd = writable.fd().try_clone_to_owned().unwrap();
    let error = Frozen::attach(fd, page_size(), false).unwrap_err();
    let seals = matches!(error.kind(), ErrorKind::Fault(Fault::Seals { .. }));
    assert!(seals, "{error}");
}

/// Says whether its drop finds the file open under the number.
#[derive(Debug)]
struct Probe(RawFd, (u64, u64), mpsc::SyncSender<bool>);

impl Drop for Probe {
    fn drop(&mut self) {
        let path = format!("/proc/self/fd/{}", self.0);
        let is_open = rustix::fs::stat(path).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.1);
        let _ = self.2.send(is_open);
    }
}

#[test]
fn the_end_of_its_mapping_frees_frozen_memory_and_not_that_of_its_descriptor() {
    let frozen = frozen(7);
    let stat = rustix::fs::fstat(frozen.fd()).unwrap();
    let (said, heard) = mpsc::sync_channel(1);
    frozen.count(Probe(frozen.fd().as_raw_fd(), (stat.st_dev, stat.st_ino), said));
    drop(frozen);
    assert!(!heard.recv().unwrap(), "the descriptor outlived the mapping");
}
