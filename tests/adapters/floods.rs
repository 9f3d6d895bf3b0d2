//! A publisher floods its subscriber in a loop, or a peer its link: a reactor, a runtime, a loop that waits for descriptors. A link
//! and a subscriber of another publisher in the same loop work beside it.
//!
//! Each test prints their rates. With `SLIPRING_JUDGE=1` half of each rate is demanded; the machine must be idle.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use rustix::process::{Pid, Signal, kill_process};
use slipring::broadcast::{PublishOptions, Publisher, Sample, SubscribeOptions, Subscriber};
use slipring::error::TryRecvError;
use slipring::tokio::{AsyncConnection, AsyncSubscriber};
use slipring::{Connection, Context, Reactor, Result};

use crate::support::callbacks::{hear, receive};
use crate::support::other::{Other, run_here, say};
use crate::support::raw::{self, Hello, MESSAGE, Memory, POSITION, RawPeer, header, page};
use crate::support::{HANG, pair_of, sample, unique_name, wait_until};

/// How long each rate is taken.
const SLICE: Duration = Duration::from_millis(100);

/// Between two round trips: without a pause the scheduler's luck among three busy threads would be measured.
const PAUSE: Duration = Duration::from_micros(200);

const SLOT: u64 = 64;

/// What the publisher or the peer does without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// Short messages, as many as its subscriber takes.
    Messages,
    /// Messages that are gone when its subscriber looks.
    Withdrawals,
    Wakes,
    /// Wake-ups of a link.
    LinkWakes,
    /// Memory to map, and its retirement.
    Segments,
}

use Flood::{LinkWakes, Messages, Segments, Wakes, Withdrawals};

const FLOODS: [Flood; 5] = [Messages, Withdrawals, Wakes, LinkWakes, Segments];

impl Flood {
    fn options(self) -> SubscribeOptions {
        let options = match self {
            Withdrawals => SubscribeOptions::newest(48_000),
            _ => SubscribeOptions::every(),
        };
        options.reconnect(false)
    }

    fn slots(self) -> u64 {
        if self == Withdrawals { 1 << 16 } else { 1 << 10 }
    }
}

/// In the process of the publisher, which is made by hand.
fn flood(flood: Flood, name: &str) {
    let listener = raw::listen(name);
    say("listening");
    let socket = raw::accept(&listener);
    let (packet, descriptors) = raw::receive(&socket).expect("a Hello");
    if flood == LinkWakes {
        let mut peer = RawPeer::greet(socket, Hello::honest());
        peer.heard(&packet, &descriptors);
        say("joined");
        wake(&peer);
    }
    let mut peer = RawPeer::greet(socket, Hello::publisher());
    peer.heard(&packet, &descriptors);
    let (topic, memory) = raw::segment(page() + (flood.slots() * SLOT).next_multiple_of(page()));
    let packet = raw::topic_packet(flood.slots() as u32, SLOT as u32, 4, 0);
    raw::send(&peer.socket, &packet, &[topic.as_fd()]).unwrap();
    say("joined");
    match flood {
        Messages | Withdrawals => publish(flood, peer, &memory),
        Wakes | LinkWakes => wake(&peer),
        Segments => {
            const LEN: u64 = 64 << 20;
            let (fd, _memory) = raw::segment(LEN);
            for number in 0.. {
                let packet = raw::segment_packet(number, LEN);
                let sent = raw::send(&peer.socket, &packet, &[fd.as_fd()]);
                let sent =
                    sent.and_then(|()| raw::send(&peer.socket, &raw::retire_packet(number), &[]));
                if sent.is_err() {
                    // The test is over.
                    return;
                }
            }
        }
    }
}

/// Wakes the other side for nothing.
fn wake(peer: &RawPeer) -> ! {
    rustix::io::ioctl_fionbio(&peer.socket, true).unwrap();
    loop {
        let _ = raw::send(&peer.socket, &raw::wake_packet(1), &[]);
    }
}

fn publish(flood: Flood, mut peer: RawPeer, memory: &Memory) {
    for message in 1u64.. {
        let slot = (page() + message % flood.slots() * SLOT) as usize;
        if flood == Messages {
            while message >= peer.theirs().load(POSITION).max(1) + flood.slots() - 1 {
                peer.wake_loop();
            }
            memory.store(slot + 8, header(MESSAGE, 8));
            memory.write(slot + 16, &message.to_ne_bytes());
        }
        memory.store(slot, message << 1 | u64::from(flood == Withdrawals));
        // The newest one.
        memory.store(0x040, message);
        peer.wake_loop();
    }
}

