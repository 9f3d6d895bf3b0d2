//! Instances: a model executes so many requests at once, so many wait, and the front refuses the others.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use slipring::DType;
use slipring_triton::{
    AsyncModel, Front, InferRequest, Inferring, InputData, Inputs, ModelMetadata, Outputs,
    RequestInput, TensorSpec,
};
use tokio::sync::Semaphore;
use tonic::Code;

use crate::grpc_served::{self, input, request};
use crate::http_served;
use crate::support::wait_until;

/// Returns metadata of a model of one input "I" of bytes.
fn of_bytes(name: &str) -> ModelMetadata {
    ModelMetadata::new(name).input(TensorSpec::new("I", DType::Uint8, [None]))
}

fn asked(model: &str) -> InferRequest {
    let (name, datatype) = ("I".to_owned(), "UINT8".to_owned());
    let data = InputData::Inline(vec![1].into());
    let inputs = vec![RequestInput { name, datatype, shape: vec![1], data }];
    InferRequest { model: model.to_owned(), inputs, ..Default::default() }
}

/// Polls once.
async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// A model whose calls wait for a permit.
struct Held {
    metadata: ModelMetadata,
    go: Arc<Semaphore>,
}

impl Held {
    fn new(metadata: ModelMetadata) -> (Self, Arc<Semaphore>) {
        let go = Arc::new(Semaphore::new(0));
        (Self { metadata, go: go.clone() }, go)
    }
}

impl AsyncModel for Held {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer<'a>(&'a self, _: &'a Inputs, _: &'a mut Outputs) -> Inferring<'a> {
        Box::pin(async {
            self.go.acquire().await.unwrap().forget();
            Ok(())
        })
    }
}

#[test]
fn the_queue_of_an_async_model_is_bounded_over_both_protocols() {
    let (model, go) = Held::new(of_bytes("held").instances(1).max_queue_size(2));
    let front = Front::builder().async_model(model).build().unwrap();
    let http = http_served::Served::of(front.clone());
    let grpc = grpc_served::Served::of(front.clone());
    let waiting = |count: usize| {
        let row = format!(
            "nv_inference_pending_request_count{{model=\"held\",version=\"1\"}} {count}\n"
        );
        wait_until("so many requests wait", || front.metrics().contains(&row));
    };
    const PATH: &str = "/v2/models/held/infer";
    const BODY: &str = r#"{"inputs":[{"name":"I","datatype":"UINT8","shape":[1],"data":[1]}]}"#;
    let start = || {
        let mut client = http.client();
        client.start("POST", PATH, "", BODY.as_bytes());
        client
    };
    let call = || request("held", vec![input("I", "UINT8", &[1])], &[&[1]]);
    // One after another, so that the first one runs.
    let mut clients = Vec::new();
    for count in [0, 1, 2] {
        clients.push(start());
        waiting(count);
    }
    let text = "Exceeds maximum queue size: 2 requests wait for model 'held'";
    http.post(PATH, BODY).is_error(503, text);
    grpc_served::is_refused(grpc.infer(call()), Code::Unavailable, text);
    // A client that leaves makes room for another one.
    clients.pop().unwrap().hang_up();
    waiting(1);
    let mut client = grpc.client();
    let last = grpc.spawn(async move { client.model_infer(call()).await });
    waiting(2);
    go.add_permits(3);
    for mut client in clients {
        client.answer().ok();
    }
    grpc.run(last).unwrap().unwrap();
}

#[test]
fn a_flood_of_requests_to_an_async_model_is_held_up_to_a_bound_by_default() {
    let (model, _go) = Held::new(of_bytes("held"));
    let front = Front::builder().async_model(model).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut all: Vec<_> =
            (0..1024 + 16_384).map(|_| Box::pin(front.infer(asked("held")))).collect();
        for (at, waits) in all.iter_mut().enumerate() {
            assert!(is_pending(waits.as_mut()).await, "request {at}");
        }
        let further = tokio::time::timeout(crate::support::HANG, front.infer(asked("held"))).await;
        let refusal = further.expect("an answer at once").unwrap_err();
        assert_eq!(refusal.kind().status(), 503, "{refusal}");
    });
}
