//! What a server serves.

use std::future::Future;
use std::pin::Pin;

use crate::inputs::Inputs;
use crate::metadata::ModelMetadata;
use crate::model_error::ModelError;
use crate::outputs::Outputs;

/// A model that computes on the thread that calls it.
///
/// # Examples
///
/// ```
/// use slipring::DType;
/// use slipring_triton::{Inputs, Model, ModelError, ModelMetadata, Outputs, TensorSpec};
///
/// /// `Y` = 2 · `X`, both f32 of one free dimension.
/// struct Double(ModelMetadata);
///
/// impl Double {
///     fn new() -> Self {
///         let metadata = ModelMetadata::new("double")
///             .input(TensorSpec::new("X", DType::Fp32, [None]))
///             .output(TensorSpec::new("Y", DType::Fp32, [None]));
///         Self(metadata)
///     }
/// }
///
/// impl Model for Double {
///     fn metadata(&self) -> &ModelMetadata {
///         &self.0
///     }
///
///     fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
///         let x = inputs.input("X")?;
///         let doubled: Vec<f32> = x.elements::<f32>()?.iter().map(|value| 2.0 * value).collect();
///         outputs.output("Y", *x.shape())?.write(&doubled)
///     }
/// }
/// ```
pub trait Model: Send + Sync + 'static {
    /// What it is called, takes and gives. Asked for once, when a server is built.
    fn metadata(&self) -> &ModelMetadata;

    /// Whether it takes requests now.
    fn is_ready(&self) -> bool {
        true
    }

    /// Reads inputs and writes outputs, which are row-major and little-endian.
    ///
    /// All inputs of the metadata are there, of its data types and shapes; but bytes that lie in a region are the
    /// client's, who may change them at any moment. Every output that was asked for must be obtained.
    ///
    /// # Errors
    ///
    /// Whatever the client shall be told. A panic ends the request, and nothing else.
    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError>;
}

/// What an [`AsyncModel`] answers with.
pub type Inferring<'a> = Pin<Box<dyn Future<Output = Result<(), ModelError>> + Send + 'a>>;

/// A model that waits for something else: a device, another server.
pub trait AsyncModel: Send + Sync + 'static {
    /// As [`Model::metadata`].
    fn metadata(&self) -> &ModelMetadata;

    /// As [`Model::is_ready`].
    fn is_ready(&self) -> bool {
        true
    }

    /// As [`Model::infer`], on a thread of the runtime, which it must not hold up. It is dropped where the client
    /// goes run_blocking.
    fn infer<'a>(&'a self, inputs: &'a Inputs, outputs: &'a mut Outputs) -> Inferring<'a>;
}
