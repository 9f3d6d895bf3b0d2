//! A client's handle of a session.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::commit::buffer::{Buffer, Handle, Piece};
use crate::commit::client::execution::Execution;
use crate::commit::client::fills::Chosen;
use crate::commit::client::link::unexpected;
use crate::commit::client::machine::SessionState;
use crate::commit::client::model::ModelHandle;
use crate::commit::client::state::{KeptBuffers, Pending, Reply, SessionKey, exists};
use crate::commit::wire::message::{Memory, Request};
use crate::error::{CommitFault, Direction, Result, Unset};

/// A set of buffers of a model, and its commit: the document's session space. Clones are handles of the same session.
///
/// # Errors
///
/// An error changes nothing. Every function that talks to the server, or changes the session, fails with
///
/// - [`CommitFault::ModelClosed`] after the model is closed;
/// - [`CommitFault::StaleSession`] after [`Model::sessions`](crate::commit::Model::sessions) has replaced the session;
/// - [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut): the deadline or the
///   [client's timeout](crate::commit::Client::timeout) has passed before the server's answer. The request goes on, and the
///   session is busy until the answer comes;
/// - the error that the connection ended with: [`ErrorKind::PeerClosed`](crate::ErrorKind::PeerClosed),
///   [`ErrorKind::PeerDied`](crate::ErrorKind::PeerDied);
/// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child.
#[derive(Debug, Clone)]
pub struct Session {
    model: Arc<ModelHandle>,
    key: SessionKey,
}

impl Session {
    pub(super) fn new(model: Arc<ModelHandle>, key: SessionKey) -> Self {
        Self { model, key }
    }

    /// Returns the index among the model's sessions.
    pub fn index(&self) -> u32 {
        self.key.index
    }

    /// Returns the state.
    ///
    /// # Errors
    ///
    /// See [`Session`].
    pub fn state(&self) -> Result<SessionState> {
        let link = self.model.link();
        let mut shared = link.poll(link.check()?);
        let (session, layout) = shared.state().session(self.key)?;
        Ok(session.machine.state(layout.description(), exists))
    }

    /// Returns the id of the commit.
    ///
    /// # Errors
    ///
    /// [`CommitFault::NotCommitted`]; see [`Session`].
    pub fn id(&self) -> Result<u64> {
        let mut shared = self.model.link().check()?;
        let (session, _) = shared.state().session(self.key)?;
        Ok(session.machine.id().ok_or(CommitFault::NotCommitted)?)
    }

    /// Returns the buffers and regions that lack memory.
    ///
    /// # Errors
    ///
    /// See [`Session`].
    pub fn missing(&self) -> Result<Vec<Unset>> {
        let mut shared = self.model.link().check()?;
        let (session, layout) = shared.state().session(self.key)?;
        Ok(session.machine.unset(layout.description(), exists))
    }

    /// Unsets all buffers.
    ///
    /// # Errors
    ///
    /// [`CommitFault::AlreadyCommitted`], [`CommitFault::Busy`]; see [`Session`].
    pub fn clear(&self) -> Result<()> {
        let mut shared = self.model.link().check()?;
        Ok(shared.state().session(self.key)?.0.machine.clear()?)
    }

    /// Sets a buffer by direction and index. The buffer has the length of the tensor's region, or, if several tensors
    /// share the region, is a [view](Buffer::view) of such a buffer at the tensor's offset. It replaces the buffer that
    /// was set. `EnnSetBufferByIndex`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`], [`CommitFault::Size`], [`CommitFault::Placement`],
    /// [`CommitFault::AlreadyCommitted`], [`CommitFault::Busy`]; see [`Session`].
    pub fn set(&self, direction: Direction, index: u32, buffer: &Buffer) -> Result<()> {
        let at = self.model.layout().position(direction, index)?;
        self.set_at(at, buffer)
    }

