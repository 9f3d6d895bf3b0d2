//! A peer can cost this process no more than its rings and quotas: impossible lengths, a peer that keeps everything,
//! descriptors that run out. The error names the remedy.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::callbacks::{diary, hear, receive};
use crate::support::census::{leave_descriptors, processor_time, shared_bytes};
use crate::support::in_flight::{become_nobody, crowd};
use crate::support::other::{Other, say};
use crate::support::raw::{self, Hello, Lent, RawPeer, segment_packet};
use crate::support::{HANG, Stage, Witness, pair_of, soon, unique_name};
use rustix::process::{Resource, Rlimit};
use slipring::error::TrySendError;
use slipring::options::Spin;
use slipring::{Connection, Context, Error, ErrorKind, Options, Reactor};

/// Just below 4 GiB, and aligned as every length must be that does not count pages.
const LONG: u64 = (1 << 32) - 16;
/// The same in pages.
const LONG_PAGES: u64 = (1 << 32) - (16 << 12);

const PARCEL: u64 = 7;

/// A figure of `proc_pid_status(5)` in bytes.
fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let figure = line.trim_start_matches(':').trim().trim_end_matches(" kB");
    figure.parse::<u64>().unwrap() << 10
}

/// Receives until the link gives an error, the end or a message.
fn drains(mut link: Connection) -> Result<(), Error> {
    let soon = || Instant::now() + Duration::from_millis(20);
    for _ in 0..8 {
        if let Some(tensors) = link.receiver().recv_tensors_deadline(soon()).or_else(quiet)? {
            for (_, tensor) in tensors.iter() {
                let _ = tensor.bytes().map(|bytes| bytes.len());
            }
        }
        link.receiver().recv_deadline(soon()).or_else(quiet)?;
        if link.recv_request().is_err() {
            break;
        }
    }
    Ok(())
}

fn quiet<T>(error: Error) -> Result<Option<T>, Error> {
    if error.is_timeout() { Ok(None) } else { Err(error) }
}

/// Asserts that each operation of the link finds this lie.
fn is_refused(stage: &mut Stage, what: &str, lie: impl FnOnce(&mut RawPeer)) {
    let (link, mut peer) = stage.link();
    peer.send_segment(1, 1 << 20);
    lie(&mut peer);
    // So that nothing waits for a message that never comes.
    rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Write).unwrap();
    let error = drains(link).expect_err(what);
    let fault = matches!(error.kind(), ErrorKind::Fault(_) | ErrorKind::Tensor(_));
    assert!(fault, "{what}: {error}");
}

const LENT: Lent = Lent { segment: 1, slot: 0, offset: 0, len: 4096, generation: 5 };

/// Returns the attachments of a record: a lent tensor, an inline one and one of a region, with names.
fn honest_attachments() -> Vec<u8> {
    let mut bytes = LENT.encode();
    // dtype, rank, flags, length of the name; dimensions; place; name. docs/wire.md, "Parcels".
    bytes.extend([11, 2, 0, 3]);
    bytes.extend([32u32, 32].map(u32::to_le_bytes).concat());
    bytes.extend(b"one");
    bytes.extend([2, 1, 2, 3]);
    bytes.extend(8u32.to_le_bytes());
    bytes.extend(8u32.to_le_bytes());
    bytes.extend(*b"inlined!");
    bytes.extend(b"two");
    bytes
}

fn attachment_header(len: usize) -> u64 {
    PARCEL | 1 << 16 | 1 << 24 | (len as u64) << 32
}

