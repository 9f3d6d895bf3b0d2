//! A loom model: the watcher of a server does not sleep while the loop is left alone.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! It runs [`Attendance`] as it ships; the lock and the sleep around it are those of `crew.rs`. `membarrier` is not
//! modelled: both sides pay a full fence here.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::commit::attendance::Attendance;
use crate::parking::Barrier;
use crate::sync::{Edge, failure_without};

/// What loom says of threads that all sleep.
const DEADLOCK: &str = "deadlock";

struct Watched {
    attendance: Attendance,
    /// Whether the watcher has found the loop left alone.
    caught: Mutex<bool>,
    watch: Condvar,
    work: Condvar,
}

/// A leader leaves for a job that ends only if the watcher sees to the loop.
fn a_loop_left_alone_is_found() {
    loom::model(|| {
        let watched = Arc::new(Watched {
            attendance: Attendance::new(Barrier::full()),
            caught: Mutex::new(false),
            watch: Condvar::new(),
            work: Condvar::new(),
        });
        watched.attendance.take();
        let leader = watched.clone();
        let leader = thread::spawn(move || {
            let asleep = leader.attendance.leave();
            let mut caught = leader.caught.lock().unwrap();
            if asleep {
                leader.watch.notify_one();
            }
            while !*caught {
                caught = leader.work.wait(caught).unwrap();
            }
        });
        let mut seen = watched.attendance.look();
        let mut caught = watched.caught.lock().unwrap();
        loop {
            let look = watched.attendance.look();
            let unchanged = look == seen;
            seen = look;
            if unchanged && Attendance::is_left(look) {
                *caught = true;
                watched.work.notify_one();
                break;
            }
            if unchanged && watched.attendance.doze(look) {
                caught = watched.watch.wait(caught).unwrap();
            }
            watched.attendance.rise();
        }
        drop(caught);
        leader.join().unwrap();
    });
}

#[test]
fn models_a_loop_left_alone_is_found() {
    a_loop_left_alone_is_found();
}

#[test]
fn models_a_watcher_sleeps_for_ever_without_the_leaders_barrier() {
    assert!(failure_without(Edge::Wake, a_loop_left_alone_is_found).contains(DEADLOCK));
}

#[test]
fn models_a_watcher_sleeps_for_ever_without_its_own_barrier() {
    assert!(failure_without(Edge::Park, a_loop_left_alone_is_found).contains(DEADLOCK));
}
