//! What the machine itself can do, without a library: each is the bar that a subject is held to.

pub mod eventfd;
pub mod events;
pub mod futex;
pub mod line;
pub mod relay;
pub mod ring;
pub mod socket;
pub mod uds;
