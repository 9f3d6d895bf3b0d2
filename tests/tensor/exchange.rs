//! Tensors pass over a connection as they were: in place, frozen, inline, or by copy where the API says so.

#![allow(unsafe_code)]

use std::io::Read;
use std::os::fd::AsFd;
use std::thread;

use half::bf16;
use slipring::error::{TensorFault, TryRecvError, TrySendError};
use slipring::region::{PosixShm, Registry, Source};
use slipring::{Connection, Context, DType, ErrorKind, Options, Tensor, TensorSet};

use crate::support::census::Census;
use crate::support::other::{self, Other};
use crate::support::{pair, pair_of, pair_with, soon, unique_name, wait_until};

/// A small quota: what does not come back is missed at once.
fn small() -> Options {
    Options::new().pool_quota(4 << 20).loan_limit(1024, 1 << 30)
}

fn kind<T: std::fmt::Debug>(answer: Result<T, slipring::Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

#[test]
fn a_tensor_arrives_as_it_was_written() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
    let mut image = context.alloc::<f32>([1, 3, 224, 224]).unwrap();
    image.iter_mut().enumerate().for_each(|(at, pixel)| *pixel = at as f32);
    near.send_tensor(image).unwrap();
    let image = far.recv_tensor().unwrap().unwrap();
    assert_eq!((image.dtype(), image.shape().dims()), (DType::Fp32, &[1, 3, 224, 224][..]));
    assert!(image.is_loaned() && !image.is_frozen());
    let pixels = image.to_vec::<f32>().unwrap();
    assert!(pixels.iter().enumerate().all(|(at, pixel)| *pixel == at as f32));
    let mut sum = 0.0;
    image
        .for_each_chunk::<f32>(|chunk| sum += chunk.iter().map(|p| f64::from(*p)).sum::<f64>())
        .unwrap();
    assert_eq!(sum, (0..150528).map(f64::from).sum::<f64>());
    // Memory that the sender can change gives no slice.
    assert_eq!(kind(image.as_slice::<f32>()), ErrorKind::Tensor(TensorFault::Unstable));
    // SAFETY: the sender has moved it away and cannot name it.
    assert_eq!(unsafe { image.as_slice_unchecked::<f32>() }.unwrap()[7], 7.0);
}

/// Asserts that a program that waits for another kind of message hears by which methods the next one comes.
fn is_of_another_kind<T: std::fmt::Debug>(answer: Result<T, slipring::Error>, methods: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OtherKind { .. }), "{error}");
    assert!(error.to_string().ends_with(methods), "{error}");
}

fn failed(error: TryRecvError) -> slipring::Error {
    match error {
        TryRecvError::Failed(error) => error,
        TryRecvError::Empty => panic!("it waits for more"),
    }
}

#[test]
fn a_message_of_another_kind_than_is_received_is_an_error_and_is_not_lost() {
    const TENSORS: &str = "receive it with `recv_tensor` or `recv_tensors`";
    let (mut near, mut far) = pair(small());
    let tensor = Tensor::from_slice([2], &[1, 2]).unwrap();
    let mut body = Vec::new();

    near.send_tensor(&tensor).unwrap();
    is_of_another_kind(far.recv(), TENSORS);
    is_of_another_kind(far.recv_request(), TENSORS);
    let receiver = far.receiver();
    is_of_another_kind(receiver.recv_deadline(soon()), TENSORS);
    is_of_another_kind(receiver.recv_into(&mut body), TENSORS);
    is_of_another_kind(receiver.recv_into_deadline(&mut body, soon()), TENSORS);
    is_of_another_kind(receiver.try_recv().map_err(failed), TENSORS);
    is_of_another_kind(receiver.try_recv_into(&mut body).map_err(failed), TENSORS);
    assert_eq!(far.recv_tensor().unwrap().unwrap().to_vec::<i32>().unwrap(), [1, 2]);

    near.send(b"plain").unwrap();
    is_of_another_kind(far.recv_tensor(), "receive it with `recv`");
    is_of_another_kind(far.receiver().recv_tensors(), "receive it with `recv`");
    is_of_another_kind(far.receiver().try_recv_tensor().map_err(failed), "with `recv`");
    is_of_another_kind(far.recv_request(), "receive it with `recv`");
    assert_eq!(far.recv().unwrap().unwrap(), b"plain");

    let id = near.submit(b"question").unwrap();
    is_of_another_kind(far.recv(), "receive it with `recv_request`");
    is_of_another_kind(far.recv_tensor(), "receive it with `recv_request`");
    let request = far.recv_request().unwrap().unwrap();

    // A wait for a response sets others aside, and a receive waits past a response. Both are found later.
    far.send_tensor(&tensor).unwrap();
    far.send(b"plain").unwrap();
    far.respond(request.id, b"answer").unwrap();
    far.send(b"behind it").unwrap();
    far.close().unwrap();
    assert_eq!(near.wait(id).unwrap(), b"answer");
    is_of_another_kind(near.recv(), TENSORS);
    is_of_another_kind(near.recv_request(), TENSORS);
    assert_eq!(near.recv_tensor().unwrap().unwrap().to_vec::<i32>().unwrap(), [1, 2]);
    is_of_another_kind(near.recv_tensor(), "receive it with `recv`");
    assert_eq!(near.recv().unwrap().unwrap(), b"plain");
    assert_eq!(near.recv().unwrap().unwrap(), b"behind it");
    assert_eq!(near.recv().unwrap(), None);
    assert!(near.recv_tensor().unwrap().is_none());
}

