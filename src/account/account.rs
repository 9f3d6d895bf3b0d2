//! The accounts of a process, its users and their links.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::account::limits::Limits;
use crate::account::resource::{COUNT, Resource};
use crate::error::{ErrorKind, Result};
use crate::shm::fork::Generation;

/// What somebody holds of each resource.
#[derive(Debug)]
struct Counts([AtomicU64; COUNT]);

impl Counts {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; COUNT])
    }

    /// Returns how much is held.
    fn held(&self, resource: Resource) -> u64 {
        self.0[resource.index()].load(Ordering::Relaxed)
    }

    /// Adds `amount`. Returns the count before.
    ///
    /// # Errors
    ///
    /// The count, if the sum would exceed `limit`.
    fn add(&self, resource: Resource, amount: u64, limit: u64) -> Result<u64, u64> {
        let more = |held: u64| held.checked_add(amount).filter(|sum| amount == 0 || *sum <= limit);
        self.0[resource.index()].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
    }

    fn subtract(&self, resource: Resource, amount: u64) {
        self.0[resource.index()].fetch_sub(amount, Ordering::Relaxed);
    }
}

/// All accounts of a process.
#[derive(Debug)]
struct Ledger {
    /// The process that has these accounts.
    generation: Option<u64>,
    process: Counts,
    /// The accounts of users and of their processes that have links.
    parties: Mutex<BTreeMap<Party, Weak<Counts>>>,
    /// The accounts of a forked child, in its copy of this. Another thread of the parent may have held the lock at the fork.
    next: OnceLock<&'static Ledger>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    User {
        uid: u32,
    },
    /// A process of a user's. All processes outside of this pid namespace are one.
    Peer {
        uid: u32,
        pid: Option<u32>,
    },
    /// All peers that are not admitted yet.
    Strangers,
    /// Those of them that this user's processes are.
    StrangersOf {
        uid: u32,
    },
}

impl Ledger {
    fn new(generation: Option<u64>) -> &'static Self {
        let (process, parties, next) = (Counts::new(), Mutex::default(), OnceLock::new());
        Box::leak(Box::new(Self { generation, process, parties, next }))
    }

    /// Returns the accounts of this process.
    fn current() -> &'static Self {
        static FIRST: OnceLock<&Ledger> = OnceLock::new();
        let generation = Generation::current().ok().map(|generation| generation.number());
        let mut ledger = *FIRST.get_or_init(|| Self::new(generation));
        while ledger.generation != generation {
            ledger = *ledger.next.get_or_init(|| Self::new(generation));
        }
        ledger
    }

    fn party(&self, party: Party) -> Arc<Counts> {
        // Only a bug of this crate panics under the lock, and each step leaves the table whole.
        let mut parties = self.parties.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = parties.get(&party).and_then(Weak::upgrade) {
            return counts;
        }
        parties.retain(|_, counts| counts.strong_count() > 0);
        let counts = Arc::new(Counts::new());
        parties.insert(party, Arc::downgrade(&counts));
        counts
    }
}

/// The account of one link, below those of its peer, of the peer's user and of this process. It lives as long as one of its
/// charges.
///
/// That of a peer that is not admitted yet lies below those of all such peers of its user, of all such peers, and of this
/// process.
#[derive(Debug)]
pub(crate) struct Account {
    ledger: &'static Ledger,
    user: Arc<Counts>,
    peer: Arc<Counts>,
    link: Counts,
    limits: Limits,
    is_stranger: bool,
}

/// The names of the levels in errors.
const LEVELS: [&str; 4] = ["process", "user", "peer", "link"];
const STRANGER_LEVELS: [&str; 4] = ["process", "strangers", "strangers of a user", "stranger"];

impl Account {
    /// Returns the account of a new link with this process of this user's.
    pub(crate) fn of_link((uid, pid): (u32, Option<u32>), limits: Limits) -> Arc<Self> {
        Self::open(Ledger::current(), (uid, pid), limits)
    }

    /// Returns the account of a peer of this user's that is not admitted yet.
    pub(crate) fn of_stranger(uid: u32, limits: Limits) -> Arc<Self> {
        Self::open_stranger(Ledger::current(), uid, limits)
    }

    fn open(ledger: &'static Ledger, (uid, pid): (u32, Option<u32>), limits: Limits) -> Arc<Self> {
        let user = ledger.party(Party::User { uid });
        let peer = ledger.party(Party::Peer { uid, pid });
        Arc::new(Self { ledger, user, peer, link: Counts::new(), limits, is_stranger: false })
    }

    fn open_stranger(ledger: &'static Ledger, uid: u32, limits: Limits) -> Arc<Self> {
        let user = ledger.party(Party::Strangers);
        let peer = ledger.party(Party::StrangersOf { uid });
        Arc::new(Self { ledger, user, peer, link: Counts::new(), limits, is_stranger: true })
    }

    /// Charges the link, its peer, the peer's user and the process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AccountFull`]: one of the four would exceed its limit. Nothing is charged.
    pub(crate) fn charge(self: &Arc<Self>, resource: Resource, amount: u64) -> Result<Charge> {
        if amount == 0 {
            // The limits would cost a system call.
            return Ok(Charge::none(self, resource));
        }
        let Self { ledger, user, peer, link, limits, is_stranger } = &**self;
        let levels = [&ledger.process, &**user, &**peer, link];
        // The part that the siblings of the level leave.
        let mut left = u64::MAX;
        for (depth, counts) in levels.iter().enumerate() {
            let limit = match depth {
                0 => limits.process(resource),
                1 if *is_stranger => limits.strangers(resource),
                1 => limits.user(resource, left),
                2 => limits.peer(resource, left),
                _ => limits.link(resource),
            };
            match counts.add(resource, amount, limit) {
                Ok(held) => {
                    let below = levels.get(depth + 1).map_or(0, |below| below.held(resource));
                    left = limit.saturating_sub(held.saturating_sub(below));
                }
                Err(used) => {
                    levels[..depth].iter().for_each(|above| above.subtract(resource, amount));
                    let names = if *is_stranger { STRANGER_LEVELS } else { LEVELS };
                    let (account, resource) = (names[depth], resource.name());
                    let full =
                        ErrorKind::AccountFull { resource, account, used, needed: amount, limit };
                    return Err(full.into());
                }
            }
        }
        Ok(Charge { account: self.clone(), resource, amount })
    }

    fn subtract(&self, resource: Resource, amount: u64) {
        let Self { ledger, user, peer, link, .. } = self;
        for counts in [link, peer, user, &ledger.process] {
            counts.subtract(resource, amount);
        }
    }
}

/// What an account was charged. The drop subtracts it.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    resource: Resource,
    amount: u64,
}

impl Charge {
    /// Returns a charge of nothing.
    pub(crate) fn none(account: &Arc<Account>, resource: Resource) -> Self {
        Self { account: account.clone(), resource, amount: 0 }
    }

    /// Raises a charge to `amount`. A higher one stays.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AccountFull`]: the charge stays as it was.
    pub(crate) fn raise_to(&mut self, amount: u64) -> Result<()> {
        let missing = amount.saturating_sub(self.amount);
        if missing > 0 {
            let mut more = self.account.charge(self.resource, missing)?;
            self.amount += std::mem::take(&mut more.amount);
        }
        Ok(())
    }

    /// Lowers a charge to nothing.
    pub(crate) fn clear(&mut self) {
        self.account.subtract(self.resource, std::mem::take(&mut self.amount));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
