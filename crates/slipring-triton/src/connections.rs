//! The connections of an address, from their acceptance to the server's end.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::door::{Door, Socket, Stream};
use crate::idlers::{Idler, Idlers};
use crate::limits::Limits;
use crate::server::Ending;

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
    mut ending: Ending,
    connection: impl Fn(Stream, Idler) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let door = Door::new(socket);
    let mut connections = JoinSet::new();
    let mut idlers = Idlers::new(limits.patience, idle);
    let mut waits = None;
    while !*ending.borrow() {
        tokio::select! {
            _ = ending.changed() => break,
            Some(_) = connections.join_next() => {}
            () = idlers.look() => {}
            stream = door.accept(), if waits.is_none() => waits = Some(stream),
            () = tokio::time::sleep(AGAIN), if waits.is_some() => {}
        }
        if waits.is_some() && connections.len() >= limits.connections {
            idlers.evict();
        } else if let Some(stream) = waits.take() {
            let idler = Idler::new();
            let served = connections.spawn(connection(stream, idler.clone()));
            idlers.watch(idler, served);
        }
    }
    drop((door, waits));
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.grace, all).await.is_err() {
        connections.shutdown().await;
    }
}
