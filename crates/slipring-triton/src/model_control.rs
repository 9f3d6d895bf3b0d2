//! Loads and unloads models while the server runs.
//!
//! ```text
//!   load ─▶ one of `model_loads` ─▶ the name's turn ─▶ blocking thread: check, ModelRepository::load, take the place
//! ```
//!
//! 1. A load that has begun goes on if its client goes away, and its parameters stay charged until it ends.
//! 2. Neither threads nor memory grow with the requests of clients: a load or unload beyond a limit is refused at once, and
//!    a name that the repository does not contain leaves nothing behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::blocking::run_blocking;
use crate::budget::Charge;
use crate::description::IndexEntry;
use crate::front::Front;
use crate::load_parameters::{LoadParameters, check_name};
use crate::model_repository::ModelRepository;
use crate::refusal::Refusal;
use crate::repository::ModelEntry;
use crate::turns::Turns;

/// The most unloads at a time, which includes those that wait for a load of their name. Each may take a blocking thread.
const MAX_UNLOADS: usize = 64;

/// The most calls for the index that ask the application's repository at once. Others wait.
const MAX_INDEXES: usize = 4;

/// The application's repository, and the operations on it that are under way.
pub(crate) struct ModelControl {
    source: Option<Arc<dyn ModelRepository>>,
    turns: Turns,
    max_loads: usize,
    loads: Arc<Semaphore>,
    unloads: Arc<Semaphore>,
    indexes: Semaphore,
}

impl ModelControl {
    pub(crate) fn new(source: Option<Arc<dyn ModelRepository>>, max_loads: usize) -> Self {
        let max_loads = max_loads.min(Semaphore::MAX_PERMITS);
        Self {
            source,
            turns: Turns::default(),
            max_loads,
            loads: Arc::new(Semaphore::new(max_loads)),
            unloads: Arc::new(Semaphore::new(MAX_UNLOADS)),
            indexes: Semaphore::new(MAX_INDEXES),
        }
    }

    /// Returns whether clients can load and unload models.
    pub(crate) fn is_served(&self) -> bool {
        self.source.is_some()
    }

    fn source(&self) -> Result<Arc<dyn ModelRepository>, Refusal> {
        self.source.clone().ok_or_else(Refusal::no_model_control)
    }

    /// Checks that clients can load and unload models, from the repository of this name.
    pub(crate) fn check(&self, repository_name: &str) -> Result<(), Refusal> {
        if !repository_name.is_empty() {
            return Err(Refusal::repository_name());
        }
        self.source().map(drop)
    }