#[test]
fn a_response_that_comes_before_a_message_is_kept_for_its_wait() {
    let (mut near, mut far) = pair(small());
    let tensor = Tensor::from_slice([2], &[1, 2]).unwrap();
    let id = near.submit(b"question").unwrap();
    let request = far.recv_request().unwrap().unwrap();
    far.respond(request.id, b"answer").unwrap();
    far.send(b"plain").unwrap();
    far.send_tensor(&tensor).unwrap();
    assert_eq!(near.recv().unwrap().unwrap(), b"plain");
    assert!(near.recv_tensor().unwrap().is_some());
    assert_eq!(near.wait(id).unwrap(), b"answer");
}

#[test]
fn every_data_type_and_rank_arrives() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    for dtype in DType::ALL {
        for rank in 0..=8 {
            let dims = vec![2; rank];
            let shape = slipring::Shape::new(&dims).unwrap();
            let elements = shape.elements().unwrap();
            let len = dtype.size().map_or(5 * elements, |size| size * elements);
            let mut tensor = match dtype {
                DType::Bytes => context.allocation().encoded(shape, len).unwrap(),
                _ => context.allocation().dtype(dtype, shape).unwrap(),
            };
            let value =
                |at: usize| if dtype == DType::Bool { at as u8 % 2 } else { (at * 31) as u8 };
            tensor.iter_mut().enumerate().for_each(|(at, byte)| *byte = value(at));
            near.send_tensor(tensor).unwrap();
            let tensor = far.recv_tensor().unwrap().unwrap();
            assert_eq!((tensor.dtype(), tensor.shape().dims()), (dtype, &dims[..]));
            let expected: Vec<u8> = (0..len).map(value).collect();
            assert_eq!(tensor.bytes().unwrap().to_vec(), expected, "{dtype} {dims:?}");
        }
    }
}

#[test]
fn an_empty_tensor_and_a_scalar_arrive() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    near.send_tensor(context.alloc::<f64>([3, 0, 5]).unwrap()).unwrap();
    let mut scalar = context.alloc::<i64>([]).unwrap();
    scalar[0] = -5;
    near.send_tensor(scalar).unwrap();
    let empty = far.recv_tensor().unwrap().unwrap();
    assert_eq!((empty.shape().dims(), empty.byte_len()), (&[3, 0, 5][..], 0));
    assert!(empty.to_vec::<f64>().unwrap().is_empty());
    assert_eq!(far.recv_tensor().unwrap().unwrap().to_vec::<i64>().unwrap(), [-5]);
}

#[test]
fn memory_comes_back_when_the_receiver_drops_it() {
    let context = Context::with_options(small()).unwrap();
    let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
    for round in 0..50u8 {
        let mut tensor = context.allocation().until(soon()).typed::<u8>([4 << 20]).unwrap();
        tensor.fill(round);
        near.send_tensor(tensor).unwrap();
        let tensor = far.recv_tensor().unwrap().unwrap();
        assert_eq!(tensor.bytes().unwrap().byte(4 << 19), round);
        // While it is held the quota is spent.
        assert!(matches!(kind(context.alloc::<u8>([1])), ErrorKind::PoolExhausted { .. }));
    }
    drop(far);
    wait_until("the last loan's return", || context.alloc::<u8>([4 << 20]).is_ok());
}

#[test]
fn memory_that_is_waited_for_comes_or_the_deadline_does() {
    let context = Context::with_options(small()).unwrap();
    let held = context.alloc::<u8>([3 << 20]).unwrap();
    let soon_over = std::time::Instant::now() + std::time::Duration::from_millis(20);
    let late = context.allocation().until(soon_over).typed::<u8>([2 << 20]);
    assert!(matches!(kind(late), ErrorKind::TimedOut { .. }));
    let never = context.allocation().until(soon()).typed::<u8>([5 << 20]);
    assert!(matches!(kind(never), ErrorKind::PoolExhausted { .. }), "it could never fit");
    let dropping = thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(20));
        drop(held);
    });
    assert!(context.allocation().until(soon()).typed::<u8>([2 << 20]).is_ok());
    dropping.join().unwrap();
}

