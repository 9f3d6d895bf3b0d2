//! Two ends that send each other streams without end, check what comes, and hold some of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use slipring::{Connection, Context, Error, ErrorKind, Link, Reactor, Receiver, Sender, Tensor};

use super::callbacks::diary;
use super::stream::{Kind, Stream, mix};
use super::{HANG, soon};

/// Tensors that are held at once, at most.
const HELD: u64 = 12;

/// The counts of an end.
#[derive(Debug)]
pub struct Tally {
    /// Waits of this length are hangs.
    longest: Duration,
    /// Whether the process ends with the first thing that is not right.
    fatal: bool,
    pub hangs: AtomicU64,
    pub wrong: AtomicU64,
    /// Things that were received.
    pub things: AtomicU64,
    /// In nanoseconds.
    pub longest_wait: AtomicU64,
}

impl Tally {
    pub fn new(longest: Duration) -> Self {
        let [hangs, wrong, things, longest_wait] = [const { AtomicU64::new(0) }; 4];
        Self { longest, fatal: false, hangs, wrong, things, longest_wait }
    }

    /// For an end that nobody asks.
    pub fn fatal() -> Self {
        Self { fatal: true, ..Self::new(HANG) }
    }

    /// How long `operation` waits.
    pub fn time<T>(&self, operation: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = operation();
        let time = start.elapsed();
        self.longest_wait.fetch_max(time.as_nanos() as u64, Ordering::Relaxed);
        self.count(&self.hangs, time < self.longest, "a wait");
        answer
    }

    /// That something is right.
    pub fn check(&self, holds: bool, what: &str) {
        self.count(&self.wrong, holds, what);
    }

    pub fn count(&self, failures: &AtomicU64, holds: bool, what: &str) {
        if holds {
            return;
        }
        failures.fetch_add(1, Ordering::Relaxed);
        eprintln!("WRONG: {what}");
        if self.fatal {
            std::process::exit(101);
        }
    }
}

/// How an end of a link ended.
#[derive(Debug)]
pub struct End {
    pub kind: ErrorKind,
    pub at: Instant,
}

fn ended(error: &Error) -> End {
    End { kind: error.kind().clone(), at: Instant::now() }
}

/// Sends until the end.
fn write(sender: &mut Sender, context: &Context, stream: &mut Stream, tally: &Tally) -> End {
    loop {
        let sent = if stream.kind() == Kind::Message {
            let message = stream.cut();
            tally.time(|| sender.send_deadline(&message, soon()))
        } else {
            let tensor = tally.time(|| stream.cut_tensor(context)).unwrap();
            tally.time(|| sender.send_tensor_deadline(&tensor, soon()))
        };
        if let Err(error) = sent {
            return ended(&error);
        }
    }
}

/// The things that were received, and those that are held.
#[derive(Debug)]
struct ControlSocket {
    stream: Stream,
    held: VecDeque<(u64, Tensor)>,
    tally: Arc<Tally>,
}

impl ControlSocket {
    fn new(seed: u64, tally: &Arc<Tally>) -> Self {
        Self { stream: Stream::new(seed), held: VecDeque::new(), tally: tally.clone() }
    }

    fn message(&mut self, bytes: &[u8]) {
        let is_message = self.stream.kind() == Kind::Message;
        let number = self.stream.number();
        let right = is_message && bytes == self.stream.cut();
        self.tally.check(right, &format!("message {number}"));
        self.tally.things.fetch_add(1, Ordering::Relaxed);
    }

    fn tensor(&mut self, tensor: Tensor) {
        let number = self.stream.number();
        self.tally.check(self.stream.kind() != Kind::Message, &format!("{number} is no tensor"));
        let _ = self.stream.cut();
        self.look_at(number, &tensor);
        self.tally.things.fetch_add(1, Ordering::Relaxed);
        self.held.push_back((number, tensor));
        let dice = mix(number);
        if self.held.len() as u64 > dice % HELD {
            let some = 1 + (dice >> 8) as usize % self.held.len();
            self.held.drain(..some);
        }
    }

