//! A request is one trace: from its client through the front and the model to another process that the model calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry::global;
use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use slipring::{Connection, Context, DType};
use slipring_triton::{
    AsyncModel, DecoupledModel, Front, Inferring, Inputs, Model, ModelError, ModelMetadata,
    Outputs, Responses, TensorSpec,
};
use tonic::Request;
use tonic::transport::Endpoint;

use crate::grpc_served::inference::ModelInferRequest;
use crate::grpc_served::{self, Client, input, request};
use crate::http_served;
use crate::support::other::{Other, listen_for, say};
use crate::support::unique_name;

const TEST: &str = "a_request_is_one_trace_across_three_processes";

fn export() -> InMemorySpanExporter {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider);
    exporter
}

/// Says all spans, a line each: trace, id, parent, kind, whether it failed, name, attributes.
fn tell(spans: &InMemorySpanExporter) {
    for span in spans.get_finished_spans().unwrap() {
        let SpanData { span_context, parent_span_id, span_kind, status, name, .. } = &span;
        let failed = matches!(status, Status::Error { .. });
        let attributes: Vec<String> =
            span.attributes.iter().map(|one| format!("{}={}", one.key, one.value)).collect();
        let (trace, id) = (span_context.trace_id(), span_context.span_id());
        say(&format!(
            "{trace}|{id}|{parent_span_id}|{span_kind:?}|{failed}|{name}|{}",
            attributes.join(",")
        ));
    }
    say("end");
}

/// A span as a process has told of it.
struct Told {
    trace: String,
    id: String,
    parent: String,
    kind: String,
    failed: bool,
    name: String,
    attributes: BTreeMap<String, String>,
}

fn told(process: &Other) -> Vec<Told> {
    let lines = std::iter::from_fn(|| Some(process.hear()).filter(|line| line != "end"));
    lines
        .map(|line| {
            let parts: Vec<String> = line.split('|').map(str::to_owned).collect();
            let Ok([trace, id, parent, kind, failed, name, attributes]) = <[_; 7]>::try_from(parts)
            else {
                panic!("{line}")
            };
            let attributes = attributes.split(',').filter_map(|one| one.split_once('='));
            let attributes =
                attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            Told { trace, id, parent, kind, failed: failed == "true", name, attributes }
        })
        .collect()
}

/// The process that the models call.
fn service(address: &str) {
    let spans = export();
    let mut listener = Context::new().unwrap().listen(format!("@{address}")).unwrap();
    say("listens");
    let mut link = listener.accept().unwrap();
    while let Some(request) = link.recv_request().unwrap() {
        let _current = request.metadata.server_span("work").attach();
        link.respond(request.id, &request.body).unwrap();
    }
    listen_for("tell");
    tell(&spans);
}

/// A model of any kind that calls the service.
struct Relay(ModelMetadata, Arc<Mutex<Connection>>);

impl Relay {
    fn new(name: &str, link: &Arc<Mutex<Connection>>) -> Self {
        let metadata = ModelMetadata::new(name)
            .input(TensorSpec::new("I", DType::Uint8, [None]))
            .output(TensorSpec::new("O", DType::Uint8, [None]));
        Self(metadata, link.clone())
    }

    fn relay(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        let asked = inputs.input("I")?.elements::<u8>()?.into_owned();
        let answer = self.1.lock().unwrap().call(&asked)?;
        outputs.output("O", [answer.len()])?.write(&answer)?;
        if asked == b"fail" { Err(ModelError::new("as it was told")) } else { Ok(()) }
    }
}

impl Model for Relay {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        self.relay(inputs, outputs)
    }
}

impl AsyncModel for Relay {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer<'a>(&'a self, inputs: &'a Inputs, outputs: &'a mut Outputs) -> Inferring<'a> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.relay(inputs, outputs)
        })
    }
}

impl DecoupledModel for Relay {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: Inputs, responses: Responses) -> Result<(), ModelError> {
        for _ in 0..2 {
            let mut outputs = responses.outputs();
            self.relay(&inputs, &mut outputs)?;
            responses.blocking_send(outputs)?;
        }
        Ok(())
    }
}

/// The process that serves the models.
fn front(address: &str) {
    let spans = export();
    let link = Context::new().unwrap().connect(format!("@{address}")).unwrap();
    let link = Arc::new(Mutex::new(link));
    let inline = Relay::new("inline", &link);
    let front = Front::builder()
        .model(Relay::new("blocking", &link))
        .model(Relay(inline.0.inline(), inline.1))
        .async_model(Relay::new("async", &link))
        .decoupled_model(Relay::new("decoupled", &link))
        .build()
        .unwrap();
    let http = http_served::Served::of(front.clone());
    let grpc = grpc_served::Served::of(front);
    say(&format!("{} {}", http.address, grpc.address));
    listen_for("tell");
    drop((http, grpc, link));
    tell(&spans);
}

fn traceparent(number: u32) -> String {
    format!("00-{number:032x}-{number:016x}-01")
}

fn asked(model: &str, number: u32, text: &[u8]) -> ModelInferRequest {
    let inputs = vec![input("I", "UINT8", &[text.len() as i64])];
    ModelInferRequest { id: format!("r{number}"), ..request(model, inputs, &[text]) }
}

fn traced<T>(number: u32, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("traceparent", traceparent(number).parse().unwrap());
    request
}

