//! Tensors pass between the library and `tests/peer.py`, an independent peer written from `docs/wire.md` alone. Both
//! sides print each tensor from elements of their own types, and the texts must be equal.
//!
//! Without `python3` each test prints that it skips.

// The peer knows the orderings of this architecture only.
#![cfg(target_arch = "x86_64")]

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::SealFlags;
use rustix::process::{Pid, Signal, kill_process};
use slipring::error::{TryRecvError, TrySendError};
use slipring::message::MessageKind;
use slipring::options::Spin;
use slipring::tensor::Element;
use slipring::{
    Connection, Context, DType, ErrorKind, Options, Result, Shape, Tensor, TensorSet, meta,
};

use crate::support::python::{Echo, Python, body, called_as, in_time};
use crate::support::raw::{self, Hello, Lent, RawPeer, SEALS, segment_packet};
use crate::support::{Witness, soon, unique_name, wait_until};

/// Longer than anything takes.
const LONG: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// How many loans peer.py takes at once, and how much of a pool.
const LOANS: usize = 16;
const POOL_LIMIT: usize = 24 << 20;

const KINDS: [Place; 3] = [Place::Lent, Place::Frozen, Place::Inline];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Lent,
    Frozen,
    Inline,
}

/// One line of a record's text.
fn line(name: &str, tensor: &Tensor, place: Place) -> String {
    let place = match place {
        _ if tensor.byte_len() == 0 => "empty",
        Place::Lent => "lent",
        Place::Frozen => "frozen",
        Place::Inline => "inline",
    };
    let mut line = format!("{name} {} {:?} {place}", tensor.dtype(), tensor.shape().dims());
    if tensor.byte_len() > 4096 {
        let sum: u64 = tensor.bytes().unwrap().to_vec().into_iter().map(u64::from).sum();
        write!(line, " {} bytes, sum {sum}", tensor.byte_len()).unwrap();
        return line;
    }
    elements(tensor).iter().for_each(|element| write!(line, " {element}").unwrap());
    line
}

/// The text of what was received.
fn text(set: &TensorSet) -> String {
    let place = |tensor: &Tensor| match tensor {
        _ if tensor.is_frozen() => Place::Frozen,
        _ if tensor.is_loaned() => Place::Lent,
        _ => Place::Inline,
    };
    let lines: Vec<String> =
        set.iter().map(|(name, tensor)| line(name, tensor, place(tensor))).collect();
    lines.join("\n")
}

