//! Which peers are admitted.

use std::fmt;
use std::sync::Arc;

use crate::error::{ErrorKind, Result, contain};
use crate::handshake::peer::Credentials;

/// Which peers are admitted.
#[derive(Clone)]
#[non_exhaustive]
pub enum PeerPolicy {
    /// Peers with the effective user id of this process.
    SameUser,
    /// Every peer that can reach the socket.
    Anyone,
    /// Peers that the function admits. It sees what the kernel vouches for, and is asked twice:
    /// about who made the socket, before any descriptor leaves, and about who sent the Hello. Where it
    /// panics the peer is not admitted.
    Custom(Arc<dyn Fn(&Credentials) -> bool + Send + Sync>),
}

impl PeerPolicy {
    pub(crate) fn check(&self, credentials: &Credentials) -> Result<()> {
        let admitted = match self {
            Self::SameUser => credentials.uid == rustix::process::geteuid().as_raw(),
            Self::Anyone => true,
            Self::Custom(admits) => contain(|| admits(credentials)).unwrap_or(false),
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
