//! A client's handle of a session.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use crate::commit::book::{Place, Reply, What, is_there};
use crate::commit::buffer::{Buffer, Handle};
use crate::commit::desk::{Asked, Patience, unexpected};
use crate::commit::execution::Execution;
use crate::commit::message::{Memory, Request};
use crate::commit::model::Inner;
use crate::commit::state::{Chosen, Piece, SessionState};
use crate::error::{CommitFault, Direction, Result, Unset};

/// A set of buffers of a model, and its commit: the document's session space. Clones are handles of the same one.
///
/// # Errors
///
/// Every function answers [`CommitFault::ModelClosed`] after the model was closed, [`CommitFault::StaleSession`] after
/// [`Model::sessions`](crate::commit::Model::sessions) was called again, what the connection ended with after its end
/// ([`ErrorKind::PeerClosed`](crate::ErrorKind::PeerClosed), [`ErrorKind::PeerDied`](crate::ErrorKind::PeerDied)), and
/// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a forked child. After an error all is as it was before.
#[derive(Debug, Clone)]
pub struct Session {
    model: Arc<Inner>,
    place: Place,
}

impl Session {
    pub(super) fn new(model: Arc<Inner>, place: Place) -> Self {
        Self { model, place }
    }

    /// Its index among the model's sessions.
    pub fn index(&self) -> u32 {
        self.place.index
    }

    /// How it stands.
    ///
    /// # Errors
    ///
    /// See [`Session`].
    pub fn state(&self) -> Result<SessionState> {
        let shared = &self.model.shared;
        let mut desk = shared.poll(shared.check()?);
        let (seat, layout) = desk.book.seat(self.place)?;
        Ok(seat.session.state(&layout.description, is_there))
    }

    /// The id under which it is committed.
    ///
    /// # Errors
    ///
    /// [`CommitFault::NotCommitted`]; see [`Session`].
    pub fn id(&self) -> Result<u64> {
        let mut desk = self.model.shared.check()?;
        let (seat, _) = desk.book.seat(self.place)?;
        Ok(seat.session.id().ok_or(CommitFault::NotCommitted)?)
    }

    /// What it lacks.
    ///
    /// # Errors
    ///
    /// See [`Session`].
    pub fn unset(&self) -> Result<Vec<Unset>> {
        let mut desk = self.model.shared.check()?;
        let (seat, layout) = desk.book.seat(self.place)?;
        Ok(seat.session.unset(&layout.description, is_there))
    }

    /// Sets a buffer by direction and index: one as long as its region, or for a region that several tensors share, a
    /// [view](Buffer::view) of one, where the tensor lies. It replaces what was set. `EnnSetBufferByIndex`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`], [`CommitFault::Size`], [`CommitFault::Placement`],
    /// [`CommitFault::AlreadyCommitted`], [`CommitFault::Busy`]; see [`Session`].
    pub fn set(&self, direction: Direction, index: u32, buffer: &Buffer) -> Result<()> {
        let at = self.model.layout.place(direction, index)?;
        self.set_at(at, buffer)
    }

    /// As [`set`](Self::set), by label. `EnnSetBufferByLabel`.
    ///
    /// # Errors
    ///
    /// As there, and [`CommitFault::UnknownLabel`].
    pub fn set_by_label(&self, label: &str, buffer: &Buffer) -> Result<()> {
        let at = self.model.layout.description.labelled(label)?;
        self.set_at(at, buffer)
    }

    fn set_at(&self, at: usize, buffer: &Buffer) -> Result<()> {
        let mut desk = self.model.shared.check()?;
        let (piece, keep) = buffer.piece();
        let (seat, layout) = desk.book.seat(self.place)?;
        Ok(seat.session.set(&layout.description, at, piece, keep)?)
    }

    /// Sets all buffers: inputs, outputs, ext buffers, each by index. All are checked before the first is set.
    /// `EnnSetBuffers`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::Count`], and those of [`set`](Self::set).
    pub fn set_all(&self, buffers: &[&Buffer]) -> Result<()> {
        let mut desk = self.model.shared.check()?;
        let pieces = buffers.iter().map(|buffer| buffer.piece()).collect();
        let (seat, layout) = desk.book.seat(self.place)?;
        Ok(seat.session.set_all(&layout.description, pieces)?)
    }

