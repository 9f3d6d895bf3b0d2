//! A peer that is killed after every instruction of an operation.
//!
//! ```text
//!   survivor (one process for many deaths)             victim (a process for each place)
//!   accepts ◀───────────────────────────────────────── connects
//!   reads, writes, lends, goes to sleep ◀────────────▶ prepares
//!                                                      the operation, instruction by instruction
//!   wakes it where the operation sleeps ─────────────▶
//!   sees the end ◀──────────────────────────────────── dies
//! ```
//!
//! Wherever the victim dies, the survivor sees it. No message is torn. Other links of the same context
//! work, served by a thread or by a reactor. All loans come back. Some places of each operation are tried, or all of them
//! (`SLIPRING_TESTS=whole`). `SLIPRING_STEPS=SendShort` tries one operation alone.

#![cfg(target_arch = "x86_64")]

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use slipring::message::Token;
use slipring::options::Spin;
use slipring::{Connection, Context, ErrorKind, EventLoop, Listener, Options, Reactor, Tensor};

use crate::stepping::{self, Death, Plan, Run, SEEN, falls_asleep, kill, step};
use crate::support::callbacks::{diary, settle};
use crate::support::other::wait_until_asleep;
use crate::support::steps::wait_until_named_sleeps;
use crate::support::{Witness, pair_of, soon, unique_name};
use Operation::*;

/// How long a look at the listener takes at most before the victim's state is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Places of each operation that are tried where not all are.
const PLACES: usize = 16;

/// The survivor's memory: what is lost of it is missed.
const QUOTA: usize = 1 << 20;

/// Loans that the victim takes at once.
const SLOTS: usize = 4;

const SHORT: usize = 48;
/// Its record takes no more than it needs.
const PACKED: usize = 300;
/// Three of them fill a ring, the fourth wraps.
const LONG: usize = 1000;
const POOLED: usize = 1500;

/// The operation in which the victim dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    SendShort,
    SendPacked,
    SendLong,
    SendWrapped,
    SendPooled,
    SendFirstPooled,
    SendBatch,
    SendTensor,
    RecvShort,
    RecvPacked,
    RecvWrapped,
    RecvPooled,
    Release,
    ReleasePooled,
    ReturnTensor,
    ParkForMessage,
    ParkForRoom,
    WakeReader,
    WakeWriter,
    WakeLender,
    TriggerToken,
    RunToken,
    HandOver,
    WriteThrough,
    ParkReactor,
}

const SENDS: [Operation; 8] = [
    SendShort,
    SendPacked,
    SendLong,
    SendWrapped,
    SendPooled,
    SendFirstPooled,
    SendBatch,
    SendTensor,
];

const RECEIVES: [Operation; 7] =
    [RecvShort, RecvPacked, RecvWrapped, RecvPooled, Release, ReleasePooled, ReturnTensor];

const SLEEPS: [Operation; 5] = [ParkForMessage, ParkForRoom, WakeReader, WakeWriter, WakeLender];

const REACTORS: [Operation; 5] = [TriggerToken, RunToken, HandOver, WriteThrough, ParkReactor];

impl Operation {
    /// The messages that the victim sends until it ends: how many, and how long they are in turn.
    fn sends(self) -> (usize, &'static [usize]) {
        match self {
            SendShort | WakeReader | RunToken | TriggerToken | HandOver | WriteThrough => {
                (1, &[SHORT])
            }
            SendPacked => (1, &[PACKED]),
            SendLong => (1, &[LONG]),
            SendWrapped | ParkForRoom => (4, &[LONG]),
            SendPooled => (2, &[POOLED]),
            SendFirstPooled => (1, &[POOLED]),
            SendTensor => (1, &[POOLED]),
            SendBatch => (3, &[SHORT, PACKED, LONG]),
            _ => (0, &[SHORT]),
        }
    }

    /// The message that the victim sends with this number.
    fn message(self, number: usize) -> Vec<u8> {
        let lens = self.sends().1;
        message(number, lens[number % lens.len()])
    }

    /// How long the messages are that the victim receives.
    fn receives(self) -> usize {
        match self {
            RecvPacked => PACKED,
            RecvWrapped | Release | WakeWriter => LONG,
            RecvPooled | ReleasePooled => POOLED,
            _ => SHORT,
        }
    }
}

/// No two bytes of it are alike that lie near each other, nor those of two messages.
fn message(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at * 7 + len) as u8).collect()
}

fn tensor(context: &Context) -> Tensor {
    let mut tensor = context.alloc::<u8>([POOLED]).unwrap();
    tensor.copy_from_slice(&message(0, POOLED));
    tensor.share().unwrap()
}

