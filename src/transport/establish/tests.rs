//! Unit tests of `transport::establish`.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::shm::discard;
use crate::shm::fork::Generation;
use crate::transport::Context;

/// Keeps the thread that unmaps large memory, until the sender is dropped.
struct Blocker(mpsc::Receiver<()>);

impl Drop for Blocker {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

#[test]
fn a_ring_counts_until_it_is_unmapped() {
    // More than the rings of all other tests.
    const RING: u64 = 64 << 20;
    let long = Context::with_options(Options::new().ring_capacity(RING).inline_max(RING)).unwrap();
    let short = Context::new().unwrap();
    let mut listener = short.listen(crate::Address::fresh()).unwrap();
    let address = listener.address().unwrap().clone();
    let connector = thread::spawn(move || long.connect(&address).unwrap());
    let near = listener.accept().unwrap();
    let far = connector.join().unwrap();
    // As much as the process may hold with the ring: one byte more is refused for as long as the ring counts.
    let mut limits = crate::account::Limits::default();
    limits.set_process(Resource::MappedBytes, RING);
    let stranger = Account::of_link((u32::MAX - 1, None), limits);
    let counts = || stranger.charge(Resource::MappedBytes, 1).is_err();
    assert!(counts());
    let (release, blocked) = mpsc::channel();
    discard(Blocker(blocked), &Generation::current().unwrap());
    drop((near, far));
    thread::sleep(Duration::from_millis(20));
    assert!(counts(), "the ring is mapped");
    drop(release);
    let deadline = Instant::now() + Duration::from_secs(20);
    while counts() {
        assert!(Instant::now() < deadline, "the ring counts after it was unmapped");
        thread::sleep(Duration::from_millis(1));
    }
}
