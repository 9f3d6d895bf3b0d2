//! The spans of calls, and of those who serve them.

use std::ops::ControlFlow;
use std::sync::{LazyLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use opentelemetry::propagation::text_map_propagator::FieldIter;
use opentelemetry::propagation::{
    Extractor, Injector, TextMapCompositePropagator, TextMapPropagator,
};
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, SpanKind, Status, TraceContextExt, Tracer,
};
use opentelemetry::{Context as Telemetry, KeyValue, global};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use slipring::error::TryRecvError;
use slipring::message::{MessageKind, Metadata, Response, Value};
use slipring::tokio::AsyncConnection;
use slipring::{Address, Connection, Context, ErrorKind, Reactor, Tensor, TensorSet, meta};

use crate::support::other::{Other, fork};
use crate::support::{HANG, soon, wait_until};

static SPANS: LazyLock<InMemorySpanExporter> = LazyLock::new(|| {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider);
    // Either accepts less, or more, than the library.
    let propagators: Vec<Box<dyn TextMapPropagator + Send + Sync>> =
        vec![Box::new(BaggagePropagator::new()), Box::new(TraceContextPropagator::new())];
    global::set_text_map_propagator(TextMapCompositePropagator::new(propagators));
    exporter
});

/// Returns a context with a new span, which is the root of a trace.
fn root() -> Telemetry {
    LazyLock::force(&SPANS);
    let tracer = global::tracer("test");
    Telemetry::new().with_span(tracer.start_with_context("root", &Telemetry::new()))
}

fn ids(context: &Telemetry) -> SpanContext {
    context.span().span_context().clone()
}

/// Returns the ended spans of a trace, but for its root, as soon as there are so many.
fn ended(trace: &Telemetry, count: usize) -> Vec<SpanData> {
    let (trace, deadline) = (ids(trace).trace_id(), soon() + HANG);
    loop {
        let spans = SPANS.get_finished_spans().unwrap().into_iter();
        let spans: Vec<_> = spans
            .filter(|span| span.span_context.trace_id() == trace && span.name != "root")
            .collect();
        if spans.len() >= count {
            assert_eq!(spans.len(), count, "{spans:?}");
            return spans;
        }
        assert!(Instant::now() < deadline, "{} of {count} spans have ended", spans.len());
        thread::sleep(Duration::from_millis(1));
    }
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|KeyValue { value, .. }| value.to_string())
}

fn traceparent(metadata: &Metadata) -> String {
    match metadata.get("traceparent") {
        Some(Value::String(parent)) => parent.to_owned(),
        other => format!("{other:?}, {} values", metadata.len()),
    }
}

/// Answers each request with the `traceparent` that it carries.
fn serve(mut link: Connection) -> slipring::Result<()> {
    loop {
        let peeked = link.receiver().peek()?.map(|message| message.kind());
        match peeked {
            Some(MessageKind::Request(_)) => {
                let request = link.recv_request()?.unwrap();
                link.respond(request.id, traceparent(&request.metadata).as_bytes())?;
            }
            Some(_) => {
                let request = link.recv_tensor_request()?.unwrap();
                let parent = traceparent(request.tensors.metadata()).into_bytes();
                let mut outputs = TensorSet::new();
                outputs.insert("parent", Tensor::from_slice([parent.len()], &parent)?)?;
                link.respond_tensors(request.id, &outputs)?;
            }
            None => return Ok(()),
        }
    }
}

struct Server {
    context: Context,
    address: Address,
    thread: JoinHandle<slipring::Result<()>>,
}

impl Server {
    fn start(serve: impl FnOnce(Connection) -> slipring::Result<()> + Send + 'static) -> Self {
        let (context, address) = (Context::new().unwrap(), Address::fresh());
        let mut listener = context.listen(&address).unwrap();
        let thread = thread::spawn(move || serve(listener.accept()?));
        Self { context, address, thread }
    }

    fn connect(&self) -> Connection {
        self.context.connect(&self.address).unwrap()
    }

    fn join(self) {
        self.thread.join().unwrap().unwrap();
    }
}

fn inputs() -> TensorSet {
    let mut inputs = TensorSet::new();
    inputs.insert("ids", Tensor::from_slice([2], &[7, 8]).unwrap()).unwrap();
    inputs.set_metadata(meta! { "model" => "sum" }.unwrap());
    inputs
}

fn parent_of(outputs: &TensorSet) -> String {
    String::from_utf8(outputs["parent"].to_vec::<u8>().unwrap()).unwrap()
}

