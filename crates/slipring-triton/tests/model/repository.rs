//! Loads and unloads beside requests of both protocols: every answer is right or a clean refusal, and nothing leaks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use slipring_triton::{Front, Limits, LoadParameters};
use tonic::Code;

use crate::grpc_served::{self, input, request};
use crate::http_served::Served;
use crate::loadable::LoadCounts;
use crate::support::wait_until;

const LOADS: usize = 100;

/// What a client has received.
#[derive(Default)]
struct Received {
    answers: AtomicUsize,
    refusals: AtomicUsize,
}

impl Received {
    fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }
}

/// Infers over HTTP until the end. Each answer has the request's bytes, and the number of a load that never falls.
fn infer_http(served: &Served, ended: &AtomicBool, received: &Received) {
    let mut client = served.client();
    let mut last = 0;
    for at in 0.. {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let first = at % 200;
        let body = format!(
            r#"{{"inputs":[{{"name":"IN","datatype":"UINT8","shape":[2],"data":[{first},1]}}]}}"#
        );
        let answer = client.call("POST", "/v2/models/a/infer", &body);
        if answer.status == 200 {
            let json = answer.json();
            assert_eq!(json["outputs"][0]["data"], serde_json::json!([first, 1]));
            let number = json["outputs"][1]["data"][0].as_i64().unwrap();
            assert!(number >= last, "{number} after {last}");
            last = number;
            received.answers.fetch_add(1, Ordering::Relaxed);
        } else {
            let (status, text) = answer.error();
            assert!(is_clean(status == 404, &text), "{status} {text}");
            received.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The same over gRPC.
fn infer_grpc(served: &grpc_served::Served, ended: &AtomicBool, received: &Received) {
    let mut client = served.client();
    let mut last = 0;
    for at in 0..u64::MAX {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let bytes = [(at % 200) as u8, 1];
        let asked = request("a", vec![input("IN", "UINT8", &[2])], &[&bytes]);
        match served.run(client.model_infer(asked)) {
            Ok(answer) => {
                let outputs = answer.into_inner().raw_output_contents;
                assert_eq!(outputs[0], bytes[..]);
                let number = i64::from_le_bytes(outputs[1][..].try_into().unwrap());
                assert!(number >= last, "{number} after {last}");
                last = number;
                received.answers.fetch_add(1, Ordering::Relaxed);
            }
            Err(status) => {
                assert!(is_clean(status.code() == Code::NotFound, status.message()), "{status}");
                received.refusals.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn is_clean(has_code: bool, text: &str) -> bool {
    has_code && text == "Request for unknown model: 'a' has no available versions"
}

/// Runs clients of both protocols beside `body`, which ends them.
fn beside_clients(front: &Front, body: impl FnOnce(&Received)) -> Received {
    let (http, grpc) = (Served::of(front.clone()), grpc_served::Served::of(front.clone()));
    let (ended, received) = (AtomicBool::new(false), Received::default());
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(scope.spawn(|| infer_http(&http, &ended, &received)));
            clients.push(scope.spawn(|| infer_grpc(&grpc, &ended, &received)));
        }
        body(&received);
        ended.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    received
}

/// Returns a front with the model "a", and a runtime for its loads.
fn loaded(counts: &LoadCounts) -> (Front, tokio::runtime::Runtime) {
    let front = counts.add(Front::builder()).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(front.load_model("a", LoadParameters::new())).unwrap();
    (front, runtime)
}

#[test]
fn a_model_that_is_loaded_anew_refuses_nobody() {
    let counts = LoadCounts::new();
    let (front, runtime) = loaded(&counts);
    let received = beside_clients(&front, |received| {
        for _ in 0..LOADS {
            let before = received.answers();
            runtime.block_on(front.load_model("a", LoadParameters::new())).unwrap();
            wait_until("a request to be answered", || received.answers() > before);
        }
    });
    assert_eq!(received.refusals.load(Ordering::Relaxed), 0);
    assert_eq!(counts.loads(), 1 + LOADS as i64);
    wait_until("all but the last model to be dropped", || counts.live() == 1);
    drop(front);
    assert_eq!(counts.live(), 0);
}

#[test]
fn a_model_that_comes_and_goes_answers_right_or_refuses_cleanly() {
    let counts = LoadCounts::new();
    let (front, runtime) = loaded(&counts);
    let received = beside_clients(&front, |received| {
        for _ in 0..LOADS {
            runtime.block_on(front.unload_model("a")).unwrap();
            let before = received.answers();
            runtime.block_on(front.load_model("a", LoadParameters::new())).unwrap();
            wait_until("a request to be answered", || received.answers() > before);
        }
        runtime.block_on(front.unload_model("a")).unwrap();
    });
    assert!(received.answers() >= LOADS);
    assert_eq!(counts.unloaded.lock().unwrap().len(), LOADS + 1);
    wait_until("all models to be dropped", || counts.live() == 0);
}

#[test]
fn many_loads_and_unloads_of_a_few_names_at_once_leave_what_is_loaded_last() {
    let counts = LoadCounts::new();
    let limits = Limits::new().model_loads(64);
    let front = counts.add(Front::builder()).limits(limits).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|at| {
            let front = front.clone();
            runtime.spawn(async move {
                let name = ["a", "b"][at % 2];
                for _ in 0..LOADS / 2 {
                    front.load_model(name, LoadParameters::new()).await.unwrap();
                    front.unload_model(name).await.unwrap();
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
    assert_eq!(counts.loads(), 16 * LOADS as i64 / 2);
    wait_until("all models to be dropped", || counts.live() == 0);
    runtime.block_on(front.load_model("b", LoadParameters::new())).unwrap();
    assert!(front.is_model_ready("b", None) && !front.is_model_ready("a", None));
    assert_eq!(counts.live(), 1);
}

#[test]
fn an_unloaded_model_is_dropped_on_no_thread_of_the_runtime() {
    use slipring::DType;
    use slipring_triton::*;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;

    struct Told(ModelMetadata, Sender<ThreadId>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.1.send(std::thread::current().id());
        }
    }
    impl AsyncModel for Told {
        fn metadata(&self) -> &ModelMetadata {
            &self.0
        }
        fn infer<'a>(&'a self, _: &'a Inputs, _: &'a mut Outputs) -> Inferring<'a> {
            Box::pin(async {
                tokio::task::yield_now().await;
                Ok(())
            })
        }
    }

    let (told, hears) = channel();
    let metadata = ModelMetadata::new("m").input(TensorSpec::new("I", DType::Uint8, [None]));
    let counts = LoadCounts::new();
    let front = counts.add(Front::builder()).async_model(Told(metadata, told)).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let data = InputData::Inline(vec![1].into());
        let (name, datatype) = ("I".to_owned(), "UINT8".to_owned());
        let inputs = vec![RequestInput { name, datatype, shape: vec![1], data }];
        let asked = InferRequest { model: "m".to_owned(), inputs, ..Default::default() };
        let mut runs = Box::pin(front.infer(asked));
        let begun = std::future::poll_fn(|context| {
            std::task::Poll::Ready(runs.as_mut().poll(context).is_pending())
        });
        assert!(begun.await);
        front.unload_model("m").await.unwrap();
        assert!(hears.try_recv().is_err());
        runs.await.unwrap();
        let thread = hears.recv_timeout(crate::support::HANG).unwrap();
        assert_ne!(thread, std::thread::current().id());
    });
}
