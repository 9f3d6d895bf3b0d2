//! Measures slipring beside the floors of the machine.
//!
//! ```text
//! ping_pong, many_links     the programs that examples/ runs
//! against_socket            a protocol over slipring beside a Unix socket, for examples/ (feature `against-socket`)
//! exchange, payload         what two processes do in step, and the bytes of their messages
//! floors, reactors          exchanges without a library, and over slipring's reactor
//! rows, peer, memory        the peer process, its commands, and shared memory
//! runner, distance, loops   slices of a row, how far the CPUs are from each other, and busy loops beside them
//! results, tables, machine  CSV files, the tables of README and docs, facts about the machine
//! ```
//!
//! `bench-rivals` measures with the same parts.

#[cfg(feature = "against-socket")]
pub mod against_socket;
pub mod distance;
pub mod exchange;
pub mod floors;
pub mod loops;
pub mod machine;
pub mod many_links;
pub mod memory;
pub mod payload;
pub mod peer;
pub mod ping_pong;
pub mod reactors;
pub mod results;
pub mod rows;
pub mod runner;
pub mod tables;
pub mod units;

use std::error::Error;

/// The outcome of a step of a measurement.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