#[test]
fn a_length_of_nearly_four_gib_is_refused_wherever_it_stands() {
    let test = "a_length_of_nearly_four_gib_is_refused_wherever_it_stands";
    let mut other = Other::start(test, "", |_| {
        let mut stage = Stage::new(Options::new().handshake_timeout(HANG));
        stage.witness.check();
        let before = (status("VmHWM"), status("VmPeak"));

        // Of a record: each kind, with each flag.
        for kind in 1..=7 {
            for flags in [0, raw::MORE, raw::POOLED, raw::TIGHT, 1 << 16 | 1 << 24] {
                let word = raw::header(kind | flags, LONG);
                is_refused(&mut stage, &format!("{word:#x}"), |peer| peer.header(word));
            }
        }
        // Of a message in the pool: each number of its descriptor.
        for lie in [
            Lent { segment: LONG as u32, ..LENT },
            Lent { slot: LONG as u32, ..LENT },
            Lent { offset: LONG, ..LENT },
            Lent { len: LONG, ..LENT },
            Lent { offset: LONG, len: LONG, ..LENT },
        ] {
            is_refused(&mut stage, &format!("{lie:?}"), |peer| peer.lend(lie));
            is_refused(&mut stage, &format!("attachments, {lie:?}"), |peer| {
                let mut bytes = honest_attachments();
                bytes[..32].copy_from_slice(&lie.encode());
                peer.publish(attachment_header(bytes.len()), &bytes);
            });
        }
        // Of a segment: what is said, and what is there.
        for len in [LONG, LONG_PAGES] {
            is_refused(&mut stage, &format!("segment of {len}"), |peer| {
                let (fd, _memory) = raw::segment(1 << 20);
                raw::send(&peer.socket, &segment_packet(2, len), &[fd.as_fd()]).unwrap();
                peer.lend(Lent { segment: 2, ..LENT });
            });
        }
        // Every byte, half-word, word and long word of the attachments is tried. Some of the results are honest.
        let honest = honest_attachments();
        let mut refused = 0;
        for width in [1, 2, 4, 8] {
            for at in 0..=honest.len() - width {
                let mut bytes = honest.clone();
                let long = if width == 8 { LONG } else { LONG >> (32 - 8 * width as u32) };
                bytes[at..at + width].copy_from_slice(&long.to_le_bytes()[..width]);
                let (link, mut peer) = stage.link();
                peer.send_segment(1, 1 << 20);
                peer.publish(attachment_header(bytes.len()), &bytes);
                rustix::net::shutdown(&peer.socket, rustix::net::Shutdown::Write).unwrap();
                refused += usize::from(matches!(
                    drains(link),
                    Err(error) if matches!(error.kind(), ErrorKind::Fault(_) | ErrorKind::Tensor(_))
                ));
            }
        }
        assert!(refused > honest.len(), "{refused} of {}", 4 * honest.len());

        // Of a Hello.
        let honest = Hello::honest();
        let lies = [
            Hello { control_len: LONG, ..honest },
            Hello { control_len: LONG_PAGES, ..honest },
            Hello { ring_capacity: LONG, ..honest },
            Hello { ring_capacity: 1 << 32, ..honest },
            Hello { loan_slots: LONG as u32, ..honest },
            Hello { numa_node: LONG as u32, ..honest },
            Hello { flags: LONG as u32, ..honest },
            Hello { role: LONG as u32, ..honest },
        ];
        for lie in lies {
            let socket = raw::dial(&stage.name);
            let (fd, _memory) = raw::segment(Hello::honest().segment_len());
            raw::send(&socket, &lie.encode(), &[fd.as_fd()]).unwrap();
            stage.refuses_one();
            let (answer, fds) = raw::receive(&socket).unwrap();
            assert!(raw::refusal_code(&answer).is_some() && fds.is_empty(), "{lie:?}");
        }
        // Of what a packet says that it carries.
        is_refused(&mut stage, "descriptors of a packet", |peer| {
            let mut packet = raw::retire_packet(1);
            packet[12..16].copy_from_slice(&(LONG as u32).to_le_bytes());
            raw::send(&peer.socket, &packet, &[]).unwrap();
            peer.lend(Lent { segment: 3, ..LENT });
        });
        // Where a limit may be as large as that it costs nothing.
        let large = Hello { max_message: LONG, pool_limit: LONG, ..honest };
        let (mut link, mut peer) = stage.link_with(large);
        peer.say(b"hello");
        assert_eq!(receive(&mut link), b"hello");

        let grown = (status("VmHWM") - before.0, status("VmPeak").saturating_sub(before.1));
        eprintln!("memory: {} KiB more at the most, {} KiB mapped", grown.0 >> 10, grown.1 >> 10);
        assert!(grown.0 < 64 << 20 && grown.1 < 512 << 20, "{grown:?}");
        stage.is_undisturbed();
    });
    other.succeeds();
}

/// Asserts that the text of the error names the remedy.
fn names(error: &Error, remedy: &str) {
    let text = format!("{error:#}");
    assert!(text.contains(remedy), "{remedy:?} is not in {text:?}");
}