fn elements(tensor: &Tensor) -> Vec<String> {
    fn of<T: Element + Debug>(tensor: &Tensor) -> Vec<String> {
        tensor.to_vec::<T>().unwrap().iter().map(|element| format!("{element:?}")).collect()
    }
    fn raw(tensor: &Tensor, text: fn(u8) -> String) -> Vec<String> {
        tensor.bytes().unwrap().to_vec().into_iter().map(text).collect()
    }
    match tensor.dtype() {
        DType::Bool => of::<bool>(tensor),
        DType::Uint8 => of::<u8>(tensor),
        DType::Uint16 => of::<u16>(tensor),
        DType::Uint32 => of::<u32>(tensor),
        DType::Uint64 => of::<u64>(tensor),
        DType::Int8 => of::<i8>(tensor),
        DType::Int16 => of::<i16>(tensor),
        DType::Int32 => of::<i32>(tensor),
        DType::Int64 => of::<i64>(tensor),
        DType::Fp16 => of::<f16>(tensor),
        DType::Fp32 => of::<f32>(tensor),
        DType::Fp64 => of::<f64>(tensor),
        DType::Bf16 => of::<bf16>(tensor),
        DType::Fp8E4m3fn => raw(tensor, |byte| byte.to_string()),
        DType::Fp8E5m2 => raw(tensor, |byte| format!("{:?}", f16::from_le_bytes([0, byte]))),
        DType::Bytes => {
            let (mut found, all) = (Vec::new(), tensor.bytes().unwrap().to_vec());
            let mut left = &all[..];
            while let Some((len, rest)) = left.split_first_chunk() {
                let (element, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
                found.push(String::from_utf8(element.to_vec()).unwrap());
                left = rest;
            }
            assert_eq!(found.len(), tensor.shape().elements().unwrap());
            found
        }
        other => panic!("{other}"),
    }
}

/// A tensor whose elements are `value` of their index.
fn filled<T: Element>(
    context: &Context,
    place: Place,
    dims: &[usize],
    value: impl Fn(usize) -> T,
) -> Tensor {
    let shape = Shape::new(dims).unwrap();
    let elements: Vec<T> = (0..shape.elements().unwrap()).map(value).collect();
    let mut tensor = match place {
        Place::Inline => return Tensor::from_slice(shape, &elements).unwrap(),
        Place::Lent => context.alloc(shape).unwrap(),
        Place::Frozen => context.alloc_frozen(shape).unwrap(),
    };
    tensor.copy_from_slice(&elements);
    tensor.share().unwrap()
}

fn sample(context: &Context, place: Place, dtype: DType, dims: &[usize]) -> Tensor {
    macro_rules! of {
        ($value:expr) => {
            filled(context, place, dims, $value)
        };
    }
    let half = |at: usize| at as f32 / 2.0 - 20.0;
    match dtype {
        DType::Bool => of!(|at| at % 3 == 0),
        DType::Uint8 => of!(|at| (at * 77) as u8),
        DType::Uint16 => of!(|at| (at * 7777) as u16),
        DType::Uint32 => of!(|at| (at * 0x1234_5678) as u32),
        DType::Uint64 => of!(|at| u64::MAX - at as u64),
        DType::Int8 => of!(|at| (at * 77) as i8),
        DType::Int16 => of!(|at| (at * 7777) as i16),
        DType::Int32 => of!(|at| (at * 0x1234_5678) as i32),
        DType::Int64 => of!(|at| i64::MIN + at as i64),
        DType::Fp16 => of!(|at| f16::from_f32(half(at))),
        DType::Fp32 => of!(half),
        DType::Fp64 => of!(|at| f64::from(half(at))),
        DType::Bf16 => of!(|at| bf16::from_f32(half(at))),
        DType::Fp8E4m3fn | DType::Fp8E5m2 => {
            let shape = Shape::new(dims).unwrap();
            let byte = |at: usize| f16::from_f32((at % 4) as f32 - 2.0).to_le_bytes()[1];
            let bytes: Vec<u8> = (0..shape.elements().unwrap()).map(byte).collect();
            let allocation = match place {
                Place::Inline => return Tensor::from_bytes(dtype, shape, &bytes).unwrap(),
                Place::Lent => context.allocation(),
                Place::Frozen => context.allocation().frozen(),
            };
            let mut tensor = allocation.dtype(dtype, shape).unwrap();
            tensor.copy_from_slice(&bytes);
            tensor.share().unwrap()
        }
        DType::Bytes => {
            let shape = Shape::new(dims).unwrap();
            let mut bytes = Vec::new();
            for at in 0..shape.elements().unwrap() {
                let element = format!("element {at}").repeat(at % 3);
                bytes.extend((element.len() as u32).to_le_bytes());
                bytes.extend(element.as_bytes());
            }
            let allocation = match place {
                Place::Inline => return Tensor::from_bytes(dtype, shape, &bytes).unwrap(),
                Place::Lent => context.allocation(),
                Place::Frozen => context.allocation().frozen(),
            };
            let mut tensor = allocation.encoded(shape, bytes.len()).unwrap();
            tensor.copy_from_slice(&bytes);
            tensor.share().unwrap()
        }
        other => panic!("{other}"),
    }
}

fn lent(context: &Context, len: usize, seed: usize) -> Tensor {
    filled(context, Place::Lent, &[len], |at| (seed * 31 + at * 7 + (at >> 8)) as u8)
}

fn frozen(context: &Context, len: usize, seed: usize) -> Tensor {
    filled(context, Place::Frozen, &[len], |at| (seed * 31 + at * 7 + (at >> 8)) as u8)
}

fn set_of(tensors: impl IntoIterator<Item = Tensor>) -> TensorSet {
    let mut set = TensorSet::new();
    tensors.into_iter().for_each(|tensor| set.push(tensor));
    set
}

fn same(came: &TensorSet, sent: &TensorSet) {
    let of = |set: &TensorSet| -> Vec<(String, DType, Vec<usize>, Vec<u8>)> {
        let one = |(name, tensor): (&str, &Tensor)| {
            let dims = tensor.shape().dims().to_vec();
            (name.to_owned(), tensor.dtype(), dims, tensor.bytes().unwrap().to_vec())
        };
        set.iter().map(one).collect()
    };
    assert!(of(came) == of(sent), "{} instead of {}", text(came), text(sent));
}

trait Tensors {
    fn send_set(&mut self, set: &TensorSet);

    fn take_set(&mut self) -> TensorSet;

    /// Sends a record of tensors, which comes back.
    fn exchange(&mut self, set: &TensorSet) -> TensorSet {
        self.send_set(set);
        let back = self.take_set();
        same(&back, set);
        back
    }

    /// Returns the answer of peer.py to a message or to tensors.
    fn answer(&mut self) -> String;

    /// Sends a command, and gives its answer.
    fn tells(&mut self, command: &str) -> String;
}

impl Tensors for Connection {
    fn send_set(&mut self, set: &TensorSet) {
        in_time(|deadline| self.sender().send_tensors_deadline(set, deadline)).unwrap();
    }

    fn take_set(&mut self) -> TensorSet {
        let set = in_time(|deadline| self.receiver().recv_tensors_deadline(deadline));
        set.unwrap().expect("peer.py closed")
    }

    fn answer(&mut self) -> String {
        let answer = in_time(|deadline| self.receiver().recv_deadline(deadline)).unwrap();
        String::from_utf8(answer.expect("peer.py closed")).unwrap()
    }

    fn tells(&mut self, command: &str) -> String {
        in_time(|deadline| self.sender().send_deadline(command.as_bytes(), deadline)).unwrap();
        self.answer()
    }
}

/// Stops a process, and lets it go on when dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(python: &Python) -> Self {
        let pid = Pid::from_child(&python.child);
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A context whose pool is small: what does not come back is missed at once.
fn small() -> Options {
    Options::new().pool_quota(4 << 20).loan_limit(1024, 1 << 30)
}

/// Waits until all of a pool can be had.
fn is_whole(context: &Context, quota: usize) {
    wait_until("the return of all memory", || context.alloc::<u8>([quota]).is_ok());
}

/// The text that goes in front of a record of tensors must be theirs.
#[derive(Default)]
struct Expected(Option<Vec<u8>>);

impl Expected {
    fn check(&mut self, set: &TensorSet) {
        if let Some(expected) = self.0.take() {
            assert_eq!(text(set), String::from_utf8(expected).unwrap());
        }
    }
}

/// Sends back what comes until the peer closes.
fn echo(link: &mut Connection, change: impl Fn(TensorSet) -> TensorSet) -> Result<()> {
    let mut expected = Expected::default();
    while let Some(received) = in_time(|deadline| link.receiver().peek_deadline(deadline))? {
        if let MessageKind::TensorRequest(id) = received.kind() {
            let set = change(received.into_tensors()?);
            in_time(|_| link.respond_tensors(id, &set))?;
        } else if received.kind() == MessageKind::Tensors {
            let set = received.into_tensors()?;
            expected.check(&set);
            let set = change(set);
            in_time(|deadline| link.sender().send_tensors_deadline(&set, deadline))?;
        } else {
            let body = received.bytes().to_vec();
            received.release()?;
            in_time(|deadline| link.sender().send_deadline(&body, deadline))?;
            expected.0 = Some(body);
        }
    }
    Ok(())
}

enum Unsent {
    Body(Vec<u8>),
    Set(TensorSet),
}

/// As [`echo`], in an event loop that sleeps on the connection's descriptor. Returns how often it slept.
fn echo_in_a_loop(link: &mut Connection) -> Result<u32> {
    // Asked for before anything is looked for: from now on finding nothing arms.
    let _ = link.as_fd();
    let (mut unsent, mut expected) = (VecDeque::new(), Expected::default());
    for sleeps in 0.. {
        let mut progress = true;
        while progress {
            progress = false;
            while let Some(next) = unsent.front() {
                let sent = match next {
                    Unsent::Body(body) => link.sender().try_send(body),
                    Unsent::Set(set) => link.sender().try_send_tensors(set),
                };
                match sent {
                    Ok(()) => progress = unsent.pop_front().is_some(),
                    Err(TrySendError::Full { .. }) => break,
                    Err(TrySendError::Failed(error)) => return Err(error),
                }
            }
            match link.receiver().try_peek() {
                Ok(Some(received)) if matches!(received.kind(), MessageKind::TensorRequest(_)) => {
                    let MessageKind::TensorRequest(id) = received.kind() else { unreachable!() };
                    let set = received.into_tensors()?;
                    in_time(|_| link.respond_tensors(id, &set))?;
                    progress = true;
                }
                Ok(Some(received)) if received.kind() == MessageKind::Tensors => {
                    let set = received.into_tensors()?;
                    expected.check(&set);
                    unsent.push_back(Unsent::Set(set));
                    progress = true;
                }
                Ok(Some(received)) => {
                    let body = received.bytes().to_vec();
                    received.release()?;
                    expected.0 = Some(body.clone());
                    unsent.push_back(Unsent::Body(body));
                    progress = true;
                }
                Ok(None) => return Ok(sleeps),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Failed(error)) => return Err(error),
            }
        }
        let ready = poll(&mut [PollFd::new(link, PollFlags::IN)], Some(&LONG)).unwrap();
        assert_eq!(ready, 1, "nobody woke it");
    }
    unreachable!()
}

