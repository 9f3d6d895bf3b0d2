//! Each link has its share of the pool: a peer that keeps what it was lent stops its own link and no other.

use std::time::{Duration, Instant};

use crate::support::{pair_of, soon};
use slipring::error::TrySendError;
use slipring::{Connection, Context, Options, Tensor, TensorSet};

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn is_full(answer: Result<(), TrySendError>) -> bool {
    matches!(answer, Err(TrySendError::Full { .. }))
}

fn frame(context: &Context, len: usize) -> Tensor {
    context.alloc::<u8>([len]).unwrap().share().unwrap()
}

/// Receives all tensors that have come.
fn take(far: &mut Connection) -> Vec<Tensor> {
    std::iter::from_fn(|| far.receiver().try_recv_tensor().ok().flatten()).collect()
}

#[test]
fn a_miser_stops_its_own_link_and_no_other() {
    let context = Context::with_options(Options::new().pool_quota(64 << 20)).unwrap();
    let peers = Context::with_options(Options::new().loan_slots(1024)).unwrap();
    let (mut to_miser, mut miser) = pair_of(&context, &peers);
    let (mut near, mut far) = pair_of(&context, &peers);
    let mut kept = Vec::new();
    for _ in 0..2000 {
        if is_full(to_miser.sender().try_send_tensor(&frame(&context, 64 << 10))) {
            break;
        }
        kept.extend(take(&mut miser));
    }
    assert_eq!(kept.len() * (64 << 10), 16 << 20, "a quarter of the quota");
    for round in 0..1000u32 {
        near.sender().try_send(&vec![round as u8; 1 << 20]).unwrap();
        assert_eq!(far.recv().unwrap().unwrap(), vec![round as u8; 1 << 20]);
    }
    assert!(is_full(to_miser.sender().try_send(&[1; 10_000])), "its messages count, too");
    kept.pop();
    to_miser.sender().try_send(&[1; 10_000]).unwrap();
}

#[test]
fn a_limit_of_blocks_is_the_link_s_own() {
    let options = Options::new().loan_limit(2, 1 << 30);
    let context = Context::with_options(options).unwrap();
    let peers = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &peers);
    let frame = frame(&context, 100);
    (0..2).for_each(|_| near.send_tensor(&frame).unwrap());
    assert!(is_full(near.sender().try_send_tensor(&frame)));
    assert!(is_full(near.sender().try_send(&[1; 10_000])));
    let taken = take(&mut far);
    assert!(is_full(near.sender().try_send_tensor(&frame)), "they are not returned");
    drop(taken);
    near.sender().try_send_tensor(&frame).unwrap();
}

#[test]
fn a_message_longer_than_the_limit_goes_while_the_peer_holds_nothing() {
    let context = Context::with_options(Options::new().loan_limit(1024, 1 << 20)).unwrap();
    let peers = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &peers);
    for round in 0..3u8 {
        near.send(&vec![round; 3 << 20]).unwrap();
        assert!(is_full(near.sender().try_send(&[1; 10_000])));
        assert_eq!(far.recv().unwrap().unwrap(), vec![round; 3 << 20]);
    }
    near.send_tensor(frame(&context, 5 << 20)).unwrap();
    assert_eq!(far.recv_tensor().unwrap().unwrap().byte_len(), 5 << 20);
    near.send_tensor(frame(&context, 5 << 20)).unwrap();
    assert_eq!(far.recv_tensor().unwrap().unwrap().byte_len(), 5 << 20);
    // Several blocks together, and copies.
    let mut set = TensorSet::new();
    set.push(frame(&context, 2 << 20));
    set.push(Tensor::from_slice([2 << 20], &vec![1u8; 2 << 20]).unwrap());
    near.sender().try_send_tensors(&set).unwrap();
    assert_eq!(far.receiver().recv_tensors().unwrap().unwrap().len(), 2);
}

#[test]
fn the_error_of_a_message_longer_than_the_limit_names_both_lengths_and_what_it_waits_for() {
    let context = Context::with_options(Options::new().loan_limit(8, 1 << 20)).unwrap();
    let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
    near.send_tensor(frame(&context, 10_000)).unwrap();
    let held = far.recv_tensor().unwrap();
    let long = frame(&context, 2 << 20);
    for error in [
        near.sender().send_tensor_deadline(&long, shortly()).unwrap_err(),
        near.sender().send_deadline(&vec![1; 2 << 20], shortly()).unwrap_err(),
    ] {
        assert!(error.is_timeout());
        let text = format!("{error:#}");
        for part in [
            "makes no room for 2097152 bytes",
            "a link may hold 8 blocks, 1048576 bytes (Options::loan_limit)",
            "a message of more bytes goes while the peer process holds nothing",
        ] {
            assert!(text.contains(part), "{part:?} is missing from: {text}");
        }
    }
    drop(held);
    near.sender().try_send_tensor(&long).unwrap();
}

#[test]
fn a_wait_for_room_ends_when_the_peer_returns_something() {
    let context = Context::with_options(Options::new().loan_limit(1024, 1 << 20)).unwrap();
    let peers = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &peers);
    near.send_tensor(frame(&context, 1 << 20)).unwrap();
    let held = far.recv_tensor().unwrap();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| near.sender().send_deadline(&[7; 10_000], soon()));
        std::thread::sleep(Duration::from_millis(30));
        drop(held);
        sending.join().unwrap().unwrap();
    });
    assert_eq!(far.recv().unwrap().unwrap(), [7; 10_000]);
}

#[test]
fn the_error_of_a_wait_names_who_holds_what() {
    let context = Context::with_options(Options::new().loan_limit(8, 1 << 20)).unwrap();
    let peers = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &peers);
    near.send_tensor(frame(&context, 1 << 20)).unwrap();
    let _held = far.recv_tensor().unwrap();
    let error = near.sender().send_deadline(&[7; 10_000], shortly()).unwrap_err();
    assert!(error.is_timeout());
    let (text, pid) = (format!("{error:#}"), std::process::id());
    let user = near.peer().uid();
    for part in [
        format!("process {pid} of user {user} holds 1 blocks, 1048576 bytes"),
        "a link may hold 8 blocks, 1048576 bytes (Options::loan_limit)".into(),
    ] {
        assert!(text.contains(&part), "{part:?} is missing from: {text}");
    }
}
