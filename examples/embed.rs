//! A web service that has its work done by another process: HTTP outside, slipring inside.
//!
//! ```text
//! cargo run --release --features tokio --example embed -- --http 127.0.0.1:8080
//! curl --data-binary @README.md http://127.0.0.1:8080/count
//! ```
//!
//! It starts a worker, this program again, and asks it by [`AsyncConnection::call`] how many words a body
//! has. Expect a line with the port and one for each worker. Kill the worker (`kill -9`): the request
//! that it had is answered with 503, and those after it wait for the next worker. Kill the service:
//! the worker ends too.

use std::error::Error;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::post;
use slipring::tokio::{AsyncConnection, AsyncListener};
use slipring::{Address, Context};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long a worker may take to start, and how long a request waits at most.
const START: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);
/// After a worker that failed.
const PAUSE: Duration = Duration::from_millis(100);

const LONGEST: usize = 64 << 20;

/// A body, and where its answer goes. Dropped without one: its worker has died.
struct Job {
    body: Bytes,
    answer: oneshot::Sender<Vec<u8>>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => eprintln!("embed: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Result<()> {
    use lexopt::prelude::{Long, ValueExt};
    let mut words = lexopt::Parser::from_env();
    let mut http = "127.0.0.1:0".to_owned();
    while let Some(word) = words.next()? {
        match word {
            Long("http") => http = words.value()?.string()?,
            Long("work") => return work(&words.value()?.string()?),
            _ => return Err(word.unexpected().into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(&http))
}

async fn serve(http: &str) -> Result<()> {
    let address = Address::fresh();
    let listener = AsyncListener::new(Context::new()?.listen(&address)?)?;
    let (jobs, queue) = mpsc::channel(64);
    let router = Router::new()
        .route("/count", post(count))
        .layer(DefaultBodyLimit::max(LONGEST))
        .with_state(jobs);
    let socket = TcpListener::bind(http).await?;
    writeln!(stdout(), "http://{}/count counts words", socket.local_addr()?)?;
    let workers = supervise(listener, address.to_string(), queue);
    let pages = axum::serve(socket, router).into_future();
    tokio::select! {
        failed = workers => failed,
        done = pages => Ok(done?),
    }
}

async fn count(State(jobs): State<mpsc::Sender<Job>>, body: Bytes) -> (StatusCode, Vec<u8>) {
    let (answer, answered) = oneshot::channel();
    let asked = async {
        jobs.send(Job { body, answer }).await.ok()?;
        answered.await.ok()
    };
    match timeout(PATIENCE, asked).await {
        Ok(Some(words)) => (StatusCode::OK, words),
        _ => (StatusCode::SERVICE_UNAVAILABLE, b"the worker has died\n".to_vec()),
    }
}

/// Starts one worker after the other.
async fn supervise(
    mut listener: AsyncListener,
    address: String,
    mut queue: mpsc::Receiver<Job>,
) -> Result<()> {
    loop {
        let mut worker = Command::new(std::env::current_exe()?)
            .args(["--work", address.trim_start_matches('@')])
            .kill_on_drop(true)
            .spawn()?;
        let end = match timeout(START, accept(&mut listener, &worker)).await {
            Ok(Ok(link)) => feed(link, &mut worker, &mut queue).await,
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        };
        writeln!(stdout(), "the worker is lost: {end}")?;
        worker.kill().await?;
        tokio::time::sleep(PAUSE).await;
    }
}

/// The worker's connection, and nobody else's.
async fn accept(listener: &mut AsyncListener, worker: &Child) -> Result<AsyncConnection> {
    loop {
        let link = listener.accept().await?;
        if link.peer().pid() == worker.id() {
            writeln!(stdout(), "worker {} is there", worker.id().unwrap_or(0))?;
            return Ok(link);
        }
    }
}

/// Gives the worker one job after the other, until it fails: why.
async fn feed(
    mut link: AsyncConnection,
    worker: &mut Child,
    queue: &mut mpsc::Receiver<Job>,
) -> Box<dyn Error + Send + Sync> {
    loop {
        let job = tokio::select! {
            ended = worker.wait() => return ended.map_or_else(Into::into, |how| how.to_string().into()),
            job = queue.recv() => job,
        };
        let Some(job) = job else { return "nobody asks any more".into() };
        match link.call(&job.body).await {
            // Whoever asked may be gone.
            Ok(answer) => drop(job.answer.send(answer)),
            Err(error) => return error.into(),
        }
    }
}

/// The worker: counts words, until the service is gone.
fn work(address: &str) -> Result<()> {
    let mut link = Context::new()?.connect(address)?;
    while let Some(request) = link.recv_request()? {
        let words = request.body.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        link.respond(request.id, format!("{}\n", words.count()).as_bytes())?;
    }
    Ok(())
}
