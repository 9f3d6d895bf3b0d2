//! Instances: a model executes so many requests at once, so many wait, and the front refuses the others.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::join_all;
use slipring::DType;
use slipring_triton::{
    AsyncModel, Front, InferRequest, Inferring, InputData, Inputs, Limits, LoadParameters,
    LoadedModel, Model, ModelError, ModelMetadata, ModelRepository, Outputs, RequestInput,
    TensorSpec,
};
use tokio::sync::Semaphore;
use tonic::Code;

use crate::grpc_served::{self, input, request};
use crate::http_served;
use crate::support::{HANG, wait_until};

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
        let row =
            format!("nv_inference_pending_request_count{{model=\"held\",version=\"1\"}} {count}\n");
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
        let further = tokio::time::timeout(HANG, front.infer(asked("held"))).await;
        let refusal = further.expect("an answer at once").unwrap_err();
        assert_eq!(refusal.kind().status(), 503, "{refusal}");
    });
}

/// Models without outputs whose calls wait for permits, on threads of their own.
struct Slow {
    metadata: ModelMetadata,
    running: Arc<AtomicUsize>,
    go: Arc<Mutex<Receiver<()>>>,
}

impl Model for Slow {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, _: &Inputs, _: &mut Outputs) -> Result<(), ModelError> {
        self.running.fetch_add(1, Ordering::Relaxed);
        // Returns once the sender is dropped.
        let _ = self.go.lock().unwrap().recv_timeout(HANG);
        Ok(())
    }
}

/// A model that answers at once, on a thread of its own.
struct Fast(ModelMetadata);

impl Model for Fast {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, _: &Inputs, _: &mut Outputs) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Runs `test` with requests to so many slow models whose instances are all taken, beside a model "fast", on a runtime as
/// tokio builds it. The slow models have `running` calls at once.
fn beside_slow_models(
    models: usize,
    limits: Limits,
    running: usize,
    test: impl AsyncFnOnce(&Front),
) {
    let (go, hears) = channel();
    let (calls, hears) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(hears)));
    let names: Vec<String> = (0..models).map(|at| format!("slow{at}")).collect();
    let slow = |name: &String| Slow {
        metadata: of_bytes(name),
        running: calls.clone(),
        go: hears.clone(),
    };
    let builder = Front::builder().limits(limits).model(Fast(of_bytes("fast")));
    let builder = names.iter().map(slow).fold(builder, |builder, slow| builder.model(slow));
    let front = builder.build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let requests = names.iter().flat_map(|name| std::iter::repeat_n(name, 33));
        let mut slow: Vec<_> = requests.map(|name| Box::pin(front.infer(asked(name)))).collect();
        for waits in &mut slow {
            assert!(is_pending(waits.as_mut()).await);
        }
        wait_until("the threads are taken", || calls.load(Ordering::Relaxed) == running);
        test(&front).await;
        assert_eq!(calls.load(Ordering::Relaxed), running, "the threads of slow models");
        drop(go);
        for answer in join_all(slow).await {
            answer.unwrap();
        }
    });
}

#[test]
fn slow_models_leave_each_other_model_a_thread_and_the_runtime_some() {
    // Each has 32 instances, which would be more threads than the 512 of a runtime.
    for models in [17, 40] {
        beside_slow_models(models, Limits::new(), 224 + models, async |front| {
            for _ in 0..3 {
                let fast = tokio::time::timeout(HANG, front.infer(asked("fast"))).await;
                fast.expect("an answer beside slow models").unwrap();
            }
            let other = tokio::task::spawn_blocking(|| ());
            tokio::time::timeout(HANG, other).await.expect("a thread for other work").unwrap();
        });
    }
}

#[test]
fn the_threads_that_models_share_are_an_option() {
    beside_slow_models(3, Limits::new().model_threads(0), 3, async |front| {
        // The thread of its own is for one call at a time, so these run one after another.
        let both = async { tokio::join!(front.infer(asked("fast")), front.infer(asked("fast"))) };
        let (first, second) = tokio::time::timeout(HANG, both).await.expect("both answers");
        first.and(second).unwrap();
    });
}

/// A repository of every [`Slow`] model. Their drops wait for a permit, too.
struct SlowRepository {
    running: Arc<AtomicUsize>,
    dropping: Arc<AtomicUsize>,
    go: Arc<Mutex<Receiver<()>>>,
}

struct SlowToDrop(Slow, Arc<AtomicUsize>);

impl Model for SlowToDrop {
    fn metadata(&self) -> &ModelMetadata {
        self.0.metadata()
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        self.0.infer(inputs, outputs)
    }
}

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
        let _ = self.0.go.lock().unwrap().recv_timeout(HANG);
    }
}

impl ModelRepository for SlowRepository {
    fn index(&self) -> Vec<String> {
        (0..40).map(|at| format!("slow{at}")).collect()
    }

    fn load(&self, name: &str, _: LoadParameters) -> Result<LoadedModel, ModelError> {
        let (metadata, running) = (of_bytes(name), self.running.clone());
        let slow = Slow { metadata, running, go: self.go.clone() };
        Ok(LoadedModel::model(SlowToDrop(slow, self.dropping.clone())))
    }
}

/// Runs `test` with a front of that repository, the numbers of its calls and drops, and what lets them end.
fn with_slow_repository(
    limits: Limits,
    test: impl AsyncFnOnce(&Front, &AtomicUsize, &AtomicUsize, Sender<()>),
) {
    let (go, hears) = channel();
    let [running, dropping] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    let (runs, drops) = (running.clone(), dropping.clone());
    let source = SlowRepository { running, dropping, go: Arc::new(Mutex::new(hears)) };
    let front = Front::builder().limits(limits).repository(source).build().unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test(&front, &runs, &drops, go));
}

#[test]
fn models_that_are_slow_to_drop_leave_threads_to_other_work() {
    with_slow_repository(Limits::new(), async |front, _, dropping, go| {
        for at in 0..40 {
            let name = format!("slow{at}");
            front.load_model(&name, LoadParameters::new()).await.unwrap();
            front.unload_model(&name).await.unwrap();
        }
        wait_until("drops have begun", || dropping.load(Ordering::Relaxed) == 16);
        // An unload comes behind all drops that could begin.
        front.unload_model("slow0").await.unwrap();
        assert_eq!(dropping.load(Ordering::Relaxed), 16);
        drop(go);
        wait_until("all are dropped", || dropping.load(Ordering::Relaxed) == 40);
    });
}

#[test]
fn models_that_follow_one_another_under_a_name_share_its_thread() {
    with_slow_repository(Limits::new().model_threads(0), async |front, running, _, go| {
        let mut calls = Vec::new();
        for _ in 0..3 {
            front.load_model("slow0", LoadParameters::new()).await.unwrap();
            let mut call = Box::pin(front.infer(asked("slow0")));
            assert!(is_pending(call.as_mut()).await);
            wait_until("the first call runs", || running.load(Ordering::Relaxed) > 0);
            calls.push(call);
        }
        // A load comes behind all calls that could begin.
        front.load_model("slow1", LoadParameters::new()).await.unwrap();
        assert_eq!(running.load(Ordering::Relaxed), 1);
        drop(go);
        for answer in join_all(calls).await {
            answer.unwrap();
        }
    });
}
