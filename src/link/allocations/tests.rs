//! Unit tests of `link::allocations`.

use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;

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

fn shared() -> SharedAllocation {
    SharedAllocation::new(DEVICE, 2 << 20, descriptor())
}

/// A peer that notes what is withdrawn, and whether its socket takes packets.
#[derive(Default)]
struct Peer {
    withdrawn: Mutex<Vec<u64>>,
    is_full: AtomicBool,
}

impl WithdrawalWay for Arc<Peer> {
    fn withdraw(&self, number: u64) -> bool {
        let takes = !self.is_full.load(Ordering::Relaxed);
        if takes {
            self.withdrawn.lock().unwrap().push(number);
        }
        takes
    }

    fn socket(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

impl Peer {
    fn new() -> (Arc<Self>, Arc<AnnouncedAllocations>) {
        let peer = Arc::new(Self::default());
        let allocations = AnnouncedAllocations::new(peer.clone());
        (peer, allocations)
    }

    fn withdrawn(&self) -> Vec<u64> {
        self.withdrawn.lock().unwrap().clone()
    }
}

#[test]
fn an_allocation_that_is_gone_is_withdrawn_at_once_from_each_peer_that_knows_it() {
    let (first, second) = (shared(), shared());
    assert_ne!(first.number(), second.number());
    let number = first.number();
    let (packet, _) = first.announcement();
    assert_eq!(packet, Packet::Allocation { number, len: 2 << 20, device: DEVICE.0 });
    let peers = [Peer::new(), Peer::new(), Peer::new()];
    for (_, allocations) in &peers[..2] {
        assert!(!allocations.knows(&first) && allocations.has_room());
        allocations.announced(&first);
        allocations.announced(&second);
        assert!(allocations.knows(&first));
    }
    std::thread::spawn(move || drop(first)).join().unwrap();
    for (peer, allocations) in &peers[..2] {
        assert_eq!(peer.withdrawn(), [number]);
        assert!(!allocations.state().known.contains(&number) && allocations.knows(&second));
        // Nothing is left to the sender.
        allocations.withdraw_gone(|_| Err(())).unwrap();
    }
    assert!(peers[2].0.withdrawn().is_empty());
}

#[test]
fn what_a_full_socket_does_not_take_is_left_to_the_sender() {
    let (peer, allocations) = Peer::new();
    let all = [shared(), shared()];
    let numbers = all.each_ref().map(SharedAllocation::number);
    all.iter().for_each(|shared| allocations.announced(shared));
    peer.is_full.store(true, Ordering::Relaxed);
    drop(all);
    assert!(peer.withdrawn().is_empty() && allocations.state().known.len() == 2);
    let mut sent = Vec::new();
    allocations.withdraw_gone(|_| Err("full")).unwrap_err();
    let all = allocations.withdraw_gone(|number| {
        sent.push(number);
        Ok::<_, ()>(())
    });
    all.unwrap();
    sent.sort_unstable();
    assert_eq!(sent, numbers);
    assert!(allocations.state().known.is_empty());
}

#[test]
fn links_that_end_leave_nothing_with_an_allocation_that_stays() {
    let shared = shared();
    for _ in 0..100 {
        let (_, allocations) = Peer::new();
        allocations.announced(&shared);
    }
    assert!(shared.known_by().len() <= 2);
}

#[test]
fn a_peer_has_no_room_for_more_allocations_than_the_wire_allows() {
    let (_, allocations) = Peer::new();
    let shared = shared();
    allocations.announced(&shared);
    assert!(allocations.has_room());
    let others = (0..ALLOCATIONS as u64 - 1).map(|at| u64::MAX - at);
    allocations.state().known.extend(others);
    assert!(!allocations.has_room());
}

#[test]
fn a_listener_hears_of_the_end_of_an_allocation_once() {
    let heard = Arc::new(AtomicU64::new(0));
    let mut passed = passed();
    passed.add(7, (DEVICE, 2 << 20), untrusted()).unwrap();
    let tensor = passed.get(7).unwrap().clone();
    for _ in 0..2 {
        let heard = heard.clone();
        tensor.when_gone(move || {
            heard.fetch_add(1, Ordering::Relaxed);
        });
    }
    passed.withdraw(7);
    assert_eq!(heard.load(Ordering::Relaxed), 0, "a tensor keeps it");
    drop(tensor);
    assert_eq!(heard.load(Ordering::Relaxed), 1);
}