#[test]
fn one_tensor_goes_to_many_and_comes_back_after_the_last() {
    let context = Context::with_options(small()).unwrap();
    let mut links: Vec<(Connection, Connection)> =
        (0..5).map(|_| pair_of(&context, &Context::new().unwrap())).collect();
    let mut tensor = context.alloc::<u16>([2 << 20]).unwrap();
    tensor.fill(77);
    let tensor = tensor.share().unwrap();
    for (near, _) in &mut links {
        near.send_tensor(&tensor).unwrap();
        near.send_tensor(&tensor).unwrap();
    }
    assert_eq!(tensor.as_slice::<u16>().unwrap()[9], 77, "it is read here, too");
    drop(tensor);
    let mut held: Vec<Tensor> = Vec::new();
    for (_, far) in &mut links {
        held.push(far.recv_tensor().unwrap().unwrap());
        held.push(far.recv_tensor().unwrap().unwrap());
    }
    while let Some(tensor) = held.pop() {
        assert_eq!(tensor.bytes().unwrap().byte(100), 77);
        assert!(matches!(kind(context.alloc::<u8>([4 << 20])), ErrorKind::PoolExhausted { .. }));
    }
    assert!(context.alloc::<u8>([4 << 20]).is_ok());
}

#[test]
fn a_set_arrives_with_its_names_and_order() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let mut set = TensorSet::new();
    let mut pixels = context.alloc::<bf16>([2, 1000]).unwrap();
    pixels.fill(bf16::from_f32(1.5));
    set.insert("pixels", pixels.share().unwrap()).unwrap();
    set.insert("ids", Tensor::from_slice([3], &[1i32, -2, 3]).unwrap()).unwrap();
    set.push(Tensor::from_slice([5000], &[9u8; 5000]).unwrap());
    set.push(context.alloc_frozen::<f64>([4]).unwrap().share().unwrap());
    near.sender().send_tensors(&set).unwrap();
    let set = far.receiver().recv_tensors().unwrap().unwrap();
    assert_eq!(set.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["pixels", "ids", "", ""]);
    assert_eq!(set["pixels"].to_vec::<bf16>().unwrap(), [bf16::from_f32(1.5); 2000]);
    assert_eq!(set["ids"].as_slice::<i32>().unwrap(), [1, -2, 3]);
    assert_eq!(set.at(2).unwrap().to_vec::<u8>().unwrap(), [9; 5000]);
    assert_eq!(set.at(3).unwrap().as_slice::<f64>().unwrap(), [0.0; 4]);
    assert!(set.get("nobody").is_none());
}

#[test]
fn a_set_is_full_at_some_point_and_says_so() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let shared = context.alloc::<u8>([8]).unwrap().share().unwrap();
    let mut set = TensorSet::new();
    near.send_tensor(&shared).unwrap();
    assert_eq!(far.receiver().recv_tensors().unwrap().unwrap().len(), 1);
    near.sender().send_tensors(&set).unwrap();
    assert!(far.receiver().recv_tensors().unwrap().unwrap().is_empty());
    for _ in 0..256 {
        set.push(context.alloc::<u8>([8]).unwrap().share().unwrap());
    }
    let fault = TensorFault::Count { count: 256, expected: 255 };
    assert_eq!(kind(near.sender().send_tensors(&set)), ErrorKind::Tensor(fault));
    let twice = set.insert("a", Tensor::from_slice([1], &[1u8]).unwrap());
    twice.unwrap();
    let same = set.insert("a", Tensor::from_slice([1], &[1u8]).unwrap());
    assert_eq!(kind(same), ErrorKind::Tensor(TensorFault::SameName { first: 256, second: 257 }));
}

#[test]
fn a_description_in_the_pool_counts_as_no_tensor() {
    let options = |slots| Options::new().ring_capacity(1 << 15).loan_slots(slots);
    for (slots, fits) in [(1024, 254), (8, 7)] {
        let context = Context::with_options(options(slots)).unwrap();
        let (mut near, mut far) = pair_of(&context, &context);
        let mut set = TensorSet::new();
        for at in 0..fits {
            let tensor = context.alloc::<u8>([8]).unwrap().share().unwrap();
            set.insert(&format!("{at:0200}"), tensor).unwrap();
        }
        for at in 0..300 {
            let inline = Tensor::from_slice([1], &[1u8]).unwrap();
            set.insert(&format!("{at:0201}"), inline).unwrap();
        }
        near.sender().send_tensors(&set).unwrap();
        let came = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
        assert_eq!(came.len(), fits + 300);
        drop(came);
        set.push(context.alloc::<u8>([8]).unwrap().share().unwrap());
        let fault = TensorFault::Count { count: fits + 1, expected: fits };
        assert_eq!(kind(near.sender().send_tensors(&set)), ErrorKind::Tensor(fault));
    }
}