    fn look_at(&self, number: u64, tensor: &Tensor) {
        let right = tensor.to_vec::<u8>().is_ok_and(|bytes| bytes == self.stream.bytes(number));
        self.tally.check(right, &format!("tensor {number}"));
    }

    /// They outlive their sender.
    fn look_at_all(&self) {
        self.held.iter().for_each(|(number, tensor)| self.look_at(*number, tensor));
    }

    /// Receives until the end, now and then where it lies.
    fn read(&mut self, receiver: &mut Receiver) -> End {
        let tally = self.tally.clone();
        let nothing = "a killed peer has not closed in order";
        loop {
            let looks = self.stream.number() % 8 == 3;
            let received = if self.stream.kind() != Kind::Message {
                tally
                    .time(|| receiver.recv_tensor_deadline(soon()))
                    .map(|tensor| self.tensor(tensor.expect(nothing)))
            } else if looks {
                tally.time(|| receiver.peek_deadline(soon())).and_then(|received| {
                    let received = received.expect(nothing);
                    let before = received.bytes().to_vec();
                    thread::sleep(Duration::from_micros(mix(self.stream.number()) % 300));
                    tally.check(received.bytes().to_vec() == before, "a message that is lent");
                    self.message(&before);
                    received.release()
                })
            } else {
                tally
                    .time(|| receiver.recv_deadline(soon()))
                    .map(|message| self.message(&message.expect(nothing)))
            };
            if let Err(error) = received {
                return ended(&error);
            }
        }
    }
}

/// How an end moves its things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    Calls,
    Callbacks,
}

/// Runs both streams of one end of a link until the end. Returns how each direction ended.
pub fn talk(
    drive: Drive,
    (context, reactor): (&Context, &Reactor),
    link: Connection,
    (seed_out, seed_in): (u64, u64),
    tally: &Arc<Tally>,
) -> [End; 2] {
    let mut out = Stream::new(seed_out);
    let mut arrivals = ControlSocket::new(seed_in, tally);
    match drive {
        Drive::Calls => {
            let (mut sender, mut receiver) = link.split();
            let ends = thread::scope(|scope| {
                let writing = scope.spawn(|| write(&mut sender, context, &mut out, tally));
                let end = arrivals.read(&mut receiver);
                [end, writing.join().unwrap()]
            });
            arrivals.look_at_all();
            ends
        }
        Drive::Callbacks => {
            let link = reactor.adopt(link).unwrap();
            let arrivals = Arc::new(Mutex::new(arrivals));
            let (messages, tensors) = (arrivals.clone(), arrivals.clone());
            link.on_message(move |_, message| messages.lock().unwrap().message(&message.to_vec()));
            link.on_tensors(move |_, set| {
                let mut arrivals = tensors.lock().unwrap();
                set.into_iter().for_each(|(_, tensor)| arrivals.tensor(tensor));
            });
            let (say, said) = diary();
            link.on_closed(move |_, result| {
                let kind = result.map_err(|error| error.kind().clone()).unwrap_err();
                say(End { kind, at: Instant::now() });
            });
            let writing = write_with(&link, context, &mut out, tally);
            let end = said.recv_timeout(HANG).expect("the death is not seen");
            arrivals.lock().unwrap().look_at_all();
            [end, writing]
        }
    }
}

/// Writes that a reactor has not completed yet.
const UNDERWAY: usize = 8;

/// As [`write`], by a reactor.
fn write_with(link: &Link, context: &Context, stream: &mut Stream, tally: &Tally) -> End {
    let (done, results) = mpsc::channel();
    for number in 0.. {
        let done = done.clone();
        let complete = move |_: &Link, result: Result<(), Error>| {
            let _ = done.send(result.map_err(|error| ended(&error)));
        };
        if stream.kind() == Kind::Message {
            link.write_with(stream.cut(), complete);
        } else {
            link.write_tensor_with(stream.cut_tensor(context).unwrap(), complete);
        }
        if number < UNDERWAY {
            continue;
        }
        let result = tally.time(|| results.recv_timeout(HANG)).expect("a write is completed");
        if let Err(end) = result {
            return end;
        }
    }
    unreachable!("it writes without end")
}
