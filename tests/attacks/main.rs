//! Attackers besiege servers of every kind. An honest client beside them keeps half its rate, a new one connects, and
//! the server holds what it held before, once the attacker is gone.
//!
//! | module | what it is |
//! |---|---|
//! | [`servers`] | the kinds of servers, each a process of its own: this binary, started for one of its tests |
//! | [`subject`] | such a process, seen from outside: its descriptors, mappings, threads and memory |
//! | [`honest`] | the honest clients |
//! | [`siege`] | an attacker: `tests/hostile/siege.py`, which knows the format from `docs/wire.md` alone |
//! | [`judge`] | one attack on one server |
//! | [`load`] | how much of the processors other programs use |
//! | [`matrix`] | the attacks, and which kinds of servers each one meets |
//!
//! **How the rate is judged.** An attacker uses processors and the server's time, as any client does. So the honest
//! client's rate beside the attacker is compared with its rate beside a benign client, which makes round trips and has as
//! large a share of a processor as the attacker had. The two take turns: an attacker is started, the rate is taken in
//! slices, the attacker is killed with all its children, the rate is taken beside the benign client. The medians of both
//! are compared. Where the ratio is too low, more turns are made before it counts, because other programs use the machine
//! too. The turns in which they use little of it count alone, where there are two of them. Where there are not, a cell that
//! does not hold is not judged, and the test says so; with `SLIPRING_JUDGE=1` it fails.
//!
//! **How a new client is judged.** It is connected and answered within 1 s. Where it waits for longer, more turns are made,
//! and it may wait for longer in one of them, for up to 5 s.
//!
//! `cargo test` tries a sample of the cells of each kind, from a seed that is printed; `SLIPRING_SEED` repeats it.
//! `SLIPRING_TESTS=whole` tries all cells, with attacks of full size, which take up to 8 GiB of memory. With `--release` it judges
//! the rate beside long copies, too.
//! `SLIPRING_ATTACK=linger` tries the attacks whose names contain `linger`.

mod honest;
mod judge;
mod load;
mod matrix;
mod servers;
mod siege;
mod subject;
#[path = "../support/mod.rs"]
mod support;

use matrix::ATTACKS;
use servers::Kind;

/// Tries the cells of one kind. `test` is the name of the calling test.
fn besiege(test: &str, kind: Kind) {
    support::other::run_here(test, |argument| servers::serve(kind, argument));
    let cells = ATTACKS.iter().filter(|(_, kinds)| kinds.contains(&kind));
    let attacks = cells.map(|(attack, _)| attack);
    judge::try_cells(kind.name(), attacks, |attack| servers::start(test, kind, attack.lack));
}

#[test]
fn a_server_with_a_thread_a_link_withstands_attacks() {
    besiege("a_server_with_a_thread_a_link_withstands_attacks", Kind::Blocking);
}

#[test]
fn a_reactor_withstands_attacks() {
    besiege("a_reactor_withstands_attacks", Kind::Reactor);
}

#[test]
fn an_event_loop_withstands_attacks() {
    besiege("an_event_loop_withstands_attacks", Kind::EventLoop);
}

#[test]
fn a_runtime_of_one_thread_withstands_attacks() {
    besiege("a_runtime_of_one_thread_withstands_attacks", Kind::OneThread);
}

#[test]
fn a_runtime_of_two_threads_withstands_attacks() {
    besiege("a_runtime_of_two_threads_withstands_attacks", Kind::TwoThreads);
}

#[test]
fn a_loop_by_descriptor_withstands_attacks() {
    besiege("a_loop_by_descriptor_withstands_attacks", Kind::Poll);
}

#[test]
fn a_service_of_committed_buffers_withstands_attacks() {
    besiege("a_service_of_committed_buffers_withstands_attacks", Kind::Commit);
}
