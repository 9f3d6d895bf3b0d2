//! What one client of a server has: ids, quotas, and which memory is whose. No I/O.

use std::collections::HashMap;

use crate::commit::limits::ServerOptions;
use crate::error::CommitFault;

/// Bits of an id that tell where it is kept.
const SLOT: u32 = 16;

/// Things under ids that are never used twice.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Option<(u64, T)>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// An id out of a `number` that no other id of the server has: not 0. `None`: too many are in use.
    pub(super) fn reserve(&mut self, number: u64) -> Option<u64> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < 1 << SLOT => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        Some(number << SLOT | slot as u64)
    }

    /// Puts something under an id that was reserved.
    pub(super) fn put(&mut self, id: u64, thing: T) {
        self.slots[slot(id)] = Some((id, thing));
    }

    /// An id that was reserved is not used.
    pub(super) fn give_back(&mut self, id: u64) {
        self.free.push(slot(id));
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Result<&T, CommitFault> {
        match self.slots.get(slot(id)) {
            Some(Some((is, thing))) if *is == id => Ok(thing),
            _ => Err(CommitFault::UnknownId { id }),
        }
    }

    /// Whether there is one that `which` picks.
    pub(super) fn has(&self, which: impl Fn(&T) -> bool) -> bool {
        self.slots.iter().flatten().any(|(_, thing)| which(thing))
    }

    pub(super) fn remove(&mut self, id: u64) -> Result<T, CommitFault> {
        self.get(id)?;
        self.free.push(slot(id));
        let taken = self.slots[slot(id)].take();
        taken.map(|(_, thing)| thing).ok_or(CommitFault::UnknownId { id })
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        match self.slots.get_mut(slot(id)) {
            Some(Some((is, thing))) if *is == id => Some(thing),
            _ => None,
        }
    }

    /// Takes out all that `which` picks.
    pub(super) fn remove_all(&mut self, which: impl Fn(&T) -> bool) -> Vec<T> {
        let ids = self.slots.iter().flatten().filter(|(_, thing)| which(thing));
        let ids: Vec<u64> = ids.map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id).ok()).collect()
    }
}

fn slot(id: u64) -> usize {
    (id & ((1 << SLOT) - 1)) as usize
}

/// Memory that a commit has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// Tells it from every other claim.
    pub(super) serial: u64,
    pub(super) region: u32,
    /// Device and inode.
    pub(super) object: (u64, u64),
    /// In bytes of the object.
    pub(super) start: u64,
    pub(super) end: u64,
    /// An output lies in it.
    pub(super) output: bool,
}

impl Claim {
    fn collides(&self, other: &Self) -> bool {
        (self.output || other.output) && self.start < other.end && other.start < self.end
    }
}

/// Quotas and claims of one client.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) models: usize,
    pub(super) commits: usize,
    regions: usize,
    bytes: u64,
    /// By object: what each commit has of it.
    claims: HashMap<(u64, u64), Vec<(u64, Claim)>>,
}

impl Account {
    /// Room for one model more.
    pub(super) fn take_model(&mut self, limits: &ServerOptions) -> Result<(), CommitFault> {
        within("models", self.models as u64, 1, limits.models as u64)?;
        self.models += 1;
        Ok(())
    }

    /// Room for one commit more.
    pub(super) fn take_commit(&mut self, limits: &ServerOptions) -> Result<(), CommitFault> {
        within("commits", self.commits as u64, 1, limits.commits as u64)?;
        self.commits += 1;
        Ok(())
    }

