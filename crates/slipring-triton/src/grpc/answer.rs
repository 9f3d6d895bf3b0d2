//! An answer to a request of a stream.

use tonic::Status;

use crate::budget::Charge;
use crate::grpc::generated::inference::infer_parameter::ParameterChoice;
use crate::grpc::generated::inference::{
    InferParameter, ModelInferResponse, ModelStreamInferResponse,
};
use crate::refusal::Refusal;

/// The parameter of a response that tells whether it is the last one to its request.
const FINAL_RESPONSE: &str = "triton_final_response";

/// A response, or the refusal of a request.
pub(super) struct Answer {
    response: ModelInferResponse,
    refusal: Option<Refusal>,
    /// The charge for the response's bytes, if it has one of its own.
    charge: Option<Charge>,
}

impl Answer {
    /// Returns a response, marked as the last one to its request or as not the last one.
    pub(super) fn response(mut response: ModelInferResponse, is_last: bool) -> Self {
        let parameter_choice = Some(ParameterChoice::BoolParam(is_last));
        response.parameters.insert(FINAL_RESPONSE.to_owned(), InferParameter { parameter_choice });
        Self { response, refusal: None, charge: None }
    }

    /// Returns a refusal. The client matches it to its request by the id.
    pub(super) fn refusal(id: String, refusal: Refusal) -> Self {
        let response = ModelInferResponse { id, ..Default::default() };
        Self { response, refusal: Some(refusal), charge: None }
    }

    /// Returns the same answer as a refusal.
    pub(super) fn refused(self, refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Returns the same answer with a charge of its own.
    pub(super) fn charged(self, charge: Charge) -> Self {
        Self { charge: Some(charge), ..self }
    }

    /// Takes the charge out.
    pub(super) fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    /// Returns the message for the client, or the status that ends a stream in which an error does so.
    pub(super) fn into_message(self, is_strict: bool) -> Result<ModelStreamInferResponse, Status> {
        let infer_response = Some(self.response);
        match self.refusal {
            None => Ok(ModelStreamInferResponse { infer_response, ..Default::default() }),
            Some(refusal) if is_strict => Err(refusal.into()),
            Some(refusal) => {
                let error_message = refusal.text().to_owned();
                Ok(ModelStreamInferResponse { error_message, infer_response })
            }
        }
    }
}
