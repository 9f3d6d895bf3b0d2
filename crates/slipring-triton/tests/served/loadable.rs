//! A repository of models that are counted.

// Each test binary uses a part of this module.
#![allow(dead_code)]

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use slipring::{DType, Shape};
use slipring_triton::{
    FrontBuilder, Inputs, LoadParameters, LoadedModel, Model, ModelError, ModelMetadata,
    ModelRepository, Outputs, TensorSpec,
};

use crate::support::HANG;

/// Reports that somebody has come to a point, and lets it go on with a permit.
#[derive(Clone)]
pub struct Barrier {
    reached: Arc<Mutex<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
    hears: Arc<Mutex<mpsc::Receiver<()>>>,
    go: mpsc::Sender<()>,
}

impl Barrier {
    fn new() -> Self {
        let ((reached, hears), (go, told)) = (mpsc::channel(), mpsc::channel());
        let reached = Arc::new(Mutex::new((reached, told)));
        Self { reached, hears: Arc::new(Mutex::new(hears)), go }
    }

    fn wait(&self) {
        let held = self.reached.lock().unwrap();
        held.0.send(()).unwrap();
        held.1.recv_timeout(HANG).unwrap();
    }

    /// Waits until somebody has come.
    pub fn is_reached(&self) {
        self.hears.lock().unwrap().recv_timeout(HANG).unwrap();
    }

    pub fn let_go(&self) {
        self.go.send(()).unwrap();
    }
}

/// The counts of a repository. Clones share them.
#[derive(Clone)]
pub struct LoadCounts {
    /// The models that are not dropped.
    pub live: Arc<AtomicUsize>,
    /// The loads that have begun.
    pub loads: Arc<AtomicI64>,
    /// The names of unloaded models.
    pub unloaded: Arc<Mutex<Vec<String>>>,
    /// The loads of "slow".
    pub load: Barrier,
    /// The executions whose input begins with 255.
    pub execution: Barrier,
}

impl LoadCounts {
    pub fn new() -> Self {
        Self {
            live: Arc::default(),
            loads: Arc::default(),
            unloaded: Arc::default(),
            load: Barrier::new(),
            execution: Barrier::new(),
        }
    }

    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    pub fn loads(&self) -> i64 {
        self.loads.load(Ordering::SeqCst)
    }

    /// Adds the repository to a front.
    pub fn add(&self, builder: FrontBuilder) -> FrontBuilder {
        builder.repository(Loadable { counts: self.clone(), takes_files: true })
    }
}

/// The repository of "a", "b", "two" (of versions 1 and 3), "slow", and of "bad", "busy", "panics" and "other", which cannot be loaded.
pub struct Loadable {
    pub counts: LoadCounts,
    pub takes_files: bool,
}

pub const NAMES: [&str; 8] = ["a", "b", "bad", "busy", "other", "panics", "slow", "two"];

impl ModelRepository for Loadable {
    fn index(&self) -> Vec<String> {
        NAMES.map(str::to_owned).to_vec()
    }

    fn load(&self, name: &str, parameters: LoadParameters) -> Result<LoadedModel, ModelError> {
        let number = self.counts.loads.fetch_add(1, Ordering::SeqCst) + 1;
        if parameters.config().is_some_and(|config| config.contains("wrong")) {
            return Err(ModelError::invalid("the config is wrong"));
        }
        match name {
            "bad" => return Err(ModelError::new("its file is broken")),
            "busy" => return Err(ModelError::unavailable("the device is busy")),
            "panics" => panic!("the repository panics"),
            "slow" => self.counts.load.wait(),
            _ => {}
        }
        let name = if name == "other" { "a" } else { name };
        Ok(LoadedModel::model(Counted::new(name, number, &parameters, &self.counts)))
    }

    fn unload(&self, name: &str) {
        self.counts.unloaded.lock().unwrap().push(name.to_owned());
    }

    fn takes_files(&self) -> bool {
        self.takes_files
    }
}

/// `OUT` = `IN`, bytes; `NUMBER` is the number of the load; `GIVEN` has its configuration and its files.
pub struct Counted {
    metadata: ModelMetadata,
    number: i64,
    given: Vec<Vec<u8>>,
    counts: LoadCounts,
}

impl Counted {
    pub fn new(name: &str, number: i64, parameters: &LoadParameters, counts: &LoadCounts) -> Self {
        let spec = |name, dtype| TensorSpec::new(name, dtype, [None]);
        let metadata = ModelMetadata::new(name)
            .versions(if name == "two" { vec![1, 3] } else { vec![1] })
            .input(spec("IN", DType::Uint8))
            .output(spec("OUT", DType::Uint8))
            .output(spec("NUMBER", DType::Int64))
            .output(spec("GIVEN", DType::Bytes));
        let config = parameters.config().unwrap_or_default().as_bytes().to_vec();
        let files = parameters.files();
        let files = files.map(|(path, bytes)| [path.as_bytes(), b"=", bytes].concat());
        let given = std::iter::once(config).chain(files).collect();
        counts.live.fetch_add(1, Ordering::SeqCst);
        Self { metadata, number, given, counts: counts.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.live.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Model for Counted {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        let input = inputs.input("IN")?;
        if input.bytes()?.first() == Some(&255) {
            self.counts.execution.wait();
        }
        if outputs.is_requested("OUT") {
            outputs.output("OUT", *input.shape())?.copy_from(&input)?;
        }
        if outputs.is_requested("NUMBER") {
            outputs.output("NUMBER", Shape::new(&[1])?)?.write(&[self.number])?;
        }
        if outputs.is_requested("GIVEN") {
            outputs.write_strings("GIVEN", Shape::new(&[self.given.len()])?, &self.given)?;
        }
        Ok(())
    }
}
