//! The reference models as a repository from which clients load them.

use slipring::{DType, Shape};
use slipring_triton::{
    DecoupledModel, Inputs, LoadParameters, LoadedModel, Model, ModelError, ModelMetadata,
    ModelRepository, Outputs, TensorSpec,
};

use crate::models;

/// The file of a model that a client brings.
const FILE: &str = "1/constant.bin";

/// All reference models, and any model that comes with a file `1/constant.bin`.
pub struct Reference;

impl ModelRepository for Reference {
    fn index(&self) -> Vec<String> {
        let repeat = models::repeat();
        let mut names = vec![repeat.metadata().name().to_owned()];
        names.extend(models::all().iter().map(|model| model.metadata().name().to_owned()));
        names
    }

    fn load(&self, name: &str, parameters: LoadParameters) -> Result<LoadedModel, ModelError> {
        if let Some((_, bytes)) = parameters.files().find(|(path, _)| *path == FILE) {
            return Ok(LoadedModel::model(Constant::new(name, bytes)));
        }
        let repeat = models::repeat();
        if name == repeat.metadata().name() {
            return Ok(LoadedModel::decoupled_model(repeat));
        }
        let mut all = models::all().into_iter();
        let model = all.find(|model| model.metadata().name() == name);
        let model = model.ok_or_else(|| ModelError::invalid(format!("there is no file {FILE}")))?;
        Ok(match max_batch_size(&parameters)? {
            None => LoadedModel::model(model),
            Some(most) => {
                let metadata = model.metadata().clone().max_batch_size(most);
                LoadedModel::model(Overridden { metadata, model })
            }
        })
    }

    fn unload(&self, name: &str) {
        println!("unloaded {name}");
    }

    fn takes_files(&self) -> bool {
        true
    }
}

/// Returns the largest batch, if the configuration overrides it.
fn max_batch_size(parameters: &LoadParameters) -> Result<Option<usize>, ModelError> {
    let Some(config) = parameters.config() else { return Ok(None) };
    let config: serde_json::Value =
        serde_json::from_str(config).map_err(|error| ModelError::invalid(error.to_string()))?;
    let Some(most) = config.get("max_batch_size") else { return Ok(None) };
    let most = most.as_u64().and_then(|most| usize::try_from(most).ok());
    most.map(Some).ok_or_else(|| ModelError::invalid("max_batch_size is no number"))
}

/// A model with other metadata.
struct Overridden {
    metadata: ModelMetadata,
    model: Box<dyn Model>,
}

impl Model for Overridden {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        self.model.infer(inputs, outputs)
    }
}

/// `OUTPUT0` is the bytes of a file.
struct Constant {
    metadata: ModelMetadata,
    bytes: Vec<u8>,
}

impl Constant {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let output = TensorSpec::new("OUTPUT0", DType::Uint8, [None]);
        Self { metadata: ModelMetadata::new(name).output(output), bytes: bytes.to_vec() }
    }
}

impl Model for Constant {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, _: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        outputs.output("OUTPUT0", Shape::new(&[self.bytes.len()])?)?.write(&self.bytes)
    }
}
