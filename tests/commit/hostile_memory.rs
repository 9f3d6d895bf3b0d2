//! Clients that lie about descriptors and memory, and a server that runs out of descriptors. The tests make every byte, as
//! `docs/wire.md` says.
//!
//! After each attack an honest client executes, and the server holds no more than before.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use slipring::commit::{Client, ServerOptions};
use slipring::error::CommitFault;
use slipring::{Context, ErrorKind};

use crate::support::census::{descriptors, leave_descriptors};
use crate::support::commit::*;
use crate::support::other::{Other, alone, listen_for, say};
use crate::support::raw;
use crate::support::service::Stage;
use crate::support::wait_until;

/// Releases all that it holds when it returns.
fn commits_invalid_memory(watch: &Watch) {
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    let good = memfd(16, SealFlags::SHRINK);
    let (reader, _writer) = std::io::pipe().unwrap();
    let folder = std::fs::File::open("/").unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let event = rustix::event::eventfd(8, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let path = rustix::fs::open("/dev/shm", OFlags::PATH, Mode::empty()).unwrap();
    let (socket, _peer) = raw::socketpair();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
    let epoll = epoll.unwrap();
    let loose = memfd(8, SealFlags::empty());
    let growing = memfd(8, SealFlags::GROW);
    let frozen = memfd(8, SealFlags::SHRINK | SealFlags::FUTURE_WRITE);
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&good));
    let readable = rustix::fs::open(again, OFlags::RDONLY, Mode::empty()).unwrap();
    type Region<'a> = (&'a dyn AsFd, u64, u64);
    let x: Region<'_> = (&good, 0, 8);
    let y: Region<'_> = (&good, 8, 8);
    let mut cases: Vec<(u32, [Region<'_>; 2])> = vec![
        (7, [(&good, 0, 7), y]),
        (7, [(&good, 0, 9), y]),
        (7, [x, (&good, 8, 0)]),
        (7, [x, (&good, 8, u64::MAX)]),
        (6, [x, (&good, 9, 8)]),
        (6, [x, (&good, 16, 8)]),
        (6, [x, (&good, 1 << 62, 8)]),
        (6, [(&good, u64::MAX, 8), y]),
        (6, [(&good, u64::MAX - 7, 8), y]),
        (6, [(&good, 1 << 63, 8), y]),
        (10, [x, (&good, 7, 8)]),
        (11, [(&loose, 0, 8), y]),
        (11, [x, (&growing, 0, 8)]),
        (12, [x, (&frozen, 0, 8)]),
        (12, [x, (&readable, 8, 8)]),
    ];
    let kinds: [&dyn AsFd; 8] = [&reader, &folder, &file, &null, &event, &path, &socket, &epoll];
    for kind in kinds {
        cases.push((13, [(kind, 0, 8), y]));
        cases.push((13, [x, (kind, 0, 8)]));
    }
    for (number, (code, regions)) in cases.into_iter().enumerate() {
        let answer = raw.commit(model, regions);
        assert_eq!(answer, Some((3, Said::Failed(code))), "case {number}");
        raw.works(model);
        watch.executes(3);
    }
    // A region is named twice; there are too few, too many, and an unknown one.
    for (code, regions) in
        [(13, &[0, 0][..]), (8, &[0]), (8, &[]), (13, &[0, 1, 1]), (16, &[0, 7]), (8, &[0, 1, 2])]
    {
        let first = raw.pass(&[good.as_fd()]);
        let count = regions.len() as u32;
        let message = head(COMMIT, count, 3).u64(model).passed(first, count.min(1));
        let message = (0..)
            .zip(regions)
            .fold(message, |message, (at, region)| message.memory(*region, 0, at * 8 % 16, 8));
        assert_eq!(raw.ask(&message.0), Some((3, Said::Failed(code))), "{regions:?}");
        raw.works(model);
    }
    // The client says that a memfd is a dmabuf.
    let first = raw.pass(&[good.as_fd()]);
    let message = head(COMMIT, 2, 3).u64(model).passed(first, 1).memory(0, 0, 0, 8);
    let message = message.memory(1, 0, 8, 8).with(48, 2);
    assert_eq!(raw.ask(&message.0), Some((3, Said::Failed(13))));
    // A load names descriptors that hold no model.
    for kind in kinds {
        let first = raw.pass(&[kind.as_fd()]);
        let load = head(LOAD_DESCRIPTOR, 0, 9).u64(first).u64(0).u64(4).0;
        assert_eq!(raw.ask(&load), Some((9, Said::Failed(18))));
    }
    for (offset, len) in [(13, 4), (u64::MAX, 4), (0, u64::MAX), (0, 17)] {
        let first = raw.pass(&[good.as_fd()]);
        let load = head(LOAD_DESCRIPTOR, 0, 9).u64(first).u64(offset).u64(len).0;
        assert_eq!(raw.ask(&load), Some((9, Said::Failed(6))), "{len} at {offset}");
    }
    let first = raw.pass(&[good.as_fd()]);
    let empty = raw.ask(&head(LOAD_DESCRIPTOR, 0, 9).u64(first).u64(0).u64(0).0);
    assert!(matches!(empty, Some((9, Said::Loaded(_) | Said::Failed(_)))), "{empty:?}");
    raw.works(model);
}

