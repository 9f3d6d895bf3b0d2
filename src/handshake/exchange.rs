//! The handshake of two processes, with its system calls.
//!
//! ```text
//!   connecting side                                accepting side
//!   connect, check who listens
//!   Hello, credentials, segment fd ──────────────▶ check Hello, credentials, segment; attach
//!   check, attach ◀──────────────── Hello, credentials, segment fd
//! ```
//!
//! 1. A side's segment does not depend on the peer. A listener makes it while it waits, a connecting side before it
//!    connects.
//! 2. A peer whose Hello is invalid costs no segment.
//! 3. An accepting side tells a peer why it refuses it, and ends the socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::handshake::owned_socket::Socket;
use crate::handshake::packet::{Hello, PACKET, Packet, Refusal, refusal};
use crate::handshake::peer::{Credentials, Peer, command_of};
use crate::handshake::policy::PeerPolicy;
use crate::handshake::role::{self, Service};
use crate::handshake::socket::{self, Incoming, Received};
use crate::handshake::untrusted;
use crate::shm::{Area, Backing, Mapping, PeerSegment, Segment, page_size};

/// The rules of a context for every handshake.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) policy: &'a PeerPolicy,
    /// Whether this side maps all pages of the peer's segment at once.
    pub(crate) prefault: bool,
    /// Whether the connecting side may poll for the answer before it sleeps.
    pub(crate) polls: bool,
    /// What this side answers, if it accepts.
    pub(crate) service: Service,
}

/// This side of a link to be made.
#[derive(Debug)]
pub(crate) struct Ours {
    pub(crate) hello: Hello,
    /// Dropped before the mapping, which frees large memory on another thread.
    fd: OwnedFd,
    /// The segment's inode.
    pub(crate) inode: u64,
    pub(crate) mapping: Mapping,
    pub(crate) ring: Area,
}

impl Ours {
    /// Returns the side with the segment that this Hello describes.
    pub(crate) fn create(hello: Hello, backing: Backing) -> Result<Self> {
        let extents = hello.extents();
        let lens = (extents.segment_len(), extents.control);
        let segment = Segment::create("slipring.ring", lens, backing)?;
        let inode = segment.inode();
        let (mapping, ring, fd) = segment.into_parts(extents.control);
        mapping.populate(extents.control + page_size());
        Ok(Self { hello, fd, inode, mapping, ring })
    }

    /// Sends our Hello.
    fn introduce(&self, socket: &OwnedFd) -> Result<()> {
        let packet = Packet::Hello(self.hello).encode();
        match socket::introduce(socket, &packet, &[self.fd.as_fd()]) {
            Ok(true) => Ok(()),
            // The queue of a new socket has room for a packet. A peer may have filled that of a socketpair.
            Ok(false) => Err(Error::os("sendmsg", Errno::AGAIN)),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ErrorKind::PeerClosed.into()),
            // All else of the call is this library's. Source: `__scm_send` of `net/core/scm.c`.
            Err(errno @ Errno::INVAL) => Err(Error::with_source(ErrorKind::UnmappedUser, errno)),
            Err(errno) => Err(Error::os("sendmsg", errno)),
        }
    }
}

/// The peer's side of a link: its Hello, checked, and its segment, attached.
pub(crate) struct Theirs {
    pub(crate) hello: Hello,
    pub(crate) segment: PeerSegment,
    pub(crate) peer: Peer,
}

impl Theirs {
    /// Checks a packet. `admitted`: the policy has admitted a sender with these credentials. `charge` runs before anything
    /// of the peer's is mapped.
    fn check<C>(
        rules: Rules<'_>,
        mut packet: Received<PACKET>,
        admitted: Option<Credentials>,
        charge: impl FnOnce(&Credentials, &Hello) -> Result<C>,
    ) -> Result<(Self, C)> {
        let credentials = packet.credentials.ok_or(Fault::NoCredentials)?;
        let hello = match Packet::decode(&packet.bytes[..packet.len])? {
            Packet::Hello(hello) => hello,
            other => return Err(other.out_of_place().into()),
        };
        let count = packet.descriptors.len();
        let fd = if count == 1 { packet.descriptors.pop() } else { None };
        let fd = fd.ok_or(Fault::DescriptorCount { count, expected: 1 })?;
        if admitted != Some(credentials) {
            rules.policy.check(&credentials)?;
        }
        let charges = charge(&credentials, &hello)?;
        let pidfd = sender_of(packet.pidfd.take(), credentials.pid)?;
        let extents = hello.extents();
        let (len, control) = (extents.segment_len(), extents.control);
        let segment = PeerSegment::attach(&fd, (len, false), control, rules.prefault)?;
        fd.close_mapped();
        let peer = Peer::new(credentials, pidfd);
        Ok((Self { hello, segment, peer }, charges))
    }
}

