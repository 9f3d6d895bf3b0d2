//! A publisher that is killed after every instruction of an operation.
//!
//! ```text
//!   survivor (one process for many deaths)               victim (a process for each place)
//!   a subscriber of each policy joins ─────────────────▶ publishes
//!   one more finds it that had joined the victim before ▶
//!   each reads the first message, and holds it ◀──────── prepares
//!                                                        the operation, instruction by instruction
//!   reads all that was published, and the end ◀───────── dies
//! ```
//!
//! Wherever the victim dies, each subscriber sees it. Those that want every message have read all up to the last one. No
//! message is torn. What they hold stays readable. Another topic of the same context works.

#![cfg(target_arch = "x86_64")]

use std::fs;
use std::mem;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use slipring::broadcast::{
    OwnedSample, Policy, PublishOptions, Publisher, SubscribeOptions, Subscriber, SubscriberInfo,
};
use slipring::error::{Eviction, TryRecvError};
use slipring::options::Spin;
use slipring::{Context, Error, ErrorKind, Options};

use crate::stepping::{self, Death, Plan, Run, SEEN, falls_asleep, kill, step};
use crate::support::other::wait_until_asleep;
use crate::support::published::{bytes_of, message, number_of};
use crate::support::{HANG, soon, unique_name, wait_until};
use Operation::*;

/// Places of each operation that are tried where not all are.
const PLACES: usize = 12;

/// Messages that the slots keep, less one.
const SLOTS: u32 = 16;

const SHORT: usize = 48;
const POOLED: usize = 1500;

/// Those who subscribe before the operation: one of each policy, and the one that goes on with each next publisher.
const READERS: usize = 4;

/// The name of the thread of a publisher that admits subscribers.
const HOST: &str = "slipring-publish";

/// The operation in which the victim dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    SendShort,
    /// Each subscriber sleeps, one of them in a loop.
    SendWaking,
    SendPooled,
    SendFirstPooled,
    SendTensor,
    /// It withdraws the messages that nobody may ask for any more, one of which is held.
    SendWithdrawing,
    /// It waits until a subscriber has read the oldest message.
    SendWaiting,
    /// It evicts the subscriber that it would wait for.
    SendEvicting,
    Evict,
    Admit,
    Dismiss,
}

const OPERATIONS: [Operation; 11] = [
    SendShort,
    SendWaking,
    SendPooled,
    SendFirstPooled,
    SendTensor,
    SendWithdrawing,
    SendWaiting,
    SendEvicting,
    Evict,
    Admit,
    Dismiss,
];

impl Operation {
    /// Returns how many messages the victim sends before the operation.
    fn prepared(self) -> u64 {
        match self {
            SendWithdrawing => u64::from(SLOTS) - 1,
            SendWaiting | SendEvicting => u64::from(SLOTS),
            _ => 1,
        }
    }

    /// Returns how many messages the operation sends.
    fn sends(self) -> u64 {
        u64::from(!matches!(self, Evict | Admit | Dismiss))
    }

    fn message(self, number: u64) -> Vec<u8> {
        let is_pooled = match self {
            SendFirstPooled => number > 0,
            SendPooled | SendTensor | SendWithdrawing => true,
            _ => number == 0,
        };
        message(number, if is_pooled { POOLED } else { SHORT })
    }

    /// Returns why it evicts a subscriber.
    fn evicts(self) -> Option<Eviction> {
        match self {
            Evict => Some(Eviction::Asked),
            SendEvicting => Some(Eviction::Stalled),
            _ => None,
        }
    }

    /// Returns the thread of the victim that does it.
    fn thread(self) -> Option<&'static str> {
        matches!(self, Admit | Dismiss).then_some(HOST)
    }
}

fn options() -> Options {
    // In single steps a handshake takes long.
    Options::new().spin(Spin::Never).handshake_timeout(HANG)
}