fn options() -> Options {
    Options::new()
        .ring_capacity(4096)
        .inline_max(LONG as u64)
        .pool_quota(QUOTA as u64)
        .spin(Spin::Never)
}

fn victim(operation: Operation, name: &str) -> ! {
    let context = Context::with_options(options().loan_slots(SLOTS as u32)).unwrap();
    let mut link = context.connect_deadline(name, soon()).unwrap();
    let messages: Vec<_> = (0..4).map(|number| operation.message(number)).collect();
    let send = |link: &mut Connection, number: usize| {
        link.sender().send_deadline(&messages[number], soon()).unwrap();
    };
    match operation {
        SendShort | SendPacked | SendLong | SendFirstPooled | WakeReader => {
            step(|| send(&mut link, 0))
        }
        SendPooled => {
            send(&mut link, 0);
            step(|| send(&mut link, 1))
        }
        SendWrapped => {
            (0..3).for_each(|number| send(&mut link, number));
            step(|| send(&mut link, 3))
        }
        ParkForRoom => {
            let fitting =
                messages.iter().take_while(|message| link.sender().try_send(message).is_ok());
            assert_eq!(fitting.count(), 3);
            step(|| send(&mut link, 3))
        }
        SendBatch => step(|| {
            let mut batch = link.sender().batch().unwrap();
            messages[..3].iter().for_each(|message| batch.push(message).unwrap());
            batch.publish().unwrap();
        }),
        SendTensor => {
            let tensor = tensor(&context);
            step(|| link.sender().send_tensor_deadline(&tensor, soon()).unwrap())
        }
        RecvWrapped => {
            (0..3).for_each(|number| receive(&mut link, &message(number, LONG)));
            step(|| link.receiver().recv_deadline(soon()).unwrap())
        }
        RecvShort | RecvPacked | RecvPooled | ParkForMessage => {
            step(|| link.receiver().recv_deadline(soon()).unwrap())
        }
        Release | ReleasePooled | WakeWriter => {
            let received = link.receiver().peek().unwrap().unwrap();
            assert_eq!(received.bytes().to_vec(), message(0, operation.receives()));
            step(|| received.release().unwrap())
        }
        ReturnTensor | WakeLender => {
            let count = if operation == WakeLender { SLOTS } else { 1 };
            let mut held = Vec::new();
            held.resize_with(count, || link.receiver().recv_tensor_deadline(soon()).unwrap());
            let last = held.pop();
            step(|| drop(last))
        }
        TriggerToken => {
            let token = link.receiver().recv_deadline(soon()).unwrap().unwrap();
            let token = Token::from(u32::from_le_bytes(token.try_into().unwrap()));
            step(|| link.sender().trigger(token).unwrap())
        }
        RunToken | ParkReactor => looping(operation, &context, link),
        HandOver | WriteThrough => {
            let reactor = Reactor::spawn(&context).unwrap();
            let link = reactor.adopt(link).unwrap();
            settle(&reactor);
            wait_until_named_sleeps("slipring-reactor");
            let message = messages[0].clone();
            if operation == WriteThrough {
                step(|| link.write_with(message, |_, written| written.unwrap()))
            }
            let far = link.clone();
            step(|| reactor.defer(move || far.try_send(&message).unwrap()))
        }
    }
}

/// In the victim: the operations of a loop in its own thread.
fn looping(operation: Operation, context: &Context, link: Connection) -> ! {
    let mut events = EventLoop::new(context).unwrap();
    let link = events.reactor().adopt(link).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let (ran, came) = (done.clone(), done.clone());
    let expected = message(0, SHORT);
    let token = link.register(move |link| {
        link.write(operation.message(0));
        ran.store(true, Ordering::Relaxed);
    });
    link.on_message(move |_, message| {
        assert_eq!(message.to_vec(), expected);
        came.store(true, Ordering::Relaxed);
    });
    while events.poll_once(16).unwrap() > 0 {}
    if operation == RunToken {
        link.try_send(&u32::from(token.unwrap()).to_le_bytes()).unwrap();
    }
    step(|| events.run_until(|| done.load(Ordering::Relaxed)).unwrap())
}

/// The next message must be this one.
fn receive(link: &mut Connection, expected: &[u8]) {
    assert!(link.receiver().recv_deadline(soon()).unwrap().unwrap() == expected, "a torn message");
}

/// In the survivor: a victim whose operation has not begun.
struct Visit<'a> {
    operation: Operation,
    plan: &'a Plan,
    run: Run<'a>,
    /// Tells it that the operation may begin.
    ready: mpsc::Sender<()>,
    /// The victim's thread, once it has begun.
    begun: mpsc::Receiver<libc::pid_t>,
}

