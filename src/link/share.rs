//! The share of a thread's time that the sockets of a peer may take, where the thread serves several peers.
//!
//! A peer decides how many packets it sends and how much memory they announce: the kernel counts the pages of a GiB in some
//! 10 ms. Each packet costs its peer the time that this thread computes for it: twice as much or more while the peer sends on
//! another CPU. The peer owes that time to the thread, and
//! time that passes pays the debt. A peer that owes as much as it may rests: none of its sockets is read, and a
//! record that names memory which has not come waits in the ring. Other records before it, and links of other peers, go on.
//!
//! 1. All links of a peer process with a thread have one debt. A quarter of the time that passes pays it at most, and all
//!    debts together half of the time. Users that owe get equal parts of that half, and so do the peers of a user. What one
//!    needs less goes to the others.
//! 2. One packet, or one part of a long segment, may overdraw. So a segment of any length comes through.
//! 3. One look takes about a millisecond, also where other processes leave this thread so little of its CPU that debts are
//!    paid as fast as they grow.
//! 4. A peer that owes nothing never rests.
//! 5. Only packets and calls that ask for one cost anything. A link whose socket is silent reads no clock.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The most that a peer may owe, in nanoseconds: the time for segments of some 400 MiB.
pub(crate) const MOST: i64 = 4_000_000;

/// The part of the time that pays the debt of one peer at most: one in so many nanoseconds.
pub(crate) const PART: i64 = 4;

/// The part of the time that pays all debts.
pub(crate) const ALL: i64 = 2;

/// The time after which a look ends, in nanoseconds.
const LOOK: i64 = 1_000_000;

/// The time after which a look at records that say that packets wait ends, in nanoseconds. It is short beside a round trip of
/// another peer: a ring full of such records is there in every turn, and only the packets count for the share.
pub(crate) const RECORDS: i64 = 100_000;

/// The time in which debts are paid once at most, in nanoseconds: a payment sorts them.
const TICK: i64 = 100_000;

/// The first call of a look that asks for a packet, in nanoseconds. The clock of the look starts behind it.
const CALL: i64 = 500;

/// Returns the time that this thread has computed, in nanoseconds. The time in which other threads had its CPU costs a
/// peer nothing.
fn computed() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// A peer process: its user and its process id, as in its account.
pub(crate) type PeerProcess = (u32, Option<u32>);

thread_local! {
    /// What peers owe to this thread.
    static DEBTS: RefCell<Debts> = const { RefCell::new(Debts::new()) };
}

/// The share of one link.
#[derive(Debug)]
pub(crate) struct SocketShare {
    peer: PeerProcess,
    /// The cost of this look, in nanoseconds.
    look: i64,
    /// What the thread had computed at the last charge of this look. `None` before the first packet.
    charged_at: Option<i64>,
}

impl SocketShare {
    pub(crate) fn new(peer: PeerProcess) -> Self {
        Self { peer, look: 0, charged_at: None }
    }

    /// Begins a look at the socket.
    pub(crate) fn begin_look(&mut self) {
        (self.look, self.charged_at) = (0, None);
    }

    /// Starts the clock of this look, which has found its first packet.
    pub(crate) fn start_clock(&mut self) {
        if self.charged_at.is_none() {
            self.spend(CALL);
            self.charged_at = Some(computed());
        }
    }

    /// Charges the peer with the time that this thread has computed after the last charge of this look.
    pub(crate) fn charge(&mut self) {
        let Some(before) = self.charged_at else { return self.spend(CALL) };
        let now = computed();
        self.charged_at = Some(now);
        self.spend(now - before);
    }

    /// Charges the peer with a cost.
    pub(crate) fn spend(&mut self, cost: i64) {
        self.look = self.look.saturating_add(cost);
        with_debts(|debts| debts.add(self.peer, cost, Instant::now));
    }

    /// Returns whether the peer rests, or this look has taken long enough.
    pub(crate) fn rests(&self) -> bool {
        self.look >= LOOK || self.rest().is_some()
    }

    /// Returns the time until the peer may go on. `None`: it may.
    pub(crate) fn rest(&self) -> Option<Duration> {
        with_debts(|debts| debts.rest(self.peer, Instant::now)).flatten()
    }
}

/// Returns `None` while the thread ends.
fn with_debts<T>(work: impl FnOnce(&mut Debts) -> T) -> Option<T> {
    DEBTS.try_with(|debts| work(&mut debts.borrow_mut())).ok()
}

