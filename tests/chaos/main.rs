//! Whatever happens at whatever moment, the survivor continues: peers are killed or stopped, system calls fail, an
//! adversary attacks, and wake-ups race.
//!
//! `cargo test` tries a sample. `SLIPRING_TESTS=whole cargo test --release --test chaos` tries everything;
//! `docs/reliability.md` has the details.

mod adversary;
mod faults;
mod faults_lives;
mod faults_peer;
mod kill_random;
mod kill_steps;
mod kill_sweep;
mod publisher_steps;
mod races;
mod random;
#[cfg(target_arch = "x86_64")]
mod stepping;
mod subscriber_steps;
#[path = "../support/mod.rs"]
mod support;
mod tensor_deaths;