fn is_checked(options: Options, echo: impl Fn(&mut Connection)) {
    let Some((mut listener, python)) = called_as("tensors", options) else { return };
    let mut link = listener.accept_deadline(soon()).unwrap();
    echo(&mut link);
    link.close().unwrap();
    python.succeeds();
}

#[test]
fn a_listener_keeps_every_rule_of_tensors() {
    is_checked(Options::new(), |link| echo(link, |set| set).unwrap());
}

#[test]
fn a_listener_with_large_rings_keeps_every_rule_of_tensors() {
    let options = Options::new().ring_capacity(1 << 20).spin(Spin::Never);
    is_checked(options, |link| echo(link, |set| set).unwrap());
}

#[test]
fn a_listener_with_a_small_pool_keeps_every_rule_of_tensors() {
    // Enough for the loans that peer.py holds at once, and little more.
    let options = Options::new()
        .pool_quota(8 << 20)
        .loan_limit(1024, 8 << 20)
        .pool_footprint(1)
        .pool_far_footprint(1);
    is_checked(options, |link| echo(link, |set| set).unwrap());
}

#[test]
fn a_listener_in_an_event_loop_keeps_every_rule_of_tensors() {
    for options in [Options::new(), Options::new().spin(Spin::Never)] {
        is_checked(options, |link| assert!(echo_in_a_loop(link).unwrap() > 10));
    }
}

