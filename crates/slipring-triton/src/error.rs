//! Why a front cannot be built.

/// Why [`FrontBuilder::build`](crate::FrontBuilder::build) fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A model cannot be served as it describes itself.
    #[error("model '{model}' must have {must}")]
    Model {
        /// The model's name.
        model: String,
        /// The property that it lacks.
        must: &'static str,
    },
    /// The front works in place, and the process has no [`SigbusGuard`](slipring::region::SigbusGuard).
    #[error("a front that works in place needs the SIGBUS guard: call SigbusGuard::install first")]
    Unguarded,
    /// The registry of shared memory cannot be made.
    #[error("the registry of shared memory cannot be made")]
    Registry(#[source] slipring::Error),
}
