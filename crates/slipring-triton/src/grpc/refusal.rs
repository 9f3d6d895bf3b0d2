//! Refusals of gRPC alone, and the conversion of a refusal to a status.

use tonic::{Code, Status};

use crate::refusal::Refusal;

/// The longest text of a status in bytes. Clients accept 8 KiB of headers, and a byte may take three there.
const MAX_TEXT: usize = 2048;

impl Refusal {
    pub(super) fn parameter_unlike(parameter: &str, tensor: &str, expected: &str) -> Self {
        Self::invalid(format!(
            "invalid value type for '{parameter}' parameter for tensor '{tensor}', expected {expected}."
        ))
    }

    pub(super) fn empty_final(parameter: &str) -> Self {
        Self::invalid(format!(
            "invalid value type for '{parameter}' parameter, expected bool_param."
        ))
    }

    pub(super) fn classification_parameter() -> Self {
        Self::invalid("invalid value type for 'classification' parameter, expected int64_param")
    }

    pub(super) fn classification_count() -> Self {
        Self::invalid("invalid value for 'classification' parameter, expected >= 0")
    }

    pub(super) fn load_parameter_unlike(parameter: &str, expected: &str) -> Self {
        Self::invalid(format!(
            "invalid value type for load parameter '{parameter}', expected {expected}."
        ))
    }

    pub(super) fn unload_dependents() -> Self {
        Self::invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    }

    pub(super) fn contents_and_region(input: &str, model: &str) -> Self {
        Self::invalid(format!(
            "unexpected 'content' provided when using shared memory for input tensor '{input}' for model '{model}'"
        ))
    }

    pub(super) fn contents_and_raw(input: &str, model: &str) -> Self {
        Self::invalid(format!(
            "contents field must not be specified when using raw_input_contents for '{input}' for model '{model}'"
        ))
    }

    pub(super) fn no_data(input: &str, model: &str) -> Self {
        Self::invalid(format!(
            "unable to find data for input tensor '{input}' for model '{model}' in request."
        ))
    }

    pub(super) fn raw_count(used: usize, got: usize, model: &str) -> Self {
        Self::invalid(format!(
            "expected {used} raw_input_contents but got {got} for model '{model}'"
        ))
    }

    pub(super) fn contents_type(input: &str, datatype: &str) -> Self {
        Self::invalid(format!("contents of input '{input}' are not those of datatype '{datatype}'"))
    }

    pub(super) fn contents_unknown(input: &str, datatype: &str) -> Self {
        Self::invalid(format!(
            "contents can not hold datatype '{datatype}' of input '{input}', use raw_input_contents"
        ))
    }

    pub(super) fn contents_range(input: &str, datatype: &str) -> Self {
        Self::invalid(format!("contents of input '{input}' do not fit into datatype '{datatype}'"))
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.text();
        let ends = |at: &usize| text.is_char_boundary(*at);
        let end = (0..=text.len().min(MAX_TEXT)).rev().find(ends).unwrap_or(0);
        Self::new(Code::from_i32(refusal.kind().grpc_code()), &text[..end])
    }
}
