//! Clients that use up what they can of few descriptors never keep others out.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::http_served::{Client, models};
use crate::support::other::{Other, run_here, say};
use crate::support::unique_name;
use rustix::process::{Resource, Rlimit, setrlimit};
use slipring::region::PosixShm;
use slipring_triton::{Bound, Front, Protocol, Server};
use tonic::transport::Endpoint;

/// The descriptors of the server.
const DESCRIPTORS: u64 = 512;

/// The longest wait of an honest client: a fifth of it is usual on a busy machine.
const PROMPT: Duration = Duration::from_secs(5);

/// Serves both protocols with few descriptors.
fn serve() {
    let limit = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut server = Server::new(models::add_all(Front::builder()).build().unwrap());
        let mut bound = Vec::new();
        for protocol in [Protocol::Http, Protocol::Grpc] {
            let Bound::Tcp(address) = server.listen(protocol, "127.0.0.1:0").await.unwrap() else {
                panic!("no address")
            };
            bound.push(address.to_string());
        }
        say(&bound.join(" "));
        server.serve(std::future::pending()).await.unwrap();
    });
}

fn register(client: &mut Client, name: &str, key: &str) -> (u16, String) {
    let path = format!("/v2/systemsharedmemory/region/{name}/register");
    let answer = client.call("POST", &path, &format!(r#"{{"key":"{key}","byte_size":4096}}"#));
    (answer.status, answer.text().to_owned())
}

#[test]
fn idle_connections_and_regions_leave_descriptors_for_others() {
    let test = "descriptors::idle_connections_and_regions_leave_descriptors_for_others";
    run_here(test, |_| serve());
    slipring_triton::raise_descriptor_limit().unwrap();
    let process = Other::spawn(test, "");
    let addresses = process.hear();
    let (http, grpc) = addresses.split_once(' ').unwrap();
    let (http, grpc): (SocketAddr, SocketAddr) = (http.parse().unwrap(), grpc.parse().unwrap());
    let connect = |to: SocketAddr| TcpStream::connect(to).unwrap();
    let idle: Vec<TcpStream> = (0..500).flat_map(|_| [connect(http), connect(grpc)]).collect();
    // Many names of one object, then many objects.
    let mut client = Client::new(http);
    let shared = PosixShm::create(&format!("/{}", unique_name()), 4096).unwrap();
    for at in 0..500 {
        assert_eq!(register(&mut client, &format!("same{at}"), shared.key()).0, 200, "{at}");
    }
    let object = || PosixShm::create(&format!("/{}", unique_name()), 4096).unwrap();
    let objects: Vec<PosixShm> = (0..500).map(|_| object()).collect();
    let named = objects.iter().enumerate();
    let answers =
        named.map(|(at, object)| register(&mut client, &format!("other{at}"), object.key()));
    let refused: Vec<_> = answers.filter(|(status, _)| *status != 200).collect();
    assert!((100..450).contains(&refused.len()), "{} of 500", refused.len());
    assert!(
        refused.iter().all(|(status, text)| *status == 503 && text.contains("as much as")),
        "{refused:?}"
    );
    let started = Instant::now();
    Client::new(http).call("GET", "/v2/health/live", "").is_ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{grpc}")).unwrap();
        let mut client = crate::grpc_served::Client::new(endpoint.connect().await.unwrap());
        let request = crate::grpc_served::inference::ServerLiveRequest {};
        assert!(client.server_live(request).await.unwrap().into_inner().live);
    });
    eprintln!("two honest clients were answered in {:?}", started.elapsed());
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    drop((idle, objects));
}
