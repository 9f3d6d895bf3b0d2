//! A subscriber that is killed after every instruction of an operation.
//!
//! ```text
//!   survivor (one process for many deaths)               victim (a process for each place)
//!   publishes, an honest subscriber reads ◀───────────── subscribes
//!   sends what the victim needs ───────────────────────▶ prepares
//!                                                        the operation, instruction by instruction
//!   publishes on, the honest one reads all
//!   is rid of it ◀────────────────────────────────────── dies
//! ```
//!
//! Wherever the victim dies, the publisher goes on. It waits for a subscriber that wants every message only while that
//! subscriber lives, and for no other one. The honest subscriber gets every message. Blocks and descriptors come back.

#![cfg(target_arch = "x86_64")]

use std::mem;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use slipring::broadcast::{
    EventKind, OwnedSample, Policy, PublishOptions, Publisher, SubscribeOptions, Subscriber,
};
use slipring::error::{Eviction, TryRecvError, TrySendError};
use slipring::options::Spin;
use slipring::{Context, ErrorKind, Options};

use crate::stepping::{self, Death, Plan, Run, SEEN, falls_asleep, kill, step};
use crate::support::other::wait_until_asleep;
use crate::support::published::{bytes_of, message, number_of};
use crate::support::{HANG, soon, unique_name, wait_until};
use Operation::*;

/// Places of each operation that are tried where not all are.
const PLACES: usize = 6;

/// Messages that the slots keep, less one.
const SLOTS: u32 = 32;

const SHORT: usize = 48;
const POOLED: usize = 1500;

/// The operation in which the victim dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Join,
    RecvShort,
    /// It skips messages.
    RecvLatest,
    RecvPooled,
    /// It maps the memory.
    RecvFirstPooled,
    /// The publisher does not wait for it, so it announces what it reads.
    RecvHeld,
    RecvTensor,
    DropSample,
    DropTensor,
    /// It finds nothing, and says how far it is.
    Tell,
    /// The publisher waits for that.
    WakePublisher,
    ParkForMessage,
    /// It is evicted, and learns of it.
    LearnOfEviction,
    Leave,
}

const OPERATIONS: [Operation; 14] = [
    Join,
    RecvShort,
    RecvLatest,
    RecvPooled,
    RecvFirstPooled,
    RecvHeld,
    RecvTensor,
    DropSample,
    DropTensor,
    Tell,
    WakePublisher,
    ParkForMessage,
    LearnOfEviction,
    Leave,
];

/// What lies in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Short,
    Pooled,
    Tensor,
}

impl Operation {
    fn options(self) -> SubscribeOptions {
        match self {
            RecvLatest => SubscribeOptions::latest(),
            RecvHeld | RecvTensor | DropSample | DropTensor => SubscribeOptions::newest(8),
            _ => SubscribeOptions::every(),
        }
        .reconnect(false)
    }

    /// Returns the messages that there are before the operation begins.
    fn messages(self) -> Vec<Kind> {
        match self {
            Join | ParkForMessage => Vec::new(),
            RecvShort | Tell => vec![Kind::Short],
            RecvLatest => vec![Kind::Short; 5],
            RecvPooled | RecvHeld => vec![Kind::Pooled; 2],
            RecvTensor => vec![Kind::Pooled, Kind::Tensor],
            RecvFirstPooled | DropSample | LearnOfEviction | Leave => vec![Kind::Pooled],
            DropTensor => vec![Kind::Tensor],
            WakePublisher => vec![Kind::Short; SLOTS as usize - 1],
        }
    }

    /// Returns how many of them the victim reads before.
    fn reads(self) -> usize {
        match self {
            RecvPooled | RecvHeld | RecvTensor | DropSample | DropTensor | Tell
            | LearnOfEviction | Leave => 1,
            _ => 0,
        }
    }

    /// Returns how many messages the publisher sends while the victim is in the operation: as many as it can, unless they
    /// would make the operation another one.
    fn beside(self) -> usize {
        match self {
            RecvLatest | Tell | WakePublisher | ParkForMessage | LearnOfEviction => 0,
            RecvHeld | RecvTensor => 4,
            _ => usize::MAX,
        }
    }
}

fn options() -> Options {
    // In single steps a handshake takes long.
    Options::new().spin(Spin::Never).handshake_timeout(HANG)
}

/// In the victim: the next message.
fn receive(subscriber: &mut Subscriber) -> OwnedSample {
    subscriber.recv_deadline(soon()).unwrap().expect("a message").into_owned().unwrap()
}

/// In the victim: that a sample is whole, unless the subscriber is evicted.
fn check(sample: &OwnedSample) {
    bytes_of(sample).map(|bytes| number_of(&bytes));
}