#[test]
fn a_commit_of_invalid_memory_is_refused_and_the_next_one_works() {
    alone("a_commit_of_invalid_memory_is_refused_and_the_next_one_works", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        commits_invalid_memory(&watch);
        watch.is_undisturbed();
    });
}

/// Releases all that it holds when it returns.
fn commits_holes(watch: &Watch) {
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let sparse = rustix::fs::memfd_create("sparse", flags).unwrap();
    rustix::fs::ftruncate(&sparse, 1 << 46).unwrap();
    rustix::fs::fcntl_add_seals(&sparse, SealFlags::SHRINK).unwrap();
    let far = (1 << 46) - 8;
    let answer = raw.commit(model, [(&sparse, 0, 8), (&sparse, far, 8)]);
    match answer {
        Some((3, Said::Committed(id))) => {
            let done = raw.ask(&head(EXECUTE, 1, 4).u64(id).0);
            assert_eq!(done, Some((4, Said::Executed(0))));
        }
        other => assert_eq!(other, Some((3, Said::Failed(13)))),
    }
    raw.works(model);
}

#[test]
fn memory_with_holes_is_committed_or_refused_and_never_ends_the_service() {
    alone("memory_with_holes_is_committed_or_refused_and_never_ends_the_service", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        commits_holes(&watch);
        watch.is_undisturbed();
    });
}