/// In the victim.
fn publish(operation: Operation, name: &str) -> ! {
    let context = Context::with_options(options()).unwrap();
    let stall_after = if operation == SendEvicting { Duration::ZERO } else { SEEN * 2 };
    let options = PublishOptions::new().slots(SLOTS).newest_limit(8).stall_after(stall_after);
    // A subscriber in the list may have yet to map the topic.
    let mut publisher = context.publish(name, options.history(1)).unwrap();
    let readers = READERS + usize::from(operation == Dismiss);
    wait_until("subscribers", || publisher.subscribers().len() == readers);
    for number in 0..operation.prepared() {
        publisher.send(&operation.message(number)).unwrap();
        if number == 0 && operation != SendFirstPooled {
            let holds = |one: &SubscriberInfo| one.held() == 1;
            wait_until("the first message to be held", || {
                publisher.subscribers().iter().all(holds)
            });
        }
        if operation == SendWithdrawing {
            let has_read = |one: &SubscriberInfo| one.lag() == 0;
            wait_until("a message to be read", || publisher.subscribers().iter().all(has_read));
        }
    }
    let number = operation.prepared();
    let bytes = operation.message(number);
    match operation {
        SendTensor => {
            let mut tensor = publisher.alloc::<u8>([bytes.len()]).unwrap();
            tensor.copy_from_slice(&bytes);
            step(|| publisher.send_tensor(tensor).unwrap())
        }
        Evict => {
            let wants_all = |one: &SubscriberInfo| one.policy() == Policy::Every;
            let first = publisher.subscribers().into_iter().find(wants_all).unwrap();
            step(|| publisher.evict(first.id()))
        }
        // By its thread, while this one stands still.
        Admit | Dismiss => step(|| ()),
        _ => step(|| publisher.send(&bytes).unwrap()),
    }
}

/// A subscriber of a victim, which has read and holds the first message.
struct Reader {
    subscriber: Subscriber,
    is_waited_for: bool,
    held: OwnedSample,
    /// The number of the message after the last one that came.
    next: u64,
}

impl Reader {
    fn new(mut subscriber: Subscriber, operation: Operation) -> Self {
        let held =
            subscriber.recv_deadline(soon()).unwrap().expect("a message").into_owned().unwrap();
        assert_eq!(bytes_of(&held).unwrap(), operation.message(0));
        let is_waited_for = subscriber.policy() == Policy::Every;
        Self { subscriber, is_waited_for, held, next: 1 }
    }

    /// Reads the next message, which must be the right one.
    fn read(&mut self, operation: Operation, until: Instant) -> Result<(), Error> {
        let sample = self.subscriber.recv_deadline(until)?;
        let sample =
            sample.expect("a killed publisher has not ended in order").into_owned().unwrap();
        let bytes = bytes_of(&sample).expect("an evicted subscriber reads none of the pool here");
        let number = number_of(&bytes);
        assert_eq!(bytes, operation.message(number));
        let is_next = number == self.next && sample.missed() == 0;
        assert!(
            is_next || !self.is_waited_for && number > self.next,
            "{number} after {}",
            self.next
        );
        self.next = number + 1;
        Ok(())
    }

    /// Reads to the end. Returns the number of messages up to there.
    fn read_all(&mut self, operation: Operation) -> u64 {
        let end = loop {
            if let Err(error) = self.read(operation, soon()) {
                break error;
            }
        };
        let held = bytes_of(&self.held);
        if *end.kind() == ErrorKind::PeerDied {
            assert!(held.is_some(), "it outlives its sender");
        } else {
            let cause = operation.evicts().filter(|_| self.is_waited_for);
            assert_eq!(Some(end.kind()), cause.map(|cause| ErrorKind::Evicted { cause }).as_ref());
        }
        // The publisher may die between the eviction and the revocation of the memory.
        assert!(held.is_none_or(|held| held == operation.message(0)));
        self.next
    }
}

/// Subscribers that sleep when the operation begins read to the end. Returns how many messages came to each.
fn sleep_and_read(readers: &mut [Reader], begin: impl FnOnce() -> libc::pid_t) -> Vec<u64> {
    thread::scope(|scope| {
        let (say, said) = mpsc::channel();
        let mut reading = Vec::new();
        for reader in readers {
            let say = say.clone();
            reading.push(scope.spawn(move || {
                say.send(rustix::thread::gettid()).unwrap();
                reader.read_all(SendWaking)
            }));
        }
        said.iter().take(reading.len()).for_each(wait_until_asleep);
        begin();
        reading.into_iter().map(|reading| reading.join().unwrap()).collect()
    })
}

