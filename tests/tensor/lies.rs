//! A peer lies about tensors. Its link ends with a fault, and no other link notices.

use std::os::fd::AsFd;

use rustix::fs::SealFlags;
use slipring::error::{Fault, TensorFault, TryRecvError};
use slipring::{Connection, Context, ErrorKind, Options, Reactor};

use crate::support::callbacks::{diary, hear};
use crate::support::census::Census;
use crate::support::other::{self, Other};
use crate::support::raw::{
    self, Hello, Lent, RETURNS, RawPeer, SEALS, memfd, page, segment_packet,
};
use crate::support::{Stage, fault, soon, stays_faulty, unique_name, wait_until};

const PARCEL: u64 = 7;
const FP32: u8 = 11;

/// Returns the header of a record with attachments. Each field may lie.
fn attachment_header(attachments: u64, version: u64, len: usize) -> u64 {
    PARCEL | attachments << 16 | version << 24 | (len as u64) << 32
}

/// A description of one attached tensor.
fn tensor(dtype: u8, dims: &[u32]) -> Vec<u8> {
    let mut bytes = vec![dtype, dims.len() as u8, 0, 0];
    dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
    bytes
}

fn frozen_packet(segment: u32, len: u64) -> Vec<u8> {
    let mut packet = segment_packet(segment, len);
    packet[20] = 1;
    packet
}

impl Post for RawPeer {
    fn post(&mut self, attachments: &[Lent], description: &[u8]) {
        let mut payload: Vec<u8> = attachments.iter().flat_map(Lent::encode).collect();
        payload.extend(description);
        self.publish(attachment_header(attachments.len() as u64, 1, payload.len()), &payload);
    }
}

trait Post {
    /// Publishes a record with attachments. Its fields may lie.
    fn post(&mut self, attachments: &[Lent], description: &[u8]);
}

/// 4096 bytes at the start of segment 1.
const LENT: Lent = Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 5 };

fn tensor_fault(link: &mut Connection) -> Fault {
    fault(link.receiver().recv_tensors())
}

fn ends_with(send: impl Fn(&mut RawPeer), expected: Fault, stage: &mut Stage) {
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    send(&mut peer);
    assert_eq!(tensor_fault(&mut link), expected);
    stays_faulty(&mut link, expected);
}

#[test]
fn an_honest_raw_peer_is_understood() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    peer.post(&[LENT], &tensor(FP32, &[32, 32]));
    let one = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    assert_eq!((one.shape().dims(), one.byte_len()), (&[32, 32][..], 4096));
    assert_eq!(peer.theirs().load(RETURNS), 0);
    drop(one);
    assert_eq!(peer.theirs().load(RETURNS), 5);
    // Generation and slot are the peer's own matter: twice in one slot gives both back.
    peer.post(
        &[LENT, Lent { generation: 6, ..LENT }],
        &[tensor(FP32, &[1024]), tensor(2, &[4096])].concat(),
    );
    let two = link.receiver().recv_tensors().unwrap().unwrap();
    drop(link);
    drop(two);
    assert_eq!(peer.theirs().load(RETURNS), 6);
    stage.is_undisturbed();
}

#[test]
fn an_attachment_header_that_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let whole = [LENT.encode(), tensor(FP32, &[1024])].concat();
    let mut lies: Vec<u64> =
        [0, 2, 255].map(|version| attachment_header(1, version, whole.len())).into();
    // More attachments than the payload holds.
    lies.extend([2, 3, 255].map(|count| attachment_header(count, 1, whole.len())));
    lies.extend([
        attachment_header(1, 1, 31),
        attachment_header(1, 1, 0),
        attachment_header(255, 1, 255 * 32 - 1),
    ]);
    lies.extend((12..16).map(|bit| attachment_header(1, 1, whole.len()) | 1 << bit));
    lies.push(attachment_header(1, 1, whole.len()) | raw::POOLED);
    for lie in lies {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        peer.publish(lie, &whole);
        let expected = Fault::RecordHeader { header: lie };
        assert_eq!(tensor_fault(&mut link), expected, "{lie:#x}");
        stays_faulty(&mut link, expected);
    }
    stage.is_undisturbed();
}

