//! Loads and unloads of models over gRPC.

use std::collections::BTreeMap;

use slipring_triton::{Front, Limits};
use tonic::{Code, Status};

use crate::grpc_served::inference::model_repository_parameter::ParameterChoice;
use crate::grpc_served::inference::*;
use crate::grpc_served::{Served, input, is_refused, request};
use crate::loadable::{LoadCounts, NAMES};
use crate::support::wait_until;

type Parameters = BTreeMap<String, ModelRepositoryParameter>;

fn served(counts: &LoadCounts) -> Served {
    Served::of(counts.add(Front::builder()).build().unwrap())
}

fn load_with(served: &Served, name: &str, parameters: Parameters) -> Result<(), Status> {
    let request = RepositoryModelLoadRequest {
        model_name: name.to_owned(),
        parameters,
        ..Default::default()
    };
    let mut client = served.client();
    served.run(client.repository_model_load(request)).map(|_| ())
}

fn load(served: &Served, name: &str) -> Result<(), Status> {
    load_with(served, name, Parameters::new())
}

fn unload(served: &Served, name: &str) -> Result<(), Status> {
    let request =
        RepositoryModelUnloadRequest { model_name: name.to_owned(), ..Default::default() };
    let mut client = served.client();
    served.run(client.repository_model_unload(request)).map(|_| ())
}

/// Returns name, version, state and reason of each row of the index.
fn index(served: &Served, ready: bool) -> Vec<[String; 4]> {
    let request = RepositoryIndexRequest { ready, ..Default::default() };
    let mut client = served.client();
    let models = served.run(client.repository_index(request)).unwrap().into_inner().models;
    models.into_iter().map(|row| [row.name, row.version, row.state, row.reason]).collect()
}

fn asked(name: &str) -> ModelInferRequest {
    request(name, vec![input("IN", "UINT8", &[2])], &[&[1, 7]])
}

fn parameters<const N: usize>(given: [(&str, ParameterChoice); N]) -> Parameters {
    let parameter = |choice| ModelRepositoryParameter { parameter_choice: Some(choice) };
    given.into_iter().map(|(name, choice)| (name.to_owned(), parameter(choice))).collect()
}

fn text(text: &str) -> ParameterChoice {
    ParameterChoice::StringParam(text.to_owned())
}

fn bytes(bytes: &[u8]) -> ParameterChoice {
    ParameterChoice::BytesParam(bytes.to_vec().into())
}

#[test]
fn a_model_is_loaded_and_unloaded() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    let row = |row: [&str; 4]| row.map(str::to_owned);
    let rows = index(&served, false);
    assert_eq!(rows.len(), NAMES.len());
    assert_eq!(rows[0], row(["a", "", "UNAVAILABLE", "not loaded"]));
    assert!(index(&served, true).is_empty());
    load(&served, "a").unwrap();
    let answer = served.infer(asked("a")).unwrap();
    assert_eq!(answer.raw_output_contents[0], [1, 7][..]);
    assert_eq!(index(&served, true), [row(["a", "1", "READY", ""])]);
    unload(&served, "a").unwrap();
    let gone = "Request for unknown model: 'a' has no available versions";
    is_refused(served.infer(asked("a")), Code::NotFound, gone);
    let unready = "Request for unknown model: 'a' version 1 is not at ready state";
    let versioned = ModelInferRequest { model_version: "1".to_owned(), ..asked("a") };
    is_refused(served.infer(versioned), Code::Unavailable, unready);
    let unloaded = row(["a", "1", "UNAVAILABLE", "unloaded"]);
    wait_until("the model to be unloaded", || index(&served, false)[0] == unloaded);
    assert_eq!(counts.live(), 0);
    unload(&served, "nobody").unwrap();
}

