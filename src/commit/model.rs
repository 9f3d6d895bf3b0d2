//! A client's handle of a model.

use std::sync::Arc;

use crate::commit::book::{Place, What};
use crate::commit::description::{BufferInfo, Counts, Description, Layout, RegionInfo};
use crate::commit::desk::{Asked, Patience, Shared};
use crate::commit::execution::{Executions, Outcomes};
use crate::commit::message::Request;
use crate::commit::session::Session;
use crate::error::{CommitFault, Direction, Result};

/// A model that a service has loaded. Clones are handles of the same one.
///
/// What it needs can be asked at any time, also after the service has died. When the last handle of it and of its
/// sessions is dropped, it is closed.
#[derive(Debug, Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    /// What it is kept under in the client's book.
    key: u64,
    /// What the service calls it.
    pub(super) id: u64,
    pub(super) layout: Arc<Layout>,
    max_sessions: u32,
}

impl Model {
    pub(super) fn new(
        shared: Arc<Shared>,
        (key, id): (u64, u64),
        layout: Arc<Layout>,
        max_sessions: u32,
    ) -> Self {
        Self { inner: Arc::new(Inner { shared, key, id, layout, max_sessions }) }
    }

    /// What it needs, as the service described it.
    pub fn description(&self) -> &Description {
        &self.inner.layout.description
    }

    /// How many buffers and regions it has. `EnnGetBuffersInfo`.
    pub fn counts(&self) -> Counts {
        self.description().counts()
    }

    /// The buffer of this direction and index. `EnnGetBufferInfoByIndex`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn buffer(&self, direction: Direction, index: u32) -> Result<&BufferInfo> {
        Ok(&self.description().buffers[self.inner.layout.place(direction, index)?])
    }

    /// The first buffer with this label. `EnnGetBufferInfoByLabel`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownLabel`]
    pub fn buffer_by_label(&self, label: &str) -> Result<&BufferInfo> {
        Ok(&self.description().buffers[self.description().labelled(label)?])
    }

    /// The region of this index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`]
    pub fn region(&self, index: u32) -> Result<&RegionInfo> {
        Ok(self.description().region(index)?)
    }

    /// Makes `count` sessions, empty ones, instead of those that there are: handles of these go stale.
    /// `EnnGenerateBufferSpace`. A model starts with one session.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::SessionCount`]
    /// - [`CommitFault::AlreadyCommitted`], [`CommitFault::Busy`]: one of them is in use. All stay as they are.
    /// - [`CommitFault::ModelClosed`], and the end of the connection.
    pub fn sessions(&self, count: u32) -> Result<Vec<Session>> {
        let Inner { shared, key, max_sessions, .. } = &*self.inner;
        let mut desk = shared.check()?;
        if count == 0 || count > *max_sessions {
            return Err(CommitFault::SessionCount { count, max: *max_sessions }.into());
        }
        let generation = desk.book.renew(*key, count)?;
        Ok((0..count).map(|index| self.handle(index, generation)).collect())
    }

    /// The session of this index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownSession`], [`CommitFault::ModelClosed`], and the end of the connection.
    pub fn session(&self, index: u32) -> Result<Session> {
        let Inner { shared, key, .. } = &*self.inner;
        let mut desk = shared.check()?;
        let shelf = desk.book.shelf(*key)?;
        let (count, generation) = (shelf.seats.len() as u32, shelf.generation);
        if index >= count {
            return Err(CommitFault::UnknownSession { index, count }.into());
        }
        Ok(self.handle(index, generation))
    }

    fn handle(&self, index: u32, generation: u32) -> Session {
        let place = Place { model: self.inner.key, index, generation };
        Session::new(self.inner.clone(), place)
    }

    /// Executes every session that is committed, and waits for all of them: what came of each, ascending.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::NotCommitted`]: none is. [`CommitFault::Busy`]: one of them runs. Nothing is executed.
    /// - [`CommitFault::ModelClosed`], and the end of the connection.
    pub fn execute_all(&self) -> Result<Outcomes> {
        self.start_all()?.wait()
    }

    /// As [`execute_all`](Self::execute_all), without waiting.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn start_all(&self) -> Result<Executions> {
        let Inner { shared, key, .. } = &*self.inner;
        let mut started = (Vec::new(), Vec::new());
        let Asked { desk, ticket } = shared.ask(|book| {
            started = book.start_all(*key)?;
            Ok(What::All { places: started.0.clone() })
        })?;
        let (places, ids) = started;
        drop(shared.send(desk, ticket, &Request::Execute { ids }.encode(ticket))?);
        let sessions = places.iter().map(|place| place.index).collect();
        Ok(Executions::new(shared.clone(), ticket, sessions))
    }

    /// Closes it: what runs is finished, every commit is released, and the service unloads it. From then on every use
    /// of it answers [`CommitFault::ModelClosed`]. `EnnCloseModel`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::ModelClosed`]: it was closed before; and the end of the connection.
    pub fn close(&self) -> Result<()> {
        let ticket = self.inner.start_close()?;
        self.inner.shared.wait(ticket, Patience::Forever).map(drop)
    }
}

impl Inner {
    fn start_close(&self) -> Result<u64> {
        let (key, model) = (self.key, self.id);
        let Asked { desk, ticket } = self.shared.ask(|book| {
            book.shelf(key)?.closed = true;
            Ok(What::Close { model: key })
        })?;
        drop(self.shared.send(desk, ticket, &Request::Unload { model }.encode(ticket))?);
        Ok(ticket)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.shared.is_here()
            && let Ok(ticket) = self.start_close()
        {
            self.shared.abandon(ticket);
        }
    }
}
