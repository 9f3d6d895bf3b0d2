//! How fast two processes answer one another: slipring beside what the machine can do.
//!
//! ```text
//! cargo run --release --example ping_pong
//! cargo run --release --example ping_pong -- --modes direct,futex --sizes 8 --seconds 5 --json
//! cargo run --release --example ping_pong -- --modes direct,connect --busy 2
//! cargo run --release --example ping_pong -- --pairs 4
//! ```
//!
//! The program starts its own peer process. `crates/slipring-bench` holds the measuring, and the head of its module
//! `ping_pong` explains the options.
//!
//! Expect a table: one line a row, with the size, the state of the machine (near: both CPUs share a cache; far: they do
//! not), the quantiles, the ratio to the floor, and the floor's own figure in the same moments.

fn main() -> std::process::ExitCode {
    slipring_bench::ping_pong::main()
}
