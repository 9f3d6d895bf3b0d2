//! What all wires charge: models, regions, limits.

use std::fmt;
use std::sync::Arc;

use crate::budget::{Budget, Charge};
use crate::error::BuildError;
use crate::limits::Limits;
use crate::model::{AsyncModel, Model};
use crate::repository::{AnyModel, Repository};
use crate::shared_memory::{OpenGpu, SharedMemory};
use slipring::region::{Registry, SigbusGuard};

/// Models and regions, ready to be served by any number of wires. Clones are the same one.
///
/// # Examples
///
/// ```
/// use slipring_triton::{Front, InferRequest};
///
/// # fn main() -> Result<(), slipring_triton::BuildError> {
/// let front = Front::builder().name("my server").build()?;
/// assert!(front.index(false).is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Front {
    state: Arc<FrontState>,
}

struct FrontState {
    name: String,
    repository: Repository,
    shared_memory: SharedMemory,
    in_place: bool,
    browsers: bool,
    limits: Limits,
    budget: Arc<Budget>,
}

impl Front {
    /// A server of nothing, to be told what it serves.
    pub fn builder() -> FrontBuilder {
        FrontBuilder {
            name: "slipring".to_owned(),
            models: Vec::new(),
            registry: None,
            client_shared_memory: true,
            gpus: None,
            in_place: false,
            browsers: false,
            limits: Limits::new(),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The verbs of shared memory.
    pub fn shared_memory(&self) -> &SharedMemory {
        &self.state.shared_memory
    }

    /// How much a client may ask for.
    pub fn limits(&self) -> &Limits {
        &self.state.limits
    }

    /// What a request takes of the bytes under way.
    pub(super) fn charge(&self) -> Charge {
        self.state.budget.charge()
    }

    pub(super) fn repository(&self) -> &Repository {
        &self.state.repository
    }

    /// Whether web pages are served over HTTP.
    pub(super) fn serves_browsers(&self) -> bool {
        self.state.browsers
    }

    /// Whether memory that its owner can truncate is touched where it lies.
    pub(super) fn in_place(&self) -> bool {
        self.state.in_place
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("name", &self.state.name).finish_non_exhaustive()
    }
}

/// What a [`Front`] is to be.
pub struct FrontBuilder {
    name: String,
    models: Vec<AnyModel>,
    registry: Option<Registry>,
    client_shared_memory: bool,
    gpus: Option<OpenGpu>,
    in_place: bool,
    browsers: bool,
    limits: Limits,
}

impl FrontBuilder {
    /// What clients are told that the server is called; `slipring`, if nothing else is said.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a model.
    pub fn model(mut self, model: impl Model) -> Self {
        self.models.push(AnyModel::Blocking(Arc::new(model)));
        self
    }

    /// Adds a model that waits for something else.
    pub fn async_model(mut self, model: impl AsyncModel) -> Self {
        self.models.push(AnyModel::Async(Arc::new(model)));
        self
    }

    /// Where clients' regions are registered: one that this process uses otherwise, too. Else one of its own.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Whether clients may register and use shared memory; they may, if nothing else is said.
    pub fn client_shared_memory(mut self, allowed: bool) -> Self {
        self.client_shared_memory = allowed;
        self
    }

    /// Whether models read and write clients' regions where they lie. Their owner can truncate them at any moment,
    /// so the application must have installed the [`SigbusGuard`]. Else, and by default, every byte is copied by
    /// the kernel.
    pub fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place;
        self
    }

    /// How memory of a GPU is opened that clients register: `cuda::Device::reach`, with the feature `cuda`. Models get
    /// it as copies, and what they write is copied to it. If nothing is said, registering it is refused.
    pub fn gpus(mut self, open: OpenGpu) -> Self {
        self.gpus = Some(open);
        self
    }

    /// Whether web pages may ask over HTTP. They may not, if nothing else is said: requests with an `Origin` are
    /// refused, because any page that is looked at on this machine can send them, also to `127.0.0.1`.
    pub fn browsers(mut self, allowed: bool) -> Self {
        self.browsers = allowed;
        self
    }

    /// How much a client may ask for.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Puts it together.
    ///
    /// # Errors
    ///
    /// - [`BuildError::Unguarded`]: the front works in place, and the process has no guard.
    /// - [`BuildError::Model`]: two models have one name; or a model lacks a name, a version, or a name of its own for
    ///   each input and output.
    /// - [`BuildError::Registry`]: the kernel refuses what a registry needs.
    pub fn build(self) -> Result<Front, BuildError> {
        if self.in_place && !SigbusGuard::is_installed() {
            return Err(BuildError::Unguarded);
        }
        let mut repository = Repository::default();
        for model in self.models {
            repository.add(model).map_err(|(model, must)| BuildError::Model { model, must })?;
        }
        let registry =
            self.registry.map_or_else(Registry::new, Ok).map_err(BuildError::Registry)?;
        let shared_memory = SharedMemory::new(registry, self.client_shared_memory, self.gpus);
        let (in_place, browsers, limits) = (self.in_place, self.browsers, self.limits);
        let budget = Arc::new(Budget::new(limits.bytes_in_flight));
        let name = self.name;
        let state =
            FrontState { name, repository, shared_memory, in_place, browsers, limits, budget };
        Ok(Front { state: Arc::new(state) })
    }
}

impl fmt::Debug for FrontBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
