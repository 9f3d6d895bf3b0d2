//! HTTP/REST.

use std::io;

use crate::triton::front::Front;
use crate::triton::server::{Ending, Socket};

/// Serves one address until the end is told.
pub(super) async fn serve(_front: Front, _socket: Socket, _ending: Ending) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}
