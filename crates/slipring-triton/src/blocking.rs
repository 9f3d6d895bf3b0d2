//! Long work and code of models: where it runs, and what its panics do.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::task::JoinHandle;

use crate::refusal::Refusal;

/// The largest request that an inline model serves on the runtime's own thread. The kernel copies this many bytes in
/// and out in about 25 µs. A handover to another thread and back costs 20 µs (`docs/triton.md`).
pub(crate) const MAX_INLINE: usize = 64 << 10;

/// Runs long work on a blocking thread. Work whose caller goes before it starts is never run.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let mut working = AbortOnDrop(tokio::task::spawn_blocking(work));
    let done = (&mut working.0).await;
    done.unwrap_or_else(|_| Err(Refusal::stopped()))
}

/// Runs the work on a blocking thread if it is long, else here.
pub(crate) async fn run_blocking_if<T: Send + 'static>(
    is_long: bool,
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    if is_long { run_blocking(work).await } else { work() }
}

/// A task that is never run if the value is dropped before it starts.
pub(crate) struct AbortOnDrop<T>(pub(crate) JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns what `call` returns, or `Err` if it panics.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, ()> {
    catch_unwind(AssertUnwindSafe(call)).map_err(drop)
}
