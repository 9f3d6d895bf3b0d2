//! A request's way through: leases taken, inputs and outputs laid out, the model called, the response made.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, ErrorKind, RegionFault};
use crate::region::{Lease, Registry, Unblocked};
use crate::triton::budget::Share;
use crate::triton::check::{self, Checked};
use crate::triton::front::Front;
use crate::triton::inputs::{Fault, From, Held, Inputs};
use crate::triton::model::{Model, ModelError};
use crate::triton::outputs::{Outputs, Slot, To};
use crate::triton::refusal::Refusal;
use crate::triton::repository::{Computing, Found};
use crate::triton::request::{InferRequest, InferResponse, InputData, RegionWindow};
use crate::triton::statistics::Moments;

/// Inline models run on the runtime's own thread for as many bytes. The kernel copies them in and out in some 25 µs;
/// handing a request to another thread and back takes 20 (`docs/triton.md`).
const INLINE: usize = 64 << 10;

/// A request that holds all that its model needs.
struct Laid {
    inputs: Inputs,
    outputs: Outputs,
    /// Bytes of inputs, and of windows of outputs.
    len: u64,
    batch: usize,
}

impl Front {
    /// Executes a request, whichever wire it came by.
    ///
    /// # Errors
    ///
    /// What the client is to be told.
    pub async fn infer(&self, request: InferRequest) -> Result<InferResponse, Refusal> {
        self.infer_holding(request, self.share()).await
    }

    /// As [`infer`](Self::infer), for a wire that has taken a share for the request's bytes.
    pub(super) async fn infer_holding(
        &self,
        request: InferRequest,
        share: Share,
    ) -> Result<InferResponse, Refusal> {
        let arrived = Instant::now();
        let found = self.repository().find(&request.model, request.version.as_deref())?;
        let done = self.execute(&found, request, share, arrived).await;
        if done.is_err() {
            found.statistics().failed(arrived);
        }
        done
    }

    async fn execute(
        &self,
        found: &Found,
        request: InferRequest,
        share: Share,
        arrived: Instant,
    ) -> Result<InferResponse, Refusal> {
        let metadata = &found.entry.metadata;
        if !found.entry.is_ready() {
            return Err(Refusal::not_ready(&metadata.name));
        }
        // First: a window that its region does not have is told of as that, whatever its model expects of it.
        let leases = self.lease_all(&request)?;
        let checked = check::check(metadata, &request)?;
        let mut request = request;
        let (model, id) = (std::mem::take(&mut request.model), request.id.take());
        let laid = self.lay_out(found, request, leases, checked, share);
        let batch = laid.batch;
        let (outputs, moments) = self.compute(found, laid, arrived).await?;
        let outputs = outputs.finish()?;
        found.statistics().succeeded(moments, batch);
        Ok(InferResponse { model, version: found.version.to_string(), id, outputs })
    }

    /// Takes the windows of a request into use: of its inputs, then of its outputs.
    fn lease_all(&self, request: &InferRequest) -> Result<Vec<Lease>, Refusal> {
        let inputs = request.inputs.iter().filter_map(|input| match &input.data {
            InputData::Inline(_) => None,
            InputData::Region(window) => Some(window),
        });
        let outputs = request.outputs.iter().filter_map(|output| output.region.as_ref());
        let shared = self.shared_memory();
        let leases = inputs.chain(outputs).map(|window| {
            shared.check_allowed()?;
            lease(shared.registry(), window)
        });
        leases.collect()
    }

    fn lay_out(
        &self,
        found: &Found,
        request: InferRequest,
        leases: Vec<Lease>,
        checked: Checked,
        share: Share,
    ) -> Laid {
        let mut leases = leases.into_iter();
        let mut next = || leases.next().expect("each window was leased, in this order");
        let mut len = 0u64;
        let mut held = Vec::with_capacity(request.inputs.len());
        for (input, (dtype, shape)) in request.inputs.into_iter().zip(checked.inputs) {
            let from = match input.data {
                InputData::Inline(bytes) => {
                    len = len.saturating_add(bytes.len() as u64);
                    From::Inline(bytes)
                }
                InputData::Region(window) => {
                    len = len.saturating_add(window.len);
                    From::Region(next())
                }
            };
            held.push(Held { name: input.name, dtype, shape, from });
        }
        let mut slots = Vec::with_capacity(checked.outputs.len());
        for (spec, at) in checked.outputs {
            let window = at.and_then(|at| request.outputs[at].region.as_ref());
            let to = match window {
                None => To::Inline(Vec::new()),
                Some(window) => {
                    len = len.saturating_add(window.len);
                    To::Region(next())
                }
            };
            slots.push(Slot { spec, to, shape: None });
        }
        let (metadata, fault) = (found.entry.metadata.clone(), Arc::new(Fault::default()));
        let in_place = self.in_place();
        let inputs = Inputs { held, in_place, fault: fault.clone(), share: share.clone() };
        let most = self.limits().response_bytes;
        let unwanted = Slot { spec: 0, to: To::Nowhere, shape: None };
        let outputs =
            Outputs { metadata, slots, unwanted, in_place, fault, share, left: most, most };
        Laid { inputs, outputs, len, batch: checked.batch }
    }

