//! Loads and unloads of models over HTTP.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use serde_json::{Value, json};
use slipring_triton::{Front, Limits, LoadParameters};

use crate::http_served::{Answer, Client, Served, models};
use crate::loadable::{LoadCounts, Loadable, NAMES};
use crate::support::wait_until;

const INDEX: &str = "/v2/repository/index";

/// A front of one thread with the repository alone.
fn served(counts: &LoadCounts) -> Served {
    with_limits(counts, Limits::new())
}

fn with_limits(counts: &LoadCounts, limits: Limits) -> Served {
    Served::on(counts.add(Front::builder()).limits(limits).build().unwrap(), 1)
}

fn load(served: &Served, name: &str, body: &str) -> Answer {
    served.post(&format!("/v2/repository/models/{name}/load"), body)
}

fn unload(served: &Served, name: &str) -> Answer {
    served.post(&format!("/v2/repository/models/{name}/unload"), "")
}

fn asked(first: u8) -> String {
    let data = format!(r#"{{"name":"IN","datatype":"UINT8","shape":[2],"data":[{first},7]}}"#);
    format!(r#"{{"inputs":[{data}]}}"#)
}

fn infer(served: &Served, name: &str) -> Answer {
    served.post(&format!("/v2/models/{name}/infer"), &asked(1))
}

/// Returns an output of an answer.
fn output(answer: &Answer, name: &str) -> Value {
    let json = answer.ok();
    let mut outputs = json["outputs"].as_array().unwrap().iter();
    outputs.find(|output| output["name"] == name).unwrap()["data"].clone()
}

/// Returns version, state and reason of each version of a model in the index.
fn states(served: &Served, name: &str) -> Vec<(String, String, String)> {
    let index = served.post(INDEX, "").ok();
    let rows = index.as_array().unwrap().iter().filter(|row| row["name"] == name);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rows.map(|row| (text(&row["version"]), text(&row["state"]), text(&row["reason"]))).collect()
}

fn state(version: &str, state: &str, reason: &str) -> (String, String, String) {
    (version.to_owned(), state.to_owned(), reason.to_owned())
}

#[test]
fn a_model_is_loaded_and_unloaded() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    let names = |body: &str| -> Vec<String> {
        let index = served.post(INDEX, body).ok();
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        index.as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(names(""), NAMES);
    assert!(names(r#"{"ready":true}"#).is_empty());
    assert_eq!(states(&served, "a"), [state("", "UNAVAILABLE", "not loaded")]);
    infer(&served, "a").is_error(404, "Request for unknown model: 'a' is not found");

    load(&served, "a", "").is_ok();
    assert_eq!(output(&infer(&served, "a"), "OUT"), json!([1, 7]));
    assert_eq!(served.get("/v2/models/a/ready").status, 200);
    assert_eq!((names(r#"{"ready":true}"#), counts.live()), (vec!["a".to_owned()], 1));
    assert_eq!(states(&served, "a"), [state("1", "READY", "")]);

    unload(&served, "a").is_ok();
    infer(&served, "a").is_error(404, "Request for unknown model: 'a' has no available versions");
    served
        .post("/v2/models/a/versions/1/infer", &asked(1))
        .is_error(503, "Request for unknown model: 'a' version 1 is not at ready state");
    served
        .post("/v2/models/a/versions/2/infer", &asked(1))
        .is_error(404, "Request for unknown model: 'a' version 2 is not found");
    assert_eq!(served.get("/v2/models/a/ready").status, 400);
    wait_until("the model to be unloaded", || {
        states(&served, "a") == [state("1", "UNAVAILABLE", "unloaded")]
    });
    assert_eq!(counts.live(), 0);
    assert_eq!(*counts.unloaded.lock().unwrap(), ["a"]);

    // Each version has a row of its own.
    load(&served, "two", "{}").is_ok();
    assert_eq!(states(&served, "two"), [state("1", "READY", ""), state("3", "READY", "")]);
    // Unloading what is not loaded is no error, and nobody is told.
    unload(&served, "a").is_ok();
    unload(&served, "nobody").is_ok();
    assert_eq!((counts.unloaded.lock().unwrap().len(), names("").len()), (1, NAMES.len() + 1));
}

#[test]
fn a_server_without_a_repository_refuses_and_lists_its_models() {
    let served = Served::new();
    let text = "explicit model load / unload is not allowed if polling is enabled";
    load(&served, "simple", "").is_error(503, text);
    unload(&served, "simple").is_error(503, text);
    assert_eq!(states(&served, "simple"), [state("1", "READY", "")]);
    let extensions = |served: &Served| served.get("/v2").ok()["extensions"].to_string();
    assert!(!extensions(&served).contains("model_repository"));
    let counts = LoadCounts::new();
    let served = Served::with(|builder| counts.add(builder));
    for name in ["\"model_repository\"", "\"model_repository(unload_dependents)\""] {
        assert!(extensions(&served).contains(name), "{name}");
    }
    let text = "'repository_name' specification is not supported";
    served.post("/v2/repository/r/index", "").is_error(501, text);
    served.post("/v2/repository/r/models/a/load", "").is_error(501, text);
    assert_eq!(served.get("/v2/repository/models/a/load").status, 405);
}

#[test]
fn models_of_the_builder_are_unloaded_too_and_their_names_stay() {
    let counts = LoadCounts::new();
    let served = Served::with(|builder| counts.add(builder));
    unload(&served, "simple").is_ok();
    wait_until("the model to be dropped", || {
        states(&served, "simple") == [state("1", "UNAVAILABLE", "unloaded")]
    });
    let text = "failed to load 'simple', failed to poll from model repository";
    load(&served, "simple", "").is_error(500, text);
    assert_eq!(states(&served, "simple"), [state("1", "UNAVAILABLE", "unloaded")]);
}

#[test]
fn a_load_that_fails_tells_why_and_keeps_what_is_there() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    for (name, status, reason) in [
        ("bad", 400, "its file is broken"),
        ("busy", 503, "the device is busy"),
        ("panics", 400, "the model repository failed"),
        ("other", 400, "the repository has loaded a model named 'a'"),
    ] {
        let text = format!("load failed for model '{name}': {reason}");
        load(&served, name, "").is_error(status, &text);
        assert_eq!(states(&served, name), [state("", "UNAVAILABLE", reason)]);
        let text = format!("Request for unknown model: '{name}' has no available versions");
        infer(&served, name).is_error(404, &text);
    }
    assert_eq!(counts.live(), 0);
    load(&served, "a", "").is_ok();
    let wrong = r#"{"parameters":{"config":"{\"wrong\":1}"}}"#;
    load(&served, "a", wrong).is_error(400, "load failed for model 'a': the config is wrong");
    assert_eq!(states(&served, "a"), [state("1", "READY", "")]);
    assert_eq!(output(&infer(&served, "a"), "NUMBER"), json!([5]));
}

#[test]
fn a_name_that_cannot_be_loaded_is_refused_and_leaves_nothing() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    for name in ["nobody", "simple", "%C3%A4"] {
        let text = name.replace("%C3%A4", "ä");
        let text = format!("failed to load '{text}', failed to poll from model repository");
        load(&served, name, "").is_error(500, &text);
    }
    load(&served, "..", "").is_error(400, "invalid model name '..'");
    load(&served, "a%2Fb", "").is_error(400, "invalid model name 'a/b'");
    let long = "model name of 300 bytes, at most 255 may be";
    load(&served, &"a".repeat(300), "").is_error(400, long);
    // A client may bring files for any name.
    let files = r#"{"parameters":{"config":"{\"wrong\":1}","file:1/m":"AA=="}}"#;
    load(&served, "fresh", files)
        .is_error(400, "load failed for model 'fresh': the config is wrong");
    infer(&served, "fresh").is_error(404, "Request for unknown model: 'fresh' is not found");
    let files = files.replace("wrong", "right");
    load(&served, "fresh", &files).is_ok();
    assert_eq!(states(&served, "fresh"), [state("1", "READY", "")]);
    unload(&served, "fresh").is_ok();
    assert_eq!(states(&served, "fresh"), []);
    assert_eq!(counts.loads(), 2);
}

#[test]
fn a_load_hands_its_parameters_over() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    let body =
        r#"{"parameters":{"config":"{\"name\":\"a\"}","file:1/model":"AGE=","file:labels":""}}"#;
    load(&served, "a", body).is_ok();
    let given = json!([r#"{"name":"a"}"#, "1/model=\u{0}a", "labels="]);
    assert_eq!(output(&infer(&served, "a"), "GIVEN"), given);
    load(&served, "a", "").is_ok();
    assert_eq!(output(&infer(&served, "a"), "GIVEN"), json!([""]));
    for (body, status, text) in [
        (r#"{"parameters":{"config":"[]"}}"#, 400, "Invalid config override: it is no JSON object"),
        (r#"{"parameters":{"cfg":"{}"}}"#, 400, "unrecognized load parameter 'cfg'."),
        (
            r#"{"parameters":{"file:m":"AA=="}}"#,
            400,
            "'config' must be given together with 'file:' parameters",
        ),
        (
            r#"{"parameters":{"config":"{}","file:../m":"AA=="}}"#,
            400,
            "invalid path of a file: '../m' must be relative and stay in the model's folder",
        ),
        ("{", 500, "failed to parse the request JSON buffer: EOF while parsing an object at 1"),
    ] {
        load(&served, "a", body).is_error(status, text);
    }
    let wrong = r#"{"parameters":{"unload_dependents":1}}"#;
    let text = "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean";
    served.post("/v2/repository/models/a/unload", wrong).is_error(500, text);
    assert_eq!((counts.loads(), states(&served, "a")), (2, vec![state("1", "READY", "")]));
    // A repository takes files only if it says so.
    let counts = LoadCounts::new();
    let repository = Loadable { counts, takes_files: false };
    let served = Served::of(Front::builder().repository(repository).build().unwrap());
    let text = "the model repository takes no files: load the model without 'file:' parameters";
    load(&served, "a", r#"{"parameters":{"config":"{}","file:m":"AA=="}}"#).is_error(400, text);
}

#[test]
fn files_count_as_bytes_in_flight_until_their_load_ends() {
    let counts = LoadCounts::new();
    let served = with_limits(&counts, Limits::new().bytes_in_flight(1 << 20));
    let body = |len: usize| {
        format!(r#"{{"parameters":{{"config":"{{}}","file:m":"{}"}}}}"#, "A".repeat(len))
    };
    // The text and its bytes are more than the limit together.
    load(&served, "a", &body(600 << 10)).has_error(503, "too many bytes are in flight");
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| load(&served, "slow", &body(400 << 10)));
        counts.load.is_reached();
        // The load holds its 300 KiB.
        load(&served, "a", &body(450 << 10)).has_error(503, "too many bytes are in flight");
        counts.load.let_go();
        loads.join().unwrap().is_ok();
    });
    load(&served, "a", &body(450 << 10)).is_ok();
}

#[test]
fn executions_go_on_and_the_model_goes_with_the_last() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    load(&served, "a", "").is_ok();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| served.post("/v2/models/a/infer", &asked(255)));
        counts.execution.is_reached();
        unload(&served, "a").is_ok();
        assert_eq!(states(&served, "a"), [state("1", "UNLOADING", "")]);
        infer(&served, "a").has_error(404, "has no available versions");
        // The name is free: a new model takes requests beside the execution.
        load(&served, "a", "").is_ok();
        assert_eq!(output(&infer(&served, "a"), "NUMBER"), json!([2]));
        // Loaded anew, it is replaced, and the old one goes at once.
        load(&served, "a", "").is_ok();
        assert_eq!(output(&infer(&served, "a"), "NUMBER"), json!([3]));
        wait_until("the replaced model to be dropped", || counts.live() == 2);
        unload(&served, "a").is_ok();
        wait_until("the third model to be dropped", || counts.live() == 1);
        counts.execution.let_go();
        assert_eq!(output(&runs.join().unwrap(), "NUMBER"), json!([1]));
    });
    wait_until("the model to be unloaded", || {
        states(&served, "a") == [state("1", "UNAVAILABLE", "unloaded")]
    });
    assert_eq!(counts.live(), 0);
}

#[test]
fn an_old_model_takes_requests_until_the_new_one_is_ready() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| load(&served, "slow", ""));
        counts.load.is_reached();
        assert_eq!(states(&served, "slow"), [state("", "LOADING", "")]);
        infer(&served, "slow").has_error(404, "has no available versions");
        // The load holds no thread of the runtime, which has one.
        assert_eq!(served.get("/v2/health/ready").status, 200);
        counts.load.let_go();
        loads.join().unwrap().is_ok();
        let loads = scope.spawn(|| load(&served, "slow", ""));
        counts.load.is_reached();
        assert_eq!(output(&infer(&served, "slow"), "NUMBER"), json!([1]));
        assert_eq!(states(&served, "slow"), [state("1", "READY", "")]);
        counts.load.let_go();
        loads.join().unwrap().is_ok();
        assert_eq!(output(&infer(&served, "slow"), "NUMBER"), json!([2]));
    });
    wait_until("the old model to be dropped", || counts.live() == 1);
}

