use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::*;

/// An object that counts how often it is asked.
#[derive(Clone, Default)]
struct Counted {
    asked: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Counted {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Parked for Counted {
    fn is_over(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Watch for Counted {
    fn look(&self) -> Next {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_over.load(Ordering::Relaxed) { Next::Over } else { Next::Event }
    }
}

fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_bell_asks_the_oldest_object_of_each_stream_and_no_other() {
    let lane = |number| Some((u32::MAX, number));
    let waiting: Vec<Counted> = (0..100).map(|_| Counted::default()).collect();
    waiting.iter().for_each(|each| give_back(lane(0), each.clone()));
    for _ in 0..100 {
        let gone = Counted::default();
        gone.is_over.store(true, Ordering::Relaxed);
        give_back(lane(1), gone.clone());
        wait_until(|| gone.asked() > 0);
    }
    assert!(waiting[0].asked() > 0);
    assert_eq!(waiting[1..].iter().map(Counted::asked).sum::<usize>(), 0);
    // When the work of the stream ends, all go.
    waiting.iter().for_each(|each| each.is_over.store(true, Ordering::Relaxed));
    wait_until(|| waiting.iter().all(|each| Arc::strong_count(&each.asked) == 1));
}

#[test]
fn what_is_due_looks_and_nothing_else_does() {
    let event = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let ring = |event: &OwnedFd| assert_eq!(rustix::io::write(event, &1u64.to_ne_bytes()), Ok(8));
    let (one, other) = (event(), event());
    let watches = [Arc::new(Counted::default()), Arc::new(Counted::default())];
    let watched: Vec<_> = { watches.iter().zip([&one, &other]) }
        .map(|(counted, event)| {
            let own: Weak<Counted> = Arc::downgrade(counted);
            watch(Some(Source::readable(Arc::clone(event))), own).unwrap()
        })
        .collect();
    let looks = || [watches[0].asked(), watches[1].asked()];
    // The thread may see a watch before it sees its descriptor.
    wait_until(|| looks().iter().all(|looks| *looks > 0));
    let before = looks();
    for round in 1..=20 {
        ring(&one);
        wait_until(|| looks()[0] >= before[0] + round);
    }
    assert_eq!(looks()[1], before[1]);
    watched[1].ring();
    wait_until(|| looks()[1] > before[1]);
    // The end of a watch lets go of the descriptor.
    drop(watched);
    wait_until(|| Arc::strong_count(&one) == 1 && Arc::strong_count(&other) == 1);
}
