//! The spans of calls, in the trace of the caller and of the peer.
//!
//! 1. A call outside of a span has none: it looks once whether its thread has one.
//! 2. A span ends once, in the process that began it: with the response, with the error, or as abandoned when it is dropped before.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, ContextGuard, KeyValue};

use crate::channel::message::{MessageKind, RequestId};
use crate::channel::metadata::Metadata;
use crate::channel::trace_context::{system, tracer};
use crate::error::{Error, Result};
use crate::handshake::address::Address;
use crate::handshake::socket;
use crate::link::link::Link;
use crate::shm::fork::Generation;

/// The span of a call, if the caller has one.
#[derive(Debug)]
pub(crate) struct CallSpan(Option<Traced>);

/// A span that has not ended, and the process that ends it.
#[derive(Debug)]
struct Traced {
    span: BoxedSpan,
    generation: Option<Generation>,
}

impl CallSpan {
    /// Starts the span of a call, if the caller's span is valid. `link` is not asked without need.
    #[inline]
    pub(crate) fn begin(link: impl FnOnce() -> Option<Arc<Link>>) -> Self {
        let is_traced = |context: &Context| {
            context.has_active_span()
                && context.span().span_context().is_valid()
                && !context.is_telemetry_suppressed()
        };
        Self(Context::map_current(is_traced).then(|| start(link())))
    }

    /// Returns the metadata to send instead of the caller's: with the span as the parent of the peer's. `None`: there is no
    /// span, or no room for it.
    pub(crate) fn carry(&mut self, own: &Metadata) -> Option<Metadata> {
        let span = &mut self.0.as_mut()?.span;
        let context = Context::current().with_remote_span_context(span.span_context().clone());
        let mut metadata = own.clone();
        let injected = metadata.inject(&context);
        if let Err(error) = &injected {
            span.add_event("no traceparent", vec![KeyValue::new("reason", error.to_string())]);
        }
        injected.is_ok().then_some(metadata)
    }

    /// Ends the span with the result of the call.
    #[inline]
    pub(crate) fn end<T>(self, result: &Result<T>) {
        if self.0.is_some() {
            self.finish(result.as_ref().err());
        }
    }

    #[cold]
    fn finish(mut self, error: Option<&Error>) {
        let Some(Traced { mut span, .. }) = self.0.take() else { return };
        if let Some(error) = error {
            fail(&mut span, error.kind().name(), error.to_string());
        }
        span.end();
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let Some(mut traced) = self.0.take() else { return };
        if traced.generation.is_some_and(|made| made.is_current()) {
            fail(&mut traced.span, "abandoned".into(), "nobody waits for the response".into());
        } else {
            // In a forked child: the span is the parent's, and so is what its end would lock.
            std::mem::forget(traced);
        }
    }
}

/// The spans of requests whose responses are waited for later.
#[derive(Debug, Default)]
pub(crate) struct CallSpans(HashMap<RequestId, CallSpan>);

impl CallSpans {
    pub(crate) fn insert(&mut self, id: RequestId, span: CallSpan) {
        if span.0.is_some() {
            self.0.insert(id, span);
        }
    }

    /// Ends the span of a request, if it has one. `error`: why there is no response.
    #[inline]
    pub(crate) fn end(&mut self, id: RequestId, error: Option<&Error>) {
        if !self.0.is_empty()
            && let Some(span) = self.0.remove(&id)
        {
            span.finish(error);
        }
    }

    /// Ends the span of a request whose response is not wanted.
    #[inline]
    pub(crate) fn abandon(&mut self, id: RequestId) {
        if !self.0.is_empty() {
            self.0.remove(&id);
        }
    }
}

/// The span of a callback that handles a request. It is current until the value is dropped.
pub(crate) struct HandlerSpan(Option<(Context, ContextGuard)>);

impl HandlerSpan {
    /// Starts a span if this is a request that carries a span of the peer.
    #[inline]
    pub(crate) fn begin(kind: MessageKind, metadata: &Metadata) -> Self {
        let is_request = matches!(kind, MessageKind::Request(_) | MessageKind::TensorRequest(_));
        Self((is_request && !metadata.is_empty()).then(|| {
            let context = metadata.server_span("slipring");
            (context.clone(), context.attach())
        }))
    }

    /// Notes whether the callback has returned: `None` is a panic.
    pub(crate) fn end(self, ran: Option<()>) {
        if let (Some((context, _)), None) = (&self.0, ran) {
            let span = context.span();
            span.set_attribute(KeyValue::new("error.type", "panic"));
            span.set_status(Status::error("the callback has panicked"));
        }
    }
}

#[cold]
fn start(link: Option<Arc<Link>>) -> Traced {
    let tracer = tracer();
    let builder = tracer.span_builder("slipring").with_kind(SpanKind::Client);
    let mut span = builder.with_attributes([system()]).start(&tracer);
    if span.is_recording()
        && let Some(link) = link
    {
        if let Some(address) = address(&link) {
            span.set_attribute(KeyValue::new("server.address", address.to_string()));
        }
        if let Some(pid) = link.identity().pid() {
            span.set_attribute(KeyValue::new("slipring.peer.pid", i64::from(pid)));
        }
    }
    Traced { span, generation: Generation::current().ok() }
}

/// Returns the address at which both sides have met, if it has a name.
fn address(link: &Link) -> Option<Address> {
    // The other name is the choice of who has connected.
    let name = match link.terms().connected {
        true => socket::peer_name(link.socket()),
        false => socket::own_name(link.socket()),
    };
    match name.split_first() {
        Some((0, name)) => Address::named(name).ok(),
        _ => Address::path(OsStr::from_bytes(&name)).ok(),
    }
}

fn fail(span: &mut BoxedSpan, kind: String, text: String) {
    span.set_attribute(KeyValue::new("error.type", kind));
    span.set_status(Status::error(text));
}