/// A subscriber leaves, which the victim's thread deals with until it sleeps.
fn be_dismissed(leaver: Option<Reader>, run: &Run<'_>, thread: libc::pid_t) {
    let descriptors =
        || fs::read_dir(format!("/proc/{thread}/fd")).map_or(0, |descriptors| descriptors.count());
    let before = descriptors();
    drop(leaver);
    wait_until("a dismissal or a death", || run.is_finished() || descriptors() < before);
    if falls_asleep(run, thread) {
        kill(thread);
    }
}

/// The process that stays.
struct Survivor {
    test: &'static str,
    name: String,
    context: Context,
    /// Subscribes to each victim.
    faithful: Subscriber,
    /// A topic of the same context, and who subscribes to it.
    innocent: (Publisher, Subscriber),
    sent: u64,
    latest: Duration,
}

impl Survivor {
    fn new(test: &'static str) -> Self {
        let (context, name) = (Context::with_options(options()).unwrap(), unique_name());
        let other = unique_name();
        let publisher = context.publish(&other, PublishOptions::new()).unwrap();
        let innocent = (publisher, context.subscribe(&other, SubscribeOptions::every()).unwrap());
        // A publisher whose end it sees.
        let first = context.publish(&name, PublishOptions::new()).unwrap();
        let faithful = context.subscribe(&name, SubscribeOptions::newest(4)).unwrap();
        drop(first);
        let mut survivor =
            Self { test, name, context, faithful, innocent, sent: 0, latest: Duration::ZERO };
        survivor.lose_the_publisher(SendShort);
        survivor
    }

    /// Subscribes to the victim. `None`: it is gone.
    fn join(&self, run: &Run<'_>, options: SubscribeOptions) -> Option<Subscriber> {
        loop {
            let is_over = run.is_finished();
            match self.context.subscribe(&self.name, options.clone().reconnect(false)) {
                Ok(subscriber) => return Some(subscriber),
                Err(error) => match error.kind() {
                    ErrorKind::NobodyListens { .. } if is_over => return None,
                    ErrorKind::NobodyListens { .. } => thread::sleep(Duration::from_millis(1)),
                    ErrorKind::PeerDied | ErrorKind::PeerClosed => return None,
                    _ => panic!("{error}"),
                },
            }
        }
    }

    /// Reads what is there, until the faithful subscriber knows that its publisher is gone.
    fn lose_the_publisher(&mut self, operation: Operation) {
        let faithful = &mut self.faithful;
        wait_until("the notice of a death", || match faithful.try_recv() {
            Ok(sample) => {
                let sample = sample.expect("it looks for another publisher").into_owned().unwrap();
                let bytes = bytes_of(&sample).expect("it is not evicted");
                assert_eq!(bytes, operation.message(number_of(&bytes)));
                false
            }
            Err(TryRecvError::Empty) => faithful.publisher().is_none(),
            Err(error) => panic!("{error}"),
        });
    }

