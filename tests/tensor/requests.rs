//! Requests and responses carry tensors: several in flight, in any order, beside plain ones, blocking, on a reactor and on
//! a runtime.

use std::sync::mpsc;

use slipring::error::{Fault, TensorFault, TryRecvError};
use slipring::message::{MessageKind, Response, TensorRequest};
use slipring::{Context, Error, ErrorKind, Link, Options, Reactor, Tensor, TensorSet, meta};

use crate::support::raw::{self, Lent};
use crate::support::{HANG, Stage, fault, pair, pair_of, soon};

/// A set with one tensor on loan, one within the record, and metadata.
fn set(context: &Context, number: i32) -> TensorSet {
    let mut lent = context.alloc::<i32>([1000]).unwrap();
    lent.fill(number);
    let mut set = TensorSet::new();
    set.insert("lent", lent.share().unwrap()).unwrap();
    set.insert("inline", Tensor::from_slice([1], &[number]).unwrap()).unwrap();
    set.set_metadata(meta! { "number" => number }.unwrap());
    set
}

fn check(set: &TensorSet, number: i32) {
    assert_eq!(set.metadata(), &meta! { "number" => number }.unwrap());
    assert_eq!(set["lent"].to_vec::<i32>().unwrap(), [number; 1000]);
    assert_eq!(set["inline"].to_vec::<i32>().unwrap(), [number]);
}

fn is_other_kind<T: std::fmt::Debug>(answer: Result<T, Error>, method: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OtherKind { .. }), "{error}");
    assert!(error.to_string().contains(method), "{error}");
}

#[test]
fn requests_with_tensors_are_answered_in_any_order_beside_plain_ones() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    for _ in 0..3 {
        let tensors = [1, 2, 3].map(|number| near.submit_tensors(&set(&context, number)).unwrap());
        let plain = near.submit(b"plain").unwrap();
        assert!(matches!(near.try_wait_tensors(tensors[0]), Err(TryRecvError::Empty)));
        let mut asked = Vec::new();
        for number in 1..=3 {
            let TensorRequest { id, tensors } = far.recv_tensor_request().unwrap().unwrap();
            check(&tensors, number);
            asked.push((id, number));
        }
        let request = far.recv_request().unwrap().unwrap();
        far.respond(request.id, b"answer").unwrap();
        far.send(b"between").unwrap();
        for (id, number) in asked.into_iter().rev() {
            far.respond_tensors(id, &set(&context, 10 * number)).unwrap();
        }
        for (id, number) in tensors.into_iter().zip(1..) {
            check(&near.wait_tensors(id).unwrap(), 10 * number);
            let again = near.wait_tensors(id).unwrap_err();
            assert!(matches!(again.kind(), ErrorKind::UnknownRequest { .. }), "{again}");
        }
        assert_eq!(near.wait(plain).unwrap(), b"answer");
        assert_eq!(near.recv().unwrap().unwrap(), b"between");
    }
    assert_eq!((near.stats().loans_out, far.stats().loans_out), (0, 0));
}

#[test]
fn a_response_of_the_other_sort_is_an_error_and_not_lost() {
    let (mut near, mut far) = pair(Options::new());
    let context = Context::new().unwrap();
    let (bytes, tensors) =
        (near.submit(b"1").unwrap(), near.submit_tensors(&TensorSet::new()).unwrap());
    let (late, abandoned) = (near.submit(b"2").unwrap(), near.submit(b"3").unwrap());
    is_other_kind(far.recv_tensor_request(), "recv_request");
    let first = far.recv_request().unwrap().unwrap();
    is_other_kind(far.recv_request(), "recv_tensor_request");
    is_other_kind(far.recv(), "recv_tensor_request");
    is_other_kind(far.receiver().recv_tensors(), "recv_tensor_request");
    let second = far.recv_tensor_request().unwrap().unwrap();
    far.respond_tensors(first.id, &set(&context, 7)).unwrap();
    far.respond(second.id, b"bytes").unwrap();
    // One stands in the ring, and then in the backlog.
    for _ in 0..2 {
        is_other_kind(near.wait(bytes), "wait_tensors");
        is_other_kind(near.wait_tensors(tensors), "wait`");
    }
    check(&near.wait_tensors(bytes).unwrap(), 7);
    assert_eq!(near.wait(tensors).unwrap(), b"bytes");
    // An abandoned one is dropped, with its loans.
    let [third, fourth] = [(); 2].map(|()| far.recv_request().unwrap().unwrap());
    far.respond_tensors(third.id, &set(&context, 8)).unwrap();
    far.respond_tensors(fourth.id, &set(&context, 9)).unwrap();
    is_other_kind(near.wait(late), "wait_tensors");
    near.abandon(late);
    near.abandon(abandoned);
    far.send(b"behind").unwrap();
    assert_eq!(near.recv().unwrap().unwrap(), b"behind");
    assert_eq!(near.stats().loans_held, 0);
}

