//! Threads: no request blocks another one, a panic fails its own request alone, and every request is counted.

use std::future::poll_fn;
use std::io::Write;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;

use crate::http_served::Gate;
use crate::support::{HANG, unique_name, wait_until};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use flate2::Compression;
use flate2::write::GzEncoder;
use slipring::DType;
use slipring::region::PosixShm;
use slipring_triton::{
    AsyncModel, Counts, Front, InferRequest, Inferring, InputData, Inputs, Model, ModelError,
    ModelMetadata, Outputs, RegionWindow, RequestInput, TensorSpec, http_router,
};
use tower::ServiceExt;

/// Returns a runtime of one thread and one blocking thread.
fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.max_blocking_threads(1).enable_all().build().unwrap()
}

fn asked(model: &str, datatype: &str, count: i64, data: InputData) -> InferRequest {
    let (name, datatype) = ("I".to_owned(), datatype.to_owned());
    let inputs = vec![RequestInput { name, datatype, shape: vec![count], data }];
    InferRequest { model: model.to_owned(), inputs, ..Default::default() }
}

/// Polls once.
async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

fn counts(front: &Front, model: &str) -> Counts {
    front.statistics(Some(model), None).unwrap()[0].counts.clone()
}

#[test]
fn what_nobody_waits_for_is_counted_and_is_not_begun() {
    let (gate, hears, go) = Gate::new();
    let front = Front::builder().model(gate).build().unwrap();
    let request = || asked("gate", "UINT8", 1, InputData::Inline(vec![1].into()));
    runtime().block_on(async {
        let mut runs = Box::pin(front.infer(request()));
        assert!(is_pending(runs.as_mut()).await);
        hears.recv_timeout(HANG).unwrap();
        // This request waits behind the running one. The test abandons both.
        let mut waits = Box::pin(front.infer(request()));
        assert!(is_pending(waits.as_mut()).await);
        drop((waits, runs));
        assert_eq!(counts(&front, "gate"), Counts::default());
        go.send(()).unwrap();
        wait_until("both are counted", || {
            let counts = counts(&front, "gate");
            (counts.success.count, counts.fail.count) == (1, 1)
        });
    });
    assert!(hears.try_recv().is_err(), "it was begun for nobody");
}

#[test]
fn a_slow_model_leaves_threads_to_the_others() {
    let (gate, hears, go) = Gate::new();
    let echo = Echo(ModelMetadata::new("echo").input(TensorSpec::new("I", DType::Uint8, [None])));
    let front = Front::builder().model(gate).model(echo).build().unwrap();
    let request = |model| asked(model, "UINT8", 1, InputData::Inline(vec![1].into()));
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let mut slow: Vec<_> = (0..4000).map(|_| Box::pin(front.infer(request("gate")))).collect();
        for waits in &mut slow {
            assert!(is_pending(waits.as_mut()).await);
        }
        hears.recv_timeout(HANG).unwrap();
        // No call of the slow model ends before the other model has answered.
        let fast = tokio::time::timeout(HANG, front.infer(request("echo"))).await;
        fast.expect("an answer beside 4,000 slow requests").unwrap();
        // The requests in the queue leave it, and the calls that run may end.
        drop(slow);
        (0..4000).for_each(|_| go.send(()).unwrap());
    });
}

#[test]
fn a_full_queue_refuses_and_takes_requests_again_when_one_leaves_it() {
    let (gate, hears, go) = Gate::of(|metadata| metadata.instances(1).max_queue_size(2));
    let front = Front::builder().model(gate).build().unwrap();
    let request = || asked("gate", "UINT8", 1, InputData::Inline(vec![1].into()));
    runtime().block_on(async {
        let mut all: Vec<_> = (0..3).map(|_| Box::pin(front.infer(request()))).collect();
        for waits in &mut all {
            assert!(is_pending(waits.as_mut()).await);
        }
        hears.recv_timeout(HANG).unwrap();
        let refusal = front.infer(request()).await.unwrap_err();
        let text = "Exceeds maximum queue size: 2 requests wait for model 'gate'";
        assert_eq!((refusal.kind().status(), refusal.text()), (503, text));
        drop(all.pop());
        let mut again = Box::pin(front.infer(request()));
        assert!(is_pending(again.as_mut()).await);
        (0..3).for_each(|_| go.send(()).unwrap());
        for answer in all.into_iter().chain([again]) {
            answer.await.unwrap();
        }
    });
}

/// A model without outputs that answers at once, on a thread of its own.
struct Echo(ModelMetadata);

