//! What a peer may hold ends with the link: after the grace, at once when it is aborted, at its death. What it reads then is
//! an error, and never other data.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::census::{descriptors, leave_descriptors};
use crate::support::other::{Other, alone, listen_for, say};
use crate::support::raw::Lent;
use crate::support::{Stage, pair_of, soon, trim, unique_name, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use slipring::error::TrySendError;
use slipring::{Connection, Context, Error, ErrorKind, Options, Reactor, Tensor};

/// Bytes of a block. Pools of this quota have one.
const BLOCK: u64 = 64 << 10;

fn one_block(grace: Duration) -> Context {
    Context::with_options(Options::new().pool_quota(BLOCK).release_grace(grace)).unwrap()
}

fn is_revoked<T>(answer: Result<T, Error>) -> bool {
    answer.is_err_and(|error| *error.kind() == ErrorKind::LoanRevoked)
}

fn is_full(answer: Result<(), TrySendError>) -> bool {
    matches!(answer, Err(TrySendError::Full { .. }))
}

/// A tensor of a whole block, filled with `value`.
fn frame(context: &Context, value: u8) -> Tensor {
    let mut frame = context.alloc::<u8>([BLOCK as usize]).unwrap();
    frame.fill(value);
    frame.share().unwrap()
}

/// Waits until the pool has its block, and writes other bytes there.
fn overwrite(context: &Context) {
    context.allocation().until(soon()).typed::<u8>([BLOCK as usize]).unwrap().fill(0xEE);
}

/// Asserts that every way to read a tensor says that it was taken back.
fn is_unreadable(tensor: &Tensor) {
    assert!(is_revoked(tensor.to_vec::<u8>()));
    assert!(is_revoked(tensor.copy_to(&mut vec![0u8; BLOCK as usize])));
    assert!(is_revoked(tensor.for_each_chunk::<u8>(|_| {})));
    assert!(is_revoked(tensor.bytes()));
    assert!(is_revoked(tensor.as_bytes()));
    assert!(is_revoked(tensor.as_slice::<u8>()));
    assert!(is_revoked(tensor.to_private()));
}

#[test]
fn a_dropped_link_gives_its_memory_back_after_the_grace() {
    let grace = Duration::from_millis(300);
    let (context, peers) = (one_block(grace), Context::new().unwrap());
    let (mut near, mut far) = pair_of(&context, &peers);
    near.send_tensor(frame(&context, 7)).unwrap();
    let held = far.recv_tensor().unwrap().unwrap();
    let before = Instant::now();
    near.close().unwrap();
    assert!(context.alloc::<u8>([1000]).is_err(), "the peer has all of the pool");
    assert_eq!(held.to_vec::<u8>().unwrap(), vec![7; BLOCK as usize]);
    overwrite(&context);
    assert!(before.elapsed() >= grace, "the peer has its grace");
    is_unreadable(&held);
    drop((held, far));
}

#[test]
fn a_message_that_comes_too_late_is_an_error_and_no_other_message() {
    type Receive = fn(&mut Connection) -> Result<(), Error>;
    let ways: [Receive; 4] = [
        |far| far.recv().map(drop),
        |far| far.receiver().recv_to(&mut vec![0; BLOCK as usize]).map(drop),
        |far| far.receiver().peek()?.unwrap().release(),
        |far| far.receiver().drain(1, |_, _| {}).map(drop),
    ];
    for receive in ways {
        let (context, peers) = (one_block(Duration::ZERO), Context::new().unwrap());
        let (mut near, mut far) = pair_of(&context, &peers);
        near.send(b"in the ring").unwrap();
        near.send(&vec![7; BLOCK as usize]).unwrap();
        near.send(b"behind it").unwrap();
        near.close().unwrap();
        overwrite(&context);
        assert_eq!(far.recv().unwrap().unwrap(), b"in the ring");
        assert!(is_revoked(receive(&mut far)));
        assert!(is_revoked(far.recv()), "nothing behind it is taken for the next message");
    }
}

#[test]
fn a_request_that_comes_too_late_is_an_error() {
    for is_set_aside in [false, true] {
        let (context, peers) = (one_block(Duration::ZERO), Context::new().unwrap());
        let (mut near, mut far) = pair_of(&context, &peers);
        if is_set_aside {
            // A receiver that has set a response aside takes requests another way.
            let ids = [far.submit(b"first").unwrap(), far.submit(b"second").unwrap()];
            for _ in ids {
                let request = near.recv_request().unwrap().unwrap();
                near.respond(request.id, b"answer").unwrap();
            }
            assert_eq!(far.wait(ids[1]).unwrap(), b"answer");
        }
        near.submit(&[7; BLOCK as usize]).unwrap();
        near.close().unwrap();
        overwrite(&context);
        assert!(is_revoked(far.recv_request()), "set aside: {is_set_aside}");
    }
}

#[test]
fn a_response_that_comes_too_late_is_an_error() {
    for is_set_aside in [false, true] {
        let (context, peers) = (one_block(Duration::ZERO), Context::new().unwrap());
        let (mut near, mut far) = pair_of(&context, &peers);
        let ids = [far.submit(b"first").unwrap(), far.submit(b"second").unwrap()];
        let asked = ids.map(|_| near.recv_request().unwrap().unwrap().id);
        if is_set_aside {
            near.respond(asked[0], b"answer").unwrap();
        }
        near.respond(asked[1], &[7; BLOCK as usize]).unwrap();
        near.close().unwrap();
        overwrite(&context);
        assert!(is_revoked(far.wait(ids[1])), "set aside: {is_set_aside}");
    }
}

#[test]
fn what_was_taken_back_before_is_not_shown_in_place() {
    for drains in [true, false] {
        let (context, peers) = (one_block(Duration::ZERO), Context::new().unwrap());
        let (mut near, mut far) = pair_of(&context, &peers);
        near.send(&vec![7; BLOCK as usize]).unwrap();
        drop(near);
        overwrite(&context);
        if drains {
            assert!(is_revoked(far.receiver().drain(1, |_, bytes| panic!("{}", bytes.len()))));
        } else {
            let peeked = far.receiver().peek().map(|received| received.map(|each| each.len()));
            assert!(is_revoked(peeked));
        }
    }
}

#[test]
fn a_drain_says_that_memory_was_taken_back_while_it_was_read() {
    let (context, peers) = (one_block(Duration::MAX), Context::new().unwrap());
    let (mut near, mut far) = pair_of(&context, &peers);
    near.send(b"short").unwrap();
    near.send(&vec![7; BLOCK as usize]).unwrap();
    let (mut near, mut seen) = (Some(near), Vec::new());
    let drained = far.receiver().drain(9, |_, bytes| {
        if bytes.len() > 5 {
            near.take().unwrap().abort();
            context.alloc::<u8>([BLOCK as usize]).unwrap().fill(0xEE);
        }
        seen.push(bytes.slice(0, 5).to_vec());
    });
    assert!(is_revoked(drained));
    assert_eq!(seen, [b"short".to_vec(), vec![0xEE; 5]]);
}

#[test]
fn chunks_that_a_caller_sees_are_those_that_were_sent() {
    let (context, peers) = (one_block(Duration::MAX), Context::new().unwrap());
    let (mut near, mut far) = pair_of(&context, &peers);
    let mut frame = context.alloc::<bool>([BLOCK as usize]).unwrap();
    frame.fill(true);
    near.send_tensor(frame).unwrap();
    let held = far.recv_tensor().unwrap().unwrap();
    let (mut near, mut chunks) = (Some(near), 0);
    let read = held.for_each_chunk::<bool>(|chunk| {
        assert!(chunk.iter().all(|element| *element));
        chunks += 1;
        if chunks == 2 {
            near.take().unwrap().abort();
            context.alloc::<u8>([BLOCK as usize]).unwrap().fill(0xEE);
        }
    });
    assert!(is_revoked(read), "it is no fault of an element");
    assert_eq!(chunks, 2);
}

#[test]
fn a_callback_in_place_can_tell_what_was_sent_from_what_was_written_later() {
    let peers = Context::new().unwrap();
    let reactor = Reactor::spawn(&peers).unwrap();
    for lengths in [vec![5, BLOCK as usize], vec![BLOCK as usize]] {
        let context = one_block(Duration::MAX);
        let (mut near, far) = pair_of(&context, &peers);
        let (tell, hear) = mpsc::channel();
        let revoked_before = lengths.len() == 1;
        lengths.iter().for_each(|len| near.send(&vec![7; *len]).unwrap());
        let mut near = Some(near);
        let mut revoke = move || {
            near.take().unwrap().abort();
            context.alloc::<u8>([BLOCK as usize]).unwrap().fill(0xEE);
        };
        if revoked_before {
            revoke();
        }
        let link = reactor.adopt(far).unwrap();
        let closed = tell.clone();
        link.on_closed(move |_, end| closed.send((0, is_revoked(end))).unwrap());
        link.on_message(move |_, message| {
            let first = message.bytes().slice(0, 1).to_vec()[0];
            tell.send((first, is_revoked(message.check()))).unwrap();
            if message.len() > 5 {
                revoke();
                let first = message.bytes().slice(0, 1).to_vec()[0];
                tell.send((first, is_revoked(message.check()))).unwrap();
            }
        });
        let heard: Vec<_> = hear.iter().take(if revoked_before { 1 } else { 4 }).collect();
        let expected = [(7, false), (7, false), (0xEE, true), (0, true)];
        assert_eq!(heard, if revoked_before { &expected[3..] } else { &expected[..] });
    }
}

#[test]
fn a_loan_that_was_taken_back_is_not_sent_on() {
    let (context, peers) = (one_block(Duration::MAX), Context::new().unwrap());
    let (mut near, mut far) = pair_of(&context, &peers);
    let (mut next, mut last) = pair_of(&peers, &Context::new().unwrap());
    near.send_tensor(frame(&context, 7)).unwrap();
    let held = far.recv_tensor().unwrap().unwrap();
    next.send_tensor(&held).unwrap();
    near.abort();
    assert!(is_revoked(next.send_tensor(&held)));
    next.send(b"the link goes on").unwrap();
    let copy = last.recv_tensor().unwrap().unwrap();
    assert_eq!(copy.to_vec::<u8>().unwrap(), vec![7; BLOCK as usize]);
    drop(copy);
    assert_eq!(last.recv().unwrap().unwrap(), b"the link goes on");
}

#[test]
fn an_abort_takes_memory_back_at_once() {
    let aborts: [fn(Connection); 2] = [Connection::abort, |near| near.split().0.abort()];
    for abort in aborts {
        let context = one_block(Duration::MAX);
        let peers = Context::new().unwrap();
        let (mut near, mut far) = pair_of(&context, &peers);
        near.send_tensor(frame(&context, 7)).unwrap();
        let held = far.recv_tensor().unwrap().unwrap();
        abort(near);
        context.alloc::<u8>([BLOCK as usize]).unwrap().fill(0xEE);
        is_unreadable(&held);
        assert_eq!(far.recv().unwrap(), None, "it is a close");
    }
}

#[test]
fn an_aborted_sender_leaves_its_receiver() {
    let (context, peers) = (one_block(Duration::MAX), Context::new().unwrap());
    let (near, mut far) = pair_of(&context, &peers);
    let (sender, mut receiver) = near.split();
    sender.abort();
    far.send(b"still").unwrap();
    far.send(&vec![3; BLOCK as usize]).unwrap();
    assert_eq!(receiver.recv().unwrap().unwrap(), b"still");
    assert_eq!(receiver.recv().unwrap().unwrap(), vec![3; BLOCK as usize]);
}

#[test]
fn an_abort_of_a_reactor_s_link_takes_memory_back() {
    let (context, peers) = (one_block(Duration::MAX), Context::new().unwrap());
    let reactor = Reactor::spawn(&context).unwrap();
    let (near, mut far) = pair_of(&context, &peers);
    let link = reactor.adopt(near).unwrap();
    link.try_send(&vec![7; BLOCK as usize]).unwrap();
    let received = far.receiver().peek().unwrap().unwrap();
    link.abort();
    context.alloc::<u8>([BLOCK as usize]).unwrap().fill(0xEE);
    assert!(is_revoked(received.release()));
    wait_until("end of the link", || !link.is_open());
}

#[test]
fn without_a_limit_a_peer_keeps_its_loans() {
    let (context, peers) = (one_block(Duration::MAX), Context::new().unwrap());
    let (mut near, mut far) = pair_of(&context, &peers);
    near.send_tensor(frame(&context, 7)).unwrap();
    drop(near);
    let held = far.recv_tensor().unwrap().unwrap();
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        assert!(context.alloc::<u8>([1000]).is_err());
        assert_eq!(held.to_vec::<u8>().unwrap(), vec![7; BLOCK as usize]);
        thread::sleep(Duration::from_millis(50));
    }
    drop(held);
    drop(far);
    overwrite(&context);
}