#[test]
fn peer_py_finds_a_wrong_byte_in_a_tensor() {
    let Some((mut listener, python)) = called_as("tensors", Options::new()) else { return };
    let mut link = listener.accept_deadline(soon()).unwrap();
    let wrong = |set: TensorSet| {
        let tensor = set.at(0).unwrap();
        if (tensor.dtype(), tensor.shape().rank()) != (DType::Int16, 3) {
            return set;
        }
        let mut bytes = tensor.bytes().unwrap().to_vec();
        bytes[11] ^= 1;
        set_of([Tensor::from_bytes(DType::Int16, *tensor.shape(), &bytes).unwrap()])
    };
    let end = echo(&mut link, wrong).unwrap_err();
    assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    python.fails("INT16 of rank 3: tensor 0 came back as");
}

#[test]
fn every_data_type_and_rank_is_understood() {
    let Some(Echo { context, mut link, python }) = Echo::start("tell", Options::new()) else {
        return;
    };
    // Few enough elements for all of them to go inline.
    let whole = [2, 1, 3, 1, 2, 1, 1, 2];
    for (number, dtype) in DType::ALL.into_iter().enumerate() {
        for rank in 0..=8 {
            for place in KINDS {
                let tensor = sample(&context, place, dtype, &whole[..rank]);
                let mut set = TensorSet::new();
                set.insert(["", "a name"][(number + rank) % 2], tensor).unwrap();
                link.send_set(&set);
                let (name, tensor) = set.iter().next().unwrap();
                assert_eq!(link.answer(), line(name, tensor, place));
            }
        }
    }
    link.close().unwrap();
    python.succeeds();
}

#[test]
fn sets_are_understood() {
    let Some(Echo { context, mut link, python }) = Echo::start("tell", Options::new()) else {
        return;
    };
    let mut tells = |tensors: Vec<(String, Place, Tensor)>| {
        let (mut set, mut lines) = (TensorSet::new(), Vec::new());
        for (name, place, tensor) in tensors {
            lines.push(line(&name, &tensor, place));
            set.insert(&name, tensor).unwrap();
        }
        link.send_set(&set);
        assert_eq!(link.answer(), lines.join("\n"));
    };
    tells(Vec::new());
    // Every other one has a name.
    let name = |at: usize| {
        if at.is_multiple_of(2) { String::new() } else { format!("tensor {at}, größer") }
    };
    for count in [1, 2, 5, LOANS] {
        let place = |at: usize| KINDS[at % 3];
        let one = |at: usize| {
            (
                name(at),
                place(at),
                sample(&context, place(at), DType::ALL[at % DType::ALL.len()], &[at]),
            )
        };
        tells((0..count).map(one).collect());
    }
    // As many as there may be: loans, attachments, tensors.
    let lent = |at: usize| (name(at), Place::Lent, lent(&context, 5000 + at, at));
    tells((0..LOANS).map(lent).collect());
    let frozen = |at: usize| (name(at), Place::Frozen, frozen(&context, at, at));
    tells((0..255).map(frozen).collect());
    let inline =
        |at: usize| (String::new(), Place::Inline, Tensor::from_slice([1], &[at as u32]).unwrap());
    tells((0..1024).map(inline).collect());
    let long = |at: u8| {
        let name = "ö".repeat(127) + &char::from(b'a' + at).to_string();
        (name, Place::Inline, Tensor::from_slice([], &[at]).unwrap())
    };
    tells((0..10).map(long).collect());
    // Dimensions of 8 bytes.
    let none = Tensor::from_slice::<f32>([3, 1 << 40, 0], &[]).unwrap();
    tells(vec![(String::new(), Place::Inline, none)]);
    link.close().unwrap();
    python.succeeds();
}

