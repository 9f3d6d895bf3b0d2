//! Unit tests of `shm::fork`.

use super::*;
use std::sync::Mutex;

#[test]
fn threads_of_a_process_share_its_state_and_the_next_process_inherits() {
    let inherit = |parent: &Mutex<Vec<u32>>, own: &Mutex<Vec<u32>>| {
        own.lock().unwrap().append(&mut parent.lock().unwrap());
    };
    let states = PerProcess::<Mutex<Vec<u32>>>::new();
    std::thread::scope(|scope| {
        for number in 0..3 {
            let states = &states;
            scope.spawn(move || {
                states.get_in(1, Mutex::default, inherit).lock().unwrap().push(number);
            });
        }
    });
    let parent = states.get_in(1, Mutex::default, inherit);
    assert_eq!(parent.lock().unwrap().len(), 3);
    let child = states.get_in(2, Mutex::default, inherit);
    assert_eq!(child.lock().unwrap().len(), 3);
    assert!(parent.lock().unwrap().is_empty());
}

#[test]
fn a_lock_that_is_held_at_the_fork_is_free_in_the_child() {
    static STATE: PerProcess<Mutex<u32>> = PerProcess::new();
    let held = STATE.get(Mutex::default, |_, _| ()).unwrap().lock().unwrap();
    // SAFETY: the child allocates, which the C library allows, and ends with `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let inherit = |parent: &Mutex<u32>, own: &Mutex<u32>| {
            *own.lock().unwrap() = u32::from(parent.try_lock().is_err());
        };
        let own = STATE.get(Mutex::default, inherit);
        let is_free = own.is_ok_and(|own| own.try_lock().is_ok_and(|own| *own == 1));
        // SAFETY: `_exit` runs no handlers, as a forked child of a threaded process must not.
        unsafe { libc::_exit(i32::from(!is_free)) };
    }
    let mut status = 0;
    // SAFETY: `pid` is our child, `status` a valid place to write to.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    drop(held);
}

#[test]
fn a_generation_ends_at_fork() {
    let generation = Generation::current().unwrap();
    assert!(generation.is_current());
    // SAFETY: the child only loads and stores words, and ends with `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let seen = !generation.is_current();
        let anew = Generation::current().is_ok_and(|own| own.is_current());
        // SAFETY: `_exit` runs no handlers, as a forked child of a threaded process must not.
        unsafe { libc::_exit(if seen && anew && !generation.is_current() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `pid` is our child, `status` a valid place to write to.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    assert!(generation.is_current());
}
