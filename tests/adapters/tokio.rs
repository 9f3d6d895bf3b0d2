//! Connections work on a tokio runtime.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use crate::support::raw::{self, Hello, RawPeer};
use crate::support::{HANG, other::Other, soon, unique_name, wait_until};
use slipring::error::Fault;
use slipring::options::Spin;
use slipring::tokio::{AsyncConnection, AsyncListener, AsyncStream};
use slipring::{Address, Context, ErrorKind, Options, Tensor, TensorSet};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Whatever hangs fails.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(HANG, future).await.expect("it hangs")
}

async fn pair(options: Options) -> (AsyncConnection, AsyncConnection) {
    let context = Context::with_options(options).unwrap();
    let address = Address::fresh();
    let mut listener = AsyncListener::new(context.listen(&address).unwrap()).unwrap();
    let connecting = tokio::spawn(async move { AsyncConnection::connect(&context, address).await });
    let accepted = in_time(listener.accept()).await.unwrap();
    (connecting.await.unwrap().unwrap(), accepted)
}

fn spins() -> [Options; 3] {
    [
        Spin::Never,
        Spin::Adaptive { max: Duration::from_micros(50) },
        Spin::For(Duration::from_micros(5)),
    ]
    .map(|spin| Options::new().spin(spin))
}

#[tokio::test]
async fn messages_of_every_length_come_back() {
    for options in spins() {
        let (mut near, mut far) = pair(options.ring_capacity(4096)).await;
        let echo = tokio::spawn(async move {
            while let Some(message) = far.recv().await.unwrap() {
                far.send(&message).await.unwrap();
            }
            far.close().unwrap();
        });
        for len in [0, 1, 56, 57, 512, 513, 900, 5000, 100_000, 3 << 20] {
            let message: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            in_time(near.send(&message)).await.unwrap();
            assert_eq!(in_time(near.recv()).await.unwrap().unwrap(), message);
        }
        let stats = near.stats();
        assert_eq!((stats.sent.messages, stats.received.messages), (10, 10));
        near.close().unwrap();
        in_time(echo).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_of_two_tasks_wake_each_other() {
    const COUNT: u32 = 20_000;
    for options in spins() {
        let (near, far) = pair(options.ring_capacity(4096).loan_slots(2)).await;
        let (mut near_out, mut near_in) = near.split();
        let (mut far_out, mut far_in) = far.split();
        let send = |mut out: slipring::tokio::AsyncSender| async move {
            for number in 0..COUNT {
                // Now and then through the pool, whose loans are few.
                let len = if number % 100 == 0 { 20_000 } else { 40 };
                let mut message = vec![0; len];
                message[..4].copy_from_slice(&number.to_le_bytes());
                out.send(&message).await.unwrap();
            }
            out
        };
        let receive = |mut inbox: slipring::tokio::AsyncReceiver| async move {
            for number in 0..COUNT {
                let message = inbox.recv().await.unwrap().unwrap();
                assert_eq!(message[..4], number.to_le_bytes());
            }
            inbox
        };
        let tasks = (
            tokio::spawn(async move { near_out.send(b"").await.map(|()| send(near_out)) }),
            tokio::spawn(async move { far_out.send(b"").await.map(|()| send(far_out)) }),
        );
        assert!(in_time(near_in.recv()).await.unwrap().unwrap().is_empty());
        assert!(in_time(far_in.recv()).await.unwrap().unwrap().is_empty());
        let sends = (
            tokio::spawn(tasks.0.await.unwrap().unwrap()),
            tokio::spawn(tasks.1.await.unwrap().unwrap()),
        );
        let receives = (tokio::spawn(receive(near_in)), tokio::spawn(receive(far_in)));
        in_time(sends.0).await.unwrap();
        in_time(sends.1).await.unwrap();
        in_time(receives.0).await.unwrap();
        in_time(receives.1).await.unwrap();
    }
}

#[tokio::test]
async fn a_listener_drops_a_silent_peer_although_nobody_else_comes() {
    let options = Options::new().handshake_timeout(Duration::from_millis(50));
    let name = unique_name();
    let listener = Context::with_options(options).unwrap().listen(&name).unwrap();
    let mut listener = AsyncListener::new(listener).unwrap();
    let accepting = tokio::spawn(async move { listener.accept().await });
    let silent = raw::dial(&name);
    let ended = tokio::task::spawn_blocking(move || raw::receive(&silent).is_none());
    assert!(in_time(ended).await.unwrap(), "it was hung up");
    accepting.abort();
}

#[tokio::test]
async fn a_dropped_future_has_received_nothing() {
    let (mut near, mut far) = pair(Options::new().spin(Spin::Never)).await;
    for round in 0..200u32 {
        // Given up at any moment: before it looks, while it looks, while it sleeps.
        let _ = timeout(Duration::from_micros((round % 20).into()), near.recv()).await;
        far.send(&round.to_le_bytes()).await.unwrap();
        let received = in_time(near.recv()).await.unwrap().unwrap();
        assert_eq!(received, round.to_le_bytes());
    }
}

#[tokio::test]
async fn a_dropped_send_has_sent_nothing_or_all() {
    let (mut near, mut far) = pair(Options::new().ring_capacity(4096).spin(Spin::Never)).await;
    let mut sent = 0u32;
    while timeout(Duration::from_millis(5), near.send(&[1; 500])).await.is_ok() {
        sent += 1;
    }
    for _ in 0..sent {
        assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), [1; 500]);
    }
    in_time(near.send(b"after")).await.unwrap();
    assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), b"after");
}

