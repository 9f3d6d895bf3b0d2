//! The example server and the example client do what their first lines say.
//!
//! `cargo test` builds the examples. Before `cargo test --test example_servers`, run `cargo build --examples`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A running example server. The value kills the server when it is dropped.
struct Server {
    child: Child,
    said: BufReader<ChildStdout>,
    /// The first address that the server prints.
    address: String,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let mut command = example("triton_server");
        command.args(["--http", "127.0.0.1:0"]).args(options);
        Self::run(command, "http ")
    }

    /// Runs a command whose first line has the address behind `what`.
    fn run(mut command: Command, what: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix(what).unwrap().to_owned();
        Self { child, said, address }
    }

    /// Asks the server to end, and waits until it has ended without an error.
    fn ends_in_order(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).unwrap();
    Command::new(folder.join("examples").join(name))
}

fn client(server: &Server) -> Output {
    example("triton_client").arg(&server.address).output().unwrap()
}

#[test]
fn a_client_keeps_its_tensors_in_shared_memory() {
    for options in [&[][..], &["--by-copy"]] {
        let server = Server::start(options);
        for _ in 0..2 {
            let output = client(&server);
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success());
            assert!(said.contains("the first 0 + 100 = 100, the last 15 + 115 = 130"), "{said}");
        }
        server.ends_in_order();
    }
}

#[test]
fn a_server_without_client_shared_memory_refuses_the_client() {
    let server = Server::start(&["--allow-client-shm=false"]);
    let output = client(&server);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(said.contains("Client shared memory is disabled"), "{said}");
}

/// Sends a GET request and returns the answer as text.
fn get(stream: impl Read + Write, path: &str) -> String {
    let mut stream = stream;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_server_is_named_triton_unless_it_is_told_another_name() {
    for (options, name) in [(&[][..], "triton"), (&["--name", "mine"], "mine")] {
        let server = Server::start(options);
        let answer = get(TcpStream::connect(&server.address).unwrap(), "/v2");
        assert!(answer.contains(&format!(r#""name":"{name}""#)), "{answer}");
        server.ends_in_order();
    }
}

/// Sends a POST request without a body and returns the answer as text.
fn post(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n");
    write!(stream, "{head}Content-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn clients_load_models_of_a_server_in_explicit_mode() {
    let options = ["--model-control-mode", "explicit", "--load-model", "simple"];
    let server = Server::start(&options);
    let is_ready = |name: &str| {
        let path = format!("/v2/models/{name}/ready");
        get(TcpStream::connect(&server.address).unwrap(), &path).starts_with("HTTP/1.1 200")
    };
    assert!(is_ready("simple") && !is_ready("identity_fp32"));
    let answer = post(&server, "/v2/repository/models/identity_fp32/load");
    assert!(answer.starts_with("HTTP/1.1 200") && is_ready("identity_fp32"), "{answer}");
    let answer = post(&server, "/v2/repository/models/simple/unload");
    assert!(answer.starts_with("HTTP/1.1 200") && !is_ready("simple"), "{answer}");
    server.ends_in_order();
    let output = example("triton_server").args(["--load-model", "simple"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("needs --model-control-mode"), "{text}");
}

#[test]
fn a_unix_socket_serves_http_beside_a_port() {
    let path = std::env::temp_dir().join(format!("slipring-example-{}", std::process::id()));
    let mut server = Server::start(&["--http-unix", path.to_str().unwrap()]);
    // The server prints the path when it has bound it.
    let mut line = String::new();
    server.said.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), format!("http unix:{}", path.display()));
    let answer = get(UnixStream::connect(&path).unwrap(), "/v2/health/ready");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.ends_in_order();
    assert!(!path.exists());
}

#[test]
fn the_help_lists_every_option_and_a_wrong_one_is_refused() {
    let output = example("triton_server").arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    let options = [
        "http",
        "grpc",
        "http-unix",
        "grpc-unix",
        "name",
        "model-control-mode",
        "load-model",
        "allow-client-shm",
        "by-copy",
        "help",
    ];
    for option in options {
        assert!(help.contains(&format!("--{option}")), "{option} is missing in {help}");
    }
    let output = example("triton_server").arg("--htp").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("'--htp'"));
}

/// Connects to a server that has this certificate, for a protocol.
async fn connect(
    address: &str,
    certificate: &rcgen::Certificate,
    protocol: &[u8],
) -> std::io::Result<TlsStream<tokio::net::TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = tokio::net::TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[test]
fn both_protocols_are_served_over_tls_on_one_port() {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = std::env::temp_dir().join(format!("slipring-tls-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, own.cert.pem()).unwrap();
    std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    let mut command = example("triton_tls");
    command.arg("127.0.0.1:0").args([&certificate, &key]);
    let start = std::panic::AssertUnwindSafe(|| Server::run(command, "listens on "));
    let server = std::panic::catch_unwind(start);
    std::fs::remove_dir_all(&folder).unwrap();
    let server = server.unwrap();

    // A client without TLS, and one that trusts another certificate, get nothing.
    let mut plain = TcpStream::connect(&server.address).unwrap();
    write!(plain, "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(connect(&server.address, &other.cert, b"h2")).is_err());

    runtime.block_on(async {
        let stream = connect(&server.address, &own.cert, b"http/1.1").await.unwrap();
        let (mut send, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = hyper::Request::get("/v2").header("host", "localhost");
        let answer = send.send_request(request.body(Full::<bytes::Bytes>::default()).unwrap());
        let body = answer.await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains(r#""name":"triton""#), "{body}");
        let request = hyper::Request::get("/elsewhere").header("host", "localhost");
        let answer = send.send_request(request.body(Full::<bytes::Bytes>::default()).unwrap());
        assert_eq!(answer.await.unwrap().status(), 404);

        let stream = connect(&server.address, &own.cert, b"h2").await.unwrap();
        let io = TokioIo::new(stream);
        let (mut send, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let uri = "https://localhost/inference.GRPCInferenceService/ServerLive";
        let request = hyper::Request::post(uri).header("content-type", "application/grpc");
        // An empty message.
        let body = Full::new(bytes::Bytes::from_static(&[0; 5]));
        let answer = send.send_request(request.body(body).unwrap()).await.unwrap();
        let collected = answer.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(&collected.to_bytes()[..], [0, 0, 0, 0, 2, 8, 1]);
    });
}