/// Returns a descriptor of the process that sent a packet, from the kernel if it passed one, or by pid.
fn sender_of(given: Option<Result<OwnedFd, Errno>>, pid: Option<u32>) -> Result<Option<OwnedFd>> {
    match given {
        Some(Ok(pidfd)) => Ok(Some(pidfd)),
        // The process has ended, and its pid may be another process's. Source: `pidfd_prepare` of Linux 6.5 to 6.16.
        // Later kernels pass a descriptor of an ended process.
        Some(Err(Errno::INVAL | Errno::SRCH | Errno::NOENT)) => Err(ErrorKind::PeerDied.into()),
        // Without a descriptor this side could miss the death of the process.
        Some(Err(errno)) => Err(Error::os("SCM_PIDFD", errno)),
        None => open_pidfd(pid),
    }
}

/// Returns a descriptor of the process with this pid, for kernels without `SCM_PIDFD` (before 6.5). It is another
/// process than the sender only if the sender died and the kernel reused its pid within microseconds.
fn open_pidfd(pid: Option<u32>) -> Result<Option<OwnedFd>> {
    let pid = pid.and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    match pid.map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(pidfd)) => Ok(Some(pidfd)),
        Some(Err(errno @ (Errno::MFILE | Errno::NFILE))) => Err(Error::os("pidfd_open", errno)),
        // A process of another pid namespace, or a kernel older than 5.3.
        Some(Err(_)) | None => Ok(None),
    }
}

/// How long the connecting side polls for the answer before it sleeps. A listener that waits in `accept` takes about 60
/// µs and a wake-up another 15 µs.
pub(crate) const POLL: Duration = Duration::from_micros(100);

/// Runs the connecting side over a connected socket that [receives credentials](socket::receive_credentials). `meanwhile`
/// runs while the listener makes its answer, and `charge` before the listener's segment is mapped.
pub(crate) fn connect<C>(
    rules: Rules<'_>,
    socket: &Socket,
    ours: &Ours,
    (since, deadline): (Instant, Instant),
    meanwhile: impl FnOnce(),
    charge: impl FnOnce(&Credentials, &Hello) -> Result<C>,
) -> Result<(Theirs, C)> {
    let start = Instant::now();
    if let Err(error) = ours.introduce(socket) {
        // A listener that refused this side before its Hello has sent the reason.
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
            Incoming::Nothing if rules.polls && start.elapsed() < POLL => {}
            Incoming::Nothing => {
                if !socket::wait_readable(socket, Some(deadline))? {
                    let late = Error::from(ErrorKind::TimedOut { after: since.elapsed() });
                    return Err(late.waiting_for(who_is_silent(socket)));
                }
            }
        }
    };
    let charge = |peer: &Credentials, hello: &Hello| {
        role::check_answer(ours.hello.role, hello.role)?;
        charge(peer, hello)
    };
    let theirs = Theirs::check(rules, packet, None, charge);
    if theirs.is_err() {
        socket::end(socket);
    }
    theirs
}

/// Returns who listens and does not answer, for an error.
#[cold]
fn who_is_silent(socket: &Socket) -> String {
    let silent = "has not answered the Hello: it does not accept, or is stopped";
    match socket::maker(socket) {
        Ok(maker) => {
            let command = maker.pid.and_then(command_of);
            let command = command.map_or_else(String::new, |name| format!(" ({name})"));
            match maker.pid {
                Some(pid) => format!("process {pid}{command}, which listens, {silent}"),
                None => format!("the listener, a process of user {}, {silent}", maker.uid),
            }
        }
        Err(_) => format!("the listener {silent}"),
    }
}

