//! The spans of inferences: their parents come with the request, and they are current while the model runs.

use std::future::Future;

use hyper::HeaderMap;
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::{FutureExt, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, InstrumentationScope, KeyValue, global};
use slipring::seam::remote_context;

use crate::refusal::{Refusal, RefusalKind};

/// The most characters of an attribute that a client chooses.
const LONGEST: usize = 255;

/// The parent of spans: the application's own span, or the one that the client's headers name.
#[derive(Debug, Clone)]
pub(crate) struct Parent(Context);

impl Parent {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let current = Context::current();
        let is_own = current.span().span_context().is_valid();
        Self(if is_own { current } else { remote_context(&Headers(headers)) })
    }

    /// Starts the span of an inference over HTTP.
    pub(crate) fn http(&self, has_version: bool) -> InferSpan {
        let route = match has_version {
            true => "/v2/models/{model}/versions/{version}/infer",
            false => "/v2/models/{model}/infer",
        };
        let attributes =
            [KeyValue::new("http.request.method", "POST"), KeyValue::new("http.route", route)];
        InferSpan { context: self.start(format!("POST {route}"), attributes), is_http: true }
    }

    /// Starts the span of an inference over gRPC.
    pub(crate) fn grpc(&self, method: &'static str) -> InferSpan {
        let attributes =
            [KeyValue::new("rpc.system.name", "grpc"), KeyValue::new("rpc.method", method)];
        InferSpan { context: self.start(method.to_owned(), attributes), is_http: false }
    }

    fn start(&self, name: String, attributes: [KeyValue; 2]) -> Context {
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"));
        let tracer = global::tracer_with_scope(scope.build());
        let builder = tracer.span_builder(name).with_kind(SpanKind::Server);
        self.0.with_span(builder.with_attributes(attributes).start_with_context(&tracer, &self.0))
    }
}

/// The span of an inference. It ends when nothing of the request is left.
pub(crate) struct InferSpan {
    context: Context,
    is_http: bool,
}

impl InferSpan {
    /// Does work inside of the span.
    pub(crate) fn enter<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        work.with_context(self.context.clone())
    }

    /// Does the work of an inference inside of the span, and notes its result.
    pub(crate) async fn run<T>(
        self,
        work: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let result = self.enter(work).await;
        self.end(result.as_ref().err());
        result
    }

    /// Notes the result of the inference.
    pub(crate) fn end(&self, refusal: Option<&Refusal>) {
        let span = self.context.span();
        let status = match (self.is_http, refusal.map(Refusal::kind)) {
            (true, kind) => {
                let status = kind.map_or(200, RefusalKind::status);
                span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
                status.to_string()
            }
            (false, kind) => {
                let status = kind.map_or("OK", code_name);
                span.set_attribute(KeyValue::new("rpc.response.status_code", status));
                status.to_owned()
            }
        };
        // An error of the request is the client's.
        if let Some(refusal) = refusal
            && refusal.kind().status() >= 500
        {
            span.set_attribute(KeyValue::new("error.type", status));
            span.set_status(Status::error(bounded(refusal.text())));
        }
    }
}

/// Notes what is known of a request that was accepted, on the current span.
pub(crate) fn describe(model: &str, version: u64, id: Option<&str>) {
    Context::map_current(|context| {
        let span = context.span();
        if !span.is_recording() {
            return;
        }
        span.set_attribute(KeyValue::new("slipring.model.name", bounded(model)));
        span.set_attribute(KeyValue::new("slipring.model.version", version.to_string()));
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            span.set_attribute(KeyValue::new("slipring.request.id", bounded(id)));
        }
    });
}

/// Has work run inside of the current span, whichever thread runs it.
pub(crate) fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let context = Context::current();
    move || {
        let _current = context.attach();
        work()
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// Returns the name of the gRPC status of a refusal.
fn code_name(kind: RefusalKind) -> &'static str {
    match kind {
        RefusalKind::InvalidArgument => "INVALID_ARGUMENT",
        RefusalKind::NotFound => "NOT_FOUND",
        RefusalKind::AlreadyExists => "ALREADY_EXISTS",
        RefusalKind::Internal => "INTERNAL",
        RefusalKind::Unavailable => "UNAVAILABLE",
        RefusalKind::Unsupported => "UNIMPLEMENTED",
    }
}

/// Headers as a carrier of trace context.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}