/// The flooded half.
enum Victim {
    Topic(Box<Subscriber>),
    Link(Box<Connection>),
}

/// What a loop serves.
struct Served {
    link: Connection,
    honest: Subscriber,
    victim: Victim,
    said: Said,
}

/// What a loop tells the test.
#[derive(Clone)]
struct Said {
    honest: mpsc::Sender<u64>,
    /// Messages of the flood.
    came: Arc<AtomicU64>,
    /// The flooded half has failed.
    failed: Arc<AtomicBool>,
}

impl Said {
    fn of_honest(&self, sample: Result<Option<Sample<'_>>>) -> ControlFlow<()> {
        match sample {
            Ok(Some(sample)) => drop(self.honest.send(sample.sequence())),
            _ => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn of_victim(&self, sample: Result<Option<Sample<'_>>>) -> ControlFlow<()> {
        let Ok(Some(_)) = sample else {
            self.failed.store(true, Ordering::Relaxed);
            return ControlFlow::Break(());
        };
        self.came.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Continue(())
    }

    /// Notes that a link has ended, which none does before the test is over.
    fn of_link_s_end(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
}

/// A kind of loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reactor,
    Runtime,
    /// A loop that waits for descriptors.
    Poll,
}

/// A loop that goes on until it is dropped.
struct Loop {
    _reactor: Option<Reactor>,
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Loop {
    fn start(kind: Kind, context: &Context, served: Served) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (mut reactor, mut thread) = (None, None);
        match kind {
            Kind::Reactor => reactor = Some(react(context, served)),
            Kind::Runtime => {
                let over = over.clone();
                thread = Some(thread::spawn(move || run_tasks(served, &over)));
            }
            Kind::Poll => {
                let over = over.clone();
                thread = Some(thread::spawn(move || poll(served, &over)));
            }
        }
        Self { _reactor: reactor, over, thread }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn react(context: &Context, served: Served) -> Reactor {
    let Served { link, honest, victim, said } = served;
    let reactor = Reactor::spawn(context).unwrap();
    reactor.adopt(link).unwrap().on_message(|link, message| link.write(message.to_vec()));
    let also = said.clone();
    reactor.subscribe(honest, move |sample| said.of_honest(sample)).unwrap();
    match victim {
        Victim::Topic(victim) => {
            reactor.subscribe(*victim, move |sample| also.of_victim(sample)).unwrap();
        }
        Victim::Link(victim) => {
            let victim = reactor.adopt(*victim).unwrap();
            victim.on_message(|link, message| link.write(message.to_vec()));
            victim.on_closed(move |_, _| also.of_link_s_end());
        }
    }
    reactor
}

fn run_tasks(served: Served, over: &AtomicBool) {
    let Served { link, honest, victim, said } = served;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let echo = |link| async {
            let mut link = AsyncConnection::new(link).unwrap();
            while let Some(message) = link.recv().await.unwrap() {
                link.send(&message).await.unwrap();
            }
        };
        tokio::spawn(echo(link));
        let mut honest = AsyncSubscriber::new(honest);
        let also = said.clone();
        tokio::spawn(async move { while said.of_honest(honest.recv().await).is_continue() {} });
        match victim {
            Victim::Topic(victim) => {
                let mut victim = AsyncSubscriber::new(*victim);
                tokio::spawn(
                    async move { while also.of_victim(victim.recv().await).is_continue() {} },
                );
            }
            Victim::Link(victim) => {
                let ends = tokio::spawn(echo(*victim));
                tokio::spawn(async move {
                    let _ = ends.await;
                    also.of_link_s_end();
                });
            }
        }
        while !over.load(Ordering::Relaxed) {
            tokio::time::sleep(SLICE / 10).await;
        }
    });
}

/// What follows from a turn of one of those that the loop serves.
type Rest = Option<Duration>;

/// The most messages in a turn.
const TURN: usize = 16;

/// Receives as many messages as a turn has. Returns when to go on. `None`: with an event of the descriptor.
fn take(
    subscriber: &mut Subscriber,
    mut said: impl FnMut(Result<Option<Sample<'_>>>) -> ControlFlow<()>,
) -> Rest {
    for _ in 0..TURN {
        let taken = match subscriber.try_recv() {
            Err(TryRecvError::Empty) => return subscriber.rest(),
            Err(TryRecvError::Failed(error)) => Err(error),
            Ok(sample) => Ok(sample),
        };
        if said(taken).is_break() {
            return None;
        }
    }
    Some(Duration::ZERO)
}

/// Sends back as many messages as a turn has. Returns what [`take`] does.
fn echo(link: &mut Connection, ends: impl FnOnce()) -> Rest {
    for _ in 0..TURN {
        match link.receiver().try_recv() {
            Ok(Some(message)) => link.send(&message).unwrap(),
            Err(TryRecvError::Empty) => return link.receiver().rest(),
            _ => {
                ends();
                return None;
            }
        }
    }
    Some(Duration::ZERO)
}

fn poll(served: Served, over: &AtomicBool) {
    let Served { mut link, mut honest, mut victim, said } = served;
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(16));
    link.receiver().take_turns();
    honest.take_turns();
    poll.registry().register(&mut link, Token(0), Interest::READABLE).unwrap();
    poll.registry().register(&mut honest, Token(1), Interest::READABLE).unwrap();
    match &mut victim {
        Victim::Topic(victim) => {
            victim.take_turns();
            poll.registry().register(victim, Token(2), Interest::READABLE).unwrap();
        }
        Victim::Link(victim) => {
            victim.receiver().take_turns();
            poll.registry().register(victim, Token(2), Interest::READABLE).unwrap();
        }
    }
    let mut ready: VecDeque<usize> = (0..3).collect();
    let mut resting: HashMap<usize, Instant> = HashMap::new();
    while !over.load(Ordering::Relaxed) {
        let rest =
            resting.values().min().map_or(SLICE, |until| until.duration_since(Instant::now()));
        let patience = if ready.is_empty() { rest.min(SLICE) } else { Duration::ZERO };
        poll.poll(&mut events, Some(patience)).unwrap();
        let now = Instant::now();
        let rested = resting.extract_if(|_, until| *until <= now).map(|(one, _)| one);
        for one in events.iter().map(|event| event.token().0).chain(rested) {
            if !ready.contains(&one) {
                ready.push_back(one);
            }
        }
        for one in std::mem::take(&mut ready) {
            if resting.contains_key(&one) {
                continue;
            }
            let rest = match (one, &mut victim) {
                (0, _) => echo(&mut link, || {}),
                (1, _) => take(&mut honest, |sample| said.of_honest(sample)),
                (_, Victim::Topic(victim)) => take(victim, |sample| said.of_victim(sample)),
                (_, Victim::Link(victim)) => echo(victim, || said.of_link_s_end()),
            };
            match rest {
                Some(Duration::ZERO) => ready.push_back(one),
                Some(rest) => drop(resting.insert(one, Instant::now() + rest)),
                None => {}
            }
        }
    }
}

/// Those beside the flood.
struct Bystanders {
    far: Connection,
    publisher: Publisher,
    heard: mpsc::Receiver<u64>,
}

impl Bystanders {
    fn echo(&mut self) {
        self.far.send(b"there?").unwrap();
        assert_eq!(receive(&mut self.far), b"there?");
    }

    fn tick(&mut self) {
        self.publisher.send(b"tick").unwrap();
        assert_eq!(hear(&self.heard), self.publisher.sent());
    }

    /// Round trips of the link, and messages of the topic, each in a slice.
    fn rates(&mut self) -> [u64; 2] {
        [Self::echo, Self::tick].map(|trip| {
            let (start, mut trips) = (Instant::now(), 0);
            while start.elapsed() < SLICE {
                trip(self);
                trips += 1;
                thread::sleep(PAUSE);
            }
            trips
        })
    }
}

/// Compares the bystanders' rates beside a flood with those beside a thread that uses as much of a processor.
fn compare(test: &str, kind: Kind, flood: Flood) {
    let name = unique_name();
    let process = Other::spawn(test, &format!("{} {name}", flood as usize));
    process.expect("listening");
    let context = Context::new().unwrap();
    let victim = match flood {
        LinkWakes => Victim::Link(Box::new(context.connect(&name).unwrap())),
        _ => Victim::Topic(Box::new(context.subscribe(&name, flood.options()).unwrap())),
    };
    process.expect("joined");
    let address = unique_name();
    let publisher = context.publish(&address, PublishOptions::new()).unwrap();
    let honest = SubscribeOptions::every().reconnect(false);
    let honest = context.subscribe(&address, honest).unwrap();
    let (link, far) = pair_of(&context, &context);
    let (tell, heard) = mpsc::channel();
    let said = Said { honest: tell, came: Arc::default(), failed: Arc::default() };
    let (came, failed) = (said.came.clone(), said.failed.clone());
    let _loop = Loop::start(kind, &context, Served { link, honest, victim, said });
    let mut bystanders = Bystanders { far, publisher, heard };
    bystanders.echo();
    bystanders.tick();
    if flood == Messages {
        wait_until("the flood", || came.load(Ordering::Relaxed) > 1000);
    }
    let flooding = |goes_on| {
        let signal = if goes_on { Signal::CONT } else { Signal::STOP };
        kill_process(Pid::from_raw(process.pid() as i32).unwrap(), signal).unwrap();
    };
    let (mut alone, mut beside) = ([0; 2], [0; 2]);
    let best = |all: &mut [u64; 2], now: [u64; 2]| {
        all.iter_mut().zip(now).for_each(|(most, rate)| *most = rate.max(*most));
    };
    for _ in 0..if sample::is_judged() { 5 } else { 2 } {
        flooding(false);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            best(&mut alone, bystanders.rates());
            over.store(true, Ordering::Relaxed);
        });
        flooding(true);
        best(&mut beside, bystanders.rates());
    }
    assert!(!failed.load(Ordering::Relaxed), "{kind:?} {flood:?}: nothing of it is a fault");
    for (what, (alone, beside)) in ["link", "topic"].iter().zip(alone.into_iter().zip(beside)) {
        let percent = beside * 100 / alone.max(1);
        println!(
            "{kind:?}, {flood:?}: {what} {beside} in {SLICE:?}, {alone} beside idle work: {percent} %"
        );
        assert!(beside > 0);
        if sample::is_judged() {
            assert!(percent >= 50, "{kind:?}, {flood:?}: {what} keeps {percent} %");
        }
    }
    if flood == Messages {
        println!("{kind:?}, {flood:?}: {} messages came", came.load(Ordering::Relaxed));
    }
}

