//! The policy that admits peers.
//!
//! 1. The policy sees only what the kernel vouches for.
//! 2. A custom function that panics admits nobody.

use std::fmt;
use std::sync::Arc;

use crate::error::{ErrorKind, Result, contain};
use crate::handshake::peer::{Credentials, Peer};

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
    /// Peers with the effective user id of this process.
    SameUser,
    /// Every peer that can reach the socket.
    Anyone,
    /// Peers that the function admits. It runs twice a handshake: for the process that made the socket, before any
    /// descriptor leaves, and for the process that sent the Hello. A function that panics does not admit the peer.
    Custom(Arc<dyn Fn(&Peer) -> bool + Send + Sync>),
}

impl PeerPolicy {
    pub(crate) fn check(&self, credentials: &Credentials) -> Result<()> {
        let admitted = match self {
            Self::SameUser => credentials.uid == rustix::process::geteuid().as_raw(),
            Self::Anyone => true,
            Self::Custom(admits) => {
                let peer = Peer::new(*credentials, None);
                contain(|| admits(&peer)).unwrap_or(false)
            }
        };
        if admitted {
            Ok(())
        } else {
            Err(ErrorKind::PeerNotAdmitted { uid: credentials.uid }.into())
        }
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
