//! The objects of its peer that a link keeps open, so that the next tensor finds them open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use crate::channel::{LinkSocket, MappingCharge, PassedAllocation};
use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::import::Import;
use crate::cuda::lender::Lender;
use crate::cuda::mapped;
use crate::cuda::memory::{HeldMemory, Memory, MemoryHandle};
use crate::cuda::parked::{PAUSE, Parked};
use crate::cuda::returner::{self, Next, Source, Watch, Watched};
use crate::cuda::waits::Waits;
use crate::error::{CudaFault, Error, GpuUuid, Result};
use crate::tensor::{GpuHandle, GpuLoan};

/// Allocations that stay open without a view. A peer whose tensors come from more chunks than this pays for
/// reopening them.
const IDLE: usize = 64;

/// The longest wait for room in a peer's account, while allocations of it are being closed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest wait for words that are written, and were not read.
const READING: Duration = PAUSE.1;

/// How often room is made for one allocation: once for each resource that it is charged.
const ROUNDS: usize = 2;

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
    /// The bytes of addresses that its peer is charged.
    bytes: u64,
}

impl Known {
    fn is_withdrawn(&self) -> bool {
        self.passed.as_ref().is_some_and(|passed| passed.strong_count() == 0)
    }
}

impl Open {
    /// Returns the allocations without a view, the one first that was asked for longest ago.
    fn idle(&self) -> Vec<(Key, &Known)> {
        let idle = { self.imports.iter() }
            .filter(|(_, known)| Arc::strong_count(&known.import) == 1)
            .map(|(key, known)| (*key, known));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable_by_key(|(_, known)| known.last);
        idle
    }

    /// Has another thread close the allocations without a view beyond [`IDLE`]. Closes none while a stream may wait for a word: it
    /// would stay charged until then, and the next tensor of it would be opened anew. Returns whether a word is in the way.
    fn close_oldest(&mut self, waits: &Waits) -> bool {
        let idle: Vec<Key> = self.idle().into_iter().map(|(key, _)| key).collect();
        let beyond = idle.len().saturating_sub(IDLE);
        if beyond > 0 && waits.are_there() {
            return true;
        }
        idle.iter().take(beyond).for_each(|key| drop(self.imports.remove(key)));
        false
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

    /// Over a limit of the peer's account, room is made where that is possible.
    fn import(&self, device: &Device, loan: &Arc<GpuLoan>) -> Result<Arc<Import>> {
        let mut charge = None;
        for _ in 0..ROUNDS {
            match self.try_import(device, loan, charge.take()) {
                Err(error) if self.close_idle(&error) => {}
                done => return done,
            }
            closer::wait_for_all(PATIENCE, || {
                charge = loan.charge_mapping().ok();
                charge.is_some()
            });
        }
        self.try_import(device, loan, charge)
    }

    /// Closes allocations that no view uses, as many as a charge needs that was refused, the one first that was asked for longest
    /// ago. Returns whether it did: none is closed if all are too few, or if they would only wait, for a word.
    fn close_idle(&self, refused: &Error) -> bool {
        let Some(missing) = MappingCharge::missing(refused) else { return false };
        let enough = |open: &Open| {
            let mut room = 0;
            let idle = open.idle().into_iter().take_while(|(_, known)| {
                let is_missing = room < missing.amount();
                room += missing.won_by(known.bytes);
                is_missing
            });
            let keys: Vec<Key> = idle.map(|(key, _)| key).collect();
            (room >= missing.amount()).then_some(keys)
        };
        let is_enough = enough(&self.open()).is_some();
        if !is_enough || !Waits::of_process().are_over(READING) {
            return false;
        }
        let mut open = self.open();
        let keys = enough(&open);
        keys.iter().flatten().for_each(|key| drop(open.imports.remove(key)));
        keys.is_some()
    }

    fn try_import(
        &self,
        device: &Device,
        loan: &Arc<GpuLoan>,
        charge: Option<MappingCharge>,
    ) -> Result<Arc<Import>> {
        let mut memory = self.open();
        // Under the lock, so that of two threads the first one has it. Dropping this loan tells the owner that this tensor opened
        // nothing. Another loan stands for the open allocation.
        let mapping = loan.take_mapping();
        memory.now += 1;
        let now = memory.now;
        let key = match loan.place.memory {
            GpuHandle::Ipc(handle) => Key::Handle(loan.place.device, handle),
            GpuHandle::Announced(_) => Key::Announced(loan.passed().map(|passed| passed.serial())),
        };
        if let Some(known) = memory.imports.get_mut(&key) {
            known.last = now;
            return Ok(known.import.clone());
        }
        let opened = match open_memory(device, loan, charge) {
            Ok(opened) => opened,
            Err(error) => {
                loan.put_mapping(mapping);
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
            let withdrawals = &mut memory.withdrawals;
            withdrawals.get_or_insert_with(|| Withdrawals::new(loan.socket())).be_watched();
        }
        let bytes = loan.passed().map_or(0, |passed| passed.len());
        memory.imports.insert(key, Known { last: now, import: import.clone(), passed, bytes });
        let waits = Waits::of_process();
        if memory.close_oldest(&waits) {
            drop(memory);
            waits.ask_all();
        }
        Ok(import)
    }

    /// Returns the process that has lent a tensor, as the writer of words.
    pub(super) fn lender(&self, loan: &GpuLoan) -> Arc<Lender> {
        let mut open = self.open();
        open.lender.get_or_insert_with(|| Lender::new(loan.life())).clone()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens or maps the allocation that a tensor lies in, and charges its lender, unless it is charged. One that is mapped may lie on
/// another GPU.
fn open_memory(
    device: &Device,
    loan: &GpuLoan,
    charge: Option<MappingCharge>,
) -> Result<(HeldMemory, MappingCharge)> {
    let charge = || charge.map_or_else(|| loan.charge_mapping(), Ok);
    match (loan.place.memory, loan.passed()) {
        (GpuHandle::Ipc(handle), _) => {
            let charge = charge()?;
            Ok((HeldMemory::Handle(Memory::open(device, handle)?), charge))
        }
        (_, Some(passed)) => {
            mapped::check_claim(device, passed)?;
            let charge = charge()?;
            Ok((HeldMemory::Sole(Memory::import(device, passed)?), charge))
        }
        // A loan without the allocation that its place names does not come about.
        (_, None) => Err(CudaFault::NotAllocation.into()),
    }
}
