//! The parts of the front that fuzz targets reach: echo models, and a region of a client.
//!
//! Requests run on the calling thread and end at once, since nothing makes them wait but the reader of a stream. For every input the targets
//! assert that nothing panics, that a client can read every response, and that the counted bytes match the memory in
//! use.

use std::sync::OnceLock;

use slipring::DType;
use slipring::region::PosixShm;

use crate::front::Front;
use crate::grpc::stream_fuzzing::Many;
use crate::limits::Limits;
use crate::metadata::{DTYPES, ModelMetadata, TensorSpec};
use crate::model::Model;
use crate::model_error::ModelError;
use crate::{Inputs, Outputs};

pub use crate::grpc::fuzzing::message;
pub use crate::grpc::stream_fuzzing::stream;
pub use crate::http::fuzzing::{body, head};

/// The limit on a request. It is low, so that an input can reach it.
const MAX_REQUEST: u64 = 64 << 10;

/// The length of the region `r` in bytes.
const REGION: usize = 4096;

/// A model whose outputs equal its inputs: `O` of `I`, `P` of `J`.
#[derive(Debug)]
pub(crate) struct Echo(pub(crate) ModelMetadata);

impl Echo {
    fn new(name: &str) -> Self {
        Self(ModelMetadata::new(name).inline())
    }

    fn with(self, names: [&str; 2], dtype: DType, dims: &[Option<usize>]) -> Self {
        let [input, output] = names.map(|name| TensorSpec::new(name, dtype, dims.iter().copied()));
        Self(self.0.input(input).output(output))
    }

    fn in_batches(self) -> Self {
        Self(self.0.max_batch_size(4))
    }
}

impl Model for Echo {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        for (input, output) in [("I", "O"), ("J", "P")] {
            if outputs.is_requested(output) {
                let input = inputs.input(input)?;
                let mut output = outputs.output_of_len(output, *input.shape(), input.byte_len())?;
                output.copy_from(&input)?;
            }
        }
        Ok(())
    }
}

/// Returns one model for each data type, with one free dimension; a model of two batched inputs; a model of one text.
pub(crate) fn models() -> Vec<Echo> {
    let of_a_type = |dtype: DType| Echo::new(dtype.name()).with(["I", "O"], dtype, &[None]);
    let pair = Echo::new("pair")
        .with(["I", "O"], DType::Int8, &[None, Some(2)])
        .with(["J", "P"], DType::Bytes, &[None])
        .in_batches();
    let text = Echo::new("text").with(["I", "O"], DType::Bytes, &[Some(1)]);
    DTYPES.into_iter().map(of_a_type).chain([pair, text]).collect()
}

/// Returns a front of these models. Its region `r` has the same content before every request.
pub(crate) fn front() -> &'static Front {
    static FRONT: OnceLock<(Front, PosixShm)> = OnceLock::new();
    let (front, object) = FRONT.get_or_init(|| {
        let limits = Limits::new().request_bytes(MAX_REQUEST).json_bytes(MAX_REQUEST as usize / 2);
        let builder = models().into_iter().fold(Front::builder(), |all, model| all.model(model));
        let builder = builder.decoupled_model(Many::new());
        let front = builder.limits(limits).build().unwrap();
        let key = format!("slipring-fuzz-{}", std::process::id());
        let object = PosixShm::create(&key, REGION as u64).unwrap();
        front.shared_memory().register_system("r", &key, 0, REGION as u64).unwrap();
        // The name is not needed any more, and a killed process would leave it behind.
        std::fs::remove_file(format!("/dev/shm/{key}")).unwrap();
        (front, object)
    });
    let bytes: [u8; REGION] = std::array::from_fn(|at| (at % 5) as u8);
    object.write_at(0, &bytes).unwrap();
    front
}

/// Runs a future that does not wait.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
