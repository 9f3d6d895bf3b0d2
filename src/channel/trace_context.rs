//! Trace context in metadata: the ids of a span, which a peer's spans have as their parent. No I/O.
//!
//! ```text
//!   traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!                │  trace id                         span id          flags
//!                version
//! ```
//!
//! 1. `traceparent` and `tracestate` are those of W3C Trace Context, whichever propagator the application has installed. The
//!    global propagator adds other fields, such as `baggage`.
//! 2. Metadata is a peer's input. A `traceparent` that is not exactly of this form is none.

use std::borrow::Cow;
use std::ops::Range;
use std::str::FromStr;

use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue, global};

use crate::channel::metadata::{Metadata, Value};
use crate::error::Result;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Bytes of a `traceparent` of version 0.
const PARENT_LEN: usize = 55;

/// Trace context, with the feature `traces`.
impl Metadata {
    /// Writes the ids of a context's span: the receiver's spans are then of the same trace. Calls do this themselves. A
    /// message, a set of tensors or a sample carries what its sender has injected.
    ///
    /// `traceparent` takes 69 of the metadata's 512 bytes, and replaces an earlier one. What does not fit beside it, such as
    /// a `tracestate` of more than 255 bytes, is left out. A context without a valid span writes no `traceparent`.
    ///
    /// # Errors
    ///
    /// [`MetadataFault::Len`](crate::error::MetadataFault::Len): `traceparent` does not fit. The values of other names stay.
    ///
    /// # Examples
    ///
    /// ```
    /// use opentelemetry::Context;
    /// use slipring::meta;
    ///
    /// let mut metadata = meta! { "frame" => 7 }?;
    /// metadata.inject(&Context::current())?; // and then `send_with(message, &metadata)`
    /// # assert_eq!(metadata.len(), 1, "there is no span");
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn inject(&mut self, context: &Context) -> Result<()> {
        let span = context.span();
        let span = span.span_context();
        if span.is_valid() {
            remove(self, TRACEPARENT);
            remove(self, TRACESTATE);
            self.insert(TRACEPARENT, &traceparent(span))?;
            self.set(TRACESTATE, span.trace_state().header());
        }
        global::get_text_map_propagator(|propagator| propagator.inject_context(context, self));
        Ok(())
    }

    /// Returns the context that the sender has injected: its span is the parent of spans that start with this context. An
    /// absent or bad `traceparent` gives a context without a span.
    ///
    /// # Examples
    ///
    /// ```
    /// use opentelemetry::trace::TraceContextExt;
    /// use slipring::meta;
    ///
    /// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let context = meta! { "traceparent" => parent }?.remote_context();
    /// assert_eq!(context.span().span_context().span_id().to_string(), "00f067aa0ba902b7");
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn remote_context(&self) -> Context {
        if self.is_empty() { Context::new() } else { remote_context(self) }
    }

    /// Starts a span of kind server whose parent is the sender's span, and returns its context. The span ends when the last
    /// clone of the context is dropped. Without a remote parent no span starts: a peer's trace is continued, and none is
    /// begun.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// # let mut link = far.join().unwrap()?;
    /// # let asker = std::thread::spawn(move || near.call(b"question").map(drop));
    /// while let Some(request) = link.recv_request()? {
    ///     let _current = request.metadata.server_span("uppercase").attach();
    ///     link.respond(request.id, &request.body.to_ascii_uppercase())?;
    /// }
    /// # asker.join().unwrap()?;
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn server_span(&self, name: impl Into<Cow<'static, str>>) -> Context {
        let parent = self.remote_context();
        if !parent.span().span_context().is_valid() {
            return parent;
        }
        let tracer = tracer();
        let builder = tracer.span_builder(name).with_kind(SpanKind::Server);
        let span = builder.with_attributes([system()]).start_with_context(&tracer, &parent);
        parent.with_span(span)
    }
}

/// Writes a string. One that does not fit is left out, and the earlier value of its name with it.
impl Injector for Metadata {
    fn set(&mut self, key: &str, value: String) {
        remove(self, key);
        if !value.is_empty() {
            let _ = self.insert(key, &value);
        }
    }
}

/// Reads strings. Values of other types are not there.
impl Extractor for Metadata {
    fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).and_then(|(_, value)| {
            match value {
                Value::String(text) => Some(text),
                _ => None,
            }
        })
    }

    fn keys(&self) -> Vec<&str> {
        self.iter().map(|(name, _)| name).collect()
    }
}

/// Returns the tracer of this library's spans.
pub(super) fn tracer() -> global::BoxedTracer {
    let scope = InstrumentationScope::builder("slipring").with_version(env!("CARGO_PKG_VERSION"));
    global::tracer_with_scope(scope.build())
}

/// Returns the attribute that all spans of this library have.
pub(super) fn system() -> KeyValue {
    KeyValue::new("rpc.system.name", "slipring")
}

/// Returns the context of the other side, as a carrier has it.
pub fn remote_context(carrier: &dyn Extractor) -> Context {
    let context = global::get_text_map_propagator(|propagator| {
        propagator.extract_with_context(&Context::new(), carrier)
    });
    let Some(text) = carrier.get(TRACEPARENT) else { return context };
    let Some((trace, span, flags)) = parent(text) else {
        // The propagator may have taken it for a good one.
        return context.with_remote_span_context(SpanContext::NONE);
    };
    let state = carrier.get(TRACESTATE).map(TraceState::from_str);
    let state = state.and_then(Result::ok).unwrap_or_default();
    context.with_remote_span_context(SpanContext::new(trace, span, flags, true, state))
}

fn remove(metadata: &mut Metadata, name: &str) {
    let is_other = |other: &str| !other.eq_ignore_ascii_case(name);
    if !metadata.iter().all(|(other, _)| is_other(other)) {
        let rest = Metadata::of(metadata.iter().filter(|(other, _)| is_other(other)));
        *metadata = rest.unwrap_or_default();
    }
}

fn traceparent(span: &SpanContext) -> String {
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags());
    format!("00-{trace}-{id}-{:02x}", flags & TraceFlags::SAMPLED)
}

/// Parses a `traceparent`. A later version may have more fields.
fn parent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let is_hex = |field: &&str| field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let field = |range: Range<usize>| text.get(range).filter(is_hex);
    let is_dash = |at: &usize| text.as_bytes().get(*at) == Some(&b'-');
    let version = field(0..2)?;
    let ends = text.len() == PARENT_LEN || (version != "00" && is_dash(&PARENT_LEN));
    if version == "ff" || !ends || ![2, 35, 52].iter().all(is_dash) {
        return None;
    }
    let trace = TraceId::from_hex(field(3..35)?).ok()?;
    let span = SpanId::from_hex(field(36..52)?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(field(53..55)?, 16).ok()?);
    let is_valid = trace != TraceId::INVALID && span != SpanId::INVALID;
    is_valid.then_some((trace, span, flags & TraceFlags::SAMPLED))
}

#[cfg(test)]
mod tests;