#[test]
fn a_shared_tensor_goes_to_many_and_many_times() {
    let Some(mut first) = Echo::start("tell", small()) else { return };
    let name = unique_name();
    let Some(python) = Python::start(&format!("tell {name}")) else { return };
    let mut second = first.context.connect_retry(name.as_str(), soon()).unwrap();
    {
        let shared = lent(&first.context, 3 << 20, 1);
        let always = frozen(&first.context, 100_000, 2);
        let mut set = TensorSet::new();
        set.insert("in a set", lent(&first.context, 300_000, 3)).unwrap();
        let expected = [
            line("", &shared, Place::Lent),
            line("", &always, Place::Frozen),
            line("in a set", set.at(0).unwrap(), Place::Lent),
        ];
        for command in ["hold", "give back", "hold"] {
            for link in [&mut first.link, &mut second] {
                link.tells(command);
                // The quota would not let it be copied.
                for _ in 0..LOANS / 2 {
                    in_time(|_| link.send_tensor(&shared)).unwrap();
                    in_time(|_| link.send_tensor(&always)).unwrap();
                    link.send_set(&set);
                }
                for _ in 0..LOANS / 2 {
                    expected.iter().for_each(|expected| assert_eq!(link.answer(), *expected));
                }
            }
        }
    }
    assert!(first.context.alloc::<u8>([4 << 20]).is_err(), "it is held");
    assert_eq!(first.link.tells("give back"), format!("{LOANS} loans"));
    first.link.tells("give back");
    assert!(first.context.alloc::<u8>([4 << 20]).is_err(), "the other one holds it");
    second.tells("give back");
    is_whole(&first.context, 4 << 20);
    first.link.close().unwrap();
    second.close().unwrap();
    first.python.succeeds();
    python.succeeds();
}

#[test]
fn pools_do_not_grow_in_many_exchanges() {
    // A block that is not returned is soon missed.
    let options = Options::new()
        .pool_quota(8 << 20)
        .loan_limit(1024, 8 << 20)
        .pool_footprint(1)
        .pool_far_footprint(1);
    let Some(Echo { context, mut link, python }) = Echo::new(options) else { return };
    for round in 0..1000 {
        let mut set = TensorSet::new();
        set.insert("lent", lent(&context, 9000 + round % 3 * 20_000, round)).unwrap();
        set.push(filled(&context, Place::Inline, &[2, round % 20], |at| at as f32));
        set.insert("second", lent(&context, round, round)).unwrap();
        if round % 10 == 0 {
            set.insert("frozen", frozen(&context, 1000, round)).unwrap();
        }
        let message = body(round * 13 % 20_000, round);
        link.send_set(&set);
        in_time(|deadline| link.sender().send_deadline(&message, deadline)).unwrap();
        let back = link.take_set();
        same(&back, &set);
        assert!(back.get("frozen").is_none_or(Tensor::is_frozen));
        drop(back);
        let back = in_time(|deadline| link.receiver().recv_deadline(deadline)).unwrap();
        assert!(back == Some(message));
    }
    is_whole(&context, 8 << 20);
    link.close().unwrap();
    python.succeeds();
}

#[test]
fn frozen_memory_is_sent_to_and_fro() {
    let Some(Echo { context, mut link, python }) = Echo::new(Options::new()) else { return };
    let mut set = set_of([frozen(&context, 1 << 20, 1), frozen(&context, 1, 2)]);
    let original = text(&set);
    for _ in 0..100 {
        // It comes back as peer.py's, under another number, and goes out again.
        set = link.exchange(&set);
        assert!(set.iter().all(|(_, tensor)| tensor.is_frozen()));
    }
    link.close().unwrap();
    python.succeeds();
    assert_eq!(text(&set), original);
    assert_eq!(set.at(0).unwrap().as_slice::<u8>().unwrap()[9], 31 + 63);
}

#[test]
fn frozen_segments_beyond_peer_py_s_limits_are_retired() {
    let Some(Echo { context, mut link, python }) = Echo::start("tell", Options::new()) else {
        return;
    };
    for seed in 0..40 {
        let tensor = frozen(&context, 2 << 20, seed);
        in_time(|_| link.send_tensor(&tensor)).unwrap();
        assert_eq!(link.answer(), line("", &tensor, Place::Frozen));
    }
    for seed in 0..1500 {
        let tensor = frozen(&context, 1, seed);
        in_time(|_| link.send_tensor(&tensor)).unwrap();
        assert_eq!(link.answer(), line("", &tensor, Place::Frozen));
    }
    link.close().unwrap();
    python.succeeds();
}

