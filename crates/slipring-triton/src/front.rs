//! The part that all protocols share: models, regions, limits.

use std::fmt;
use std::sync::Arc;

use slipring::region::{Registry, SigbusGuard};

use crate::budget::{Budget, Charge};
use crate::error::BuildError;
use crate::limits::Limits;
use crate::model::{AsyncModel, DecoupledModel, Model};
use crate::model_control::ModelControl;
use crate::model_repository::ModelRepository;
use crate::repository::{AnyModel, Repository};
use crate::shared_memory::{OpenGpu, SharedMemory};

/// Models and regions, ready for any number of servers and protocols. Clones share one front.
///
/// # Examples
///
/// ```
/// use slipring_triton::Front;
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
    control: ModelControl,
    shared_memory: SharedMemory,
    in_place: bool,
    browsers: bool,
    limits: Limits,
    budget: Arc<Budget>,
}

impl Front {
    /// Returns a builder of a front without models.
    pub fn builder() -> FrontBuilder {
        FrontBuilder {
            name: "slipring".to_owned(),
            models: Vec::new(),
            repository: None,
            registry: None,
            client_shared_memory: true,
            gpus: None,
            in_place: false,
            browsers: false,
            limits: Limits::new(),
        }
    }

    /// Returns the server's name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Returns the operations on shared memory.
    pub fn shared_memory(&self) -> &SharedMemory {
        &self.state.shared_memory
    }

    /// Returns the limits for clients.
    pub fn limits(&self) -> &Limits {
        &self.state.limits
    }

    /// Returns a new charge against the bytes in flight.
    pub(crate) fn charge(&self) -> Charge {
        self.state.budget.charge()
    }

    pub(crate) fn repository(&self) -> &Repository {
        &self.state.repository
    }

    pub(crate) fn control(&self) -> &ModelControl {
        &self.state.control
    }

    /// Whether the front answers requests of web pages over HTTP.
    pub(crate) fn serves_browsers(&self) -> bool {
        self.state.browsers
    }

    /// Whether models touch memory that its owner can truncate in place.
    pub(crate) fn in_place(&self) -> bool {
        self.state.in_place
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("name", &self.state.name).finish_non_exhaustive()
    }
}

/// Builds a [`Front`].
pub struct FrontBuilder {
    name: String,
    models: Vec<AnyModel>,
    repository: Option<Arc<dyn ModelRepository>>,
    registry: Option<Registry>,
    client_shared_memory: bool,
    gpus: Option<OpenGpu>,
    in_place: bool,
    browsers: bool,
    limits: Limits,
}

impl FrontBuilder {
    /// Sets the server's name for clients. The default is `slipring`.
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

    /// Adds a model that answers a request with any number of responses.
    pub fn decoupled_model(mut self, model: impl DecoupledModel) -> Self {
        self.models.push(AnyModel::Decoupled(Arc::new(model)));
        self
    }

    /// Sets the repository from which clients load models, and lets them unload every model, also those that the builder
    /// has added. Without a repository they can do neither.
    pub fn repository(mut self, repository: impl ModelRepository) -> Self {
        self.repository = Some(Arc::new(repository));
        self
    }

    /// Sets the registry for clients' regions, which the process may also use for its own. The default is a new one.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Sets whether clients may register and use shared memory. The default is `true`.
    pub fn client_shared_memory(mut self, allowed: bool) -> Self {
        self.client_shared_memory = allowed;
        self
    }

    /// Sets whether models read and write clients' regions in place. The owner of a region can truncate it at any
    /// moment, so the application must install the [`SigbusGuard`] first. The default is `false`: the kernel copies
    /// every byte.
    pub fn in_place(mut self, in_place: bool) -> Self {
        self.in_place = in_place;
        self
    }

    /// Sets how the front opens GPU memory that clients register: `slipring::cuda::Device::reach` with the feature
    /// `cuda`. Models receive a copy of that memory, and the front copies their output back. Without this setting the
    /// front refuses the registration of GPU memory.
    pub fn gpus(mut self, open: OpenGpu) -> Self {
        self.gpus = Some(open);
        self
    }

    /// Sets whether web pages may use the HTTP interface. The default is `false`: the front refuses requests with an
    /// `Origin` header, since any page that a browser on this machine shows can send requests to `127.0.0.1`.
    pub fn browsers(mut self, allowed: bool) -> Self {
        self.browsers = allowed;
        self
    }

    /// Sets the limits for clients.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Builds the front.
    ///
    /// # Errors
    ///
    /// - [`BuildError::Unguarded`]: the front works in place, and the process has no guard.
    /// - [`BuildError::Model`]: two models have one name; or a model lacks a name, a version, or a name of its own for
    ///   each
    ///   input and output.
    /// - [`BuildError::Registry`]: the kernel refuses what a registry needs.
    pub fn build(self) -> Result<Front, BuildError> {
        if self.in_place && !SigbusGuard::is_installed() {
            return Err(BuildError::Unguarded);
        }
        let mut repository = Repository::new(self.limits.model_threads);
        for model in self.models {
            repository.add(model).map_err(|(model, must)| BuildError::Model { model, must })?;
        }
        let registry =
            self.registry.map_or_else(Registry::new, Ok).map_err(BuildError::Registry)?;
        let shared_memory = SharedMemory::new(registry, self.client_shared_memory, self.gpus);
        let (in_place, browsers, limits) = (self.in_place, self.browsers, self.limits);
        let budget = Arc::new(Budget::new(limits.bytes_in_flight));
        let control = ModelControl::new(self.repository, limits.model_loads);
        let name = self.name;
        let state = FrontState {
            name,
            repository,
            control,
            shared_memory,
            in_place,
            browsers,
            limits,
            budget,
        };
        Ok(Front { state: Arc::new(state) })
    }
}

impl fmt::Debug for FrontBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
