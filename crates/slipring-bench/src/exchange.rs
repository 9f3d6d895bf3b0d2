//! A way to carry messages between two processes, as a harness drives it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::Outcome;
use crate::memory::Mapping;
use crate::payload::{FROM_FOLLOWER, FROM_LEADER};

/// The part of a process in an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Sends first, and takes the time.
    Leader,
    /// Answers.
    Follower,
}

impl Role {
    /// Returns the salts of the payload that this side sends and of the payload that it receives.
    pub fn salts(self) -> (u64, u64) {
        match self {
            Role::Leader => (FROM_LEADER, FROM_FOLLOWER),
            Role::Follower => (FROM_FOLLOWER, FROM_LEADER),
        }
    }
}

/// One side of an exchange. Both sides open the same row at the same size and run in step: while the leader is in
/// `lead(n)`, the follower is in `follow(n)`.
///
/// Neither call has a deadline: a watchdog ends the run when the peer dies or hangs.
pub trait Exchange {
    /// Selects a variant. The harness calls it on both sides before each slice.
    fn tune(&mut self, _variant: u64) {}

    /// Makes `count` round trips. In a stream, sends `count` messages and receives one answer.
    fn lead(&mut self, count: u64) -> Outcome<()>;

    /// Answers `count` round trips. In a stream, receives `count` messages and sends one answer.
    fn follow(&mut self, count: u64) -> Outcome<()>;

    /// Makes `count` round trips and appends the nanoseconds of each. The clock is read once a round trip, and one reading
    /// (about 20 ns) is in each stamp.
    fn lead_stamped(&mut self, count: u64, stamps: &mut Vec<u64>) -> Outcome<()> {
        let mut before = Instant::now();
        for _ in 0..count {
            self.lead(1)?;
            let after = Instant::now();
            stamps.push((after - before).as_nanos() as u64);
            before = after;
        }
        Ok(())
    }

    /// Returns how many times this side has gone to sleep. Where threads of its own sleep, it is the mean of them.
    fn sleeps(&self) -> u64 {
        sleeps_in("/proc/thread-self/status")
    }
}

/// Returns how many times a thread has gone to sleep, by its file `status` in `/proc`.
pub fn sleeps_in(status: &str) -> u64 {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// One side of a round trip.
pub trait Turn {
    /// Sends the next message.
    fn send(&mut self) -> Outcome<()>;

    /// Receives the next message and checks it.
    fn receive(&mut self) -> Outcome<()>;
}

/// An exchange of round trips, one after the other.
pub struct Turns<T>(pub T);

impl<T: Turn> Exchange for Turns<T> {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.0.send()?;
            self.0.receive()?;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            self.0.receive()?;
            self.0.send()?;
        }
        Ok(())
    }
}

/// The means to open one side of an exchange, while the peer opens the other.
pub struct Setup<'a> {
    /// The part of this process.
    pub role: Role,
    /// Bytes of payload in each message.
    pub bytes: usize,
    /// An abstract socket name that no other process uses. Both sides have the same one.
    pub name: &'a str,
    /// A seqpacket socket to the peer, over which the sides pass descriptors and meet.
    pub socket: BorrowedFd<'a>,
}

impl Setup<'_> {
    /// Creates a segment, exchanges descriptors with the peer, and returns this side's segment and the peer's.
    pub fn segments(&self, len: usize, one_writer: bool) -> Outcome<(Mapping, Mapping)> {
        let (mine, fd) = Mapping::create(len, one_writer)?;
        send_fd(self.socket, len as u64, fd.as_fd())?;
        let (_, fd) = receive_fd(self.socket)?;
        Ok((mine, Mapping::attach(&fd, len, !one_writer)?))
    }

    /// Waits until the peer has called it, too.
    pub fn meet(&self) -> Outcome<()> {
        rustix::net::send(self.socket, b"!", SendFlags::NOSIGNAL)?;
        let (got, _) = rustix::net::recv(self.socket, &mut [0; 1], RecvFlags::empty())?;
        if got == 0 { Err("the peer is gone".into()) } else { Ok(()) }
    }
}

/// The most descriptors in one message. `bench-rivals` sends as many.
const MOST: usize = 6;

/// Sends a word with one descriptor.
pub fn send_fd(socket: BorrowedFd<'_>, word: u64, fd: BorrowedFd<'_>) -> Outcome<()> {
    send_fds(socket, word, &[fd])
}

/// Sends a word with some descriptors.
pub fn send_fds(socket: BorrowedFd<'_>, word: u64, fds: &[BorrowedFd<'_>]) -> Outcome<()> {
    let word = word.to_ne_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(format!("no room for {} descriptors", fds.len()).into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&word)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a word with one descriptor.
pub fn receive_fd(socket: BorrowedFd<'_>) -> Outcome<(u64, OwnedFd)> {
    let (word, [fd]) = receive_fds(socket)?;
    Ok((word, fd))
}

/// Receives a word with `N` descriptors.
pub fn receive_fds<const N: usize>(socket: BorrowedFd<'_>) -> Outcome<(u64, [OwnedFd; N])> {
    let mut word = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut word)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut slices, &mut ancillary, flags)?.bytes;
    if got != word.len() {
        return Err(format!("the peer sent {got} bytes, expected {}", word.len()).into());
    }
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds: Vec<OwnedFd> = rights.flatten().collect();
    let fds = <[OwnedFd; N]>::try_from(fds)
        .map_err(|fds| format!("the peer sent {} descriptors, expected {N}", fds.len()))?;
    Ok((u64::from_ne_bytes(word), fds))
}
