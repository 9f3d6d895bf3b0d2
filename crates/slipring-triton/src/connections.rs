//! The connections of one address, from `accept` to the server's shutdown.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::idle::{Activity, IdleTimeouts};
use crate::limits::Limits;
use crate::listener::{Listener, Socket, Stream};
use crate::shutdown::Shutdown;

/// The time between two looks for a free place while a client waits, and after a failed `accept`.
const RETRY: Duration = Duration::from_millis(20);

/// Serves each client with `connection` until the shutdown, then waiting for the requests in flight, at most for the
/// shutdown timeout.
///
/// A new client beside `most` connections, or without a descriptor for it, takes the place of the connection that has been
/// idle longest.
pub(crate) async fn serve<F>(
    socket: Socket,
    limits: &Limits,
    most: usize,
    idle: Option<Duration>,
    mut shutdown: Shutdown,
    connection: impl Fn(Stream, Activity) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = Listener::new(socket);
    let mut connections = JoinSet::new();
    let mut timeouts = IdleTimeouts::new(limits.stall_timeout, idle);
    let (mut waiting, mut is_full) = (None, false);
    while !*shutdown.borrow() {
        tokio::select! {
            _ = shutdown.changed() => break,
            Some(_) = connections.join_next() => {}
            () = timeouts.close_expired() => {}
            accepted = listener.accept(), if waiting.is_none() && !is_full => match accepted {
                Ok(stream) => waiting = Some(stream),
                // Most likely the process has no more descriptors.
                Err(_) => is_full = true,
            },
            () = tokio::time::sleep(RETRY), if waiting.is_some() || is_full => is_full = false,
        }
        if is_full || (waiting.is_some() && connections.len() >= most) {
            timeouts.evict();
        } else if let Some(stream) = waiting.take() {
            let activity = Activity::new();
            let served = connections.spawn(connection(stream, activity.clone()));
            timeouts.add(activity, served);
        }
    }
    drop((listener, waiting));
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.shutdown_timeout, all).await.is_err() {
        connections.shutdown().await;
    }
}