#[test]
fn what_this_side_still_reads_of_a_peer_outlives_its_own_grace() {
    let (context, peers) = (one_block(Duration::ZERO), one_block(Duration::ZERO));
    let (mut near, mut far) = pair_of(&context, &peers);
    near.send_tensor(frame(&context, 7)).unwrap();
    far.send_tensor(frame(&peers, 8)).unwrap();
    let (lent, held) = (far.recv_tensor().unwrap().unwrap(), near.recv_tensor().unwrap().unwrap());
    drop(near);
    overwrite(&context);
    is_unreadable(&lent);
    assert_eq!(held.to_vec::<u8>().unwrap(), vec![8; BLOCK as usize], "its lender lives on");
}

/// A peer that ends its socket without a word, and goes on to read.
#[test]
fn the_end_of_a_socket_alone_takes_nothing_back_before_the_grace() {
    let grace = Duration::from_millis(300);
    let mut stage = Stage::new(Options::new().pool_quota(BLOCK).release_grace(grace));
    let (mut link, peer) = stage.link();
    link.send(&vec![7; BLOCK as usize]).unwrap();
    let before = Instant::now();
    rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Write).unwrap();
    wait_until("end", || link.sender().try_send(b"x").is_err_and(|error| !is_full(Err(error))));
    overwrite(&stage.context);
    assert!(before.elapsed() >= grace);
}

