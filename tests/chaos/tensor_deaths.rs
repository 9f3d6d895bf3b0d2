//! Tensors of random sizes go to receivers that are killed and replaced all the time.
//!
//! There are 2,000, or 100,000 with `SLIPRING_TESTS=whole`.

use std::time::Duration;

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use slipring::{Connection, Context, ErrorKind, Listener, Options, Tensor, TensorSet};

use crate::support::other::{Other, say};
use crate::support::{sample, soon, unique_name, wait_until};

const RECEIVERS: usize = 5;
const QUOTA: u64 = 64 << 20;
const TEST: &str = "tensors_arrive_whole_while_receivers_die";

/// The byte at `at` of a tensor made from `seed`.
fn byte(seed: u64, at: usize) -> u8 {
    (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
        ^ (at as u8).wrapping_mul(31)
        ^ (at >> 8) as u8
}

/// Checks every tensor, and holds some for a while.
fn receive(name: &str) {
    let mut link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
    let mut held: Vec<Tensor> = Vec::new();
    while let Some(set) = link.receiver().recv_tensors().unwrap() {
        let seed = set["seed"].to_vec::<u64>().unwrap()[0];
        let data = set.into_iter().last().unwrap().1;
        let bytes = data.bytes().unwrap().to_vec();
        let wrong = bytes.iter().enumerate().position(|(at, is)| *is != byte(seed, at));
        assert_eq!(wrong, None, "of {} bytes made from {seed}", bytes.len());
        held.push(data);
        if held.len() > (seed % 16) as usize {
            held.drain(..seed as usize % held.len() + 1);
        }
    }
    say("whole");
}

struct Seat {
    process: Other,
    link: Connection,
}

fn seat(listener: &mut Listener, name: &str) -> Seat {
    let process = Other::spawn(TEST, name);
    let link = listener.accept_deadline(soon()).unwrap();
    Seat { process, link }
}

#[test]
fn tensors_arrive_whole_while_receivers_die() {
    let count: u64 = if sample::is_whole() { 100_000 } else { 1_000 };
    let name = unique_name();
    // The receiving side starts this test again.
    let first = Other::start(TEST, &name, receive);
    let context = Context::with_options(Options::new().pool_quota(QUOTA)).unwrap();
    let mut listener = context.listen(&name).unwrap();
    let link = listener.accept_deadline(soon()).unwrap();
    let mut seats = vec![Seat { process: first, link }];
    while seats.len() < RECEIVERS {
        seats.push(seat(&mut listener, &name));
    }
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut killed = 0;
    for number in 0..count {
        let seed = random.next_u64();
        // Mostly short, now and then up to 4 MiB.
        let len = 1 + (seed as usize >> 8) % (1 << (seed % 23));
        let mut data = context.allocation().until(soon()).typed::<u8>([len]).unwrap();
        data.iter_mut().enumerate().for_each(|(at, to)| *to = byte(seed, at));
        let data = data.share().unwrap();
        for _ in 0..1 + seed % 3 {
            let at = random.next_u32() as usize % RECEIVERS;
            let mut set = TensorSet::new();
            set.insert("seed", Tensor::from_slice([1], &[seed]).unwrap()).unwrap();
            set.insert("data", data.try_clone().unwrap()).unwrap();
            match seats[at].link.sender().send_tensors_deadline(&set, soon()) {
                Ok(()) => {}
                Err(error) => assert!(error.is_disconnected(), "{error}"),
            }
        }
        if number % (count / 100).max(1) == 0 {
            let at = random.next_u32() as usize % RECEIVERS;
            std::thread::sleep(Duration::from_micros(seed % 300));
            seats[at].process.kill();
            let _ = seats[at].process.wait();
            killed += 1;
            seats[at] = seat(&mut listener, &name);
        }
    }
    assert!(killed >= 100.min(count), "{killed}");
    for Seat { mut process, link } in seats {
        link.close().unwrap();
        process.expect("whole");
        process.succeeds();
    }
    // The largest block there is: nothing is on loan any more.
    wait_until("the return of everything", || match context.alloc::<u8>([QUOTA as usize]) {
        Ok(_) => true,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::PoolExhausted { .. }), "{error}");
            false
        }
    });
}
