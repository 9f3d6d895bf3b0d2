//! The handshake of two processes, with its system calls.
//!
//! ```text
//!   connecting side                                accepting side
//!   connect, check who listens
//!   Hello, credentials, segment fd ──────────────▶ check Hello, credentials, segment; attach
//!   check, attach ◀──────────────── Hello, credentials, segment fd
//! ```
//!
//! The segment of a side is the same for every peer. So a listener makes its own while it waits, and a connecting side
//! before it connects. Nothing is made for a peer before its Hello is found valid: a peer that fails costs no segment.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, ErrorKind, Fault, Refusal, Result};
use crate::handshake::owned_socket::Socket;
use crate::handshake::packet::{Hello, PACKET, Packet, refusal};
use crate::handshake::peer::Peer;
use crate::handshake::policy::PeerPolicy;
use crate::handshake::socket::{self, Incoming, Received};
use crate::shm::{Area, Backing, Mapping, PeerSegment, Segment};

/// What a context asks of every peer.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) policy: &'a PeerPolicy,
    /// Map the peer's segment with all of its pages.
    pub(crate) prefault: bool,
    /// The connecting side may poll for the answer before it sleeps.
    pub(crate) polls: bool,
}

/// Our side of a link that is about to be made, or ready for the next one.
#[derive(Debug)]
pub(crate) struct Ours {
    pub(crate) hello: Hello,
    pub(crate) mapping: Mapping,
    pub(crate) ring: Area,
    fd: OwnedFd,
}

impl Ours {
    /// Makes the segment that this Hello describes.
    pub(crate) fn create(hello: Hello, backing: Backing) -> Result<Self> {
        let extents = hello.extents();
        let segment = Segment::create(extents.segment_len(), extents.control, backing)?;
        let (mapping, ring, fd) = segment.into_parts(extents.control);
        Ok(Self { hello, mapping, ring, fd })
    }

    /// Sends our Hello.
    fn introduce(&self, socket: &OwnedFd) -> Result<()> {
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
pub(crate) struct Theirs {
    pub(crate) hello: Hello,
    pub(crate) segment: PeerSegment,
    pub(crate) peer: Peer,
}

impl Theirs {
    fn judge(rules: Rules<'_>, mut packet: Received<PACKET>) -> Result<Self> {
        let credentials = packet.credentials.ok_or(Fault::NoCredentials)?;
        let hello = match Packet::decode(&packet.bytes[..packet.len])? {
            Packet::Hello(hello) => hello,
            other => return Err(other.out_of_place().into()),
        };
        let count = packet.descriptors.len();
        let fd = if count == 1 { packet.descriptors.pop() } else { None };
        let fd = fd.ok_or(Fault::DescriptorCount { count, expected: 1 })?;
        rules.policy.check(&credentials)?;
        let pidfd = sender_of(packet.pidfd.take(), credentials.pid)?;
        let extents = hello.extents();
        let (len, control) = (extents.segment_len(), extents.control);
        let segment = PeerSegment::attach(fd, len, control, rules.prefault)?;
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

/// The connecting side, over a connected socket. `meanwhile` runs while the listener makes its answer.
pub(crate) fn connect(
    rules: Rules<'_>,
    socket: &Socket,
    ours: &Ours,
    (since, deadline): (Instant, Instant),
    meanwhile: impl FnOnce(),
) -> Result<Theirs> {
    let start = Instant::now();
    socket::receive_credentials(socket)?;
    if let Err(error) = ours.introduce(socket) {
        // A listener that refused us before it heard our Hello has said why.
        return match socket::receive::<PACKET>(socket) {
            Ok(Incoming::Packet(packet)) => {
                Err(Packet::decode(&packet.bytes[..packet.len]).err().unwrap_or(error))
            }
            _ => Err(error),
        };
    }
    meanwhile();
    let packet = loop {
        match socket::receive::<PACKET>(socket)? {
            Incoming::Packet(packet) => break packet,
            Incoming::End => return Err(ErrorKind::PeerClosed.into()),
            Incoming::Nothing if rules.polls && start.elapsed() < LOOK => {}
            Incoming::Nothing => {
                if !socket::wait_readable(socket, Some(deadline))? {
                    return Err(ErrorKind::TimedOut { after: since.elapsed() }.into());
                }
            }
        }
    };
    let theirs = Theirs::judge(rules, packet);
    if theirs.is_err() {
        socket::end(socket);
    }
    theirs
}

/// A look at a peer that has connected.
pub(crate) enum Offer {
    /// It has not said Hello yet.
    Silent,
    /// Its Hello was answered.
    Accepted(Box<(Ours, Theirs)>),
}

/// The accepting side: checks the peer's Hello if it has come, and answers with the side that `ours` returns. A peer that
/// is not accepted is told why.
pub(crate) fn accept(
    rules: Rules<'_>,
    socket: &OwnedFd,
    ours: impl FnOnce() -> Result<Ours>,
) -> Result<Offer> {
    let packet = match socket::receive::<PACKET>(socket) {
        Ok(Incoming::Packet(packet)) => packet,
        Ok(Incoming::Nothing) => return Ok(Offer::Silent),
        Ok(Incoming::End) => return Err(ErrorKind::PeerClosed.into()),
        Err(error) => return Err(refuse(socket, error)),
    };
    let answer = Theirs::judge(rules, packet).and_then(|theirs| {
        let ours = ours()?;
        ours.introduce(socket)?;
        Ok((ours, theirs))
    });
    match answer {
        Ok(accepted) => Ok(Offer::Accepted(Box::new(accepted))),
        Err(error) => Err(refuse(socket, error)),
    }
}

/// Tells a peer why it is not accepted.
pub(crate) fn refuse(socket: &OwnedFd, error: Error) -> Error {
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
