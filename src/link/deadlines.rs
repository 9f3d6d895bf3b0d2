//! The deadlines of loans whose links are over, for each peer that holds them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use crate::pool::Holder;

/// The deadlines of some links, with the numbers of the links, in order.
type Sorted = BTreeSet<(Instant, u64)>;

/// The deadlines of one user's processes. None of them is empty.
#[derive(Debug, Default)]
struct UserDeadlines {
    processes: HashMap<Option<u32>, Sorted>,
    len: usize,
}

/// The deadlines of all links.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    all: Sorted,
    /// No user is empty.
    users: HashMap<u32, UserDeadlines>,
}

impl Deadlines {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the earliest one.
    pub(super) fn first(&self) -> Option<(Instant, u64)> {
        self.all.first().copied()
    }

    pub(super) fn insert(&mut self, holder: Holder, deadline: (Instant, u64)) {
        if self.all.insert(deadline) {
            let user = self.users.entry(holder.uid).or_default();
            user.processes.entry(holder.pid).or_default().insert(deadline);
            user.len += 1;
        }
    }

    pub(super) fn remove(&mut self, holder: Holder, deadline: (Instant, u64)) {
        if !self.all.remove(&deadline) {
            return;
        }
        let Some(user) = self.users.get_mut(&holder.uid) else { return };
        user.len -= 1;
        if let Some(process) = user.processes.get_mut(&holder.pid) {
            process.remove(&deadline);
            if process.is_empty() {
                user.processes.remove(&holder.pid);
            }
        }
        if user.len == 0 {
            self.users.remove(&holder.uid);
        }
    }

    /// Returns the earliest one of the process that has most, of the user that has most. Among equals the earliest counts.
    pub(super) fn first_of_most(&self) -> Option<(Instant, u64)> {
        let order = |process: &&Sorted| (process.len(), Reverse(process.first().copied()));
        let of_user = |user: &UserDeadlines| {
            let most = user.processes.values().max_by_key(order)?;
            Some((user.len, Reverse(most.first().copied()?)))
        };
        self.users.values().filter_map(of_user).max().map(|(_, Reverse(first))| first)
    }
}
