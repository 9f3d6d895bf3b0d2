//! Exchanges that use the machine and no library. Each is the floor of some subjects.

pub mod eventfd;
pub mod events;
pub mod futex;
pub mod line;
pub mod relay;
pub mod ring;
pub mod socket;
pub mod uds;
