//! The connection of a handshake that has succeeded, and what its peer's account is charged.
//!
//! [`establish`] owns nothing. If the watcher cannot watch the link, it closes the account that it opened with
//! the pool.

use std::sync::Arc;

use crate::account::{Account, Charge, Resource};
use crate::error::Result;
use crate::handshake::exchange::{Ours, Theirs};
#[cfg(feature = "metrics")]
use crate::handshake::layout;
use crate::handshake::owned_socket::Socket;
use crate::handshake::packet::{self, Hello};
use crate::handshake::peer::Credentials;
use crate::handshake::role::{Policy, Role};
use crate::handshake::socket;
use crate::link::control_socket;
use crate::link::env::LinkEnv;
use crate::link::link::{Link, Returns, Terms};
use crate::link::session::Session;
use crate::pool::Pool;
use crate::shm::{Area, Backing};
use crate::status::{self, Facts, Kind, Row};
use crate::transport::connection::Connection;
use crate::transport::options::Options;
use crate::wake;

/// The descriptors of a link: its socket and the peer's pidfd.
pub(crate) const LINK_DESCRIPTORS: u64 = 2;

/// A link whose handshake has succeeded.
pub(crate) struct Established {
    pub(crate) session: Session,
    /// The ring that this side writes.
    ring: Area,
    /// What the peer is.
    pub(crate) role: Role,
}

impl Established {
    pub(crate) fn into_connection(self) -> Connection {
        Connection::new(self.session, self.ring)
    }
}

/// The end of a socket that this side has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Connecting,
    Accepting,
}

/// The two sides of a handshake.
pub(super) type Sides = (Ours, Theirs, LinkCharges);

/// What a link's account holds from the handshake on.
pub(super) struct LinkCharges {
    account: Arc<Account>,
    descriptors: Charge,
    ring: [Charge; 2],
}

impl LinkCharges {
    /// Charges a new account with a link of this peer: its descriptors, and the peer's segment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AccountFull`](crate::ErrorKind::AccountFull)
    pub(super) fn new(
        options: &Options,
        peer: &Credentials,
        hello: &Hello,
        descriptors: u64,
    ) -> Result<Self> {
        let account = options.account(peer);
        let descriptors = account.charge(Resource::Descriptors, descriptors)?;
        let ring = [
            account.charge(Resource::Mappings, control_socket::RING_MAPPINGS)?,
            account.charge(Resource::MappedBytes, hello.extents().segment_len() as u64)?,
        ];
        Ok(Self { account, descriptors, ring })
    }
}

/// Returns the link of a handshake's two sides.
///
/// # Errors
///
/// [`ErrorKind::DescriptorLimit`](crate::ErrorKind::DescriptorLimit), [`ErrorKind::Os`](crate::ErrorKind::Os): the link
/// cannot be watched.
pub(super) fn establish(
    options: &Options,
    env: &Arc<LinkEnv>,
    (socket, end): (Socket, End),
    (ours, theirs, charges): Sides,
) -> Result<Established> {
    let Ours { hello, mapping, ring, inode, .. } = ours;
    let node = options.node_of_receiver(theirs.hello.numa_node).filter(|node| {
        let bound = mapping.bind_to_node(*node);
        // Only the peer vouches for the node, and the link works without it.
        if let Err(error) = &bound {
            tracing::debug!(error = format_args!("{error:#}"), node, "the ring stays where it is");
        }
        bound.is_ok()
    });
    let terms = Terms {
        max_message: hello.max_message.min(theirs.hello.max_message),
        own: hello.extents(),
        peer: theirs.hello.extents(),
        peer_pool_limit: theirs.hello.pool_limit,
        backing: Backing { node: node.or(options.backing().node), ..options.backing() },
        #[cfg(feature = "traces")]
        connected: end == End::Connecting,
    };
    let peer = theirs.segment.mapping().clone();
    peer.count(charges.ring);
    let row = open_row((&socket, end), env.pool(), (&hello, &theirs), inode)?;
    #[cfg(feature = "metrics")]
    row.follow(&peer, layout::POSITION, hello.ring_capacity.max(hello.second_ring));
    let returns = Returns::new((mapping.clone(), peer.clone()), &theirs.peer, row.clone());
    let borrower = env.pool().open(Arc::new(returns), theirs.hello.loan_slots);
    let interrupts = theirs.hello.issues_membarrier && wake::is_registered();
    let process = (theirs.peer.uid(), theirs.peer.pid());
    let link = Link::new(
        (mapping, peer),
        (socket.into_link(), theirs.peer),
        terms,
        interrupts,
        borrower,
        options.control_socket(
            (charges.account, charges.descriptors),
            theirs.hello.second_ring,
            (process, env.mapped().clone()),
        ),
        (row, theirs.segment.inode()),
    );
    let link = Arc::new(link);
    tracing::debug!(peer = link.peer_name(), ?end, role = ?theirs.hello.role, "a link is made");
    if let Err(error) = env.watch(&link) {
        env.pool().close(borrower);
        return Err(error);
    }
    let session = Session::new(link, env.clone());
    Ok(Established { session, ring, role: theirs.hello.role })
}

/// Opens the row of a link in the status page.
fn open_row(
    (socket, end): (&Socket, End),
    pool: &Pool,
    (ours, theirs): (&Hello, &Theirs),
    own: u64,
) -> Result<Arc<Row>> {
    let address = match end {
        End::Connecting => socket::peer_name(socket),
        End::Accepting => socket::own_name(socket),
    };
    let role = match (ours.role, end) {
        (Role::Publisher, _) => status::Role::Publishes,
        (Role::Subscriber(_), _) => status::Role::Subscribes,
        (Role::Link, End::Accepting) => status::Role::Accepted,
        (Role::Link, End::Connecting) => status::Role::Connected,
    };
    let subscriber = [ours.role, theirs.hello.role].into_iter().find_map(|role| match role {
        Role::Subscriber(policy) => Some(policy),
        _ => None,
    });
    let policy = match subscriber {
        Some(Policy::Every) => (1, 0),
        Some(Policy::Newest(depth)) => (2, depth),
        Some(Policy::Latest) => (3, 0),
        None => (0, 0),
    };
    Row::open(&Facts {
        kind: Kind::Link,
        role,
        policy,
        peer: (theirs.peer.pid(), theirs.peer.uid()),
        own,
        theirs: theirs.segment.inode(),
        context: pool.number(),
        limit: theirs.hello.loan_slots.min(pool.loan_limit().blocks).into(),
        version: packet::VERSION,
        address: &address,
    })
}

#[cfg(test)]
mod tests;
