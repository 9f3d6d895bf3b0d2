//! The connection of a handshake that has succeeded.
//!
//! The function owns nothing. If the watcher cannot watch the link, the function closes the account that it opened with
//! the pool.

use std::sync::Arc;

use crate::error::Result;
use crate::handshake::exchange::{Ours, Theirs};
use crate::handshake::owned_socket::Socket;
use crate::handshake::socket;
use crate::link::env::LinkEnv;
use crate::link::link::{Link, Returns, Terms};
use crate::link::session::Session;
use crate::transport::connection::Connection;
use crate::transport::options::Options;
use crate::wake;

/// Returns the connection of a handshake's two sides.
///
/// # Errors
///
/// [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit), [`ErrorKind::Os`](crate::ErrorKind::Os): the link
/// cannot be watched.
pub(super) fn establish(
    options: &Options,
    env: &Arc<LinkEnv>,
    socket: Socket,
    (ours, theirs): (Ours, Theirs),
) -> Result<Connection> {
    let Ours { hello, mapping, ring, .. } = ours;
    if let Some(node) = options.node_of_receiver(theirs.hello.numa_node)
        && let Err(error) = mapping.bind_to_node(node)
    {
        // Only the peer vouches for the node, and the link works without it.
        tracing::debug!(error = format_args!("{error:#}"), node, "the ring stays where it is");
    }
    let terms = Terms {
        max_message: hello.max_message.min(theirs.hello.max_message),
        own: hello.extents(),
        peer: theirs.hello.extents(),
        peer_pool_limit: theirs.hello.pool_limit,
    };
    let peer = theirs.segment.mapping().clone();
    let borrower = env.pool().open(Arc::new(Returns::new(peer.clone())), theirs.hello.loan_slots);
    let interrupts = theirs.hello.issues_membarrier && wake::is_registered();
    socket::stop_pidfds(&socket);
    let link = Link::new(
        (mapping, peer),
        socket,
        theirs.peer,
        terms,
        interrupts,
        borrower,
        options.control_socket(),
    );
    let link = Arc::new(link);
    if let Err(error) = env.watch(&link) {
        env.pool().close(borrower);
        return Err(error);
    }
    Ok(Connection::new(Session::new(link, env.clone()), ring))
}