    /// Sets a buffer by label. `EnnSetBufferByLabel`.
    ///
    /// # Errors
    ///
    /// As for [`set`](Self::set), and [`CommitFault::UnknownLabel`].
    pub fn set_by_label(&self, label: &str, buffer: &Buffer) -> Result<()> {
        let at = self.model.layout().description().labelled(label)?;
        self.set_at(at, buffer)
    }

    fn set_at(&self, at: usize, buffer: &Buffer) -> Result<()> {
        let mut shared = self.model.link().check()?;
        let (piece, handle) = buffer.piece();
        let (session, layout) = shared.state().session(self.key)?;
        Ok(session.machine.set(layout.description(), at, piece, handle)?)
    }

    /// Sets all buffers: inputs, outputs, ext buffers, each by index. Checks all before it sets the first.
    /// `EnnSetBuffers`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::Count`], and those of [`set`](Self::set).
    pub fn set_all(&self, buffers: &[&Buffer]) -> Result<()> {
        let mut shared = self.model.link().check()?;
        let pieces = buffers.iter().map(|buffer| buffer.piece()).collect();
        let (session, layout) = shared.state().session(self.key)?;
        Ok(session.machine.set_all(layout.description(), pieces)?)
    }

    /// Sets one buffer for a whole region, for all tensors in it.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`], and those of [`set`](Self::set).
    pub fn set_region(&self, region: u32, buffer: &Buffer) -> Result<()> {
        let mut shared = self.model.link().check()?;
        let (piece, handle) = buffer.piece();
        let (session, layout) = shared.state().session(self.key)?;
        Ok(session.machine.set_region(layout.description(), region, piece, handle)?)
    }

    /// Allocates and sets a buffer for every region. Returns the buffers by index of the region.
    /// `EnnAllocateAllBuffers`.
    ///
    /// # Errors
    ///
    /// Those of [`Buffer::alloc`] and [`set`](Self::set). Nothing is set.
    #[must_use = "a session does not keep its buffers"]
    pub fn allocate_all(&self) -> Result<Vec<Buffer>> {
        let regions = &self.model.layout().description().regions;
        let buffers = regions.iter().map(|region| Buffer::alloc(region.size));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let mut shared = self.model.link().check()?;
        let (session, layout) = shared.state().session(self.key)?;
        for (region, buffer) in (0..).zip(&buffers) {
            // Only the first can fail: all have the right length.
            let (piece, handle) = buffer.piece();
            session.machine.set_region(layout.description(), region, piece, handle)?;
        }
        Ok(buffers)
    }

    /// Commits the session: the descriptors travel, and the server checks and maps them, once. Returns the commit's id.
    /// `EnnBufferCommit`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::Incomplete`]: lists everything that is unset. [`CommitFault::AlreadyCommitted`]
    /// - [`CommitFault::Overlap`], [`CommitFault::Unsealed`], [`CommitFault::ReadOnly`], [`CommitFault::Memory`],
    ///   [`CommitFault::Range`], [`CommitFault::Quota`], [`CommitFault::Resources`], [`CommitFault::Refused`],
    ///   [`CommitFault::Panicked`]: the server or its service refuses the commit.
    /// - [`CommitFault::Busy`]; see [`Session`].
    pub fn commit(&self) -> Result<u64> {
        self.commit_until(false, self.model.until())
    }

