//! Starts the requests to decoupled models.

use std::time::Instant;

use slipring::region::Unblocked;

use crate::blocking::{AbortOnDrop, MAX_INLINE, catch_panic};
use crate::budget::Charge;
use crate::execution::{AcceptedRequest, PreparedRequest, QUEUED_REQUEST};
use crate::front::Front;
use crate::inputs::Inputs;
use crate::model::DecoupledModel;
use crate::refusal::Refusal;
use crate::repository::AnyModel;
use crate::request::InferRequest;
use crate::responses::{self, CallEnd, CallParts, ResponseStream, Responses};
use crate::spans::carried;

impl Front {
    /// Starts a request to a decoupled model, as soon as an instance is free. The request's bytes stay charged until the
    /// model drops its inputs.
    pub(crate) async fn start(
        &self,
        request: InferRequest,
        charge: Charge,
    ) -> Result<ResponseStream, Refusal> {
        let accepted = self.accept(request, charge).await?;
        let AcceptedRequest { entry, model: name, version, id, prepared } = accepted;
        let PreparedRequest { inputs, outputs, len, batch, outcome } = prepared;
        if !entry.is_decoupled() {
            // Another model has been loaded in the place of a decoupled one.
            return Err(one_response());
        }
        let template = outputs.another(inputs.charge.another());
        template.charge.add(QUEUED_REQUEST)?;
        let is_inline = entry.metadata.inline && len <= MAX_INLINE as u64;
        let name_of = &entry.metadata.name;
        let (instance, thread) = if is_inline {
            (entry.instances.acquire(name_of).await?, None)
        } else {
            let (instance, thread) = entry.instances.acquire_with_thread(name_of).await?;
            (instance, Some(thread))
        };
        let leases = match inputs.in_place {
            true => inputs.leases().chain(template.leases()).cloned().collect(),
            false => Vec::new(),
        };
        let version = version.to_string();
        let count = Box::new(move |times: Option<_>| {
            // A dropped outcome is a failure.
            if let Some(times) = times {
                outcome.succeeded(times, batch);
            }
        });
        let parts = CallParts { model: name, version, id, template, leases, count, instance };
        let (responses, end, mut stream) = responses::call(parts);
        let call = move || {
            // The thread is free once the model has returned, however long its responses take.
            let _thread = thread;
            match &*entry.model {
                AnyModel::Decoupled(model) => run(&**model, inputs, responses, &end),
                AnyModel::Blocking(_) | AnyModel::Async(_) => end.fail(one_response()),
            }
        };
        if is_inline {
            call();
        } else {
            stream.keep(AbortOnDrop(tokio::task::spawn_blocking(carried(call))));
        }
        Ok(stream)
    }
}

fn one_response() -> Refusal {
    Refusal::internal("the model answers with one response")
}

/// Calls a model. A panic of the model fails the request alone.
fn run(model: &dyn DecoupledModel, inputs: Inputs, responses: Responses, end: &CallEnd) {
    let started = Instant::now();
    // One unblock serves all accesses in place of this thread.
    let _unblocked = inputs.in_place.then(Unblocked::start);
    if let Err(refusal) = inputs.check_strings() {
        return end.fail(refusal);
    }
    end.started(started, Instant::now());
    match catch_panic(|| model.infer(inputs, responses)) {
        Ok(Ok(())) => end.returned(),
        Ok(Err(error)) => end.fail(error.into()),
        Err(()) => end.fail(Refusal::model_panicked(&model.metadata().name)),
    }
}
