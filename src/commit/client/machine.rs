//! The state machine of one session. No I/O.
//!
//! ```text
//!            set                    commit                  execute
//!   Empty ───────▶ Partial, ... ──────────────▶ Committed ───────────▶ Executing
//!                  Complete ◀──┐ ◀── refused      │  ▲ ▲ └──────────────────┘ done
//!                              │          release │  │ └─ update
//!                              └──── Releasing ◀──┘  (and while it executes)
//! ```
//!
//! 1. Buffers stay set over commits and releases, until the user releases them.
//! 2. One request on a session is under way at a time; an execution may be beside a release.

use crate::commit::buffer::Piece;
use crate::commit::client::fills::{Chosen, Fills};
use crate::commit::description::Description;
use crate::error::{CommitFault, Unset};

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionState {
    /// No buffer is set.
    Empty,
    /// Some buffers are set, and some are not.
    Partial,
    /// Every buffer is set.
    Complete,
    /// A commit is under way.
    Committing,
    /// The service has committed the session, which can be executed.
    Committed,
    /// An execution is under way.
    Executing,
    /// An update is under way.
    Updating,
    /// A release is under way. The execution that runs ends before it.
    Releasing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Committing,
    Committed(u64),
    Updating(u64),
    Releasing,
}

/// The state machine of one session. `B` is a handle of a buffer.
#[derive(Debug, Clone)]
pub(in crate::commit) struct SessionMachine<B> {
    fills: Fills<B>,
    phase: Phase,
    executing: bool,
}

impl<B: Clone> SessionMachine<B> {
    pub(super) fn new(description: &Description) -> Self {
        Self { fills: Fills::new(description), phase: Phase::Open, executing: false }
    }

    /// Returns the state. `exists` says whether the user still has a buffer.
    pub(in crate::commit) fn state(
        &self,
        description: &Description,
        exists: impl Fn(&B) -> bool,
    ) -> SessionState {
        match self.phase {
            Phase::Committing => SessionState::Committing,
            Phase::Updating(_) => SessionState::Updating,
            Phase::Releasing => SessionState::Releasing,
            Phase::Committed(_) if self.executing => SessionState::Executing,
            Phase::Committed(_) => SessionState::Committed,
            Phase::Open if self.unset(description, exists).is_empty() => SessionState::Complete,
            Phase::Open if self.fills.is_empty() => SessionState::Empty,
            Phase::Open => SessionState::Partial,
        }
    }

    /// Returns the id of the commit.
    pub(in crate::commit) fn id(&self) -> Option<u64> {
        match self.phase {
            Phase::Committed(id) | Phase::Updating(id) => Some(id),
            Phase::Open | Phase::Committing | Phase::Releasing => None,
        }
    }

    /// Checks that buffers may be set.
    fn check_open(&self) -> Result<(), CommitFault> {
        match self.phase {
            Phase::Open => Ok(()),
            Phase::Committed(id) | Phase::Updating(id) => Err(CommitFault::AlreadyCommitted { id }),
            Phase::Committing | Phase::Releasing => Err(CommitFault::Busy),
        }
    }

    /// Checks that the session is committed, and idle. Returns the id.
    fn check_idle(&self) -> Result<u64, CommitFault> {
        match self.phase {
            Phase::Committed(id) if !self.executing => Ok(id),
            Phase::Open => Err(CommitFault::NotCommitted),
            _ => Err(CommitFault::Busy),
        }
    }

    /// Sets a buffer for the tensor at position `at` of the description.
    pub(in crate::commit) fn set(
        &mut self,
        description: &Description,
        at: usize,
        piece: Piece,
        buffer: B,
    ) -> Result<(), CommitFault> {
        self.check_open()?;
        Fills::<B>::check(description, at, piece)?;
        self.fills.set(description, at, piece, buffer);
        Ok(())
    }

    /// Sets all buffers, in the order of [`Description::in_order`]. Checks all before it sets the first.
    pub(in crate::commit) fn set_all(
        &mut self,
        description: &Description,
        pieces: Vec<(Piece, B)>,
    ) -> Result<(), CommitFault> {
        self.check_open()?;
        let order = description.in_order();
        let (count, expected) = (pieces.len(), order.len());
        if count != expected {
            return Err(CommitFault::Count { count, expected });
        }
        for (at, (piece, _)) in order.iter().zip(&pieces) {
            Fills::<B>::check(description, *at, *piece)?;
        }
        for (at, (piece, buffer)) in order.into_iter().zip(pieces) {
            self.fills.set(description, at, piece, buffer);
        }
        Ok(())
    }

    /// Sets one buffer for a whole region.
    pub(in crate::commit) fn set_region(
        &mut self,
        description: &Description,
        region: u32,
        piece: Piece,
        buffer: B,
    ) -> Result<(), CommitFault> {
        self.check_open()?;
        self.fills.set_region(description, region, piece, buffer)
    }