#[test]
fn every_refusal_has_its_code() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    let unpolled = "failed to load 'nobody', failed to poll from model repository";
    is_refused(load(&served, "nobody"), Code::Internal, unpolled);
    is_refused(load(&served, ""), Code::InvalidArgument, "invalid model name ''");
    let failed = "load failed for model 'bad': its file is broken";
    is_refused(load(&served, "bad"), Code::InvalidArgument, failed);
    let busy = "load failed for model 'busy': the device is busy";
    is_refused(load(&served, "busy"), Code::Unavailable, busy);
    let config = load_with(&served, "a", parameters([("config", bytes(b"{}"))]));
    let wanted = "invalid value type for load parameter 'config', expected string_param.";
    is_refused(config, Code::InvalidArgument, wanted);
    let other = load_with(&served, "a", parameters([("other", text(""))]));
    is_refused(other, Code::InvalidArgument, "unrecognized load parameter 'other'.");

    let mut client = served.client();
    let named = "'repository_name' specification is not supported";
    let repository_name = "r".to_owned();
    let asked = RepositoryIndexRequest { repository_name: repository_name.clone(), ready: false };
    is_refused(served.run(client.repository_index(asked)), Code::Unimplemented, named);
    let asked = RepositoryModelLoadRequest { repository_name, ..Default::default() };
    is_refused(served.run(client.repository_model_load(asked)), Code::Unimplemented, named);
    let asked = RepositoryModelUnloadRequest {
        model_name: "a".to_owned(),
        parameters: parameters([("unload_dependents", text("true"))]),
        ..Default::default()
    };
    let wanted = "invalid value type for 'unload_dependents' parameter, expected bool_param.";
    is_refused(served.run(client.repository_model_unload(asked)), Code::InvalidArgument, wanted);

    let served = Served::new();
    let wanted = "explicit model load / unload is not allowed if polling is enabled";
    is_refused(load(&served, "simple"), Code::Unavailable, wanted);
    is_refused(unload(&served, "simple"), Code::Unavailable, wanted);
    assert!(index(&served, true).iter().any(|row| row[0] == "simple"));
}

#[test]
fn a_load_hands_its_parameters_over() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    let given = [("config", text(r#"{"a":1}"#)), ("file:1/model", bytes(&[0, 255]))];
    load_with(&served, "fresh", parameters(given)).unwrap();
    let answer = served.infer(asked("fresh")).unwrap();
    let wanted = [&[7, 0, 0, 0][..], br#"{"a":1}"#, &[10, 0, 0, 0], b"1/model=\0\xff"].concat();
    assert_eq!(answer.raw_output_contents[2], wanted);
    let wrong = [("config", text("{}")), ("file:/etc/x", bytes(b""))];
    let text = "invalid path of a file: '/etc/x' must be relative and stay in the model's folder";
    is_refused(load_with(&served, "a", parameters(wrong)), Code::InvalidArgument, text);
}

#[test]
fn files_count_as_bytes_in_flight_until_their_load_ends() {
    let counts = LoadCounts::new();
    let limits = Limits::new().bytes_in_flight(1 << 20);
    let served = Served::of(counts.add(Front::builder()).limits(limits).build().unwrap());
    let given = || parameters([("config", text("{}")), ("file:m", bytes(&vec![0; 600 << 10]))]);
    let asked = RepositoryModelLoadRequest {
        model_name: "slow".to_owned(),
        parameters: given(),
        ..Default::default()
    };
    let mut client = served.client();
    // The client goes away. The load goes on, and keeps its bytes.
    served.run(async {
        let loads = tokio::spawn(async move { client.repository_model_load(asked).await });
        tokio::task::block_in_place(|| counts.load.is_reached());
        loads.abort();
        assert!(loads.await.is_err());
    });
    let refused = load_with(&served, "a", given()).unwrap_err();
    assert!(refused.message().starts_with("too many bytes are in flight"), "{refused}");
    counts.load.let_go();
    wait_until("the load to end", || load_with(&served, "a", given()).is_ok());
    assert_eq!(index(&served, true).len(), 2);
}
