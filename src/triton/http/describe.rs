//! What the server and its models are, as JSON.

use std::fmt::Write;

use crate::triton::description::{
    IndexEntry, ModelDescription, ModelStatistics, ServerDescription, TensorDescription,
};
use crate::triton::json;
use crate::triton::statistics::Tally;

/// JSON that is put together.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn raw(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self
    }

    fn string(&mut self, text: &str) -> &mut Self {
        json::string(&mut self.0, text);
        self
    }

    fn number(&mut self, number: impl std::fmt::Display) -> &mut Self {
        let _ = write!(self.0, "{number}");
        self
    }

    fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        self.raw("[");
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.raw(",");
            }
            each(self, item);
        }
        self.raw("]");
    }

    fn tally(&mut self, name: &str, tally: Tally) -> &mut Self {
        self.string(name).raw(":{\"count\":").number(tally.count);
        self.raw(",\"ns\":").number(tally.ns).raw("}")
    }
}

pub(super) fn server(server: &ServerDescription) -> String {
    let mut text = Text::default();
    text.raw("{\"name\":").string(&server.name).raw(",\"version\":").string(&server.version);
    text.raw(",\"extensions\":").list(&server.extensions, |text, name| {
        text.string(name);
    });
    text.raw("}");
    text.0
}

fn dims(text: &mut Text, dims: &[i64]) {
    text.list(dims, |text, dim| {
        text.number(dim);
    });
}

pub(super) fn metadata(model: &ModelDescription) -> String {
    let mut text = Text::default();
    text.raw("{\"name\":").string(&model.name).raw(",\"versions\":");
    text.list(&model.versions, |text, version| {
        text.string(version);
    });
    text.raw(",\"platform\":").string(&model.platform);
    for (name, tensors) in [("inputs", &model.inputs), ("outputs", &model.outputs)] {
        text.raw(",").string(name).raw(":").list(tensors, |text, tensor| {
            text.raw("{\"name\":").string(&tensor.name);
            text.raw(",\"datatype\":").string(tensor.dtype.name()).raw(",\"shape\":");
            dims(text, &tensor.dims);
            text.raw("}");
        });
    }
    text.raw("}");
    text.0
}

pub(super) fn config(model: &ModelDescription) -> String {
    let mut text = Text::default();
    text.raw("{\"name\":").string(&model.name);
    text.raw(",\"platform\":").string(&model.platform).raw(",\"backend\":\"slipring\"");
    let newest: Vec<&String> = model.versions.iter().rev().take(1).collect();
    let all = newest.len() == model.versions.len();
    text.raw(",\"version_policy\":");
    if all {
        text.raw("{\"latest\":{\"num_versions\":1}}");
    } else {
        text.raw("{\"all\":{}}");
    }
    text.raw(",\"max_batch_size\":").number(model.max_batch_size);
    for (name, tensors) in [("input", &model.inputs), ("output", &model.outputs)] {
        text.raw(",").string(name).raw(":").list(tensors, tensor);
    }
    text.raw(",\"instance_group\":[],\"optimization\":{},\"parameters\":{}}");
    text.0
}

fn tensor(text: &mut Text, tensor: &TensorDescription) {
    text.raw("{\"name\":").string(&tensor.name).raw(",\"data_type\":");
    text.string(tensor.config_type()).raw(",\"dims\":");
    dims(text, &tensor.dims);
    text.raw("}");
}

pub(super) fn statistics(models: &[ModelStatistics]) -> String {
    let mut text = Text::default();
    text.raw("{\"model_stats\":").list(models, |text, model| {
        let counts = &model.counts;
        text.raw("{\"name\":").string(&model.name).raw(",\"version\":").string(&model.version);
        text.raw(",\"last_inference\":").number(counts.last_inference);
        text.raw(",\"inference_count\":").number(counts.inference_count);
        text.raw(",\"execution_count\":").number(counts.execution_count);
        text.raw(",\"inference_stats\":{").tally("success", counts.success);
        text.raw(",").tally("fail", counts.fail).raw(",").tally("queue", counts.queue);
        text.raw(",").tally("compute_input", counts.compute_input);
        text.raw(",").tally("compute_infer", counts.compute_infer);
        text.raw(",").tally("compute_output", counts.compute_output);
        text.raw(",").tally("cache_hit", Tally::default());
        text.raw(",").tally("cache_miss", Tally::default());
        text.raw("},\"batch_stats\":").list(&counts.batches, |text, (size, batch)| {
            text.raw("{\"batch_size\":").number(size);
            text.raw(",").tally("compute_input", batch.compute_input);
            text.raw(",").tally("compute_infer", batch.compute_infer);
            text.raw(",").tally("compute_output", batch.compute_output).raw("}");
        });
        text.raw(",\"memory_usage\":[]}");
    });
    text.raw("}");
    text.0
}

pub(super) fn index(entries: &[IndexEntry]) -> String {
    let mut text = Text::default();
    text.list(entries, |text, entry| {
        text.raw("{\"name\":").string(&entry.name).raw(",\"version\":").string(&entry.version);
        text.raw(",\"state\":").string(entry.state()).raw(",\"reason\":\"\"}");
    });
    text.0
}