/// In the victim.
fn subscribe(operation: Operation, name: &str) -> ! {
    let context = Context::with_options(options()).unwrap();
    let join = || context.subscribe(name, operation.options()).unwrap();
    if operation == Join {
        step(join)
    }
    let mut subscriber = join();
    check(&receive(&mut subscriber));
    assert!(matches!(subscriber.try_recv(), Err(TryRecvError::Empty)));
    let mut held: Vec<_> = (0..operation.reads()).map(|_| receive(&mut subscriber)).collect();
    held.iter().for_each(check);
    match operation {
        DropSample | DropTensor => step(|| drop(held)),
        Tell => step(|| assert!(matches!(subscriber.try_recv(), Err(TryRecvError::Empty)))),
        // It tells the publisher at an eighth of the slots.
        WakePublisher => step(|| [(); 3].map(|()| receive(&mut subscriber))),
        LearnOfEviction => step(|| {
            assert_eq!(bytes_of(&held[0]), None);
            let end = subscriber.recv_deadline(soon()).map(drop).unwrap_err();
            assert_eq!(*end.kind(), ErrorKind::Evicted { cause: Eviction::Asked });
            held.clear();
        }),
        Leave => step(|| drop((subscriber, held))),
        _ => {
            held.clear();
            step(|| bytes_of(&receive(&mut subscriber)))
        }
    }
}

/// The process that stays.
struct Survivor {
    test: &'static str,
    name: String,
    context: Context,
    publisher: Publisher,
    honest: Subscriber,
    /// What the publisher keeps for the honest subscriber alone.
    alone: u64,
    /// The number of the next message.
    next: u64,
    latest: Duration,
}

impl Survivor {
    fn new(test: &'static str) -> Self {
        let (context, name) = (Context::with_options(options()).unwrap(), unique_name());
        let publish = PublishOptions::new().slots(SLOTS).newest_limit(8).stall_after(SEEN * 2);
        // A victim reads the last message, so that the publisher sees that it has mapped the topic.
        let publisher = context.publish(&name, publish.history(1)).unwrap();
        let honest = context.subscribe(&name, SubscribeOptions::every().reconnect(false)).unwrap();
        let mut survivor = Self {
            test,
            name,
            context,
            publisher,
            honest,
            alone: 0,
            next: 0,
            latest: Duration::ZERO,
        };
        survivor.publish_on();
        survivor.publisher.take_events();
        survivor.alone = survivor.kept_bytes();
        survivor
    }

    /// Returns the bytes that the publisher must keep.
    fn kept_bytes(&mut self) -> u64 {
        self.publisher.reclaim();
        self.publisher.kept_bytes()
    }