/// Sends tensors that are dropped at once, many before peer.py reads the first.
fn is_read_late(tensor: impl Fn(&Context, usize) -> (Place, Tensor)) {
    let Some(Echo { context, mut link, python }) = Echo::start("tell", Options::new()) else {
        return;
    };
    for turn in 0..20 {
        let (mut lines, stopped) = (Vec::new(), Stopped::new(&python));
        for at in 0..40 {
            let (place, tensor) = tensor(&context, turn * 40 + at);
            lines.push(line("", &tensor, place));
            // No more of them than peer.py takes at once.
            if lines.iter().filter(|line| line.contains("lent")).count() > LOANS {
                lines.pop();
                continue;
            }
            in_time(|_| link.send_tensor(&tensor)).unwrap();
            drop(tensor);
            if at % 8 == 0 {
                context.trim();
            }
        }
        drop(stopped);
        lines.iter().for_each(|line| assert_eq!(link.answer(), *line));
    }
    link.close().unwrap();
    python.succeeds();
}

#[test]
fn lent_tensors_that_were_dropped_before_they_are_read_arrive() {
    is_read_late(|context, at| (Place::Lent, lent(context, (at % 60 + 1) * 5000, at)));
}

#[test]
fn frozen_tensors_that_were_dropped_before_they_are_read_arrive() {
    is_read_late(|context, at| match at % 3 {
        0 => (Place::Lent, lent(context, (at % 60 + 1) * 5000, at)),
        _ => (Place::Frozen, frozen(context, 3000 + at, at)),
    });
}

/// That peer.py cannot take this set, that the sender is told so, and that the link goes on.
fn cannot_be_sent(set: impl FnOnce(&Context) -> TensorSet) {
    let Some(Echo { context, mut link, python }) = Echo::start("tell", Options::new()) else {
        return;
    };
    let set = set(&context);
    for _ in 0..2 {
        let deadline = Instant::now() + Duration::from_millis(200);
        let sent = link.sender().send_tensors_deadline(&set, deadline);
        assert!(sent.is_err(), "{} tensors: {}", set.len(), link.answer());
        let small = lent(&context, 7000, 1);
        in_time(|_| link.send_tensor(&small)).unwrap();
        assert_eq!(link.answer(), line("", &small, Place::Lent));
    }
    link.close().unwrap();
    python.succeeds();
}

#[test]
fn what_peer_py_can_never_take_ends_with_an_answer() {
    cannot_be_sent(|context| set_of((0..=LOANS).map(|at| lent(context, 5000, at))));
    cannot_be_sent(|context| set_of([lent(context, POOL_LIMIT + 1, 0)]));
    cannot_be_sent(|context| set_of([frozen(context, POOL_LIMIT + 1, 0)]));
}

#[test]
fn frozen_tensors_that_peer_py_cannot_map_together_cannot_be_sent_together() {
    cannot_be_sent(|context| set_of((0..4).map(|at| frozen(context, POOL_LIMIT / 3, at))));
}

#[test]
fn a_kill_gives_back_what_peer_py_held() {
    let mut context: Option<Context> = None;
    for _ in 0..3 {
        let name = unique_name();
        let Some(mut python) = Python::start(&format!("tell {name}")) else { return };
        let context = context.get_or_insert_with(|| crate::support::python::context(small()));
        let mut link = context.connect_retry(name.as_str(), soon()).unwrap();
        link.tells("hold");
        let held = set_of([lent(context, 2 << 20, 1), frozen(context, 1 << 10, 2)]);
        for _ in 0..3 {
            link.send_set(&held);
            link.answer();
        }
        // Some that it has not read.
        let stopped = Stopped::new(&python);
        link.send_set(&set_of([lent(context, 1 << 20, 3)]));
        link.send_set(&set_of([lent(context, 100, 4)]));
        drop(held);
        assert!(context.alloc::<u8>([4 << 20]).is_err());
        python.kill();
        drop(stopped);
        wait_until("the end is seen", || {
            link.send(b"late").is_err_and(|error| matches!(error.kind(), ErrorKind::PeerDied))
        });
        is_whole(context, 4 << 20);
        drop(link);
        is_whole(context, 4 << 20);
    }
}

#[test]
fn what_peer_py_had_lent_outlives_it() {
    let Some(Echo { context, mut link, mut python }) = Echo::new(Options::new()) else { return };
    let mut witness = Witness::new(&context);
    let set = set_of([lent(&context, 1 << 20, 1), frozen(&context, 1 << 20, 2)]);
    let back = link.exchange(&set);
    // Without reading it.
    link.send_set(&set);
    wait_until(
        "the echo",
        || matches!(link.receiver().try_peek(), Ok(Some(received)) if received.kind() == MessageKind::Tensors),
    );
    python.kill();
    same(&link.take_set(), &set);
    let end = in_time(|deadline| link.receiver().recv_tensors_deadline(deadline)).unwrap_err();
    assert!(matches!(end.kind(), ErrorKind::PeerDied), "{end}");
    witness.check();
    drop(link);
    same(&back, &set);
    assert_eq!(back.at(1).unwrap().as_slice::<u8>().unwrap().len(), 1 << 20);
    witness.check();
}

