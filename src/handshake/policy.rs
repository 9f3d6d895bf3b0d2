//! The policy that admits peers.
//!
//! 1. The policy sees only what the kernel vouches for.
//! 2. A custom function that panics admits nobody.
//! 3. A user that cannot be told from others is nobody's equal.

use std::sync::Arc;
use std::{fmt, io};

use crate::error::{Error, ErrorKind, Result, contain};
use crate::handshake::peer::{Credentials, Peer};
use crate::handshake::user::{self, Compared};

/// The peers that a context admits, on both sides of a handshake.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use slipring::options::PeerPolicy;
/// use slipring::{Context, Options};
///
/// let friends = [0, 1000];
/// let policy = PeerPolicy::Custom(Arc::new(move |peer| friends.contains(&peer.uid())));
/// let context = Context::with_options(Options::new().peer_policy(policy))?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum PeerPolicy {
    /// Peers with the effective user id of this process. If that is the overflow uid (65534), the policy admits nobody
    /// in a user namespace that maps only some users: the kernel reports every other user as this one.
    SameUser,
    /// Every peer that can reach the socket.
    Anyone,
    /// Peers that the function admits. It runs twice a handshake: for the process that made the socket, before any
    /// descriptor leaves, and for the process that sent the Hello. A function that panics does not admit the peer.
    Custom(Arc<dyn Fn(&Peer) -> bool + Send + Sync>),
}

impl PeerPolicy {
    pub(crate) fn check(&self, credentials: &Credentials) -> Result<()> {
        let refused = || ErrorKind::PeerNotAdmitted { uid: credentials.uid };
        let admitted = match self {
            Self::SameUser => match user::compare(credentials.uid) {
                Compared::Same => true,
                Compared::Different => false,
                Compared::Unknown => {
                    let why = "this process's user namespace does not map every user, and reports those that it does \
                               not map by this number (user_namespaces(7)): map another number to this process's user, \
                               or use PeerPolicy::Custom";
                    return Err(Error::with_source(refused(), io::Error::other(why)));
                }
            },
            Self::Anyone => true,
            Self::Custom(admits) => {
                let peer = Peer::new(*credentials, None);
                contain(|| admits(&peer)).unwrap_or(false)
            }
        };
        if admitted { Ok(()) } else { Err(refused().into()) }
    }
}

impl fmt::Debug for PeerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameUser => "SameUser",
            Self::Anyone => "Anyone",
            Self::Custom(_) => "Custom",
        })
    }
}