/// Bytes of a peer's segment: the word that says whether its loans were taken back.
const REVOKED: usize = 0x0c8;

/// A peer ends its socket and reads on while a message is being written for it. The message is published when the pool has
/// no account of the peer any more.
#[test]
fn a_message_to_a_peer_that_ends_meanwhile_is_marked_before_its_block_is_used_again() {
    let mut stage = Stage::new(Options::new().pool_quota(BLOCK).release_grace(Duration::ZERO));
    let (link, peer) = stage.link();
    let (mut sender, mut receiver) = link.split();
    // The slot of the next message is set aside with the first one.
    sender.send(&vec![6; BLOCK as usize]).unwrap();
    let first = Lent::read(peer.theirs(), peer.hello.control_len as usize);
    peer.give_back(first.slot as usize, first.generation);
    let mut message = sender.reserve_deadline(BLOCK as usize, soon()).unwrap();
    message.fill(7);
    rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Write).unwrap();
    assert!(receiver.recv_deadline(soon()).is_err_and(|error| !error.is_timeout()));
    // The watcher closes the account.
    thread::sleep(Duration::from_millis(100));
    let _ = message.publish();
    let sent = Lent::read(peer.theirs(), peer.hello.control_len as usize + 64);
    assert_eq!((sent.offset, sent.len), (first.offset, BLOCK), "the peer sees the message");
    overwrite(&stage.context);
    assert_eq!(peer.theirs().load(REVOKED), 1);
}

