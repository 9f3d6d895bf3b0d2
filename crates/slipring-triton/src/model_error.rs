//! The error of a model.

use std::fmt;

use slipring::Error;

use crate::refusal::{Refusal, RefusalKind};

/// The error that a model returns and its client receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelError(Refusal);

impl ModelError {
    /// Returns an error of the model itself: status 500, `INTERNAL`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Refusal::new(RefusalKind::Internal, text.into()))
    }

    /// Returns an error of the input: status 400, `INVALID_ARGUMENT`.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self(Refusal::new(RefusalKind::InvalidArgument, text.into()))
    }

    /// Returns an error of the moment: status 503, `UNAVAILABLE`.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self(Refusal::new(RefusalKind::Unavailable, text.into()))
    }
}

impl From<Refusal> for ModelError {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl From<ModelError> for Refusal {
    fn from(error: ModelError) -> Self {
        error.0
    }
}

/// The client does not receive the text of an internal error.
impl From<Error> for ModelError {
    fn from(_: Error) -> Self {
        Self::new("the model failed")
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for ModelError {}
