//! What the links of one peer process hold together, and those of one user.
//!
//! 1. A user holds at most three quarters of what other users leave of the quota, and a peer process at most two thirds of what
//!    the other peers of its user leave. So a peer that holds nothing can have something, whatever number of links a greedy
//!    one has.
//! 2. A peer may always hold as much as one of its links may, in spite of rule 1: several processes of one user can fill
//!    the pool together.

/// The peer process that borrows over one or more links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) uid: u32,
    /// `None`: the kernel did not say. All such processes of a user count as one.
    pub(crate) pid: Option<u32>,
}

#[derive(Debug)]
struct Entry {
    holder: Holder,
    links: u64,
    /// Bytes of the blocks on loan.
    bytes: u64,
}

/// The peers that have links with this pool.
#[derive(Debug, Default)]
pub(super) struct Holders {
    entries: Vec<Option<Entry>>,
}

impl Holders {
    /// Adds a link. Returns the index of its peer.
    pub(super) fn join(&mut self, holder: Holder) -> usize {
        let is_its = |entry: &Option<Entry>| entry.as_ref().is_some_and(|at| at.holder == holder);
        let index = self.entries.iter().position(is_its).unwrap_or_else(|| {
            let free = self.entries.iter().position(Option::is_none);
            let index = free.unwrap_or(self.entries.len());
            self.entries.resize_with(self.entries.len().max(index + 1), || None);
            self.entries[index] = Some(Entry { holder, links: 0, bytes: 0 });
            index
        });
        if let Some(entry) = &mut self.entries[index] {
            entry.links += 1;
        }
        index
    }

    /// Removes a link that holds nothing.
    pub(super) fn leave(&mut self, index: usize) {
        if let Some(entry) = &mut self.entries[index] {
            entry.links -= 1;
            if entry.links == 0 {
                self.entries[index] = None;
            }
        }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, index: usize, bytes: u64) {
        if let Some(entry) = &mut self.entries[index] {
            entry.bytes += bytes;
        }
    }

    #[inline(always)]
    pub(super) fn subtract(&mut self, index: usize, bytes: u64) {
        if let Some(entry) = &mut self.entries[index] {
            entry.bytes -= bytes;
        }
    }

    /// Returns the bytes that the peer holds.
    #[inline(always)]
    pub(super) fn bytes(&self, index: usize) -> u64 {
        self.entries[index].as_ref().map_or(0, |entry| entry.bytes)
    }

    /// Returns the number of the peer's links.
    #[inline(always)]
    pub(super) fn links(&self, index: usize) -> u64 {
        self.entries[index].as_ref().map_or(1, |entry| entry.links)
    }

    /// Returns the most bytes that the peer may hold now, of `quota`. It visits every peer.
    pub(super) fn share(&self, index: usize, quota: u64) -> u64 {
        let Some(own) = &self.entries[index] else { return 0 };
        let (mut users, mut peers) = (0u64, 0u64);
        for entry in self.entries.iter().flatten() {
            if entry.holder.uid != own.holder.uid {
                users += entry.bytes;
            } else if entry.holder.pid != own.holder.pid {
                peers += entry.bytes;
            }
        }
        let left = quota.saturating_sub(users);
        let left = (left - left / 4).saturating_sub(peers);
        left - left / 3
    }
}

#[cfg(test)]
mod tests;
