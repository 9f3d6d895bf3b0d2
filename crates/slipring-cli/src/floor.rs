//! The floor of the machine without slipring: round trips between two threads over a Unix socket pair.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// One end of a socket pair, whose other end sends back what it gets.
#[derive(Debug)]
pub(crate) struct Floor {
    socket: UnixStream,
    message: Vec<u8>,
}

impl Floor {
    /// Starts the thread at the other end, for messages of `len` bytes. The thread ends when this end is dropped.
    pub(crate) fn start(len: usize, timeout: Duration) -> Result<Self, Failure> {
        let (socket, mut far) = UnixStream::pair()?;
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        thread::spawn(move || {
            let mut message = vec![0; len];
            while far.read_exact(&mut message).and_then(|()| far.write_all(&message)).is_ok() {}
        });
        Ok(Self { socket, message: vec![0; len] })
    }

    /// Sends a message and waits until it is back. Returns how long that took.
    pub(crate) fn round(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        self.socket.write_all(&self.message)?;
        self.socket.read_exact(&mut self.message)?;
        Ok(start.elapsed())
    }
}