/// The state of a peer that has connected.
pub(crate) enum Offer<C> {
    /// Its Hello has not come.
    Silent,
    /// This side answered its Hello.
    Accepted(Box<(Ours, Theirs, C)>),
    /// This side refused it, because its user has used up its share of this process.
    Overdrawn(Error),
}

/// Runs the accepting side: checks the peer's Hello if it has come, and answers with the side that `ours` returns.
/// `may_cost` is asked whether the user of the sender may cost this process the check of a segment of so many bytes.
/// `charge` runs before that segment is mapped. Tells a peer that it refuses why.
///
/// The policy checks the sender while the packet lies in the queue: this side never opens a descriptor of a stranger.
pub(crate) fn accept<C>(
    rules: Rules<'_>,
    socket: &OwnedFd,
    may_cost: impl FnOnce(u32, u64) -> bool,
    charge: impl FnOnce(&Credentials, &Hello) -> Result<C>,
    ours: impl FnOnce() -> Result<Ours>,
) -> Result<Offer<C>> {
    let next = match socket::peek_sender::<PACKET>(socket) {
        Ok(Incoming::Packet(packet)) => packet,
        Ok(Incoming::Nothing) => return Ok(Offer::Silent),
        Ok(Incoming::End) => return Err(ErrorKind::PeerClosed.into()),
        Err(error) => return Err(refuse(socket, error)),
    };
    let sender = next.credentials.ok_or_else(|| Fault::NoCredentials.into());
    let sender = sender.and_then(|sender| rules.policy.check(&sender).map(|()| sender));
    let sender = sender.map_err(|error| refuse(socket, error))?;
    let segment = match Packet::decode(&next.bytes[..next.len]) {
        Ok(Packet::Hello(hello)) => hello.extents().segment_len() as u64,
        // The check reports the fault.
        _ => 0,
    };
    // Descriptors count for the user that made their socket.
    let is_overdrawn =
        untrusted::are_some_overdrawn() && untrusted::is_overdrawn(socket::maker(socket)?.uid);
    if is_overdrawn || !may_cost(sender.uid, segment) {
        let error = Error::from(ErrorKind::OutOfMemory { bytes: segment });
        return Ok(Offer::Overdrawn(refuse(socket, error)));
    }
    let packet = match socket::receive::<PACKET>(socket) {
        Ok(Incoming::Packet(packet)) => packet,
        Ok(Incoming::Nothing) => return Ok(Offer::Silent),
        Ok(Incoming::End) => return Err(ErrorKind::PeerClosed.into()),
        Err(error) => return Err(refuse(socket, error)),
    };
    let charge = |peer: &Credentials, hello: &Hello| {
        rules.service.check(hello.role)?;
        charge(peer, hello)
    };
    let answer =
        Theirs::check(rules, packet, Some(sender), charge).and_then(|(theirs, charges)| {
            let ours = ours()?;
            ours.introduce(socket)?;
            Ok((ours, theirs, charges))
        });
    match answer {
        Ok(accepted) => Ok(Offer::Accepted(Box::new(accepted))),
        Err(error) => Err(refuse(socket, error)),
    }
}

/// Tells a peer why this side refuses it, and ends the socket. Returns the error.
pub(crate) fn refuse(socket: &OwnedFd, error: Error) -> Error {
    let reason = match error.kind() {
        ErrorKind::PeerNotAdmitted { .. } => Refusal::NotAdmitted,
        ErrorKind::Fault(fault) if fault.is_of_memory() => Refusal::BadSegment,
        ErrorKind::Fault(_) | ErrorKind::NoCommonVersion { .. } => Refusal::BadHello,
        ErrorKind::WrongService { publishes: true } => Refusal::Publishes,
        ErrorKind::WrongService { publishes: false } => Refusal::DoesNotPublish,
        ErrorKind::PolicyRefused => Refusal::Policy,
        ErrorKind::PeerClosed
        | ErrorKind::PeerDied
        | ErrorKind::NotAdmittedByPeer
        | ErrorKind::RefusedByPeer { .. } => return error,
        _ => Refusal::NoResources,
    };
    // A peer that cannot take the packet loses only the reason.
    let _ = socket::introduce(socket, &refusal(reason), &[]);
    // A forked child of this process may hold the socket too.
    socket::end(socket);
    error
}

#[cfg(test)]
mod tests;
