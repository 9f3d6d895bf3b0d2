//! A region may lie in a dmabuf. `/dev/udmabuf` makes one of a memfd, if the kernel has it (`CONFIG_UDMABUF`).

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use slipring::ErrorKind;
use slipring::error::RegionFault;
use slipring::region::{RegionKind, Registry, SigbusGuard, Source};

use crate::support::dmabuf::{PAGE, dmabuf};

#[test]
fn a_dmabuf_is_read_and_written_with_and_without_the_guard() {
    for round in 0..2 {
        let Some((dmabuf, memory)) = dmabuf() else { return };
        let registry = Registry::new().unwrap();
        registry.register("buffer", Source::Dmabuf(dmabuf.as_fd()), 100, 3 * PAGE).unwrap();
        drop(dmabuf);
        let status = registry.status("buffer").unwrap();
        assert_eq!((status.kind, status.len), (RegionKind::Dmabuf, 3 * PAGE));
        assert!(status.writable && !status.sealed);

        let lease = registry.lease("buffer", 28, 5000).unwrap();
        memory.write_at(&[round + 1; 64], 128).unwrap();
        let mut bytes = [0; 64];
        lease.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [round + 1; 64]);
        assert_eq!(lease.in_place(|bytes| bytes.slice(0, 64).to_vec()).unwrap(), bytes);
        lease.write_at(4999, &[7]).unwrap();
        lease.in_place_mut(|room| room.slice(4990, 4).copy_from(&[8; 4])).unwrap();
        let mut there = [0; 10];
        memory.read_at(&mut there, 128 + 4990).unwrap();
        assert_eq!(there, [8, 8, 8, 8, 0, 0, 0, 0, 0, 7]);
        assert_eq!(lease.bytes().unwrap_err().kind(), &ErrorKind::Region(RegionFault::Unsealed));
        SigbusGuard::install().unwrap();
    }
}

#[test]
fn a_region_beyond_its_dmabuf_is_refused() {
    let Some((dmabuf, _memory)) = dmabuf() else { return };
    let registry = Registry::new().unwrap();
    let answer = registry.register("buffer", Source::Dmabuf(dmabuf.as_fd()), PAGE, 4 * PAGE);
    let beyond = RegionFault::Range { offset: PAGE, len: 4 * PAGE, size: 4 * PAGE };
    assert_eq!(answer.unwrap_err().kind(), &ErrorKind::Region(beyond));
}