    /// Commits as [`commit`](Self::commit) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub fn commit_deadline(&self, deadline: Instant) -> Result<u64> {
        self.commit_until(false, Some(deadline))
    }

    /// Commits the session, after it has allocated memory for every ext buffer that is unset. If the commit fails, these
    /// ext buffers are unset as before.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit), and those of [`Buffer::alloc`].
    pub fn commit_with_ext(&self) -> Result<u64> {
        self.commit_until(true, self.model.until())
    }

    /// Commits as [`commit_with_ext`](Self::commit_with_ext) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`commit_with_ext`](Self::commit_with_ext).
    pub fn commit_with_ext_deadline(&self, deadline: Instant) -> Result<u64> {
        self.commit_until(true, Some(deadline))
    }

    fn commit_until(&self, automatic_ext: bool, until: Option<Instant>) -> Result<u64> {
        let own = if automatic_ext { self.ext_buffers()? } else { Vec::new() };
        let mut chosen = Vec::new();
        let link = self.model.link();
        let begun = link.begin(until, |state| {
            let (session, layout) = state.session(self.key)?;
            let description = layout.description();
            let mut machine = session.machine.clone();
            for (region, buffer) in &own {
                let (piece, handle) = buffer.piece();
                machine.set_region(description, *region, piece, handle)?;
            }
            chosen = held(&machine.begin_commit(description, exists)?);
            let keep = kept(&chosen);
            let before = std::mem::replace(&mut session.machine, machine);
            let before = (!own.is_empty()).then(|| Box::new(before));
            Ok(Pending::Commit { session: self.key, keep, before })
        })?;
        let (model, (fds, memory)) = (self.model.id(), gather(&chosen));
        let request = |passed| Request::Commit { model, passed, memory };
        let ticket = link.send_with_descriptors(begun, &fds, request)?;
        match link.wait_for(ticket, until)? {
            Reply::Committed { id } => Ok(id),
            _ => Err(unexpected()),
        }
    }

    /// Allocates memory for the regions that hold ext buffers only, and lack memory.
    fn ext_buffers(&self) -> Result<Vec<(u32, Buffer)>> {
        let layout = self.model.layout();
        let description = layout.description();
        let mut regions = Vec::new();
        for unset in self.missing()? {
            if let Unset::Buffer { direction: Direction::Ext, index, .. } = unset {
                regions.push(description.buffers[layout.position(Direction::Ext, index)?].region);
            }
        }
        regions.sort_unstable();
        regions.dedup();
        let is_ext = |at: usize| description.buffers[at].direction == Direction::Ext;
        regions.retain(|region| description.buffers_of(*region).all(is_ext));
        let alloc =
            |region: u32| Ok((region, Buffer::alloc(description.regions[region as usize].size)?));
        regions.into_iter().map(alloc).collect()
    }

    /// Executes the commit, and waits for it. No descriptor travels, and there is no system call while both sides are
    /// awake and the model is [inline](crate::commit::Service::runs_inline). `EnnExecuteModel`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::NotCommitted`]; [`CommitFault::Busy`]: an execution is under way.
    /// - [`CommitFault::Refused`], [`CommitFault::Panicked`]: the service's handler failed. The commit stays.
    /// - See [`Session`].
    #[inline]
    pub fn execute(&self) -> Result<()> {
        self.model.link().execute(self.key, self.model.until())
    }

    /// Executes as [`execute`](Self::execute) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`execute`](Self::execute).
    pub fn execute_deadline(&self, deadline: Instant) -> Result<()> {
        self.model.link().execute(self.key, Some(deadline))
    }

    /// Starts an execution of the commit, and does not wait for it. `EnnExecuteModelAsync`.
    ///
    /// # Errors
    ///
    /// As for [`execute`](Self::execute), without those of the handler.
    pub fn start(&self) -> Result<Execution> {
        let ticket = self.model.link().start(self.key, self.model.until())?;
        Ok(Execution::of_one(self.model.link().clone(), ticket))
    }

    /// Replaces some buffers of the commit, between executions. The id stays. The commit lets go of the buffers that it
    /// replaces.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::NotUpdatable`]: the model's description does not allow it.
    /// - [`CommitFault::Busy`]: an execution is under way. [`CommitFault::NotCommitted`].
    /// - Those of [`set`](Self::set) and [`commit`](Self::commit).
    pub fn update(&self, buffers: &[(Direction, u32, &Buffer)]) -> Result<()> {
        self.update_until(buffers, self.model.until())
    }

    /// Updates as [`update`](Self::update) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`update`](Self::update).
    pub fn update_deadline(
        &self,
        buffers: &[(Direction, u32, &Buffer)],
        deadline: Instant,
    ) -> Result<()> {
        self.update_until(buffers, Some(deadline))
    }

    fn update_until(
        &self,
        buffers: &[(Direction, u32, &Buffer)],
        until: Option<Instant>,
    ) -> Result<()> {
        let mut pieces: Vec<(usize, Piece, Weak<Handle>)> = Vec::new();
        for (direction, index, buffer) in buffers {
            let (piece, handle) = buffer.piece();
            pieces.push((self.model.layout().position(*direction, *index)?, piece, handle));
        }
        let (mut chosen, mut id) = (Vec::new(), 0);
        let link = self.model.link();
        let begun = link.begin(until, |state| {
            let (session, layout) = state.session(self.key)?;
            let update;
            (id, update) = session.machine.begin_update(layout.description(), pieces.clone())?;
            chosen = held(update.changed());
            let keep = kept(&chosen);
            Ok(Pending::Update { session: self.key, update: Box::new(update), keep })
        })?;
        let (fds, memory) = gather(&chosen);
        let request = |passed| Request::Update { id, passed, memory };
        let ticket = link.send_with_descriptors(begun, &fds, request)?;
        link.wait_for(ticket, until).map(drop)
    }

    /// Releases the commit: the server refuses new executions at once, finishes the one that runs, and unmaps the
    /// buffers. The id is never used again. The buffers stay set. `EnnReleaseCommit`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::NotCommitted`], [`CommitFault::Busy`]; see [`Session`].
    pub fn release(&self) -> Result<()> {
        self.release_until(self.model.until())
    }

    /// Releases as [`release`](Self::release) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`release`](Self::release).
    pub fn release_deadline(&self, deadline: Instant) -> Result<()> {
        self.release_until(Some(deadline))
    }

    fn release_until(&self, until: Option<Instant>) -> Result<()> {
        let (link, mut id) = (self.model.link(), 0);
        let begun = link.begin(until, |state| {
            id = state.session(self.key)?.0.machine.begin_release()?;
            Ok(Pending::Release { session: self.key, id })
        })?;
        let ticket = link.send(begun, &Request::Release { id })?;
        link.wait_for(ticket, until).map(drop)
    }
}

