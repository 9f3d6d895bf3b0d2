//! loom models of a command queue: each command is executed, refused, or returned.
//!
//! ```text
//! RUSTFLAGS="--cfg slipring_loom" cargo test --release --lib models
//! ```
//!
//! The models run [`CommandQueue`] as it ships. A model of the loop's `eventfd` keeps the kernel's promise: a write ends
//! the current sleep, or the next one. The handles are counted as `Arc` counts them.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::reactor::command_queue::CommandQueue;
use crate::sync::{AtomicU32, Edge, Ordering, failure_without};

/// Loom's word for threads that all sleep.
const DEADLOCK: &str = "deadlock";

/// The descriptor that wakes the loop.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    woken: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.woken.notify_all();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = self.woken.wait(rung).unwrap();
        }
    }
}

/// The part of a loop that its handles reach.
struct Mailbox {
    queue: CommandQueue<u32>,
    bell: Bell,
}

impl Mailbox {
    fn new() -> Arc<Self> {
        Arc::new(Self { queue: CommandQueue::new(), bell: Bell::default() })
    }

    /// `Mailbox::send` on a thread that runs no loop.
    fn post(&self, command: u32) -> Result<(), u32> {
        if self.queue.push(command)? {
            self.bell.ring();
        }
        Ok(())
    }
}

/// Two threads send a command each to a loop that sleeps when it has none.
fn posts() {
    loom::model(|| {
        let shared = Mailbox::new();
        let posting = [1, 2].map(|command| {
            let shared = shared.clone();
            thread::spawn(move || assert_eq!(shared.post(command), Ok(())))
        });
        let mut done = 0;
        while done < 3 {
            if shared.queue.is_pending() {
                done += shared.queue.take().iter().sum::<u32>();
            } else {
                shared.bell.sleep();
            }
        }
        posting.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(shared.queue.take().is_empty(), "each command is taken once");
    });
}

#[test]
fn a_loop_never_sleeps_past_a_command() {
    posts();
}

#[test]
fn a_post_fails_where_the_loop_is_told_first() {
    assert!(failure_without(Edge::Post, posts).contains(DEADLOCK));
}

#[test]
fn a_post_fails_where_the_queue_is_taken_first() {
    assert!(failure_without(Edge::Take, posts).contains(DEADLOCK));
}

/// The last handle sends a command and goes. The loop ends when no handle is left.
fn last_handle() {
    loom::model(|| {
        let (shared, handles) = (Mailbox::new(), Arc::new(AtomicU32::new(1)));
        let going = {
            let (shared, handles) = (shared.clone(), handles.clone());
            thread::spawn(move || {
                assert_eq!(shared.post(1), Ok(()));
                handles.fetch_sub(1, Ordering::Release);
            })
        };
        let nobody = || handles.load(Ordering::Relaxed) == 0;
        let mut done = 0;
        for _ in 0..2 {
            if shared.queue.is_abandoned(nobody) {
                assert!(shared.queue.stop().is_empty(), "what the last handle asked for is done");
                assert_eq!(done, 1);
                break;
            }
            done += shared.queue.take().len();
        }
        going.join().unwrap();
    });
}

#[test]
fn a_loop_does_what_its_last_handle_asked_for() {
    last_handle();
}

#[test]
fn a_last_handle_fails_where_the_flag_is_looked_at_first() {
    assert!(failure_without(Edge::Abandon, last_handle).contains("the last handle"));
}

/// A loop stops while handles send: each command is taken, left, or returned, once.
#[test]
fn a_loop_that_stops_loses_no_command() {
    loom::model(|| {
        let shared = Mailbox::new();
        let posting = [1, 2].map(|command| {
            let shared = shared.clone();
            thread::spawn(move || shared.post(command).err())
        });
        let mut seen = shared.queue.take();
        seen.extend(shared.queue.stop());
        seen.extend(posting.into_iter().filter_map(|thread| thread.join().unwrap()));
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert!(shared.queue.take().is_empty(), "nothing comes behind the stop");
        assert_eq!(shared.post(3), Err(3));
    });
}