#[test]
fn one_of_several_responses_is_received_whichever_comes_and_whatever_was_set_aside() {
    let (mut near, mut far) = pair(Options::new());
    let context = Context::new().unwrap();
    let other = near.submit(b"other").unwrap();
    let plain = [b"0", b"1"].map(|body| near.submit(body).unwrap());
    let tensors = near.submit_tensors(&TensorSet::new()).unwrap();
    let any = [plain[0], plain[1], tensors];
    assert!(matches!(near.try_wait_any(&any), Err(TryRecvError::Empty)));
    far.respond_tensors(tensors, &set(&context, 7)).unwrap();
    far.respond(other, b"other").unwrap();
    far.submit(b"question").unwrap();
    far.respond(plain[1], b"1").unwrap();
    // A receive of a request sets the responses before it aside.
    let asked = near.receiver().try_recv_request().unwrap().unwrap();
    assert_eq!(asked.body, b"question");
    let (id, response) = near.try_wait_any(&any).unwrap();
    assert_eq!(id, tensors);
    assert!(matches!(response, Response::Tensors(tensors) if tensors.len() == 2));
    let (id, response) = near.try_wait_any(&any).unwrap();
    assert_eq!(id, plain[1]);
    assert!(matches!(response, Response::Bytes(body, _) if body == b"1"));
    assert!(matches!(near.try_wait_any(&any), Err(TryRecvError::Empty)));
    assert_eq!(near.wait(other).unwrap(), b"other");
    far.respond(plain[0], b"0").unwrap();
    far.close().unwrap();
    assert_eq!(near.try_wait_any(&any).unwrap().0, plain[0]);
    let error = near.try_wait_any(&any).unwrap_err();
    assert!(matches!(error, TryRecvError::Failed(error) if *error.kind() == ErrorKind::PeerClosed));
    assert_eq!(near.stats().loans_held, 0);
}

#[test]
fn a_request_with_tensors_can_be_peeked_at() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    for taken in [true, false] {
        let id = near.submit_tensors(&set(&context, 7)).unwrap();
        let received = far.receiver().peek().unwrap().unwrap();
        assert_eq!(received.kind(), MessageKind::TensorRequest(id));
        assert_eq!(received.metadata().len(), 1);
        match taken {
            true => check(&received.into_tensors().unwrap(), 7),
            false => received.release().unwrap(),
        }
        far.respond_tensors(id, &set(&context, 8)).unwrap();
        let received = near.receiver().peek().unwrap().unwrap();
        assert_eq!(received.kind(), MessageKind::TensorResponse(id));
        match taken {
            true => check(&received.into_tensors().unwrap(), 8),
            false => received.release().unwrap(),
        }
        let gone = near.wait_tensors(id).unwrap_err();
        assert!(matches!(gone.kind(), ErrorKind::UnknownRequest { .. }), "{gone}");
    }
    assert_eq!((near.stats().loans_held, far.stats().loans_held), (0, 0));
}

#[test]
fn a_call_with_tensors_ends_with_the_peer_or_at_its_deadline() {
    let (mut near, mut far) = pair(Options::new());
    let late =
        near.call_tensors_deadline(&TensorSet::new(), std::time::Instant::now()).unwrap_err();
    assert!(late.is_timeout(), "{late}");
    let request = far.recv_tensor_request().unwrap().unwrap();
    far.respond_tensors(request.id, &TensorSet::new()).unwrap();
    let open = near.submit_tensors(&TensorSet::new()).unwrap();
    far.close().unwrap();
    let closed = near.wait_tensors(open).unwrap_err();
    assert_eq!(*closed.kind(), ErrorKind::PeerClosed);
}

