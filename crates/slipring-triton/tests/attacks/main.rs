//! Attackers besiege a front over HTTP and gRPC. An honest client of HTTP beside them keeps half its rate, a new one connects, and the
//! front holds what it held before, once the attacker is gone.
//!
//! `tests/attacks` of the workspace's root package says how that is judged, and which variables choose the cells. The
//! front has no peers over the wire format: its clients come over TCP. So its attacks are those of HTTP and gRPC, one for
//! each that means something there.

#[path = "../../../../tests/attacks/honest.rs"]
mod honest;
#[path = "../served/http.rs"]
mod http_served;
#[path = "../../../../tests/attacks/judge.rs"]
mod judge;
#[path = "../../../../tests/attacks/load.rs"]
mod load;
#[path = "../../../../tests/attacks/siege.rs"]
mod siege;
#[path = "../../../../tests/attacks/subject.rs"]
mod subject;
#[path = "../../../../tests/support/mod.rs"]
mod support;

use std::future::pending;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use honest::{Dial, Trip};
use http_served::{Client, SIMPLE, models, request, simple_json};
use judge::Attack;
use rustix::process::Resource;
use slipring_triton::{Bound, Front, Limits, Protocol, Server};
use subject::{Lack, Subject, limit};
use support::other::{Other, run_here, say};

/// The bytes of all requests under way, which bound what the bodies take, in MiB.
const IN_FLIGHT: u64 = 256;

const ATTACKS: &[Attack] = &[
    // B8c, B9, D21, D23: what is long, with and without the memory for it.
    Attack::new("http-long-bodies").heap(2 * IN_FLIGHT),
    Attack::new("http-long-bodies").heap(2 * IN_FLIGHT).on(Lack::Memory),
    // B10, D19: clients that say nothing, and many of them.
    Attack::new("http-silence"),
    Attack::new("http-connects"),
    // B6: answers that nobody reads.
    Attack::new("http-unread-answers"),
    // D15: requests without an end.
    Attack::new("http-pipelined-read"),
    Attack::new("http-pipelined-unread"),
    Attack::new("grpc-pipelined-read"),
    Attack::new("grpc-pipelined-unread"),
    // D14, D15: requests that end before their length.
    Attack::new("http-requests-that-stop"),
];

#[test]
fn a_front_withstands_attacks() {
    let test = "a_front_withstands_attacks";
    run_here(test, serve);
    judge::try_cells("triton", ATTACKS.iter(), |attack| {
        let process = Other::spawn(test, attack.lack.name());
        let addresses = process.hear();
        let (http, grpc) = addresses.split_once(' ').unwrap();
        let to: SocketAddr = http.parse().unwrap();
        let dial: Arc<Dial> = Arc::new(move || client(to));
        let address = if attack.name.starts_with("grpc") { grpc } else { http };
        Subject { process, address: address.to_owned(), dial }
    });
}

/// Serves both protocols on one runtime until it is killed.
fn serve(lack: &str) {
    limit(Resource::Nofile, 1024);
    let limits = Limits::new().request_bytes(IN_FLIGHT << 20).bytes_in_flight(IN_FLIGHT << 20);
    let front = models::add_all(Front::builder()).limits(limits).build().unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut server = Server::new(front);
        let mut addresses = Vec::new();
        for protocol in [Protocol::Http, Protocol::Grpc] {
            let bound = server.listen(protocol, "127.0.0.1:0").await.unwrap();
            let Bound::Tcp(address) = bound else { panic!("no address") };
            addresses.push(address.to_string());
        }
        say(&addresses.join(" "));
        Lack::named(lack).apply();
        server.serve(pending()).await.unwrap();
    });
}

/// A client that infers on a connection of its own.
fn client(to: SocketAddr) -> Result<Trip, String> {
    // The client panics where the front does not answer as it should.
    let said = |_| "the front does not answer as it should".to_owned();
    let mut client = catch_unwind(|| Client::new(to)).map_err(said)?;
    let body = request(&simple_json(), &[]);
    Ok(Box::new(move || {
        let infer = || client.call("POST", SIMPLE, &body).ok();
        catch_unwind(AssertUnwindSafe(infer)).map(drop).map_err(said)
    }))
}