#[test]
fn a_set_of_20000_tensors_arrives_whose_description_no_ring_has_room_for() {
    // Room for the one that is set aside.
    let context = Context::with_options(Options::new().backlog_limit(64 << 20)).unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let name = |at: u32| format!("{}.weight.{at}", "layer".repeat(20));
    let mut set = TensorSet::new();
    for at in 0..20_000u32 {
        set.insert(&name(at), Tensor::from_slice([1], &[at]).unwrap()).unwrap();
    }
    let mut large = context.alloc::<u32>([5000]).unwrap();
    large.fill(7);
    set.insert("large", large.share().unwrap()).unwrap();
    set.set_metadata(slipring::meta! { "step" => 3 }.unwrap());
    near.sender().send_tensors(&set).unwrap();
    // It is set aside, too.
    near.sender().send_tensors(&set).unwrap();
    let id = far.submit(b"question").unwrap();
    let waited = far.try_wait(id);
    assert!(matches!(waited, Err(TryRecvError::Empty)), "{waited:?}");
    for _ in 0..2 {
        let came = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
        assert_eq!((came.len(), came.metadata()), (20_001, set.metadata()));
        for at in [0, 9, 19_999] {
            assert_eq!(came[&*name(at)].to_vec::<u32>().unwrap(), [at]);
        }
        assert_eq!(came["large"].to_vec::<u32>().unwrap(), [7; 5000]);
    }
    for at in set.len()..32_769 {
        set.push(Tensor::from_slice([1], &[at as u32]).unwrap());
    }
    let fault = TensorFault::Count { count: 32_769, expected: 32_768 };
    assert_eq!(kind(near.sender().send_tensors(&set)), ErrorKind::Tensor(fault));
}

#[test]
fn messages_and_tensors_do_not_mix_themselves_up() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    for round in 0..3u64 {
        near.send_tensor(Tensor::from_slice([1], &[round]).unwrap()).unwrap();
        near.send(format!("message {round}").as_bytes()).unwrap();
        let mut lent = context.alloc::<u64>([1000]).unwrap();
        lent.fill(round);
        near.send_tensor(lent).unwrap();
    }
    for round in 0..3u64 {
        assert_eq!(far.recv_tensor().unwrap().unwrap().to_vec::<u64>().unwrap(), [round]);
        assert_eq!(far.recv().unwrap().unwrap(), format!("message {round}").into_bytes());
        assert_eq!(far.recv_tensor().unwrap().unwrap().to_vec::<u64>().unwrap(), [round; 1000]);
    }
    assert!(matches!(far.receiver().try_recv_tensor(), Err(TryRecvError::Empty)));
    near.send(b"plain").unwrap();
    is_of_another_kind(far.receiver().try_recv_tensor().map_err(failed), "with `recv`");
    assert_eq!(far.recv().unwrap().unwrap(), b"plain");
    let mut two = TensorSet::new();
    two.push(Tensor::from_slice([1], &[1u8]).unwrap());
    two.push(context.alloc::<u8>([9999]).unwrap().share().unwrap());
    near.sender().send_tensors(&two).unwrap();
    let fault = TensorFault::Count { count: 2, expected: 1 };
    assert_eq!(kind(far.recv_tensor()), ErrorKind::Tensor(fault));
    near.send(b"goes on").unwrap();
    assert_eq!(far.recv().unwrap().unwrap(), b"goes on");
}

#[test]
fn a_frozen_tensor_is_a_slice_everywhere_and_is_sent_on() {
    other::alone("a_frozen_tensor_is_a_slice_everywhere_and_is_sent_on", || {
        let census = Census::take();
        let (first, second, third) =
            (Context::new().unwrap(), Context::new().unwrap(), Context::new().unwrap());
        {
            let (mut one, mut two) = pair_of(&first, &second);
            let (mut two_on, mut three) = pair_of(&second, &third);
            let mut weights = first.alloc_frozen::<f32>([1000]).unwrap();
            weights.iter_mut().enumerate().for_each(|(at, weight)| *weight = at as f32);
            let weights = weights.share().unwrap();
            assert_eq!(weights.as_slice::<f32>().unwrap()[999], 999.0);
            one.send_tensor(&weights).unwrap();
            drop(weights);
            let there = two.recv_tensor().unwrap().unwrap();
            assert!(there.is_frozen());
            two_on.send_tensor(&there).unwrap();
            assert_eq!(second.pool_bytes(), 0, "nothing was copied");
            drop((there, one, two));
            let last = three.recv_tensor().unwrap().unwrap();
            drop((two_on, three));
            // All who held it before are gone.
            assert_eq!(last.as_slice::<f32>().unwrap()[500], 500.0);
        }
        drop((first, second, third));
        census.comes_back();
    });
}

#[test]
fn a_loaned_tensor_is_sent_on_by_copy() {
    let (first, second) = (Context::new().unwrap(), Context::new().unwrap());
    let (mut one, mut two) = pair_of(&first, &second);
    let (mut two_on, mut three) = pair_of(&second, &Context::new().unwrap());
    let mut tensor = first.alloc::<u32>([5000]).unwrap();
    tensor.fill(0xABCD);
    one.send_tensor(tensor).unwrap();
    let there = two.recv_tensor().unwrap().unwrap();
    two_on.send_tensor(&there).unwrap();
    assert!(second.pool_bytes() > 0);
    drop((one, two, there));
    assert_eq!(three.recv_tensor().unwrap().unwrap().to_vec::<u32>().unwrap(), [0xABCD; 5000]);
}

