//! The meeting of two processes: the handshake with its system calls.
//!
//! ```text
//!   connecting side                                accepting side
//!   connect, check who listens
//!   Hello, credentials, segment fd ──────────────▶ judge Hello, credentials, segment: attach
//!   judge, attach ◀──────────────── Hello, credentials, segment fd
//! ```
//!
//! A side's own segment is the same for every peer, so one is made beforehand: by a listener while
//! it waits, by a connecting side before it connects. Nothing is made for a peer before its Hello
//! was judged valid; a peer that fails costs no segment.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, ErrorKind, Fault, Refusal, Result};
use crate::shm::{Area, Mapping, PeerSegment, Segment, node_of_caller};
use crate::transport::arrivals::Arrivals;
use crate::transport::connection::Connection;
use crate::transport::context::Core;
use crate::transport::control;
use crate::transport::foreign::Socket;
use crate::transport::hello::{Hello, PACKET, Packet, refusal};
use crate::transport::link::{Extents, Link, Returns, Session, Terms};
use crate::transport::options::{Numa, Options};
use crate::transport::peer::Peer;
use crate::transport::socket::{self, Incoming, Received};
use crate::wake;
use crate::wake::Spin;

/// Our side of a link that is about to be made, or ready for the next one.
#[derive(Debug)]
pub(super) struct Ours {
    hello: Hello,
    mapping: Mapping,
    ring: Area,
    fd: OwnedFd,
}

impl Ours {
    pub(super) fn create(options: &Options) -> Result<Self> {
        let hello = Hello {
            issues_membarrier: wake::is_registered(),
            control_len: control::len(options.loan_slots),
            ring_capacity: options.ring_capacity,
            loan_slots: options.loan_slots,
            numa_node: node_of_caller(),
            max_message: options.max_message,
            pool_limit: options.peer_pool_limit,
        };
        let extents = Extents::of(&hello);
        let segment = Segment::create(extents.segment_len(), extents.control, options.backing())?;
        let (mapping, ring, fd) = segment.into_parts(extents.control);
        Ok(Self { hello, mapping, ring, fd })
    }

    /// Sends our Hello.
    fn introduce(&self, socket: &OwnedFd) -> Result<()> {
        use std::os::fd::AsFd;
        let packet = Packet::Hello(self.hello).encode();
        match socket::send(socket, &packet, &[self.fd.as_fd()]) {
            Ok(true) => Ok(()),
            // The queue of a new socket holds one packet; a peer's end of a socketpair may not.
            Ok(false) => Err(Error::os("sendmsg", Errno::AGAIN)),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ErrorKind::PeerClosed.into()),
            Err(errno) => Err(Error::os("sendmsg", errno)),
        }
    }
}

/// What a peer's Hello brought, judged and attached.
struct Theirs {
    hello: Hello,
    segment: PeerSegment,
    peer: Peer,
}

impl Theirs {
    fn judge(core: &Core, mut packet: Received<PACKET>) -> Result<Self> {
        let credentials = packet.credentials.ok_or(Fault::NoCredentials)?;
        let hello = match Packet::decode(&packet.bytes[..packet.len])? {
            Packet::Hello(hello) => hello,
            other => return Err(other.out_of_place().into()),
        };
        let count = packet.descriptors.len();
        let fd = if count == 1 { packet.descriptors.pop() } else { None };
        let fd = fd.ok_or(Fault::DescriptorCount { count, expected: 1 })?;
        core.options.peer_policy.check(&credentials)?;
        let pidfd = sender_of(packet.pidfd.take(), credentials.pid)?;
        let extents = Extents::of(&hello);
        let (len, prefault) = (extents.segment_len(), core.options.prefault);
        let segment = PeerSegment::attach(fd, len, extents.control, prefault)?;
        let peer = Peer { credentials, pidfd: pidfd.map(Arc::new) };
        Ok(Self { hello, segment, peer })
    }
}

/// The process that sent a packet with a pid, of which the kernel may have given a descriptor.
fn sender_of(given: Option<Result<OwnedFd, Errno>>, pid: Option<u32>) -> Result<Option<OwnedFd>> {
    match given {
        Some(Ok(pidfd)) => Ok(Some(pidfd)),
        // It has ended; its pid may be another process's by now. Source: `pidfd_prepare` of Linux 6.5
        // to 6.16; later kernels give a descriptor of a process that has ended, too.
        Some(Err(Errno::INVAL | Errno::SRCH | Errno::NOENT)) => Err(ErrorKind::PeerDied.into()),
        // Without a descriptor its death could go unseen.
        Some(Err(errno)) => Err(Error::os("SCM_PIDFD", errno)),
        None => open_pidfd(pid),
    }
}

/// For kernels without `SCM_PIDFD` (before 6.5): the process that has the pid now, which is the
/// sender unless it died and its pid was used again in the microseconds since.
fn open_pidfd(pid: Option<u32>) -> Result<Option<OwnedFd>> {
    let pid = pid.and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    match pid.map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(pidfd)) => Ok(Some(pidfd)),
        Some(Err(errno @ (Errno::MFILE | Errno::NFILE))) => Err(Error::os("pidfd_open", errno)),
        // A process of another pid namespace, or a kernel older than 5.3.
        Some(Err(_)) | None => Ok(None),
    }
}

/// How long the connecting side looks for the answer before it sleeps: an accepting side that waits
/// in `accept` takes about 60 µs, and a wake-up another 15.
const LOOK: Duration = Duration::from_micros(100);

