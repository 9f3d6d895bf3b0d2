//! Unit tests of `link::share`.

use super::*;

const MILLI: i64 = 1_000_000;

/// Debts, and a clock that the test sets.
struct Scene {
    debts: Debts,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self { debts: Debts::new(), now: Instant::now() };
        scene.debts.pay(scene.now);
        scene
    }

    fn add(&mut self, peer: PeerProcess, cost: i64) {
        let now = self.now;
        self.debts.add(peer, cost, || now);
    }

    fn rests(&mut self, peer: PeerProcess) -> bool {
        let now = self.now;
        self.debts.rest(peer, || now).is_some()
    }

    /// Has peers take all that they may, half a millisecond at a time, while time passes. Returns what each has taken.
    fn run(&mut self, peers: &[PeerProcess], time: Duration) -> Vec<i64> {
        let (end, mut taken) = (self.now + time, vec![0; peers.len()]);
        while self.now < end {
            for (peer, taken) in peers.iter().zip(&mut taken) {
                if !self.rests(*peer) {
                    self.add(*peer, MILLI / 2);
                    *taken += MILLI / 2;
                }
            }
            self.now += Duration::from_micros(500);
        }
        taken
    }
}

#[test]
fn a_peer_that_has_overdrawn_rests_four_times_as_long() {
    let mut scene = Scene::new();
    let (peer, start) = ((1, Some(1)), scene.now);
    assert!(scene.debts.rest(peer, || unreachable!("no clock is read")).is_none());
    // It has done nothing for a second, and saves up no more for it.
    scene.now = start + Duration::from_secs(1);
    scene.add(peer, 3 * MILLI);
    assert!(!scene.rests(peer));
    scene.add(peer, MILLI + 4_400_000);
    let rest = scene.debts.rest(peer, || start + Duration::from_secs(1)).unwrap();
    assert_eq!(rest.as_micros(), 17_600);
    scene.now += Duration::from_millis(17);
    assert!(scene.rests(peer));
    scene.now += Duration::from_millis(1);
    assert!(!scene.rests(peer));
    scene.now += Duration::from_secs(100);
    scene.add(peer, MILLI);
    assert_eq!(scene.debts.total, MILLI);
}

#[test]
fn a_peer_has_a_quarter_of_the_time_and_all_together_half_of_it() {
    let second = Duration::from_secs(1);
    let about = |taken: i64, millis: i64| (taken / MILLI - millis).abs() <= 12;
    let (one, other, third, foreign) = ((1, Some(1)), (1, Some(2)), (1, None), (2, Some(3)));
    let taken = Scene::new().run(&[one], second);
    assert!(about(taken[0], 250), "{taken:?}");
    let taken = Scene::new().run(&[one, other], second);
    assert!(about(taken[0], 250) && about(taken[1], 250), "{taken:?}");
    let taken = Scene::new().run(&[one, other, third], second);
    assert!(taken.iter().all(|taken| about(*taken, 167)), "{taken:?}");
    // Users have equal parts, whatever number of processes they have.
    let taken = Scene::new().run(&[one, other, third, foreign], second);
    assert!(about(taken[3], 250), "{taken:?}");
    assert!(taken[..3].iter().all(|taken| about(*taken, 83)), "{taken:?}");
    let many: Vec<_> = (0..100).map(|pid| (1, Some(pid))).collect();
    let taken: i64 = Scene::new().run(&many, second).iter().sum();
    // They start with less than 4 ms each.
    assert!(taken <= 600 * MILLI, "{} ms", taken / MILLI);
}

#[test]
fn a_peer_that_owes_nothing_never_rests() {
    let mut scene = Scene::new();
    let many: Vec<_> = (0..100).map(|pid| (1, Some(pid))).collect();
    for _ in 0..20 {
        scene.run(&many, Duration::from_millis(20));
        assert!(!scene.rests((1, Some(1000))) && !scene.rests((2, Some(1))));
    }
}

#[test]
fn all_links_of_a_peer_have_one_debt_with_a_thread() {
    let peer = (1, Some(1));
    let mut links: Vec<_> = (0..8).map(|_| SocketShare::new(peer)).collect();
    links[0].spend(1000 * MILLI);
    for link in &mut links {
        link.begin_look();
        assert!(link.rests());
    }
    assert!(!SocketShare::new((1, Some(2))).rests());
    // Another thread is owed nothing.
    std::thread::spawn(move || assert!(!links[1].rests())).join().unwrap();
}

/// Computes for this long, in nanoseconds.
fn compute(time: i64) {
    let start = computed();
    while computed() - start < time {
        std::hint::spin_loop();
    }
}

#[test]
fn a_packet_costs_what_the_thread_has_computed_for_it() {
    let mut share = SocketShare::new((1, Some(1)));
    for _ in 0..2 {
        // What the thread does between two looks is not the peer's.
        compute(2 * LOOK);
        share.begin_look();
        share.start_clock();
        assert_eq!(share.look, CALL);
        compute(LOOK / 4);
        share.charge();
        let first = share.look;
        assert!(first >= LOOK / 4, "{first} ns");
        share.start_clock();
        compute(LOOK / 4);
        share.charge();
        assert!(share.look >= first + LOOK / 4, "{} ns after {first} ns", share.look);
    }
}

#[test]
fn a_look_that_finds_no_packet_reads_no_clock() {
    let mut share = SocketShare::new((1, Some(1)));
    share.begin_look();
    compute(LOOK);
    share.charge();
    assert_eq!((share.look, share.charged_at), (CALL, None));
}
