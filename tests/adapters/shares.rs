//! Tasks of one runtime with one thread share its time: a peer whose ring is never empty does not keep the others from
//! running. Each test counts the round trips of an honest peer beside a fixed number of the attacker's steps.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::raw::{self, Hello, Lent, RawPeer};
use crate::support::{HANG, unique_name};
use slipring::broadcast::SubscribeOptions;
use slipring::tokio::{AsyncConnection, AsyncListener, AsyncStream, AsyncSubscriber};
use slipring::{Address, Connection, Context};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Records that say that packets wait on the socket.
const PACKETS: u64 = 6;
/// Triggers of a token.
const TRIGGER: u64 = 5;

/// Two ends of a connection.
async fn pair(context: &Context) -> (AsyncConnection, AsyncConnection) {
    let address = Address::fresh();
    let mut listener = AsyncListener::new(context.listen(&address).unwrap()).unwrap();
    let connecting = AsyncConnection::connect(context, address);
    let (near, far) = tokio::join!(connecting, listener.accept());
    (near.unwrap(), far.unwrap())
}

/// A connection whose other end is a raw peer.
async fn raw_link(context: &Context) -> (AsyncConnection, RawPeer) {
    let name = unique_name();
    let mut listener = AsyncListener::new(context.listen(&name).unwrap()).unwrap();
    let dialing = std::thread::spawn(move || {
        let mut peer = RawPeer::greet(raw::dial(&name), Hello::honest());
        peer.meet();
        peer
    });
    let connection = listener.accept().await.unwrap();
    (connection, dialing.join().unwrap())
}

/// Round trips between two tasks of this runtime.
const TRIPS: u32 = 100;

async fn honest(context: &Context) {
    let (mut near, mut far) = pair(context).await;
    let echo = tokio::spawn(async move {
        while let Some(message) = far.recv().await.unwrap() {
            far.send(&message).await.unwrap();
        }
    });
    for _ in 0..TRIPS {
        near.send(b"there?").await.unwrap();
        assert_eq!(near.recv().await.unwrap().unwrap(), b"there?");
    }
    near.close().unwrap();
    echo.await.unwrap();
}

/// Runs honest peers beside a peer whose ring is all records. Nobody clears them, so the ring never ends.
fn beside(word: u64, payload: &'static [u8], read: impl Reading) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Context::new().unwrap();
        let (connection, mut peer) = raw_link(&context).await;
        peer.fill_ring(word, payload);
        peer.wake_loop();
        let victim = tokio::spawn(read.run(connection));
        timeout(HANG, honest(&context)).await.expect("the attacker has the runtime");
        victim.abort();
    });
}

/// How the victim reads.
trait Reading {
    fn run(self, connection: AsyncConnection) -> impl Future<Output = ()> + Send + 'static;
}

struct Recv;
struct Respond;
struct Stream;

impl Reading for Recv {
    async fn run(self, mut connection: AsyncConnection) {
        while let Ok(Some(_)) = connection.recv().await {}
    }
}

impl Reading for Respond {
    async fn run(self, mut connection: AsyncConnection) {
        while let Ok(Some(_)) = connection.recv_request().await {}
    }
}

impl Reading for Stream {
    async fn run(self, connection: AsyncConnection) {
        let (mut stream, mut buffer) = (connection.into_stream(), [0; 4096]);
        while let Ok(1..) = stream.read(&mut buffer).await {}
    }
}

#[test]
fn tiny_messages_without_end_leave_a_runtime_to_its_other_tasks() {
    beside(raw::message(8), b"attacker", Recv);
    beside(raw::message(8), b"attacker", Stream);
}

#[test]
fn empty_messages_without_end_leave_a_runtime_to_its_other_tasks() {
    beside(raw::message(0), b"", Stream);
}

#[test]
fn records_that_are_no_messages_leave_a_runtime_to_its_other_tasks() {
    beside(raw::header(PACKETS, 0), b"", Recv);
    beside(raw::header(PACKETS, 0), b"", Respond);
    beside(raw::header(TRIGGER, 4), b"abcd", Recv);
}

#[test]
fn a_long_message_is_copied_between_the_turns_of_other_tasks() {
    const LEN: usize = 64 << 20;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Context::new().unwrap();
        let (near, mut far) = pair(&context).await;
        let turns = Arc::new(AtomicU64::new(0));
        let counted = turns.clone();
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let (mut sender, _receiver) = near.split();
        let long: Vec<u8> = (0..LEN).map(|at| (at >> 12) as u8).collect();
        sender.send(&long).await.unwrap();
        tokio::task::yield_now().await;
        turns.store(0, Ordering::Relaxed);
        assert!(far.recv().await.unwrap().unwrap() == long);
        let beside = turns.load(Ordering::Relaxed);
        assert!(beside >= (LEN >> 18) as u64 - 2, "{beside} turns");
        other.abort();
    });
}

