//! Decoupled models: none, one or many responses to a request.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slipring::region::SigbusGuard;
use slipring_triton::{
    InferRequest, InputData, LoadParameters, LoadedModel, ModelError, ModelRepository, ModelState,
    RefusalKind, RequestInput, Responses,
};
use tonic::Code;

use crate::decoupled_served::{
    Scripted, Stream, is_final, received, scripted, send_number, with_final,
};
use crate::grpc_served::inference::*;
use crate::grpc_served::{Served, identity, input, is_refused, output, request, window};
use crate::http_served::ints;
use crate::support::{HANG, wait_until};

/// Returns a request to `repeat_int32`.
fn repeat(elements: &[i32]) -> ModelInferRequest {
    let count = elements.len() as i64;
    let inputs = vec![
        input("IN", "INT32", &[count]),
        input("DELAY", "UINT32", &[count]),
        input("WAIT", "UINT32", &[1]),
    ];
    let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    let delays = vec![0; bytes.len()];
    ModelInferRequest {
        id: "r".to_owned(),
        ..request("repeat_int32", inputs, &[&bytes, &delays, &[0; 4]])
    }
}

fn shared<T>(receiver: Receiver<T>) -> Arc<Mutex<Receiver<T>>> {
    Arc::new(Mutex::new(receiver))
}

fn number(response: &ModelInferResponse) -> u32 {
    let at = response.outputs.iter().position(|output| output.name == "N").unwrap();
    u32::from_le_bytes(response.raw_output_contents[at][..].try_into().unwrap())
}

#[test]
fn a_request_has_as_many_responses_as_its_model_sends_in_order() {
    let served = Served::new();
    let mut client = served.client();
    for elements in [&[][..], &[5], &[4, 3, 2, 1, 0]] {
        for wants_final in [false, true] {
            served.run(async {
                let stream = Stream::open(&mut client).await;
                let asked = repeat(elements);
                stream.send(if wants_final { with_final(asked) } else { asked });
                let answers = stream.rest().await;
                assert_eq!(answers.len(), elements.len() + usize::from(wants_final));
                for (at, answer) in answers.iter().enumerate() {
                    assert_eq!(answer.error_message, "");
                    let response = answer.infer_response.as_ref().unwrap();
                    let head = (&*response.model_name, &*response.id);
                    assert_eq!(head, ("repeat_int32", "r"));
                    assert_eq!(is_final(response), at == elements.len());
                    let Some(element) = elements.get(at) else {
                        assert!(response.outputs.is_empty(), "the last response is empty");
                        continue;
                    };
                    assert_eq!(response.model_version, "1");
                    let wanted = [element.to_le_bytes(), (at as u32).to_le_bytes()];
                    assert_eq!(response.raw_output_contents, [&wanted[0][..], &wanted[1]]);
                    let shapes: Vec<_> =
                        response.outputs.iter().map(|out| &out.shape[..]).collect();
                    assert_eq!(shapes, [[1], [1]]);
                }
            });
        }
    }
}

#[test]
fn a_response_has_the_outputs_that_are_asked_for_and_obtained() {
    let model = Scripted::new(|_, responses| {
        assert!(responses.is_requested("N"));
        for number in 0..2u32 {
            let mut outputs = responses.outputs();
            outputs.output("N", [1])?.write(&[number])?;
            if number > 0 {
                outputs.output("O", [2])?.write(&[8u8, 9])?;
            }
            responses.blocking_send(outputs)?;
        }
        Ok(())
    });
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    served.run(async {
        for wanted in [&["N"][..], &["N", "O"]] {
            let stream = Stream::open(&mut client).await;
            let outputs = wanted.iter().map(|name| output(name)).collect();
            stream.send(ModelInferRequest { outputs, ..scripted("", &[1]) });
            let answers = stream.rest().await;
            assert_eq!(answers.len(), 2, "{answers:?}");
            let names = |at: usize| -> Vec<&str> {
                let response = answers[at].infer_response.as_ref().unwrap();
                response.outputs.iter().map(|output| &*output.name).collect()
            };
            assert_eq!((names(0), &names(1)[..]), (vec!["N"], wanted));
        }
    });
}