    /// Unsets all buffers.
    pub(in crate::commit) fn clear(&mut self) -> Result<(), CommitFault> {
        self.check_open()?;
        self.fills.clear();
        Ok(())
    }

    /// Returns the buffers and regions that lack memory, in the order of the description.
    pub(in crate::commit) fn unset(
        &self,
        description: &Description,
        exists: impl Fn(&B) -> bool,
    ) -> Vec<Unset> {
        self.fills.unset(description, exists)
    }

    /// Begins a commit, and returns the memory to commit.
    pub(in crate::commit) fn begin_commit(
        &mut self,
        description: &Description,
        exists: impl Fn(&B) -> bool,
    ) -> Result<Vec<Chosen<B>>, CommitFault> {
        self.check_open()?;
        let unset = self.unset(description, exists);
        if !unset.is_empty() {
            return Err(CommitFault::Incomplete { unset });
        }
        self.phase = Phase::Committing;
        Ok(self.fills.chosen())
    }

    /// Ends a commit: with its id, or with `None` if it failed.
    pub(super) fn end_commit(&mut self, id: Option<u64>) {
        if self.phase == Phase::Committing {
            self.phase = id.map_or(Phase::Open, Phase::Committed);
        }
    }

    /// Returns whether the session is neither committed nor on its way to it or from it.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Begins an execution, and returns the commit's id.
    #[inline]
    pub(super) fn begin_execution(&mut self) -> Result<u64, CommitFault> {
        let id = self.check_idle()?;
        self.executing = true;
        Ok(id)
    }

    /// Ends an execution, whether it went well or failed.
    #[inline]
    pub(super) fn end_execution(&mut self) {
        self.executing = false;
    }

    /// Begins a release, and returns the commit's id. An execution that runs goes on; no new one begins.
    pub(in crate::commit) fn begin_release(&mut self) -> Result<u64, CommitFault> {
        match self.phase {
            Phase::Committed(id) => {
                self.phase = Phase::Releasing;
                Ok(id)
            }
            Phase::Open => Err(CommitFault::NotCommitted),
            Phase::Committing | Phase::Updating(_) | Phase::Releasing => Err(CommitFault::Busy),
        }
    }

    /// Ends a release. `refused`: the server has refused it, and the session is committed under this id as before.
    pub(super) fn end_release(&mut self, refused: Option<u64>) {
        if self.phase == Phase::Releasing {
            self.phase = refused.map_or(Phase::Open, Phase::Committed);
        }
    }

    /// Begins an update of the tensors at these positions of the description. Returns the commit's id, and the regions
    /// that change.
    pub(in crate::commit) fn begin_update(
        &mut self,
        description: &Description,
        pieces: Vec<(usize, Piece, B)>,
    ) -> Result<(u64, Update<B>), CommitFault> {
        let id = self.check_idle()?;
        for (at, piece, _) in &pieces {
            // The new memory replaces every tensor of the region.
            let replaced = description.buffers_of(description.buffers[*at].region);
            for tensor in replaced.map(|at| &description.buffers[at]) {
                if !tensor.is_able_to_update {
                    let (direction, index) = (tensor.direction, tensor.index);
                    return Err(CommitFault::NotUpdatable { direction, index });
                }
            }
            Fills::<B>::check(description, *at, *piece)?;
        }
        let mut fills = self.fills.clone();
        let mut changed: Vec<u32> = Vec::new();
        for (at, piece, buffer) in pieces {
            changed.push(description.buffers[at].region);
            fills.set(description, at, piece, buffer);
        }
        let unset = fills.unset(description, |_| true);
        if !unset.is_empty() {
            return Err(CommitFault::Incomplete { unset });
        }
        let chosen = fills.chosen().into_iter().filter(|chosen| changed.contains(&chosen.region));
        let update = Update { changed: chosen.collect(), fills };
        self.phase = Phase::Updating(id);
        Ok((id, update))
    }

    /// Ends an update. `done`: its new buffers. `None`: it failed, and the old buffers stay.
    pub(super) fn end_update(&mut self, done: Option<Update<B>>) {
        if let Phase::Updating(id) = self.phase {
            self.phase = Phase::Committed(id);
            if let Some(update) = done {
                self.fills = update.fills;
            }
        }
    }
}

/// An update under way.
#[derive(Debug, Clone)]
pub(in crate::commit) struct Update<B> {
    changed: Vec<Chosen<B>>,
    /// The memory of all regions after the update.
    fills: Fills<B>,
}

impl<B> Update<B> {
    /// Returns the memory of the regions that change.
    pub(in crate::commit) fn changed(&self) -> &[Chosen<B>] {
        &self.changed
    }
}

#[cfg(test)]
mod tests;