#[test]
fn an_attachment_that_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let capacity = 1u64 << 20;
    let range = |offset, len| Fault::SegmentRange { offset, len, capacity };
    let at = |offset, len| Lent { offset, len, ..LENT };
    let mut lies = vec![
        (Lent { segment: 0, ..LENT }, Fault::UnknownSegment { segment: 0 }),
        (Lent { segment: 9, ..LENT }, Fault::UnknownSegment { segment: 9 }),
        (Lent { slot: 256, ..LENT }, Fault::LoanSlot { slot: 256, slots: 256 }),
        (
            Lent { slot: u32::MAX - 1, ..LENT },
            Fault::LoanSlot { slot: u64::from(u32::MAX) - 1, slots: 256 },
        ),
        // A loan needs a slot. Without one the tensor must be frozen.
        (Lent { slot: u32::MAX, ..LENT }, Fault::UnknownSegment { segment: 1 }),
        (at(capacity, 4096), range(capacity, 4096)),
        (at(capacity - 64, 4096), range(capacity - 64, 4096)),
        (at(0, capacity + 1), range(0, capacity + 1)),
        (at(0, u64::MAX), range(0, u64::MAX)),
        // Offset and length together wrap.
        (at(0u64.wrapping_sub(64), 4096), range(0u64.wrapping_sub(64), 4096)),
        (at(1 << 63, 1 << 63), range(1 << 63, 1 << 63)),
    ];
    for offset in [1, 8, 63, u64::MAX] {
        lies.push((at(offset, 4096), Fault::Field { field: "pooled.offset", value: offset }));
    }
    for (lie, expected) in lies {
        ends_with(|peer| peer.post(&[lie], &tensor(FP32, &[1024])), expected, &mut stage);
    }
    stage.is_undisturbed();
}

#[test]
fn a_description_that_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let len = |len, expected| TensorFault::Len { len, expected };
    let with = |at: usize, byte: u8| {
        let mut bytes = tensor(FP32, &[1024]);
        bytes[at] = byte;
        bytes
    };
    let wide = |dims: &[u64]| {
        let mut bytes = vec![FP32, dims.len() as u8, 1, 0];
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes
    };
    let flags = |value| TensorFault::Field { field: "tensor.flags", value };
    let lies: Vec<(Vec<u8>, TensorFault)> = vec![
        (with(0, 0), TensorFault::DataTypeCode { code: 0 }),
        (with(0, 17), TensorFault::DataTypeCode { code: 17 }),
        (with(0, 255), TensorFault::DataTypeCode { code: 255 }),
        (with(1, 9), TensorFault::Rank { rank: 9, max: 8 }),
        (with(1, 255), TensorFault::Rank { rank: 255, max: 8 }),
        (with(2, 6), TensorFault::Description { len: 8, index: 0, needed: 248 }),
        (with(2, 8), flags(8)),
        (with(2, 255), flags(255)),
        (with(3, 1), TensorFault::Description { len: 8, index: 0, needed: 9 }),
        (with(1, 2), TensorFault::Description { len: 8, index: 0, needed: 12 }),
        (vec![FP32], TensorFault::Description { len: 1, index: 0, needed: 4 }),
        (tensor(FP32, &[1023]), len(4096, 4092)),
        (tensor(FP32, &[0]), len(4096, 0)),
        (tensor(12, &[1024]), len(4096, 8192)),
        // Products that wrap.
        (tensor(FP32, &[u32::MAX; 8]), TensorFault::Overflow),
        (tensor(FP32, &[0, u32::MAX, u32::MAX, u32::MAX]), TensorFault::Overflow),
        (wide(&[1 << 62]), TensorFault::Overflow),
        (wide(&[1 << 32, 1 << 32, 4096]), TensorFault::Overflow),
        (wide(&[u64::MAX, u64::MAX]), TensorFault::Overflow),
        // An attachment that is left, and one that is not there.
        (vec![], TensorFault::Count { count: 1, expected: 0 }),
        (
            [tensor(FP32, &[1024]), tensor(FP32, &[1024])].concat(),
            TensorFault::Count { count: 1, expected: 0 },
        ),
        // Inline, and longer than the description.
        (
            vec![2, 0, 2, 0, 255, 255, 255, 255],
            TensorFault::Description { len: 8, index: 0, needed: 8 + u32::MAX as usize },
        ),
        (vec![2, 0, 2, 0, 2, 0, 0, 0, 7, 7], len(2, 1)),
        // A name that is no UTF-8.
        ([with(3, 2), vec![0xC3, 0x28]].concat(), TensorFault::NameUtf8),
        // A region, and too long for its shape; an attachment is left.
        ([vec![2, 0, 4, 0], vec![9; 16], vec![0]].concat(), len(0x0909_0909_0909_0909, 1)),
        (
            [vec![2, 0, 4, 0], vec![0; 8], vec![1], vec![0; 8]].concat(),
            TensorFault::Count { count: 1, expected: 0 },
        ),
    ];
    for (lie, expected) in lies {
        ends_with(|peer| peer.post(&[LENT], &lie), Fault::Tensor(expected), &mut stage);
    }
    let twice =
        [&[2, 0, 2, 1, 1, 0, 0, 0, 7, b'a'][..], &[2, 0, 2, 1, 1, 0, 0, 0, 7, b'a'][..]].concat();
    let same = Fault::Tensor(TensorFault::SameName { first: 0, second: 1 });
    ends_with(|peer| peer.post(&[], &twice), same, &mut stage);
    let crowd = [2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0].repeat((1 << 15) + 1);
    let many = Fault::Tensor(TensorFault::Count { count: (1 << 15) + 1, expected: 1 << 15 });
    let (mut link, mut peer) = stage.link_with(Hello { ring_capacity: 1 << 20, ..Hello::honest() });
    peer.post(&[], &crowd);
    assert_eq!(tensor_fault(&mut link), many);
    stage.is_undisturbed();
}

