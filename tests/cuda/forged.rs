//! Peers that lie about allocations of GPUs and their file descriptors.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use slipring::cuda::Device;
use slipring::error::{CudaFault, Fault, GpuUuid, TensorFault};
use slipring::tensor::{GpuHandle, GpuOrder, GpuPlace};
use slipring::{Connection, Options};

use crate::errors::{TICKET, description, post};
use crate::support::census::descriptors;
use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{Call, FakeCuda};
use crate::support::gpus::{alone, cuda_fault, device, is_closed, recv};
use crate::support::raw::{self, Lent, RawPeer, allocation_packet, withdraw_packet};
use crate::support::{Stage, fault, soon, stays_faulty, wait_until};

const MIB: u64 = 1 << 20;

/// Returns the place of a tensor of 64 bytes at the start of an announced allocation.
pub fn place(device: GpuUuid, number: u64, allocation: u64) -> GpuPlace {
    let (memory, order) = (GpuHandle::Announced(number), GpuOrder::Synchronized);
    GpuPlace { device, memory, allocation, offset: 0, len: 64, order }
}

/// Announces whatever a descriptor is, and tells the peer to read its socket.
pub fn announce(peer: &mut RawPeer, packet: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    raw::send(&peer.socket, packet, &fds).unwrap();
    peer.publish(raw::header(raw::PACKETS, 0), &[]);
}