#[test]
fn a_trusted_peer_lends_slices() {
    let context = Context::new().unwrap();
    let (mut near, far) = pair_of(&context, &context);
    // SAFETY: the peer is this test, which keeps no pointer.
    let mut far = unsafe { far.trust() };
    let mut tensor = context.alloc::<i16>([300]).unwrap();
    tensor.fill(-3);
    near.send_tensor(tensor).unwrap();
    assert_eq!(far.recv_tensor().unwrap().unwrap().as_slice::<i16>().unwrap(), [-3; 300]);
}

#[test]
fn what_nobody_receives_comes_back() {
    let context = Context::with_options(small()).unwrap();
    let (mut near, far) = pair_of(&context, &Context::new().unwrap());
    near.send_tensor(context.alloc::<u8>([2 << 20]).unwrap()).unwrap();
    near.send_tensor(context.alloc::<u8>([2 << 20]).unwrap()).unwrap();
    drop(far);
    wait_until("the return", || context.alloc::<u8>([4 << 20]).is_ok());
}

#[test]
fn tensors_outlive_their_sender() {
    let name = unique_name();
    let mut sender = Other::start("tensors_outlive_their_sender", &name, |name| {
        let context = Context::new().unwrap();
        let mut link = context.connect(name).unwrap();
        let mut tensor = context.alloc::<u64>([100_000]).unwrap();
        tensor.iter_mut().enumerate().for_each(|(at, word)| *word = at as u64 * 3);
        link.send_tensor(tensor).unwrap();
        other::say("sent");
        other::wait_for_death();
    });
    let mut listener = Context::new().unwrap().listen(&name).unwrap();
    let mut link = listener.accept().unwrap();
    let tensor = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
    sender.expect("sent");
    sender.kill();
    sender.wait();
    assert_eq!(kind(link.recv_tensor()), ErrorKind::PeerDied);
    drop(link);
    let words = tensor.to_vec::<u64>().unwrap();
    assert!(words.iter().enumerate().all(|(at, word)| *word == at as u64 * 3));
}

#[test]
fn loans_come_back_when_the_receiver_dies() {
    let name = unique_name();
    let context = Context::with_options(small()).unwrap();
    let mut listener = context.listen(&name).unwrap();
    for _ in 0..3 {
        let mut receiver = Other::start("loans_come_back_when_the_receiver_dies", &name, |name| {
            let mut link = Context::new().unwrap().connect(name).unwrap();
            let _held = link.recv_tensor().unwrap().unwrap();
            other::say("held");
            other::wait_for_death();
        });
        let mut link = listener.accept().unwrap();
        let tensor = context.allocation().until(soon()).typed::<u8>([4 << 20]).unwrap();
        link.send_tensor(tensor).unwrap();
        receiver.expect("held");
        assert!(context.alloc::<u8>([4 << 20]).is_err());
        receiver.kill();
        receiver.wait();
    }
    assert!(context.allocation().until(soon()).typed::<u8>([4 << 20]).is_ok());
}

#[test]
fn a_quota_of_slots_ends_with_an_answer_and_a_drop_makes_room() {
    let (mut near, mut far) = pair_with(Options::new(), Options::new().loan_slots(4));
    let context = Context::new().unwrap();
    let tensor = context.alloc::<u8>([100]).unwrap().share().unwrap();
    // Of another context: each is a copy, inline.
    (0..20).for_each(|_| near.sender().try_send_tensor(&tensor).unwrap());
    (0..20).for_each(|_| drop(far.recv_tensor().unwrap()));
    drop((near, far));
    let (mut near, mut far) = pair(Options::new().loan_slots(4));
    let own = Tensor::from_slice([9000], &[7u8; 9000]).unwrap();
    let mut sent = 0;
    while near.sender().try_send_tensor(&own).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 4);
    let held = far.recv_tensor().unwrap().unwrap();
    assert!(near.sender().try_send_tensor(&own).is_err());
    drop(held);
    near.sender().try_send_tensor(&own).unwrap();
}