#[test]
fn calls_of_one_response_refuse_a_decoupled_model() {
    let served = Served::new();
    let text = "ModelInfer RPC doesn't support models with decoupled transaction policy";
    is_refused(served.infer(repeat(&[1])), Code::Unimplemented, text);
    let tensor = |name: &str, datatype: &str, len| RequestInput {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![len],
        data: InputData::Inline(vec![0; 4 * len as usize].into()),
    };
    let inputs =
        vec![tensor("IN", "INT32", 2), tensor("DELAY", "UINT32", 2), tensor("WAIT", "UINT32", 1)];
    let model = "repeat_int32".to_owned();
    let asked = InferRequest { model, inputs, ..Default::default() };
    let refusal = served.run(served.front.infer(asked)).unwrap_err();
    let text = "Front::infer doesn't support models with decoupled transaction policy";
    assert_eq!((refusal.kind(), refusal.text()), (RefusalKind::Unsupported, text));
}

#[test]
fn a_configuration_tells_which_models_are_decoupled() {
    let served = Served::new();
    let mut client = served.client();
    for (name, is) in [("repeat_int32", true), ("simple", false)] {
        let asked = ModelConfigRequest { name: name.to_owned(), version: String::new() };
        let config = served.run(client.model_config(asked)).unwrap().into_inner().config.unwrap();
        assert_eq!(config.model_transaction_policy.unwrap().decoupled, is, "{name}");
    }
}

#[test]
fn requests_of_a_stream_run_side_by_side() {
    // The first request waits until the client has the response to the second one.
    let (go, gone) = channel();
    let gone = Mutex::new(gone);
    let model = Scripted::new(move |inputs, responses| {
        let id: u32 = inputs.id().unwrap().parse().unwrap();
        send_number(&responses, id)?;
        if id == 0 {
            gone.lock().unwrap().recv_timeout(HANG).unwrap();
        }
        send_number(&responses, id + 10)
    });
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    served.run(async {
        let mut stream = Stream::open(&mut client).await;
        stream.send(scripted("0", &[1]));
        assert_eq!(number(&stream.response().await), 0);
        stream.send(scripted("1", &[1]));
        for wanted in [1, 11] {
            let response = stream.response().await;
            assert_eq!((number(&response), &*response.id), (wanted, "1"));
        }
        // Other models answer in the meantime, in order.
        for id in 0..5 {
            let id = id.to_string();
            stream.send(ModelInferRequest { id, ..identity(&ints(0..16)) });
        }
        for id in 0..5 {
            let response = stream.response().await;
            assert_eq!((&*response.id, is_final(&response)), (&*id.to_string(), true));
        }
        go.send(()).unwrap();
        let answers = stream.rest().await;
        assert_eq!(number(answers[0].infer_response.as_ref().unwrap()), 10);
        assert_eq!(answers.len(), 1);
    });
}

#[test]
fn an_error_comes_after_the_responses_and_the_stream_goes_on() {
    let model = Scripted::new(|inputs, responses| {
        let how = inputs.input("I")?.elements::<u8>()?[0];
        send_number(&responses, 1)?;
        match how {
            0 => Err(ModelError::invalid("no more")),
            1 => panic!("of the model"),
            2 => {
                responses.fail(ModelError::new("no more"));
                Ok(())
            }
            3 => {
                tokio::spawn(async move {
                    responses.send(responses.outputs()).await.unwrap();
                    panic!("of the task");
                });
                Ok(())
            }
            _ => {
                let sent = std::thread::spawn(move || responses.blocking_send(responses.outputs()));
                sent.join().unwrap()?;
                panic!("of the model behind its responses");
            }
        }
    });
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    let (told, panicked) = ("no more", "model 'scripted' failed");
    served.run(async {
        let mut stream = Stream::open(&mut client).await;
        for (how, more, text) in
            [(0, 0, told), (1, 0, panicked), (2, 0, told), (3, 1, panicked), (4, 1, panicked)]
        {
            stream.send(with_final(scripted("e", &[how])));
            for _ in 0..1 + more {
                assert!(!is_final(&stream.response().await));
            }
            let answer = stream.next().await.unwrap().unwrap();
            assert_eq!(answer.error_message, text, "{how}");
            let response = answer.infer_response.unwrap();
            assert_eq!((&*response.id, &*response.model_name), ("e", "scripted"));
            assert!(is_final(&response), "no empty response follows");
        }
        // What is refused before it starts has an answer, too.
        stream.send(with_final(ModelInferRequest { inputs: Vec::new(), ..scripted("x", &[]) }));
        let answer = stream.next().await.unwrap().unwrap();
        assert!(answer.error_message.starts_with("expected 0 raw_input_contents"), "{answer:?}");
        assert_eq!(answer.infer_response.unwrap().id, "x");
        assert!(stream.rest().await.is_empty());
    });
    let counts = served.front.statistics(Some("scripted"), None).unwrap()[0].counts.clone();
    assert_eq!((counts.success.count, counts.fail.count), (0, 5));
}