fn memfd() -> OwnedFd {
    rustix::fs::memfd_create("no allocation", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}

pub const TWO: [Lent; 2] = [TICKET, Lent { slot: 1, generation: 6, ..TICKET }];

#[test]
fn an_announcement_or_a_place_that_lies_ends_the_link() {
    let uuid = GpuUuid([1; 16]);
    let mut stage = Stage::new(Options::new());
    let field = |field, value| Fault::Field { field, value };
    let of_place = |field, value| Fault::Tensor(TensorFault::Field { field, value });
    let honest = allocation_packet(7, 2 * MIB, uuid.0);
    let with = |memory, order| GpuPlace { memory, order, ..place(uuid, 7, 2 * MIB) };
    let handle = GpuHandle::Announced(7);
    let range = |offset| TensorFault::GpuRange { offset, len: 8, allocation: 2 * MIB };
    let word = |offset| with(handle, GpuOrder::Word { offset, value: 1 });
    let mut bad_kind = description(&place(uuid, 7, 2 * MIB));
    let mut bad_order = bad_kind.clone();
    bad_kind[8 + 16] = 3;
    bad_order[8 + 20] = 0;
    // The packets, and what is said of the allocation.
    let lies = [
        (vec![allocation_packet(7, 0, uuid.0)], None, field("allocation.len", 0)),
        (vec![allocation_packet(7, MIB, uuid.0)], None, field("allocation.len", MIB)),
        (vec![allocation_packet(7, 1 << 49, uuid.0)], None, field("allocation.len", 1 << 49)),
        (vec![honest.clone(), honest.clone()], None, field("allocation.number", 7)),
        (
            vec![],
            Some(description(&place(uuid, 7, 2 * MIB))),
            Fault::UnknownAllocation { number: 7 },
        ),
        (
            vec![honest.clone(), withdraw_packet(7)],
            Some(description(&place(uuid, 7, 2 * MIB))),
            Fault::UnknownAllocation { number: 7 },
        ),
        (
            vec![honest.clone()],
            Some(description(&place(uuid, 8, 2 * MIB))),
            Fault::UnknownAllocation { number: 8 },
        ),
        (
            vec![honest.clone()],
            Some(description(&place(uuid, 7, 4 * MIB))),
            of_place("place.allocation", 4 * MIB),
        ),
        (
            vec![honest.clone()],
            Some(description(&place(GpuUuid([2; 16]), 7, 2 * MIB))),
            of_place("place.device", 7),
        ),
        (vec![honest.clone()], Some(bad_kind), of_place("place.memory", 3)),
        (vec![honest.clone()], Some(bad_order), of_place("place.order", 0)),
        (
            vec![honest.clone()],
            Some(description(&word(2 * MIB - 7))),
            Fault::Tensor(range(2 * MIB - 7)),
        ),
        (vec![honest.clone()], Some(description(&word(u64::MAX))), Fault::Tensor(range(u64::MAX))),
        (
            vec![honest.clone()],
            Some(description(&word(12))),
            Fault::Tensor(TensorFault::Alignment { alignment: 8 }),
        ),
    ];
    for (packets, description, expected) in lies {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        for packet in packets {
            let fds = if packet[8] == 8 { vec![memfd()] } else { vec![] };
            announce(&mut peer, &packet, &fds);
        }
        post(&mut peer, &TWO, &description.unwrap_or_default());
        assert_eq!(fault(link.receiver().recv_tensors()), expected);
        stays_faulty(&mut link, expected);
    }
    // A packet without its descriptor, and with two.
    for count in [0, 2] {
        let (mut link, mut peer) = stage.link();
        let fds: Vec<_> = (0..count).map(|_| memfd()).collect();
        announce(&mut peer, &honest, &fds);
        let expected = Fault::DescriptorCount { count, expected: 1 };
        assert_eq!(fault(link.receiver().recv_tensors()), expected);
    }
    // A number that was withdrawn may come again, and one that is unknown is nobody's business.
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    for _ in 0..3 {
        announce(&mut peer, &withdraw_packet(7), &[]);
        announce(&mut peer, &honest, &[memfd()]);
        post(&mut peer, &TWO, &description(&place(uuid, 7, 2 * MIB)));
        drop(recv(&mut link));
        announce(&mut peer, &withdraw_packet(7), &[]);
    }
    stage.is_undisturbed();
}

/// Makes an allocation in this process, which plays a peer. Returns its descriptor.
pub fn allocate(device: i32, len: usize) -> OwnedFd {
    let properties = driver::AllocationProp::new(device, true);
    let handle = driver::given(|handle| driver::cuMemCreate(handle, len, &properties, 0));
    let mut fd = -1;
    let to = (&raw mut fd).cast();
    assert_eq!(driver::cuMemExportToShareableHandle(to, handle, 1, 0), 0);
    assert_eq!(driver::cuMemRelease(handle), 0);
    // SAFETY: the driver has opened it for the caller.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[test]
fn a_descriptor_that_is_not_what_its_peer_says_is_an_error_of_its_own() {
    const TEST: &str = "a_descriptor_that_is_not_what_its_peer_says_is_an_error_of_its_own";
    let cuda = FakeCuda::new().if_fake(|cuda| cuda.devices(2));
    alone(TEST, &cuda, || {
        let device = device();
        let stream = device.stream().unwrap();
        let mut stage = Stage::new(Options::new());
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        let before = descriptors();
        let uuid = device.uuid();
        let file = |path: &str| OwnedFd::from(File::open(path).unwrap());
        let (socket, other_end) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pipe, write_end) = rustix::pipe::pipe().unwrap();
        let not = CudaFault::NotAllocation;
        let hidden = GpuUuid([9; 16]);
        let short = CudaFault::ShortAllocation { claimed: 4 * MIB };
        // More than the GPU has, and the most that the wire allows.
        let more = device.total_memory().next_multiple_of(2 * MIB) + 2 * MIB;
        let most = 1 << 48;
        // What it is, where it is said to be, how long it is said to be, and the error.
        let mut lies: Vec<(OwnedFd, GpuUuid, u64, CudaFault)> = vec![
            (memfd(), uuid, 2 * MIB, not.clone()),
            (file("/dev/null"), uuid, 2 * MIB, not.clone()),
            (file("/proc/self/exe"), uuid, 2 * MIB, not.clone()),
            (file("/proc/self"), uuid, 2 * MIB, not.clone()),
            (socket.into(), uuid, 2 * MIB, not.clone()),
            (pipe, uuid, 2 * MIB, not.clone()),
            (allocate(0, 2 << 20), uuid, 4 * MIB, short.clone()),
            (allocate(0, 2 << 20), uuid, more, CudaFault::ShortAllocation { claimed: more }),
            (allocate(0, 2 << 20), uuid, most, CudaFault::ShortAllocation { claimed: most }),
            (allocate(0, 2 << 20), hidden, 2 * MIB, CudaFault::HiddenDevice { is: hidden }),
        ];
        if Device::count().unwrap() > 1 {
            let wrong = CudaFault::WrongDevice { said: uuid };
            lies.push((allocate(1, 2 << 20), uuid, 2 * MIB, wrong));
        }
        for (number, (fd, said, len, expected)) in (0u64..).zip(lies) {
            announce(&mut peer, &allocation_packet(number, len, said.0), &[fd]);
            post(&mut peer, &TWO, &description(&place(said, number, len)));
            let tensor = recv(&mut link);
            // Twice: what was refused is refused.
            for _ in 0..2 {
                let refused = device.open(&tensor, &stream).unwrap_err();
                let is_told = std::error::Error::source(&refused).is_some();
                let by_driver = expected == not || expected == short;
                assert_eq!(is_told, by_driver, "{refused:?}");
                assert_eq!(cuda_fault::<()>(Err(refused)), expected);
            }
            drop(tensor);
            announce(&mut peer, &withdraw_packet(number), &[]);
            let returned = || [0, 8].map(|at| peer.theirs().load(raw::RETURNS + at));
            if matches!(expected, CudaFault::WrongDevice { .. }) {
                // It was mapped before its GPU was known, and is unmapped on another thread.
                wait_until("the loans are back", || returned() == [5, 6]);
            }
            assert_eq!(returned(), [5, 6]);
        }
        // The others are not disturbed, on this link either. A longer allocation is mapped as far as is said.
        announce(&mut peer, &allocation_packet(100, 2 * MIB, uuid.0), &[allocate(0, 4 << 20)]);
        post(&mut peer, &TWO, &description(&place(uuid, 100, 2 * MIB)));
        let tensor = recv(&mut link);
        // Withdrawn and on loan: it is opened all the same.
        announce(&mut peer, &withdraw_packet(100), &[]);
        peer.publish(raw::message(4), b"word");
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"word");
        assert_eq!(device.to_host(&tensor, &stream).unwrap().byte_len(), 64);
        drop((tensor, link, peer, other_end, write_end));
        is_closed(&device);
        stage.is_undisturbed();
        wait_until("all descriptors are closed", || descriptors() <= before);
    });
    cuda.was_used_well();
}