/// The connecting side, over a connected socket.
pub(super) fn connect(
    core: &Arc<Core>,
    socket: Socket,
    ours: Ours,
    (since, deadline): (Instant, Instant),
) -> Result<Connection> {
    let start = Instant::now();
    socket::receive_credentials(&socket)?;
    if let Err(error) = ours.introduce(&socket) {
        // A listener that refused us before it heard our Hello has said why.
        return match socket::receive::<PACKET>(&socket) {
            Ok(Incoming::Packet(packet)) => {
                Err(Packet::decode(&packet.bytes[..packet.len]).err().unwrap_or(error))
            }
            _ => Err(error),
        };
    }
    core.prepare_to_connect();
    let packet = loop {
        match socket::receive::<PACKET>(&socket)? {
            Incoming::Packet(packet) => break packet,
            Incoming::End => return Err(ErrorKind::PeerClosed.into()),
            Incoming::Nothing if core.options.spin != Spin::Never && start.elapsed() < LOOK => {}
            Incoming::Nothing => {
                if !socket::wait_readable(&socket, Some(deadline))? {
                    return Err(ErrorKind::TimedOut { after: since.elapsed() }.into());
                }
            }
        }
    };
    match Theirs::judge(core, packet) {
        Ok(theirs) => conclude(core, socket, ours, theirs),
        Err(error) => {
            socket::end(&socket);
            Err(error)
        }
    }
}

/// What a look at a peer that has connected gives.
pub(super) enum Offer {
    /// It has not said Hello yet.
    Silent,
    Accepted(Box<Accepted>),
}

/// A peer whose Hello was answered.
pub(super) struct Accepted {
    core: Arc<Core>,
    ours: Ours,
    theirs: Theirs,
}

impl Accepted {
    pub(super) fn conclude(self, socket: Socket) -> Result<Connection> {
        conclude(&self.core, socket, self.ours, self.theirs)
    }
}

/// The accepting side: judges the peer's Hello if it has come, and answers. A peer that is not
/// accepted is told why.
pub(super) fn accept(core: &Arc<Core>, socket: &OwnedFd) -> Result<Offer> {
    let packet = match socket::receive::<PACKET>(socket) {
        Ok(Incoming::Packet(packet)) => packet,
        Ok(Incoming::Nothing) => return Ok(Offer::Silent),
        Ok(Incoming::End) => return Err(ErrorKind::PeerClosed.into()),
        Err(error) => return Err(refuse(socket, error)),
    };
    let answer = Theirs::judge(core, packet).and_then(|theirs| {
        let ours = core.take_ours()?;
        ours.introduce(socket)?;
        Ok(Accepted { core: core.clone(), ours, theirs })
    });
    match answer {
        Ok(accepted) => Ok(Offer::Accepted(Box::new(accepted))),
        Err(error) => Err(refuse(socket, error)),
    }
}

/// Tells a peer why it is not accepted.
pub(super) fn refuse(socket: &OwnedFd, error: Error) -> Error {
    let reason = match error.kind() {
        ErrorKind::PeerNotAdmitted { .. } => Refusal::NotAdmitted,
        ErrorKind::Fault(Fault::Descriptor(_)) => Refusal::BadSegment,
        ErrorKind::Fault(_) | ErrorKind::NoCommonVersion { .. } => Refusal::BadHello,
        ErrorKind::PeerClosed | ErrorKind::PeerDied | ErrorKind::RefusedByPeer(_) => return error,
        _ => Refusal::NoResources,
    };
    // A peer that does not listen to reasons loses only them.
    let _ = socket::send(socket, &refusal(reason), &[]);
    // A forked child of ours may hold the socket, too.
    socket::end(socket);
    error
}

fn conclude(core: &Arc<Core>, socket: Socket, ours: Ours, theirs: Theirs) -> Result<Connection> {
    let Ours { hello, mapping, ring, fd } = ours;
    drop(fd);
    if let (Numa::Receiver, Some(node)) = (core.options.numa, theirs.hello.numa_node)
        && let Err(error) = mapping.bind_to_node(node)
    {
        // A wish, of a node that only the peer vouches for.
        tracing::debug!(error = format_args!("{error:#}"), node, "the ring stays where it is");
    }
    let terms = Terms {
        max_message: hello.max_message.min(theirs.hello.max_message),
        own: Extents::of(&hello),
        peer: Extents::of(&theirs.hello),
        peer_pool_limit: theirs.hello.pool_limit,
    };
    let peer = theirs.segment.mapping().clone();
    let borrower = core.pool.open(Arc::new(Returns(peer.clone())), theirs.hello.loan_slots);
    let interrupts = theirs.hello.issues_membarrier && wake::is_registered();
    socket::stop_pidfds(&socket);
    let arrivals = Arrivals::new(core.options.peer_pool_limit, core.options.prefault);
    let link =
        Link::new((mapping, peer), socket, theirs.peer, terms, interrupts, borrower, arrivals);
    let link = Arc::new(link);
    if let Err(error) = core.watch(&link) {
        core.pool.close(borrower);
        return Err(error);
    }
    Ok(Connection::new(Session::new(link, core.clone()), ring))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_has_ended_is_not_taken_for_whoever_has_its_pid_now() {
        let own = Some(std::process::id());
        for errno in [Errno::INVAL, Errno::SRCH, Errno::NOENT] {
            let error = sender_of(Some(Err(errno)), own).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::PeerDied);
        }
        let error = sender_of(Some(Err(Errno::MFILE)), own).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { .. }));
        // A kernel that has no word for it names the process by its pid.
        assert!(sender_of(None, own).unwrap().is_some());
        assert!(sender_of(None, None).unwrap().is_none());
    }
}