/// Releases all that it holds when it returns.
fn sends_descriptors_that_lie(watch: &Watch) {
    let good = memfd(16, SealFlags::SHRINK);
    let fd = good.as_fd();
    // The descriptors were taken, or a later message has dropped them.
    for first in [0, 1] {
        let mut raw = Raw::connect(&watch.stage);
        let model = raw.load();
        raw.works(model);
        let message = head(COMMIT, 1, 3).u64(model).passed(first, 1).memory(0, 0, 0, 8);
        assert_eq!(raw.ask(&message.0), None);
    }
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    raw.pass(&[fd; 5]);
    raw.works(model);
    raw.pass(&[fd; 5]);
    let before = raw.passed;
    raw.peer.say(&head(DISCARD, 0, 0).u64(before).0);
    raw.works(model);
    assert_eq!(raw.ask(&head(DISCARD, 0, 0).u64(before - 1).0), None);
    // The message names more descriptors than were sent.
    let mut raw = Raw::connect(&watch.stage);
    let model = raw.load();
    raw.pass(&[fd]);
    let message = head(COMMIT, 2, 3).u64(model).passed(0, 2).memory(0, 0, 0, 8);
    assert_eq!(raw.ask(&message.memory(1, 1, 8, 8).0), None);
    // The packets themselves lie.
    let many = vec![fd; 253];
    let packets: [(u64, u32, &[BorrowedFd<'_>]); 9] = [
        (1, 1, &[fd]),
        (u64::MAX, 1, &[fd]),
        (0, 0, &[]),
        (0, 0, &[fd]),
        (0, 1, &[]),
        (0, 1, &[fd, fd]),
        (0, 2, &[fd]),
        (0, 254, &many),
        (0, u32::MAX, &many),
    ];
    for (first, count, fds) in packets {
        let mut raw = Raw::connect(&watch.stage);
        let model = raw.load();
        let _ = raw.packet(first, count, fds);
        let message = head(COMMIT, 1, 3).u64(model).passed(0, 1).memory(0, 0, 0, 8);
        assert_eq!(raw.ask(&message.0), None, "{count} from {first}");
        watch.executes(9);
    }
    let mut raw = Raw::connect(&watch.stage);
    raw.load();
    let _ = raw.packet(0, 253, &many);
    drop(raw);
}

#[test]
fn descriptors_are_taken_once_and_packets_that_lie_end_only_their_link() {
    alone("descriptors_are_taken_once_and_packets_that_lie_end_only_their_link", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        sends_descriptors_that_lie(&watch);
        watch.is_undisturbed();
    });
}

/// Releases all that it holds when it returns.
fn sends_descriptors_without_end(watch: &Watch) {
    let good = memfd(16, SealFlags::SHRINK);
    let many = vec![good.as_fd(); 253];
    let mut raw = Raw::connect(&watch.stage);
    raw.load();
    // A server that sleeps leaves them on the socket until a message names one.
    for sent in 0..40 {
        if raw.packet(253 * sent, 253, &many).is_err() {
            break;
        }
    }
    let message = head(COMMIT, 1, 3).u64(1).passed(253 * 40 - 1, 1).memory(0, 0, 0, 8);
    assert_eq!(raw.ask(&message.0), None);
}

#[test]
fn an_endless_stream_of_descriptors_ends_only_its_link() {
    alone("an_endless_stream_of_descriptors_ends_only_its_link", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        sends_descriptors_without_end(&watch);
        watch.is_undisturbed();
    });
}

/// Lets the server run out of descriptors, in a process of its own.
fn runs_out(stage: &Stage) {
    // This client needs few descriptors of its own.
    let client = stage.client();
    let model = client.load(b"many 20").unwrap();
    let session = model.session(0).unwrap();
    let buffers = session.allocate_all().unwrap();
    let honest = client.load(b"echo").unwrap().session(0).unwrap();
    let echo = honest.allocate_all().unwrap();
    honest.commit().unwrap();
    for free in [0, 1, 5, 20] {
        let before = leave_descriptors(free);
        let lacking = session.commit().unwrap_err();
        let resource = rustix::process::Resource::Nofile;
        // Existing commits need no descriptors.
        echo[0].write_at(0, &[free as u8; 8]).unwrap();
        honest.execute().unwrap();
        rustix::process::setrlimit(resource, before).unwrap();
        let kind = lacking.kind();
        assert!(matches!(kind, ErrorKind::Commit(CommitFault::Resources { .. })), "{kind:?}");
        assert_eq!(echo[1].to_vec().unwrap(), [free as u8 + 1; 8]);
        assert_eq!(stage.server.stats().commits, 2);
        session.commit().unwrap();
        session.execute().unwrap();
        assert_eq!(buffers[20].to_vec().unwrap(), 0u64.to_le_bytes());
        session.release().unwrap();
    }
}

#[test]
fn a_service_without_descriptors_says_so_and_a_retry_works() {
    alone("a_service_without_descriptors_says_so_and_a_retry_works", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        runs_out(&watch.stage);
        watch.executes(1);
    });
}