#[test]
fn a_close_while_peer_py_holds_loans_takes_them_back() {
    let Some(Echo { context, mut link, python }) = Echo::start("tell", small()) else { return };
    link.tells("hold");
    link.send_set(&set_of([lent(&context, 3 << 20, 1)]));
    link.answer();
    link.close().unwrap();
    python.succeeds();
    is_whole(&context, 4 << 20);
}

/// 64 bytes of segment 1, which is no frozen one; and of segment 2, which is.
const LENT: Lent = Lent { segment: 1, slot: 0, offset: 0, len: 64, generation: 5 };
const FROZEN: Lent = Lent { segment: 2, slot: u32::MAX, offset: 0, len: 64, generation: 0 };

/// A peer.py that a raw peer has accepted, and sent both segments. The frozen one has these seals.
fn raw_peer(flags: u8, seals: SealFlags) -> Option<(RawPeer, Python)> {
    let name = unique_name();
    let listener = raw::listen(&name);
    let python = Python::start(&format!("tensors {name}"))?;
    let mut peer = RawPeer::greet(raw::accept(&listener), Hello::honest());
    peer.meet();
    peer.send_segment(1, 1 << 20);
    let (fd, memory) = raw::memfd(raw::page(), true, SealFlags::empty());
    drop(memory);
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    let mut packet = segment_packet(2, raw::page());
    packet[20] = flags;
    raw::send(&peer.socket, &packet, &[fd.as_fd()]).unwrap();
    Some((peer, python))
}

fn frozen_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::WRITE
}

/// An entry of a description.
fn entry(dtype: u8, rank: u8, flags: u8, name_len: u8, rest: &[u8]) -> Vec<u8> {
    [&[dtype, rank, flags, name_len][..], rest].concat()
}

/// A record of tensors.
fn record(attachments: &[Lent], description: &[u8]) -> (u64, Vec<u8>) {
    let mut payload: Vec<u8> = attachments.iter().flat_map(Lent::encode).collect();
    payload.extend(description);
    (7 | (attachments.len() as u64) << 16 | 1 << 24 | (payload.len() as u64) << 32, payload)
}

/// Asserts that peer.py finds the lies of a peer: this checks its checks.
#[test]
fn peer_py_finds_what_is_wrong_in_a_record() {
    let bytes = |len: u32| entry(2, 1, 0, 0, &len.to_le_bytes());
    let byte = bytes(64);
    let inline = |name: &[u8]| entry(2, 0, 2, name.len() as u8, &[&[1, 0, 0, 0, 7], name].concat());
    let wide = |dims: [u64; 2]| {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        entry(2, 2, 1, 0, &dims)
    };
    let with = |flags| entry(2, 1, flags, 0, &64u32.to_le_bytes());
    let lies: [(&[Lent], Vec<u8>, &str); 25] = [
        (&[LENT], entry(0, 1, 0, 0, &64u32.to_le_bytes()), "tensor 0: dtype 0"),
        (&[LENT], entry(17, 1, 0, 0, &64u32.to_le_bytes()), "tensor 0: dtype 17"),
        (&[LENT], entry(2, 9, 0, 0, &[1; 36]), "tensor 0: rank 9"),
        (&[LENT], with(8), "tensor 0: flags 0x8"),
        (&[LENT], with(6), "tensor 0: flags 0x6"),
        (&[], entry(2, 0, 4, 0, &[0; 17]), "tensor 0: it lies in a region, and we know none"),
        (&[LENT], entry(2, 2, 0, 0, &64u32.to_le_bytes()), "ends early"),
        (&[LENT], entry(2, 1, 0, 9, &64u32.to_le_bytes()), "ends early"),
        (&[LENT], vec![2, 1, 0], "ends early"),
        (&[], entry(2, 0, 2, 0, &[2, 0, 0, 0, 1]), "ends early"),
        (&[], entry(2, 0, 2, 0, &[2, 0, 0, 0, 1, 1]), "2 bytes, not 1"),
        (&[LENT], bytes(63), "64 bytes, not 63"),
        (&[LENT], wide([1 << 63, 2]), "tensor 0: shape"),
        (&[LENT], wide([1 << 63, 1]), "64 bytes, not 9223372036854775808"),
        (&[], inline(b"\xC3\x28"), "its name is no UTF-8"),
        (&[], [inline(b"a"), inline(b"a")].concat(), "tensor 1: another one is 'a'"),
        (&[], byte.clone(), "tensor 0: no attachment is left"),
        (&[LENT], vec![], "1 attachments are left"),
        (&[Lent { slot: 16, ..LENT }], byte.clone(), "pooled.slot 0x10"),
        (&[Lent { offset: 8, ..LENT }], byte.clone(), "pooled.offset 8"),
        (&[Lent { segment: 7, ..LENT }], byte.clone(), "pooled.segment 7 was not sent"),
        (&[Lent { offset: 1 << 20, ..LENT }], byte.clone(), "is not inside of the segment"),
        (&[Lent { slot: u32::MAX, ..LENT }], byte.clone(), "pooled.segment 1 is not frozen"),
        (&[Lent { slot: 0, ..FROZEN }], byte.clone(), "pooled.segment 2 is frozen"),
        (&[LENT, LENT], byte.repeat(2), "pooled.slot 0 is lent"),
    ];
    for (attachments, description, complaint) in lies {
        let Some((mut peer, python)) = raw_peer(1, frozen_seals()) else { return };
        let (header, payload) = record(attachments, &description);
        peer.publish(header, &payload);
        python.fails(complaint);
    }
    // The honest ones, and what is no lie.
    let honest: [(&[Lent], Vec<u8>); 4] =
        [(&[LENT], byte.clone()), (&[FROZEN], byte.clone()), (&[], inline(b"a")), (&[], vec![])];
    for (attachments, description) in honest {
        let Some((mut peer, python)) = raw_peer(1, frozen_seals()) else { return };
        let (header, payload) = record(attachments, &description);
        peer.publish(header, &payload);
        // It waits for a text.
        python.fails("text: a record of kind 7");
    }
}

