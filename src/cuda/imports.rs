//! The objects of its peer that a link keeps open, so that the next tensor finds them open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};

use crate::channel::{LinkSocket, MappingCharge, PassedAllocation};
use crate::cuda::device::Device;
use crate::cuda::import::Import;
use crate::cuda::lender::Lender;
use crate::cuda::mapped;
use crate::cuda::memory::{HeldMemory, Memory, MemoryHandle};
use crate::cuda::parked::Parked;
use crate::cuda::returner::{self, Next, Source, Watch, Watched};
use crate::error::{CudaFault, ErrorKind, GpuUuid, Result};
use crate::tensor::{GpuHandle, GpuLoan};

/// Allocations that stay open without a view. A peer whose tensors come from more chunks than this pays for
/// reopening them.
const IDLE: usize = 64;

/// The link keeps it in its extension slot.
#[derive(Debug, Default)]
pub(super) struct Imports {
    open: Arc<Mutex<Open>>,
}

/// The socket of a link, from which the peer's withdrawals are taken while the user's threads sleep.
#[derive(Debug)]
struct Withdrawals {
    socket: LinkSocket,
    /// The thread's watch of the socket.
    watched: OnceLock<Watched>,
}

impl Withdrawals {
    fn new(socket: LinkSocket) -> Arc<Self> {
        Arc::new(Self { socket, watched: OnceLock::new() })
    }

    /// Has the thread read the socket. If there is no thread now, the next allocation tries once more.
    fn be_watched(self: &Arc<Self>) {
        if self.watched.get().is_none() {
            let source = Source::readable(self.socket.clone());
            let own: Weak<Self> = Arc::downgrade(self);
            returner::watch(Some(source), own).into_iter().for_each(|watched| {
                let _ = self.watched.set(watched);
            });
        }
    }
}

impl Watch for Withdrawals {
    fn look(&self) -> Next {
        // Each packet that comes causes a look. So a withdrawal behind something else is taken by the user's threads, with that,
        // or by the thread, if it comes when that is taken.
        self.socket.take_withdrawals();
        Next::Event
    }
}

/// The end of an announced allocation, which is closed on a thread of its own: a link hears of it under locks.
struct Withdrawn {
    open: Weak<Mutex<Open>>,
}

impl Parked for Withdrawn {
    /// Lets go of what is withdrawn, unless a thread opens an allocation of the link now, which may take long.
    fn is_over(&self) -> bool {
        let Some(open) = self.open.upgrade() else { return true };
        let mut open = match open.try_lock() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Another thread closes them.
        open.imports.retain(|_, known| !known.is_withdrawn());
        true
    }
}

/// A count of the requests, the open objects, and the peer.
#[derive(Debug, Default)]
struct Open {
    now: u64,
    imports: HashMap<Key, Known>,
    /// Of words that this process awaits.
    lender: Option<Arc<Lender>>,
    /// While the peer's allocations are open that it can withdraw.
    withdrawals: Option<Arc<Withdrawals>>,
}

/// An open object.
#[derive(Debug)]
struct Known {
    /// The count at the last request.
    last: u64,
    import: Arc<Import>,
    /// Of an announced allocation: gone when its owner has withdrawn it and no tensor of it is left.
    passed: Option<Weak<PassedAllocation>>,
}

impl Known {
    fn is_withdrawn(&self) -> bool {
        self.passed.as_ref().is_some_and(|passed| passed.strong_count() == 0)
    }
}

/// What names an allocation on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// A peer that lies may name the same handle for two GPUs.
    Handle(GpuUuid, MemoryHandle),
    /// By its serial: a peer that lies may use a number again.
    Announced(Option<u64>),
}

impl Imports {
    /// Returns the allocation that a tensor lies in, which the work of `device` can use.
    ///
    /// What is opened is kept before it is judged, and stays when it is refused: closing it may wait, and the next tensor of it
    /// finds it open, and is told the same. It is closed as any other one.
    pub(super) fn memory(&self, device: &Device, loan: &Arc<GpuLoan>) -> Result<Arc<Import>> {
        let import = self.import(device, loan)?;
        import.memory().holds(loan.place.allocation)?;
        import.memory().reach_from(device)?;
        Ok(import)
    }

    fn import(&self, device: &Device, loan: &Arc<GpuLoan>) -> Result<Arc<Import>> {
        // Dropping this loan tells the owner that this tensor opened nothing. Another loan stands for the open
        // allocation.
        let mapping = loan.take_mapping();
        let mut memory = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Open { now, imports: open, withdrawals, .. } = &mut *memory;
        *now += 1;
        let key = match loan.place.memory {
            GpuHandle::Ipc(handle) => Key::Handle(loan.place.device, handle),
            GpuHandle::Announced(_) => Key::Announced(loan.passed().map(|passed| passed.serial())),
        };
        if let Some(known) = open.get_mut(&key) {
            known.last = *now;
            return Ok(known.import.clone());
        }
        let opened = match open_memory(device, loan) {
            Ok(opened) => opened,
            Err(error) => {
                loan.put_mapping(mapping);
                if matches!(error.kind(), ErrorKind::AccountFull { .. }) {
                    // A later tensor has room when that is closed.
                    close_oldest(open, 0);
                }
                return Err(error);
            }
        };
        // Without a loan of its own the allocation was open before this tensor, and its owner thinks that it
        // is closed. The loan of the bytes keeps it.
        let is_told = mapping.is_some();
        let bytes = (!is_told).then(|| loan.clone());
        let import = Arc::new(Import::of_loans(opened, mapping, bytes));
        if !is_told {
            return Ok(import);
        }
        let passed = loan.passed().map(Arc::downgrade);
        if let Some(passed) = loan.passed() {
            let open = Arc::downgrade(&self.open);
            passed.when_gone(move || returner::give_back(None, Withdrawn { open: open.clone() }));
            withdrawals.get_or_insert_with(|| Withdrawals::new(loan.socket())).be_watched();
        }
        open.insert(key, Known { last: *now, import: import.clone(), passed });
        close_oldest(open, IDLE);
        Ok(import)
    }

    /// Returns the process that has lent a tensor, as the writer of words.
    pub(super) fn lender(&self, loan: &GpuLoan) -> Arc<Lender> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.lender.get_or_insert_with(|| Lender::new(loan.life())).clone()
    }
}

/// Closes the allocation without a view that was asked for longest ago, if there are more than `most`. Another thread closes it.
fn close_oldest(open: &mut HashMap<Key, Known>, most: usize) {
    let idle = open.iter().filter(|(_, known)| Arc::strong_count(&known.import) == 1);
    if idle.clone().count() > most {
        let oldest = idle.min_by_key(|(_, known)| known.last).map(|(key, _)| *key);
        oldest.and_then(|key| open.remove(&key));
    }
}

/// Opens or maps the allocation that a tensor lies in, and charges its lender. One that is mapped may lie on another GPU.
fn open_memory(device: &Device, loan: &GpuLoan) -> Result<(HeldMemory, MappingCharge)> {
    match (loan.place.memory, loan.passed()) {
        (GpuHandle::Ipc(handle), _) => {
            let charge = loan.charge_mapping()?;
            Ok((HeldMemory::Handle(Memory::open(device, handle)?), charge))
        }
        (_, Some(passed)) => {
            mapped::check_claim(device, passed)?;
            let charge = loan.charge_mapping()?;
            Ok((HeldMemory::Mapping(Memory::import(device, passed)?), charge))
        }
        // A loan without the allocation that its place names does not come about.
        (_, None) => Err(CudaFault::NotAllocation.into()),
    }
}