/// Releases all that it holds when it returns.
fn sends_nothing_but_descriptors(watch: &Watch, each: usize) {
    let good = memfd(16, SealFlags::SHRINK);
    let many = vec![good.as_fd(); each];
    let mut raw = Raw::connect(&watch.stage);
    raw.load();
    let mut sent = 0;
    wait_until("the end of a link that sends nothing but descriptors", || {
        // The socket is full until the server takes in what came before. At last the server closes it.
        while sent < 2 * MOST && raw.packet(sent as u64, each as u32, &many).is_ok() {
            sent += each;
        }
        raw.is_over()
    });
    assert!(sent > MOST / 2, "{sent}");
}

/// The number of descriptors of one client that may wait: twice the regions of a model.
const MOST: usize = 2 * 4096;

#[test]
fn descriptors_that_no_message_follows_end_only_their_link() {
    alone("descriptors_that_no_message_follows_end_only_their_link", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        for each in [253, 16, 1] {
            sends_nothing_but_descriptors(&watch, each);
            watch.is_undisturbed();
        }
    });
}

/// Sends more descriptors than the server takes in, and waits until it takes no more.
fn hoard(raw: &mut Raw) {
    // The server closes such memory on the spot. Other refused descriptors would wait for a thread, and their number ends a link.
    let good = memfd(16, SealFlags::SHRINK | SealFlags::GROW);
    let before = descriptors();
    for _ in 0..6 {
        raw.pass(&[good.as_fd(); 100]);
    }
    let mut last = before;
    wait_until("that they are taken in", || {
        thread::sleep(Duration::from_millis(5));
        let now = descriptors();
        std::mem::replace(&mut last, now) == now
    });
}

#[test]
fn clients_that_hoard_descriptors_leave_room_to_the_others() {
    const TEST: &str = "clients_that_hoard_descriptors_leave_room_to_the_others";
    let mut server =
        Other::start(
            TEST,
            "",
            |name| {
                if name.is_empty() { beside_hoards(TEST) } else { visit(name) }
            },
        );
    server.succeeds();
}

/// The rounds of the honest client, beside more and more hoards.
const ROUNDS: usize = 3;

/// The server, with clients of this process that hoard descriptors, and an honest one of another process.
fn beside_hoards(test: &str) {
    let watch = Watch::new(ServerOptions::new().workers(2));
    let resource = rustix::process::Resource::Nofile;
    let before = rustix::process::getrlimit(resource);
    let limit = rustix::process::Rlimit { current: Some(720), ..before };
    rustix::process::setrlimit(resource, limit).unwrap();
    let connect = |_| {
        let mut raw = Raw::connect(&watch.stage);
        let model = raw.load();
        (raw, model)
    };
    let mut hoards: Vec<(Raw, u64)> = (0..ROUNDS).map(connect).collect();
    let mut honest = Other::spawn(test, &watch.stage.name);
    // The first one takes all that a peer may, and the other ones are of the same peer.
    for (raw, _) in &mut hoards {
        hoard(raw);
        honest.tell("go");
        honest.expect("done");
    }
    honest.succeeds();
    // The census does not count its pipes.
    drop(honest);
    // Only their own messages lack the descriptors that were refused.
    for (raw, model) in &mut hoards {
        let message = head(COMMIT, 2, 3).u64(*model).passed(500, 2).memory(0, 0, 0, 8);
        assert_eq!(raw.ask(&message.memory(1, 1, 8, 8).0), Some((3, Said::Failed(15))));
    }
    drop(hoards);
    rustix::process::setrlimit(resource, before).unwrap();
    watch.is_undisturbed();
}

/// An honest client, which commits buffers in each round.
fn visit(name: &str) {
    let client = Client::connect(&Context::new().unwrap(), name).unwrap();
    for _ in 0..ROUNDS {
        listen_for("go");
        let model = client.load(b"many 6").unwrap();
        let session = model.session(0).unwrap();
        let _buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        session.execute().unwrap();
        model.close().unwrap();
        say("done");
    }
}
