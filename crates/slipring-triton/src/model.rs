//! What a server serves.

use std::future::Future;
use std::pin::Pin;

use crate::inputs::Inputs;
use crate::metadata::ModelMetadata;
use crate::model_error::ModelError;
use crate::outputs::Outputs;
use crate::responses::Responses;

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
    /// block. The front drops the future when the client goes away. At most [`instances`](ModelMetadata::instances) futures
    /// exist at once, and [`max_queue_size`](ModelMetadata::max_queue_size) further requests wait.
    fn infer<'a>(&'a self, inputs: &'a Inputs, outputs: &'a mut Outputs) -> Inferring<'a>;
}

/// A model that answers a request with none, one or many responses, each as soon as it has it.
///
/// Clients reach it over the streams of gRPC alone (`ModelStreamInfer`). ModelInfer and HTTP refuse it.
///
/// # Examples
///
/// ```
/// use slipring::DType;
/// use slipring_triton::{DecoupledModel, Front, Inputs, ModelError, ModelMetadata, Responses, TensorSpec};
///
/// /// Counts from 0 to `N`, one response each.
/// struct Count(ModelMetadata);
///
/// impl DecoupledModel for Count {
///     fn metadata(&self) -> &ModelMetadata {
///         &self.0
///     }
///
///     fn infer(&self, inputs: Inputs, responses: Responses) -> Result<(), ModelError> {
///         let n = inputs.input("N")?.elements::<u32>()?[0];
///         for number in 0..n {
///             let mut outputs = responses.outputs();
///             outputs.output("NUMBER", [1])?.write(&[number])?;
///             // Waits while the client does not read. An error: the client has gone.
///             responses.blocking_send(outputs)?;
///         }
///         Ok(())
///     }
/// }
///
/// # fn main() -> Result<(), slipring_triton::BuildError> {
/// let tensor = |name| TensorSpec::new(name, DType::Uint32, [Some(1)]);
/// let metadata = ModelMetadata::new("count").input(tensor("N")).output(tensor("NUMBER"));
/// let front = Front::builder().decoupled_model(Count(metadata)).build()?;
/// assert!(front.model_config("count", None).unwrap().decoupled);
/// # Ok(())
/// # }
/// ```
pub trait DecoupledModel: Send + Sync + 'static {
    /// Returns the model's description, as [`Model::metadata`].
    fn metadata(&self) -> &ModelMetadata;

    /// Returns whether the model takes requests now.
    fn is_ready(&self) -> bool {
        true
    }

    /// Reads the inputs and sends the responses, on a blocking thread of the runtime.
    ///
    /// The model may send from here, or hand `responses` to another thread or task and return. The request ends once
    /// this method has returned and `responses` is dropped; until then it occupies one of the model's
    /// [`instances`](ModelMetadata::instances). A client that reads nothing holds up a request with many responses for
    /// [`Limits::stall_timeout`](crate::Limits::stall_timeout); then sending fails.
    ///
    /// An [`inline`](ModelMetadata::inline) model runs on a thread of the runtime if the request is small, and must then neither
    /// wait nor call [`Responses::blocking_send`] in here.
    ///
    /// # Errors
    ///
    /// The error that the client receives after the responses. A panic fails the request alone.
    fn infer(&self, inputs: Inputs, responses: Responses) -> Result<(), ModelError>;
}
