//! Long work and code of models: where it runs, and what its panics do.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::refusal::Refusal;
use crate::spans::carried;

/// The largest request that an inline model serves on the runtime's own thread. The kernel copies this many bytes in
/// and out in about 25 µs. A handover to another thread and back costs 20 µs (`docs/triton.md`).
pub(crate) const MAX_INLINE: usize = 64 << 10;

/// The conversions of requests and responses that occupy blocking threads at once. They compute and never wait, so more
/// threads than processors gain nothing, and further conversions wait for these.
static CONVERSIONS: Semaphore = Semaphore::const_new(64);

/// Runs work on a blocking thread, of which the caller bounds the number. Work whose caller goes before it starts is never
/// run.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let mut working = AbortOnDrop(tokio::task::spawn_blocking(carried(work)));
    let done = (&mut working.0).await;
    done.unwrap_or_else(|_| Err(Refusal::stopped()))
}

/// Runs work on a blocking thread, beside at most as much other work as `limit` permits. Further work waits.
pub(crate) async fn run_limited<T: Send + 'static>(
    limit: &'static Semaphore,
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let permit = limit.acquire().await.map_err(|_| Refusal::stopped())?;
    run_blocking(move || {
        // Work goes on if its caller goes, and so it holds the permit itself.
        let _permit = permit;
        work()
    })
    .await
}

/// Runs a conversion on a blocking thread if it is long, else here.
pub(crate) async fn run_blocking_if<T: Send + 'static>(
    is_long: bool,
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    if is_long { run_limited(&CONVERSIONS, work).await } else { work() }
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
