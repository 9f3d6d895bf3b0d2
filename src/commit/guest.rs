//! A server's side of one client: its models, its commits, and how each of them ends.
//!
//! ```text
//!   Guest ◀── Loaded ◀── Committed ◀── executions that run
//! ```
//!
//! Arrows keep alive. What a client gives up is taken out of its ledger, so that nobody new finds it; its end comes
//! when the last execution lets go of it, and ends what it was the last user of. Each end tells the service, and then
//! the client, if that has asked for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::commit::description::Layout;
use crate::commit::ledger::{Account, Slots};
use crate::commit::limits::One;
use crate::commit::memory::Memory;
use crate::commit::message::{self, Answer};
use crate::commit::server::Host;
use crate::commit::service::{Buffers, Caller, Service};
use crate::error::{CommitFault, Error};
use crate::reactor::Link;

/// A lock that no panic of a service's leaves broken: what it guards is only replaced whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One client.
pub(super) struct Guest<S: Service> {
    pub(super) host: Arc<Host<S>>,
    pub(super) caller: Caller,
    pub(super) link: Link,
    pub(super) ledger: Mutex<Ledger<S>>,
    /// Requests other than executions that wait.
    pub(super) asked: AtomicUsize,
    /// It has gone.
    pub(super) gone: AtomicBool,
    /// What its link ended with, if that was not a close.
    pub(super) why: OnceLock<Error>,
}

/// What a client has.
pub(super) struct Ledger<S: Service> {
    pub(super) models: Slots<Arc<Loaded<S>>>,
    pub(super) commits: Slots<Arc<Committed<S>>>,
    pub(super) account: Account,
}

impl<S: Service> Default for Ledger<S> {
    fn default() -> Self {
        let (models, commits) = (Slots::default(), Slots::default());
        Self { models, commits, account: Account::default() }
    }
}

impl<S: Service> Guest<S> {
    pub(super) fn new(host: Arc<Host<S>>, caller: Caller, link: Link) -> Self {
        One::more(&host.tally.clients).keep();
        let (ledger, asked) = (Mutex::default(), AtomicUsize::new(0));
        let (gone, why) = (AtomicBool::new(false), OnceLock::new());
        Self { host, caller, link, ledger, asked, gone, why }
    }

    /// Answers. A client that is gone hears nothing.
    pub(super) fn answer(&self, ticket: u64, answer: &Answer) {
        self.send(&answer.encode(ticket));
    }

    /// An execution went well.
    #[inline]
    pub(super) fn answer_executed(&self, ticket: u64) {
        self.send(&message::executed(ticket));
    }

    #[inline]
    fn send(&self, bytes: &[u8]) {
        if self.link.try_send(bytes).is_err() {
            self.link.write(bytes.to_vec());
        }
    }

    /// It has gone: everything that it has ends, as soon as nothing runs on it.
    pub(super) fn leave(&self) {
        let mut ledger = lock(&self.ledger);
        let left = (ledger.commits.remove_all(|_| true), ledger.models.remove_all(|_| true));
        drop(ledger);
        drop(left);
    }
}

impl<S: Service> Drop for Guest<S> {
    fn drop(&mut self) {
        let why = self.why.get();
        let _ = catch_unwind(AssertUnwindSafe(|| self.host.service.client_gone(&self.caller, why)));
        self.host.tally.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A model that a client has loaded.
pub(super) struct Loaded<S: Service> {
    pub(super) guest: Arc<Guest<S>>,
    pub(super) layout: Arc<Layout>,
    /// `None` only while it ends.
    pub(super) kept: Option<S::Model>,
    /// The request to close it, to be answered when it has ended.
    pub(super) closing: Mutex<Option<u64>>,
}

impl<S: Service> Drop for Loaded<S> {
    fn drop(&mut self) {
        let Self { guest, kept, closing, .. } = self;
        if let Some(kept) = kept.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| guest.host.service.unload(kept)));
        }
        lock(&guest.ledger).account.models -= 1;
        guest.host.tally.models.fetch_sub(1, Ordering::Relaxed);
        if let Some(ticket) = lock(closing).take() {
            guest.answer(ticket, &Answer::Done);
        }
    }
}

/// A session that a client has committed.
pub(super) struct Committed<S: Service> {
    pub(super) model: Arc<Loaded<S>>,
    pub(super) id: u64,
    /// An execution or an update is under way.
    busy: AtomicBool,
    /// Executions may take longer than waking a thread does.
    pub(super) long: AtomicBool,
    /// Short executions in a row while it was taken for long.
    pub(super) short: AtomicU32,
    /// `None` only while it ends.
    pub(super) held: Mutex<Option<Held<S>>>,
    /// The request to release it, to be answered when it has ended.
    pub(super) releasing: Mutex<Option<u64>>,
}

/// What a commit holds.
pub(super) struct Held<S: Service> {
    pub(super) buffers: Buffers,
    pub(super) kept: S::Commit,
}

impl<S: Service> Committed<S> {
    pub(super) fn new(model: Arc<Loaded<S>>, id: u64, held: Held<S>) -> Self {
        One::more(&model.guest.host.tally.commits).keep();
        let (busy, long, short) =
            (AtomicBool::new(false), AtomicBool::new(true), AtomicU32::new(0));
        let (held, releasing) = (Mutex::new(Some(held)), Mutex::default());
        Self { model, id, busy, long, short, held, releasing }
    }

    /// From now on it is in use.
    #[inline]
    pub(super) fn begin(&self) -> Result<(), CommitFault> {
        // Acquire: pairs with `finish`, though what it guards has a lock of its own.
        if self.busy.swap(true, Ordering::Acquire) { Err(CommitFault::Busy) } else { Ok(()) }
    }

    /// It is in use no more. Before the client hears of it, which may use it again at once.
    #[inline]
    pub(super) fn finish(&self) {
        self.busy.store(false, Ordering::Release);
    }

    pub(super) fn guest(&self) -> &Arc<Guest<S>> {
        &self.model.guest
    }
}

impl<S: Service> Drop for Committed<S> {
    fn drop(&mut self) {
        let guest = &self.model.guest;
        let (host, kept) = (&guest.host, &self.model.kept);
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(Held { buffers, kept: commit }), Some(model)) = (held, kept) {
            let _ = catch_unwind(AssertUnwindSafe(|| host.service.release(model, commit)));
            host.forget(&buffers.regions);
        }
        let mut ledger = lock(&guest.ledger);
        ledger.account.unclaim(self.id, |_| true);
        ledger.account.commits -= 1;
        drop(ledger);
        host.tally.commits.fetch_sub(1, Ordering::Relaxed);
        if let Some(ticket) = lock(&self.releasing).take() {
            guest.answer(ticket, &Answer::Done);
        }
    }
}

/// How many of these regions are mapped, and how many of them hold a descriptor.
pub(super) fn count(regions: &[Arc<Memory>]) -> (usize, usize) {
    (regions.len(), regions.iter().filter(|memory| memory.holds_descriptor()).count())
}
