//! The measured processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use axum::body::Bytes;
use axum::routing::post;
use slipring::region::SigbusGuard;
use slipring_triton::{Front, Protocol, Server};

use crate::client::{Client, Job};
use crate::{LONG, models};

/// The servers. They end on drop.
pub struct Servers {
    pub in_place: SocketAddr,
    pub by_copy: SocketAddr,
    pub plain: SocketAddr,
    pinned: bool,
    children: Mutex<Vec<Child>>,
}

/// Pins this thread, and the threads that it starts, to one CPU, or to any if that one does not exist.
pub fn pin(processor: usize) {
    set(&[processor]);
}

pub fn unpin() {
    set(&(0..std::thread::available_parallelism().map_or(1, usize::from).max(2))
        .collect::<Vec<_>>());
}

fn set(processors: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("not pinned: {error}");
    }
}

impl Servers {
    pub fn start(pinned: bool) -> Self {
        let children = Mutex::new(Vec::new());
        let [in_place, by_copy, plain] =
            ["in-place", "by-copy", "plain"].map(|role| start(&children, role, b"", pinned));
        Self { in_place, by_copy, plain, pinned, children }
    }

    /// Returns a bare handler that sends the same response as `subject` to this job.
    pub fn floor(&self, job: &Job, subject: SocketAddr) -> SocketAddr {
        let mut client = Client::new(subject);
        let (head, body) = client.answer(job);
        let answer = [head.as_bytes(), body].concat();
        start(&self.children, "floor", &answer, self.pinned)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.children.get_mut().expect("children") {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(children: &Mutex<Vec<Child>>, role: &str, input: &[u8], pinned: bool) -> SocketAddr {
    let myself = std::env::current_exe().expect("my own path");
    let mut command = Command::new(myself);
    let command = command.args(["--serve", role, if pinned { "pinned" } else { "anywhere" }]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a server");
    child.stdin.take().expect("its input").write_all(input).expect("to write to it");
    let mut line = String::new();
    let output = child.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("an address");
    children.lock().expect("children").push(child);
    line.trim().parse().expect("an address")
}

/// Runs a child process.
pub fn serve(role: &str) {
    if std::env::args().any(|argument| argument == "pinned") {
        pin(1);
    }
    if role == "plain" {
        return plain();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        if role == "floor" {
            return floor().await;
        }
        let in_place = role == "in-place";
        if in_place {
            SigbusGuard::install().expect("a guard");
        }
        let front = models::add_all(Front::builder()).in_place(in_place).build().expect("a front");
        let mut server = Server::new(front);
        println!("{}", server.listen(Protocol::Http, "127.0.0.1:0").await.expect("an address"));
        server.serve(std::future::pending()).await.expect("to serve");
    });
}

/// Answers every request with the bytes of standard input.
async fn floor() {
    let mut answer = Vec::new();
    std::io::stdin().read_to_end(&mut answer).expect("an answer");
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let (head, body) =
        (String::from_utf8_lossy(&answer[..at]), Bytes::copy_from_slice(&answer[at..]));
    let mut headers = axum::http::HeaderMap::new();
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        let name: axum::http::HeaderName = name.parse().expect("a name");
        if name != "content-length" && name != "date" {
            headers.insert(name, value.parse().expect("a value"));
        }
    }
    let reply = move |_: Bytes| {
        let (headers, body) = (headers.clone(), body.clone());
        async move { (headers, body) }
    };
    let application = axum::Router::new().route("/v2/models/{model}/infer", post(reply));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    println!("{}", listener.local_addr().expect("an address"));
    let listener =
        axum::serve::ListenerExt::tap_io(listener, |stream: &mut tokio::net::TcpStream| {
            let _ = stream.set_nodelay(true);
        });
    axum::serve(listener, application).await.expect("to serve");
}

/// Receives 16 MiB and sends them back.
fn plain() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    println!("{}", listener.local_addr().expect("an address"));
    let serve = |mut stream: TcpStream| {
        let mut room = vec![0; LONG];
        while stream.read_exact(&mut room).is_ok() {
            stream.write_all(&room).expect("to send");
        }
    };
    for stream in listener.incoming() {
        let stream = stream.expect("a client");
        std::thread::spawn(move || serve(stream));
    }
}
