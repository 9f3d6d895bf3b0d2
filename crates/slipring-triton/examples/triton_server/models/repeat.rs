//! Repeats the elements of its input, one response each.

use std::thread;
use std::time::Duration;

use slipring::DType;
use slipring_triton::{DecoupledModel, Inputs, ModelError, ModelMetadata, Responses, TensorSpec};

/// The sleep that is cut into pieces, so that the model notices early that its client has gone.
const NAP: Duration = Duration::from_millis(20);

/// For each element of `IN`: sleeps `DELAY` milliseconds, then sends the element as `OUT` and its index as `IDX`.
///
/// `WAIT` is for how many milliseconds the reference model holds its instance. Here each request has one to itself, so
/// the model ignores the value.
pub struct Repeat(ModelMetadata);

impl Repeat {
    pub fn new(name: &str) -> Self {
        let metadata = ModelMetadata::new(name)
            .platform("slipring_repeat")
            .input(TensorSpec::new("IN", DType::Int32, [None]))
            .input(TensorSpec::new("DELAY", DType::Uint32, [None]))
            .input(TensorSpec::new("WAIT", DType::Uint32, [Some(1)]))
            .output(TensorSpec::new("OUT", DType::Int32, [Some(1)]))
            .output(TensorSpec::new("IDX", DType::Uint32, [Some(1)]));
        Self(metadata)
    }
}

impl DecoupledModel for Repeat {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: Inputs, responses: Responses) -> Result<(), ModelError> {
        let elements = inputs.input("IN")?.elements::<i32>()?.into_owned();
        let delays = inputs.input("DELAY")?.elements::<u32>()?.into_owned();
        if elements.len() != delays.len() {
            let (is, wanted) = (delays.len(), elements.len());
            let text =
                format!("expected IN and DELAY shape to match, got {is} delays for {wanted}");
            return Err(ModelError::invalid(text));
        }
        // The request's bytes are not needed any more.
        drop(inputs);
        for (at, (element, delay)) in elements.into_iter().zip(delays).enumerate() {
            let mut left = Duration::from_millis(delay.into());
            while !left.is_zero() && !responses.is_cancelled() {
                thread::sleep(left.min(NAP));
                left = left.saturating_sub(NAP);
            }
            let mut outputs = responses.outputs();
            if outputs.is_requested("OUT") {
                outputs.output("OUT", [1])?.write(&[element])?;
            }
            if outputs.is_requested("IDX") {
                outputs.output("IDX", [1])?.write(&[at as u32])?;
            }
            responses.blocking_send(outputs)?;
        }
        Ok(())
    }
}
