//! Unit tests of `wake::spin`.

use super::*;

const MAX: Duration = Duration::from_micros(400);

fn adaptive() -> SpinPolicy {
    SpinPolicy::new(Spin::Adaptive { max: MAX })
}

/// Returns how many of `count` waits poll, where polling never pays.
fn polls_in_vain(policy: &mut SpinPolicy, count: u32) -> usize {
    let mut wait = || {
        let polls = policy.polls();
        policy.slept();
        polls
    };
    (0..count).filter(|_| wait()).count()
}

#[test]
fn polling_goes_on_as_spin_says() {
    let now = Instant::now();
    let second = Duration::from_secs(1);
    for (spin, short, long) in [
        (Spin::Never, false, false),
        (Spin::For(second), true, false),
        (Spin::Forever, true, true),
        (Spin::Adaptive { max: second }, true, false),
    ] {
        let mut polling = Polling::new(SpinPolicy::new(spin));
        polling.since = Some(now);
        assert_eq!(polling.goes_on(now + second / 2, false), short, "{spin:?}");
        assert_eq!(polling.goes_on(now + 100 * second, false), long, "{spin:?}");
    }
}

#[test]
fn one_wait_in_vain_skips_nothing() {
    let mut policy = adaptive();
    policy.slept();
    assert!(policy.polls());
    policy.slept();
    assert!(!policy.polls());
}

#[test]
fn polling_that_never_pays_is_rare() {
    let mut policy = adaptive();
    assert_eq!(polls_in_vain(&mut policy, 127), 7);
    assert_eq!(polls_in_vain(&mut policy, 128 * 100), 100);
}

#[test]
fn polling_that_pays_comes_back() {
    let mut policy = adaptive();
    polls_in_vain(&mut policy, 10_000);
    let mut waits = 0;
    while policy.failures > 0 {
        if policy.polls() {
            policy.caught()
        } else {
            policy.slept()
        }
        waits += 1;
    }
    assert!(waits < 256, "{waits}");
    assert!(policy.polls());
}

#[test]
fn a_fixed_time_is_not_adapted() {
    for spin in [Spin::For(MAX), Spin::Forever] {
        assert_eq!(polls_in_vain(&mut SpinPolicy::new(spin), 100), 100);
    }
    assert_eq!(polls_in_vain(&mut SpinPolicy::new(Spin::Never), 100), 0);
}

#[test]
fn a_wait_that_sleeps_at_once_is_counted() {
    let mut polling = Polling::new(adaptive());
    polls_in_vain(&mut polling.policy, 4);
    let skip = polling.policy.skip;
    assert!(skip > 0 && !polling.sleeps_at_once(true) && polling.sleeps_at_once(false));
    polling.end();
    assert_eq!(polling.policy.skip, skip - 1);
    assert!(polling.goes_on(Instant::now(), true), "a dear sleep is polled against");
}

#[test]
fn a_wait_that_ends_before_the_clock_is_read_has_paid() {
    let mut polling = Polling::new(adaptive());
    polling.policy.slept();
    assert!(!polling.sleeps_at_once(false));
    polling.end();
    assert_eq!(polling.policy.failures, 0);
}

#[test]
fn a_wait_ends_with_what_was_found() {
    let mut polling = Polling::new(adaptive());
    let now = Instant::now();
    let wait = |polling: &mut Polling, length| {
        polling.goes_on(now, false);
        polling.goes_on(now + length, false);
        polling.end();
    };
    wait(&mut polling, 2 * MAX);
    assert_eq!(polling.policy.failures, 1);
    wait(&mut polling, MAX / 2);
    assert_eq!(polling.policy.failures, 0);
    // A wait that `forget` dropped teaches nothing.
    polling.end();
    polling.goes_on(now, false);
    polling.goes_on(now + 2 * MAX, false);
    polling.forget();
    polling.end();
    assert_eq!(polling.policy.failures, 0);
}