    /// Claims memory for a commit: all of it, or none. What it already has of the same regions stands in nobody's way.
    pub(super) fn claim(
        &mut self,
        limits: &ServerOptions,
        id: u64,
        claims: &[Claim],
    ) -> Result<(), CommitFault> {
        let bytes =
            claims.iter().fold(0u64, |sum, claim| sum.saturating_add(claim.end - claim.start));
        within("regions", self.regions as u64, claims.len() as u64, limits.regions as u64)?;
        within("bytes", self.bytes, bytes, limits.bytes)?;
        let is_named = |region| claims.iter().any(|claim| claim.region == region);
        for (at, claim) in claims.iter().enumerate() {
            let stands =
                self.claims.get(&claim.object).into_iter().flatten().find(|(holder, held)| {
                    // What is replaced in the same commit goes away.
                    let is_replaced = *holder == id && is_named(held.region);
                    !is_replaced && held.collides(claim)
                });
            if let Some((holder, held)) = stands {
                let holder = if *holder == id { 0 } else { *holder };
                return Err(overlap(claim, held, holder));
            }
            let within = claims[..at].iter();
            let mut within = within.filter(|other| other.object == claim.object);
            if let Some(other) = within.find(|other| other.collides(claim)) {
                return Err(overlap(claim, other, 0));
            }
        }
        for claim in claims {
            self.claims.entry(claim.object).or_default().push((id, *claim));
        }
        self.regions += claims.len();
        self.bytes += bytes;
        Ok(())
    }

    /// As [`claim`](Self::claim), for a commit that replaces what it has of these regions: gives what it has, which
    /// stays claimed.
    pub(super) fn replace(
        &mut self,
        limits: &ServerOptions,
        id: u64,
        claims: &[Claim],
    ) -> Result<Vec<Claim>, CommitFault> {
        let is_replaced = |region| claims.iter().any(|claim| claim.region == region);
        let all = self.claims.values().flatten();
        let mine = all.filter(|(holder, claim)| *holder == id && is_replaced(claim.region));
        let old: Vec<Claim> = mine.map(|(_, claim)| *claim).collect();
        self.claim(limits, id, claims)?;
        Ok(old)
    }

    /// Gives up the claims of a commit that `which` picks.
    pub(super) fn unclaim(&mut self, id: u64, which: impl Fn(&Claim) -> bool) {
        let (mut regions, mut bytes) = (0, 0);
        self.claims.retain(|_, holders| {
            holders.retain(|(holder, claim)| {
                let goes = *holder == id && which(claim);
                if goes {
                    regions += 1;
                    bytes += claim.end - claim.start;
                }
                !goes
            });
            !holders.is_empty()
        });
        self.regions -= regions;
        self.bytes -= bytes;
    }
}

fn overlap(claim: &Claim, other: &Claim, id: u64) -> CommitFault {
    CommitFault::Overlap { region: claim.region, other: other.region, id }
}

