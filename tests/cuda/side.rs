//! Links whose other end announces allocations of a GPU by hand.

use std::os::fd::OwnedFd;

use slipring::cuda::{Device, GpuView, Stream};
use slipring::error::GpuUuid;
use slipring::tensor::{GpuOrder, GpuPlace};
use slipring::{Connection, Tensor};

use crate::errors::{description, post};
use crate::forged::{TWO, allocate, announce, place};
use crate::support::cuda_driver as driver;
use crate::support::gpus::recv;
use crate::support::raw::{Lent, RawPeer, allocation_packet};
use crate::support::{Stage, soon};

const MIB: u64 = 1 << 20;

/// A link, and the peer whose allocations are numbered from 0 on.
pub struct Side {
    pub link: Connection,
    pub peer: RawPeer,
    next: u64,
}

impl Side {
    pub fn new(stage: &mut Stage) -> Self {
        let (link, mut peer) = stage.link();
        peer.send_segment(1, 1 << 20);
        Self { link, peer, next: 0 }
    }

    /// Receives a tensor in a new allocation, which is said to lie on the GPU with this UUID.
    pub fn tensor_of(&mut self, uuid: GpuUuid, len: u64, fd: OwnedFd) -> Tensor {
        let number = self.next;
        self.next += 1;
        announce(&mut self.peer, &allocation_packet(number, len, uuid.0), &[fd]);
        post(&mut self.peer, &TWO, &description(&place(uuid, number, len)));
        recv(&mut self.link)
    }

    /// Receives a tensor in a new allocation of 2 MiB on the first GPU.
    pub fn tensor(&mut self, device: &Device) -> Tensor {
        self.tensor_of(device.uuid(), 2 * MIB, allocate(0, 2 << 20))
    }

    /// The link takes a new segment of the peer's pool.
    pub fn goes_on(&mut self, device: &Device) {
        self.peer.send_segment(2, 1 << 20);
        let two = TWO.map(|lent| Lent { segment: 2, ..lent });
        let (uuid, number) = (device.uuid(), self.next);
        self.next += 1;
        let packet = allocation_packet(number, 2 * MIB, uuid.0);
        announce(&mut self.peer, &packet, &[allocate(0, 2 << 20)]);
        post(&mut self.peer, &two, &description(&place(uuid, number, 2 * MIB)));
        drop(recv(&mut self.link));
    }
}

/// A stream that waits for a word of a peer that lives, which nobody writes until it is told to go on.
pub struct Unwritten {
    view: GpuView,
}

impl Unwritten {
    const VALUE: u64 = 1 << 40;
    const WORD: u64 = 4096;

    /// The first allocation of a peer.
    pub fn new(device: &Device, stream: &Stream, side: &mut Side) -> Self {
        let (uuid, number) = (device.uuid(), u64::MAX);
        let packet = allocation_packet(number, 2 * MIB, uuid.0);
        announce(&mut side.peer, &packet, &[allocate(device.ordinal() as i32, 2 << 20)]);
        let order = GpuOrder::Word { offset: Self::WORD, value: Self::VALUE };
        let two = TWO.map(|lent| Lent { slot: lent.slot + 2, ..lent });
        let unwritten = GpuPlace { order, ..place(uuid, number, 2 * MIB) };
        post(&mut side.peer, &two, &description(&unwritten));
        let view = device.open(&recv(&mut side.link), stream).unwrap();
        assert!(!stream.is_idle().unwrap());
        Self { view }
    }

    pub fn write(self) {
        let stream = self.view.stream();
        let other = stream.device().stream().unwrap();
        let at = self.view.device_ptr() + Self::WORD;
        driver::begin(stream.device().ordinal() as i32);
        let raw = other.as_raw() as usize;
        assert_eq!(driver::cuStreamWriteValue64_v2(raw, at, Self::VALUE, 0), 0);
        stream.synchronize_deadline(soon()).unwrap();
    }
}
