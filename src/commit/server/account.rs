//! What one client of a server uses: models, commits, and which memory belongs to which commit. No I/O.

use std::collections::HashMap;

use crate::commit::server::options::ServerOptions;
use crate::error::CommitFault;

/// A range of memory that a commit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// Unique among the claims of a server.
    pub serial: u64,
    pub region: u32,
    /// The memory object's device and inode.
    pub object: (u64, u64),
    /// Bounds of the range, in bytes of the object.
    pub start: u64,
    pub end: u64,
    /// An output of the model lies in it.
    pub output: bool,
}

impl Claim {
    fn collides(&self, other: &Self) -> bool {
        (self.output || other.output) && self.start < other.end && other.start < self.end
    }
}

/// Quotas and claims of one client.
#[derive(Debug, Default)]
pub(super) struct Account {
    models: usize,
    commits: usize,
    regions: usize,
    bytes: u64,
    /// By object: the commits that hold parts of it, and their claims.
    claims: HashMap<(u64, u64), Vec<(u64, Claim)>>,
}

impl Account {
    /// Counts one model more.
    pub(super) fn add_model(&mut self, limits: &ServerOptions) -> Result<(), CommitFault> {
        limits.check_models(self.models)?;
        self.models += 1;
        Ok(())
    }

    /// Counts one model less.
    pub(super) fn remove_model(&mut self) {
        self.models -= 1;
    }

    /// Counts one commit more.
    pub(super) fn add_commit(&mut self, limits: &ServerOptions) -> Result<(), CommitFault> {
        limits.check_commits(self.commits)?;
        self.commits += 1;
        Ok(())
    }

    /// Counts one commit less.
    pub(super) fn remove_commit(&mut self) {
        self.commits -= 1;
    }

    /// Claims memory for a commit: all of it, or none. What the commit already holds of the same regions is no
    /// obstacle: the new memory replaces it.
    pub(super) fn claim(
        &mut self,
        limits: &ServerOptions,
        id: u64,
        claims: &[Claim],
    ) -> Result<(), CommitFault> {
        let bytes =
            claims.iter().fold(0u64, |sum, claim| sum.saturating_add(claim.end - claim.start));
        limits.check_regions(self.regions, claims.len())?;
        limits.check_bytes(self.bytes, bytes)?;
        let is_named = |region| claims.iter().any(|claim| claim.region == region);
        for (at, claim) in claims.iter().enumerate() {
            let held = self.claims.get(&claim.object).into_iter().flatten();
            let obstacle = held.into_iter().find(|(holder, held)| {
                let is_replaced = *holder == id && is_named(held.region);
                !is_replaced && held.collides(claim)
            });
            if let Some((holder, held)) = obstacle {
                let holder = if *holder == id { 0 } else { *holder };
                return Err(overlap(claim, held, holder));
            }
            let mut before = claims[..at].iter().filter(|other| other.object == claim.object);
            if let Some(other) = before.find(|other| other.collides(claim)) {
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

    /// Claims memory for a commit that replaces some of its regions, and returns the claims that it replaces. These
    /// stay until [`unclaim`](Self::unclaim).
    pub(super) fn replace(
        &mut self,
        limits: &ServerOptions,
        id: u64,
        claims: &[Claim],
    ) -> Result<Vec<Claim>, CommitFault> {
        let is_replaced = |region| claims.iter().any(|claim| claim.region == region);
        let all = self.claims.values().flatten();
        let own = all.filter(|(holder, claim)| *holder == id && is_replaced(claim.region));
        let old: Vec<Claim> = own.map(|(_, claim)| *claim).collect();
        self.claim(limits, id, claims)?;
        Ok(old)
    }

    /// Removes the claims of a commit that `which` picks.
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

#[cfg(test)]
mod tests;