#[test]
fn a_description_in_the_pool_that_lies_ends_the_link() {
    let mut stage = Stage::new(Options::new());
    let long = |attachments: &[Lent], rest: &[u8]| {
        let mut payload: Vec<u8> = attachments.iter().flat_map(Lent::encode).collect();
        payload.extend(rest);
        let header = attachment_header(attachments.len() as u64, 1, payload.len()) | raw::POOLED;
        (header, payload)
    };
    // One tensor of 4096 bytes, whose description is the last attachment.
    let described = Lent { slot: 1, offset: 8192, len: 8, generation: 6, ..LENT };
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    peer.pool[0].1.write(8192, &tensor(FP32, &[1024]));
    let (header, payload) = long(&[LENT, described], &[]);
    peer.publish(header, &payload);
    let one = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    assert_eq!((one.shape().dims(), one.byte_len()), (&[1024][..], 4096));
    assert_eq!(peer.theirs().load(RETURNS + 8), 6, "the description is back");
    assert_eq!(peer.theirs().load(RETURNS), 0);
    drop((one, link));
    let faulty = |lie: (u64, Vec<u8>), segment: u64, stage: &mut Stage| {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, segment);
        peer.publish(lie.0, &lie.1);
        tensor_fault(&mut link)
    };
    // Without an attachment, and with a description in the ring, too.
    for lie in [long(&[], &[]), long(&[described], &tensor(FP32, &[0]))] {
        let header = lie.0;
        assert_eq!(faulty(lie, 1 << 20, &mut stage), Fault::RecordHeader { header });
    }
    let max = 1 << 22;
    let longer = long(&[Lent { offset: 0, len: max + 1, ..LENT }], &[]);
    assert_eq!(faulty(longer, 1 << 25, &mut stage), Fault::MessageLength { len: max + 1, max });
    let beyond = long(&[Lent { offset: 1 << 20, len: 64, ..LENT }], &[]);
    let outside = faulty(beyond, 1 << 20, &mut stage);
    assert!(matches!(outside, Fault::SegmentRange { .. }), "{outside}");
    // Nothing but zeros: a data type that is none.
    let nothing = faulty(long(&[LENT], &[]), 1 << 20, &mut stage);
    assert!(matches!(nothing, Fault::Tensor(_)), "{nothing}");
    stage.is_undisturbed();
}