#[test]
fn memory_that_is_said_to_be_of_another_gpu_makes_a_context_there_once_and_junk_makes_none() {
    const TEST: &str =
        "memory_that_is_said_to_be_of_another_gpu_makes_a_context_there_once_and_junk_makes_none";
    const TIMES: u64 = 10;
    let cuda = FakeCuda::new().devices(2);
    if !cuda.is_there(TEST) {
        return;
    }
    alone(TEST, &cuda, || {
        let reader = Device::new(1).unwrap();
        let stream = reader.stream().unwrap();
        let mut stage = Stage::new(Options::new());
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        let said = driver::given(|uuid| driver::cuDeviceGetUuid_v2(uuid, 0));
        let mut opened = 0;
        for number in 0..3 * TIMES {
            // No allocation, one of another GPU, and one that is what it is said to be.
            let (fd, fault) = match number % 3 {
                0 => (memfd(), Some(CudaFault::NotAllocation)),
                1 => (allocate(1, 2 << 20), Some(CudaFault::WrongDevice { said: GpuUuid(said) })),
                // Behind some lies, each over a link of its own, which lets go of it.
                _ if number < 3 * TIMES / 2 => continue,
                _ => (allocate(0, 2 << 20), None),
            };
            announce(&mut peer, &allocation_packet(number, 2 * MIB, said), &[fd]);
            post(&mut peer, &TWO, &description(&place(GpuUuid(said), number, 2 * MIB)));
            let tensor = recv(&mut link);
            match (reader.open(&tensor, &stream), fault) {
                (Ok(view), None) => {
                    drop((view, tensor));
                    opened += 1;
                    drop((link, peer));
                    is_closed(&reader);
                    (link, peer) = stage.link();
                    peer.send_segment(1, 1 << 20);
                }
                (refused, fault) => {
                    assert_eq!(Some(cuda_fault(refused)), fault);
                    drop(tensor);
                    announce(&mut peer, &withdraw_packet(number), &[]);
                }
            }
        }
        assert!(opened > 1);
    });
    cuda.was_used_well();
    let trace = cuda.trace();
    let makes =
        |call: &Call| call.name == "cuDevicePrimaryCtxRetain" && call.arguments == ["dev:0"];
    assert_eq!(trace.iter().filter(|call| makes(call)).count(), 1);
    // The first lies came before.
    let before = trace.iter().take_while(|call| !makes(call));
    let refused =
        before.filter(|call| call.name == "cuMemImportFromShareableHandle" && call.code != 0);
    assert!(refused.count() > 2);
}