#[test]
fn each_lie_about_a_request_with_tensors_is_a_fault() {
    const REQUEST: u64 = 8 | 1 << 24;
    const RESPONSE: u64 = 9 | 1 << 24;
    let header =
        |kind: u64, len: usize| Fault::RecordHeader { header: raw::header(kind, len as u64) };
    let lent = Lent { segment: 0, slot: 0, offset: 0, len: 4, generation: 1 };
    let tensor = [&[8, 0, 0, 0][..]].concat();
    let lies = [
        (REQUEST, vec![0; 7], header(REQUEST, 7)),
        (8, vec![0; 8], header(8, 8)),
        (REQUEST | 1 << 16, vec![0; 39], header(REQUEST | 1 << 16, 39)),
        (REQUEST | raw::POOLED, vec![0; 40], header(REQUEST | raw::POOLED, 40)),
        (RESPONSE, vec![5; 8], Fault::UnknownRequest { id: 0x0505_0505_0505_0505 }),
        (10 | 1 << 24, vec![0; 8], header(10 | 1 << 24, 8)),
        (
            REQUEST | 1 << 16,
            [vec![0; 8], lent.encode()].concat(),
            Fault::Tensor(TensorFault::Count { count: 1, expected: 0 }),
        ),
        (
            REQUEST,
            [vec![0; 8], tensor.clone()].concat(),
            Fault::Tensor(TensorFault::Count { count: 1, expected: 0 }),
        ),
    ];
    let mut stage = Stage::new(Options::new());
    for (kind, payload, expected) in lies {
        let (mut link, mut peer) = stage.link();
        peer.send_segment(0, raw::page());
        peer.publish(raw::header(kind, payload.len() as u64), &payload);
        let answer = link.receiver().recv_tensor_request_deadline(soon());
        assert_eq!(fault(answer), expected, "{kind:#x} {payload:?}");
    }
    // And what is true is taken.
    let (mut link, mut peer) = stage.link();
    peer.send_segment(0, raw::page());
    peer.pool[0].1.store(0, 7);
    let payload = [&9u64.to_le_bytes()[..], &lent.encode(), &tensor].concat();
    peer.publish(raw::header(REQUEST | 1 << 16, payload.len() as u64), &payload);
    let request = link.receiver().recv_tensor_request_deadline(soon()).unwrap().unwrap();
    assert_eq!(
        (request.id.to_string(), request.tensors.at(0).unwrap().to_vec::<i32>().unwrap()),
        ("9".into(), vec![7])
    );
    stage.is_undisturbed();
}

/// Answers requests with tensors by themselves, and plain ones by tensors.
fn serve(link: &Link) {
    link.on_tensor_request(|link, request| link.respond_tensors(request.id, request.tensors));
    link.on_message(|link, message| {
        if let MessageKind::Request(id) = message.kind() {
            link.respond_tensors(id, TensorSet::new());
        }
    });
}

#[test]
fn a_reactor_answers_and_makes_requests_with_tensors() {
    let context = Context::new().unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let (near, far) = pair_of(&context, &context);
    let (near, far) = (reactor.adopt(near).unwrap(), reactor.adopt(far).unwrap());
    serve(&far);
    let (sender, receiver) = mpsc::channel();
    for number in 0..300 {
        let sender = sender.clone();
        near.call_tensors_with(set(&context, number), move |_, response| {
            let _ = sender.send((number, response));
        });
    }
    for _ in 0..300 {
        let (number, response) = receiver.recv_timeout(HANG).unwrap();
        check(&response.unwrap(), number);
    }
    let (sender, receiver) = mpsc::channel();
    near.call_with(b"plain", move |_, response| {
        let _ = sender.send(response);
    });
    is_other_kind(receiver.recv_timeout(HANG).unwrap(), "call_tensors");
    let (sender, receiver) = mpsc::channel();
    far.close();
    near.call_tensors_with(TensorSet::new(), move |_, response| {
        let _ = sender.send(response);
    });
    assert!(receiver.recv_timeout(HANG).unwrap().is_err());
}

#[test]
fn requests_with_tensors_that_a_connection_set_aside_reach_the_reactor() {
    let context = Context::new().unwrap();
    let (mut near, mut far) = pair_of(&context, &context);
    let question = far.submit(b"question").unwrap();
    let request = near.recv_request().unwrap().unwrap();
    let id = near.submit_tensors(&set(&context, 7)).unwrap();
    near.respond(request.id, b"answer").unwrap();
    far.wait(question).unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    serve(&reactor.adopt(far).unwrap());
    check(&near.wait_tensors(id).unwrap(), 7);
}

