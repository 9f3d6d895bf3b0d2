//! A commit of 300 regions with a descriptor each, and its floor: 300 descriptors, sent and mapped. The time ends before
//! both undo it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use slipring::commit::{
    Buffer, BufferInfo, Buffers, Caller, Client, Description, Direction, ModelSource, Refused,
    Server, Service, Session,
};
use slipring::{Context, DType};

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::memory::{Mapping, PAGE};

const REGIONS: u32 = 300;

/// Descriptors in one message: `SCM_MAX_FD` of `unix(7)`.
const MOST: usize = 253;

/// A service whose models have [`REGIONS`] inputs of a page. It counts releases.
struct Inputs(Arc<AtomicU64>);

impl Service for Inputs {
    type Model = ();
    type Commit = ();

    fn load(&self, _: &Caller, _: ModelSource<'_>) -> Result<((), Description), Refused> {
        let input = |index| BufferInfo::new("", Direction::In, DType::Uint8, [PAGE]).index(index);
        let inputs = (0..REGIONS).map(input);
        Ok(((), inputs.fold(Description::new(), Description::with_own_region)))
    }

    fn commit(&self, _: &(), _: &Buffers) -> Result<(), Refused> {
        Ok(())
    }

    fn execute(&self, _: &(), _: &mut (), _: &Buffers) -> Result<(), Refused> {
        Ok(())
    }

    fn release(&self, _: &(), (): ()) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

pub enum Committed {
    Client { session: Session, _buffers: Vec<Buffer> },
    Service { released: Arc<AtomicU64>, awaited: u64, _server: Server },
}

impl Committed {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let context = Context::new()?;
        if setup.role == Role::Follower {
            let released = Arc::new(AtomicU64::new(0));
            let listener = context.listen(setup.name)?;
            let server = Server::new(&context, listener, Inputs(released.clone()))?;
            setup.meet()?;
            return Ok(Box::new(Self::Service { released, awaited: 0, _server: server }));
        }
        setup.meet()?;
        let session = Client::connect(&context, setup.name)?.load(b"")?.session(0)?;
        let buffers = session.allocate_all()?;
        Ok(Box::new(Self::Client { session, _buffers: buffers }))
    }
}

impl Exchange for Committed {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        self.lead_stamped(count, &mut Vec::new())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let Self::Service { released, awaited, .. } = self else {
            return Err("the client does not follow".into());
        };
        *awaited += count;
        while released.load(Ordering::Acquire) < *awaited {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        Ok(())
    }

    fn lead_stamped(&mut self, count: u64, stamps: &mut Vec<u64>) -> Outcome<()> {
        let Self::Client { session, .. } = self else {
            return Err("the service does not lead".into());
        };
        for _ in 0..count {
            let start = Instant::now();
            session.commit()?;
            stamps.push(start.elapsed().as_nanos() as u64);
            session.release()?;
        }
        Ok(())
    }
}

/// As many descriptors, sent in two messages and mapped, and one byte back.
pub struct Descriptors {
    role: Role,
    socket: OwnedFd,
    /// The segments that the leader has made.
    made: Vec<(Mapping, OwnedFd)>,
}

impl Descriptors {
    pub fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let count = if setup.role == Role::Leader { REGIONS } else { 0 };
        let made = (0..count).map(|_| Mapping::create(PAGE, false)).collect::<Result<_, _>>()?;
        let socket = setup.socket.try_clone_to_owned()?;
        setup.meet()?;
        Ok(Box::new(Self { role: setup.role, socket, made }))
    }

    fn send(&self) -> Outcome<()> {
        let fds: Vec<BorrowedFd<'_>> = self.made.iter().map(|(_, fd)| fd.as_fd()).collect();
        for fds in fds.chunks(MOST) {
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err("no room for the descriptors".into());
            }
            let word = [IoSlice::new(b"!")];
            rustix::net::sendmsg(&self.socket, &word, &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    fn receive(&self) -> Outcome<Vec<Mapping>> {
        let mut mapped = Vec::new();
        while mapped.len() < REGIONS as usize {
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let (mut word, flags) = ([0; 1], RecvFlags::CMSG_CLOEXEC);
            let mut slices = [IoSliceMut::new(&mut word)];
            rustix::net::recvmsg(&self.socket, &mut slices, &mut ancillary, flags)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    for fd in fds {
                        mapped.push(Mapping::attach(&fd, PAGE, false)?);
                    }
                }
            }
        }
        Ok(mapped)
    }
}

impl Exchange for Descriptors {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        self.lead_stamped(count, &mut Vec::new())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let mapped = self.receive()?;
            rustix::net::send(&self.socket, b"!", SendFlags::NOSIGNAL)?;
            drop(mapped);
            rustix::net::send(&self.socket, b"!", SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    fn lead_stamped(&mut self, count: u64, stamps: &mut Vec<u64>) -> Outcome<()> {
        if self.role == Role::Follower {
            return Err("the follower does not lead".into());
        }
        for _ in 0..count {
            let start = Instant::now();
            self.send()?;
            rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::empty())?;
            stamps.push(start.elapsed().as_nanos() as u64);
            rustix::net::recv(&self.socket, &mut [0; 1], RecvFlags::empty())?;
        }
        Ok(())
    }
}
