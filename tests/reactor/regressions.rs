//! Each test failed once, with a fault that a review of the reactor found.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use crate::support::callbacks::{self, hear, kind, settle};
use crate::support::{Stage, pair_of, raw, soon, wait_until};
use slipring::error::Fault;
use slipring::message::Token;
use slipring::options::Spin;
use slipring::{Connection, Context, ErrorKind, EventLoop, Link, Options, Reactor};

/// The kind of records that trigger a token.
const TRIGGER: u64 = 5;

/// A link of a fresh reactor, and the other end.
fn served(options: Options) -> (Reactor, Link, Connection) {
    let context = Context::with_options(options).unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let (near, far) = pair_of(&context, &context);
    let link = reactor.adopt(near).unwrap();
    (reactor, link, far)
}

fn small() -> Options {
    Options::new().ring_capacity(4096).max_message(100_000)
}

/// Returns a callback that sends its answer once, and the receiver of it.
fn answer<T: Send + 'static>() -> (impl FnOnce(&Link, T) + Send + 'static, mpsc::Receiver<T>) {
    let (say, said) = mpsc::channel();
    (move |_: &Link, value: T| say.send(value).unwrap(), said)
}

/// Writes until one waits for room.
fn fill(link: &Link) {
    while link.try_send(&[0; 500]).is_ok() {}
    link.write([0; 500]);
}

#[test]
fn a_lie_that_is_met_while_resting_ends_the_link() {
    for spin in [Spin::Never, Spin::Adaptive { max: std::time::Duration::from_micros(50) }] {
        let mut stage = Stage::new(Options::new().spin(spin));
        let reactor = Reactor::spawn(&stage.context).unwrap();
        let (connection, mut peer) = stage.link();
        let link = reactor.adopt(connection).unwrap();
        let (say, ended) = answer();
        link.on_closed(say);
        link.on_message(|_, _| {});
        settle(&reactor);
        // No message shows this: the loop meets it when it tells how far it has read.
        peer.own.store(raw::SENDER_STATE, 8);
        peer.publish(raw::message(8), &[0; 8]);
        peer.wake_loop();
        assert_eq!(kind(hear(&ended)), ErrorKind::Fault(Fault::Parking { value: 8 }));
        stage.is_undisturbed();
    }
}

#[test]
fn a_lie_that_a_call_meets_ends_the_link() {
    let mut stage = Stage::new(Options::new().spin(Spin::Never));
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let (connection, peer) = stage.link();
    let link = reactor.adopt(connection).unwrap();
    let ((say, ended), (tell, told)) = (answer(), answer());
    link.on_closed(say);
    settle(&reactor);
    peer.own.store(raw::RECEIVER_STATE, 8);
    link.call_with(*b"question", tell);
    let fault = ErrorKind::Fault(Fault::Parking { value: 8 });
    assert_eq!(kind(hear(&told)), fault);
    assert_eq!(kind(hear(&ended)), fault);
}

#[test]
fn a_call_that_waited_and_cannot_be_sent_is_answered() {
    let (_reactor, link, mut far) = served(small());
    fill(&link);
    let (tell, told) = answer();
    link.call_with(vec![0; 100_001], tell);
    let reading = thread::spawn(move || while let Ok(Some(_)) = far.recv() {});
    let too_large = ErrorKind::MessageTooLarge { len: 100_001, max: 100_000 };
    assert_eq!(kind(hear(&told)), too_large);
    assert!(link.is_open());
    link.close();
    reading.join().unwrap();
}

#[test]
fn writes_that_wait_for_a_receiver_that_has_left_are_told() {
    let (_reactor, link, far) = served(small());
    let ((say, ended), (tell, told)) = (answer(), answer());
    link.on_closed(say);
    fill(&link);
    link.write_with([0; 500], tell);
    let (_sender, receiver) = far.split();
    drop(receiver);
    link.close();
    assert_eq!(kind(hear(&told)), ErrorKind::PeerClosed);
    hear(&ended).unwrap();
}

#[test]
fn a_response_is_received_behind_messages_that_nobody_wants() {
    let (_reactor, link, mut far) = served(Options::new());
    let ((say, ended), (tell, told)) = (answer(), answer());
    link.on_closed(say);
    link.call_with(*b"question", tell);
    let question = far.recv_request().unwrap().unwrap();
    far.send(b"unasked").unwrap();
    far.respond(question.id, b"answer").unwrap();
    assert_eq!(hear(&told).unwrap(), b"answer");
    far.close().unwrap();
    let (read, came) = answer();
    link.read_with(read);
    assert_eq!(hear(&came).unwrap().as_deref(), Some(&b"unasked"[..]));
    hear(&ended).unwrap();
}

