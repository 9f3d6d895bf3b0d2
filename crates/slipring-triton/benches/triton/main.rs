//! Question: how much longer than its floor does the front take over HTTP?
//!
//! ```text
//! cargo bench -p slipring-triton --bench triton # `-- --rates`: the last mode alone
//! ```
//!
//! The server and each floor are processes of their own with the runtime's default threads. The client runs on the
//! first CPU and the servers on the second; for `http-rps` all run anywhere. Slices of subject and floor alternate. A
//! slice has some hundred requests on one connection, each of which is timed. Each mode prints a line of JSON: medians
//! in microseconds, and `ratio`, subject to floor.
//!
//! | mode | subject | floor |
//! |---|---|---|
//! | `http-binary`, `http-json` | `simple`, 2 x 64 bytes each way | an axum handler that reads the body and returns the same bytes |
//! | `http-shm`, `http-shm-copy` | the same through regions, in place and by copy | the same |
//! | `http-shm-16m`, `http-shm-copy-16m` | `identity_fp32` of 16 MiB through regions | one `memcpy` of 16 MiB and a small request |
//! | `http-binary-16m` | `identity_fp32` of 16 MiB, inline | 16 MiB there and back over a plain socket |
//! | `http-rps` | requests a second of 4 connections, `simple` through regions | the same of the axum handler |

mod client;
#[path = "../../examples/triton_server/models/mod.rs"]
mod models;
mod serve;

use std::time::{Duration, Instant};

use client::{Client, Job, jobs};
use serve::Servers;
use slipring::region::PosixShm;

const LONG: usize = 16 << 20;
const SLICE: usize = 300;
const SLICES: usize = 20;

fn main() {
    if let Some(role) = std::env::args().skip_while(|argument| argument != "--serve").nth(1) {
        return serve::serve(&role);
    }
    if !std::env::args().any(|argument| argument == "--rates") {
        times();
    }
    rates();
}

fn times() {
    let servers = Servers::start(true);
    serve::pin(0);
    let object = object();
    for address in [servers.in_place, servers.by_copy] {
        Client::new(address).register("bench", object.key(), 4 * LONG);
    }
    let jobs = jobs();
    for (mode, address, job) in [
        ("http-binary", servers.in_place, &jobs.binary),
        ("http-json", servers.in_place, &jobs.json),
        ("http-shm", servers.in_place, &jobs.shared),
        ("http-shm-copy", servers.by_copy, &jobs.shared),
    ] {
        let floor = servers.floor(job, address);
        let (subject, floor) = compare((address, job), (floor, job));
        tell(mode, "us", subject, floor);
    }
    let small = servers.floor(&jobs.shared, servers.in_place);
    for (mode, address) in
        [("http-shm-16m", servers.in_place), ("http-shm-copy-16m", servers.by_copy)]
    {
        let (mut client, mut bare) = (Client::new(address), Client::new(small));
        let (from, mut to) = (vec![1u8; LONG], vec![0u8; LONG]);
        let (mut subject, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..60 {
            subject.push(timed(|| client.call(&jobs.long_shared)));
            floor.push(timed(|| {
                to.copy_from_slice(std::hint::black_box(&from));
                std::hint::black_box(&mut to);
                bare.call(&jobs.shared);
            }));
        }
        tell(mode, "us", median(&mut subject), median(&mut floor));
    }
    let (mut client, mut plain) = (Client::new(servers.in_place), Client::new(servers.plain));
    let (mut subject, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        subject.push(timed(|| client.call(&jobs.long_binary)));
        floor.push(timed(|| plain.echo(LONG)));
    }
    tell("http-binary-16m", "us", median(&mut subject), median(&mut floor));

    drop(servers);
    serve::unpin();
}

fn rates() {
    let (servers, jobs) = (Servers::start(false), jobs());
    let object = object();
    Client::new(servers.in_place).register("bench", object.key(), 4 * LONG);
    let small = servers.floor(&jobs.shared, servers.in_place);
    let (mut subject, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        subject.push(rate(servers.in_place, &jobs.shared));
        floor.push(rate(small, &jobs.shared));
    }
    tell("http-rps", "1/s", median(&mut subject), median(&mut floor));
}

fn object() -> PosixShm {
    let key = format!("/slipring-bench-{}", std::process::id());
    PosixShm::create(&key, 4 * LONG as u64).expect("shared memory")
}

fn tell(mode: &str, unit: &str, subject: f64, floor: f64) {
    let ratio = subject / floor;
    println!(
        r#"{{"what":"triton","mode":"{mode}","unit":"{unit}","p50":{subject:.1},"floor":{floor:.1},"ratio":{ratio:.3}}}"#
    );
}

fn timed(act: impl FnOnce()) -> f64 {
    let started = Instant::now();
    act();
    started.elapsed().as_secs_f64() * 1e6
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

type At<'a> = (std::net::SocketAddr, &'a Job);

/// Returns the medians of single requests in microseconds.
fn compare(subject: At<'_>, floor: At<'_>) -> (f64, f64) {
    let mut sides = [subject, floor].map(|(address, job)| (Client::new(address), job, Vec::new()));
    for slice in 0..=SLICES {
        for (client, job, times) in &mut sides {
            let slice_times = (0..SLICE).map(|_| timed(|| client.call(job)));
            // The first slice warms up.
            if slice > 0 { times.extend(slice_times) } else { slice_times.for_each(drop) }
        }
    }
    let [(_, _, mut subject), (_, _, mut floor)] = sides;
    (median(&mut subject), median(&mut floor))
}

/// Returns the requests a second of 4 connections.
fn rate(address: std::net::SocketAddr, job: &Job) -> f64 {
    let end = Instant::now() + Duration::from_millis(1500);
    let count = |mut client: Client| {
        let mut count = 0;
        while Instant::now() < end {
            client.call(job);
            count += 1;
        }
        count
    };
    let started = Instant::now();
    let all: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| count(Client::new(address)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client")).sum()
    });
    all as f64 / started.elapsed().as_secs_f64()
}
