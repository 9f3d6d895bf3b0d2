//! Allocations of GPUs whose descriptors travel over the socket, on both sides of a link. No driver.
//!
//! ```text
//!   SharedAllocation ──announced once a link──▶ PassedAllocation ──withdrawn──▶ closed
//!   (its owner)        number, length, GPU, fd   (a tensor on loan keeps it open)
//! ```
//!
//! 1. A number names one allocation and is never used for another one. The owner withdraws an allocation when it has
//!    freed its own mapping; no record names it then.
//! 2. The peer's descriptor stays open until the peer withdraws it or the link ends, and as long as a tensor keeps it.
//! 3. The number of a peer's allocations has a limit, and each descriptor is charged to the link's account.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::account::{Account, Charge, Resource};
use crate::error::{Fault, GpuUuid, Result};
use crate::handshake::packet::Packet;
use crate::handshake::untrusted::UntrustedFd;

/// The most allocations of one peer that a side keeps. Part of the wire format.
pub(crate) const ALLOCATIONS: usize = 1024;

/// The number of the next allocation of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// How many allocations peers have passed to this process.
static PASSED: AtomicU64 = AtomicU64::new(0);

/// How many of this process's allocations are gone.
static GONE: AtomicU64 = AtomicU64::new(0);

/// An allocation of this process, whose descriptor peers get.
#[derive(Debug)]
pub struct SharedAllocation {
    number: u64,
    len: u64,
    device: GpuUuid,
    fd: OwnedFd,
}

impl SharedAllocation {
    /// Returns an allocation of `len` bytes on a GPU, a multiple of 2 MiB, with a number of its own.
    pub fn new(device: GpuUuid, len: u64, fd: OwnedFd) -> Self {
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), len, device, fd }
    }

    /// Returns its number, by which places name it.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn packet(&self) -> Packet {
        Packet::Allocation { number: self.number, len: self.len, device: self.device.0 }
    }
}

impl Drop for SharedAllocation {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::Relaxed);
    }
}

/// The allocations of this process that one peer knows.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedAllocations {
    known: HashMap<u64, Weak<SharedAllocation>>,
    /// The count of gone allocations at the last look for those to withdraw.
    gone: u64,
}

impl AnnouncedAllocations {
    /// Returns whether the peer knows an allocation.
    pub(crate) fn knows(&self, allocation: &SharedAllocation) -> bool {
        self.known.contains_key(&allocation.number)
    }

    /// Returns whether the peer may get one more.
    pub(crate) fn has_room(&self) -> bool {
        self.known.len() < ALLOCATIONS
    }

    /// Returns the numbers of the known allocations that are gone.
    pub(crate) fn gone(&self) -> Vec<u64> {
        if self.gone == GONE.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let gone = self.known.iter().filter(|(_, known)| known.strong_count() == 0);
        gone.map(|(number, _)| *number).collect()
    }

    /// Notes that all of the [gone](Self::gone) ones up to now are withdrawn. `before` is [`count_gone`] from before the look.
    pub(crate) fn withdrew_all(&mut self, before: u64) {
        self.gone = before;
    }

    /// Notes that an allocation is withdrawn.
    pub(crate) fn withdrew(&mut self, number: u64) {
        self.known.remove(&number);
    }

    /// Returns the packet that announces an allocation, with the descriptor that goes along.
    pub(crate) fn announcement(allocation: &SharedAllocation) -> (Packet, BorrowedFd<'_>) {
        (allocation.packet(), allocation.fd.as_fd())
    }

    /// Notes that an allocation is announced.
    pub(crate) fn announced(&mut self, allocation: &Arc<SharedAllocation>) {
        self.known.insert(allocation.number, Arc::downgrade(allocation));
    }
}

/// Returns how many of this process's allocations are gone.
pub(crate) fn count_gone() -> u64 {
    GONE.load(Ordering::Relaxed)
}

/// An allocation of a peer. Whoever opens it checks with the driver what the peer says of it.
#[derive(Debug)]
pub struct PassedAllocation {
    /// Of this process. A peer may use a number again.
    serial: u64,
    len: u64,
    device: GpuUuid,
    fd: UntrustedFd,
    _charge: Charge,
}

impl PassedAllocation {
    /// Returns a number that no other allocation of any peer has in this process.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns its length in bytes, as the peer says: a multiple of 2 MiB, not 0.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether it has no bytes, which the peer cannot say.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the UUID of its GPU, as the peer says.
    pub fn device(&self) -> GpuUuid {
        self.device
    }
}

/// The descriptor, of whatever the peer has sent.
impl AsFd for PassedAllocation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The allocations that a peer has announced and not withdrawn.
#[derive(Debug)]
pub(crate) struct PassedAllocations {
    account: Arc<Account>,
    known: HashMap<u64, Arc<PassedAllocation>>,
}

impl PassedAllocations {
    /// Returns the allocations of a link with this account: none.
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self { account, known: HashMap::new() }
    }

    /// Adds the allocation of a packet.
    ///
    /// # Errors
    ///
    /// - [`Fault::Field`]: its number is known.
    /// - [`Fault::PeerAllocations`]: there are too many.
    /// - [`ErrorKind::AccountFull`](crate::ErrorKind::AccountFull): the account has no room for its descriptor.
    pub(crate) fn add(
        &mut self,
        number: u64,
        (device, len): (GpuUuid, u64),
        fd: UntrustedFd,
    ) -> Result<()> {
        let count = self.known.len() + 1;
        if count > ALLOCATIONS {
            return Err(Fault::PeerAllocations { count, limit: ALLOCATIONS }.into());
        }
        if self.known.contains_key(&number) {
            return Err(Fault::Field { field: "allocation.number", value: number }.into());
        }
        let _charge = self.account.charge(Resource::Descriptors, 1)?;
        let serial = PASSED.fetch_add(1, Ordering::Relaxed);
        let passed = PassedAllocation { serial, len, device, fd, _charge };
        self.known.insert(number, Arc::new(passed));
        Ok(())
    }

    /// Removes an allocation. An unknown number is none of this side's business.
    pub(crate) fn withdraw(&mut self, number: u64) {
        self.known.remove(&number);
    }

    /// Returns the allocation with this number, if it is known.
    pub(crate) fn get(&self, number: u64) -> Option<&Arc<PassedAllocation>> {
        self.known.get(&number)
    }
}

#[cfg(test)]
mod tests;
