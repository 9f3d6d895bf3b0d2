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
    /// Returns the model's description. The front asks for it once, when it is built or has loaded the model.
    fn metadata(&self) -> &ModelMetadata;

    /// Returns whether the model takes requests now.
    fn is_ready(&self) -> bool {
        true
    }

    /// Reads the inputs and writes the outputs, both row-major and little-endian.
    ///
    /// The inputs have the types and shapes of the metadata. A client can change bytes that lie in its region at any
    /// moment. The model must obtain every output that the client asks for.
    ///
    /// # Errors
    ///
    /// The error that the client receives. A panic fails the request alone.
    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError>;
}

impl<M: Model + ?Sized> Model for Box<M> {
    fn metadata(&self) -> &ModelMetadata {
        (**self).metadata()
    }

    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        (**self).infer(inputs, outputs)
    }
}

/// The future that an [`AsyncModel`] returns.
pub type Inferring<'a> = Pin<Box<dyn Future<Output = Result<(), ModelError>> + Send + 'a>>;

/// A model that waits for something else: a device, another server.
pub trait AsyncModel: Send + Sync + 'static {
    /// Returns the model's description, as [`Model::metadata`].
    fn metadata(&self) -> &ModelMetadata;

    /// Returns whether the model takes requests now.
    fn is_ready(&self) -> bool {
        true
    }

    /// Reads the inputs and writes the outputs, as [`Model::infer`], on a thread of the runtime that it must not
    /// block. The front drops the future when the client goes away.
    fn infer<'a>(&'a self, inputs: &'a Inputs, outputs: &'a mut Outputs) -> Inferring<'a>;
}