#[test]
fn loads_beyond_the_limit_are_refused_and_those_of_a_name_come_one_by_one() {
    let counts = LoadCounts::new();
    let served = with_limits(&counts, Limits::new().model_loads(2));
    let text = "2 loads are under way: retry later, or raise Limits::model_loads";
    std::thread::scope(|scope| {
        let first = scope.spawn(|| load(&served, "slow", ""));
        counts.load.is_reached();
        // The first poll of a load takes its place. A task then takes its turn behind the load before: the one worker runs it
        // before the task that is spawned next.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let mut second = Box::pin(served.front.load_model("slow", LoadParameters::new()));
        let poll = poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending()));
        let waits = runtime.block_on(async {
            let waits = poll.await;
            tokio::spawn(async {}).await.unwrap();
            waits
        });
        assert!(waits);
        load(&served, "a", "").is_error(503, text);
        assert_eq!(counts.loads(), 1);
        // An unload waits for the loads before it.
        let unloads = scope.spawn(|| unload(&served, "slow"));
        counts.load.let_go();
        first.join().unwrap().is_ok();
        counts.load.is_reached();
        counts.load.let_go();
        runtime.block_on(second).unwrap();
        unloads.join().unwrap().is_ok();
    });
    load(&served, "a", "").is_ok();
    infer(&served, "slow").has_error(404, "has no available versions");
    wait_until("the models to be dropped", || counts.live() == 1);
}