/// A peer that owes time.
#[derive(Debug)]
struct Debtor {
    peer: PeerProcess,
    /// In nanoseconds.
    owes: i64,
}

/// What peers owe to a thread.
#[derive(Debug)]
struct Debts {
    /// In the order of users and processes.
    debtors: Vec<Debtor>,
    /// The sum.
    total: i64,
    /// Until then debts are paid.
    at: Option<Instant>,
}

impl Debts {
    const fn new() -> Self {
        Self { debtors: Vec::new(), total: 0, at: None }
    }

    /// Adds to a peer's debt.
    fn add(&mut self, peer: PeerProcess, cost: i64, now: impl FnOnce() -> Instant) {
        let owes = self.owes(peer);
        // A new debt is not paid with the time before it.
        if owes == 0 || owes.saturating_add(cost) >= self.limit(peer) {
            self.pay(now());
        }
        match self.find(peer) {
            Ok(at) => self.debtors[at].owes = self.debtors[at].owes.saturating_add(cost),
            Err(at) => self.debtors.insert(at, Debtor { peer, owes: cost }),
        }
        self.total = self.total.saturating_add(cost);
    }

    /// Returns the time until a peer owes less than it may. `None`: it does.
    fn rest(&mut self, peer: PeerProcess, now: impl FnOnce() -> Instant) -> Option<Duration> {
        let owes = self.owes(peer);
        if owes < self.limit(peer) {
            return None;
        }
        self.pay(now());
        let lacks = self.owes(peer) - self.limit(peer) + 1;
        let lacks = u64::try_from(lacks).ok().filter(|lacks| *lacks > 0)?;
        Some(Duration::from_nanos(lacks.saturating_mul(self.parts(peer) as u64)))
    }

    fn find(&self, peer: PeerProcess) -> Result<usize, usize> {
        self.debtors.binary_search_by_key(&peer, |debtor| debtor.peer)
    }

    fn owes(&self, peer: PeerProcess) -> i64 {
        self.find(peer).map_or(0, |at| self.debtors[at].owes)
    }

    /// Returns how much a peer may owe. It is less where all together owe much, and more than zero.
    fn limit(&self, peer: PeerProcess) -> i64 {
        let is_much = self.total >= MOST * PART / ALL;
        if is_much { (MOST * PART / self.parts(peer)).max(1) } else { MOST }
    }

    /// Returns the part of the time that pays a peer's debt while all go on to owe: one in so many nanoseconds.
    fn parts(&self, (user, _): PeerProcess) -> i64 {
        let users = self.debtors.chunk_by(of_one_user).count() as i64;
        let peers = self.debtors.iter().filter(|debtor| debtor.peer.0 == user).count() as i64;
        PART.max(ALL.saturating_mul(users).saturating_mul(peers))
    }

    /// Pays debts with the time up to `now`.
    fn pay(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(*self.at.get_or_insert(now)).as_nanos();
        let passed = i64::try_from(passed).unwrap_or(i64::MAX);
        if passed < TICK {
            return;
        }
        self.at = Some(now);
        let wanted = |debtor: &Debtor| debtor.owes.min(passed / PART);
        let users = self.debtors.chunk_by(of_one_user);
        let users = users.map(|peers| peers.iter().map(wanted).sum()).collect();
        let users = divide(passed / ALL, users);
        for (peers, part) in self.debtors.chunk_by_mut(of_one_user).zip(users) {
            let paid = divide(part, peers.iter().map(wanted).collect());
            peers.iter_mut().zip(paid).for_each(|(debtor, paid)| debtor.owes -= paid);
        }
        self.debtors.retain(|debtor| debtor.owes > 0);
        self.total = self.debtors.iter().map(|debtor| debtor.owes).sum();
    }
}

fn of_one_user(one: &Debtor, other: &Debtor) -> bool {
    one.peer.0 == other.peer.0
}

/// Divides an amount into equal parts. What one wants less goes to the others.
fn divide(mut amount: i64, wanted: Vec<i64>) -> Vec<i64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|at| wanted[*at]);
    let mut parts = wanted;
    for (done, at) in order.iter().enumerate() {
        parts[*at] = parts[*at].min(amount / (order.len() - done) as i64);
        amount -= parts[*at];
    }
    parts
}

#[cfg(test)]
mod tests;