#[tokio::test]
async fn calls_are_answered_and_can_be_given_up() {
    let (mut near, mut far) = pair(Options::new()).await;
    let server = tokio::spawn(async move {
        while let Some(request) = far.recv_request().await.unwrap() {
            if request.body == b"slow" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            far.respond(request.id, &request.body).await.unwrap();
        }
    });
    for _ in 0..50 {
        assert_eq!(in_time(near.call(b"quick")).await.unwrap(), b"quick");
        assert!(timeout(Duration::from_millis(1), near.call(b"slow")).await.is_err());
    }
    assert_eq!(in_time(near.call(b"last")).await.unwrap(), b"last");
    near.close().unwrap();
    in_time(server).await.unwrap();
}

#[tokio::test]
async fn a_close_is_told_and_so_is_a_death() {
    let (mut near, far) = pair(Options::new().spin(Spin::Never)).await;
    let waits = tokio::spawn(async move { near.recv().await });
    tokio::time::sleep(Duration::from_millis(5)).await;
    drop(far);
    assert_eq!(in_time(waits).await.unwrap().unwrap(), None);
}

#[test]
fn a_death_wakes_a_task() {
    let address = crate::support::unique_name();
    let mut other = Other::start("a_death_wakes_a_task", &address, |address| {
        let context = Context::new().unwrap();
        let mut link = context.connect_retry(address, crate::support::soon()).unwrap();
        let _ = link.recv();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Context::with_options(Options::new().spin(Spin::Never)).unwrap();
        let mut listener = AsyncListener::new(context.listen(&address).unwrap()).unwrap();
        let mut link = in_time(listener.accept()).await.unwrap();
        let waits = tokio::spawn(async move { link.recv().await });
        tokio::time::sleep(Duration::from_millis(5)).await;
        other.kill();
        let end = in_time(waits).await.unwrap().unwrap_err();
        assert_eq!(*end.kind(), ErrorKind::PeerDied);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_carries_bytes_both_ways() {
    for options in spins() {
        let (near, far) = pair(options).await;
        let (near, far): (AsyncStream, AsyncStream) = (near.into_stream(), far.into_stream());
        let bytes: Vec<u8> = (0..5_000_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
        let (mut read, mut write) = tokio::io::split(near);
        let echo = tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(far);
            let copied = tokio::io::copy(&mut read, &mut write).await.unwrap();
            write.shutdown().await.unwrap();
            copied
        });
        let sent = bytes.clone();
        let writer = tokio::spawn(async move {
            for chunk in sent.chunks(33_333) {
                write.write_all(chunk).await.unwrap();
            }
            write.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        in_time(read.read_to_end(&mut back)).await.unwrap();
        assert_eq!(in_time(echo).await.unwrap(), bytes.len() as u64);
        in_time(writer).await.unwrap();
        assert!(back == bytes, "the bytes differ");
    }
}

#[tokio::test]
async fn parts_that_are_written_together_come_as_one_message() {
    for options in spins() {
        let (near, mut far) = pair(options.max_message(4096)).await;
        let mut stream = near.into_stream();
        assert!(stream.is_write_vectored());
        let parts = [&b"head"[..], b"", b"body"].map(IoSlice::new);
        assert_eq!(in_time(stream.write_vectored(&parts)).await.unwrap(), 8);
        assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), b"headbody");
        // As much as a message may have: the rest is for the next write.
        let (one, two) = ([1; 3000], [2; 3000]);
        let parts = [&one[..], &two[..]].map(IoSlice::new);
        assert_eq!(in_time(stream.write_vectored(&parts)).await.unwrap(), 4096);
        let expected = [&one[..], &two[..1096]].concat();
        assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), expected);
        assert_eq!(in_time(stream.write(&[3; 5000])).await.unwrap(), 4096);
        assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), [3; 4096]);
    }
}