#[test]
fn a_reader_that_fails_reads_what_was_sent_or_an_error() {
    let test = "a_reader_that_fails_reads_what_was_sent_or_an_error";
    let name = unique_name();
    let mut other = Other::start(test, &name, |name| {
        let mut link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
        let held = link.recv_tensor().unwrap().unwrap();
        leave_descriptors(0);
        say("short of descriptors");
        let error = link.recv_tensor().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { .. }), "{error}");
        let mut reads = 0;
        let end = loop {
            match held.to_vec::<u8>() {
                Ok(bytes) => assert!(bytes.iter().all(|byte| *byte == 7), "other data"),
                Err(error) => break error,
            }
            reads += 1;
            thread::sleep(Duration::from_millis(1));
        };
        assert!(reads > 10 && matches!(end.kind(), ErrorKind::LoanRevoked), "{reads}: {end}");
    });
    let options = Options::new().pool_quota(4 << 20).loan_limit(1024, 4 << 20);
    let context = Context::with_options(options.release_grace(Duration::from_millis(300))).unwrap();
    let mut link = context.listen(&name).unwrap().accept_deadline(soon()).unwrap();
    link.send_tensor(frame(&context, 7)).unwrap();
    other.expect("short of descriptors");
    link.send_tensor(context.alloc::<u8>([1 << 20]).unwrap()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let all = std::iter::from_fn(|| context.alloc::<u8>([BLOCK as usize]).ok());
                all.collect::<Vec<_>>().iter_mut().for_each(|each| each.fill(0xEE));
            }
        });
        let status = other.wait();
        done.store(true, Ordering::Relaxed);
        assert!(status.success());
    });
}