fn compare_all(test: &str, kind: Kind) {
    run_here(test, |argument| {
        let (number, name) = argument.split_once(' ').unwrap();
        flood(FLOODS[number.parse::<usize>().unwrap()], name);
    });
    for flood in FLOODS {
        compare(test, kind, flood);
    }
}

#[test]
fn a_flooded_subscriber_of_a_reactor_leaves_bystanders_their_rate() {
    compare_all("a_flooded_subscriber_of_a_reactor_leaves_bystanders_their_rate", Kind::Reactor);
}

#[test]
fn a_flooded_subscriber_of_a_runtime_leaves_bystanders_their_rate() {
    compare_all("a_flooded_subscriber_of_a_runtime_leaves_bystanders_their_rate", Kind::Runtime);
}

#[test]
fn a_flooded_subscriber_of_a_loop_by_descriptor_leaves_bystanders_their_rate() {
    let test = "a_flooded_subscriber_of_a_loop_by_descriptor_leaves_bystanders_their_rate";
    compare_all(test, Kind::Poll);
}

/// A subscriber that takes turns waits in a blocking receive, whatever the publisher has spent.
#[test]
fn a_blocking_receive_of_a_subscriber_that_takes_turns_ends_with_its_deadline() {
    let test = "a_blocking_receive_of_a_subscriber_that_takes_turns_ends_with_its_deadline";
    run_here(test, |name| flood(Withdrawals, name));
    let name = unique_name();
    let process = Other::spawn(test, &name);
    process.expect("listening");
    let context = Context::new().unwrap();
    let mut victim = context.subscribe(&name, Withdrawals.options()).unwrap();
    victim.take_turns();
    for _ in 0..10 {
        let start = Instant::now();
        let met = victim.recv_deadline(start + SLICE).map(drop).unwrap_err();
        assert!(met.is_timeout(), "{met}");
        let waited = start.elapsed();
        assert!(waited >= SLICE && waited < HANG, "{waited:?}");
    }
}
