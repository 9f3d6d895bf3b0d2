//! The meeting of two processes: addresses, sockets, the first packets, and who is admitted.
//!
//! [`packet`] is pure: bytes in, values out. [`exchange`] has the system calls. A descriptor that a peer sends is
//! [`untrusted`]: closing it can take long, so other threads do that.

pub(crate) mod address;
pub(crate) mod exchange;
pub(crate) mod layout;
pub(crate) mod owned_socket;
pub(crate) mod packet;
pub(crate) mod peer;
pub(crate) mod policy;
pub(crate) mod socket;
pub(crate) mod untrusted;

pub use address::Address;
pub(crate) use peer::has_ended;
pub use peer::{Credentials, Peer};
pub use policy::PeerPolicy;
pub use untrusted::UntrustedFd;