/// Makes a call of each kind in turn inside of a context, and returns what the server has found.
fn call_each(trace: &Telemetry) -> Vec<String> {
    let server = Server::start(serve);
    let mut link = server.connect();
    let current = trace.clone().attach();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let mut found = vec![
        text(link.call(b"").unwrap()),
        text(link.call_deadline(b"", soon() + HANG).unwrap()),
        text(link.call_with(b"", &meta! { "user" => "ann" }.unwrap()).unwrap().0),
        parent_of(&link.call_tensors(&inputs()).unwrap()),
    ];
    let (bytes, tensors) = (link.submit(b"").unwrap(), link.submit_tensors(&inputs()).unwrap());
    found.push(parent_of(&link.wait_tensors(tensors).unwrap()));
    found.push(text(link.wait(bytes).unwrap()));
    let any = link.submit(b"").unwrap();
    let answer = loop {
        match link.try_wait_any(&[any]) {
            Ok((_, Response::Bytes(body, _))) => break body,
            Ok(other) => panic!("{other:?}"),
            Err(TryRecvError::Empty) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    found.push(text(answer));
    drop(current);
    drop(link);
    server.join();

    let server = Server::start(serve);
    let reactor = Reactor::spawn(&server.context).unwrap();
    let link = reactor.adopt(server.connect()).unwrap();
    let (tell, hear) = mpsc::channel();
    let current = trace.clone().attach();
    let told = tell.clone();
    link.call_with(b"", move |_, response| told.send(text(response.unwrap())).unwrap());
    link.call_tensors_with(inputs(), move |_, response| {
        tell.send(parent_of(&response.unwrap())).unwrap();
    });
    drop(current);
    found.extend((0..2).map(|_| hear.recv_timeout(HANG).unwrap()));
    link.close();
    server.join();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::start(serve);
    let calls = async {
        let mut link = AsyncConnection::new(server.connect()).unwrap();
        let mut found = vec![
            text(link.call(b"").await.unwrap()),
            parent_of(&link.call_tensors(&inputs()).await.unwrap()),
        ];
        let caller = link.into_caller();
        found.push(text(caller.call(b"").await.unwrap()));
        found.push(parent_of(&caller.call_tensors(&inputs()).await.unwrap()));
        found
    };
    found.extend(runtime.block_on(calls.with_context(trace.clone())));
    server.join();
    found
}

#[test]
fn each_call_has_a_span_whose_ids_travel_with_the_request() {
    let trace = root();
    let found = call_each(&trace);
    let (spans, root) = (ended(&trace, found.len()), ids(&trace));
    for (parent, at) in found.iter().zip(0..) {
        let is_it = |span: &&SpanData| parent[36..52] == span.span_context.span_id().to_string();
        let span = spans.iter().find(is_it);
        let span = span.unwrap_or_else(|| panic!("call {at}: {parent} is of no span"));
        assert_eq!(*parent, format!("00-{}-{}-01", root.trace_id(), span.span_context.span_id()));
        assert_eq!((span.parent_span_id, &span.span_kind), (root.span_id(), &SpanKind::Client));
        assert_eq!(span.status, Status::Unset, "call {at}");
        assert_eq!(attribute(span, "rpc.system.name").unwrap(), "slipring");
        assert!(attribute(span, "server.address").unwrap().starts_with('@'), "{span:?}");
        let pid = std::process::id().to_string();
        assert_eq!(attribute(span, "slipring.peer.pid").unwrap(), pid);
    }
}

#[test]
fn outside_of_a_span_a_call_sends_nothing_more() {
    let found = call_each(&Telemetry::new());
    for (parent, at) in found.iter().zip(0..) {
        // The caller's own metadata arrives.
        let own = usize::from([2, 3, 4, 8, 10, 12].contains(&at));
        assert_eq!(*parent, format!("None, {own} values"), "call {at}");
    }
}

#[test]
fn baggage_travels_by_the_global_propagator() {
    use opentelemetry::baggage::BaggageExt;
    let trace = root().with_baggage([KeyValue::new("user", "ann")]);
    let server = Server::start(|mut link| {
        let request = link.recv_request()?.unwrap();
        let remote = request.metadata.remote_context();
        let user = remote.baggage().get("user").map(|user| user.to_string());
        link.respond(request.id, user.unwrap_or_default().as_bytes())
    });
    let current = trace.attach();
    assert_eq!(server.connect().call(b"").unwrap(), b"ann");
    drop(current);
    server.join();
}

/// Checks that a trace's one call has failed.
#[track_caller]
fn failed(trace: &Telemetry, kind: &str) {
    let span = ended(trace, 1).remove(0);
    assert_eq!(attribute(&span, "error.type").as_deref(), Some(kind));
    assert!(matches!(&span.status, Status::Error { description } if !description.is_empty()));
}

#[test]
fn the_error_of_a_call_is_that_of_its_span() {
    // The server receives, and answers nothing.
    let server = Server::start(|mut link| {
        while link.recv_request()?.is_some() {}
        Ok(())
    });
    let mut link = server.connect();

    let trace = root();
    let current = trace.clone().attach();
    link.call_deadline(b"", Instant::now()).unwrap_err();
    failed(&trace, "TimedOut");
    drop(current);

    let trace = root();
    let current = trace.clone().attach();
    let request = link.submit(b"").unwrap();
    link.wait_deadline(request, Instant::now()).unwrap_err();
    ended(&trace, 0);
    link.abandon(request);
    failed(&trace, "abandoned");
    drop(current);

    let trace = root();
    let current = trace.clone().attach();
    link.submit(b"").unwrap();
    drop(link);
    failed(&trace, "abandoned");
    drop(current);
    server.join();
}

#[test]
fn the_end_of_the_peer_ends_the_spans_of_calls() {
    for tensors in [false, true] {
        let server = Server::start(|mut link| {
            link.receiver().recv_with()?;
            Ok(())
        });
        let (mut link, trace) = (server.connect(), root());
        let current = trace.clone().attach();
        let request = link.submit(b"").unwrap();
        link.send(b"end").unwrap();
        drop(current);
        match tensors {
            true => drop(link.wait_tensors(request).unwrap_err()),
            false => drop(link.wait(request).unwrap_err()),
        }
        failed(&trace, "PeerClosed");
        drop(server.thread.join().unwrap());
    }

    let server = Server::start(|mut link| link.recv_request().map(drop));
    let reactor = Reactor::spawn(&server.context).unwrap();
    let (link, trace) = (reactor.adopt(server.connect()).unwrap(), root());
    let current = trace.clone().attach();
    link.call_with(b"", |_, response| drop(response.unwrap_err()));
    drop(current);
    failed(&trace, "PeerClosed");
    server.join();
}

#[test]
fn the_end_of_the_peer_ends_no_span_whose_response_has_come() {
    let server = Server::start(|mut link| {
        let request = link.recv_request()?.unwrap();
        link.respond_tensors(request.id, &inputs())
    });
    let (mut link, trace) = (server.connect(), root());
    let current = trace.clone().attach();
    let request = link.submit(b"").unwrap();
    drop(current);
    server.join();
    wait_until("the end", || link.send(b"too late").is_err());
    let error = link.wait(request).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OtherKind { .. }), "{error}");
    ended(&trace, 0);
    link.wait_tensors(request).unwrap();
    assert_eq!(ended(&trace, 1).remove(0).status, Status::Unset);
}