#[test]
fn a_peer_that_keeps_everything_costs_ring_and_quota_and_errors_say_what_to_do() {
    let test = "a_peer_that_keeps_everything_costs_ring_and_quota_and_errors_say_what_to_do";
    let mut other = Other::start(test, "", |_| {
        const QUOTA: u64 = 4 << 20;
        const RING: u64 = 64 << 10;
        let moment = Duration::from_millis(20);
        let options = Options::new()
            .pool_quota(QUOTA)
            .loan_limit(1024, QUOTA)
            .ring_capacity(RING)
            .send_timeout(moment)
            .backlog_limit(30_000)
            .write_limit(200_000);
        let mut stage = Stage::new(options);
        stage.witness.longest = 3000;
        let (mut link, reader) = stage.link();
        let (before, heap) = (shared_bytes(), status("VmRSS"));

        // It never reads.
        let short = vec![7; 3000];
        while link.sender().try_send(&short).is_ok() {}
        let full = loop {
            if let Err(full) = link.sender().try_send(&[]) {
                break full;
            }
        };
        let TrySendError::Full { free, needed } = full else { panic!("{full}") };
        assert!(free < needed);
        for message in [&short[..], &[7; 100_000]] {
            let late = link.send(message).unwrap_err();
            assert!(late.is_timeout());
            names(&late, "makes no room");
            let late = link.sender().send_deadline(message, Instant::now() + moment).unwrap_err();
            names(&late, "makes no room");
        }
        let late = link.submit(&short).unwrap_err();
        names(&late, "makes no room");
        reader.position(0);
        stage.witness.check();

        // It reads, and gives no loan back.
        let (mut link, peer) = stage.link();
        let kept = loop {
            // It has read all there is.
            peer.position(link.stats().sent.messages.saturating_mul(64));
            match link.sender().try_send(&[7; 100_000]) {
                Ok(()) => {}
                Err(full) => break full,
            }
        };
        assert!(matches!(kept, TrySendError::Full { .. }), "{kept}");
        names(&link.send(&[7; 100_000]).unwrap_err(), "keeps what it was lent");
        let spent = stage.context.alloc::<u8>([100_000]).unwrap_err();
        assert!(matches!(spent.kind(), ErrorKind::PoolExhausted { .. }), "{spent}");
        names(&spent, "Options::pool_quota");
        let late = stage.context.allocation().until(Instant::now() + moment);
        names(&late.typed::<u8>([100_000]).unwrap_err(), "Options::pool_quota");
        // Short messages go on, and so does everybody else's link.
        link.send(b"still").unwrap();
        stage.witness.check();

        // It never reads what a reactor writes.
        let reactor = Reactor::spawn(&stage.context).unwrap();
        let (near, _deaf) = stage.link();
        let served = reactor.adopt(near).unwrap();
        let (say_end, ended) = diary();
        served.on_closed(move |_, result| say_end(result));
        while served.is_open() {
            served.write(short.clone());
        }
        let end = hear(&ended).unwrap_err();
        assert!(matches!(end.kind(), ErrorKind::WritesFull { .. }), "{end}");
        names(&end, "Options::write_limit");

        // It asks and asks while we wait for its answer.
        let (mut link, mut asker) = stage.link();
        for _ in 0..20 {
            asker.publish(raw::header(raw::MESSAGE, 3000), &[1; 3000]);
        }
        let late = link.call_deadline(b"question", soon());
        names(&late.unwrap_err(), "receive them");

        let grown = shared_bytes() - before;
        let segments = 4 * (RING + (64 << 10) + reader.hello.segment_len());
        eprintln!("{} KiB shared, {} KiB private", grown >> 10, (status("VmRSS") - heap) >> 10);
        assert!(grown <= QUOTA + segments + (3 << 20), "{grown}");
        stage.witness.check();
    });
    other.succeeds();
}