#[test]
fn attachments_whose_second_half_lies_give_back_the_first() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    let second = Lent { slot: 9, generation: 9, ..LENT };
    peer.post(&[LENT, second], &[tensor(FP32, &[1024]), tensor(FP32, &[1])].concat());
    let expected = Fault::Tensor(TensorFault::Len { len: 4096, expected: 4 });
    assert_eq!(tensor_fault(&mut link), expected);
    assert_eq!((peer.theirs().load(RETURNS), peer.theirs().load(RETURNS + 72)), (5, 9));
    stage.is_undisturbed();
}

#[test]
fn frozen_memory_must_be_sealed_against_writing() {
    let mut stage = Stage::new(Options::new());
    let frozen = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    let attachment = Lent { slot: u32::MAX, ..LENT };
    for missing in [SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let (mut link, mut peer) = stage.link();
        let (fd, memory) = memfd(page(), true, SealFlags::empty());
        drop(memory);
        rustix::fs::fcntl_add_seals(&fd, frozen - missing).unwrap();
        raw::send(&peer.socket, &frozen_packet(1, page()), &[fd.as_fd()]).unwrap();
        peer.post(&[attachment], &tensor(2, &[4096]));
        let (seals, required) = ((frozen - missing).bits(), frozen.bits());
        let expected = Fault::Seals { seals, required };
        assert_eq!(tensor_fault(&mut link), expected);
        stays_faulty(&mut link, expected);
    }
    // Said to be frozen, and still written by its owner.
    let (mut link, peer) = stage.link();
    let (fd, _memory) = memfd(page(), true, SEALS);
    raw::send(&peer.socket, &frozen_packet(1, page()), &[fd.as_fd()]).unwrap();
    let mut peer = peer;
    peer.post(&[attachment], &tensor(2, &[4096]));
    assert!(matches!(tensor_fault(&mut link), Fault::Seals { .. }));
    stage.is_undisturbed();
}

#[test]
fn frozen_memory_is_not_lent_and_carries_no_message() {
    let mut stage = Stage::new(Options::new());
    let frozen = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    let freeze = |peer: &RawPeer| {
        let (fd, memory) = memfd(2 * page(), true, SealFlags::empty());
        drop(memory);
        rustix::fs::fcntl_add_seals(&fd, frozen).unwrap();
        raw::send(&peer.socket, &frozen_packet(1, 2 * page()), &[fd.as_fd()]).unwrap();
    };
    let (mut link, mut peer) = stage.link();
    freeze(&peer);
    peer.post(&[LENT], &tensor(2, &[4096]));
    assert_eq!(tensor_fault(&mut link), Fault::UnknownSegment { segment: 1 });
    let (mut link, mut peer) = stage.link();
    freeze(&peer);
    peer.lend(LENT);
    assert_eq!(fault(link.receiver().recv_deadline(soon())), Fault::UnknownSegment { segment: 1 });
    for (offset, len) in [(64, 2 * page()), (2 * page(), 64), (0u64.wrapping_sub(64), 128)] {
        let (mut link, mut peer) = stage.link();
        freeze(&peer);
        peer.post(&[Lent { slot: u32::MAX, offset, len, ..LENT }], &tensor(2, &[4096]));
        let expected = Fault::SegmentRange { offset, len, capacity: 2 * page() };
        assert_eq!(tensor_fault(&mut link), expected);
    }
    // A part of it is honest, at a multiple of 64.
    let (mut link, mut peer) = stage.link();
    freeze(&peer);
    peer.post(&[Lent { slot: u32::MAX, offset: 64, ..LENT }], &tensor(2, &[4096]));
    let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    assert_eq!(tensor.as_slice::<u8>().unwrap(), [0; 4096]);
    stage.is_undisturbed();
}

#[test]
fn bools_that_are_none_are_found_where_they_are_read() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, page());
    peer.post(&[LENT], &tensor(1, &[4096]));
    let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    assert_eq!(tensor.to_vec::<bool>().unwrap(), [false; 4096]);
    let mut inline = vec![1, 1, 2, 0, 2, 0, 0, 0, 2, 0, 0, 0];
    inline.extend([1, 2]);
    peer.post(&[], &inline);
    let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    let lie = ErrorKind::Tensor(TensorFault::Bool { index: 1, value: 2 });
    assert_eq!(*tensor.to_vec::<bool>().unwrap_err().kind(), lie);
    assert_eq!(*tensor.as_slice::<bool>().unwrap_err().kind(), lie);
    stage.is_undisturbed();
}

