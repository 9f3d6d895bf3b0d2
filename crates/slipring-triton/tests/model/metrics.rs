//! Metrics in Prometheus' format, on an address of their own.

use std::net::SocketAddr;

use crate::http_served::{Client, Gate, Served, models};
use crate::support::wait_until;
use slipring_triton::{Bound, Front, Protocol, Server};
use tokio::sync::oneshot;

/// Serves HTTP and metrics while `body` runs with the two addresses.
fn served(body: impl FnOnce(&Front, SocketAddr, SocketAddr)) {
    let front = models::add_all(Front::builder()).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (end, ended) = oneshot::channel::<()>();
    let mut server = Server::new(front.clone());
    let mut listen = |protocol| {
        let Bound::Tcp(address) = runtime.block_on(server.listen(protocol, "127.0.0.1:0")).unwrap()
        else {
            panic!("no address")
        };
        address
    };
    let (http, metrics) = (listen(Protocol::Http), listen(Protocol::Metrics));
    let serving = runtime.spawn(server.serve(async { drop(ended.await) }));
    body(&front, http, metrics);
    drop(end);
    runtime.block_on(serving).unwrap().unwrap();
}

/// Returns the value of a line of metrics.
fn value(text: &str, start: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn metrics_have_the_reference_servers_names_and_count_each_request() {
    served(|front, http, metrics| {
        let mut client = Client::new(http);
        let data = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}]}"#;
        for _ in 0..3 {
            let answer = client.call("POST", "/v2/models/identity_int32/infer", data);
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let mut scraper = Client::new(metrics);
        let answer = scraper.call("GET", "/metrics", "");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4"));
        let text = answer.text();
        assert_eq!(text, front.metrics());
        let labels = r#"{model="identity_int32",version="1"}"#;
        for (name, expected) in [
            ("nv_inference_request_success", 3.0),
            ("nv_inference_count", 3.0),
            ("nv_inference_exec_count", 3.0),
            ("nv_inference_pending_request_count", 0.0),
        ] {
            assert_eq!(value(text, &format!("{name}{labels}")), expected, "{name}");
        }
        let failed =
            r#"nv_inference_request_failure{model="identity_int32",version="1",reason="OTHER"}"#;
        assert_eq!(value(text, failed), 0.0);
        let sum = |name: &str| value(text, &format!("nv_inference_{name}_duration_us{labels}"));
        let parts = ["queue", "compute_input", "compute_infer", "compute_output"].map(sum);
        assert!(parts.iter().sum::<f64>() <= sum("request"), "{parts:?}");
        for kind in [
            "# TYPE nv_inference_request_success counter",
            "# TYPE nv_inference_pending_request_count gauge",
        ] {
            assert!(text.contains(kind), "{text}");
        }
        // The connection stays, and another request counts once more.
        client.call("POST", "/v2/models/identity_int32/infer", data);
        let text = scraper.call("GET", "/metrics", "").text().to_owned();
        assert_eq!(value(&text, &format!("nv_inference_request_success{labels}")), 4.0);
        assert_eq!(scraper.call("POST", "/metrics", "").status, 405);
        assert_eq!(scraper.call("GET", "/v2", "").status, 404);
        assert_eq!(Client::new(http).call("GET", "/metrics", "").status, 404);
    });
}

#[test]
fn requests_that_wait_for_an_instance_are_pending() {
    let (gate, hears, go) = Gate::of(|metadata| metadata.instances(2));
    let served = Served::of(Front::builder().model(gate).build().unwrap());
    let data = r#"{"inputs":[{"name":"I","datatype":"UINT8","shape":[1],"data":[1]}]}"#;
    let pending = || {
        value(&served.front.metrics(), r#"nv_inference_pending_request_count{model="gate""#) as u64
    };
    std::thread::scope(|scope| {
        let ask = || served.post("/v2/models/gate/infer", data);
        let asked: Vec<_> = (0..5).map(|_| scope.spawn(ask)).collect();
        wait_until("the requests to wait", || pending() == 3);
        (0..5).for_each(|_| go.send(()).unwrap());
        asked.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap().status, 200));
    });
    assert_eq!((pending(), hears.try_iter().count()), (0, 5));
}