fn within(what: &'static str, used: u64, needed: u64, limit: u64) -> Result<(), CommitFault> {
    if used.saturating_add(needed) > limit {
        return Err(CommitFault::Quota { what, used, needed, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn an_id_is_never_used_twice_and_means_nothing_when_it_is_gone() {
        let mut slots = Slots::default();
        let mut numbers = 1..;
        let mut insert = |slots: &mut Slots<char>, thing| {
            let id = slots.reserve(numbers.next().unwrap()).unwrap();
            slots.put(id, thing);
            id
        };
        let (a, b) = (insert(&mut slots, 'a'), insert(&mut slots, 'b'));
        assert_eq!((slots.get(a), slots.get(b)), (Ok(&'a'), Ok(&'b')));
        assert_eq!(slots.remove(a), Ok('a'));
        let c = insert(&mut slots, 'c');
        assert_eq!(c & 0xffff, a & 0xffff, "the place is used again");
        for id in [a, 0, c + (1 << 16), c - (1 << 16), c | 0xffff, u64::MAX] {
            assert_eq!(slots.get(id), Err(CommitFault::UnknownId { id }));
            assert_eq!(slots.remove(id), Err(CommitFault::UnknownId { id }));
        }
        assert_eq!(slots.remove_all(|thing| *thing == 'b'), ['b']);
        assert_eq!(slots.get(c), Ok(&'c'));
    }

    #[test]
    fn places_are_limited() {
        let mut slots = Slots::<()>::default();
        let ids: Vec<u64> = (1..=1 << 16).map(|number| slots.reserve(number).unwrap()).collect();
        assert_eq!(slots.reserve(1 << 20), None);
        slots.give_back(ids[7]);
        assert!(slots.reserve(1 << 20).is_some());
    }

    static SERIAL: AtomicU64 = AtomicU64::new(1);

    fn claim(region: u32, object: u64, start: u64, end: u64, output: bool) -> Claim {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Claim { serial, region, object: (1, object), start, end, output }
    }

    #[test]
    fn memory_of_an_output_is_nobody_elses() {
        let (mut account, limits) = (Account::default(), ServerOptions::new());
        account
            .claim(&limits, 1, &[claim(0, 5, 0, 100, false), claim(1, 5, 100, 200, true)])
            .unwrap();
        // Inputs share.
        account.claim(&limits, 2, &[claim(0, 5, 50, 100, false)]).unwrap();
        for (start, end, output) in
            [(199, 300, false), (0, 101, false), (0, 1, true), (99, 100, true)]
        {
            let fault = account.claim(&limits, 3, &[claim(7, 5, start, end, output)]).unwrap_err();
            assert!(matches!(fault, CommitFault::Overlap { region: 7, id: 1 | 2, .. }), "{fault}");
        }
        // Elsewhere, or in another object, is free.
        account
            .claim(&limits, 3, &[claim(0, 5, 200, 300, true), claim(1, 6, 0, 300, true)])
            .unwrap();
        // Within one commit, too.
        let twice = [claim(0, 9, 0, 10, false), claim(1, 9, 9, 10, true)];
        let fault = CommitFault::Overlap { region: 1, other: 0, id: 0 };
        assert_eq!(account.claim(&limits, 4, &twice), Err(fault));
        account.claim(&limits, 4, &twice[..1]).unwrap();
        account.unclaim(1, |_| true);
        account.unclaim(2, |_| true);
        account.claim(&limits, 5, &[claim(0, 5, 0, 200, true)]).unwrap();
    }

    #[test]
    fn an_update_may_overlap_what_it_replaces() {
        let (mut account, limits) = (Account::default(), ServerOptions::new());
        let old = claim(0, 5, 0, 100, true);
        account.claim(&limits, 1, &[old, claim(1, 5, 100, 200, false)]).unwrap();
        assert!(account.claim(&limits, 1, &[claim(0, 5, 50, 150, true)]).is_err());
        let new = claim(0, 5, 50, 100, true);
        account.claim(&limits, 1, &[new]).unwrap();
        account.unclaim(1, |claim| *claim == old);
        assert_eq!((account.regions, account.bytes), (2, 150));
    }

    #[test]
    fn quotas_are_named_and_nothing_is_taken_when_one_is_met() {
        let limits = ServerOptions::new().models(1).commits(1).regions(2).bytes(100);
        let mut account = Account::default();
        account.take_model(&limits).unwrap();
        account.take_commit(&limits).unwrap();
        let quota =
            |what, used, needed, limit| Err(CommitFault::Quota { what, used, needed, limit });
        assert_eq!(account.take_model(&limits), quota("models", 1, 1, 1));
        assert_eq!(account.take_commit(&limits), quota("commits", 1, 1, 1));
        account.claim(&limits, 1, &[claim(0, 5, 0, 60, false)]).unwrap();
        let over = account.claim(&limits, 1, &[claim(1, 6, 0, 41, false)]);
        assert_eq!(over, quota("bytes", 60, 41, 100));
        let many = [claim(1, 6, 0, 1, false), claim(2, 7, 0, 1, false)];
        assert_eq!(account.claim(&limits, 1, &many), quota("regions", 1, 2, 2));
        assert!(account.claim(&limits, 1, &[claim(1, 6, 0, u64::MAX, false)]).is_err());
        account.claim(&limits, 1, &[claim(1, 6, 0, 40, false)]).unwrap();
    }
}
