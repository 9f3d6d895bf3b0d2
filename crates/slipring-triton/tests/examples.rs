//! The example server and the example client do what their first lines say.
//!
//! `cargo test` builds the examples. Before `cargo test --test examples`, run `cargo build --examples`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A running `triton_server`. The value kills the server when it is dropped.
struct Server {
    child: Child,
    said: BufReader<ChildStdout>,
    /// The address that the server prints for HTTP.
    address: String,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let mut command = example("triton_server");
        command.args(["--http", "127.0.0.1:0"]).args(options).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http ").unwrap().to_owned();
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
    let options =
        ["http", "grpc", "http-unix", "grpc-unix", "name", "allow-client-shm", "by-copy", "help"];
    for option in options {
        assert!(help.contains(&format!("--{option}")), "{option} is missing in {help}");
    }
    let output = example("triton_server").arg("--htp").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("'--htp'"));
}