#[test]
fn a_load_goes_on_when_its_client_goes_away() {
    let counts = LoadCounts::new();
    let served = with_limits(&counts, Limits::new().model_loads(1));
    let mut client = served.client();
    client.start("POST", "/v2/repository/models/slow/load", "", b"");
    counts.load.is_reached();
    client.hang_up();
    drop(client);
    load(&served, "a", "").has_error(503, "1 loads are under way");
    counts.load.let_go();
    wait_until("the load to end", || states(&served, "slow") == [state("1", "READY", "")]);
    wait_until("the place to be free", || load(&served, "a", "").status == 200);
}

#[test]
fn at_most_so_many_models_are_loaded() {
    let counts = LoadCounts::new();
    let served = with_limits(&counts, Limits::new().loaded_models(1));
    load(&served, "a", "").is_ok();
    let text = "1 models are loaded: unload one, or raise Limits::loaded_models";
    load(&served, "b", "").is_error(503, text);
    load(&served, "a", "").is_ok();
    unload(&served, "a").is_ok();
    load(&served, "b", "").is_ok();
}

#[test]
fn a_body_that_comes_slowly_does_not_hold_the_model() {
    let counts = LoadCounts::new();
    let served = served(&counts);
    load(&served, "a", "").is_ok();
    let body = asked(1);
    let mut client = Client::new(served.address);
    let head = format!(
        "POST /v2/models/a/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send(head.as_bytes());
    client.send(&body.as_bytes()[..10]);
    assert!(client.is_silent(Duration::from_millis(50)));
    unload(&served, "a").is_ok();
    wait_until("the model to be dropped", || counts.live() == 0);
    client.send(&body.as_bytes()[10..]);
    client.answer().has_error(404, "has no available versions");
}

#[test]
fn statistics_and_metrics_of_an_unloaded_model_go() {
    let counts = LoadCounts::new();
    let served = Served::of(counts.add(models::add_all(Front::builder())).build().unwrap());
    let successes = || {
        let answer = served.get("/v2/models/a/stats");
        let text = answer.ok()["model_stats"][0]["inference_stats"]["success"]["count"].clone();
        text.as_u64().unwrap()
    };
    let is_measured = || served.front.metrics().contains(r#"model="a""#);
    load(&served, "a", "").is_ok();
    infer(&served, "a").ok();
    assert!(successes() == 1 && is_measured());
    unload(&served, "a").is_ok();
    served
        .get("/v2/models/a/stats")
        .is_error(404, "Request for unknown model: 'a' has no available versions");
    let all = served.get("/v2/models/stats").ok();
    let mut all = all["model_stats"].as_array().unwrap().iter();
    assert!(all.all(|model| model["name"] != "a") && !is_measured());
    assert!(served.front.metrics().contains(r#"model="simple""#));
    load(&served, "a", "").is_ok();
    assert_eq!(successes(), 0);
}
