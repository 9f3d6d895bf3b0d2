//! Models whose outputs equal their inputs.

use std::thread;
use std::time::Duration;

use slipring::DType;
use slipring_triton::{Inputs, Model, ModelError, ModelMetadata, Outputs, TensorSpec};

/// Copies `INPUT0` to `OUTPUT0`, and so on.
pub struct Identity {
    metadata: ModelMetadata,
    /// The sleep before the model reads its inputs.
    sleep: Duration,
}

impl Identity {
    /// Returns a model of `count` tensors. `dims` excludes the batch of at most `batch`.
    pub fn new(
        name: &str,
        batch: usize,
        dtype: DType,
        dims: &[Option<usize>],
        count: usize,
    ) -> Self {
        let mut metadata = ModelMetadata::new(name).platform("slipring_identity");
        metadata = metadata.max_batch_size(batch).inline();
        for at in 0..count {
            let spec = |name| TensorSpec::new(name, dtype, dims.iter().copied());
            metadata = metadata.input(spec(format!("INPUT{at}")));
            metadata = metadata.output(spec(format!("OUTPUT{at}")));
        }
        Self { metadata, sleep: Duration::ZERO }
    }

    /// Returns a model that sleeps before it reads its input, on a blocking thread.
    pub fn slow(name: &str, dtype: DType, sleep: Duration) -> Self {
        let spec = |name| TensorSpec::new(name, dtype, [None]);
        let metadata = ModelMetadata::new(name).platform("slipring_identity").max_batch_size(8);
        Self { metadata: metadata.input(spec("INPUT0")).output(spec("OUTPUT0")), sleep }
    }
}

impl Model for Identity {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        if !self.sleep.is_zero() {
            thread::sleep(self.sleep);
        }
        for input in inputs.iter() {
            let name = input.name().replace("INPUT", "OUTPUT");
            if outputs.is_requested(&name) {
                let mut output = outputs.output_of_len(&name, *input.shape(), input.byte_len())?;
                output.copy_from(&input)?;
            }
        }
        Ok(())
    }
}
