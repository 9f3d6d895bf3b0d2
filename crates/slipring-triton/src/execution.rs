//! Executes a request: leases its regions, prepares inputs and outputs, calls the model, builds the response.

use std::sync::Arc;
use std::time::Instant;

use slipring::error::RegionFault;
use slipring::region::{Lease, Registry, Unblocked};
use slipring::{Error, ErrorKind};

use crate::blocking::{MAX_INLINE, catch_panic, run_blocking, run_blocking_if};
use crate::budget::Charge;
use crate::front::Front;
use crate::inputs::{InputSource, InputTensor, Inputs, RegionFailure, RequestInfo};
use crate::model::{AsyncModel, Model};
use crate::model_error::ModelError;
use crate::outputs::{OutputSlot, OutputTarget, Outputs};
use crate::refusal::Refusal;
use crate::repository::{AnyModel, ModelEntry, ModelVersion};
use crate::request::{InferRequest, InferResponse, InputData, RegionWindow, ResponseOutput};
use crate::spans;
use crate::statistics::RequestTimes;
use crate::validation::{self, ValidRequest};

/// The approximate memory of a request that waits for a thread, without its bytes.
pub(crate) const QUEUED_REQUEST: u64 = 4 << 10;

/// A valid request to a model that is ready.
pub(crate) struct AcceptedRequest {
    pub(crate) entry: Arc<ModelEntry>,
    /// The model's name, as the client wrote it.
    pub(crate) model: String,
    pub(crate) version: u64,
    pub(crate) id: Option<String>,
    pub(crate) prepared: PreparedRequest,
}

/// A request together with everything that its model needs.
pub(crate) struct PreparedRequest {
    pub(crate) inputs: Inputs,
    pub(crate) outputs: Outputs,
    /// Bytes of the inputs and of the output windows.
    pub(crate) len: u64,
    pub(crate) batch: usize,
    pub(crate) outcome: RequestOutcome,
}

/// Counts a request once in its model's statistics, however the request ends, also if nobody waits for it.
pub(crate) struct RequestOutcome {
    model: ModelVersion,
    arrived: Instant,
    is_counted: bool,
}

impl RequestOutcome {
    fn start(model: ModelVersion, arrived: Instant) -> Self {
        Self { model, arrived, is_counted: false }
    }

    pub(crate) fn succeeded(
        mut self,
        (started, ready, computed): (Instant, Instant, Instant),
        batch: usize,
    ) {
        let times = RequestTimes { arrived: self.arrived, started, ready, computed };
        self.model.statistics().succeeded(times, batch);
        self.is_counted = true;
    }
}

impl Drop for RequestOutcome {
    fn drop(&mut self) {
        if !self.is_counted {
            self.model.statistics().failed(self.arrived);
        }
    }
}

impl Front {
    /// Executes a request.
    ///
    /// # Errors
    ///
    /// The refusal that the client receives.
    pub async fn infer(&self, request: InferRequest) -> Result<InferResponse, Refusal> {
        self.infer_charged(request, self.charge()).await
    }

    /// Executes a request whose bytes the protocol has already charged.
    pub(crate) async fn infer_charged(
        &self,
        request: InferRequest,
        charge: Charge,
    ) -> Result<InferResponse, Refusal> {
        let accepted = self.accept(request, charge).await?;
        let AcceptedRequest { entry, model, version, id, prepared } = accepted;
        let outputs = compute(&entry, prepared).await?;
        Ok(InferResponse { model, version: version.to_string(), id, outputs })
    }

    /// Validates a request and prepares its execution.
    pub(crate) async fn accept(
        &self,
        request: InferRequest,
        charge: Charge,
    ) -> Result<AcceptedRequest, Refusal> {
        let found = self.repository().find(&request.model, request.version.as_deref())?;
        let (entry, version) = (found.entry.clone(), found.version);
        let arrived = Instant::now();
        if !entry.is_ready() {
            return Err(Refusal::not_ready(&entry.metadata.name));
        }
        // A window outside of its region is reported before any mismatch with the model.
        let leases = self.lease_all(&request)?;
        let metadata = entry.metadata.clone();
        let (mut request, checked) =
            run_blocking_if(validation::inline_strings_len(&request) > MAX_INLINE, move || {
                let checked = validation::validate(&metadata, &request)?;
                Ok((request, checked))
            })
            .await?;
        // The statistics are those of the model, which a refused request has not reached.
        let outcome = RequestOutcome::start(found, arrived);
        let (model, id) = (std::mem::take(&mut request.model), request.id.clone());
        spans::describe(&model, version, id.as_deref());
        let prepared = self.prepare(request, leases, checked, charge, outcome);
        Ok(AcceptedRequest { entry, model, version, id, prepared })
    }

