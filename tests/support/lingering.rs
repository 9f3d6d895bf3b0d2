//! A TCP socket whose last `close` waits. Unit tests of the library include this file, too.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Returns a socket that waits at its last `close` for so long, and its other end, which does not read.
pub fn lingering(time: Duration) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&near, Some(time)).unwrap();
    (near, far)
}
