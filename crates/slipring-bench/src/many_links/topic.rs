//! Many subscribers of one topic on one reactor of the peer process, while the publisher is silent.
//!
//! The memory of a process is what is resident of its own, and the whole of the memfds that it has made, resident or not. So
//! what both processes map counts once. Memory of the kernel does not count.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slipring::broadcast::{PublishOptions, SubscribeOptions};
use slipring::{Address, Reactor};

use super::Options;
use super::peer::{CPU, Peer, cpu};
use super::run::raise_limit;
use crate::Outcome;

/// Requests of the first process, beside `CPU`.
const SUBSCRIBE: u8 = b's';
const RECEIVED: u8 = b'r';
const HELD: u8 = b'h';

/// The time that ends what the subscriptions have begun.
const REST: Duration = Duration::from_millis(500);

/// The memory and the descriptors of a process.
#[derive(Clone, Copy)]
struct Held {
    /// KiB that are resident and no memfd.
    resident: u64,
    /// KiB of the memfds that the process has made.
    memfds: u64,
    descriptors: u64,
}

impl Held {
    /// Returns what this process has.
    fn here() -> Outcome<Self> {
        let (mut resident, mut memfds) = (0, HashMap::new());
        let mut is_memfd = false;
        for line in fs::read_to_string("/proc/self/smaps")?.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                // A mapping: addresses, rights, offset, device, inode, name.
                [range, rights, _, _, inode, ref name @ ..] if !range.ends_with(':') => {
                    is_memfd = name.first().is_some_and(|name| name.starts_with("/memfd:"));
                    if is_memfd && rights.contains('w') {
                        *memfds.entry(inode.to_owned()).or_default() += length(range)? / 1024;
                    }
                }
                ["Rss:", count, _] if !is_memfd => resident += count.parse::<u64>()?,
                _ => {}
            }
        }
        let memfds = memfds.values().sum();
        Ok(Self { resident, memfds, descriptors: fs::read_dir("/proc/self/fd")?.count() as u64 })
    }

    fn ask(peer: &Peer) -> Outcome<Self> {
        let [resident, memfds, descriptors] = peer.ask(HELD)?;
        Ok(Self { resident, memfds, descriptors })
    }

    /// Returns how much each of so many subscribers has added: KiB, those of memfds, descriptors.
    fn each(self, before: Self, subscribers: usize) -> [f64; 3] {
        let each = |after: u64, before: u64| (after as f64 - before as f64) / subscribers as f64;
        let memfds = each(self.memfds, before.memfds);
        let resident = each(self.resident, before.resident);
        [resident + memfds, memfds, each(self.descriptors, before.descriptors)]
    }
}

/// Returns the bytes of a range of addresses.
fn length(range: &str) -> Outcome<u64> {
    let (start, end) = range.split_once('-').ok_or("a range of addresses has a -")?;
    Ok(u64::from_str_radix(end, 16)? - u64::from_str_radix(start, 16)?)
}

/// Publishes, and measures what the subscribers cost while the publisher is silent.
pub fn measure(options: &Options) -> Outcome<()> {
    raise_limit(options.links)?;
    let peer = Peer::start(options)?;
    let context = options.context()?;
    let publish = PublishOptions::default().subscriber_limit(options.links);
    let mut publisher = context.publish(&peer.address, publish)?;
    let before = (Held::here()?, Held::ask(&peer)?);
    let [joined] = peer.ask(SUBSCRIBE)?;
    if joined != options.links as u64 {
        return Err(format!("{joined} of {} have joined", options.links).into());
    }
    let start = Instant::now();
    publisher.send(b"hello")?;
    while peer.ask::<1>(RECEIVED)? != [joined] {}
    let took = start.elapsed();
    std::thread::sleep(REST);
    let after = (Held::here()?, Held::ask(&peer)?);
    let (start, used) = (Instant::now(), (cpu(), peer.cpu()?));
    std::thread::sleep(Duration::from_secs(options.seconds.into()));
    let used = (Duration::from_nanos(cpu() - used.0), peer.cpu()? - used.1);
    let part = |used: Duration| 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
    println!(
        "topic: one message reaches {joined} subscribers in {:.1} ms",
        1e3 * took.as_secs_f64()
    );
    let publishing = after.0.each(before.0, options.links);
    let subscribing = after.1.each(before.1, options.links);
    for (what, [all, memfds, descriptors], used) in
        [("publisher", publishing, used.0), ("subscribers", subscribing, used.1)]
    {
        println!(
            "{what}: {all:.1} KiB a subscriber, of which {memfds:.1} KiB in memfds, \
             {descriptors:.2} descriptors; silent: {:.3} % of a CPU",
            part(used)
        );
    }
    println!("together: {:.1} KiB a subscriber", publishing[0] + subscribing[0]);
    Ok(())
}

/// Runs the process of the subscribers until the first process ends.
pub fn serve(name: &str, options: &Options) -> Outcome<()> {
    let context = options.context()?;
    let reactor = Reactor::spawn(&context)?;
    let received = Arc::new(AtomicU64::new(0));
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut asked = [0];
    while socket.read(&mut asked)? > 0 {
        let answer = match asked[0] {
            SUBSCRIBE => {
                for _ in 0..options.links {
                    let subscriber =
                        context.subscribe(Address::named(name)?, SubscribeOptions::latest())?;
                    let received = received.clone();
                    reactor.subscribe(subscriber, move |_| {
                        received.fetch_add(1, Ordering::Relaxed);
                        ControlFlow::Continue(())
                    })?;
                }
                vec![options.links as u64]
            }
            RECEIVED => vec![received.load(Ordering::Relaxed)],
            HELD => {
                let Held { resident, memfds, descriptors } = Held::here()?;
                vec![resident, memfds, descriptors]
            }
            CPU => vec![cpu()],
            other => return Err(format!("nobody asks for {other}").into()),
        };
        let answer: Vec<u8> = answer.into_iter().flat_map(u64::to_le_bytes).collect();
        socket.write_all(&answer)?;
    }
    Ok(())
}