#[test]
fn a_response_that_was_set_aside_can_be_abandoned() {
    let server = Server::start(serve);
    let (mut link, trace, other) = (server.connect(), root(), root());
    let current = trace.clone().attach();
    let first = link.submit(b"").unwrap();
    drop(current);
    let current = other.clone().attach();
    let second = link.submit(b"").unwrap();
    drop(current);
    link.wait(second).unwrap();
    ended(&trace, 0);
    link.abandon(first);
    failed(&trace, "abandoned");
    drop(link);
    server.join();
}

/// A propagator that panics over what a peer sends.
#[derive(Debug)]
struct Faulty;

impl TextMapPropagator for Faulty {
    fn inject_context(&self, _: &Telemetry, _: &mut dyn Injector) {}

    fn extract_with_context(&self, _: &Telemetry, _: &dyn Extractor) -> Telemetry {
        panic!("as the test asks for")
    }

    fn fields(&self) -> FieldIter<'_> {
        FieldIter::new(&[])
    }
}

/// In a process of its own, for a propagator and a fork of its own.
#[test]
fn spans_hurt_neither_a_reactor_nor_the_child_of_a_fork() {
    let mut other =
        Other::start("spans_hurt_neither_a_reactor_nor_the_child_of_a_fork", "", |_| {
            let trace = root();
            let server = Server::start(serve);
            let mut link = server.connect();
            let current = trace.clone().attach();
            link.submit(b"").unwrap();
            drop(current);
            let status = fork(move || {
                drop(link);
                assert_eq!(
                    SPANS.get_finished_spans().unwrap().len(),
                    0,
                    "the span is the parent's"
                );
            });
            assert_eq!(status, 0);
            failed(&trace, "abandoned");

            global::set_text_map_propagator(Faulty);
            let (context, address) = (Context::new().unwrap(), Address::fresh());
            let reactor = Reactor::spawn(&context).unwrap();
            let serving = reactor.clone();
            let accept = move |accepted: slipring::Result<Connection>| {
                let link = serving.adopt(accepted.unwrap()).unwrap();
                link.on_message(|link, message| {
                    if let MessageKind::Request(id) = message.kind() {
                        link.respond(id, message.to_vec());
                    }
                });
                ControlFlow::Continue(())
            };
            reactor.accept_with(context.listen(&address).unwrap(), accept).unwrap();
            let mut link = context.connect(&address).unwrap();
            let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
            let metadata = meta! { "traceparent" => parent }.unwrap();
            for _ in 0..2 {
                assert_eq!(link.call_with(b"ask", &metadata).unwrap().0, b"ask");
            }
        });
    other.succeeds();
}