    /// Leases the windows of the inputs, then those of the outputs.
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

    fn prepare(
        &self,
        request: InferRequest,
        leases: Vec<Lease>,
        checked: ValidRequest,
        charge: Charge,
        outcome: RequestOutcome,
    ) -> PreparedRequest {
        let mut leases = leases.into_iter();
        let mut next = || leases.next().expect("each window was leased, in this order");
        let mut len = 0u64;
        let mut tensors = Vec::with_capacity(request.inputs.len());
        for (input, (dtype, shape)) in request.inputs.into_iter().zip(checked.inputs) {
            let from = match input.data {
                InputData::Inline(bytes) => {
                    len = len.saturating_add(bytes.len() as u64);
                    InputSource::Inline(bytes)
                }
                InputData::Region(window) => {
                    len = len.saturating_add(window.len);
                    InputSource::Region(next())
                }
            };
            tensors.push(InputTensor { name: input.name, dtype, shape, from });
        }
        let mut slots = Vec::with_capacity(checked.outputs.len());
        for (spec, at) in checked.outputs {
            let window = at.and_then(|at| request.outputs[at].region.as_ref());
            let to = match window {
                None => OutputTarget::Inline(None),
                Some(window) => {
                    len = len.saturating_add(window.len);
                    OutputTarget::Region(next())
                }
            };
            let classification = at.and_then(|at| request.outputs[at].classification);
            slots.push(OutputSlot { spec, to, shape: None, classification });
        }
        let version = outcome.model.version;
        let (metadata, failure) =
            (outcome.model.entry.metadata.clone(), Arc::new(RegionFailure::default()));
        let in_place = self.in_place();
        let info = RequestInfo { version, id: request.id, parameters: request.parameters };
        let inputs =
            Inputs { info, tensors, in_place, failure: failure.clone(), charge: charge.clone() };
        let most = self.limits().response_bytes;
        let to = OutputTarget::Nowhere;
        let unwanted = OutputSlot { spec: 0, to, shape: None, classification: None };
        let outputs =
            Outputs { metadata, slots, unwanted, in_place, failure, charge, left: most, most };
        PreparedRequest { inputs, outputs, len, batch: checked.batch, outcome }
    }
}

async fn compute(
    entry: &Arc<ModelEntry>,
    prepared: PreparedRequest,
) -> Result<Vec<ResponseOutput>, Refusal> {
    match &*entry.model {
        AnyModel::Blocking(model) if entry.metadata.inline && prepared.len <= MAX_INLINE as u64 => {
            run(&**model, prepared)
        }
        AnyModel::Blocking(_) => {
            prepared.inputs.charge.add(QUEUED_REQUEST)?;
            let held = entry.instances.acquire_with_thread(&entry.metadata.name).await?;
            let entry = entry.clone();
            run_blocking(move || {
                let _held = held;
                match &*entry.model {
                    AnyModel::Blocking(model) => run(&**model, prepared),
                    AnyModel::Async(_) | AnyModel::Decoupled(_) => {
                        Err(Refusal::internal("the model does not block"))
                    }
                }
            })
            .await
        }
        AnyModel::Async(model) => {
            prepared.inputs.charge.add(QUEUED_REQUEST)?;
            let _instance = entry.instances.acquire(&entry.metadata.name).await?;
            run_async(&**model, prepared).await
        }
        AnyModel::Decoupled(_) => Err(Refusal::decoupled("Front::infer")),
    }
}

