//! The connections of an address, from their acceptance to the server's end.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::idle::{Activity, IdleTimeouts};
use crate::limits::Limits;
use crate::listener::{Listener, Socket, Stream};
use crate::shutdown::Shutdown;

/// Where there is no place for a client: how long until it is looked for again.
const AGAIN: Duration = Duration::from_millis(20);

/// Serves each client by `connection` until the end is told, and then until the requests under way are answered, or
/// until it has taken too long.
///
/// Where there are as many as may be, the one that has been idle longest makes room for the next.
pub(super) async fn serve<F>(
    socket: Socket,
    limits: &Limits,
    idle: Option<Duration>,
    mut shutdown: Shutdown,
    connection: impl Fn(Stream, Activity) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = Listener::new(socket);
    let mut connections = JoinSet::new();
    let mut timeouts = IdleTimeouts::new(limits.stall_timeout, idle);
    let mut waits = None;
    while !*shutdown.borrow() {
        tokio::select! {
            _ = shutdown.changed() => break,
            Some(_) = connections.join_next() => {}
            () = timeouts.close_expired() => {}
            stream = listener.accept(), if waits.is_none() => waits = Some(stream),
            () = tokio::time::sleep(AGAIN), if waits.is_some() => {}
        }
        if waits.is_some() && connections.len() >= limits.connections {
            timeouts.evict();
        } else if let Some(stream) = waits.take() {
            let activity = Activity::new();
            let served = connections.spawn(connection(stream, activity.clone()));
            timeouts.add(activity, served);
        }
    }
    drop((listener, waits));
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.shutdown_timeout, all).await.is_err() {
        connections.shutdown().await;
    }
}