#[test]
fn a_dropped_future_abandons_its_call() {
    let server = Server::start(|mut link| {
        while link.recv_request()?.is_some() {}
        Ok(())
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut link = AsyncConnection::new(server.connect()).unwrap();
        let trace = root();
        let call = link.call(b"").with_context(trace.clone());
        tokio::time::timeout(Duration::from_millis(1), call).await.unwrap_err();
        failed(&trace, "abandoned");
    });
    server.join();
}

#[test]
fn a_call_whose_metadata_is_full_goes_without() {
    let server = Server::start(serve);
    let (mut link, trace) = (server.connect(), root());
    let long = "x".repeat(255);
    let full = meta! { "first" => &long, "second" => &long[..200] }.unwrap();
    let current = trace.clone().attach();
    let (answer, _) = link.call_with(b"", &full).unwrap();
    drop(current);
    assert_eq!(answer, b"None, 2 values");
    let span = ended(&trace, 1).remove(0);
    assert_eq!(span.events.iter().map(|event| &event.name).collect::<Vec<_>>(), ["no traceparent"]);
    assert_eq!(span.status, Status::Unset);
    drop(link);
    server.join();
}

#[test]
fn a_handler_of_a_reactor_runs_inside_of_a_span() {
    let (context, address) = (Context::new().unwrap(), Address::fresh());
    let reactor = Reactor::spawn(&context).unwrap();
    let (serving, (tell, hear)) = (reactor.clone(), mpsc::channel());
    let accept = move |accepted: slipring::Result<Connection>| {
        let (link, told) = (serving.adopt(accepted.unwrap()).unwrap(), tell.clone());
        link.on_message(move |link, message| {
            told.send(ids(&Telemetry::current())).unwrap();
            match message.kind() {
                MessageKind::Request(_) if message.len() > 3 => panic!("as the test asks for"),
                MessageKind::Request(id) => link.respond(id, message.to_vec()),
                _ => {}
            }
        });
        let told = tell.clone();
        link.on_tensor_request(move |link, request| {
            told.send(ids(&Telemetry::current())).unwrap();
            link.respond_tensors(request.id, request.tensors);
        });
        ControlFlow::Continue(())
    };
    reactor.accept_with(context.listen(&address).unwrap(), accept).unwrap();
    let mut link = context.connect(&address).unwrap();

    // Without a remote parent, or with a bad one, there is no span. The SDK's propagator takes the last for a good one.
    LazyLock::force(&SPANS);
    let current = Telemetry::new();
    link.send(b"message").unwrap();
    link.call(b"ask").unwrap();
    link.call_with(b"ask", &meta! { "traceparent" => "00-none" }.unwrap()).unwrap();
    link.call_with(b"ask", &meta! { "traceparent" => "00-1-1-01" }.unwrap()).unwrap();
    link.call_tensors(&inputs()).unwrap();
    for _ in 0..5 {
        assert_eq!(hear.recv_timeout(HANG).unwrap(), ids(&current));
    }

    let trace = root();
    let current = trace.clone().attach();
    link.call(b"ask").unwrap();
    link.call_tensors(&inputs()).unwrap();
    link.call(b"panic").unwrap_err();
    drop(current);
    let inside: Vec<_> = (0..3).map(|_| hear.recv_timeout(HANG).unwrap()).collect();
    let spans = ended(&trace, 6);
    let is = |id: SpanId| move |span: &&SpanData| span.span_context.span_id() == id;
    for (ids, at) in inside.iter().zip(0..) {
        let server = spans.iter().find(is(ids.span_id())).expect("the current span has ended");
        assert_eq!(server.span_kind, SpanKind::Server);
        let client = spans.iter().find(is(server.parent_span_id)).expect("the parent is a call");
        assert_eq!(client.span_kind, SpanKind::Client);
        assert_eq!(matches!(server.status, Status::Error { .. }), at == 2, "{server:?}");
    }
}

#[test]
fn a_message_carries_what_its_sender_injects() {
    let server = Server::start(|mut link| {
        let (_, metadata) = link.receiver().recv_with()?.unwrap();
        drop(metadata.server_span("show").attach());
        Ok(())
    });
    let (mut link, trace) = (server.connect(), root());
    let mut metadata = meta! { "frame" => 7 }.unwrap();
    metadata.inject(&trace).unwrap();
    link.sender().send_with(b"frame", &metadata).unwrap();
    server.join();
    let span = ended(&trace, 1).remove(0);
    assert_eq!((&*span.name, span.parent_span_id), ("show", ids(&trace).span_id()));
    assert!(span.parent_span_is_remote);
}