    /// Sends a message, which the honest subscriber gets. Returns false if the publisher would have to wait.
    fn send(&mut self, kind: Kind) -> bool {
        let sent = message(self.next, if kind == Kind::Short { SHORT } else { POOLED });
        if kind == Kind::Tensor {
            let mut tensor = self.publisher.alloc::<u8>([sent.len()]).unwrap();
            tensor.copy_from_slice(&sent);
            self.publisher.send_tensor(tensor).unwrap();
        } else {
            match self.publisher.try_send(&sent) {
                Ok(()) => {}
                Err(TrySendError::Full { .. }) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        self.has_sent(&sent);
        true
    }

    /// The honest subscriber gets a message.
    fn has_sent(&mut self, sent: &[u8]) {
        let sample = self.honest.try_recv().unwrap().expect("a message").into_owned().unwrap();
        assert_eq!(sample.missed(), 0);
        assert!(bytes_of(&sample).expect("it is not evicted") == sent, "message {}", self.next);
        // This tells the publisher that it has read all.
        assert!(matches!(self.honest.try_recv(), Err(TryRecvError::Empty)));
        self.next += 1;
    }

    /// Sends messages of all kinds, for which it waits for nobody.
    fn publish_on(&mut self) {
        for kind in [Kind::Pooled, Kind::Short, Kind::Tensor, Kind::Short].repeat(5) {
            assert!(self.send(kind), "it waits for somebody who is gone");
        }
    }

    /// In the survivor: what happens around the victim, until it is dead.
    fn accompany(&mut self, operation: Operation, visit: &Visit<'_>) {
        match operation {
            // Somebody else joins and leaves beside it.
            Join => {}
            _ => visit.wait_for("the join", || {
                let subscribers = self.publisher.subscribers();
                subscribers.len() == 2 && subscribers.iter().all(|one| one.lag() == 0)
            }),
        }
        let newest = self.next;
        for kind in operation.messages() {
            assert!(self.send(kind));
        }
        if operation == LearnOfEviction {
            let infos = || self.publisher.subscribers();
            visit.wait_for("a hold", || infos().iter().any(|info| info.held() > 0));
            let victim = infos().iter().map(|info| info.id()).max().unwrap();
            assert!(self.publisher.evict(victim));
        }
        visit.ready.send(()).unwrap();
        match operation {
            WakePublisher => {
                let sent = message(self.next, SHORT);
                self.publisher.send(&sent).unwrap();
                self.has_sent(&sent);
                assert_eq!(self.next, newest + u64::from(SLOTS));
            }
            ParkForMessage => {
                let thread = visit.begun.recv();
                if let Ok(thread) = thread
                    && falls_asleep(&visit.run, thread)
                {
                    match visit.plan {
                        Plan::WhenAsleep => kill(thread),
                        _ => assert!(self.send(Kind::Short)),
                    }
                }
            }
            _ => {}
        }
        let is_waited_for = operation.options().policy() == Policy::Every;
        let mut kinds = [Kind::Short, Kind::Pooled].into_iter().cycle().take(operation.beside());
        while !visit.run.is_finished() {
            if let Some(kind) = kinds.next() {
                assert!(
                    self.send(kind) || is_waited_for,
                    "it waits for one that may miss messages"
                );
            }
            thread::park_timeout(Duration::from_micros(200));
        }
    }

    /// The publisher is rid of the victim, and knows how it has ended.
    fn recover(&mut self, operation: Operation, is_whole: bool) {
        if operation == Join {
            // Behind the victim, which may wait in the listener's queue.
            drop(self.context.subscribe(&*self.name, SubscribeOptions::latest()).unwrap());
        }
        wait_until("the end of the dead", || self.publisher.subscribers().len() == 1);
        let mut seen: Vec<_> =
            self.publisher.take_events().iter().map(|event| event.kind()).collect();
        if operation == Join {
            let newcomer = seen.iter().rposition(|kind| *kind == EventKind::Left).unwrap();
            seen.remove(newcomer);
            let newcomer = seen.iter().rposition(|kind| *kind == EventKind::Joined).unwrap();
            seen.remove(newcomer);
        }
        match seen[..] {
            // It died before it was admitted.
            [] => assert!(operation == Join && !is_whole),
            [EventKind::Joined, EventKind::Died] => {
                assert!(operation != LearnOfEviction && (operation != Leave || !is_whole));
            }
            [EventKind::Joined, EventKind::Left] => assert_eq!(operation, Leave),
            [EventKind::Joined, EventKind::Evicted(Eviction::Asked)] => {
                assert_eq!(operation, LearnOfEviction);
            }
            _ => panic!("{seen:?}"),
        }
    }
}

/// In the survivor: a victim whose operation has not begun.
struct Visit<'a> {
    plan: &'a Plan,
    run: Run<'a>,
    /// Tells it that the operation may begin.
    ready: mpsc::Sender<()>,
    /// The victim's thread, once it has begun.
    begun: mpsc::Receiver<libc::pid_t>,
}

impl Visit<'_> {
    /// Waits until something is so. A victim that ends before its operation has failed.
    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        wait_until(what, || is_so() || self.run.is_finished());
    }
}

impl stepping::Survivor for Survivor {
    type Operation = Operation;

    fn once(&mut self, operation: Operation, plan: &Plan) -> Option<Death> {
        let argument = format!("{} {}", operation as usize, self.name);
        let (test, me) = (self.test, rustix::thread::gettid());
        let (ready, prepared) = mpsc::channel();
        let (tell, begun) = mpsc::channel();
        thread::scope(|scope| {
            let run = scope.spawn(move || {
                stepping::run((test, &argument), plan, None, |thread| {
                    prepared.recv().unwrap();
                    if operation == WakePublisher {
                        wait_until_asleep(me);
                    }
                    // Most have nobody who listens.
                    let _ = tell.send(thread);
                })
            });
            let visit = Visit { plan, run, ready, begun };
            self.accompany(operation, &visit);
            let (death, killed) = visit.run.join().unwrap()?;
            self.recover(operation, matches!(plan, Plan::AtTheEnd));
            let late = killed.elapsed();
            assert!(late < SEEN, "seen after {late:?}");
            self.latest = self.latest.max(late);
            Some(death)
        })
    }

    fn settle(&mut self) {
        self.publish_on();
        assert_eq!(self.kept_bytes(), self.alone, "kept for somebody who is gone");
    }

    fn latest(&mut self) -> Duration {
        mem::take(&mut self.latest)
    }

    fn sleeps(operation: Operation) -> bool {
        operation == ParkForMessage
    }

    fn places(_: Operation) -> usize {
        PLACES
    }
}

#[test]
fn a_subscriber_may_be_killed_at_every_instruction() {
    let test = "a_subscriber_may_be_killed_at_every_instruction";
    let survive = || stepping::try_all(&mut Survivor::new(test), &OPERATIONS);
    stepping::sweep(test, survive, |number, name| subscribe(OPERATIONS[number], name));
}
