//! Descriptions of the server and its models, as JSON.

use serde_json::{Value, json};

use crate::description::{
    IndexEntry, ModelDescription, ModelStatistics, ServerDescription, TensorDescription,
};
use crate::statistics::Tally;

pub(super) fn server(server: &ServerDescription) -> Value {
    json!({ "name": server.name, "version": server.version, "extensions": server.extensions })
}

fn all<'a, T: 'a>(items: impl IntoIterator<Item = &'a T>, each: impl Fn(&'a T) -> Value) -> Value {
    items.into_iter().map(each).collect()
}

pub(super) fn metadata(model: &ModelDescription) -> Value {
    let tensor = |tensor: &TensorDescription| json!({ "name": tensor.name, "datatype": tensor.dtype.name(), "shape": tensor.dims });
    json!({
        "name": model.name,
        "versions": model.versions,
        "platform": model.platform,
        "inputs": all(&model.inputs, tensor),
        "outputs": all(&model.outputs, tensor),
    })
}

pub(super) fn config(model: &ModelDescription) -> Value {
    let tensor = |tensor: &TensorDescription| json!({ "name": tensor.name, "data_type": tensor.config_type(), "dims": tensor.dims });
    let policy = match model.versions.len() {
        0 | 1 => json!({ "latest": { "num_versions": 1 } }),
        _ => json!({ "all": {} }),
    };
    json!({
        "name": model.name,
        "platform": model.platform,
        "backend": ModelDescription::BACKEND,
        "version_policy": policy,
        "max_batch_size": model.max_batch_size,
        "input": all(&model.inputs, tensor),
        "output": all(&model.outputs, tensor),
        "model_transaction_policy": { "decoupled": model.decoupled },
        "instance_group": [],
        "optimization": {},
        "parameters": {},
    })
}

fn tally(tally: Tally) -> Value {
    json!({ "count": tally.count, "ns": tally.ns })
}

pub(super) fn statistics(models: &[ModelStatistics]) -> Value {
    let model = |model: &ModelStatistics| {
        let counts = &model.counts;
        let batches = counts.batches.iter().map(|(size, batch)| {
            json!({
                "batch_size": size,
                "compute_input": tally(batch.compute_input),
                "compute_infer": tally(batch.compute_infer),
                "compute_output": tally(batch.compute_output),
            })
        });
        json!({
            "name": model.name,
            "version": model.version,
            "last_inference": counts.last_inference,
            "inference_count": counts.inference_count,
            "execution_count": counts.execution_count,
            "inference_stats": {
                "success": tally(counts.success),
                "fail": tally(counts.fail),
                "queue": tally(counts.queue),
                "compute_input": tally(counts.compute_input),
                "compute_infer": tally(counts.compute_infer),
                "compute_output": tally(counts.compute_output),
                "cache_hit": tally(Tally::default()),
                "cache_miss": tally(Tally::default()),
            },
            "batch_stats": batches.collect::<Value>(),
            "memory_usage": [],
        })
    };
    json!({ "model_stats": all(models, model) })
}

pub(super) fn index(entries: &[IndexEntry]) -> Value {
    all(entries, |entry| {
        let mut row = json!({
            "name": entry.name,
            "state": entry.state.name(),
            "reason": entry.reason,
        });
        if !entry.version.is_empty() {
            row["version"] = json!(entry.version);
        }
        row
    })
}