    /// The victim's subscribers, until its end. Returns how many messages each of them has read. `None`: there was no victim.
    fn accompany(
        &mut self,
        operation: Operation,
        (plan, run): (&Plan, &Run<'_>),
        (ready, begun): (mpsc::Sender<()>, mpsc::Receiver<libc::pid_t>),
    ) -> Option<Vec<u64>> {
        let policies =
            [SubscribeOptions::every(), SubscribeOptions::newest(8), SubscribeOptions::latest()];
        let mut subscribers = Vec::new();
        for options in policies {
            subscribers.push(self.join(run, options)?);
        }
        let leaver = if operation == Dismiss {
            Some(self.join(run, SubscribeOptions::every())?)
        } else {
            None
        };
        let found = self.faithful.recv_deadline(soon()).unwrap().expect("a message");
        assert!(found.restarted());
        let found = found.into_owned().unwrap();
        let leaver = leaver.map(|leaver| Reader::new(leaver, operation));
        let mut readers: Vec<_> =
            subscribers.into_iter().map(|one| Reader::new(one, operation)).collect();
        let begin = || {
            ready.send(()).unwrap();
            begun.recv().unwrap()
        };
        if operation == SendWithdrawing {
            for _ in 1..operation.prepared() {
                readers.iter_mut().for_each(|reader| reader.read(operation, soon()).unwrap());
                self.faithful.recv_deadline(soon()).unwrap().expect("a message");
            }
        }
        let counts = if operation == SendWaking {
            self.faithful.descriptor().expect("a publisher");
            assert!(matches!(self.faithful.try_recv(), Err(TryRecvError::Empty)));
            sleep_and_read(&mut readers, begin)
        } else {
            let thread = begin();
            match operation {
                SendWaiting if falls_asleep(run, thread) => match plan {
                    Plan::WhenAsleep => kill(thread),
                    _ => readers[0].read(operation, soon()).unwrap(),
                },
                Admit => self.be_admitted(run, thread),
                Dismiss => be_dismissed(leaver, run, thread),
                _ => {}
            }
            readers.iter_mut().map(|reader| reader.read_all(operation)).collect()
        };
        self.lose_the_publisher(operation);
        assert_eq!(bytes_of(&found).expect("it outlives its sender"), operation.message(0));
        Some(counts)
    }

    /// A newcomer joins the victim, whose thread deals with it until it sleeps.
    fn be_admitted(&self, run: &Run<'_>, thread: libc::pid_t) {
        let newcomer = self.join(run, SubscribeOptions::every());
        if falls_asleep(run, thread) {
            kill(thread);
        }
        // Its first message is that of the history.
        newcomer.map(|newcomer| Reader::new(newcomer, Admit).read_all(Admit));
    }
}

impl stepping::Survivor for Survivor {
    type Operation = Operation;

    fn once(&mut self, operation: Operation, plan: &Plan) -> Option<Death> {
        let argument = format!("{} {}", operation as usize, self.name);
        let test = self.test;
        let (ready, prepared) = mpsc::channel();
        let (tell, begun) = mpsc::channel();
        thread::scope(|scope| {
            let run = scope.spawn(move || {
                stepping::run((test, &argument), plan, operation.thread(), |thread| {
                    prepared.recv().unwrap();
                    tell.send(thread).unwrap();
                })
            });
            let counts = self.accompany(operation, (plan, &run), (ready, begun));
            let seen = Instant::now();
            let (death, killed) = run.join().unwrap()?;
            let late = seen.saturating_duration_since(killed);
            assert!(late < SEEN, "seen after {late:?}");
            self.latest = self.latest.max(late);
            let counts = counts.expect("it subscribes to a victim that lives");
            let prepared = operation.prepared();
            let all = prepared + operation.sends();
            let is_evicted = operation.evicts().is_some();
            // The first one wants every message.
            assert!((prepared..=all).contains(&counts[0]) || is_evicted, "{counts:?} of {all}");
            assert!(counts.iter().all(|count| *count <= all));
            if matches!(plan, Plan::AtTheEnd) {
                let got_all =
                    counts.iter().skip(usize::from(is_evicted)).all(|count| *count == all);
                assert!(got_all, "lost: {counts:?} of {all}");
            }
            Some(death)
        })
    }

    fn settle(&mut self) {
        let (publisher, subscriber) = &mut self.innocent;
        for len in [SHORT, POOLED] {
            let sent = message(self.sent, len);
            publisher.send(&sent).unwrap();
            let came = subscriber.recv_deadline(soon()).unwrap().expect("a message");
            assert_eq!((came.to_vec().unwrap(), came.missed()), (sent, 0));
            self.sent += 1;
        }
    }

    fn latest(&mut self) -> Duration {
        mem::take(&mut self.latest)
    }

    fn sleeps(operation: Operation) -> bool {
        operation == SendWaiting
    }

    fn places(operation: Operation) -> usize {
        // It makes a segment, in very many instructions.
        if operation == SendFirstPooled { 0 } else { PLACES }
    }
}

#[test]
fn a_publisher_may_be_killed_at_every_instruction() {
    let test = "a_publisher_may_be_killed_at_every_instruction";
    let survive = || stepping::try_all(&mut Survivor::new(test), &OPERATIONS);
    stepping::sweep(test, survive, |number, name| publish(OPERATIONS[number], name));
}