impl Visit<'_> {
    /// Plays the victim's partner until the end. Returns how many messages came.
    fn accompany(&self, context: &Context, link: &mut Connection) -> usize {
        let operation = self.operation;
        let mut came = 0;
        prepare(operation, context, link, &mut came);
        match operation {
            // Asleep when the operation begins.
            WakeReader => self.begin(),
            WakeWriter => {
                self.begin();
                is_done_or_dead(link.sender().send_deadline(&message(3, LONG), soon()));
            }
            WakeLender => {
                let tensor = tensor(context);
                self.begin();
                is_done_or_dead(link.sender().send_tensor_deadline(&tensor, soon()));
            }
            // Awake when the operation sleeps.
            ParkForMessage | ParkForRoom | ParkReactor => {
                self.begin();
                if self.falls_asleep() && operation != ParkForRoom {
                    is_done_or_dead(link.sender().send_deadline(&message(0, SHORT), soon()));
                }
            }
            // Doing something else all the time.
            _ => {
                self.begin();
                while !self.run.is_finished() {
                    thread::park_timeout(Duration::from_micros(200));
                }
            }
        }
        receive_all(operation, link, &mut came);
        assert_eq!(*link.send(b"late").unwrap_err().kind(), ErrorKind::PeerDied);
        came
    }

    /// A reactor is the victim's partner, until its end.
    fn serve(&self, reactor: &Reactor, link: Connection) -> usize {
        let link = reactor.adopt(link).unwrap();
        let (say, said) = diary();
        let ran = Arc::new(AtomicBool::new(false));
        let run = ran.clone();
        let token = link.register(move |_| assert!(!run.swap(true, Ordering::Relaxed))).unwrap();
        link.on_closed(move |_, end| say(end.map_err(|error| error.kind().clone())));
        settle(reactor);
        link.try_send(&u32::from(token).to_le_bytes()).unwrap();
        wait_until_named_sleeps("slipring-reactor");
        self.begin();
        let end = said.recv_timeout(crate::support::HANG).expect("the death is not seen");
        assert_eq!(end, Err(ErrorKind::PeerDied));
        ran.load(Ordering::Relaxed).into()
    }

    fn begin(&self) {
        self.ready.send(()).unwrap();
    }

    /// Waits until the victim sleeps. False: it has died before.
    fn falls_asleep(&self) -> bool {
        let Ok(thread) = self.begun.recv() else { return false };
        let is_asleep = falls_asleep(&self.run, thread);
        if is_asleep && matches!(self.plan, Plan::WhenAsleep) {
            kill(thread);
        }
        is_asleep
    }
}

/// In the survivor: what there must be before the operation begins.
fn prepare(operation: Operation, context: &Context, link: &mut Connection, came: &mut usize) {
    let mut take = |link: &mut Connection, count: usize| {
        (0..count).for_each(|number| receive(link, &operation.message(number)));
        *came += count;
    };
    let give = |link: &mut Connection, count: usize| {
        let message = |number| message(number, operation.receives());
        (0..count)
            .for_each(|number| link.sender().send_deadline(&message(number), soon()).unwrap());
    };
    match operation {
        SendPooled => take(link, 1),
        SendWrapped => take(link, 3),
        RecvShort | RecvPacked | RecvPooled | Release | ReleasePooled => give(link, 1),
        RecvWrapped => give(link, 4),
        WakeWriter => give(link, 3),
        ReturnTensor => link.sender().send_tensor_deadline(tensor(context), soon()).unwrap(),
        WakeLender => {
            for _ in 0..SLOTS {
                link.sender().send_tensor_deadline(tensor(context), soon()).unwrap();
            }
        }
        RunToken => {
            let token = link.receiver().recv_deadline(soon()).unwrap().unwrap();
            let token = Token::from(u32::from_le_bytes(token.try_into().unwrap()));
            link.sender().trigger(token).unwrap();
        }
        _ => {}
    }
}