/// A connection of two contexts, the first of which lends 4 MiB at most.
async fn lender(options: Options) -> (Context, AsyncConnection, AsyncConnection) {
    let context = Context::with_options(options.pool_quota(4 << 20)).unwrap();
    let address = Address::fresh();
    let mut listener =
        AsyncListener::new(Context::new().unwrap().listen(&address).unwrap()).unwrap();
    let connector = context.clone();
    let connecting =
        tokio::spawn(async move { AsyncConnection::connect(&connector, address).await });
    let accepted = in_time(listener.accept()).await.unwrap();
    (context, connecting.await.unwrap().unwrap(), accepted)
}

/// That nothing of a context's pool is in use any more.
fn is_whole(context: &Context) {
    wait_until("the return of what was lent", || context.alloc::<u8>([4 << 20]).is_ok());
}

#[tokio::test]
async fn tensors_and_sets_arrive_between_messages() {
    for options in spins() {
        let (context, near, far) = lender(options.ring_capacity(4096).loan_slots(4)).await;
        let (mut sender, _receiver) = near.split();
        let (_far_sender, mut receiver) = far.split();
        let pool = context.clone();
        let sending = tokio::spawn(async move {
            for number in 0..300u32 {
                let mut tensor = loop {
                    // The quota is spent while the receiver holds the last ones.
                    match pool.alloc::<u32>([50_000]) {
                        Ok(tensor) => break tensor,
                        Err(_) => tokio::task::yield_now().await,
                    }
                };
                tensor.fill(number);
                sender.send(&number.to_le_bytes()).await.unwrap();
                if number % 2 == 0 {
                    sender.send_tensor(tensor).await.unwrap();
                } else {
                    let mut set = TensorSet::new();
                    set.insert("one", tensor.share().unwrap()).unwrap();
                    set.insert("two", Tensor::from_slice([1], &[number]).unwrap()).unwrap();
                    sender.send_tensors(&set).await.unwrap();
                }
            }
            sender
        });
        for number in 0..300u32 {
            assert_eq!(in_time(receiver.recv()).await.unwrap().unwrap(), number.to_le_bytes());
            let tensor = if number % 2 == 0 {
                in_time(receiver.recv_tensor()).await.unwrap().unwrap()
            } else {
                let mut set = in_time(receiver.recv_tensors()).await.unwrap().unwrap();
                assert_eq!(set["two"].to_vec::<u32>().unwrap(), [number]);
                set.remove("one").unwrap()
            };
            assert_eq!(tensor.to_vec::<u32>().unwrap(), [number; 50_000]);
        }
        drop(sending.await.unwrap());
        assert!(in_time(receiver.recv_tensor()).await.unwrap().is_none());
        assert!(in_time(receiver.recv_tensors()).await.unwrap().is_none());
        is_whole(&context);
    }
}

#[tokio::test]
async fn a_message_of_another_kind_than_is_received_is_an_error_and_is_not_lost() {
    let (_context, mut near, mut far) = lender(Options::new()).await;
    near.send_tensor(&Tensor::from_slice([1], &[7u32]).unwrap()).await.unwrap();
    near.send(b"behind it").await.unwrap();
    near.close().unwrap();
    let met = in_time(far.recv()).await.unwrap_err();
    assert!(met.to_string().contains("`recv_tensor` or `recv_tensors`"), "{met}");
    assert!(in_time(far.recv_tensor()).await.unwrap().is_some());
    let met = in_time(far.recv_tensors()).await.unwrap_err();
    assert!(met.to_string().ends_with("`recv`"), "{met}");
    assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), b"behind it");
    assert_eq!(in_time(far.recv()).await.unwrap(), None);
}

#[tokio::test]
async fn a_dropped_future_has_received_no_tensor() {
    let (context, mut near, mut far) = lender(Options::new().spin(Spin::Never)).await;
    for round in 0..200u32 {
        let patience = Duration::from_micros((round % 20).into());
        // Given up at any moment: before it looks, while it looks, while it sleeps.
        let _ = timeout(patience, far.recv_tensor()).await;
        let _ = timeout(patience, far.recv_tensors()).await;
        let mut tensor = context.alloc::<u32>([1000]).unwrap();
        tensor.fill(round);
        near.send(b"before").await.unwrap();
        near.send_tensor(tensor).await.unwrap();
        assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), b"before");
        let tensor = in_time(far.recv_tensor()).await.unwrap().unwrap();
        assert_eq!(tensor.to_vec::<u32>().unwrap(), [round; 1000]);
    }
    is_whole(&context);
}