#[test]
fn a_link_that_meets_the_descriptor_limit_ends_and_no_other_and_nothing_spins() {
    let test = "a_link_that_meets_the_descriptor_limit_ends_and_no_other_and_nothing_spins";
    let mut other = Other::start(test, "", |_| {
        let spin = Spin::Adaptive { max: Duration::from_micros(50) };
        let mut stage = Stage::new(Options::new().spin(spin));
        let reactor = Reactor::spawn(&stage.context).unwrap();
        let (near, mut far) = pair_of(&stage.context, &stage.context);
        reactor.adopt(near).unwrap().on_message(|link, message| link.write(message.to_vec()));
        stage.witness.check();
        for served in [false, true] {
            let (mut link, mut peer) = stage.link();
            // Its descriptor is in flight; the next look at the socket takes it.
            peer.send_segment(1, 1 << 20);
            let limit = leave_descriptors(0);
            peer.lend(LENT);
            let error = if served {
                let (say_end, ended) = diary();
                let link = reactor.adopt(link).unwrap();
                link.on_message(|_, _| ());
                link.on_closed(move |_, result| say_end(result));
                hear(&ended).unwrap_err()
            } else {
                link.receiver().recv_deadline(soon()).unwrap_err()
            };
            assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { .. }), "{error}");
            names(&error, "Context::raise_descriptor_limit");
            // Its peer is told at once.
            assert!(raw::receive(&peer.socket).is_none());
            let spent = processor_time();
            thread::sleep(Duration::from_millis(300));
            let spent = processor_time() - spent;
            eprintln!("served: {served}: {spent:?} of processors in 300 ms");
            assert!(spent < Duration::from_millis(150), "it spins: {spent:?}");
            stage.witness.check();
            far.send(b"there?").unwrap();
            assert_eq!(receive(&mut far), b"there?");
            rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
            stage.is_undisturbed();
        }
    });
    other.succeeds();
}

#[test]
fn descriptors_in_flight_of_another_process_cost_an_error_and_no_link_but_new_ones() {
    let test = "descriptors_in_flight_of_another_process_cost_an_error_and_no_link_but_new_ones";
    let mut other = Other::start(test, "victim", |argument| {
        if argument != "victim" {
            return crowd(argument);
        }
        // Started while this process may still start one as another user.
        let mut crowder = Other::spawn(test, "crowded");
        let limit = Rlimit { current: Some(512), maximum: Some(512) };
        rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
        become_nobody();
        let spin = Spin::Adaptive { max: Duration::from_micros(50) };
        let context = Context::with_options(Options::new().spin(spin)).unwrap();
        let name = unique_name();
        let mut listener = context.listen(&name).unwrap();
        let mut witness = Witness::new(&context);
        witness.check();
        let (mut near, mut far) = pair_of(&context, &context);
        let reactor = Reactor::spawn(&context).unwrap();
        let (served, mut served_far) = pair_of(&context, &context);
        let served = reactor.adopt(served).unwrap();
        crowder.tell("crowd");
        crowder.expect("crowded");

        // A new segment cannot be sent: nothing is lost but this message.
        let error = near.send(&[1; 3 << 20]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { .. }), "{error}");
        names(&error, "Too many references");
        near.send(b"short").unwrap();
        assert_eq!(receive(&mut far), b"short");
        witness.check();
        // A write that cannot be sent is told, or ends its link: nobody is left to wonder.
        let (say_done, done) = diary();
        served.write_with(vec![1; 3 << 20], move |_, result| say_done(result));
        let error = hear(&done).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { .. }), "{error}");
        served.write(*b"short");
        assert_eq!(receive(&mut served_far), b"short");
        let (say_end, ended) = diary();
        served.on_closed(move |_, result| say_end(result));
        served.write(vec![1; 3 << 20]);
        let error = hear(&ended).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { .. }), "{error}");
        assert_eq!(served_far.receiver().recv_deadline(soon()).unwrap(), None);

        // No new link: both sides say why, and the listener does not spin.
        let spent = processor_time();
        let refused = context.connect_deadline(&name, soon()).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::DescriptorLimit { .. }), "{refused}");
        let waited = listener.accept_deadline(Instant::now() + Duration::from_millis(300));
        assert!(waited.is_err());
        let spent = processor_time() - spent;
        eprintln!("{spent:?} of processors in 300 ms");
        assert!(spent < Duration::from_millis(150), "it spins: {spent:?}");

        crowder.tell("go");
        crowder.expect("gone");
        near.send(&[1; 3 << 20]).unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap().len(), 3 << 20);
        thread::scope(|scope| {
            let connected = scope.spawn(|| context.connect_deadline(&name, soon()).unwrap());
            let mut accepted = listener.accept_deadline(soon()).unwrap();
            connected.join().unwrap().send(b"hello").unwrap();
            assert_eq!(receive(&mut accepted), b"hello");
        });
        crowder.tell("end");
        say("done");
    });
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: another user needs root to become one");
        return;
    }
    other.expect("done");
    other.succeeds();
}
