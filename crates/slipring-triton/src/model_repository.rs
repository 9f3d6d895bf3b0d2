//! Where an application's models come from.

use std::sync::Arc;

use crate::load_parameters::LoadParameters;
use crate::model::{AsyncModel, DecoupledModel, Model};
use crate::model_error::ModelError;
use crate::repository::AnyModel;

/// A model that a [`ModelRepository`] has loaded.
pub struct LoadedModel(pub(crate) AnyModel);

impl LoadedModel {
    /// Returns a model that computes on the thread that calls it.
    pub fn model(model: impl Model) -> Self {
        Self(AnyModel::Blocking(Arc::new(model)))
    }

    /// Returns a model that waits for something else.
    pub fn async_model(model: impl AsyncModel) -> Self {
        Self(AnyModel::Async(Arc::new(model)))
    }

    /// Returns a model that answers a request with any number of responses.
    pub fn decoupled_model(model: impl DecoupledModel) -> Self {
        Self(AnyModel::Decoupled(Arc::new(model)))
    }
}

impl std::fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedModel").finish_non_exhaustive()
    }
}

/// The models that clients can load and unload while the server runs.
///
/// The front calls every method on a blocking thread of the runtime, so each may take seconds. Calls for one name come one
/// after another; calls for several names come at once.
///
/// # Examples
///
/// ```
/// # use slipring::DType;
/// # use slipring_triton::{Inputs, Model, ModelError, ModelMetadata, Outputs, TensorSpec};
/// use slipring_triton::{Front, LoadParameters, LoadedModel, ModelRepository};
///
/// # struct Copy(ModelMetadata);
/// # impl Copy {
/// #     fn new(name: &str) -> Self {
/// #         let tensor = |name| TensorSpec::new(name, DType::Fp32, [None]);
/// #         Self(ModelMetadata::new(name).input(tensor("X")).output(tensor("Y")))
/// #     }
/// # }
/// # impl Model for Copy {
/// #     fn metadata(&self) -> &ModelMetadata {
/// #         &self.0
/// #     }
/// #     fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
/// #         let x = inputs.input("X")?;
/// #         outputs.output("Y", *x.shape())?.copy_from(&x)
/// #     }
/// # }
/// /// Two models of the type `Copy`.
/// struct Copies;
///
/// impl ModelRepository for Copies {
///     fn index(&self) -> Vec<String> {
///         vec!["first".to_owned(), "second".to_owned()]
///     }
///
///     fn load(&self, name: &str, _: LoadParameters) -> Result<LoadedModel, ModelError> {
///         Ok(LoadedModel::model(Copy::new(name)))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let front = Front::builder().repository(Copies).build()?;
/// assert!(!front.is_model_ready("first", None));
/// // A client does the same by `POST /v2/repository/models/first/load`.
/// front.load_model("first", LoadParameters::new()).await?;
/// assert!(front.is_model_ready("first", None));
/// front.unload_model("first").await?;
/// assert!(!front.is_model_ready("first", None));
/// # Ok(())
/// # })
/// # }
/// ```
pub trait ModelRepository: Send + Sync + 'static {
    /// Returns the names of all models that can be loaded.
    fn index(&self) -> Vec<String>;

    /// Returns whether a model of this name can be loaded. A client has chosen the name.
    fn contains(&self, name: &str) -> bool {
        self.index().iter().any(|is| is == name)
    }

    /// Loads a model, whose metadata must have this name. If a model of the name is loaded already, it takes requests until
    /// the new one is returned.
    ///
    /// The front asks only for names that the repository [contains](Self::contains), except for a load with files
    /// ([`takes_files`](Self::takes_files)).
    ///
    /// # Errors
    ///
    /// The error that the client receives, and that the repository index tells. The model that is loaded already stays.
    /// After a panic the client receives an error without details.
    fn load(&self, name: &str, parameters: LoadParameters) -> Result<LoadedModel, ModelError>;

    /// Tells that a client has unloaded a model. New requests are refused. Executions that have begun may go on: the model
    /// is dropped with the last of them.
    fn unload(&self, name: &str) {
        let _ = name;
    }

    /// Returns whether [`load`](Self::load) takes files from clients. The default is `false`: the front refuses such a load.
    ///
    /// With `true` the front asks for any name that a client gives together with files.
    fn takes_files(&self) -> bool {
        false
    }
}