#[test]
fn a_tensor_in_a_region_travels_by_its_name() {
    let key = unique_name();
    let shared = PosixShm::create(&key, 8192).unwrap();
    let (here, there) = (Registry::new().unwrap(), Registry::new().unwrap());
    here.register("frames", Source::Posix(&key), 4096, 4096).unwrap();
    there.register("frames", Source::Posix(&key), 4096, 4096).unwrap();
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let lease = here.lease("frames", 64, 400).unwrap();
    lease.write_at(0, &[7; 400]).unwrap();
    let tensor = Tensor::in_region(lease, DType::Fp32, [10, 10]).unwrap();
    near.send_tensor(&tensor).unwrap();
    let mut set = TensorSet::new();
    set.insert("frame", tensor).unwrap();
    near.sender().send_tensors(&set).unwrap();
    assert_eq!(context.pool_bytes(), 0, "nothing was copied");
    let one = far.recv_tensor().unwrap().unwrap();
    assert_eq!((one.region(), one.byte_len()), (Some("frames"), 400));
    assert_eq!(kind(one.to_vec::<f32>()), ErrorKind::Tensor(TensorFault::Unresolved));
    let one = one.resolve(&there).unwrap();
    let set = far.receiver().recv_tensors().unwrap().unwrap().resolve(&there).unwrap();
    for tensor in [&one, &set["frame"]] {
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [f32::from_ne_bytes([7; 4]); 100]);
        let mut seen = 0;
        tensor.for_each_chunk::<f32>(|chunk| seen += chunk.len()).unwrap();
        assert_eq!(seen, 100);
        assert!(tensor.as_bytes().is_err() && tensor.bytes().is_err(), "its owner can truncate it");
    }
    // Its owner does.
    let copy = one.to_private().unwrap();
    rustix::fs::ftruncate(&shared, 4096).unwrap();
    assert!(matches!(kind(one.to_vec::<f32>()), ErrorKind::Region(_)));
    assert!(matches!(kind(one.for_each_chunk::<f32>(|_| {})), ErrorKind::Region(_)));
    assert!(matches!(kind(one.to_private()), ErrorKind::Region(_)));
    assert_eq!(copy.as_bytes().unwrap(), [7; 400]);
    // A shape that does not fit is refused.
    let lease = here.lease("frames", 0, 16).unwrap();
    assert!(Tensor::in_region(lease, DType::Fp32, [5]).is_err());
}

#[test]
fn what_never_fits_is_refused_at_once() {
    let context = Context::with_options(small()).unwrap();
    let (mut near, _far) = pair_of(&context, &context);
    let private = |len: usize| Tensor::from_slice([len], &vec![1u8; len]).unwrap();
    let mut set = TensorSet::new();
    (0..3).for_each(|_| set.push(private(2 << 20)));
    assert!(matches!(kind(near.sender().send_tensors(&set)), ErrorKind::PoolExhausted { .. }));
    let (mut near, _far) = pair(Options::new().loan_slots(4));
    let mut set = TensorSet::new();
    (0..5).for_each(|_| set.push(private(9000)));
    let fault = TensorFault::Count { count: 5, expected: 4 };
    assert_eq!(kind(near.sender().send_tensors(&set)), ErrorKind::Tensor(fault));
    // All of them together are more than the receiver maps.
    let (mut near, _far) = pair_with(Options::new(), Options::new().peer_pool_limit(4 << 20));
    let context = Context::new().unwrap();
    let mut set = TensorSet::new();
    for _ in 0..3 {
        set.push(context.alloc_frozen::<u8>([2 << 20]).unwrap().share().unwrap());
    }
    assert!(matches!(kind(near.sender().send_tensors(&set)), ErrorKind::PoolExhausted { .. }));
    near.send(b"goes on").unwrap();
}

/// Asserts that a send without patience fails for ever, and does not say that there is no room now.
fn never_fits(answer: Result<(), TrySendError>) {
    let error = answer.unwrap_err();
    let TrySendError::Failed(error) = error else { panic!("{error}") };
    assert!(matches!(error.kind(), ErrorKind::PoolExhausted { .. }), "{error}");
}

#[test]
fn what_never_fits_is_refused_at_once_while_the_peer_keeps_a_loan() {
    let context = Context::with_options(Options::new().pool_quota(4 << 20)).unwrap();
    let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
    let private = |len: usize| Tensor::from_slice([len], &vec![1u8; len]).unwrap();
    near.send_tensor(context.alloc::<u8>([1 << 20]).unwrap()).unwrap();
    let held = far.recv_tensor().unwrap().unwrap();
    never_fits(near.sender().try_send_tensor(&private(5 << 20)));
    drop(held);
}

#[test]
fn what_fits_only_without_the_rounding_of_blocks_is_refused_at_once() {
    let context = Context::with_options(Options::new().pool_quota(70_000)).unwrap();
    let (mut near, _far) = pair_of(&context, &Context::new().unwrap());
    let message = vec![1u8; 69_000];
    never_fits(near.sender().try_send(&message));
    never_fits(near.sender().try_send_tensor(&Tensor::from_slice([69_000], &message).unwrap()));
    assert!(matches!(kind(context.alloc::<u8>([69_000])), ErrorKind::PoolExhausted { .. }));
}

