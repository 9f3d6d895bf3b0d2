//! Question: how much longer than a bare tonic echo does the front take over gRPC?
//!
//! ```text
//! cargo run --release -p slipring-triton --example triton_bench
//! ```
//!
//! Servers and floors are processes of their own on the runtime's default threads. Slices of subject and floor
//! alternate. A slice has some hundred calls on one connection, each of which is timed. Each mode prints a line of
//! JSON: medians in nanoseconds (`grpc-rps`: calls a second), and `ratio`, subject to floor.
//!
//! | mode | subject | floor |
//! |---|---|---|
//! | `grpc-raw` | `simple`, 2 x 64 bytes each way in raw contents | an echo of the request's length |
//! | `grpc-shm`, `grpc-shm-copy` | the same through regions, in place and by copy | the same |
//! | `grpc-raw-16m` | `identity_fp32` of 16 MiB in raw contents | an echo of the same length |
//! | `grpc-shm-16m`, `grpc-shm-copy-16m` | `identity_fp32` of 16 MiB through regions | one `memcpy` of 16 MiB and a small call |
//! | `grpc-shm-1g` | `identity_fp32` of 1 GiB through regions | one `memcpy` of 1 GiB and a small call |
//! | `grpc-rps` | 4 clients at once, `simple` through regions | 4 clients of the echo |

mod calls;
#[allow(clippy::all, dead_code)]
#[path = "../../../../examples/grpc_over_slipring/echo.rs"]
mod echo;
#[allow(clippy::all, dead_code)]
#[path = "../../tests/served/inference.rs"]
mod inference;
#[path = "../triton_server/models/mod.rs"]
mod models;
mod serve;

use std::hint::black_box;
use std::time::{Duration, Instant};

use calls::{Connection, Job, Jobs};
use serve::{Role, Server};
use slipring::region::PosixShm;
use tokio::runtime::Builder;

const LONG: usize = 16 << 20;
const LONGEST: usize = 1 << 30;
const SLICE: usize = 300;
const SLICES: usize = 20;
const CLIENTS: usize = 4;

fn main() {
    if let Some(role) = std::env::args().skip_while(|argument| argument != "--serve").nth(1) {
        return serve::serve(&role);
    }
    let (in_place, by_copy) = (Server::start(Role::InPlace), Server::start(Role::ByCopy));
    let bare = Server::start(Role::Echo);
    let key = format!("/slipring-bench-{}", std::process::id());
    let object = PosixShm::create(&key, 2 * LONGEST as u64).expect("2 GiB of shared memory");
    let jobs = Jobs::new();
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(async {
        for server in [&in_place, &by_copy] {
            Connection::new(server).await.register("bench", object.key(), 2 * LONGEST).await;
        }
        for (mode, server, job) in [
            ("grpc-raw", &in_place, &jobs.raw),
            ("grpc-shm", &in_place, &jobs.shared),
            ("grpc-shm-copy", &by_copy, &jobs.shared),
        ] {
            small(mode, server, &bare, job).await;
        }
        large("grpc-raw-16m", &in_place, &bare, (&jobs.raw_long, &jobs.raw_long), None).await;
        let floor = (&jobs.shared_long, &jobs.shared);
        large("grpc-shm-16m", &in_place, &bare, floor, Some(LONG)).await;
        large("grpc-shm-copy-16m", &by_copy, &bare, floor, Some(LONG)).await;
        let floor = (&jobs.shared_longest, &jobs.shared);
        large("grpc-shm-1g", &in_place, &bare, floor, Some(LONGEST)).await;
    });
    let (subject, floor) = rates(&in_place, &bare, &jobs.shared);
    tell("grpc-rps", subject, floor);
}

/// Compares calls of microseconds with an echo of the same length.
async fn small(mode: &str, server: &Server, bare: &Server, job: &Job) {
    let (mut subject, mut floor) = (Connection::new(server).await, Connection::new(bare).await);
    let (mut subjects, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        for _ in 0..SLICE {
            subjects.push(timed(subject.infer(job)).await);
        }
        for _ in 0..SLICE {
            floors.push(timed(floor.echo(job)).await);
        }
    }
    tell(mode, median(subjects), median(floors));
}

/// Compares calls of milliseconds with the echo of `floor` and a copy of `copied` bytes.
async fn large(
    mode: &str,
    server: &Server,
    bare: &Server,
    (job, floor): (&Job, &Job),
    copied: Option<usize>,
) {
    let (mut subject, mut echo) = (Connection::new(server).await, Connection::new(bare).await);
    let (mut subjects, mut floors) = (Vec::new(), Vec::new());
    let len = copied.unwrap_or(0);
    let (from, mut to) = (vec![1u8; len], vec![0u8; len]);
    to.copy_from_slice(&from);
    let rounds = if len == LONGEST { 6 } else { 40 };
    // The first call touches the pages for the first time.
    subject.infer(job).await;
    for _ in 0..rounds {
        subjects.push(timed(subject.infer(job)).await);
        floors.push(
            timed(async {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
                echo.echo(floor).await;
            })
            .await,
        );
    }
    tell(mode, median(subjects), median(floors));
}

/// Returns the calls a second of 4 clients: medians of alternating slices.
fn rates(server: &Server, bare: &Server, job: &Job) -> (f64, f64) {
    let (mut subjects, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        subjects.push(rate(server, job, true));
        floors.push(rate(bare, job, false));
    }
    (median(subjects), median(floors))
}

fn rate(server: &Server, job: &Job, infers: bool) -> f64 {
    const DURING: Duration = Duration::from_millis(400);
    let counts: Vec<u32> = std::thread::scope(|scope| {
        let client = || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut connection = Connection::new(server).await;
                let end = Instant::now() + DURING;
                let mut count = 0;
                while Instant::now() < end {
                    match infers {
                        true => connection.infer(job).await,
                        false => connection.echo(job).await,
                    }
                    count += 1;
                }
                count
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    f64::from(counts.iter().sum::<u32>()) / DURING.as_secs_f64()
}

async fn timed(call: impl Future<Output = ()>) -> f64 {
    let start = Instant::now();
    call.await;
    start.elapsed().as_nanos() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn tell(mode: &str, subject: f64, floor: f64) {
    let ratio = subject / floor;
    println!(
        r#"{{"what":"triton","mode":"{mode}","p50":{subject:.0},"floor":{floor:.0},"ratio":{ratio:.3}}}"#
    );
}
