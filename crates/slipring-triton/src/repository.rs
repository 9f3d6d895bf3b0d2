//! The models of a server, by name, and the state of each.
//!
//! ```text
//!   (none) ── begin_load ─▶ LOADING ── finish_load ─▶ READY ── unload ─▶ UNLOADING ── last execution ─▶ UNAVAILABLE
//!                              └────── fail_load ──▶ UNAVAILABLE
//! ```
//!
//! 1. A request that has found its model keeps it, whatever happens to the name.
//! 2. A model that is loaded anew is READY throughout: the old one takes requests until the new one takes its place.
//! 3. No code of an application runs under the lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use tokio::sync::Semaphore;

use crate::held_model::HeldModel;
use crate::instances::Instances;
use crate::metadata::ModelMetadata;
use crate::model::{AsyncModel, DecoupledModel, Model};
use crate::refusal::Refusal;
use crate::statistics::Statistics;
use crate::threads::Threads;

/// The calls that a model executes at once by default. Each may occupy a thread.
const BLOCKING_INSTANCES: usize = 32;

/// The same of an asynchronous model, whose calls take memory alone while they wait.
const ASYNC_INSTANCES: usize = 1024;

/// A model of any kind.
#[derive(Clone)]
pub(crate) enum AnyModel {
    Blocking(Arc<dyn Model>),
    Async(Arc<dyn AsyncModel>),
    Decoupled(Arc<dyn DecoupledModel>),
}

/// A model and its statistics.
pub(crate) struct ModelEntry {
    pub(crate) metadata: Arc<ModelMetadata>,
    pub(crate) model: HeldModel,
    pub(crate) instances: Instances,
    /// The statistics of each version.
    statistics: Vec<(u64, Statistics)>,
}

impl ModelEntry {
    pub(crate) fn new(model: AnyModel, threads: Threads) -> Self {
        let metadata = match &model {
            AnyModel::Blocking(model) => model.metadata(),
            AnyModel::Async(model) => model.metadata(),
            AnyModel::Decoupled(model) => model.metadata(),
        };
        let mut metadata = metadata.clone();
        metadata.versions.sort_unstable();
        metadata.versions.dedup();
        let statistics = metadata.versions.iter().map(|version| (*version, Statistics::default()));
        let default = match &model {
            AnyModel::Blocking(_) | AnyModel::Decoupled(_) => BLOCKING_INSTANCES,
            AnyModel::Async(_) => ASYNC_INSTANCES,
        };
        let statistics = statistics.collect();
        let instances = Instances::new(&metadata, default, threads);
        let model = HeldModel::new(model);
        Self { statistics, instances, metadata: Arc::new(metadata), model }
    }

    pub(crate) fn is_ready(&self) -> bool {
        match &*self.model {
            AnyModel::Blocking(model) => model.is_ready(),
            AnyModel::Async(model) => model.is_ready(),
            AnyModel::Decoupled(model) => model.is_ready(),
        }
    }

    /// Returns whether a request may have other than one response.
    pub(crate) fn is_decoupled(&self) -> bool {
        matches!(*self.model, AnyModel::Decoupled(_))
    }

    /// Returns the statistics of all versions.
    pub(crate) fn all_statistics(&self) -> impl Iterator<Item = (u64, &Statistics)> {
        self.statistics.iter().map(|(version, statistics)| (*version, statistics))
    }
}

impl fmt::Debug for ModelEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelEntry").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// One version of a model.
#[derive(Debug, Clone)]
pub(crate) struct ModelVersion {
    pub(crate) entry: Arc<ModelEntry>,
    pub(crate) version: u64,
    at: usize,
}

impl ModelVersion {
    pub(crate) fn statistics(&self) -> &Statistics {
        &self.entry.statistics[self.at].1
    }
}

/// What is known of a name.
#[derive(Debug)]
struct Slot {
    /// The threads of all models that have the name one after another.
    threads: Threads,
    /// The model that takes requests.
    current: Option<Arc<ModelEntry>>,
    /// Whether the first model of the name is being loaded.
    is_loading: bool,
    /// Whether the application has added the model, so that the name stays.
    is_fixed: bool,
    /// The versions of the model that took requests last.
    versions: Vec<u64>,
    /// The reason why no model takes requests.
    reason: String,
    /// Lives until the model that took requests last is dropped.
    last: Weak<()>,
}

impl Slot {
    fn new(threads: Threads) -> Self {
        Self {
            threads,
            current: None,
            is_loading: false,
            is_fixed: false,
            versions: Vec::new(),
            reason: String::new(),
            last: Weak::new(),
        }
    }
}

/// The state of a version of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelState {
    /// The model takes requests.
    Ready,
    /// The model takes no requests.
    Unavailable,
    /// The model is being loaded.
    Loading,
    /// The model takes no new requests, and executions go on.
    Unloading,
}

