//! Why a model fails.

use std::fmt;

use slipring::Error;

use crate::refusal::{Refusal, RefusalKind};

/// Why a model failed, as the client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelError(Refusal);

impl ModelError {
    /// The model failed: status 500, `INTERNAL`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Refusal::new(RefusalKind::Internal, text.into()))
    }

    /// What it was given cannot be computed on: status 400, `INVALID_ARGUMENT`.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self(Refusal::new(RefusalKind::InvalidArgument, text.into()))
    }

    /// It cannot compute now: status 503, `UNAVAILABLE`.
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

/// What went wrong inside, without its text: that is not the client's to read.
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
