//! The trait that a service implements, and what the server passes to it.

use std::fmt;
use std::sync::Arc;

use crate::commit::description::{BufferInfo, Description, Layout};
use crate::commit::memory::{Memory, View};
use crate::error::{CommitFault, Direction, Error, Result, memory};
use crate::handshake::Peer;

/// A program that executes models for the clients of a [`Server`](crate::commit::Server).
///
/// The server calls [`execute`](Self::execute) of a model that is declared [inline](Self::runs_inline) on the thread
/// that receives requests, and every other function on its worker threads. Several functions may run at once, but only
/// one at a time for the same commit. A panic fails the request that caused it, and nothing else.
pub trait Service: Send + Sync + 'static {
    /// What the service keeps of a model that a client has loaded.
    type Model: Send + Sync + 'static;
    /// What the service keeps of a commit.
    type Commit: Send + 'static;

    /// Loads a model. Returns what the service keeps of it, and which buffers and regions the client must provide.
    ///
    /// # Errors
    ///
    /// The client receives them as [`CommitFault::Refused`].
    fn load(
        &self,
        caller: &Caller,
        source: ModelSource<'_>,
    ) -> Result<(Self::Model, Description), Refused>;

    /// Returns whether single executions of this model run inline, on the thread that receives all clients' requests.
    /// The server asks once for each model, after it has loaded it.
    ///
    /// Inline saves the hand-over to a worker, which costs more than a handler of a few microseconds takes. The price:
    /// while an inline handler runs, the server receives nothing. A handler that may block or takes longer than some
    /// 20 µs must not be inline: it holds up every client. Executions that a client asks for
    /// [together](crate::commit::Model::execute_all) run on workers, whatever this returns.
    fn runs_inline(&self, model: &Self::Model) -> bool {
        let _ = model;
        false
    }

    /// Commits buffers, which the server has checked against the description and mapped.
    ///
    /// # Errors
    ///
    /// The client receives them as [`CommitFault::Refused`], and the server unmaps the buffers.
    fn commit(&self, model: &Self::Model, buffers: &Buffers) -> Result<Self::Commit, Refused>;

    /// Replaces some buffers of a commit: `buffers` has the new ones. Nothing runs on the commit meanwhile.
    ///
    /// # Errors
    ///
    /// The client receives them as [`CommitFault::Refused`], and the old buffers stay.
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
    /// The client receives them as [`CommitFault::Refused`], and the commit stays.
    fn execute(
        &self,
        model: &Self::Model,
        commit: &mut Self::Commit,
        buffers: &Buffers,
    ) -> Result<(), Refused>;

    /// Returns whether [`execute_batch`](Self::execute_batch) runs the executions that a client asks for together. If
    /// not, the workers run them side by side.
    fn takes_batches(&self) -> bool {
        false
    }

    /// Executes several commits of a client together. Returns one answer for each, in their order.
    fn execute_batch(&self, batch: &mut [Execute<'_, Self>]) -> Vec<Result<(), Refused>> {
        batch.iter_mut().map(|one| self.execute(one.model, one.commit, one.buffers)).collect()
    }

    /// Ends a commit. Nothing runs on it, and the server unmaps its buffers next.
    fn release(&self, model: &Self::Model, commit: Self::Commit) {
        let _ = (model, commit);
    }

    /// Ends a model that its client has closed, or whose client has gone. All its commits are released.
    fn unload(&self, model: Self::Model) {
        drop(model);
    }

    /// Tells that a client has gone and that all its models are unloaded. `why` is the error that its link ended with:
    /// [`ErrorKind::PeerDied`](crate::ErrorKind::PeerDied), or the fault that the server found in what the client sent.
    /// `None`: the client closed in order.
    fn client_gone(&self, caller: &Caller, why: Option<&Error>) {
        let _ = (caller, why);
    }
}

/// One execution of a batch.
#[derive(Debug)]
pub struct Execute<'a, S: Service + ?Sized> {
    /// What the service keeps of the model.
    pub model: &'a S::Model,
    /// What the service keeps of the commit.
    pub commit: &'a mut S::Commit,
    /// The commit's buffers.
    pub buffers: &'a Buffers,
}

/// The client that a request comes from.
#[derive(Debug, Clone)]
pub struct Caller {
    number: u64,
    peer: Peer,
}

impl Caller {
    pub(super) fn new(number: u64, peer: Peer) -> Self {
        Self { number, peer }
    }

    /// Returns a number that no other connection of the server has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the client's process, as the kernel described it when the connection was made.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// The bytes that a model is loaded from.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum ModelSource<'a> {
    /// Bytes that came in a message: a private copy.
    Bytes(&'a [u8]),
    /// Memory of the client, which may still write it.
    View(View<'a>),
}

impl ModelSource<'_> {
    /// Returns a copy of all bytes.
    ///
    /// # Errors
    ///
    /// Those of [`View::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => memory::copied(bytes),
            Self::View(view) => view.to_vec(),
        }
    }
}

/// The reason why a service refuses a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// A number for programs, 0 if there is none.
    pub code: u32,
    /// A sentence for people. Its first 1024 bytes reach the client.
    pub why: String,
}

impl Refused {
    /// Returns a refusal with a number and a sentence.
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

/// Lets a service use `?` on operations on its buffers.
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

/// The buffers of a commit. The client may read and write them at any moment.
///
/// The service can read inputs, and read and write outputs and ext buffers.
pub struct Buffers {
    layout: Arc<Layout>,
    /// By index of the region.
    regions: Vec<Arc<Memory>>,
}

impl Buffers {
    pub(super) fn new(layout: Arc<Layout>, regions: Vec<Arc<Memory>>) -> Self {
        Self { layout, regions }
    }

    /// The memory of each region.
    pub(super) fn regions(&self) -> &[Arc<Memory>] {
        &self.regions
    }

    /// Returns the model's description.
    pub fn description(&self) -> &Description {
        self.layout.description()
    }

    /// Returns the description of a buffer.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn info(&self, direction: Direction, index: u32) -> Result<&BufferInfo> {
        Ok(&self.description().buffers[self.layout.position(direction, index)?])
    }

    /// Returns the bytes of a buffer.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    #[inline]
    pub fn get(&self, direction: Direction, index: u32) -> Result<View<'_>> {
        Ok(self.view(self.layout.position(direction, index)?))
    }

    /// Returns the bytes of an input.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn input(&self, index: u32) -> Result<View<'_>> {
        self.get(Direction::In, index)
    }

    /// Returns the bytes of an output.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn output(&self, index: u32) -> Result<View<'_>> {
        self.get(Direction::Out, index)
    }

    /// Returns the bytes of an ext buffer.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownBuffer`]
    pub fn ext(&self, index: u32) -> Result<View<'_>> {
        self.get(Direction::Ext, index)
    }

    /// Returns the bytes of the first buffer with this label.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownLabel`]
    pub fn labelled(&self, label: &str) -> Result<View<'_>> {
        Ok(self.view(self.description().labelled(label)?))
    }

    /// Returns the bytes of a whole region, to read.
    ///
    /// # Errors
    ///
    /// [`CommitFault::UnknownRegion`]
    pub fn region(&self, index: u32) -> Result<View<'_>> {
        let size = self.description().region(index)?.size;
        Ok(View::new(&self.regions[index as usize], 0, size, false))
    }

    fn view(&self, at: usize) -> View<'_> {
        let buffer = &self.description().buffers[at];
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
