//! The servers. Each is a process of its own that prints its address.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use slipring::region::SigbusGuard;
use slipring_triton::{Front, Protocol, Server as Serving};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::echo::Payload;
use crate::echo::echo_server::{Echo, EchoServer};
use crate::models;

#[derive(Debug, Clone, Copy)]
pub enum Role {
    InPlace,
    ByCopy,
    Echo,
}

/// A child process. It ends on drop.
pub struct Server {
    child: Child,
    pub address: String,
}

impl Server {
    pub fn start(role: Role) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--serve", &format!("{role:?}")]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child");
        let mut address = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut address).expect("its address");
        Self { child, address: address.trim().to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Echoes each message.
struct Bare;

#[tonic::async_trait]
impl Echo for Bare {
    async fn unary(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

pub fn serve(role: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        if role == "Echo" {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
            println!("{}", listener.local_addr().expect("an address"));
            let most = 1 << 30;
            let bare = EchoServer::new(Bare)
                .max_decoding_message_size(most)
                .max_encoding_message_size(most);
            // tonic sets `TCP_NODELAY` only on connections that it accepts itself.
            let incoming =
                tokio_stream::StreamExt::map(TcpListenerStream::new(listener), |stream| {
                    let stream = stream?;
                    stream.set_nodelay(true)?;
                    std::io::Result::Ok(stream)
                });
            let server = tonic::transport::Server::builder().add_service(bare);
            return server.serve_with_incoming(incoming).await.expect("a server");
        }
        let in_place = role == "InPlace";
        if in_place {
            SigbusGuard::install().expect("a guard");
        }
        let front = models::add_all(Front::builder()).in_place(in_place).build().expect("a front");
        let mut server = Serving::new(front);
        let bound = server.listen(Protocol::Grpc, "127.0.0.1:0").await.expect("an address");
        println!("{bound}");
        server.serve(std::future::pending()).await.expect("a server");
    });
}
