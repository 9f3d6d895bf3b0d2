//! Allocations of GPUs whose descriptors travel over the socket, on both sides of a link. No driver.
//!
//! ```text
//!   SharedAllocation ──announced once a link──▶ PassedAllocation ──withdrawn──▶ closed
//!   (its owner)        number, length, GPU, fd   (a tensor on loan keeps it open)
//! ```
//!
//! 1. A number names one allocation and is never used for another one. The owner withdraws an allocation when it has
//!    freed its own mapping; no record names it then. Whichever thread drops the allocation sends the packet. Where the socket
//!    takes none, a thread of the GPUs sends it when the peer has read the socket, or the link's sender does before.
//! 2. The peer's descriptor stays open until the peer withdraws it or the link ends, and as long as a tensor keeps it.
//! 3. The number of a peer's allocations has a limit, and each descriptor is charged to the link's account.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::account::{Account, Charge, Resource};
use crate::error::{Fault, GpuUuid, Result};
use crate::handshake::packet::Packet;
use crate::handshake::untrusted::UntrustedFd;
use crate::shm::fork::Generation;

/// The most allocations of one peer that a side keeps. Part of the wire format.
pub(crate) const ALLOCATIONS: usize = 1024;

/// The number of the next allocation of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// How many allocations peers have passed to this process.
static PASSED: AtomicU64 = AtomicU64::new(0);

/// An allocation of this process, whose descriptor peers get.
#[derive(Debug)]
pub struct SharedAllocation {
    number: u64,
    len: u64,
    device: GpuUuid,
    fd: OwnedFd,
    known_by: Mutex<Vec<Weak<AnnouncedAllocations>>>,
    /// The process that made it.
    generation: Option<Generation>,
}

impl SharedAllocation {
    /// Returns an allocation of `len` bytes on a GPU, a multiple of 2 MiB, with a number of its own.
    pub fn new(device: GpuUuid, len: u64, fd: OwnedFd) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (known_by, generation) = (Mutex::default(), Generation::current().ok());
        Self { number, len, device, fd, known_by, generation }
    }

    /// Returns its number, by which places name it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the packet that announces it, with the descriptor that goes along.
    pub(crate) fn announcement(&self) -> (Packet, BorrowedFd<'_>) {
        let Self { number, len, device, .. } = *self;
        (Packet::Allocation { number, len, device: device.0 }, self.fd.as_fd())
    }

    fn known_by(&self) -> MutexGuard<'_, Vec<Weak<AnnouncedAllocations>>> {
        self.known_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedAllocation {
    fn drop(&mut self) {
        // A forked child shares the sockets, and may find the locks taken forever.
        if !self.generation.as_ref().is_some_and(Generation::is_current) {
            return;
        }
        for peer in std::mem::take(&mut *self.known_by()).iter().filter_map(Weak::upgrade) {
            peer.allocation_is_gone(self.number);
        }
    }
}

/// The way by which any thread sends a peer withdrawals.
pub(crate) trait WithdrawalWay: Send + Sync {
    /// Sends the withdrawal of a number. Returns `false` if the socket does not take it now.
    fn withdraw(&self, number: u64) -> bool;

    /// Returns a descriptor of its own of the socket, on which room comes when the peer reads. `None`: the link is gone.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a thread of the GPUs asks"))]
    fn socket(&self) -> Result<Option<OwnedFd>>;
}

/// The peers to whom withdrawals are yet to be sent.
static UNSENT: Mutex<Vec<Weak<AnnouncedAllocations>>> = Mutex::new(Vec::new());

/// The allocations of this process that one peer knows.
pub struct AnnouncedAllocations {
    state: Mutex<AnnouncedState>,
    way: Box<dyn WithdrawalWay>,
    /// What sends the rest when the socket has room.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a thread of the GPUs asks"))]
    follower: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Debug, Default)]
struct AnnouncedState {
    known: HashSet<u64>,
    /// Those of the known ones that are gone.
    gone: Vec<u64>,
}

impl AnnouncedAllocations {
    /// Returns the allocations of a peer: none.
    pub(crate) fn new(way: impl WithdrawalWay + 'static) -> Arc<Self> {
        let (state, follower) = Default::default();
        Arc::new(Self { state, way: Box::new(way), follower })
    }

