//! What do the operations cost a core when no other core is involved?
//!
//! Unit: nanoseconds an operation pair. Both ends of a link live in this one thread, so no line
//! moves between cores; the figures are instructions, not latency. Run with
//! `taskset -c 0 cargo bench --bench in_process`.

use std::hint::black_box;
use std::thread;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use slipring::{Address, Connection, Context, Options};

/// Two ends of a link in this thread.
fn pair(options: Options) -> (Connection, Connection) {
    let address = Address::fresh();
    let context = Context::with_options(options).expect("default options are valid");
    let mut listener = context.listen(&address).expect("the name is fresh");
    let connector = thread::spawn(move || context.connect(&address).expect("somebody listens"));
    let accepted = listener.accept().expect("somebody connects");
    (connector.join().expect("the connector does not panic"), accepted)
}

fn ring(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    for len in [8usize, 48, 64, 1024] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("reserve+publish, peek+release/{len}"), |bench| {
            let (mut near, mut far) = pair(Options::new());
            bench.iter(|| {
                let mut room = near.sender().reserve(len).expect("there is room");
                room[0] = 1;
                room.publish().expect("the peer lives");
                let received =
                    far.receiver().peek().expect("the peer lives").expect("it has not closed");
                black_box(received.bytes().byte(0));
                received.release().expect("the peer lives");
            });
        });
        let message = vec![1u8; len];
        group.bench_function(format!("send, recv_into/{len}"), |bench| {
            let (mut near, mut far) = pair(Options::new());
            let mut incoming = Vec::new();
            bench.iter(|| {
                near.send(&message).expect("there is room");
                far.receiver().recv_into(&mut incoming).expect("the peer lives");
                black_box(&incoming);
            });
        });
    }
    group.throughput(Throughput::Elements(16));
    group.bench_function("batch of 16/64", |bench| {
        let (mut near, mut far) = pair(Options::new());
        let message = [1u8; 64];
        bench.iter(|| {
            let mut batch = near.sender().batch().expect("the peer lives");
            for _ in 0..16 {
                batch.push(&message).expect("there is room");
            }
            batch.publish().expect("the peer lives");
            far.receiver()
                .drain(16, |_, bytes| {
                    black_box(bytes.byte(0));
                })
                .expect("the peer lives");
        });
    });
    group.finish();
}

fn pool(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pool");
    group.bench_function("alloc+return/64 KiB, one byte written", |bench| {
        let (mut near, mut far) = pair(Options::new());
        bench.iter(|| {
            let mut room = near.sender().reserve(64 << 10).expect("there is room");
            room[0] = 1;
            room.publish().expect("the peer lives");
            let received =
                far.receiver().peek().expect("the peer lives").expect("it has not closed");
            black_box(received.bytes().byte(0));
            received.release().expect("the peer lives");
        });
    });
    group.finish();
}

/// The copy out of a peer's memory, beside a plain copy of private memory.
fn copy_out(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy_out");
    for len in [64usize, 256, 1024, 4096, 65536, 1 << 20] {
        group.throughput(Throughput::Bytes(len as u64));
        let (mut near, mut far) = pair(Options::new());
        let message = vec![1u8; len];
        let mut incoming = vec![0u8; len];
        near.send(&message).expect("there is room");
        group.bench_function(format!("peer/{len}"), |bench| {
            let received =
                far.receiver().peek().expect("the peer lives").expect("it has not closed");
            let bytes = received.bytes();
            bench.iter(|| bytes.copy_to(black_box(&mut incoming)));
        });
        group.bench_function(format!("private/{len}"), |bench| {
            bench.iter(|| incoming.copy_from_slice(black_box(&message)));
        });
    }
    group.finish();
}

/// Sums over bytes in place. Built with `RUSTFLAGS="-C target-cpu=native"` the peer's must not take longer than without.
fn lines(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lines");
    for len in [1024usize, 65536, 1 << 20] {
        group.throughput(Throughput::Bytes(len as u64));
        let (mut near, mut far) = pair(Options::new());
        let message = vec![1u8; len];
        near.send(&message).expect("there is room");
        group.bench_function(format!("peer/{len}"), |bench| {
            let received =
                far.receiver().peek().expect("the peer lives").expect("it has not closed");
            let bytes = received.bytes();
            bench.iter(|| black_box(bytes).lines().fold([0; 8], add));
        });
        let words: Vec<[u64; 8]> = vec![[0x0101_0101_0101_0101; 8]; len / 64];
        group.bench_function(format!("private/{len}"), |bench| {
            bench.iter(|| black_box(&words).iter().copied().fold([0; 8], add));
        });
    }
    group.finish();
}

fn add(mut lanes: [u64; 8], line: [u64; 8]) -> [u64; 8] {
    for (lane, word) in lanes.iter_mut().zip(line) {
        *lane = lane.wrapping_add(word);
    }
    lanes
}

fn connect(criterion: &mut Criterion) {
    criterion.bench_function("connect+accept+close", |bench| {
        bench.iter_batched(|| (), |()| pair(Options::new()), BatchSize::PerIteration);
    });
}

criterion_group!(benches, ring, pool, copy_out, lines, connect);
criterion_main!(benches);
