//! The number and the duration of a model's executions.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A number of events, and their total duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of events.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Tally {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.ns += took.as_nanos() as u64;
    }
}

/// The statistics of batches of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// Preparation of inputs.
    pub compute_input: Tally,
    /// Execution of the model.
    pub compute_infer: Tally,
    /// Delivery of outputs.
    pub compute_output: Tally,
}

/// The statistics of a model's requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// The end of the last request, in milliseconds from 1970 on.
    pub last_inference: u64,
    /// Batch elements: a request with a batch of 8 counts 8.
    pub inference_count: u64,
    /// Executions: each request counts 1, however many responses it has.
    pub execution_count: u64,
    /// Requests that succeeded, from arrival to response.
    pub success: Tally,
    /// Requests that failed.
    pub fail: Tally,
    /// Waits for a thread.
    pub queue: Tally,
    /// Preparation of inputs.
    pub compute_input: Tally,
    /// Execution of the model.
    pub compute_infer: Tally,
    /// Delivery of outputs.
    pub compute_output: Tally,
    /// By batch size.
    pub batches: BTreeMap<usize, BatchStatistics>,
}

/// The moments of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTimes {
    /// The header has arrived.
    pub(crate) arrived: Instant,
    /// The execution has started.
    pub(crate) started: Instant,
    /// The inputs are ready.
    pub(crate) ready: Instant,
    /// The model has returned.
    pub(crate) computed: Instant,
}

/// Counts that only grow.
#[derive(Debug, Default)]
pub(crate) struct Statistics(Mutex<Counts>);

impl Statistics {
    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn failed(&self, arrived: Instant) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.fail.add(arrived.elapsed());
    }

    /// Records a request that succeeded. `batch` is at most the model's.
    pub(crate) fn succeeded(&self, times: RequestTimes, batch: usize) {
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