/// Calls a model. A panic of the model fails the request alone.
fn run(model: &dyn Model, prepared: PreparedRequest) -> Result<Vec<ResponseOutput>, Refusal> {
    let PreparedRequest { inputs, mut outputs, batch, outcome, .. } = prepared;
    let started = Instant::now();
    // One unblock serves all accesses in place of this request.
    let _unblocked = inputs.in_place.then(Unblocked::start);
    inputs.check_strings()?;
    let ready = Instant::now();
    // The inputs and outputs of a panicked call are dropped unread.
    let done = catch_panic(|| model.infer(&inputs, &mut outputs));
    outcome_of(&inputs, &outputs, done.unwrap_or_else(|()| Err(panic_error(&outputs))))?;
    let computed = Instant::now();
    let outputs = outputs.finish()?;
    outcome.succeeded((started, ready, computed), batch);
    Ok(outputs)
}

/// Calls a model on the runtime's own thread. Only the model's polls occupy that thread.
async fn run_async(
    model: &dyn AsyncModel,
    prepared: PreparedRequest,
) -> Result<Vec<ResponseOutput>, Refusal> {
    let PreparedRequest { inputs, mut outputs, batch, outcome, .. } = prepared;
    let started = Instant::now();
    let inputs = run_blocking_if(inputs.strings_len() > MAX_INLINE as u64, move || {
        inputs.check_strings()?;
        Ok(inputs)
    })
    .await?;
    let ready = Instant::now();
    let (inputs_ref, outputs_ref) = (&inputs, &mut outputs);
    // The code before the model's future runs under the same protection.
    let done = match catch_panic(move || model.infer(inputs_ref, outputs_ref)) {
        Ok(inferring) => CatchPanic(inferring).await,
        Err(()) => Err(()),
    };
    outcome_of(&inputs, &outputs, done.unwrap_or_else(|()| Err(panic_error(&outputs))))?;
    let computed = Instant::now();
    let outputs =
        run_blocking_if(outputs.unfinished() > MAX_INLINE, move || outputs.finish()).await?;
    outcome.succeeded((started, ready, computed), batch);
    Ok(outputs)
}

fn panic_error(outputs: &Outputs) -> ModelError {
    Refusal::model_panicked(&outputs.metadata.name).into()
}

/// Returns the result of the request. A failure of the client's memory comes before the model's own answer.
fn outcome_of(
    inputs: &Inputs,
    outputs: &Outputs,
    answer: Result<(), ModelError>,
) -> Result<(), Refusal> {
    let failure = &inputs.failure;
    if inputs.in_place && failure.get().is_none() {
        failure.check_whole(|| inputs.leases().chain(outputs.leases()));
    }
    match failure.get() {
        Some(refusal) => Err(refusal.clone()),
        None => Ok(answer?),
    }
}

/// A future that resolves to `Err` if the inner future panics.
struct CatchPanic<F>(F);

impl<F: Future + Unpin> Future for CatchPanic<F> {
    type Output = Result<F::Output, ()>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        let inner = std::pin::Pin::new(&mut self.0);
        match catch_panic(|| inner.poll(context)) {
            Ok(polled) => polled.map(Ok),
            Err(()) => std::task::Poll::Ready(Err(())),
        }
    }
}

/// Leases a window of a region.
fn lease(registry: &Registry, window: &RegionWindow) -> Result<Lease, Refusal> {
    let RegionWindow { name, offset, len } = window;
    registry.lease(name, *offset, *len).map_err(|error| lease_refusal(window, &error))
}

fn lease_refusal(window: &RegionWindow, error: &Error) -> Refusal {
    let RegionWindow { name, offset, len } = window;
    match error.kind() {
        ErrorKind::Region(RegionFault::Unknown { .. }) => Refusal::region_unknown(name),
        ErrorKind::Region(RegionFault::Overflow { .. }) => {
            Refusal::region_overflow(name, *offset, *len)
        }
        ErrorKind::Region(RegionFault::Offset { .. }) => Refusal::region_offset(name),
        // An offset at the very end of the region addresses no byte.
        ErrorKind::Region(RegionFault::Range { offset, size, .. }) if offset >= size => {
            Refusal::region_offset(name)
        }
        ErrorKind::Region(RegionFault::Range { .. }) => Refusal::region_range(name),
        _ => Refusal::region_failed(name),
    }
}