#[test]
fn a_request_is_one_trace_across_three_processes() {
    let address = unique_name();
    let kind = |argument: &str| match argument.split_once(' ').unwrap() {
        ("service", address) => service(address),
        (_, address) => front(address),
    };
    let mut service = Other::start(TEST, &format!("service {address}"), kind);
    service.expect("listens");
    let mut front = Other::spawn(TEST, &format!("front {address}"));
    let addresses = front.hear();
    let (http, grpc) = addresses.split_once(' ').unwrap();

    // Each request has a number, which is its trace and the parent of its first span.
    let post = "POST /v2/models/{model}/infer";
    let unary = "inference.GRPCInferenceService/ModelInfer";
    let streamed = "inference.GRPCInferenceService/ModelStreamInfer";
    let mut expected: Vec<(u32, &str, &str, &str, usize, bool)> = Vec::new();
    let mut number = 0;
    let mut client = http_served::Client::new(http.parse().unwrap());
    for model in ["blocking", "inline", "async"] {
        for (text, status) in [("[1, 2]", "200"), ("[102, 97, 105, 108]", "500")] {
            number += 1;
            let shape = if status == "200" { 2 } else { 4 };
            let body = format!(
                r#"{{"id": "r{number}", "inputs": [{{"name": "I", "datatype": "UINT8", "shape": [{shape}], "data": {text}}}]}}"#
            );
            let headers = format!("traceparent: {}\r\n", traceparent(number));
            let path = format!("/v2/models/{model}/infer");
            let answer = client.call_with("POST", &path, &headers, body.as_bytes());
            assert_eq!(answer.status.to_string(), status, "{}", answer.text());
            expected.push((number, model, post, status, 1, status == "500"));
        }
    }
    number += 1;
    let headers = format!("traceparent: {}\r\n", traceparent(number));
    let answer = client.call_with("POST", "/v2/models/no/versions/1/infer", &headers, b"{}");
    assert_eq!(answer.status, 404);
    let post_version = "POST /v2/models/{model}/versions/{version}/infer";
    expected.push((number, "", post_version, "404", 0, false));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).unwrap();
        let mut client = Client::new(endpoint.connect().await.unwrap());
        for (model, text) in [("blocking", &b"ok"[..]), ("inline", b"ok"), ("async", b"fail")] {
            number += 1;
            let answer = client.model_infer(traced(number, asked(model, number, text))).await;
            let failed = answer.is_err();
            let status = if failed { "INTERNAL" } else { "OK" };
            assert_eq!(failed, text == b"fail");
            expected.push((number, model, unary, status, 1, failed));
        }
        for (model, text, calls, status) in [
            ("blocking", &b"ok"[..], 1, "OK"),
            ("async", b"fail", 1, "INTERNAL"),
            ("decoupled", b"ok", 2, "OK"),
            ("decoupled", b"fail", 1, "INTERNAL"),
            ("no", b"ok", 0, "NOT_FOUND"),
        ] {
            number += 1;
            let requests = tokio_stream::once(asked(model, number, text));
            let opened = client.model_stream_infer(traced(number, requests)).await.unwrap();
            let mut answers = opened.into_inner();
            while answers.message().await.unwrap().is_some() {}
            let model = if calls > 0 { model } else { "" };
            expected.push((number, model, streamed, status, calls, status == "INTERNAL"));
        }
    });

    // The front ends its connections when their clients have.
    drop((client, runtime));
    front.tell("tell");
    let fronts = told(&front);
    front.succeeds();
    service.tell("tell");
    let services = told(&service);
    service.succeeds();
    let server = format!("{:?}", SpanKind::Server);
    for (number, model, name, status, calls, failed) in expected {
        let is_of = |span: &&Told| span.trace == format!("{number:032x}");
        let (servers, clients): (Vec<&Told>, Vec<&Told>) =
            fronts.iter().filter(is_of).partition(|span| span.kind == server);
        let [span] = servers[..] else { panic!("{number}: {} server spans", servers.len()) };
        assert_eq!(span.parent, format!("{number:016x}"), "{name} of {model}");
        assert_eq!((&*span.name, span.failed), (name, failed), "{number}: {name} of {model}");
        let attribute = |name: &str| span.attributes.get(name).map_or("", String::as_str);
        let code = format!(
            "{}{}",
            attribute("http.response.status_code"),
            attribute("rpc.response.status_code")
        );
        assert_eq!(code, status, "{number}: {name} of {model}");
        assert_eq!(attribute("error.type"), if failed { status } else { "" });
        assert_eq!(attribute("slipring.model.name"), model);
        if !model.is_empty() {
            assert_eq!(attribute("slipring.model.version"), "1");
            assert_eq!(attribute("slipring.request.id"), format!("r{number}"));
        }
        assert_eq!(clients.len(), calls, "{number}: calls of {model}");
        let works: Vec<&Told> = services.iter().filter(is_of).collect();
        assert_eq!(works.len(), calls, "{number}: work for {model}");
        for client in clients {
            assert_eq!((&client.parent, &*client.name), (&span.id, "slipring"));
            assert_eq!(client.attributes["server.address"], format!("@{address}"));
            let work = works.iter().find(|work| work.parent == client.id);
            let work = work.expect("the service continues the model's span");
            assert_eq!((&*work.name, &*work.kind), ("work", &*server));
        }
    }
}