#[test]
fn a_call_is_told_of_the_end_also_behind_messages_that_nobody_wants() {
    let (_reactor, link, mut far) = served(Options::new());
    let (tell, told) = answer();
    link.call_with(*b"question", tell);
    far.recv_request().unwrap().unwrap();
    far.send(b"unasked").unwrap();
    far.close().unwrap();
    assert_eq!(kind(hear(&told)), ErrorKind::PeerClosed);
}

#[test]
fn a_peer_that_never_reads_takes_no_more_memory_than_the_limit() {
    let limit = 100_000;
    let (_reactor, link, far) = served(small().write_limit(limit));
    let ((say, ended), (tell, told)) = (answer(), answer());
    link.on_closed(say);
    fill(&link);
    while link.waiting_bytes() + 2000 < limit {
        link.write([0; 1000]);
    }
    link.write_with([0; 2000], tell);
    assert!(matches!(kind(hear(&told)), ErrorKind::WritesFull { limit: 100_000, .. }));
    assert!(link.is_open(), "the callback decides");
    // Nobody hears of this one.
    link.write([0; 2000]);
    assert!(matches!(kind(hear(&ended)), ErrorKind::WritesFull { limit: 100_000, .. }));
    drop(far);
}

#[test]
fn a_link_can_be_ended_while_its_writes_wait() {
    let (_reactor, link, far) = served(small());
    let ((say, ended), (tell, told)) = (answer(), answer());
    link.on_closed(say);
    fill(&link);
    link.write_with([0; 500], tell);
    link.close();
    link.abort();
    assert_eq!(kind(hear(&told)), ErrorKind::LinkClosed);
    hear(&ended).unwrap();
    drop(far);
}

#[test]
fn a_function_that_cannot_be_registered_is_dropped_without_a_lock() {
    /// Takes a token back when it is dropped.
    struct TakesBack(Link, Token);
    impl Drop for TakesBack {
        fn drop(&mut self) {
            assert!(self.0.unregister(self.1));
        }
    }
    let (_reactor, link, _far) = served(Options::new());
    let first = link.register(|_| {}).unwrap();
    (1..65536).for_each(|_| assert!(link.register(|_| {}).is_ok()));
    let (say, said) = mpsc::channel();
    let other = link.clone();
    thread::spawn(move || {
        let takes_back = TakesBack(other.clone(), first);
        let registered = other.register(move |_| {
            let _kept = &takes_back;
        });
        say.send(registered).unwrap();
    });
    assert_eq!(kind(hear(&said)), ErrorKind::TokensSpent);
    link.register(|_| {}).unwrap();
}

#[test]
fn a_callback_whose_drop_panics_costs_no_other_link() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("dropped");
            }
        }
    }
    let (reactor, link, _far) = served(Options::new());
    let context = Context::new().unwrap();
    let (near, mut far) = pair_of(&context, &context);
    let other = reactor.adopt(near).unwrap();
    let panics = Panics;
    link.on_message(move |_, _| {
        let _kept = &panics;
    });
    link.on_message(|_, _| {});
    let (read, came) = answer();
    other.read_with(read);
    far.send(b"hello").unwrap();
    assert_eq!(hear(&came).unwrap().as_deref(), Some(&b"hello"[..]));
}

#[test]
fn a_late_question_how_a_link_ended_gets_the_same_answer() {
    let (_reactor, link, far) = served(Options::new());
    far.close().unwrap();
    wait_until("the end", || !link.is_open());
    let (say, ended) = answer();
    link.on_closed(say);
    hear(&ended).unwrap();
}

#[test]
fn a_stopped_reactor_says_so_to_all_that_waited() {
    let (reactor, link, far) = served(Options::new());
    let ((say, ended), (tell, told), (read, came)) = (answer(), answer(), answer());
    link.on_closed(say);
    link.call_with(*b"question", tell);
    link.read_with(read);
    settle(&reactor);
    reactor.shutdown();
    assert_eq!(kind(hear(&told)), ErrorKind::ReactorStopped);
    assert_eq!(kind(hear(&came)), ErrorKind::ReactorStopped);
    hear(&ended).unwrap();
    drop(far);
}