/// Keeps the chosen buffers alive. All of them existed a moment ago, under the same lock. Another thread may have
/// dropped one meanwhile. Its region is committed all the same if another view of the same buffer is set.
fn held(chosen: &[Chosen<Weak<Handle>>]) -> Vec<Chosen<Arc<Handle>>> {
    let hold = |chosen: &Chosen<Weak<Handle>>| {
        let Chosen { region, offset, len, .. } = *chosen;
        Some(Chosen { region, buffer: chosen.buffer.upgrade()?, offset, len })
    };
    chosen.iter().filter_map(hold).collect()
}

/// Returns what a commit keeps of the chosen buffers.
fn kept(chosen: &[Chosen<Arc<Handle>>]) -> KeptBuffers {
    chosen.iter().map(|chosen| (chosen.region, chosen.buffer.clone())).collect()
}

/// Returns the descriptors of the chosen buffers, each once, and the memory of every region.
fn gather(chosen: &[Chosen<Arc<Handle>>]) -> (Vec<BorrowedFd<'_>>, Vec<Memory>) {
    let mut fds = Vec::new();
    let mut numbers = HashMap::new();
    let memory = chosen.iter().map(|chosen| {
        let buffer = &chosen.buffer;
        let descriptor = *numbers.entry(buffer.root()).or_insert_with(|| {
            fds.push(buffer.fd());
            fds.len() as u32 - 1
        });
        let (region, object, len) = (chosen.region, buffer.object(), chosen.len);
        let offset = buffer.object_offset(chosen.offset);
        Memory { region, descriptor, object, offset, len }
    });
    let memory = memory.collect();
    (fds, memory)
}