#[tokio::test]
async fn a_dropped_send_of_tensors_has_sent_nothing_or_all_and_gives_the_memory_back() {
    let options = Options::new().ring_capacity(4096).loan_slots(4).spin(Spin::Never);
    let (context, mut near, mut far) = lender(options).await;
    let private = Tensor::from_slice([5000], &[3u32; 5000]).unwrap();
    for round in 0..3 {
        let mut sent = 0;
        loop {
            let mut tensor = context.alloc::<u32>([5000]).unwrap();
            tensor.fill(3);
            let sending = async {
                match round {
                    0 => near.send_tensor(tensor).await,
                    1 => near.send_tensor(&private).await,
                    _ => {
                        let mut set = TensorSet::new();
                        set.push(tensor.share().unwrap());
                        near.send_tensors(&set).await
                    }
                }
            };
            match timeout(Duration::from_millis(5), sending).await {
                Ok(result) => result.unwrap(),
                Err(_) => break,
            }
            sent += 1;
        }
        // Slots of the receiver, which has 256 of them itself, or the quota.
        assert!(sent > 0);
        for _ in 0..sent {
            let tensor = in_time(far.recv_tensor()).await.unwrap().unwrap();
            assert_eq!(tensor.to_vec::<u32>().unwrap(), [3; 5000]);
        }
        is_whole(&context);
        in_time(near.send(b"after")).await.unwrap();
        assert_eq!(in_time(far.recv()).await.unwrap().unwrap(), b"after");
    }
}

#[tokio::test]
async fn a_send_waits_for_memory_that_another_peer_holds() {
    for options in spins() {
        let (context, mut near, mut far) = lender(options).await;
        let mut tensor = context.alloc::<u8>([4 << 20]).unwrap();
        tensor[5] = 5;
        near.send_tensor(tensor).await.unwrap();
        let held = in_time(far.recv_tensor()).await.unwrap().unwrap();
        let private = Tensor::from_slice([1 << 20], &vec![9u8; 1 << 20]).unwrap();
        assert!(timeout(Duration::from_millis(5), near.send_tensor(&private)).await.is_err());
        let sending = tokio::spawn(async move { near.send_tensor(&private).await.map(|()| near) });
        tokio::task::yield_now().await;
        drop(held);
        let _near = in_time(sending).await.unwrap().unwrap();
        let tensor = in_time(far.recv_tensor()).await.unwrap().unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![9; 1 << 20]);
    }
}

#[tokio::test]
async fn a_tensor_is_no_part_of_a_stream() {
    let (_context, mut near, far) = lender(Options::new()).await;
    let mut stream = far.into_stream();
    near.send(b"bytes").await.unwrap();
    near.send_tensor(&Tensor::from_slice([1], &[1u8]).unwrap()).await.unwrap();
    let mut bytes = [0; 5];
    in_time(stream.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(&bytes, b"bytes");
    for _ in 0..2 {
        let answer = in_time(stream.read(&mut bytes)).await;
        assert_eq!(answer.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }
}

/// Returns a link to a raw peer that was honest so far.
async fn raw_pair() -> (AsyncConnection, RawPeer) {
    let name = unique_name();
    let socket = raw::listen(&name);
    let greeting = std::thread::spawn(move || {
        let mut peer = RawPeer::greet(raw::accept(&socket), Hello::honest());
        peer.meet();
        peer
    });
    let context = Context::new().unwrap();
    let link = in_time(AsyncConnection::connect(&context, &*name)).await.unwrap();
    (link, greeting.join().unwrap())
}

#[tokio::test]
async fn a_dead_peer_whose_ring_is_all_records_is_found_dead() {
    let (mut link, peer) = raw_pair().await;
    peer.fill_ring(raw::message(8), &[7; 8]);
    drop(peer);
    // The runtime has one thread, so no timer of its own would end the loop.
    let deadline = soon();
    let end = loop {
        match link.recv().await {
            Ok(message) => assert!(message.is_some() && Instant::now() < deadline),
            Err(error) => break error,
        }
    };
    let ErrorKind::Fault(Fault::RecordsAfterEnd { .. }) = end.kind() else { panic!("{end:?}") };

    let (link, peer) = raw_pair().await;
    let mut stream = link.into_stream();
    peer.fill_ring(raw::message(8), &[7; 8]);
    drop(peer);
    let deadline = soon();
    while stream.read(&mut [0; 100]).await.is_ok_and(|count| count > 0) {
        assert!(Instant::now() < deadline);
    }
}

#[tokio::test]
async fn a_peer_that_shortens_a_message_between_two_reads_changes_nothing() {
    let (link, mut peer) = raw_pair().await;
    let mut stream = link.into_stream();
    for lie in [raw::message(5), raw::message(0), raw::header(255, 1), 0] {
        peer.say(&[7; 40]);
        let (mut part, mut rest) = ([0; 30], [0; 10]);
        in_time(stream.read_exact(&mut part)).await.unwrap();
        peer.own.store(peer.hello.control_len as usize + peer.head as usize - 64, lie);
        in_time(stream.read_exact(&mut rest)).await.unwrap();
        assert_eq!((part, rest), ([7; 30], [7; 10]));
    }
}