/// A message comes at a turn of a loop that sleeps for 10 ms at a time, as the peer makes no room.
fn comes_at(turn: usize) {
    let context = Context::with_options(small().spin(Spin::Never)).unwrap();
    let (near, mut far) = pair_of(&context, &context);
    let mut events = EventLoop::new(&context).unwrap();
    let link = events.reactor().adopt(near).unwrap();
    let (say, said) = callbacks::diary();
    link.on_message(move |_, message| say(message.to_vec()));
    fill(&link);
    let (mut turns, mut came, deadline) = (0, None, soon());
    let done = || {
        turns += 1;
        if turns == turn {
            // After the loop has looked at its events, and before it sleeps once more.
            far.send(b"come").unwrap();
        }
        came = said.try_recv().ok();
        came.is_some() || Instant::now() > deadline
    };
    events.run_until(done).unwrap();
    assert_eq!(came.as_deref(), Some(&b"come"[..]), "nobody looked after turn {turn}");
}

#[test]
fn a_message_is_received_that_comes_while_a_loop_often_sleeps_for_room() {
    // Once in 32 sleeps the loop takes the wake-ups that lie on the socket: at one of these turns.
    thread::scope(|scope| {
        for turn in 20..60 {
            scope.spawn(move || comes_at(turn));
        }
    });
}

#[test]
fn a_peer_that_left_behind_a_full_ring_is_served_in_shares_although_every_answer_fails() {
    const RECORDS: usize = 10_000;
    let mut stage = Stage::new(Options::new().spin(Spin::Never));
    let hello = raw::Hello { ring_capacity: 1 << 20, ..raw::Hello::honest() };
    let (connection, mut peer) = stage.link_with(hello);
    (0..RECORDS).for_each(|_| peer.say(b"echo"));
    drop(peer);
    let mut events = EventLoop::new(&stage.context).unwrap();
    let link = events.reactor().adopt(connection).unwrap();
    let (say, said) = callbacks::diary();
    link.on_message(move |link, message| {
        say(());
        // The peer receives nothing, so the write fails, and the loop polls the link for it.
        link.write(message.to_vec());
    });
    let (mut served, mut most, deadline) = (0, 0, soon());
    while link.is_open() {
        events.poll_once(64).unwrap();
        let messages = said.try_iter().count();
        served += messages;
        most = most.max(messages);
        assert!(Instant::now() < deadline, "{served} messages, and no end");
    }
    assert_eq!(served, RECORDS);
    // One share for a command, and one for the header that shows the next record.
    assert!(most <= 16, "{most} messages in one turn");
    stage.is_undisturbed();
}

#[test]
fn a_dead_peer_whose_ring_is_all_records_ends_its_link() {
    for header in [raw::message(8), raw::header(TRIGGER, 4)] {
        let mut stage = Stage::new(Options::new());
        let reactor = Reactor::spawn(&stage.context).unwrap();
        let (near, mut far) = pair_of(&stage.context, &stage.context);
        reactor.adopt(near).unwrap().on_message(|link, message| link.write(message.to_vec()));
        let (connection, peer) = stage.link();
        let link = reactor.adopt(connection).unwrap();
        let (say, ended) = answer();
        link.on_closed(say);
        link.on_message(|link, message| link.write(message.to_vec()));
        peer.fill_ring(header, &[7; 8]);
        drop(peer);
        let end = kind(hear(&ended));
        assert!(matches!(end, ErrorKind::Fault(Fault::RecordsAfterEnd { .. })), "{end:?}");
        far.send(b"there?").unwrap();
        assert_eq!(callbacks::receive(&mut far), b"there?");
        stage.is_undisturbed();
    }
}

#[test]
fn a_ring_that_tells_of_packets_everywhere_is_not_read_to_its_end_after_the_socket_has_ended() {
    let mut stage = Stage::new(Options::new());
    let reactor = Reactor::spawn(&stage.context).unwrap();
    let hello = raw::Hello { ring_capacity: 1 << 20, ..raw::Hello::honest() };
    let (connection, peer) = stage.link_with(hello);
    peer.fill_ring(raw::header(raw::PACKETS, 0), &[]);
    rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Both).unwrap();
    let (say, ended) = answer();
    reactor.adopt(connection).unwrap().on_closed(say);
    let end = kind(hear(&ended));
    let ErrorKind::Fault(Fault::PacketsAfterEnd { records, packets: 0 }) = end else {
        panic!("{end:?}")
    };
    // The ring shows 16,384 of them.
    assert!(records <= 2048, "{records} records");
    stage.is_undisturbed();
}
