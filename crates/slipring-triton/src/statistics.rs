//! How often a model was executed, and how long it took.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often something happened, and how long it took in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// In nanoseconds.
    pub ns: u64,
}

impl Tally {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.ns += took.as_nanos() as u64;
    }
}

/// What became of batches of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// Making inputs ready.
    pub compute_input: Tally,
    /// The model.
    pub compute_infer: Tally,
    /// Handing over outputs.
    pub compute_output: Tally,
}

/// What became of a model's requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// When the last one ended, in milliseconds since 1970.
    pub last_inference: u64,
    /// Elements of batches: a request with a batch of 8 counts 8.
    pub inference_count: u64,
    /// Executions: each request is one.
    pub execution_count: u64,
    /// Requests that succeeded, from their arrival to their response.
    pub success: Tally,
    /// Requests that failed.
    pub fail: Tally,
    /// Waiting for a thread.
    pub queue: Tally,
    /// Making inputs ready.
    pub compute_input: Tally,
    /// The model.
    pub compute_infer: Tally,
    /// Handing over outputs.
    pub compute_output: Tally,
    /// By the size of the batch.
    pub batches: BTreeMap<usize, BatchStatistics>,
}

/// The times of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTimes {
    /// Its header has arrived.
    pub(super) arrived: Instant,
    /// It was taken up.
    pub(super) started: Instant,
    /// Its inputs are ready.
    pub(super) ready: Instant,
    /// The model has returned.
    pub(super) computed: Instant,
}

/// Counts that grow.
#[derive(Debug, Default)]
pub(super) struct Statistics(Mutex<Counts>);

impl Statistics {
    pub(super) fn counts(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn failed(&self, arrived: Instant) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.fail.add(arrived.elapsed());
    }

    /// `batch` is at most the model's.
    pub(super) fn succeeded(&self, times: RequestTimes, batch: usize) {
        let now = Instant::now();
        let last = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (input, infer) = (times.ready - times.started, times.computed - times.ready);
        let output = now - times.computed;
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.last_inference = last.as_millis() as u64;
        counts.inference_count += batch.max(1) as u64;
        counts.execution_count += 1;
        counts.success.add(now - times.arrived);
        counts.queue.add(times.started - times.arrived);
        counts.compute_input.add(input);
        counts.compute_infer.add(infer);
        counts.compute_output.add(output);
        let of_size = counts.batches.entry(batch.max(1)).or_default();
        of_size.compute_input.add(input);
        of_size.compute_infer.add(infer);
        of_size.compute_output.add(output);
    }
}
