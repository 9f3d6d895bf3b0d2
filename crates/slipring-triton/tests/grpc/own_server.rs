//! An application's own server of tonic, whose clients take nothing of their responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use prost::Message;
use slipring::DType;
use slipring_triton::{
    Front, Inputs, Limits, Model, ModelError, ModelMetadata, Outputs, TensorSpec,
};
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::http;
use tower::ServiceExt;

use crate::decoupled_served::{Scripted, Stream, scripted, send_bytes, send_number};
use crate::grpc_served::{Client, identity, request, served_by_tonic};
use crate::http_served::{ints, models};
use crate::support::HANG;

const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// A model "long" without inputs, whose output has 24 MiB.
struct Long(ModelMetadata);

impl Long {
    fn new() -> Self {
        let output = TensorSpec::new("O", DType::Uint8, [None]);
        Self(ModelMetadata::new("long").output(output))
    }
}

impl Model for Long {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, _: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        outputs.output("O", [24 << 20])?.write_at(0, &[1])
    }
}

/// Runs `test` with a client of a front of such limits. Its model `scripted` sends responses of 1 MiB for ever, and counts
/// the requests that have ended.
fn with_endless_model(limits: Limits, test: impl AsyncFnOnce(Client, Arc<AtomicUsize>)) {
    let ended = Arc::new(AtomicUsize::new(0));
    let ends = ended.clone();
    let model = Scripted::with(
        |metadata| metadata.instances(1),
        move |_, responses| {
            let failed = loop {
                if let Err(failed) = send_bytes(&responses, 1 << 20) {
                    break failed;
                }
            };
            ends.fetch_add(1, Ordering::Relaxed);
            Err(failed)
        },
    );
    let builder = models::add_all(Front::builder()).decoupled_model(model).model(Long::new());
    let front = builder.limits(limits.stall_timeout(STALL_TIMEOUT)).build().unwrap();
    run(async {
        let client = Client::new(served_by_tonic(&front).await);
        test(client.max_decoding_message_size(i32::MAX as usize), ended).await;
    });
}

/// Runs a test with a deadline.
fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(HANG, test).await }).expect("an end in time");
}

async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_client_that_takes_nothing_loses_its_model_and_all_bytes_after_the_stall_timeout() {
    let limits = Limits::new().bytes_in_flight(48 << 20);
    with_endless_model(limits, async |mut client, ended| {
        let mut stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        until(|| ended.load(Ordering::Relaxed) == 1).await;
        // The client still has its stream, and the front has the bytes of the full queue back, soon: this answer needs half of
        // all.
        let answer = loop {
            match client.model_infer(request("long", Vec::new(), &[])).await {
                Err(status) if status.code() == Code::Unavailable => tokio::task::yield_now().await,
                answer => break answer.unwrap(),
            }
        };
        assert_eq!(answer.into_inner().raw_output_contents[0].len(), 24 << 20);
        // It reads what the connection has taken, then an error.
        let code = loop {
            match stream.next().await {
                Ok(answer) => assert_eq!(answer.expect("no end").error_message, ""),
                Err(status) => break status.code(),
            }
        };
        assert_ne!(code, Code::Ok);
        assert!(client.model_infer(identity(&ints(0..16))).await.is_ok(), "the connection goes on");
    });
}

#[test]
fn an_answer_that_nobody_takes_gives_its_bytes_back_after_the_stall_timeout() {
    // Two answers fit.
    let limits = Limits::new().bytes_in_flight(64 << 20).stall_timeout(STALL_TIMEOUT);
    let front = Front::builder().model(Long::new()).limits(limits).build().unwrap();
    let asked = request("long", Vec::new(), &[]).encode_to_vec();
    let message = Bytes::from([&[0, 0, 0, 0, asked.len() as u8][..], &asked].concat());
    run(async {
        let channel = served_by_tonic(&front).await;
        let mut held = Vec::new();
        while held.len() < 4 {
            let call = http::Request::post("/inference.GRPCInferenceService/ModelInfer")
                .header("content-type", "application/grpc")
                .body(Body::new(Full::new(message.clone())));
            let answer = channel.clone().oneshot(call.unwrap()).await.unwrap();
            // A refusal is a head alone. The client keeps every other answer, and takes none of its body.
            match answer.headers().get("grpc-status") {
                Some(code) => assert_eq!(code, "14", "{:?}", answer.headers()),
                None => held.push(answer),
            }
        }
    });
}

#[test]
fn a_model_may_be_silent_for_longer_than_the_stall_timeout() {
    let model = Scripted::new(|_, responses| {
        for number in 0..2 {
            std::thread::sleep(2 * STALL_TIMEOUT);
            send_number(&responses, number)?;
        }
        Ok(())
    });
    let limits = Limits::new().stall_timeout(STALL_TIMEOUT);
    let front = Front::builder().limits(limits).decoupled_model(model).build().unwrap();
    run(async {
        let mut client = Client::new(served_by_tonic(&front).await);
        let stream = Stream::open(&mut client).await;
        stream.send(scripted("", &[1]));
        assert_eq!(stream.rest().await.len(), 2);
    });
}