#[test]
fn a_set_whose_blocks_and_copies_never_fit_together_is_refused_at_once() {
    let context = Context::with_options(small()).unwrap();
    let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
    let copied = || Tensor::from_slice([2 << 20], &vec![1u8; 2 << 20]).unwrap();
    let block = |len| context.alloc::<u8>([len]).unwrap().share().unwrap();
    let (mut fits, mut never) = (TensorSet::new(), TensorSet::new());
    never.push(block(3 << 20));
    never.push(copied());
    never_fits(near.sender().try_send_tensors(&never));
    drop(never);
    let twice = block(2 << 20);
    [twice.try_clone().unwrap(), twice, copied()].into_iter().for_each(|each| fits.push(each));
    near.sender().try_send_tensors(&fits).unwrap();
    assert_eq!(far.receiver().recv_tensors().unwrap().unwrap().len(), 3);
}

#[test]
fn a_set_keeps_all_its_segments_where_few_are_mapped() {
    let context = Context::new().unwrap();
    let few = Context::with_options(Options::new().peer_pool_limit(2 << 20)).unwrap();
    let (mut near, mut far) = pair_of(&context, &few);
    let frozen = |value: usize| {
        let mut tensor = context.alloc_frozen::<u8>([1 << 20]).unwrap();
        tensor.fill(value as u8);
        tensor.share().unwrap()
    };
    let tensors: Vec<Tensor> = (0..4).map(frozen).collect();
    // One of the two that are mapped makes way for another, but not the one that goes with it.
    for places in [[0, 1], [0, 2], [2, 0], [1, 2], [3, 0], [0, 1]] {
        let mut set = TensorSet::new();
        for place in places {
            near.send_tensor(&tensors[place]).unwrap();
            let there = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            assert_eq!(usize::from(there.bytes().unwrap().byte(50)), place);
            set.push(frozen(place));
        }
        near.sender().send_tensors(&set).unwrap();
        let there = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
        let values = there.iter().map(|(_, tensor)| usize::from(tensor.bytes().unwrap().byte(50)));
        assert_eq!(values.collect::<Vec<_>>(), places);
        // The first one stays mapped, the second one makes way.
        let mut half = TensorSet::new();
        half.push(set.into_iter().next().unwrap().1);
        half.push(frozen(9));
        near.sender().send_tensors(&half).unwrap();
        let there = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
        let values = there.iter().map(|(_, tensor)| usize::from(tensor.bytes().unwrap().byte(50)));
        assert_eq!(values.collect::<Vec<_>>(), [places[0], 9]);
    }
}

#[test]
fn frozen_tensors_that_are_gone_here_are_still_received() {
    let context = Context::new().unwrap();
    let (mut near, mut far) =
        pair_of(&context, &Context::with_options(Options::new().ring_capacity(4096)).unwrap());
    for value in 0..10u8 {
        let mut tensor = context.alloc_frozen::<u8>([5000]).unwrap();
        tensor.fill(value);
        near.send_tensor(tensor).unwrap();
        // The receiver takes everything from its socket, for want of room for what it sends itself.
        assert!(far.as_fd().try_clone_to_owned().is_ok());
        while far.sender().try_send(&[0; 500]).is_ok() {}
    }
    for value in 0..10 {
        let tensor = far.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        assert_eq!(tensor.as_slice::<u8>().unwrap(), [value; 5000]);
    }
}

#[test]
fn frozen_tensors_that_were_dropped_before_they_are_read_arrive() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
    for round in 0..5 {
        for value in 0..100u32 {
            let mut frozen = context.alloc_frozen::<u32>([1000]).unwrap();
            frozen.fill(round * 100 + value);
            near.send_tensor(frozen.share().unwrap()).unwrap();
        }
        for value in 0..100u32 {
            let tensor = far.recv_tensor().unwrap().unwrap();
            assert_eq!(tensor.as_slice::<u32>().unwrap(), [round * 100 + value; 1000]);
        }
    }
}

#[test]
fn two_that_wait_for_memory_do_not_keep_it_from_each_other() {
    let context = Context::with_options(small()).unwrap();
    let held = context.alloc::<u8>([2 << 20]).unwrap();
    thread::scope(|scope| {
        for value in [1u8, 2] {
            let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
            scope.spawn(move || {
                // The first one would fit at once, both do not before the other link is done.
                let mut set = TensorSet::new();
                for len in [1 << 20, 5 << 19] {
                    set.push(Tensor::from_slice([len], &vec![value; len]).unwrap());
                }
                near.sender().send_tensors_deadline(&set, soon()).unwrap();
                drop(near);
            });
            scope.spawn(move || {
                let set = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
                assert_eq!(set.at(1).unwrap().to_vec::<u8>().unwrap(), vec![value; 5 << 19]);
            });
        }
        // Both have tried by now, or this says less.
        thread::sleep(std::time::Duration::from_millis(50));
        drop(held);
    });
}

