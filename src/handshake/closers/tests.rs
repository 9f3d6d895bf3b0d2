//! Unit tests of `handshake::closers`.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::*;
use crate::handshake::untrusted::tests::{lingering, socket_with};

fn closers() -> &'static Closers {
    Box::leak(Box::new(Closers::default()))
}

fn is_closed(end: &mut UnixStream) {
    end.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(end.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn threads_that_wait_long_for_their_turn_close_all_the_same() {
    let closers = closers();
    let mut ends = Vec::new();
    let mut given = Vec::new();
    for _ in 0..4 {
        let (here, there) = UnixStream::pair().unwrap();
        ends.push(here);
        given.push(OwnedFd::from(there));
    }
    closers.take(given, 1);
    let queues = closers.lock();
    std::thread::sleep(Duration::from_millis(50));
    drop(queues);
    ends.iter_mut().for_each(is_closed);
    while closers.lock().threads > 0 {
        std::thread::yield_now();
    }
    assert_eq!(closers.waiting.load(Ordering::Relaxed), 0);
    assert!(closers.lock().users.is_empty());
}

#[test]
fn a_user_who_blocks_its_threads_leaves_others_theirs() {
    let closers = closers();
    let blocks = || {
        let (near, far) = lingering(Duration::from_secs(60));
        (socket_with([near]), far)
    };
    let (near, far_ends): (Vec<OwnedFd>, Vec<_>) = (0..40).map(|_| blocks()).unzip();
    closers.take(near, 1);
    let is_blocked = || {
        let waiting = closers.waiting.load(Ordering::Relaxed);
        closers.lock().queue(1).threads == THREADS / 2 && waiting == 40 - THREADS / 2
    };
    while !is_blocked() {
        std::thread::yield_now();
    }
    let (mut here, there) = UnixStream::pair().unwrap();
    closers.take(vec![there.into()], 2);
    is_closed(&mut here);
    assert!(is_blocked());
    // The readers' end lets go of the sockets.
    drop(far_ends);
    while closers.lock().threads > 0 {
        std::thread::yield_now();
    }
    assert_eq!(closers.waiting.load(Ordering::Relaxed), 0);
}

#[test]
fn a_socket_that_would_linger_blocks_no_thread() {
    let closers = closers();
    let (near, _far) = lingering(Duration::from_secs(60));
    let start = std::time::Instant::now();
    closers.take(vec![near], 1);
    while closers.lock().threads > 0 {
        std::thread::yield_now();
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}
