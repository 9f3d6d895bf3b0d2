//! What the links of one peer process hold together, and those of one user.
//!
//! 1. A user holds at most three quarters of what other users leave of the quota.
//! 2. A peer process holds at most two thirds of what the other peers of its user leave of that, or as much as one of its links may,
//!    if that is more. So the number of its links does not matter.
//! 3. A block that several peers hold counts for each of them, and what others hold is at most what is in use.
//! 4. The sums are kept, so a share takes a few instructions whatever number of peers there is.

/// The peer process that borrows over one or more links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) uid: u32,
    /// `None`: the kernel did not say. All such processes of a user count as one.
    pub(crate) pid: Option<u32>,
}

#[derive(Debug)]
struct Peer {
    holder: Holder,
    /// The index of its user.
    user: usize,
    links: u64,
    /// Bytes of the blocks on loan.
    bytes: u64,
}

#[derive(Debug)]
struct User {
    uid: u32,
    peers: u64,
    /// Bytes of the blocks on loan to its peers.
    bytes: u64,
}

/// The peers that have links with this pool, and their users.
#[derive(Debug, Default)]
pub(super) struct Holders {
    peers: Vec<Option<Peer>>,
    users: Vec<Option<User>>,
    /// Bytes of all blocks on loan.
    bytes: u64,
}

impl Holders {
    /// Adds a link. Returns the index of its peer.
    pub(super) fn join(&mut self, holder: Holder) -> usize {
        let is_its = |peer: &Peer| peer.holder == holder;
        let index = place(&mut self.peers, is_its, |place| {
            let uid = holder.uid;
            let user = |place: &mut Option<User>| *place = Some(User { uid, peers: 0, bytes: 0 });
            let user = self::place(&mut self.users, |user| user.uid == uid, user);
            *place = Some(Peer { holder, user, links: 0, bytes: 0 });
            if let Some(user) = &mut self.users[user] {
                user.peers += 1;
            }
        });
        if let Some(peer) = &mut self.peers[index] {
            peer.links += 1;
        }
        index
    }

    /// Removes a link that holds nothing.
    pub(super) fn leave(&mut self, index: usize) {
        let Some(peer) = &mut self.peers[index] else { return };
        peer.links -= 1;
        if peer.links > 0 {
            return;
        }
        let at = peer.user;
        self.peers[index] = None;
        if let Some(user) = &mut self.users[at] {
            user.peers -= 1;
            if user.peers == 0 {
                self.users[at] = None;
            }
        }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, index: usize, bytes: u64) {
        if let Some(peer) = &mut self.peers[index] {
            peer.bytes += bytes;
            self.bytes += bytes;
            if let Some(user) = &mut self.users[peer.user] {
                user.bytes += bytes;
            }
        }
    }

    #[inline(always)]
    pub(super) fn subtract(&mut self, index: usize, bytes: u64) {
        if let Some(peer) = &mut self.peers[index] {
            peer.bytes -= bytes;
            self.bytes -= bytes;
            if let Some(user) = &mut self.users[peer.user] {
                user.bytes -= bytes;
            }
        }
    }

    /// Returns the bytes that the peer holds.
    #[inline(always)]
    pub(super) fn bytes(&self, index: usize) -> u64 {
        self.peers[index].as_ref().map_or(0, |peer| peer.bytes)
    }

    /// Returns the number of the peer's links.
    #[inline(always)]
    pub(super) fn links(&self, index: usize) -> u64 {
        self.peers[index].as_ref().map_or(1, |peer| peer.links)
    }

    /// Returns the most bytes that the peer may hold now, of `quota`. `out` are the bytes of all blocks that are in use, and `link`
    /// those that one of its links may hold.
    #[inline(always)]
    pub(super) fn share(&self, index: usize, (quota, out): (u64, u64), link: u64) -> u64 {
        let Some(peer) = &self.peers[index] else { return 0 };
        let user = self.users[peer.user].as_ref().map_or(0, |user| user.bytes);
        let left = quota.saturating_sub(out.min(self.bytes - user));
        let left = (left - left / 4).saturating_sub(out.min(user - peer.bytes));
        (left - left / 3).max(left.min(link))
    }
}

/// Returns the index of the entry that `is_it`. Without one, `fill` fills an empty one.
fn place<T>(
    table: &mut Vec<Option<T>>,
    is_it: impl Fn(&T) -> bool,
    fill: impl FnOnce(&mut Option<T>),
) -> usize {
    if let Some(index) = table.iter().position(|entry| entry.as_ref().is_some_and(&is_it)) {
        return index;
    }
    let index = free_index(table);
    fill(&mut table[index]);
    index
}

/// Returns the index of an empty entry of a table, which grows if it has none.
pub(super) fn free_index<T>(table: &mut Vec<Option<T>>) -> usize {
    table.iter().position(Option::is_none).unwrap_or_else(|| {
        table.push(None);
        table.len() - 1
    })
}

#[cfg(test)]
mod tests;