impl Model for Echo {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, _: &Inputs, _: &mut Outputs) -> Result<(), ModelError> {
        Ok(())
    }
}

/// A model that records the yields of others before its call, or panics at once.
struct Turns {
    metadata: ModelMetadata,
    others: Arc<AtomicUsize>,
    seen: Sender<usize>,
}

impl AsyncModel for Turns {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer<'a>(&'a self, _: &'a Inputs, outputs: &'a mut Outputs) -> Inferring<'a> {
        assert!(self.metadata.name() != "panics", "before there is a future");
        self.seen.send(self.others.load(Ordering::Relaxed)).unwrap();
        // The output is obtained and written in part.
        let written =
            outputs.output("O", [64 << 20]).and_then(|mut output| output.write_at(0, &[1]));
        Box::pin(async move { written })
    }
}

struct Others {
    front: Front,
    turns: Arc<AtomicUsize>,
    seen: Receiver<usize>,
}

impl Others {
    fn new() -> Self {
        let (turns, (seen, hears)) = (Arc::new(AtomicUsize::new(0)), channel());
        let model = |name, dtype| Turns {
            metadata: ModelMetadata::new(name)
                .input(TensorSpec::new("I", dtype, [None]))
                .output(TensorSpec::new("O", DType::Uint8, [None])),
            others: turns.clone(),
            seen: seen.clone(),
        };
        let builder = Front::builder()
            .async_model(model("texts", DType::Bytes))
            .async_model(model("bytes", DType::Uint8))
            .async_model(model("panics", DType::Uint8));
        Self { front: builder.build().unwrap(), turns, seen: hears }
    }

    /// Runs `act` beside a task that counts its own turns. Returns the result, the turns before the model's call, and
    /// all turns.
    fn beside<T>(&self, act: impl Future<Output = T>) -> (T, usize, usize) {
        self.turns.store(0, Ordering::Relaxed);
        let other = async {
            loop {
                self.turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        };
        runtime().block_on(async {
            let (mut act, mut other) = (pin!(act), pin!(other));
            let done = poll_fn(|context| {
                let polled = act.as_mut().poll(context);
                assert!(other.as_mut().poll(context).is_pending());
                polled
            });
            let done = tokio::time::timeout(HANG, done).await.expect("an answer in time");
            (done, self.seen.recv().unwrap(), self.turns.load(Ordering::Relaxed))
        })
    }
}

/// Returns strings of one byte that take a while to validate.
fn texts(count: usize) -> Vec<u8> {
    [1, 0, 0, 0, b'x'].repeat(count)
}

#[test]
fn others_have_their_turn_while_long_texts_are_looked_at() {
    let others = Others::new();
    let count = 2_000_000;
    let text = texts(count);
    let object = PosixShm::create(&format!("/{}", unique_name()), text.len() as u64).unwrap();
    object.write_at(0, &text).unwrap();
    let len = text.len() as u64;
    others.front.shared_memory().register_system("r", object.key(), 0, len).unwrap();
    let window = RegionWindow { name: "r".to_owned(), offset: 0, len };
    for data in [InputData::Inline(text.into()), InputData::Region(window)] {
        let infer = others.front.infer(asked("texts", "BYTES", count as i64, data));
        let (done, before, all) = others.beside(infer);
        done.unwrap();
        assert!(before > 0, "a long text was looked at in one turn");
        assert!(all > before, "an output was filled up in one turn");
    }
}

#[test]
fn others_have_their_turn_while_a_body_is_decoded() {
    let others = Others::new();
    let mut coded = GzEncoder::new(Vec::new(), Compression::best());
    coded.write_all(&vec![0; 32 << 20]).unwrap();
    let request = Request::post("/v2/models/bytes/infer")
        .header("Inference-Header-Content-Length", "0")
        .header("Content-Encoding", "gzip")
        .body(Body::from(coded.finish().unwrap()));
    let serve = http_router(others.front.clone()).oneshot(request.unwrap());
    let (reply, before, _) = others.beside(serve);
    assert_eq!(reply.unwrap().status(), StatusCode::OK);
    assert!(before >= 32, "{before} turns while 32 MiB are decoded");
}

#[test]
fn a_panic_before_there_is_a_future_ends_its_request_alone() {
    let others = Others::new();
    let request = || asked("panics", "UINT8", 1, InputData::Inline(vec![1].into()));
    runtime().block_on(async {
        let refusal = others.front.infer(request()).await.unwrap_err();
        assert_eq!((refusal.kind().status(), refusal.text()), (500, "model 'panics' failed"));
    });
    assert_eq!(counts(&others.front, "panics").fail.count, 1);
}