#[test]
fn bytes_of_a_sealed_region_are_lines_where_they_are_aligned() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("sealed", flags).unwrap();
    let none = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&fd, none, 0, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK).unwrap();
    let registry = Registry::new().unwrap();
    registry.register("sealed", Source::Memfd(fd.as_fd()), 0, 4096).unwrap();
    for (offset, aligned) in [(0, true), (64, true), (8, true), (1, false), (4, false)] {
        let lease = registry.lease("sealed", offset, 256).unwrap();
        let tensor = Tensor::in_region(lease, DType::Uint8, [256]).unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), [0; 256], "copies start anywhere");
        if aligned {
            assert_eq!(tensor.bytes().unwrap().lines().count(), 4);
        } else {
            let fault = TensorFault::Alignment { alignment: 8 };
            assert_eq!(kind(tensor.bytes()), ErrorKind::Tensor(fault));
        }
    }
}

#[test]
fn a_thousand_frozen_tensors_share_one_piece_of_memory() {
    let (context, other) = (Context::new().unwrap(), Context::new().unwrap());
    let (mut near, mut far) = pair_of(&context, &other);
    let names: Vec<String> = (0..1000).map(|number| format!("layer.{number}")).collect();
    let values: Vec<Vec<u8>> =
        (0..1000).map(|number| vec![number as u8; 1 + number % 70]).collect();
    let parts = names.iter().zip(&values).map(|(name, bytes)| {
        (&**name, DType::Uint8, slipring::Shape::from([bytes.len()]), &**bytes)
    });
    let weights = context.freeze(parts).unwrap();
    assert_eq!(weights.len(), 1000);
    let mut there = Vec::new();
    let all: Vec<_> = weights.iter().collect();
    for part in all.chunks(200) {
        let mut set = TensorSet::new();
        for (name, tensor) in part {
            set.insert(name, tensor.try_clone().unwrap()).unwrap();
        }
        near.sender().send_tensors(&set).unwrap();
        there.extend(far.receiver().recv_tensors().unwrap().unwrap());
    }
    assert!(context.pool_bytes() < 128 << 10, "{} bytes", context.pool_bytes());
    for ((name, tensor), (expected, value)) in there.iter().zip(names.iter().zip(&values)) {
        assert_eq!((&**name, tensor.as_slice::<u8>().unwrap()), (&**expected, &**value));
    }
}

#[test]
fn bytes_without_elements_are_refused_where_they_are_asked_for() {
    let context = Context::new().unwrap();
    let none = context.allocation().encoded([0], 10);
    assert_eq!(kind(none), ErrorKind::Tensor(TensorFault::Len { len: 10, expected: 0 }));
}

#[test]
fn a_copy_that_waits_for_a_slot_is_not_made_again_and_again() {
    let (mut near, far) = pair(Options::new().loan_slots(1));
    let long = Tensor::from_slice([64 << 20], &vec![1u8; 64 << 20]).unwrap();
    let context = Context::new().unwrap();
    near.sender().try_send_tensor(&Tensor::from_slice([600], &[0u8; 600]).unwrap()).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..1000 {
        assert!(near.sender().try_send_tensor(&long).is_err());
    }
    // A thousand copies take ten seconds and more.
    assert!(start.elapsed() < std::time::Duration::from_secs(5), "{:?}", start.elapsed());
    drop((far, context));
}

#[test]
fn a_steady_exchange_makes_no_system_call() {
    let mut quiet = Other::start("a_steady_exchange_makes_no_system_call", "", |_| {
        let (done, told) = std::io::pipe().unwrap();
        thread::spawn(move || {
            // A pool that does not grow where the peer's core seems far.
            let steady = Options::new().pool_footprint(1 << 20).pool_far_footprint(1 << 20);
            let context = Context::with_options(steady).unwrap();
            let (mut near, mut far) = pair_of(&context, &Context::new().unwrap());
            let shared = context.alloc::<u8>([1 << 20]).unwrap().share().unwrap();
            let mut round = |number: u64| {
                let mut fresh = context.alloc::<u64>([512]).unwrap();
                fresh[511] = number;
                near.send_tensor(fresh).unwrap();
                near.sender().try_send_tensor(&shared).unwrap();
                near.send(&number.to_ne_bytes()).unwrap();
                let fresh = far.recv_tensor().unwrap().unwrap();
                assert_eq!(fresh.bytes().unwrap().slice(511 * 8, 8).byte(0), number as u8);
                drop(far.recv_tensor().unwrap().unwrap());
                let mut message = [0; 8];
                let received = far.receiver().peek().unwrap().unwrap();
                received.bytes().copy_to(&mut message);
                received.release().unwrap();
                assert_eq!(u64::from_ne_bytes(message), number);
            };
            (0..10_000).for_each(&mut round);
            crate::support::quiet::only_writes();
            (0..100_000).for_each(&mut round);
            crate::support::quiet::end(&told)
        });
        (&done).read_exact(&mut [0; 1]).unwrap();
        other::say("quiet");
    });
    quiet.expect("quiet");
    quiet.succeeds();
}
