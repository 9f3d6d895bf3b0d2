//! Serves both protocols over TLS, on one port: the application has the acceptor, and the front behind it is as ever.
//!
//! ```text
//! openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem
//! cargo run --release -p slipring-triton --example triton_tls -- 127.0.0.1:8443 cert.pem key.pem
//! curl --cacert cert.pem https://localhost:8443/v2
//! ```
//!
//! Expect `listens on 127.0.0.1:8443`, and from `curl` the server's metadata. A client that offers `h2` by ALPN speaks gRPC
//! on the same port. The example authenticates nobody, and leaves the number of connections to its application.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use slipring_triton::{Front, http_router};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::service::Routes;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// A client that has not finished its handshake by then is disconnected.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The interval of pings to a silent client of gRPC.
const PINGS: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, certificate, key] = &arguments[..] else {
        return Err("usage: triton_tls ADDRESS CERTIFICATE.pem KEY.pem".into());
    };
    let certificates = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let mut tls =
        ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));

    let front = Front::builder().name("triton").build()?;
    let grpc = Routes::new(front.service()).add_service(front.health()).into_axum_router();
    let unknown = || async { StatusCode::NOT_FOUND };
    let routes = http_router(front).merge(grpc).reset_fallback().fallback(unknown);

    let listener = TcpListener::bind(address).await?;
    println!("listens on {}", listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(acceptor.clone(), stream, routes.clone()));
            }
            Err(error) => {
                // For example, the process has no descriptor left.
                eprintln!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection. Its errors concern the client alone.
async fn serve(acceptor: TlsAcceptor, stream: TcpStream, routes: Router) {
    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        let service = TowerToHyperService::new(routes);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(PINGS));
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
            eprintln!("a connection ended: {error}");
        }
    }
}
