//! Refusals of HTTP alone.

use crate::refusal::{Refusal, RefusalKind};

/// Refusals of bodies.
impl Refusal {
    pub(super) fn content_coding(name: &str) -> Self {
        let text = format!("Unsupported Content-Encoding: {name}");
        Self::new(RefusalKind::Unsupported, text)
    }

    pub(super) fn coded_body() -> Self {
        Self::invalid("failed to decompress the request")
    }

    pub(super) fn body_cut() -> Self {
        Self::invalid("the request's body has not come as a whole")
    }

    pub(super) fn body_late() -> Self {
        Self::invalid("the request's body has not come in time")
    }

    pub(super) fn body_too_long(most: u64) -> Self {
        Self::invalid(format!("request of more than {most} bytes"))
    }

    pub(super) fn json_too_long(most: usize) -> Self {
        Self::invalid(format!("request JSON of more than {most} bytes"))
    }

    pub(super) fn header_length_text(got: &str) -> Self {
        Self::invalid(format!("Unable to parse Inference-Header-Content-Length, got: {got}"))
    }

    pub(super) fn header_length_range(body: u64, got: &str) -> Self {
        Self::invalid(format!("inference header size should be in range (0, {body}), got: {got}"))
    }

    pub(super) fn input_short(input: &str, missing: usize, model: &str) -> Self {
        Self::invalid(format!(
            "unexpected size for input '{input}', expecting {missing} additional bytes for model '{model}'"
        ))
    }

    pub(super) fn body_long(model: &str) -> Self {
        Self::invalid(format!("unexpected additional input data for model '{model}'"))
    }
}

/// Refusals of a request's JSON.
impl Refusal {
    pub(super) fn parse(field: &str, inner: &Refusal) -> Self {
        Self::new(inner.kind(), format!("Unable to parse '{field}': {}", inner.text()))
    }

    pub(super) fn member_missing(field: &str) -> Self {
        Self::internal(format!("attempt to access non-existing object member '{field}'"))
    }

    pub(super) fn too_many(what: &str, most: usize) -> Self {
        Self::invalid(format!("more than {most} {what}"))
    }

    pub(super) fn data_sources(set: &[&str]) -> Self {
        let but = if set.is_empty() {
            "But no field is set".to_owned()
        } else {
            let set: Vec<String> = set.iter().map(|field| format!("'{field}'")).collect();
            format!("But set {}", set.join(" "))
        };
        Self::invalid(format!(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. {but}"
        ))
    }

    pub(super) fn output_places() -> Self {
        Self::invalid("Output can't set both 'shared_memory_region' and 'binary_data'")
    }

    pub(super) fn output_place_or_classes() -> Self {
        Self::invalid("Output can't set both 'shared_memory_region' and 'classification'")
    }

    pub(super) fn base64(field: &str) -> Self {
        Self::invalid(format!("Unable to parse '{field}': it is not base64"))
    }

    pub(super) fn unserved(extension: &str) -> Self {
        let text = format!("the {extension} extension is not served");
        Self::new(RefusalKind::Unsupported, text)
    }

    pub(super) fn parameter_type(name: &str) -> Self {
        Self::invalid(format!(
            "parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        ))
    }

    pub(super) fn json_input(dtype: &str, input: &str) -> Self {
        Self::invalid(format!(
            "receiving {dtype} data via JSON is not supported. Please use the binary data format for input {input}"
        ))
    }

    pub(super) fn json_output(dtype: &str, output: &str) -> Self {
        Self::invalid(format!(
            "sending {dtype} data via JSON is not supported. Please use the binary data format for output {output}"
        ))
    }

    pub(super) fn data_count() -> Self {
        Self::internal("Shape does not match true shape of 'data' field")
    }

    pub(super) fn data_range(dtype: &str) -> Self {
        Self::internal(format!("a number is out of the range of {dtype}"))
    }
}

/// Refusals of raw requests.
impl Refusal {
    pub(super) fn raw_inputs(inputs: usize, model: &str) -> Self {
        Self::invalid(format!(
            "Raw request must only have 1 input (found 1) to be deduced but got {inputs} inputs in '{model}' model configuration"
        ))
    }

    pub(super) fn raw_dimensions(input: &str) -> Self {
        Self::invalid(format!(
            "The shape of the raw input '{input}' can not be deduced because there are more than one variable-sized dimension"
        ))
    }

    pub(super) fn raw_bytes(input: &str) -> Self {
        Self::invalid(format!(
            "For BYTE datatype raw input '{input}', the model must have input shape [1]"
        ))
    }
}