    /// Returns whether the peer knows an allocation.
    pub(crate) fn knows(&self, allocation: &SharedAllocation) -> bool {
        self.state().known.contains(&allocation.number)
    }

    /// Returns whether the peer may get one more.
    pub(crate) fn has_room(&self) -> bool {
        self.state().known.len() < ALLOCATIONS
    }

    /// Notes that an allocation is announced.
    pub(crate) fn announced(self: &Arc<Self>, allocation: &SharedAllocation) {
        self.state().known.insert(allocation.number);
        let mut known_by = allocation.known_by();
        known_by.retain(|peer| peer.strong_count() > 0);
        known_by.push(Arc::downgrade(self));
    }

    /// Withdraws the allocations that are gone, one by one, until `post` sends no packet.
    pub(crate) fn withdraw_gone<E>(
        &self,
        mut post: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state();
        while let Some(&number) = state.gone.last() {
            post(number)?;
            state.gone.pop();
            state.known.remove(&number);
        }
        Ok(())
    }

    /// Notes that an allocation is gone, and withdraws it if the socket takes the packet now.
    fn allocation_is_gone(self: &Arc<Self>, number: u64) {
        self.state().gone.push(number);
        if !self.withdraw_rest() {
            // It waits for room, and for the sender's next tensor in an allocation.
            self.is_unsent();
        }
    }

    /// Notes that withdrawals are yet to be sent.
    pub fn is_unsent(self: &Arc<Self>) {
        let mut unsent = UNSENT.lock().unwrap_or_else(PoisonError::into_inner);
        if !unsent.iter().any(|peer| peer.as_ptr() == Arc::as_ptr(self)) {
            unsent.push(Arc::downgrade(self));
        }
    }

    /// Sends the withdrawals that the socket takes now. Returns whether none is left.
    pub fn withdraw_rest(&self) -> bool {
        self.withdraw_gone(|number| if self.way.withdraw(number) { Ok(()) } else { Err(()) })
            .is_ok()
    }

    fn state(&self) -> MutexGuard<'_, AnnouncedState> {
        // Every step leaves the table consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "cuda")]
impl AnnouncedAllocations {
    /// Returns the peers to whom withdrawals are yet to be sent, once.
    pub fn unsent() -> Vec<Arc<Self>> {
        let unsent = std::mem::take(&mut *UNSENT.lock().unwrap_or_else(PoisonError::into_inner));
        unsent.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns a descriptor of its own of the socket, on which room comes when the peer reads. `None`: the link is gone.
    pub fn socket(&self) -> Result<Option<OwnedFd>> {
        self.way.socket()
    }

    /// Keeps what sends the rest, in place of what did before.
    pub fn follow_by(&self, follower: impl Any + Send) {
        let follower: Box<dyn Any + Send> = Box::new(follower);
        let before = self.follower.lock().unwrap_or_else(PoisonError::into_inner).replace(follower);
        drop(before);
    }
}

impl fmt::Debug for AnnouncedAllocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnnouncedAllocations").field(&self.state).finish()
    }
}

/// An allocation of a peer. `Memory::import` checks with the driver what the peer says of it.
#[derive(Debug)]
pub struct PassedAllocation {
    /// Of this process. A peer may use a number again.
    serial: u64,
    len: u64,
    device: GpuUuid,
    fd: UntrustedFd,
    listener: OnceLock<Listener>,
    _charge: Charge,
}

/// What hears of the end of an allocation.
struct Listener(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
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

impl PassedAllocation {
    /// Has `listener` called when the peer has withdrawn the allocation and no tensor keeps it, or when the link has ended.
    /// The call comes on any thread, under locks of the link, and once. The first listener stays the only one.
    pub fn when_gone(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.listener.set(Listener(Box::new(listener)));
    }
}

impl Drop for PassedAllocation {
    fn drop(&mut self) {
        if let Some(Listener(listener)) = self.listener.get() {
            listener();
        }
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

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
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
        let listener = OnceLock::new();
        let passed = PassedAllocation { serial, len, device, fd, listener, _charge };
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