/// In the survivor: everything that the victim had published, whole and in order, and its death.
fn receive_all(operation: Operation, link: &mut Connection, came: &mut usize) {
    let end = loop {
        let next = if operation == SendTensor {
            link.receiver()
                .recv_tensor_deadline(soon())
                .map(|tensor| tensor.map(|tensor| tensor.to_vec().unwrap()))
        } else {
            link.receiver().recv_deadline(soon())
        };
        match next {
            Ok(message) => {
                let message = message.expect("a killed peer has not closed in order");
                assert!(message == operation.message(*came), "a torn message");
                *came += 1;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(*end.kind(), ErrorKind::PeerDied);
}

fn is_done_or_dead(answer: slipring::Result<()>) {
    if let Err(error) = answer {
        assert_eq!(*error.kind(), ErrorKind::PeerDied);
    }
}

/// The process that stays.
struct Survivor {
    test: &'static str,
    name: String,
    context: Context,
    listener: Listener,
    reactor: Reactor,
    /// A link that a thread serves.
    innocent: Witness,
    /// The far end of a link that the reactor serves.
    served: Connection,
    /// How late a death was seen at most.
    latest: Duration,
}

impl Survivor {
    fn new(test: &'static str) -> Self {
        let context = Context::with_options(options()).unwrap();
        let name = unique_name();
        let listener = context.listen(&*name).unwrap();
        let reactor = Reactor::spawn(&context).unwrap();
        let innocent = Witness::new(&context);
        let (near, served) = pair_of(&context, &context);
        let near = reactor.adopt(near).unwrap();
        near.on_message(|link, message| link.write(message.to_vec()));
        Self { test, name, context, listener, reactor, innocent, served, latest: Duration::ZERO }
    }

    fn meet(&mut self, run: &Run<'_>) -> Option<Connection> {
        loop {
            match self.listener.accept_deadline(Instant::now() + LOOK) {
                Ok(link) => return Some(link),
                Err(error) => assert!(error.is_timeout(), "{error}"),
            }
            if run.is_finished() {
                return None;
            }
        }
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
                let begun = |thread| {
                    prepared.recv().unwrap();
                    if matches!(operation, WakeReader | WakeWriter | WakeLender) {
                        wait_until_asleep(me);
                    }
                    tell.send(thread).unwrap();
                };
                stepping::run((test, &argument), plan, None, begun)
            });
            let mut link = self.meet(&run)?;
            let visit = Visit { operation, plan, run, ready, begun };
            let came = match operation {
                TriggerToken => visit.serve(&self.reactor, link),
                _ => visit.accompany(&self.context, &mut link),
            };
            let seen = Instant::now();
            let (death, killed) = visit.run.join().unwrap().unwrap();
            let late = seen.saturating_duration_since(killed);
            assert!(late < SEEN, "seen after {late:?}");
            self.latest = self.latest.max(late);
            let most = operation.sends().0;
            assert!(came <= most);
            match operation {
                SendBatch => assert!(came == 0 || came == most, "part of a batch: {came}"),
                // It leaves the rest to another thread.
                HandOver => {}
                _ => assert!(
                    came == most || !matches!(plan, Plan::AtTheEnd),
                    "lost: {came} of {most}"
                ),
            }
            Some(death)
        })
    }

    fn settle(&mut self) {
        self.innocent.check();
        self.served.sender().send_deadline(b"innocent", soon()).unwrap();
        receive(&mut self.served, b"innocent");
        drop(self.context.allocation().until(soon()).typed::<u8>([QUOTA]).unwrap());
        self.context.trim();
    }

    fn latest(&mut self) -> Duration {
        mem::take(&mut self.latest)
    }

    fn sleeps(operation: Operation) -> bool {
        matches!(operation, ParkForMessage | ParkForRoom | ParkReactor)
    }

    fn places(operation: Operation) -> usize {
        // It makes a segment, in very many instructions. `kill_sweep` tries its calls.
        if operation == SendFirstPooled { 0 } else { PLACES }
    }
}

fn sweep(test: &'static str, operations: &[Operation]) {
    let survive = || stepping::try_all(&mut Survivor::new(test), operations);
    stepping::sweep(test, survive, |number, name| {
        victim(*operations.iter().find(|one| **one as usize == number).unwrap(), name)
    });
}

#[test]
fn a_peer_may_be_killed_at_every_instruction_of_a_send() {
    sweep("a_peer_may_be_killed_at_every_instruction_of_a_send", &SENDS);
}

#[test]
fn a_peer_may_be_killed_at_every_instruction_of_a_receive_or_a_return() {
    sweep("a_peer_may_be_killed_at_every_instruction_of_a_receive_or_a_return", &RECEIVES);
}

#[test]
fn a_peer_may_be_killed_at_every_instruction_of_a_sleep_or_a_wake() {
    sweep("a_peer_may_be_killed_at_every_instruction_of_a_sleep_or_a_wake", &SLEEPS);
}

#[test]
fn a_peer_may_be_killed_at_every_instruction_of_a_reactor() {
    sweep("a_peer_may_be_killed_at_every_instruction_of_a_reactor", &REACTORS);
}