#[test]
fn peer_py_takes_as_many_tensors_as_a_set_may_have_and_no_more() {
    let empty = [2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // The honest one waits for a text.
    let told = [(1 << 15, "text: a record of kind 7"), ((1 << 15) + 1, "more than 32768 tensors")];
    for (count, complaint) in told {
        let Some((mut peer, python)) = raw_peer(1, frozen_seals()) else { return };
        let description = empty.repeat(count);
        peer.pool[0].1.write(0, &description);
        let lent = Lent { len: description.len() as u64, ..LENT };
        let (header, payload) = record(&[lent], &[]);
        peer.publish(header | raw::POOLED, &payload);
        python.fails(complaint);
    }
}

#[test]
fn peer_py_finds_what_is_wrong_in_a_header_or_with_a_frozen_segment() {
    let (honest, payload) = record(&[FROZEN], &entry(2, 1, 0, 0, &64u32.to_le_bytes()));
    let lies = [
        honest ^ 1 << 24,
        honest ^ 3 << 24,
        honest ^ 3 << 16,
        honest | raw::POOLED,
        honest | 1 << 12,
        honest ^ 6,
    ];
    for lie in lies {
        let Some((mut peer, python)) = raw_peer(1, frozen_seals()) else { return };
        peer.publish(lie, &payload);
        python.fails(&format!("header {lie:#x}"));
    }
    let lacks = |seal| frozen_seals().difference(seal);
    let segments = [
        (1, SEALS, "segment: seals 0x17, not 0xf"),
        (1, lacks(SealFlags::SHRINK), "segment: seals 0xd, not 0xf"),
        (1, lacks(SealFlags::SEAL), "segment: seals 0xe, not 0xf"),
        (0, frozen_seals(), "segment: seals 0xf, not 0x17"),
        (0, SEALS | SealFlags::WRITE, "pooled.segment 2 is not frozen"),
        (2, frozen_seals(), "segment.len of a ring"),
        (3, frozen_seals(), "segment.flags"),
    ];
    for (flags, seals, complaint) in segments {
        let Some((mut peer, python)) = raw_peer(flags, seals) else { return };
        peer.publish(honest, &payload);
        python.fails(complaint);
    }
}

#[test]
fn requests_with_tensors_come_back() {
    let Some(mut echo) = Echo::new(small()) else { return };
    let context = echo.context.clone();
    for round in 0..3 {
        let sets: Vec<TensorSet> = (0..4)
            .map(|number| {
                let mut lent = context.alloc::<u8>([9000 * number]).unwrap();
                lent.fill(round);
                let mut set = TensorSet::new();
                set.insert("lent", lent.share().unwrap()).unwrap();
                set.insert("inline", Tensor::from_slice([1], &[number as u64]).unwrap()).unwrap();
                set.set_metadata(meta! { "round" => round, "name" => "große" }.unwrap());
                set
            })
            .collect();
        let asked: Vec<_> = sets.iter().map(|set| echo.link.submit_tensors(set).unwrap()).collect();
        echo.send(b"a message between them");
        // In their order: peer.py sends the next block size when all loans of the one before are back.
        for (request, set) in asked.into_iter().zip(&sets) {
            let came = echo.link.wait_tensors(request).unwrap();
            assert_eq!((came.len(), came.metadata()), (2, set.metadata()));
            for (name, tensor) in set {
                assert_eq!(elements(&came[name]), elements(tensor));
            }
        }
        echo.comes_back(b"a message between them");
    }
    echo.close();
}