#[test]
fn a_flood_of_unwanted_attachments_is_set_aside_up_to_a_limit_and_given_back() {
    other::alone(
        "a_flood_of_unwanted_attachments_is_set_aside_up_to_a_limit_and_given_back",
        || {
            let census = Census::take();
            {
                let mut stage = Stage::new(Options::new().backlog_limit(10_000));
                let (mut link, mut peer) = stage.link();
                peer.send_segment(1, 1 << 20);
                for slot in 0..200 {
                    peer.post(&[Lent { slot, ..LENT }], &tensor(FP32, &[1024]));
                }
                let id = link.submit(b"question").unwrap();
                let full = link.wait_deadline(id, soon()).unwrap_err();
                assert!(matches!(full.kind(), ErrorKind::BacklogFull { .. }), "{full}");
                for _ in 0..200 {
                    drop(link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap());
                }
                for slot in 0..200 {
                    assert_eq!(peer.theirs().load(RETURNS + 8 * slot), 5);
                }
                stage.is_undisturbed();
            }
            census.comes_back();
        },
    );
}

#[test]
fn a_region_that_nobody_has_is_found_where_it_is_resolved() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    for (name, offset) in [("../etc", 0u64), ("", 0), ("frames", u64::MAX)] {
        let mut description = vec![2, 1, 4, 0, 4, 0, 0, 0];
        description.extend(offset.to_le_bytes());
        description.extend(4u64.to_le_bytes());
        description.push(name.len() as u8);
        description.extend(name.as_bytes());
        peer.post(&[], &description);
        let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        assert_eq!((tensor.region(), tensor.byte_len()), (Some(name), 4));
        let unresolved = ErrorKind::Tensor(TensorFault::Unresolved);
        assert_eq!(*tensor.to_vec::<u8>().unwrap_err().kind(), unresolved);
        assert_eq!(*tensor.bytes().unwrap_err().kind(), unresolved);
        let registry = slipring::region::Registry::new().unwrap();
        let error = tensor.resolve(&registry).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Region(_)), "{error}");
    }
    stage.is_undisturbed();
}

#[test]
fn a_region_of_any_length_costs_nothing_before_it_is_resolved() {
    let mut stage = Stage::new(Options::new());
    let (mut link, mut peer) = stage.link();
    for len in [1u64 << 36, 1 << 62] {
        // UINT8, one dimension of 8 bytes, in a region without a name.
        let mut description = vec![2, 1, 5, 0];
        description.extend(len.to_le_bytes());
        description.extend([0; 8]);
        description.extend(len.to_le_bytes());
        description.push(0);
        peer.post(&[], &description);
        let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        let unresolved = ErrorKind::Tensor(TensorFault::Unresolved);
        assert_eq!(*tensor.to_vec::<u8>().unwrap_err().kind(), unresolved);
        assert_eq!(*tensor.to_private().unwrap_err().kind(), unresolved);
        assert_eq!(*tensor.for_each_chunk::<u8>(|_| {}).unwrap_err().kind(), unresolved);
        assert_eq!(
            *tensor.as_slice::<u8>().unwrap_err().kind(),
            ErrorKind::Tensor(TensorFault::Unstable)
        );
        let copied = tensor.copy_to::<u8>(&mut [0; 4]).unwrap_err();
        assert!(matches!(copied.kind(), ErrorKind::Tensor(_)), "{copied}");
    }
    stage.is_undisturbed();
}