#[test]
fn the_parts_of_a_long_segment_do_not_count_as_packets() {
    /// Its pages are counted in three parts.
    const LEN: u64 = 192 << 20;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Context::new().unwrap();
        let (mut connection, mut peer) = raw_link(&context).await;
        // A reader takes 128 packets in search of a segment.
        for _ in 0..126 {
            raw::send(&peer.socket, &raw::wake_packet(2), &[]).unwrap();
        }
        peer.send_segment(0, LEN);
        let mut record = Lent { segment: 0, slot: 0, offset: 0, len: 24, generation: 1 }.encode();
        // FP32 [2, 3], attached, without a name.
        record.extend([0x0b, 2, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        peer.publish(7 | 1 << 16 | 1 << 24 | 44 << 32, &record);
        let tensor = timeout(HANG, connection.recv_tensor()).await.expect("it hangs");
        assert_eq!(tensor.unwrap().unwrap().byte_len(), 24);
    });
}

#[test]
fn packets_for_a_subscriber_are_read_between_the_turns_of_other_tasks() {
    const LEN: u64 = 64 << 20;
    const LAST: u32 = 60;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = unique_name();
        let listener = raw::listen(&name);
        let joining = std::thread::spawn(move || {
            let options = SubscribeOptions::every().reconnect(false);
            Context::new().unwrap().subscribe(&name, options).unwrap()
        });
        let socket = raw::accept(&listener);
        let (packet, descriptors) = raw::receive(&socket).expect("a Hello");
        let mut peer = RawPeer::greet(socket, Hello::publisher());
        peer.heard(&packet, &descriptors);
        let (topic, slots) = raw::segment(2 * raw::page());
        raw::send(&peer.socket, &raw::topic_packet(16, 64, 4, 0), &[topic.as_fd()]).unwrap();
        let mut subscriber = AsyncSubscriber::new(joining.join().unwrap());
        let (fd, _memory) = raw::segment(LEN);
        for number in 0..=LAST {
            raw::send(&peer.socket, &raw::segment_packet(number, LEN), &[fd.as_fd()]).unwrap();
            if number != LAST {
                raw::send(&peer.socket, &raw::retire_packet(number), &[]).unwrap();
            }
        }
        // The first message, behind its slot's state and header.
        let slot = raw::page() as usize + 64;
        let lent = Lent { segment: LAST, slot: 0, offset: 0, len: 1000, generation: 0 };
        slots.store(slot + 8, raw::header(raw::MESSAGE | raw::POOLED, 32));
        slots.write(slot + 16, &lent.encode());
        slots.store(slot, 2);
        let turns = Arc::new(AtomicU64::new(0));
        let counted = turns.clone();
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let sample = timeout(HANG, subscriber.recv()).await.expect("it hangs");
        assert_eq!(sample.unwrap().expect("a message").len(), 1000);
        let beside = turns.load(Ordering::Relaxed);
        // The kernel counts the pages of 64 MiB in some 0.6 ms, and a look ends after 1 ms.
        assert!(beside > 8, "{beside} turns");
        other.abort();
    });
}

/// A connection that has set a message aside.
fn with_one_set_aside(context: &Context) -> (Connection, Connection) {
    let address = Address::fresh();
    let mut listener = context.listen(&address).unwrap();
    let connecting = std::thread::spawn({
        let context = context.clone();
        move || context.connect(&address).unwrap()
    });
    let mut far = listener.accept().unwrap();
    let mut near = connecting.join().unwrap();
    let question = near.submit(b"question").unwrap();
    let request = far.recv_request().unwrap().unwrap();
    far.send(b"first").unwrap();
    far.respond(request.id, b"answer").unwrap();
    assert_eq!(near.wait(question).unwrap(), b"answer");
    far.send(b"second").unwrap();
    (near, far)
}

#[test]
fn a_peek_returns_messages_that_were_set_aside_first() {
    let context = Context::new().unwrap();
    let (mut near, far) = with_one_set_aside(&context);
    let received = near.receiver().peek().unwrap().unwrap();
    assert_eq!((received.bytes().to_vec(), received.len()), (b"first".to_vec(), 5));
    near.receiver().peek().unwrap().unwrap().release().unwrap();
    let received = near.receiver().peek().unwrap().unwrap();
    assert_eq!(received.bytes().to_vec(), b"second");
    received.release().unwrap();
    drop(far);
    assert!(near.receiver().peek().unwrap().is_none());
}

#[test]
fn a_stream_begins_with_what_was_set_aside() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let context = Context::new().unwrap();
        let (near, far) = with_one_set_aside(&context);
        let near = AsyncConnection::new(near).unwrap();
        let mut stream: AsyncStream = near.into_stream();
        drop(far);
        let mut text = String::new();
        timeout(HANG, stream.read_to_string(&mut text)).await.expect("it hangs").unwrap();
        assert_eq!(text, "firstsecond");
        stream.shutdown().await.unwrap();
    });
}