    /// Returns the names that can be loaded.
    pub(crate) fn names(&self) -> Vec<String> {
        let Some(source) = &self.source else { return Vec::new() };
        let mut names = guarded(|| source.index()).unwrap_or_default();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Front {
    /// Loads a model from the [repository](crate::FrontBuilder::repository), or loads it anew. Needs a runtime of tokio.
    /// Requests to a model that is loaded already go on, and the new one takes its place when it is ready.
    ///
    /// # Errors
    ///
    /// The refusal that a client receives. Among others:
    /// - [`RefusalKind::Unavailable`](crate::RefusalKind::Unavailable): the front has no repository, or as many loads are
    ///   under way as the limits allow.
    /// - [`RefusalKind::Internal`](crate::RefusalKind::Internal): the repository does not contain the model.
    /// - [`RefusalKind::InvalidArgument`](crate::RefusalKind::InvalidArgument): the repository could not load it.
    pub async fn load_model(&self, name: &str, parameters: LoadParameters) -> Result<(), Refusal> {
        self.load_charged(name, parameters, self.charge()).await
    }

    /// Loads a model. The protocol has charged the bytes of the parameters.
    pub(crate) async fn load_charged(
        &self,
        name: &str,
        parameters: LoadParameters,
        charge: Charge,
    ) -> Result<(), Refusal> {
        let control = self.control();
        let source = control.source()?;
        check_name(name)?;
        let permit = control.loads.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Refusal::too_many_loads(control.max_loads))?;
        let (front, turns, name) = (self.clone(), control.turns.clone(), name.to_owned());
        goes_on(async move {
            let turn = turns.take(&name).await;
            let load = move || {
                let _held = (turn, permit, charge);
                load(&front, &*source, &name, parameters)
            };
            run_blocking(load).await
        })
        .await
    }

    /// Unloads a model. New requests to it are refused, executions that have begun go on, and the model is dropped with the
    /// last of them. A model that is not loaded is no error.
    ///
    /// # Errors
    ///
    /// [`RefusalKind::Unavailable`](crate::RefusalKind::Unavailable): the front has no repository, or too many unloads are
    /// under way.
    pub async fn unload_model(&self, name: &str) -> Result<(), Refusal> {
        let control = self.control();
        let source = control.source()?;
        let permit = control.unloads.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Refusal::too_many_unloads(MAX_UNLOADS))?;
        let (front, turns, name) = (self.clone(), control.turns.clone(), name.to_owned());
        goes_on(async move {
            let turn = turns.take(&name).await;
            let unload = move || {
                let _held = (turn, permit);
                if front.repository().unload(&name) {
                    let _ = guarded(|| source.unload(&name));
                }
                if !guarded(|| source.contains(&name)).unwrap_or(true) {
                    front.repository().forget(&name);
                }
                Ok(())
            };
            run_blocking(unload).await
        })
        .await
    }

    /// Returns the index. The application's repository is asked on a blocking thread.
    pub(crate) async fn index_of_repository(
        &self,
        ready_alone: bool,
    ) -> Result<Vec<IndexEntry>, Refusal> {
        if ready_alone || !self.control().is_served() {
            return Ok(self.index(ready_alone));
        }
        let permit = self.control().indexes.acquire().await;
        let _permit = permit.map_err(|_| Refusal::unavailable("the request was stopped"))?;
        let front = self.clone();
        run_blocking(move || Ok(front.index(ready_alone))).await
    }
}

/// Runs an operation to its end, also if nobody waits for it.
async fn goes_on(
    operation: impl Future<Output = Result<(), Refusal>> + Send + 'static,
) -> Result<(), Refusal> {
    let done = tokio::spawn(operation).await;
    done.unwrap_or_else(|_| Err(Refusal::unavailable("the request was stopped")))
}

/// Loads a model on this thread.
fn load(
    front: &Front,
    source: &dyn ModelRepository,
    name: &str,
    parameters: LoadParameters,
) -> Result<(), Refusal> {
    parameters.check(guarded(|| source.takes_files())?)?;
    let is_known = guarded(|| source.contains(name))?;
    if !is_known && !parameters.has_files() {
        return Err(Refusal::not_polled(name));
    }
    let repository = front.repository();
    repository.begin_load(name, front.limits().loaded_models)?;
    match guarded(|| entry(front, source, name, parameters)).flatten() {
        Ok(entry) => {
            repository.finish_load(entry);
            Ok(())
        }
        Err(reason) => {
            repository.fail_load(name, reason.text());
            if !is_known {
                repository.forget(name);
            }
            Err(Refusal::load_failed(name, &reason))
        }
    }
}

/// Returns the entry of a model that the repository loads.
fn entry(
    front: &Front,
    source: &dyn ModelRepository,
    name: &str,
    parameters: LoadParameters,
) -> Result<ModelEntry, Refusal> {
    let model = source.load(name, parameters)?.0;
    let entry = ModelEntry::new(model, front.repository().threads_of(name));
    let is = &entry.metadata.name;
    if is != name {
        return Err(Refusal::internal(format!("the repository has loaded a model named '{is}'")));
    }
    match entry.metadata.missing_property() {
        Some(must) => Err(Refusal::internal(format!("the model must have {must}"))),
        None => Ok(entry),
    }
}

/// Calls the application's code. A panic is an error of this call alone.
fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(|_| Refusal::internal("the model repository failed"))
}
