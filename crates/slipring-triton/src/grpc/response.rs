//! Converts responses and descriptions of the front to protobuf messages.

use slipring::DType;

use crate::description::{IndexEntry, ModelDescription, ModelStatistics};
use crate::grpc::generated::inference as proto;
use crate::grpc::generated::inference::model_infer_response::InferOutputTensor;
use crate::grpc::generated::inference::model_metadata_response::TensorMetadata;
use crate::grpc::generated::inference::model_version_policy::{All, Latest, PolicyChoice};
use crate::grpc::generated::inference::repository_index_response::ModelIndex;
use crate::request::InferResponse;
use crate::statistics::Tally;

/// Converts a response. Clients match raw contents by position, so an output in shared memory has empty ones.
pub(super) fn infer(response: InferResponse) -> proto::ModelInferResponse {
    let InferResponse { model, version, id, outputs } = response;
    let mut tensors = Vec::with_capacity(outputs.len());
    let mut raw = Vec::with_capacity(outputs.len());
    for output in outputs {
        raw.push(output.data.unwrap_or_default());
        tensors.push(InferOutputTensor {
            name: output.name,
            datatype: output.dtype.name().to_owned(),
            shape: output.shape.dims().iter().map(|dim| *dim as i64).collect(),
            ..Default::default()
        });
    }
    proto::ModelInferResponse {
        model_name: model,
        model_version: version,
        id: id.unwrap_or_default(),
        outputs: tensors,
        raw_output_contents: raw,
        ..Default::default()
    }
}

pub(super) fn metadata(model: ModelDescription) -> proto::ModelMetadataResponse {
    let tensors = |tensors: Vec<crate::TensorDescription>| {
        let metadata = tensors.into_iter().map(|tensor| TensorMetadata {
            name: tensor.name,
            datatype: tensor.dtype.name().to_owned(),
            shape: tensor.dims,
        });
        metadata.collect()
    };
    proto::ModelMetadataResponse {
        name: model.name,
        versions: model.versions,
        platform: model.platform,
        inputs: tensors(model.inputs),
        outputs: tensors(model.outputs),
    }
}

pub(super) fn config(model: ModelDescription) -> proto::ModelConfigResponse {
    let input = model.inputs.into_iter().map(|tensor| proto::ModelInput {
        name: tensor.name,
        data_type: data_type(tensor.dtype),
        dims: tensor.dims,
    });
    let output = model.outputs.into_iter().map(|tensor| proto::ModelOutput {
        name: tensor.name,
        data_type: data_type(tensor.dtype),
        dims: tensor.dims,
    });
    let policy = match model.versions.len() {
        1 => PolicyChoice::Latest(Latest { num_versions: 1 }),
        _ => PolicyChoice::All(All {}),
    };
    let config = proto::ModelConfig {
        name: model.name,
        backend: ModelDescription::BACKEND.to_owned(),
        platform: model.platform,
        version_policy: Some(proto::ModelVersionPolicy { policy_choice: Some(policy) }),
        max_batch_size: i32::try_from(model.max_batch_size).unwrap_or(i32::MAX),
        input: input.collect(),
        output: output.collect(),
        model_transaction_policy: Some(proto::ModelTransactionPolicy {
            decoupled: model.decoupled,
        }),
    };
    proto::ModelConfigResponse { config: Some(config) }
}

/// The protocol numbers data types as slipring's descriptors do.
fn data_type(dtype: DType) -> i32 {
    dtype.code().into()
}

pub(super) fn statistics(all: Vec<ModelStatistics>) -> proto::ModelStatisticsResponse {
    let model_stats = all.into_iter().map(|model| {
        let counts = model.counts;
        let batch =
            |(size, batch): (&usize, &crate::BatchStatistics)| proto::InferBatchStatistics {
                batch_size: *size as u64,
                compute_input: duration(batch.compute_input),
                compute_infer: duration(batch.compute_infer),
                compute_output: duration(batch.compute_output),
            };
        proto::ModelStatistics {
            name: model.name,
            version: model.version,
            last_inference: counts.last_inference,
            inference_count: counts.inference_count,
            execution_count: counts.execution_count,
            inference_stats: Some(proto::InferStatistics {
                success: duration(counts.success),
                fail: duration(counts.fail),
                queue: duration(counts.queue),
                compute_input: duration(counts.compute_input),
                compute_infer: duration(counts.compute_infer),
                compute_output: duration(counts.compute_output),
                cache_hit: duration(Tally::default()),
                cache_miss: duration(Tally::default()),
            }),
            batch_stats: counts.batches.iter().map(batch).collect(),
        }
    });
    proto::ModelStatisticsResponse { model_stats: model_stats.collect() }
}

fn duration(tally: Tally) -> Option<proto::StatisticDuration> {
    Some(proto::StatisticDuration { count: tally.count, ns: tally.ns })
}

pub(super) fn index(entries: Vec<IndexEntry>) -> proto::RepositoryIndexResponse {
    let models = entries.into_iter().map(|entry| ModelIndex {
        state: entry.state.name().to_owned(),
        name: entry.name,
        version: entry.version,
        reason: entry.reason,
    });
    proto::RepositoryIndexResponse { models: models.collect() }
}