#[test]
fn a_number_that_comes_again_names_another_allocation() {
    const TEST: &str = "a_number_that_comes_again_names_another_allocation";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        let device = device();
        let stream = device.stream().unwrap();
        let mut stage = Stage::new(Options::new());
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        let uuid = device.uuid();
        let mut views = Vec::new();
        for (at, len) in (0u32..).zip([2 * MIB, 4 * MIB]) {
            let fd = allocate(0, len as usize);
            announce(&mut peer, &allocation_packet(7, len, uuid.0), &[fd]);
            let two = TWO.map(|lent| Lent { slot: lent.slot + 2 * at, ..lent });
            post(&mut peer, &two, &description(&place(uuid, 7, len)));
            // The first one stays open beyond its number.
            views.push(device.open(&recv(&mut link), &stream).unwrap());
            announce(&mut peer, &withdraw_packet(7), &[]);
        }
        assert_ne!(views[0].device_ptr(), views[1].device_ptr());
        drop((views, link, peer));
        is_closed(&device);
    });
    cuda.was_used_well();
}

#[test]
fn a_flood_of_withdrawals_is_left_to_the_receiver_that_sleeps() {
    const TEST: &str = "a_flood_of_withdrawals_is_left_to_the_receiver_that_sleeps";
    let cuda = FakeCuda::new();
    alone(TEST, &cuda, || {
        let device = device();
        let stream = device.stream().unwrap();
        let mut stage = Stage::new(Options::new());
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        let uuid = device.uuid();
        let open = |link: &mut Connection, peer: &mut RawPeer, at: u32| {
            let number = u64::from(at);
            announce(peer, &allocation_packet(number, 2 * MIB, uuid.0), &[allocate(0, 2 << 20)]);
            let two = TWO.map(|lent| Lent { slot: lent.slot + 2 * at, ..lent });
            post(peer, &two, &description(&place(uuid, number, 2 * MIB)));
            device.to_host(&recv(link), &stream).unwrap();
        };
        let returned = |peer: &RawPeer, at: usize| {
            peer.theirs().load(raw::RETURNS + 8 * (2 * at + 1)) == TWO[1].generation
        };
        // Nobody calls the link, and the memory is unmapped.
        open(&mut link, &mut peer, 0);
        raw::send(&peer.socket, &withdraw_packet(0), &[]).unwrap();
        wait_until("the mapping is back", || returned(&peer, 0));
        // Numbers that nobody knows wait for the receiver, and the known one behind them.
        open(&mut link, &mut peer, 1);
        for number in [99, 99, 1] {
            raw::send(&peer.socket, &withdraw_packet(number), &[]).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!returned(&peer, 1), "somebody has read them");
        open(&mut link, &mut peer, 2);
        wait_until("the mapping is back", || returned(&peer, 1));
        drop((link, peer));
        is_closed(&device);
        // A thread of its own closes what came from a peer.
        let is_allocation = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_link(entry.unwrap().path())
                .is_ok_and(|path| path.to_string_lossy().starts_with("/memfd:fake-cuda"))
        };
        wait_until("all descriptors are closed", || {
            !std::fs::read_dir("/proc/self/fd").unwrap().any(is_allocation)
        });
    });
    cuda.was_used_well();
}