#[test]
fn peers_that_keep_loans_of_dropped_links_cost_no_descriptors_after_the_grace() {
    alone("peers_that_keep_loans_of_dropped_links_cost_no_descriptors_after_the_grace", || {
        let options = Options::new().release_grace(Duration::from_millis(300));
        let (context, peers) = (Context::with_options(options).unwrap(), Context::new().unwrap());
        let before = descriptors();
        let kept: Vec<Tensor> = (0..60).map(|_| keep_one(&context, &peers)).collect();
        // Each client's own end, with the descriptor of its peer's process.
        let clients = 2 * kept.len();
        wait_until("the ends", || kept.iter().all(|tensor| is_revoked(tensor.to_vec::<u8>())));
        wait_until("the descriptors", || descriptors() <= before + clients + 8);
    });
}

#[test]
fn links_that_wait_for_the_grace_hold_a_quarter_of_the_descriptors() {
    alone("links_that_wait_for_the_grace_hold_a_quarter_of_the_descriptors", || {
        let limit = Rlimit { current: Some(1024), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        // All peers are this process.
        let peers = Context::with_options(many_links()).unwrap();
        let options = many_links().release_grace(Duration::from_secs(3600));
        let context = Context::with_options(options).unwrap();
        let kept: Vec<Tensor> = (0..200).map(|_| keep_one(&context, &peers)).collect();
        let alive = || kept.iter().filter(|tensor| tensor.to_vec::<u8>().is_ok()).count();
        wait_until("the oldest", || alive() == 128);
        assert!(kept[72..].iter().all(|tensor| tensor.to_vec::<u8>().is_ok()));
    });
}

/// Links of the process that keeps loans, those of the process that serves, and those that wait for the grace at a time.
const GREEDY: usize = 150;
const OWN: usize = 20;
const WAITING: usize = 128;

#[test]
fn a_process_that_keeps_many_loans_ends_no_grace_of_another_process() {
    let test = "a_process_that_keeps_many_loans_ends_no_grace_of_another_process";
    let name = unique_name();
    let process = |role: &str| {
        Other::start(test, &format!("{role} {name}"), |argument| match argument.split_once(' ') {
            Some(("serve", name)) => serve_one_that_keeps(name),
            Some((_, name)) => keep_all(name),
            None => unreachable!("a role and a name"),
        })
    };
    let (mut server, mut other) = (process("serve"), process("keep"));
    other.expect("kept");
    server.tell("drop");
    assert_eq!(other.hear(), (WAITING - OWN).to_string());
    server.tell("end");
    server.succeeds();
    other.succeeds();
}

fn serve_one_that_keeps(name: &str) {
    let limit = Rlimit { current: Some(8 * WAITING as u64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let peers = Context::with_options(many_links()).unwrap();
    let options = many_links().release_grace(Duration::from_secs(3600));
    let context = Context::with_options(options).unwrap();
    let own: Vec<Tensor> = (0..OWN).map(|_| keep_one(&context, &peers)).collect();
    let mut listener = context.listen(name).unwrap();
    let lending = |_| {
        let mut near = listener.accept_deadline(soon()).unwrap();
        near.send_tensor(context.alloc::<u8>([5000]).unwrap()).unwrap();
        near
    };
    let connections: Vec<Connection> = (0..GREEDY).map(lending).collect();
    listen_for("drop");
    drop(connections);
    listen_for("end");
    assert!(own.iter().all(|tensor| tensor.to_vec::<u8>().is_ok()));
}

fn keep_all(name: &str) {
    let context = Context::with_options(many_links()).unwrap();
    let keep = |_| {
        let mut link = context.connect_retry(name, soon()).unwrap();
        (link.recv_tensor().unwrap().unwrap(), link)
    };
    let kept: Vec<_> = (0..GREEDY).map(keep).collect();
    say("kept");
    let alive = || kept.iter().filter(|(each, _)| each.to_vec::<u8>().is_ok()).count();
    wait_until("the surplus", || alive() <= WAITING - OWN);
    thread::sleep(Duration::from_millis(100));
    say(&alive().to_string());
}

fn many_links() -> Options {
    Options::new().process_limit(slipring::options::Resource::Descriptors, 4096)
}

/// A peer's loan from a link that this side has dropped.
fn keep_one(context: &Context, peers: &Context) -> Tensor {
    let (mut near, mut far) = pair_of(context, peers);
    near.send_tensor(context.alloc::<u8>([5000]).unwrap()).unwrap();
    far.recv_tensor().unwrap().unwrap()
}

#[test]
fn one_stopped_subscriber_stops_no_other_and_gives_its_memory_back() {
    let test = "one_stopped_subscriber_stops_no_other_and_gives_its_memory_back";
    let name = unique_name();
    let mut others = [(); 2].map(|()| {
        Other::start(test, &name, |name| {
            let mut link = Context::new().unwrap().connect_retry(name, soon()).unwrap();
            say("here");
            let mut received = 0u32;
            while let Ok(Some(frame)) = link.recv_tensor() {
                let Ok(bytes) = frame.to_vec::<u8>() else { break };
                assert!(bytes.iter().all(|byte| *byte == received as u8), "other data");
                received += 1;
            }
            say(&received.to_string());
            listen_for("end");
        })
    });
    let options = Options::new().pool_quota(4 << 20).release_grace(Duration::from_millis(300));
    let context = Context::with_options(options).unwrap();
    let mut listener = context.listen(&name).unwrap();
    let mut links = [(); 2].map(|()| listener.accept_deadline(soon()).unwrap());
    others.iter().for_each(|other| other.expect("here"));
    links.sort_by_key(|link| link.peer().pid() != Some(others[0].pid()));
    let [mut slow, mut healthy] = links;
    let pid = Pid::from_raw(others[0].pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let stat = format!("/proc/{}/stat", others[0].pid());
    wait_until("stop", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    let mut refused = 0;
    for round in 0..100 {
        let frame = frame(&context, round);
        refused += u32::from(is_full(slow.sender().try_send_tensor(&frame)));
        healthy.sender().send_tensor_deadline(&frame, soon()).unwrap();
    }
    assert!(refused > 80, "a quarter of the pool has 16 frames: {refused}");
    slow.abort();
    healthy.close().unwrap();
    assert_eq!(others[1].hear(), "100");
    trim(&context);
    kill_process(pid, Signal::CONT).unwrap();
    others.iter_mut().for_each(|other| other.tell("end"));
    others.iter_mut().for_each(Other::succeeds);
}