#[test]
fn an_error_ends_a_strict_stream() {
    let model = Scripted::new(|_, responses| {
        send_number(&responses, 1)?;
        Err(ModelError::invalid("no more"))
    });
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    let mut asked = tonic::Request::new(futures_util::stream::iter([scripted("", &[1])]));
    asked.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    served.run(async {
        let mut answers = client.model_stream_infer(asked).await.unwrap().into_inner();
        assert_eq!(answers.message().await.unwrap().unwrap().error_message, "");
        let status = answers.message().await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "no more"));
    });
}

#[test]
fn a_model_marks_its_last_response_itself() {
    let model = Scripted::with(
        |metadata| metadata.inline(),
        |inputs, responses| {
            let fails = inputs.input("I")?.elements::<u8>()?[0] == 1;
            tokio::spawn(async move {
                for _ in 0..2 {
                    responses.send(responses.outputs()).await.unwrap();
                }
                let mut outputs = responses.outputs();
                outputs.output("N", [1]).unwrap().write(&[2u32]).unwrap();
                responses.send_last(outputs).await.unwrap();
            });
            if fails { Err(ModelError::new("behind it")) } else { Ok(()) }
        },
    );
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    served.run(async {
        for fails in [false, true] {
            let stream = Stream::open(&mut client).await;
            stream.send(with_final(scripted("", &[fails.into()])));
            let answers = stream.rest().await;
            let marks: Vec<bool> = answers
                .iter()
                .map(|answer| is_final(answer.infer_response.as_ref().unwrap()))
                .collect();
            // An error comes last, whatever the model has called the last response.
            let wanted =
                if fails { &[false, false, false, true][..] } else { &[false, false, true] };
            assert_eq!(marks, wanted);
            assert_eq!(number(answers[2].infer_response.as_ref().unwrap()), 2);
            let text = answers.last().unwrap().error_message.as_str();
            assert_eq!(text, if fails { "behind it" } else { "" });
        }
    });
}

#[test]
fn each_response_writes_to_the_same_window() {
    let (go, gone) = channel();
    let gone = Mutex::new(gone);
    let model = Scripted::new(move |inputs, responses| {
        let bytes = inputs.input("I")?.elements::<u8>()?.into_owned();
        for byte in bytes {
            gone.lock().unwrap().recv_timeout(HANG).unwrap();
            let mut outputs = responses.outputs();
            outputs.output("O", [4])?.write(&[byte; 4])?;
            responses.blocking_send(outputs)?;
        }
        Ok(())
    });
    let served = Served::with(|builder| builder.decoupled_model(model));
    let object = served.region("r", 64);
    let mut client = served.client();
    let mut asked = scripted("", &[5, 6, 7]);
    asked.outputs = vec![output("O")];
    asked.outputs[0].parameters = window("r", 8, 4);
    served.run(async {
        let mut stream = Stream::open(&mut client).await;
        stream.send(asked);
        for byte in [5, 6, 7] {
            go.send(()).unwrap();
            let response = stream.response().await;
            assert_eq!(response.raw_output_contents, [&b""[..]]);
            assert_eq!(response.outputs[0].shape, [4]);
            let mut bytes = [1; 6];
            object.read_at(7, &mut bytes).unwrap();
            assert_eq!(bytes, [0, byte, byte, byte, byte, 0]);
        }
        // The name may go while a request runs; the memory stays.
        assert!(stream.rest().await.is_empty());
    });
}

#[test]
fn a_truncated_region_fails_its_request_alone() {
    for in_place in [false, true] {
        if in_place {
            SigbusGuard::install().unwrap();
        }
        let (entered, enters) = channel();
        let (go, gone) = channel();
        let (gone, enters) = (Mutex::new(gone), shared(enters));
        let model = Scripted::new(move |_, responses| {
            let send = || {
                let mut outputs = responses.outputs();
                outputs.output("O", [8192])?.write(&[3u8; 8192])?;
                responses.blocking_send(outputs)
            };
            send()?;
            entered.send(()).unwrap();
            gone.lock().unwrap().recv_timeout(HANG).unwrap();
            // What the model makes of the error is not what the client is told.
            let _ = send();
            Ok(())
        });
        let served = Served::with(|builder| builder.in_place(in_place).decoupled_model(model));
        let object = served.region("r", 8192);
        let path = format!("/dev/shm{}", object.key());
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let mut client = served.client();
        let mut asked = scripted("", &[1]);
        asked.outputs = vec![output("O")];
        asked.outputs[0].parameters = window("r", 0, 8192);
        served.run(async {
            let mut stream = Stream::open(&mut client).await;
            stream.send(asked);
            stream.response().await;
            received(&enters).await;
            file.set_len(100).unwrap();
            go.send(()).unwrap();
            let answer = stream.next().await.unwrap().unwrap();
            let text = "shared memory region 'r' has become shorter than it was registered";
            assert_eq!(answer.error_message, text, "in place: {in_place}");
            stream.send(identity(&ints(0..16)));
            stream.response().await;
        });
        file.set_len(8192).unwrap();
    }
}