#[test]
fn a_description_is_bounded_however_large_the_ring_is() {
    let mut stage = Stage::new(Options::new());
    let hello = Hello { ring_capacity: 4 << 20, ..Hello::honest() };
    for (len, legal) in [(1 << 20, true), ((1 << 20) + 8, false)] {
        let (mut link, mut peer) = stage.link_with(hello);
        let mut description = vec![2, 1, 2, 0];
        let bytes = len as u32 - 12;
        description.extend(bytes.to_le_bytes());
        description.extend(bytes.to_le_bytes());
        description.resize(len, 7);
        peer.post(&[], &description);
        if legal {
            let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            assert_eq!(tensor.byte_len(), bytes as usize);
        } else {
            assert!(matches!(tensor_fault(&mut link), Fault::RecordHeader { .. }));
        }
    }
    stage.is_undisturbed();
}

#[test]
fn what_is_set_aside_counts_with_what_it_keeps() {
    let mut stage = Stage::new(Options::new().backlog_limit(1 << 20));
    let (mut link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    let mut posted = 0;
    let id = link.submit(b"question").unwrap();
    let full = loop {
        // Attachments without a description: nothing checks that before the attachments are opened.
        let loans: Vec<Lent> = (0..100).map(|slot| Lent { slot, ..LENT }).collect();
        peer.post(&loans, &[]);
        posted += 1;
        match link.try_wait(id) {
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Failed(error)) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(full.kind(), ErrorKind::BacklogFull { .. }), "{full}");
    assert_eq!(posted, 3, "two of them are 200 pages");
    stage.is_undisturbed();
}

#[test]
fn frozen_memory_takes_less_than_half_of_the_descriptors() {
    let name = unique_name();
    let mut victim =
        Other::start("frozen_memory_takes_less_than_half_of_the_descriptors", &name, |name| {
            use rustix::process::{Resource, Rlimit, setrlimit};
            let few = Rlimit { current: Some(200), maximum: Some(200) };
            setrlimit(Resource::Nofile, few).unwrap();
            let context = Context::new().unwrap();
            let mut link = context.connect_retry(name, soon()).unwrap();
            // One that only wants messages.
            let error = link.receiver().recv_deadline(soon()).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::AccountFull { account: "peer", .. }),
                "{error}"
            );
            let open = crate::support::census::descriptors();
            assert!(open < 110, "{open} descriptors are open");
            drop(link);
            crate::support::other::say("fine");
        });
    let listener = raw::listen(&name);
    let socket = raw::accept(&listener);
    let (packet, fds) = raw::receive(&socket).unwrap();
    let (mut peer, fd) = RawPeer::prepare(socket, Hello::honest());
    raw::send(&peer.socket, &Hello::honest().encode(), &[fd.as_fd()]).unwrap();
    peer.heard(&packet, &fds);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    for number in 0..90 {
        let (fd, memory) = memfd(page(), true, SealFlags::empty());
        drop(memory);
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        raw::send(&peer.socket, &frozen_packet(number, page()), &[fd.as_fd()]).unwrap();
    }
    // Take your packets.
    peer.publish(6, &[]);
    victim.expect("fine");
    victim.succeeds();
}

#[test]
fn a_lie_that_a_reactor_meets_ends_its_link_behind_what_came_before() {
    let mut stage = Stage::new(Options::new());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    for set_aside in [false, true] {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        peer.post(&[LENT], &tensor(FP32, &[32, 32]));
        peer.post(&[Lent { slot: 1, ..LENT }], &tensor(FP32, &[32, 33]));
        if set_aside {
            let id = link.submit(b"question").unwrap();
            assert!(matches!(link.try_wait(id), Err(TryRecvError::Empty)));
            link.abandon(id);
        }
        let link = reactor.adopt(link).unwrap();
        let (say, said) = diary();
        let (tensors, message) = (say.clone(), say.clone());
        link.on_closed(move |_, result| say(fault(result).to_string()));
        link.on_message(move |_, _| message("a message".to_owned()));
        link.on_tensors(move |_, set| tensors(format!("{} bytes", set.at(0).unwrap().byte_len())));
        assert_eq!(hear(&said), "4096 bytes");
        let lie = TensorFault::Len { len: 4096, expected: 4224 };
        assert_eq!(hear(&said), Fault::Tensor(lie).to_string());
        wait_until("the return of both loans", || {
            [0, 1].iter().all(|slot| peer.theirs().load(RETURNS + 8 * slot) == 5)
        });
    }
    stage.is_undisturbed();
}
