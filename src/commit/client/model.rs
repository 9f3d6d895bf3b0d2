//! A client's handle of a model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::commit::client::execution::Execution;
use crate::commit::client::link::ClientLink;
use crate::commit::client::outcomes::Outcomes;
use crate::commit::client::session::Session;
use crate::commit::client::state::{Pending, SessionKey};
use crate::commit::description::{BufferInfo, Description, Layout, RegionInfo};
use crate::commit::wire::message::Request;
use crate::error::{CommitFault, Direction, Result};
use crate::patience::after;

/// A model that a service has loaded. Clones are handles of the same model.
///
/// Its description can be queried at any time, also after the service has died. The client closes the model when the
/// last handle of it and of its sessions is dropped.
#[derive(Debug, Clone)]
pub struct Model {
    loaded: Arc<ModelHandle>,
}

/// What the handles of a model and of its sessions share.
#[derive(Debug)]
pub(super) struct ModelHandle {
    link: Arc<ClientLink>,
    /// The model's key in the client's state.
    key: u64,
    /// The server's id of the model.
    id: u64,
    layout: Arc<Layout>,
    max_sessions: u32,
    timeout: Option<Duration>,
}

impl Model {
    pub(super) fn new(
        link: Arc<ClientLink>,
        (key, id): (u64, u64),
        layout: Arc<Layout>,
        (max_sessions, timeout): (u32, Option<Duration>),
    ) -> Self {
        Self { loaded: Arc::new(ModelHandle { link, key, id, layout, max_sessions, timeout }) }
    }

    /// Returns the description that the service gave.
    pub fn description(&self) -> &Description {
        self.loaded.layout.description()
    }

    /// Returns the number of buffers of one direction. `EnnGetBuffersInfo` returns these numbers.
    pub fn count(&self, direction: Direction) -> u32 {
        self.description().count(direction)
    }

    /// Returns the buffer of this direction and index. `EnnGetBufferInfoByIndex`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn buffer(&self, direction: Direction, index: u32) -> Result<&BufferInfo> {
        Ok(&self.description().buffers[self.loaded.layout.position(direction, index)?])
    }

    /// Returns the first buffer with this label. `EnnGetBufferInfoByLabel`.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownLabel`]
    pub fn buffer_by_label(&self, label: &str) -> Result<&BufferInfo> {
        Ok(&self.description().buffers[self.description().labelled(label)?])
    }

    /// Returns the region of this index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`]
    pub fn region(&self, index: u32) -> Result<&RegionInfo> {
        Ok(self.description().region(index)?)
    }

    /// Replaces all sessions by `count` empty ones. Handles of the old sessions go stale. A model starts with one
    /// session. `EnnGenerateBufferSpace`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::SessionCount`]
    /// - [`CommitFault::AlreadyCommitted`], [`CommitFault::Busy`]: one of them is in use. All stay as they are.
    /// - [`CommitFault::ModelClosed`], and the error that the connection ended with.
    pub fn sessions(&self, count: u32) -> Result<Vec<Session>> {
        let ModelHandle { link, key, max_sessions, .. } = &*self.loaded;
        let mut shared = link.check()?;
        if count == 0 || count > *max_sessions {
            return Err(CommitFault::SessionCount { count, max: *max_sessions }.into());
        }
        let (model, generation) = (*key, shared.state().replace_sessions(*key, count)?);
        let handle = |index| self.handle(SessionKey { model, index, generation });
        Ok((0..count).map(handle).collect())
    }

    /// Returns the session of this index.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownSession`], [`CommitFault::ModelClosed`], and the error that the connection ended with.
    pub fn session(&self, index: u32) -> Result<Session> {
        let mut shared = self.loaded.link.check()?;
        Ok(self.handle(shared.state().session_key(self.loaded.key, index)?))
    }

    fn handle(&self, key: SessionKey) -> Session {
        Session::new(self.loaded.clone(), key)
    }

    /// Executes every session that is committed, and waits for all of them. An execution that fails is an outcome, and no
    /// error of this call.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::NotCommitted`]: none is. [`CommitFault::Busy`]: one of them runs. Nothing is executed.
    /// - [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut): the [client's timeout](crate::commit::Client::timeout) has
    ///   passed, and the executions go on.
    /// - [`CommitFault::ModelClosed`], and the error that the connection ended with.
    pub fn execute_all(&self) -> Result<Outcomes> {
        self.execute_all_until(self.loaded.until())
    }

    /// Executes as [`execute_all`](Self::execute_all) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`execute_all`](Self::execute_all).
    pub fn execute_all_deadline(&self, deadline: Instant) -> Result<Outcomes> {
        self.execute_all_until(Some(deadline))
    }

    fn execute_all_until(&self, until: Option<Instant>) -> Result<Outcomes> {
        let mut execution = self.start_all_until(until)?;
        match until {
            Some(until) => execution.wait_deadline(until),
            None => execution.wait(),
        }
    }

    /// Starts an execution of every session that is committed, and does not wait for it.
    ///
    /// # Errors
    ///
    /// As for [`execute_all`](Self::execute_all).
    pub fn start_all(&self) -> Result<Execution<Outcomes>> {
        self.start_all_until(self.loaded.until())
    }

    fn start_all_until(&self, until: Option<Instant>) -> Result<Execution<Outcomes>> {
        let ModelHandle { link, key, .. } = &*self.loaded;
        let (mut indexes, mut ids) = (Vec::new(), Vec::new());
        let begun = link.begin(until, |state| {
            let sessions;
            (sessions, ids) = state.begin_all(*key)?;
            indexes = sessions.iter().map(|session| session.index).collect();
            Ok(Pending::ExecuteAll { sessions })
        })?;
        let ticket = link.send(begun, &Request::Execute { ids })?;
        Ok(Execution::of_all(link.clone(), ticket, indexes))
    }

    /// Closes the model: the service finishes what runs, releases every commit, and unloads the model. From then on every
    /// use of the model fails with [`CommitFault::ModelClosed`]. `EnnCloseModel`.
    ///
    /// # Errors
    ///
    /// - [`CommitFault::ModelClosed`]: the model is already closed; and the error that the connection ended with.
    /// - [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut): the [client's timeout](crate::commit::Client::timeout) has
    ///   passed, and the model closes later.
    pub fn close(&self) -> Result<()> {
        self.close_until(self.loaded.until())
    }

    /// Closes as [`close`](Self::close) does. It waits until `deadline`.
    ///
    /// # Errors
    ///
    /// As for [`close`](Self::close).
    pub fn close_deadline(&self, deadline: Instant) -> Result<()> {
        self.close_until(Some(deadline))
    }

    fn close_until(&self, until: Option<Instant>) -> Result<()> {
        let ModelHandle { link, key: model, id, .. } = &*self.loaded;
        let begun = link.begin(until, |state| {
            state.begin_close(*model)?;
            Ok(Pending::Close { model: *model })
        })?;
        let ticket = link.send(begun, &Request::Unload { model: *id })?;
        link.wait_for(ticket, until).map(drop)
    }
}

impl ModelHandle {
    pub(super) fn link(&self) -> &Arc<ClientLink> {
        &self.link
    }

    /// The server's id of the model.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns when a request that begins now times out.
    #[inline]
    pub(super) fn until(&self) -> Option<Instant> {
        self.timeout.map(after)
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        if self.link.is_here() {
            self.link.unload(self.key, self.id);
        }
    }
}