    /// Sets a region as a whole, whatever lies in it.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`], and those of [`set`](Self::set).
    pub fn set_region(&self, region: u32, buffer: &Buffer) -> Result<()> {
        let mut desk = self.model.shared.check()?;
        let (piece, keep) = buffer.piece();
        let (seat, layout) = desk.book.seat(self.place)?;
        Ok(seat.session.set_region(&layout.description, region, piece, keep)?)
    }

    /// Allocates a buffer for every region, and sets them: gives them by index of the region.
    /// `EnnAllocateAllBuffers`.
    ///
    /// # Errors
    ///
    /// Those of [`Buffer::alloc`] and [`set`](Self::set). Nothing is set.
    pub fn allocate_all(&self) -> Result<Vec<Buffer>> {
        let regions = &self.model.layout.description.regions;
        let buffers = regions.iter().map(|region| Buffer::alloc(region.size));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let mut desk = self.model.shared.check()?;
        let (seat, layout) = desk.book.seat(self.place)?;
        for (region, buffer) in (0..).zip(&buffers) {
            // The first of them says whether any can be set.
            let (piece, keep) = buffer.piece();
            seat.session.set_region(&layout.description, region, piece, keep)?;
        }
        Ok(buffers)
    }

    /// Commits it: the descriptors travel, and the service checks and maps them, once. Gives the id.
    /// `EnnBufferCommit`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::Incomplete`]: with all that is missing. [`CommitFault::AlreadyCommitted`]: with the id.
    /// - [`CommitFault::Overlap`], [`CommitFault::Unsealed`], [`CommitFault::ReadOnly`], [`CommitFault::Memory`],
    ///   [`CommitFault::Range`], [`CommitFault::Quota`], [`CommitFault::Resources`], [`CommitFault::Refused`],
    ///   [`CommitFault::Panicked`]: what the service says.
    /// - [`CommitFault::Busy`]; see [`Session`].
    pub fn commit(&self) -> Result<u64> {
        self.commit_with(false)
    }

    /// As [`commit`](Self::commit), with memory of its own for ext buffers that are not set. After an error they are
    /// not set, as before.
    ///
    /// # Errors
    ///
    /// As there, and those of [`Buffer::alloc`].
    pub fn commit_with_ext(&self) -> Result<u64> {
        self.commit_with(true)
    }

    fn commit_with(&self, automatic_ext: bool) -> Result<u64> {
        let own = if automatic_ext { self.ext_buffers()? } else { Vec::new() };
        let mut chosen = Vec::new();
        let asked = self.model.shared.ask(|book| {
            let (seat, layout) = book.seat(self.place)?;
            let description = &layout.description;
            let before = (!own.is_empty()).then(|| Box::new(seat.session.clone()));
            let mut session = seat.session.clone();
            for (region, buffer) in &own {
                let (piece, keep) = buffer.piece();
                session.set_region(description, *region, piece, keep)?;
            }
            chosen = held(session.start_commit(description, is_there)?);
            let keep = chosen.iter().map(|chosen| chosen.keep.clone()).collect();
            seat.session = session;
            Ok(What::Commit { place: self.place, keep, before })
        })?;
        let (model, (fds, memory)) = (self.model.id, gather(&chosen));
        let request = |passed| Request::Commit { model, passed, memory };
        let ticket = self.model.shared.send_with(asked, &fds, request)?;
        match self.model.shared.wait(ticket, Patience::Forever)? {
            Some(Reply::Committed { id }) => Ok(id),
            _ => Err(unexpected()),
        }
    }

    /// Memory for the regions of ext buffers that are not set, and that nothing else lies in.
    fn ext_buffers(&self) -> Result<Vec<(u32, Buffer)>> {
        let unset = self.unset()?;
        let layout = &self.model.layout;
        let mut regions = Vec::new();
        for unset in unset {
            if let Unset::Buffer { direction: Direction::Ext, index, .. } = unset {
                regions
                    .push(layout.description.buffers[layout.place(Direction::Ext, index)?].region);
            }
        }
        regions.sort_unstable();
        regions.dedup();
        let is_ext = |at: usize| layout.description.buffers[at].direction == Direction::Ext;
        regions.retain(|region| layout.description.buffers_of(*region).all(is_ext));
        let alloc = |region: u32| {
            Ok((region, Buffer::alloc(layout.description.regions[region as usize].size)?))
        };
        regions.into_iter().map(alloc).collect()
    }

