//! The handshake of two processes: addresses, sockets, the first packets, and the policy that admits peers.
//!
//! 1. [`packet`] is pure: bytes in, values out. [`exchange`] and [`socket`] make the system calls.
//! 2. A descriptor that a peer sends is [`untrusted`]: its `close` can take long, so threads of their own do it.
//! 3. [`layout`] names each word of the segment that the handshake passes on.

pub(crate) mod address;
pub(crate) mod closers;
pub(crate) mod exchange;
pub(crate) mod exits;
pub(crate) mod layout;
pub(crate) mod owned_socket;
pub(crate) mod packet;
pub(crate) mod peer;
pub(crate) mod policy;
pub(crate) mod role;
pub(crate) mod socket;
pub(crate) mod untrusted;
mod user;

pub use address::Address;
pub use peer::Peer;
pub(crate) use peer::has_ended;
pub use policy::PeerPolicy;
pub use role::Policy;
pub use untrusted::UntrustedFd;
