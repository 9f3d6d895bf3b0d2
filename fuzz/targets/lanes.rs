//! A link whose peer lies in everything that crosses it: control words, records, packets with descriptors, pool
//! descriptors, tensors, tokens, returned loans.
//!
//! The input is a list of steps: a byte, modulo 20, and the bytes that the step takes, as `step` reads them.
//! The link is a real one, met over a socket; the peer is the one of the hostile tests. What this side
//! keeps must keep its bytes, and in the end nothing may be left on loan.
#![no_main]

#[path = "../../tests/support/raw.rs"]
#[allow(dead_code)]
mod raw;

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use raw::{Hello, Lent, RawPeer};
use slipring::message::Token;
use slipring::options::Spin;
use slipring::{Connection, Context, Listener, Options, Tensor, TensorSet};

/// How long anything may take.
const HANG: Duration = Duration::from_secs(5);

const CONTROL: [usize; 6] =
    [raw::POSITION, raw::RECEIVER_STATE, raw::SENDER_STATE, raw::DATA_BELL, raw::ROOM_BELL, 0x100];
const SLOTS: usize = 8;
const PAGE: u64 = 4096;

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// A number: small, near a power of two, or any.
    fn word(&mut self) -> u64 {
        match self.byte() {
            255 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            byte @ 192.. => {
                (1u64 << (byte - 192)).wrapping_add(u64::from(self.byte()) % 16).wrapping_sub(8)
            }
            byte => byte.into(),
        }
    }
}

struct Stage {
    context: Context,
    listener: Listener,
    name: String,
}

/// One context for all inputs: an input that spoils it is found by the next.
static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

fn stage() -> Stage {
    let options = Options::new()
        .ring_capacity(PAGE)
        .loan_slots(SLOTS as u32)
        .pool_quota(1 << 20)
        .peer_pool_limit(64 * PAGE)
        .max_message(64 << 10)
        .inline_max(256)
        .spin(Spin::Never);
    let context = Context::with_options(options).unwrap();
    let name = format!("slipring-fuzz-{}", std::process::id());
    let listener = context.listen(&name).unwrap();
    Stage { context, listener, name }
}

fn hello() -> Hello {
    let control_len = 2 * PAGE;
    Hello { control_len, ring_capacity: PAGE, loan_slots: SLOTS as u32, ..Hello::honest() }
}

/// What this side holds: tensors of its own that it has sent, with what is in them, and the peer's.
#[derive(Default)]
struct Held {
    own: Vec<(Tensor, Vec<u8>)>,
    sets: Vec<TensorSet>,
}