    /// Executes the commit, and waits for it. No descriptor travels, and where both sides are awake there is no system
    /// call. `EnnExecuteModel`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::NotCommitted`]; [`CommitFault::Busy`]: it runs already.
    /// - [`CommitFault::Refused`], [`CommitFault::Panicked`]: the handler failed. The commit stays.
    /// - See [`Session`].
    #[inline]
    pub fn execute(&self) -> Result<()> {
        self.model.shared.execute(self.place)
    }

    /// Executes the commit without waiting. `EnnExecuteModelAsync`.
    ///
    /// # Errors
    ///
    /// As for [`execute`](Self::execute), without what the handler does.
    pub fn start(&self) -> Result<Execution> {
        let ticket = self.model.shared.start(self.place)?.ticket;
        Ok(Execution::new(self.model.shared.clone(), ticket))
    }

    /// Replaces some buffers of the commit, between executions; the id stays.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::NotUpdatable`]: the model's description does not allow it.
    /// - [`CommitFault::Busy`]: it runs. [`CommitFault::NotCommitted`].
    /// - Those of [`set`](Self::set) and [`commit`](Self::commit).
    pub fn update(&self, buffers: &[(Direction, u32, &Buffer)]) -> Result<()> {
        let mut pieces: Vec<(usize, Piece, Weak<Handle>)> = Vec::new();
        for (direction, index, buffer) in buffers {
            let (piece, keep) = buffer.piece();
            pieces.push((self.model.layout.place(*direction, *index)?, piece, keep));
        }
        let (mut chosen, mut id) = (Vec::new(), 0);
        let asked = self.model.shared.ask(|book| {
            let (seat, layout) = book.seat(self.place)?;
            let update;
            (id, update) = seat.session.start_update(&layout.description, pieces.clone())?;
            chosen = held(update.chosen.clone());
            // What is replaced is kept too, until the release: whether others of its views are in use is not asked.
            let mut keep = seat.kept.clone();
            keep.extend(chosen.iter().map(|chosen| chosen.keep.clone()));
            Ok(What::Update { place: self.place, update: Box::new(update), keep })
        })?;
        let (fds, memory) = gather(&chosen);
        let request = |passed| Request::Update { id, passed, memory };
        let ticket = self.model.shared.send_with(asked, &fds, request)?;
        self.model.shared.wait(ticket, Patience::Forever).map(drop)
    }

    /// Releases the commit: new executions are refused at once, what runs is finished, and the service unmaps the
    /// buffers. Its id is dead for ever. What was set stays set. `EnnReleaseCommit`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::NotCommitted`], [`CommitFault::Busy`]; see [`Session`].
    pub fn release(&self) -> Result<()> {
        let (place, mut id) = (self.place, 0);
        let Asked { desk, ticket } = self.model.shared.ask(|book| {
            id = book.seat(place)?.0.session.start_release()?;
            Ok(What::Release { place, id })
        })?;
        let desk = self.model.shared.send(desk, ticket, &Request::Release { id }.encode(ticket))?;
        self.model.shared.wait_long(desk, ticket).map(drop)
    }
}

/// Keeps what was chosen. All of it was there a moment ago, under the same lock; what has gone since was released by
/// another thread, and is committed all the same if its region has another part.
fn held(chosen: Vec<Chosen<Weak<Handle>>>) -> Vec<Chosen<Arc<Handle>>> {
    let hold = |chosen: Chosen<Weak<Handle>>| {
        let Chosen { region, keep, offset, len } = chosen;
        Some(Chosen { region, keep: keep.upgrade()?, offset, len })
    };
    chosen.into_iter().filter_map(hold).collect()
}

/// The descriptors of what was chosen, each once, and the memory of every region.
fn gather(chosen: &[Chosen<Arc<Handle>>]) -> (Vec<BorrowedFd<'_>>, Vec<Memory>) {
    let mut fds = Vec::new();
    let mut numbers = HashMap::new();
    let memory = chosen.iter().map(|chosen| {
        let handle = &chosen.keep;
        let descriptor = *numbers.entry(handle.root()).or_insert_with(|| {
            fds.push(handle.fd());
            fds.len() as u32 - 1
        });
        let (region, object, len) = (chosen.region, handle.object(), chosen.len);
        Memory { region, descriptor, object, offset: handle.place(chosen.offset), len }
    });
    let memory = memory.collect();
    (fds, memory)
}
