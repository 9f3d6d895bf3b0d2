//! The highest elements of an output, over gRPC.

use slipring::DType;
use slipring_triton::{Front, Inputs, Model, ModelError, ModelMetadata, Outputs, TensorSpec};
use tonic::Code;

use crate::grpc_served::{Served, identity, input, int, is_refused, output, request, text, window};
use crate::http_served::ints;

const CLASSIFICATION: &str = "classification";

/// Scores of three fruits, in a model without batches.
struct Fruits(ModelMetadata);

impl Fruits {
    fn new() -> Self {
        let scores = |name| TensorSpec::new(name, DType::Fp64, [Some(3)]);
        let labelled = scores("SCORES").labels(["apple", "pear"]);
        Self(ModelMetadata::new("fruits").input(scores("X")).output(labelled))
    }
}

impl Model for Fruits {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        let x = inputs.input("X")?;
        outputs.output("SCORES", *x.shape())?.copy_from(&x)
    }
}

#[test]
fn classes_have_the_labels_of_their_output() {
    let served = Served::of(Front::builder().model(Fruits::new()).build().unwrap());
    let scores: Vec<u8> =
        [0.25f64, 0.75, 0.5].iter().flat_map(|score| score.to_le_bytes()).collect();
    let mut asked = request("fruits", vec![input("X", "FP64", &[3])], &[&scores]);
    asked.outputs = vec![output("SCORES")];
    asked.outputs[0].parameters.insert(CLASSIFICATION.to_owned(), int(i64::MAX));
    let answer = served.infer(asked).unwrap();
    let found = &answer.outputs[0];
    assert_eq!((&*found.datatype, &*found.shape), ("BYTES", &[3][..]));
    let wanted = ["0.750000:1:pear", "0.500000:2", "0.250000:0:apple"];
    let wanted =
        wanted.map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat());
    assert_eq!(answer.raw_output_contents, [wanted.concat()]);
}

#[test]
fn wrong_classifications_are_refused() {
    let served = Served::new();
    served.region("r", 64);
    for (parameter, wanted) in [
        (text("1"), "invalid value type for 'classification' parameter, expected int64_param"),
        (int(0), "invalid value for 'classification' parameter, expected >= 0"),
        (int(-1), "invalid value for 'classification' parameter, expected >= 0"),
    ] {
        let mut asked = identity(&ints(0..16));
        asked.outputs = vec![output("OUTPUT0")];
        asked.outputs[0].parameters.insert(CLASSIFICATION.to_owned(), parameter);
        is_refused(served.infer(asked), Code::InvalidArgument, wanted);
    }
    let mut asked = identity(&ints(0..16));
    asked.outputs = vec![output("OUTPUT0")];
    asked.outputs[0].parameters = window("r", 0, 64);
    asked.outputs[0].parameters.insert(CLASSIFICATION.to_owned(), int(1));
    let wanted = "output can't set both 'shared_memory_region' and 'classification'";
    is_refused(served.infer(asked), Code::InvalidArgument, wanted);
}
