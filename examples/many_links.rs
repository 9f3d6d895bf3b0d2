//! A thousand links on one thread: what they cost under load and at rest, beside an epoll loop.
//!
//! ```text
//! cargo run --release --example many_links
//! cargo run --release --example many_links -- --links 100 --rate 1000 --seconds 2 --floor no
//! cargo run --release --example many_links -- --topic yes
//! ```
//!
//! The program starts its own peer process. `crates/slipring-bench` holds the measuring, and the head of its module
//! `many_links` explains the options.
//!
//! Expect one line for slipring and one for the floor, the medians of the ratios of their slices, what a link takes, and
//! the CPU that both processes use when all links are silent. With `--topic yes`, expect what each of 1,000 subscribers of
//! one topic takes in both processes.

fn main() -> std::process::ExitCode {
    slipring_bench::many_links::main()
}