    async fn compute(
        &self,
        found: &Found,
        laid: Laid,
        arrived: Instant,
    ) -> Result<(Outputs, Moments), Refusal> {
        let name = &found.entry.metadata.name;
        match &found.entry.computing {
            Computing::Blocking(model)
                if found.entry.metadata.inline && laid.len <= INLINE as u64 =>
            {
                run(&**model, name, laid, arrived)
            }
            Computing::Blocking(model) => {
                let (model, called) = (model.clone(), name.clone());
                let run = move || run(&*model, &called, laid, arrived);
                let done = tokio::task::spawn_blocking(run).await;
                done.map_err(|_| Refusal::unavailable(format!("model '{name}' was stopped")))?
            }
            Computing::Async(model) => {
                let Laid { inputs, mut outputs, .. } = laid;
                let started = Instant::now();
                inputs.check_strings()?;
                let ready = Instant::now();
                let done = Contained(model.infer(&inputs, &mut outputs)).await;
                let answer = done.unwrap_or_else(|()| Err(Refusal::model_panicked(name).into()));
                judge(&inputs, &outputs, answer)?;
                let computed = Instant::now();
                Ok((outputs, Moments { arrived, started, ready, computed }))
            }
        }
    }
}

/// Calls a model. Its panic ends the request.
fn run(
    model: &dyn Model,
    name: &str,
    laid: Laid,
    arrived: Instant,
) -> Result<(Outputs, Moments), Refusal> {
    let Laid { inputs, mut outputs, .. } = laid;
    let started = Instant::now();
    // Once, and not for each access in place.
    let _unblocked = inputs.in_place.then(Unblocked::start);
    inputs.check_strings()?;
    let ready = Instant::now();
    // What a panic leaves of inputs and outputs is dropped, and not looked at.
    let done = catch_unwind(AssertUnwindSafe(|| model.infer(&inputs, &mut outputs)));
    judge(&inputs, &outputs, done.unwrap_or_else(|_| Err(Refusal::model_panicked(name).into())))?;
    let computed = Instant::now();
    Ok((outputs, Moments { arrived, started, ready, computed }))
}

/// What a client is told: first of its own memory, if that failed.
fn judge(
    inputs: &Inputs,
    outputs: &Outputs,
    answer: Result<(), ModelError>,
) -> Result<(), Refusal> {
    let fault = &inputs.fault;
    if inputs.in_place && fault.get().is_none() {
        // What was cut off within a page has raised no signal. Each region is asked once.
        let leases = || inputs.leases().chain(outputs.leases()).enumerate();
        for (at, lease) in leases() {
            let mut others = leases().filter(|(other, _)| *other != at);
            let covered = others.any(|(other, behind)| {
                behind.ends_behind(lease) && (other < at || !lease.ends_behind(behind))
            });
            if !covered && let Err(error) = lease.holds() {
                fault.keep(lease, &error);
            }
        }
    }
    match fault.get() {
        Some(refusal) => Err(refusal.clone()),
        None => Ok(answer?),
    }
}

/// A future whose panic is an answer.
struct Contained<F>(F);

impl<F: Future + Unpin> Future for Contained<F> {
    type Output = Result<F::Output, ()>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        let inner = std::pin::Pin::new(&mut self.0);
        match catch_unwind(AssertUnwindSafe(|| inner.poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(_) => std::task::Poll::Ready(Err(())),
        }
    }
}

/// Takes a part of a region into use.
fn lease(registry: &Registry, window: &RegionWindow) -> Result<Lease, Refusal> {
    let RegionWindow { name, offset, len } = window;
    registry.lease(name, *offset, *len).map_err(|error| leasing(window, &error))
}

fn leasing(window: &RegionWindow, error: &Error) -> Refusal {
    let RegionWindow { name, offset, len } = window;
    match error.kind() {
        ErrorKind::Region(RegionFault::Unknown { .. }) => Refusal::region_unknown(name),
        ErrorKind::Region(RegionFault::Overflow { .. }) => {
            Refusal::region_overflow(name, *offset, *len)
        }
        ErrorKind::Region(RegionFault::Offset { .. }) => Refusal::region_offset(name),
        // No byte of the region is at its very end.
        ErrorKind::Region(RegionFault::Range { offset, size, .. }) if offset >= size => {
            Refusal::region_offset(name)
        }
        ErrorKind::Region(RegionFault::Range { .. }) => Refusal::region_range(name),
        _ => Refusal::region_failed(name),
    }
}