#[test]
fn a_peer_that_answers_a_reactor_unasked_ends_its_link() {
    let mut stage = Stage::new(Options::new());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let (link, mut peer) = stage.link();
    let (sender, receiver) = mpsc::channel();
    let link = reactor.adopt(link).unwrap();
    link.on_closed(move |_, ended| {
        let _ = sender.send(ended);
    });
    peer.publish(raw::header(9 | 1 << 24, 8), &5u64.to_le_bytes());
    peer.wake_loop();
    let ended = receiver.recv_timeout(HANG).unwrap();
    assert_eq!(fault(ended), Fault::UnknownRequest { id: 5 });
    stage.is_undisturbed();
}

#[cfg(feature = "tokio")]
#[test]
fn a_runtime_answers_and_makes_requests_with_tensors() {
    use slipring::Connection;
    use slipring::tokio::AsyncConnection;

    let context = Context::new().unwrap();
    let (near, far): (Connection, Connection) = pair_of(&context, &context);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut far = AsyncConnection::new(far).unwrap();
        let server = tokio::spawn(async move {
            while let Some(request) = far.recv_tensor_request().await.unwrap() {
                far.respond_tensors(request.id, &request.tensors).await.unwrap();
            }
        });
        let mut near = AsyncConnection::new(near).unwrap();
        for number in 0..20 {
            check(&near.call_tensors(&set(&context, number)).await.unwrap(), number);
        }
        near.close().unwrap();
        server.await.unwrap();
    });
}

#[cfg(feature = "tokio")]
#[test]
fn a_call_on_a_runtime_that_could_not_be_sent_leaves_nothing_behind() {
    use slipring::tokio::AsyncConnection;

    let context = Context::with_options(Options::new().max_message(100)).unwrap();
    let (near, mut far) = pair_of(&context, &context);
    let server = std::thread::spawn(move || {
        let request = far.recv_request().unwrap().unwrap();
        far.respond(request.id, b"answer").unwrap();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut near = AsyncConnection::new(near).unwrap();
        for _ in 0..5000 {
            let error = near.call(&[0; 101]).await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::MessageTooLarge { .. }), "{error}");
        }
        assert_eq!(near.call(b"question").await.unwrap(), b"answer");
    });
    server.join().unwrap();
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_call_on_one_connection_at_a_time_and_give_up() {
    use slipring::tokio::AsyncConnection;

    let context = Context::new().unwrap();
    for workers in [1, 2] {
        let (near, far) = pair_of(&context, &context);
        // Answers in batches, the last request first, and never a request of one byte.
        let server = std::thread::spawn(move || {
            let reactor = Reactor::spawn(&Context::new().unwrap()).unwrap();
            let link = reactor.adopt(far).unwrap();
            let (sender, receiver) = mpsc::channel();
            let mut waiting = Vec::new();
            link.on_tensor_request(move |link, request| {
                waiting.push(request);
                if waiting.len() == 4 {
                    for TensorRequest { id, tensors } in waiting.drain(..).rev() {
                        link.respond_tensors(id, tensors);
                    }
                }
            });
            link.on_message(|link, message| {
                if let (MessageKind::Request(id), 2..) = (message.kind(), message.len()) {
                    link.respond(id, message.to_vec());
                }
            });
            link.on_closed(move |_, ended| drop(sender.send(ended)));
            receiver.recv_timeout(HANG).unwrap()
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let caller = AsyncConnection::new(near).unwrap().into_caller();
            let mut tasks = Vec::new();
            for task in 0..4 {
                let (caller, context) = (caller.clone(), context.clone());
                tasks.push(tokio::spawn(async move {
                    for round in 0..100 {
                        let number = 1000 * task + round;
                        let tensors = set(&context, number);
                        check(&caller.call_tensors(&tensors).await.unwrap(), number);
                        let body = number.to_le_bytes();
                        assert_eq!(caller.call(&body).await.unwrap(), body);
                        if round % 10 == 0 {
                            // Given up while it waits.
                            let wait = std::time::Duration::from_micros(200);
                            let late = tokio::time::timeout(wait, caller.call(b"x")).await;
                            assert!(late.is_err(), "{late:?}");
                        }
                    }
                }));
            }
            for task in tasks {
                tokio::time::timeout(HANG, task).await.expect("no call hangs").unwrap();
            }
        });
        drop(runtime);
        server.join().unwrap().unwrap();
    }
}