#[test]
fn a_request_counts_once_and_takes_as_long_as_its_responses() {
    let model = Scripted::new(|_, responses| {
        tokio::spawn(async move {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                responses.send(responses.outputs()).await.unwrap();
            }
        });
        Ok(())
    });
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    served.run(async {
        for _ in 0..2 {
            let stream = Stream::open(&mut client).await;
            stream.send(scripted("", &[1]));
            assert_eq!(stream.rest().await.len(), 3);
        }
    });
    let counts = served.front.statistics(Some("scripted"), None).unwrap()[0].counts.clone();
    assert_eq!((counts.success.count, counts.fail.count), (2, 0));
    assert_eq!((counts.inference_count, counts.execution_count), (2, 2));
    assert!(counts.compute_infer.ns >= 60_000_000, "{counts:?}");
}

#[test]
fn an_instance_is_in_use_until_the_last_response() {
    let (held, holds) = channel();
    let holds = shared(holds);
    let model = Scripted::with(
        |metadata| metadata.instances(1).max_queue_size(1),
        move |_, responses| {
            held.send(responses).unwrap();
            Ok(())
        },
    );
    let served = Served::with(|builder| builder.decoupled_model(model));
    let mut client = served.client();
    served.run(async {
        let mut stream = Stream::open(&mut client).await;
        stream.send(with_final(scripted("0", &[1])));
        let responses = received(&holds).await;
        // The second one waits, and there is no room for a third one.
        stream.send(with_final(scripted("1", &[1])));
        stream.send(with_final(scripted("2", &[1])));
        let refused = stream.next().await.unwrap().unwrap();
        assert!(refused.error_message.starts_with("Exceeds maximum queue size: 1"), "{refused:?}");
        assert!(holds.lock().unwrap().try_recv().is_err(), "the instance is in use");
        drop(responses);
        assert_eq!(stream.response().await.id, "0");
        drop(received(&holds).await);
        assert_eq!(stream.response().await.id, "1");
    });
    wait_until("all are counted", || {
        served.front.statistics(Some("scripted"), None).unwrap()[0].counts.success.count == 2
    });
}

/// A repository of one decoupled model, which tells when it is dropped.
struct Loadable(Mutex<Sender<Responses>>, Arc<()>);

impl ModelRepository for Loadable {
    fn index(&self) -> Vec<String> {
        vec!["scripted".to_owned()]
    }

    fn load(&self, _: &str, _: LoadParameters) -> Result<LoadedModel, ModelError> {
        let (held, alive) = (Mutex::new(self.0.lock().unwrap().clone()), self.1.clone());
        Ok(LoadedModel::decoupled_model(Scripted::new(move |_, responses| {
            let _ = &alive;
            held.lock().unwrap().send(responses).unwrap();
            Ok(())
        })))
    }
}

#[test]
fn requests_outlive_the_unloading_of_their_model() {
    let (held, holds) = channel();
    let (holds, alive) = (shared(holds), Arc::new(()));
    let repository = Loadable(Mutex::new(held), alive.clone());
    let served = Served::with(|builder| builder.repository(repository));
    let state = || {
        let index = served.front.index(false);
        index.into_iter().find(|entry| entry.name == "scripted").unwrap().state
    };
    let mut client = served.client();
    served.run(async {
        served.front.load_model("scripted", LoadParameters::new()).await.unwrap();
        assert_eq!(state(), ModelState::Ready);
        let mut stream = Stream::open(&mut client).await;
        stream.send(with_final(scripted("", &[1])));
        let responses = received(&holds).await;
        served.front.unload_model("scripted").await.unwrap();
        assert_eq!(state(), ModelState::Unloading);
        responses.send(responses.outputs()).await.unwrap();
        assert!(!is_final(&stream.response().await));
        assert_eq!(Arc::strong_count(&alive), 3, "the model lives");
        drop(responses);
        assert!(is_final(&stream.response().await));
        wait_until("the model is dropped", || Arc::strong_count(&alive) == 2);
        wait_until("the end is told", || state() == ModelState::Unavailable);
        stream.send(scripted("", &[1]));
        let refused = stream.next().await.unwrap().unwrap().error_message;
        assert_eq!(refused, "Request for unknown model: 'scripted' has no available versions");
    });
}