impl ModelState {
    /// Returns the protocol's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// A name and its state, at one moment.
#[derive(Debug)]
pub(crate) enum Listed {
    Loaded(Arc<ModelEntry>),
    Absent { name: String, versions: Vec<u64>, state: ModelState, reason: String },
}

/// The longest reason that is kept, in bytes.
const MAX_REASON: usize = 512;

/// The models, by name.
#[derive(Debug)]
pub(crate) struct Repository {
    slots: RwLock<BTreeMap<String, Slot>>,
    /// The threads that all models share.
    shared_threads: Arc<Semaphore>,
}

impl Repository {
    /// Returns a repository whose models share so many threads.
    pub(crate) fn new(shared_threads: usize) -> Self {
        let shared_threads = Semaphore::new(shared_threads.min(Semaphore::MAX_PERMITS));
        Self { slots: RwLock::default(), shared_threads: Arc::new(shared_threads) }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Slot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Slot>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a model of the application. The error is the model's name and the property that it lacks.
    pub(crate) fn add(&mut self, model: AnyModel) -> Result<(), (String, &'static str)> {
        let threads = Threads::new(&self.shared_threads);
        let entry = ModelEntry::new(model, threads.clone());
        let name = entry.metadata.name.clone();
        let mut slots = self.write();
        let must = match entry.metadata.missing_property() {
            None if slots.contains_key(&name) => "a name of its own",
            None => {
                let current = Some(Arc::new(entry));
                slots.insert(name, Slot { current, is_fixed: true, ..Slot::new(threads) });
                return Ok(());
            }
            Some(must) => must,
        };
        drop(slots);
        Err((name, must))
    }

    /// Returns the models that take requests.
    pub(crate) fn models(&self) -> Vec<Arc<ModelEntry>> {
        self.read().values().filter_map(|slot| slot.current.clone()).collect()
    }

    /// Returns all names that are known.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let listed = |(name, slot): (&String, &Slot)| match &slot.current {
            Some(entry) => Listed::Loaded(entry.clone()),
            None => {
                let state = match slot.is_loading {
                    true => ModelState::Loading,
                    false if slot.last.strong_count() > 0 => ModelState::Unloading,
                    false => ModelState::Unavailable,
                };
                let (versions, reason) = (slot.versions.clone(), slot.reason.clone());
                let reason = if state == ModelState::Unavailable { reason } else { String::new() };
                Listed::Absent { name: name.clone(), versions, state, reason }
            }
        };
        self.read().iter().map(listed).collect()
    }

    /// Returns a model, and the version that the client asks for or else the last one.
    pub(crate) fn find(&self, model: &str, version: Option<&str>) -> Result<ModelVersion, Refusal> {
        let slots = self.read();
        let slot = slots.get(model).ok_or_else(|| Refusal::unknown_model(model))?;
        let versions = slot.current.as_ref().map_or(&slot.versions, |is| &is.metadata.versions);
        let version = version.filter(|version| !version.is_empty());
        let at = match version {
            None => versions.len().checked_sub(1),
            Some(text) => {
                let number: u64 = text.parse().map_err(|_| Refusal::version_text(text))?;
                let at = versions.iter().position(|version| *version == number);
                Some(at.ok_or_else(|| Refusal::unknown_version(model, text))?)
            }
        };
        match (&slot.current, at, version) {
            (Some(entry), Some(at), _) => {
                Ok(ModelVersion { entry: entry.clone(), version: versions[at], at })
            }
            (_, _, Some(version)) => Err(Refusal::version_unready(model, version)),
            (_, _, None) => Err(Refusal::no_versions(model)),
        }
    }

    /// Begins a load. At most `most` names may have a model, or be about to have one.
    pub(crate) fn begin_load(&self, name: &str, most: usize) -> Result<(), Refusal> {
        let mut slots = self.write();
        if slots.get(name).is_some_and(|slot| slot.current.is_some()) {
            return Ok(());
        }
        let takes_part = |slot: &&Slot| slot.is_loading || slot.current.is_some();
        if slots.values().filter(takes_part).count() >= most {
            return Err(Refusal::too_many_models(most));
        }
        let new = || Slot::new(Threads::new(&self.shared_threads));
        slots.entry(name.to_owned()).or_insert_with(new).is_loading = true;
        Ok(())
    }

    /// Returns the threads for a model that is being loaded. Models that follow one another under a name share them, so loads
    /// do not add to the threads of a front.
    pub(crate) fn threads_of(&self, name: &str) -> Threads {
        let slots = self.read();
        slots
            .get(name)
            .map_or_else(|| Threads::new(&self.shared_threads), |slot| slot.threads.clone())
    }

    /// Ends a load: the model takes the place of the one before it.
    pub(crate) fn finish_load(&self, entry: ModelEntry) {
        let (name, entry) = (entry.metadata.name.clone(), Arc::new(entry));
        let mut slots = self.write();
        let new = || Slot::new(Threads::new(&self.shared_threads));
        let slot = slots.entry(name).or_insert_with(new);
        slot.is_loading = false;
        let before = slot.current.replace(entry);
        if let Some(before) = &before {
            before.model.retire();
        }
        // The model before may be dropped here, which runs code of the application.
        drop(slots);
        drop(before);
    }

    /// Ends a load without a model. A model that is loaded already stays.
    pub(crate) fn fail_load(&self, name: &str, reason: &str) {
        let mut slots = self.write();
        if let Some(slot) = slots.get_mut(name)
            && slot.current.is_none()
        {
            slot.is_loading = false;
            slot.reason = beginning(reason, MAX_REASON).to_owned();
        }
    }

    /// Takes the model of a name away. Returns whether there was one.
    pub(crate) fn unload(&self, name: &str) -> bool {
        let mut slots = self.write();
        let Some(slot) = slots.get_mut(name) else { return false };
        let taken = slot.current.take();
        if let Some(entry) = &taken {
            slot.versions.clone_from(&entry.metadata.versions);
            slot.reason = "unloaded".to_owned();
            slot.last = entry.model.retire();
        }
        drop(slots);
        taken.is_some()
    }

    /// Forgets a name that has no model, unless the application has added it.
    pub(crate) fn forget(&self, name: &str) {
        let mut slots = self.write();
        if slots.get(name).is_some_and(|slot| slot.current.is_none() && !slot.is_fixed) {
            slots.remove(name);
        }
    }
}

/// Returns the first bytes of a text, at most `most`, without half a letter.
fn beginning(text: &str, most: usize) -> &str {
    let end = (0..=text.len().min(most)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}
