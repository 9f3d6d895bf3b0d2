//! One end of a link between the two processes, as every system has to bring it.

use crate::Outcome;
use crate::exchange::{Role, Setup};
use crate::payload::{self, FROM_FOLLOWER, FROM_LEADER};

/// The most messages of a run that is received at once.
pub const RUN: usize = 64;

/// One end of a link that carries messages both ways. All messages of one link have the same length.
///
/// `receive`, `sum` and `take` wait for a message, in the way that the end was opened for.
pub trait End {
    /// Copies a message in.
    fn send(&mut self, message: &[u8]) -> Outcome<()>;

    /// Copies a message out, into a buffer of its length, or puts a buffer with the message in its place.
    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()>;

    /// Sends a message filled from `seed`. Systems that cannot fill in place fill `private` and copy it.
    fn fill(&mut self, private: &mut [u8], seed: u64) -> Outcome<()> {
        payload::fill(private, seed);
        self.send(private)
    }

    /// Receives a message and sums it, in place or in `private`.
    fn sum(&mut self, private: &mut Vec<u8>) -> Outcome<u64> {
        self.receive(private)?;
        Ok(payload::sum(private))
    }

    /// Receives up to `most` messages that have come, one at least, in the way that the system has for several. Returns their count
    /// and their sum.
    fn sum_run(&mut self, private: &mut Vec<u8>, most: u64) -> Outcome<(u64, u64)> {
        let _ = most;
        Ok((1, self.sum(private)?))
    }

    /// Sends a message of `len` bytes that nobody writes.
    fn hand(&mut self, len: usize) -> Outcome<()> {
        Err(format!("{len} bytes cannot be handed over: this system copies").into())
    }

    /// Receives a message of `len` bytes that nobody reads.
    fn take(&mut self, len: usize) -> Outcome<()> {
        Err(format!("{len} bytes cannot be taken: this system copies").into())
    }
}

/// Which messages went each way.
pub struct Count {
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Count {
    pub fn new(setup: &Setup) -> Count {
        let salts = match setup.role {
            Role::Leader => (FROM_LEADER, FROM_FOLLOWER),
            Role::Follower => (FROM_FOLLOWER, FROM_LEADER),
        };
        Count { sent: 0, received: 0, salts }
    }

    /// The seed of the next message to send.
    pub fn next_out(&mut self) -> u64 {
        self.sent += 1;
        payload::seed(self.sent - 1, self.salts.0)
    }

    /// Number and seed of the next message to receive.
    pub fn next_in(&mut self) -> (u64, u64) {
        self.received += 1;
        (self.received - 1, payload::seed(self.received - 1, self.salts.1))
    }
}

/// The names of two one-way links: of the one on which this side sends, and of the other.
pub fn names(setup: &Setup) -> (String, String) {
    let (out, back) = (format!("{}-out", setup.name), format!("{}-back", setup.name));
    match setup.role {
        Role::Leader => (out, back),
        Role::Follower => (back, out),
    }
}

/// The two ends of two one-way links, the leader's first: `make` is called on both sides for each.
pub fn both<T, R>(
    setup: &Setup,
    mut sender: impl FnMut(&str) -> Outcome<T>,
    mut receiver: impl FnMut(&str) -> Outcome<R>,
) -> Outcome<(T, R)> {
    let (mine, theirs) = names(setup);
    // Creators first, then those who attach.
    let sender = sender(&mine)?;
    setup.meet()?;
    let receiver = receiver(&theirs)?;
    setup.meet()?;
    Ok((sender, receiver))
}
