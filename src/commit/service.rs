//! What a service implements, and what it is given.

use std::fmt;
use std::sync::Arc;

use crate::commit::description::{BufferInfo, Description, Layout};
use crate::commit::memory::{Memory, View};
use crate::error::{CommitFault, Direction, Error, Result};
use crate::transport::Credentials;

/// Somebody who runs models, for clients of a [`Server`](crate::commit::Server).
///
/// Its functions run on the server's workers. Several may run at once, but for one commit one at a time. A function
/// that panics fails what was asked, and nothing else.
pub trait Service: Send + Sync + 'static {
    /// What it keeps of a model that a client has loaded.
    type Model: Send + Sync + 'static;
    /// What it keeps of a commit.
    type Commit: Send + 'static;

    /// Loads a model: what it keeps, and which buffers and regions the client must provide.
    ///
    /// # Errors
    ///
    /// The client gets them as [`CommitFault::Refused`].
    fn load(
        &self,
        caller: &Caller,
        source: ModelSource<'_>,
    ) -> Result<(Self::Model, Description), Refused>;

    /// A client commits buffers: they are mapped, and checked against the description.
    ///
    /// # Errors
    ///
    /// The client gets them as [`CommitFault::Refused`], and the buffers are unmapped.
    fn commit(&self, model: &Self::Model, buffers: &Buffers) -> Result<Self::Commit, Refused>;

    /// A client replaces some buffers: `buffers` has the new ones. Nothing runs meanwhile.
    ///
    /// # Errors
    ///
    /// The client gets them as [`CommitFault::Refused`], and the old buffers stay.
    fn update(
        &self,
        model: &Self::Model,
        commit: &mut Self::Commit,
        buffers: &Buffers,
    ) -> Result<(), Refused> {
        let _ = (model, commit, buffers);
        Ok(())
    }

    /// Executes a model once.
    ///
    /// # Errors
    ///
    /// The client gets them as [`CommitFault::Refused`]; the commit stays.
    fn execute(
        &self,
        model: &Self::Model,
        commit: &mut Self::Commit,
        buffers: &Buffers,
    ) -> Result<(), Refused>;

    /// Whether executions that a client asks for together are given to [`execute_batch`](Self::execute_batch). If not
    /// they run side by side.
    fn takes_batches(&self) -> bool {
        false
    }

    /// Executes several commits of a client together: an answer for each, in their order.
    fn execute_batch(&self, batch: &mut [Execute<'_, Self>]) -> Vec<Result<(), Refused>> {
        batch.iter_mut().map(|one| self.execute(one.model, one.commit, one.buffers)).collect()
    }

    /// A commit is over: nothing runs on it any more, and its buffers are unmapped next.
    fn release(&self, model: &Self::Model, commit: Self::Commit) {
        let _ = (model, commit);
    }

    /// A model was closed, or its client has gone. All its commits are released.
    fn unload(&self, model: Self::Model) {
        drop(model);
    }

    /// A client has gone. All its models are unloaded. `why` is what its link ended with: `None` if it was closed in
    /// order, [`ErrorKind::PeerDied`](crate::ErrorKind::PeerDied), or the fault that was found in what the client sent.
    fn client_gone(&self, caller: &Caller, why: Option<&Error>) {
        let _ = (caller, why);
    }
}

/// One of the executions of a batch.
#[derive(Debug)]
pub struct Execute<'a, S: Service + ?Sized> {
    /// What the service keeps of the model.
    pub model: &'a S::Model,
    /// What it keeps of the commit.
    pub commit: &'a mut S::Commit,
    /// The commit's buffers.
    pub buffers: &'a Buffers,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub(super) number: u64,
    pub(super) credentials: Credentials,
}

impl Caller {
    /// Tells it from every other connection of the server.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its process, as the kernel vouched for when the connection was made.
    pub fn credentials(&self) -> Credentials {
        self.credentials
    }
}

/// What a model is loaded from.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum ModelSource<'a> {
    /// Bytes that came in a message: a private copy.
    Bytes(&'a [u8]),
    /// Memory of the client's, which it may still write.
    View(View<'a>),
}

impl ModelSource<'_> {
    /// A copy of all bytes.
    ///
    /// # Errors
    ///
    /// Those of [`View::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.to_vec()),
            Self::View(view) => view.to_vec(),
        }
    }
}

/// Why a service does not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// A number for programs, 0 if there is none.
    pub code: u32,
    /// A sentence for people, of which 1024 bytes reach the client.
    pub why: String,
}

impl Refused {
    /// With a number.
    pub fn new(code: u32, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

impl From<&str> for Refused {
    fn from(why: &str) -> Self {
        Self::new(0, why)
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::new(0, why)
    }
}

/// So that a service can use `?` on what it does with its buffers.
impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::new(0, format!("{error:#}"))
    }
}

impl From<Refused> for CommitFault {
    fn from(Refused { code, why }: Refused) -> Self {
        Self::Refused { code, why }
    }
}

/// The buffers of a commit, which the client may read and write at any moment.
///
/// Inputs can be read. Outputs and ext buffers can be written, too.
pub struct Buffers {
    pub(super) layout: Arc<Layout>,
    /// By index of the region.
    pub(super) regions: Vec<Arc<Memory>>,
}

impl Buffers {
    /// What the model needs.
    pub fn description(&self) -> &Description {
        &self.layout.description
    }

    /// What the description says of a buffer.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn info(&self, direction: Direction, index: u32) -> Result<&BufferInfo> {
        Ok(&self.layout.description.buffers[self.layout.place(direction, index)?])
    }

    /// The bytes of a buffer.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    #[inline]
    pub fn get(&self, direction: Direction, index: u32) -> Result<View<'_>> {
        Ok(self.view(self.layout.place(direction, index)?))
    }

    /// The bytes of an input.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn input(&self, index: u32) -> Result<View<'_>> {
        self.get(Direction::In, index)
    }

    /// The bytes of an output.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn output(&self, index: u32) -> Result<View<'_>> {
        self.get(Direction::Out, index)
    }

    /// The bytes of an ext buffer.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn ext(&self, index: u32) -> Result<View<'_>> {
        self.get(Direction::Ext, index)
    }

    /// The bytes of the first buffer with this label.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownLabel`]
    pub fn labelled(&self, label: &str) -> Result<View<'_>> {
        Ok(self.view(self.layout.description.labelled(label)?))
    }

    /// The bytes of a region as a whole, to read.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`]
    pub fn region(&self, index: u32) -> Result<View<'_>> {
        let size = self.layout.description.region(index)?.size;
        Ok(View::new(&self.regions[index as usize], 0, size, false))
    }

    fn view(&self, at: usize) -> View<'_> {
        let buffer = &self.layout.description.buffers[at];
        let writable = buffer.direction != Direction::In;
        let memory = &self.regions[buffer.region as usize];
        View::new(memory, buffer.offset, buffer.size, writable)
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("regions", &self.regions.len()).finish_non_exhaustive()
    }
}