/// One step. False: this side has found its link over.
fn step(
    script: &mut Script,
    context: &Context,
    link: &mut Connection,
    peer: &mut RawPeer,
    held: &mut Held,
) -> bool {
    let failed = |error: slipring::error::TryRecvError| {
        matches!(error, slipring::error::TryRecvError::Failed(_))
    };
    let unsent = |error: slipring::error::TrySendError| {
        matches!(error, slipring::error::TrySendError::Failed(_))
    };
    match script.byte() % 20 {
        0 => {
            let slot = usize::from(script.byte()) % (CONTROL.len() + SLOTS);
            let at = CONTROL.get(slot).copied().unwrap_or(raw::RETURNS + 8 * (slot % SLOTS));
            peer.own.store(at, script.word());
        }
        1 => {
            let word = script.word() & 0xFFFF_FFFF | script.word() % 5000 << 32;
            let payload = script.byte();
            let payload = script.bytes(payload.into());
            peer.publish(word, &payload);
        }
        2 => {
            let (segment, slot) = (script.byte().into(), script.word() as u32);
            let (offset, len, generation) = (script.word(), script.word(), script.word());
            peer.lend(Lent { segment, slot, offset, len, generation });
        }
        3 => {
            // A parcel: attachments, then whatever describes them.
            let (count, version) = (script.byte() % 4, script.byte() % 2);
            let mut payload = Vec::new();
            for _ in 0..count {
                let (segment, slot) = (script.byte().into(), script.byte());
                let slot = if slot == 255 { u32::MAX } else { slot.into() };
                let (offset, len, generation) = (script.word().wrapping_mul(64), script.word(), 1);
                payload.extend(Lent { segment, slot, offset, len, generation }.encode());
            }
            let described = usize::from(script.byte()) % 64;
            payload.extend(script.bytes(described));
            let head = 7 | u64::from(count) << 16 | u64::from(version ^ 1) << 24;
            let tight = if (57..=512).contains(&payload.len()) { raw::TIGHT } else { 0 };
            peer.publish(head | tight | (payload.len() as u64) << 32, &payload);
        }
        4 => {
            let kind = u16::from(script.byte() % 8);
            let mut packet = raw::retire_packet(script.byte().into());
            packet[8..10].copy_from_slice(&kind.to_le_bytes());
            packet[12] = script.byte() % 3;
            let more = script.bytes(8);
            packet[20..28].copy_from_slice(&more);
            let (fd, _memory) = raw::segment(PAGE);
            let fds = [fd.as_fd(), fd.as_fd()];
            let fds = &fds[..usize::from(script.byte() % 3)];
            let _ = raw::send(&peer.socket, &packet, fds);
        }
        5 => {
            let (number, len) = (script.byte() % 4, u64::from(script.byte() % 3 + 1) * PAGE);
            let (fd, memory) = raw::segment(len);
            let _ =
                raw::send(&peer.socket, &raw::segment_packet(number.into(), len), &[fd.as_fd()]);
            peer.pool.push((number.into(), memory));
        }
        6 => {
            let (number, bits) = (script.byte() % 4, script.byte());
            let memory = raw::memfd(PAGE, true, rustix::fs::SealFlags::empty());
            let mut packet = raw::segment_packet(number.into(), PAGE);
            packet[20] = 1;
            drop(memory.1);
            // Whatever seals; all of them where a bit is set.
            let seals = if bits & 1 == 1 { 0xF } else { u32::from(bits >> 1 & 0x1F) };
            let seals = rustix::fs::SealFlags::from_bits_retain(seals);
            rustix::fs::fcntl_add_seals(&memory.0, seals).unwrap();
            let _ = raw::send(&peer.socket, &packet, &[memory.0.as_fd()]);
        }
        7 => return !link.receiver().try_recv().is_err_and(failed),
        8 => return !link.receiver().try_recv_request().is_err_and(failed),
        9 => match link.receiver().try_recv_tensors() {
            Ok(Some(set)) => held.sets.push(set),
            Ok(None) => return false,
            Err(error) => return !failed(error),
        },
        10 => {
            let seen = link.receiver().drain(4, |_, bytes| drop(bytes.to_vec()));
            return seen.is_ok();
        }
        11 => {
            let len = usize::from(script.byte()) * 64;
            return !link.sender().try_send(&vec![0xA5; len]).is_err_and(unsent);
        }
        12 => {
            let (fill, len) = (script.byte(), usize::from(script.byte()) * 32 + 1);
            let Ok(mut tensor) = context.alloc::<u8>([len]) else { return true };
            tensor.fill(fill);
            let tensor = tensor.share().unwrap();
            let sent = link.sender().try_send_tensor(&tensor);
            held.own.push((tensor, vec![fill; len]));
            return !sent.is_err_and(unsent);
        }
        13 => {
            let own = script.byte() & 1 == 1;
            if own {
                held.own.truncate(held.own.len() / 2)
            } else {
                held.sets.clear()
            }
            context.trim();
        }
        14 => {
            let _ = link.as_fd();
        }
        16 => {
            // A record of any kind with metadata, and with an id where the kind has one.
            let kind = [1u64, 2, 3, 7, 8, 9][usize::from(script.byte()) % 6];
            let version = if kind >= 7 { 1 << 24 } else { 0 };
            let mut payload = if matches!(kind, 1 | 7) { Vec::new() } else { vec![1; 8] };
            let entries = usize::from(script.byte()) % 40;
            let entries = script.bytes(entries);
            let lie = u16::from(script.byte() / 250);
            payload.extend((entries.len() as u16 + lie).to_le_bytes());
            payload.extend(entries);
            payload.resize(payload.len().next_multiple_of(8), script.byte() / 250);
            let body = usize::from(script.byte()) % 40;
            payload.extend(script.bytes(body));
            let tight = if (57..=512).contains(&payload.len()) { raw::TIGHT } else { 0 };
            let head = kind | 1 << 11 | version | tight;
            peer.publish(head | (payload.len() as u64) << 32, &payload);
        }
        17 => match link.receiver().try_recv_tensor_request() {
            Ok(Some(request)) => held.sets.push(request.tensors),
            Ok(None) => return false,
            Err(error) => return !failed(error),
        },
        18 => return !link.receiver().try_recv_with().is_err_and(failed),
        19 => {
            let Ok(request) = link.submit_tensors(&TensorSet::new()) else { return false };
            match link.try_wait_tensors(request) {
                Ok(set) => held.sets.push(set),
                Err(error) => return !failed(error),
            }
        }
        _ => {
            let token = script.word() as u32;
            let _ = link.sender().try_trigger(Token::from(token));
        }
    }
    true
}

fuzz_target!(|bytes: &[u8]| {
    let mut stage_of_all = STAGE.lock().unwrap();
    let Stage { context, listener, name } = stage_of_all.get_or_insert_with(stage);
    let mut peer = RawPeer::greet(raw::dial(name), hello());
    let mut link = listener.accept_deadline(Instant::now() + HANG).unwrap();
    peer.meet();
    rustix::io::ioctl_fionbio(&peer.socket, true).unwrap();
    let (mut script, mut held) = (Script(bytes), Held::default());
    while !script.0.is_empty() && step(&mut script, context, &mut link, &mut peer, &mut held) {}
    for set in &held.sets {
        for (_, tensor) in set.iter() {
            let _ = tensor.bytes().map(|bytes| bytes.to_vec());
        }
    }
    drop((link, peer));
    for (tensor, written) in &held.own {
        assert!(tensor.as_bytes().is_ok_and(|bytes| bytes == written), "what is lent stays");
    }
    drop(held);
    let start = Instant::now();
    while context.trim() != 0 || context.pool_bytes() != 0 {
        assert!(start.elapsed() < HANG, "{} bytes stay on loan", context.pool_bytes());
        std::thread::yield_now();
    }
});
