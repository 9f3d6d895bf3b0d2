//! Unit tests of `link::allocations`.

use std::os::fd::AsRawFd;

use super::*;
use crate::account::Limits;
use crate::error::ErrorKind;
use crate::handshake::untrusted::UntrustedFds;

const DEVICE: GpuUuid = GpuUuid([1; 16]);

fn descriptor() -> OwnedFd {
    rustix::fs::memfd_create("allocation", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}

fn untrusted() -> UntrustedFd {
    let mut fds = UntrustedFds::default();
    fds.push(descriptor());
    fds.pop().unwrap()
}

fn passed() -> PassedAllocations {
    PassedAllocations::new(Account::of_link((0, None), Limits::default()))
}

#[test]
fn an_allocation_is_there_from_its_announcement_to_its_withdrawal() {
    let mut passed = passed();
    passed.add(7, (DEVICE, 2 << 20), untrusted()).unwrap();
    let found = passed.get(7).unwrap().clone();
    assert_eq!((found.len(), found.device()), (2 << 20, DEVICE));
    assert!(!found.is_empty() && found.as_fd().as_raw_fd() >= 0);
    let again = passed.add(7, (DEVICE, 2 << 20), untrusted()).unwrap_err();
    let known = Fault::Field { field: "allocation.number", value: 7 };
    assert_eq!(*again.kind(), ErrorKind::Fault(known));
    passed.withdraw(8);
    passed.withdraw(7);
    assert!(passed.get(7).is_none());
    // An allocation in use keeps its descriptor open.
    rustix::fs::fstat(found.as_fd()).unwrap();
}

#[test]
fn allocations_have_a_limit_and_an_account() {
    let mut limits = Limits::default();
    limits.set_link(Resource::Descriptors, 2);
    let mut passed = PassedAllocations::new(Account::of_link((0, None), limits));
    for number in 0..2 {
        passed.add(number, (DEVICE, 2 << 20), untrusted()).unwrap();
    }
    let full = passed.add(2, (DEVICE, 2 << 20), untrusted()).unwrap_err();
    assert!(matches!(full.kind(), ErrorKind::AccountFull { .. }), "{full}");
    passed.withdraw(0);
    passed.add(2, (DEVICE, 2 << 20), untrusted()).unwrap();
    // As many as the wire allows, whatever the account says.
    let one = passed.get(2).unwrap().clone();
    passed.known.extend((100..).map(|number| (number, one.clone())).take(ALLOCATIONS - 2));
    let fault = Fault::PeerAllocations { count: ALLOCATIONS + 1, limit: ALLOCATIONS };
    let many = passed.add(3, (DEVICE, 2 << 20), untrusted()).unwrap_err();
    assert_eq!(*many.kind(), ErrorKind::Fault(fault));
}

#[test]
fn an_allocation_that_is_gone_is_withdrawn_once_from_each_peer() {
    let make = || Arc::new(SharedAllocation::new(DEVICE, 2 << 20, descriptor()));
    let (first, second) = (make(), make());
    assert_ne!(first.number(), second.number());
    let mut peers = [AnnouncedAllocations::default(), AnnouncedAllocations::default()];
    for peer in &mut peers {
        assert!(!peer.knows(&first) && peer.has_room());
        peer.announced(&first);
        peer.announced(&second);
        assert!(peer.knows(&first) && peer.gone().is_empty());
    }
    let (packet, _) = AnnouncedAllocations::announcement(&first);
    let number = first.number();
    assert_eq!(packet, Packet::Allocation { number, len: 2 << 20, device: DEVICE.0 });
    drop(first);
    for peer in &mut peers {
        let before = count_gone();
        // Two looks before the packet is sent: it is not forgotten.
        assert_eq!((peer.gone(), peer.gone()), (vec![number], vec![number]));
        peer.withdrew(number);
        peer.withdrew_all(before);
        assert!(peer.gone().is_empty() && peer.knows(&second));
    }
}

#[test]
fn a_peer_has_no_room_for_more_allocations_than_the_wire_allows() {
    let mut announced = AnnouncedAllocations::default();
    let shared = Arc::new(SharedAllocation::new(DEVICE, 2 << 20, descriptor()));
    announced.announced(&shared);
    assert!(announced.has_room());
    let others = (0..ALLOCATIONS as u64 - 1).map(|at| (u64::MAX - at, Arc::downgrade(&shared)));
    announced.known.extend(others);
    assert!(!announced.has_room());
}
