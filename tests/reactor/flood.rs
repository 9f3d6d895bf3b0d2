//! A peer floods a reactor with tokens, wake-ups or wrongly returned loans. No callback runs that must not, and another
//! link of the same reactor works.
//!
//! Each test prints the rate of that link. With `SLIPRING_JUDGE=1` half of its rate alone is demanded; the machine must
//! be idle.

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::callbacks::receive;
use crate::support::raw::{self, DATA_BELL, Hello, RETURNS, ROOM_BELL, RawPeer};
use crate::support::{HANG, Stage, pair_of, sample, soon, unique_name, wait_until};
use rustix::process::Signal;
use slipring::message::Token;
use slipring::options::PeerPolicy;
use slipring::{Connection, Context, Link, Options, Reactor};

/// How long each rate is taken.
const SLICE: Duration = Duration::from_millis(100);
const SLICES: usize = 5;

/// Between two round trips.
const PAUSE: Duration = Duration::from_micros(200);

/// A link that the reactor echoes on.
struct Bystander {
    far: Connection,
}

impl Bystander {
    fn new(context: &Context, reactor: &Reactor) -> Self {
        let (near, far) = pair_of(context, context);
        reactor.adopt(near).unwrap().on_message(|link, message| link.write(message.to_vec()));
        Self { far }
    }

    /// Round trips in a slice.
    fn rate(&mut self) -> u64 {
        let start = Instant::now();
        let mut trips = 0;
        while start.elapsed() < SLICE {
            self.far.send(b"there?").unwrap();
            assert_eq!(receive(&mut self.far), b"there?");
            trips += 1;
            // Without a pause the scheduler's luck among three busy threads would be measured.
            thread::sleep(PAUSE);
        }
        trips
    }
}

/// The bystander's rate beside `work`, which goes on for as long as it is told to, and without it; in
/// turns, as machines change.
fn compare(what: &str, bystander: &mut Bystander, mut work: impl FnMut(&AtomicBool) + Send) {
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        // The same work for the processors, which reaches nobody.
        let over = AtomicBool::new(false);
        alone.push(thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let rate = bystander.rate();
            over.store(true, Ordering::Relaxed);
            rate
        }));
        let over = AtomicBool::new(false);
        beside.push(thread::scope(|scope| {
            scope.spawn(|| work(&over));
            let rate = bystander.rate();
            over.store(true, Ordering::Relaxed);
            rate
        }));
    }
    // The best slice of each: in the others the scheduler had put two busy threads on one processor, whose wake-ups
    // then wait for milliseconds, with or without a flood.
    let best = |rates: Vec<u64>| rates.into_iter().max().unwrap_or_default();
    let (alone, beside) = (best(alone), best(beside));
    let percent = beside * 100 / alone.max(1);
    println!("{what}: {beside} round trips in {SLICE:?}, {alone} beside idle work: {percent} %");
    assert!(beside > 0);
    if sample::is_judged() {
        assert!(percent >= 50, "{what}: {percent} % of the rate");
    }
}

struct Scene {
    stage: Stage,
    reactor: Reactor,
    bystander: Bystander,
}

impl Scene {
    fn new() -> Self {
        let stage = Stage::new(Options::new());
        let reactor = Reactor::spawn(&stage.context).unwrap();
        let bystander = Bystander::new(&stage.context, &reactor);
        Self { stage, reactor, bystander }
    }

    fn link(&self) -> (Link, Connection) {
        let (near, far) = pair_of(&self.stage.context, &self.stage.context);
        (self.reactor.adopt(near).unwrap(), far)
    }
}

#[test]
fn a_flood_of_valid_tokens_runs_each_once_and_leaves_a_bystander_its_rate() {
    let mut scene = Scene::new();
    let (link, mut far) = scene.link();
    let (ran, sent) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let count = ran.clone();
    let token = link
        .register(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    compare("valid tokens", &mut scene.bystander, |over| {
        while !over.load(Ordering::Relaxed) {
            if far.sender().try_trigger(token).is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let sent = sent.into_inner();
    wait_until("the last token", || ran.load(Ordering::Relaxed) == sent);
    assert_eq!(link.stale_tokens(), 0);
    scene.stage.is_undisturbed();
}

#[test]
fn floods_of_foreign_and_stale_tokens_run_nothing_and_leave_a_bystander_its_rate() {
    let mut scene = Scene::new();
    let (innocent, mut innocent_far) = scene.link();
    let (link, mut far) = scene.link();
    let ran = Arc::new(AtomicU64::new(0));
    // All that another link has handed out, and all that this one has taken back.
    let mut tokens: Vec<Token> = (0..300)
        .map(|_| {
            let ran = ran.clone();
            innocent
                .register(move |_| {
                    ran.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap()
        })
        .collect();
    let stale: Vec<Token> = (0..300)
        .map(|_| {
            let ran = ran.clone();
            let token = link
                .register(move |_| {
                    ran.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
            assert!(link.unregister(token));
            token
        })
        .collect();
    // A token of this link means nothing on the link that has taken it back.
    tokens.retain(|token| !stale.contains(token));
    tokens.extend(stale);
    tokens.extend([0, 1, u32::MAX, 0xFFFF, 0xFFFF_0000].map(Token::from));
    let mut sent = 0;
    compare("foreign and stale tokens", &mut scene.bystander, |over| {
        for token in tokens.iter().cycle() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            sent += u64::from(far.sender().try_trigger(*token).is_ok());
        }
    });
    wait_until("the last token", || link.stale_tokens() == sent);
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    // The owner's own peer may use them.
    innocent_far.sender().trigger(tokens[0]).unwrap();
    wait_until("the owner's trigger", || ran.load(Ordering::Relaxed) == 1);
    scene.stage.is_undisturbed();
}

/// Lets a raw peer act on a reactor without end. Its link may end with it. Returns whether it is open.
fn harass(what: &str, mut act: impl FnMut(&mut RawPeer, u64) + Send) -> bool {
    let mut scene = Scene::new();
    let (connection, mut peer) = scene.stage.link();
    // Where there is no room it tries again.
    rustix::io::ioctl_fionbio(&peer.socket, true).unwrap();
    let link = scene.reactor.adopt(connection).unwrap();
    link.on_message(|_, _| ());
    let mut round = 0;
    compare(what, &mut scene.bystander, |over| {
        while !over.load(Ordering::Relaxed) {
            round += 1;
            act(&mut peer, round);
        }
    });
    scene.stage.is_undisturbed();
    link.is_open()
}

#[test]
fn bells_that_ring_for_nothing_leave_a_bystander_its_rate() {
    harass("bells", |peer, _| {
        peer.own.ring(DATA_BELL);
        peer.own.ring(ROOM_BELL);
    });
}

#[test]
fn generations_that_were_never_lent_return_nothing_and_leave_a_bystander_its_rate() {
    harass("generations", |peer, round| {
        for slot in 0..peer.hello.loan_slots as usize {
            peer.own.store(RETURNS + 8 * slot, round ^ slot as u64);
        }
        peer.own.ring(ROOM_BELL);
    });
}

#[test]
fn wake_ups_that_nobody_asked_for_leave_their_link_open_and_a_bystander_its_rate() {
    let is_open = harass("wake-ups", |peer, round| {
        // Where the queue is full it only tries.
        let _ = raw::send(&peer.socket, &raw::wake_packet(1 + (round & 1) as u32), &[]);
        if round.is_multiple_of(64) {
            // Makes the loop read the socket, so that more wake-ups have room.
            peer.publish(raw::header(raw::PACKETS, 0), &[]);
        }
    });
    assert!(is_open, "a superfluous wake-up is no fault");
}

#[test]
fn segments_that_come_and_go_leave_a_bystander_its_rate() {
    harass("segments", |peer, round| {
        let (fd, _memory) = raw::segment(1 << 20);
        let packet = raw::segment_packet(round as u32, 1 << 20);
        let sent = raw::send(&peer.socket, &packet, &[fd.as_fd()]);
        let _ = sent.and_then(|()| raw::send(&peer.socket, &raw::retire_packet(round as u32), &[]));
        peer.own.ring(DATA_BELL);
        thread::sleep(Duration::from_micros(200));
    });
}

#[test]
fn responses_to_requests_of_another_link_are_a_fault_of_their_own_link() {
    let scene = Scene::new();
    let (asker, mut asked) = scene.link();
    let (link, mut forger) = scene.link();
    let (said, answer) = std::sync::mpsc::channel();
    asker.call_with(*b"question", move |_, answer| said.send(answer).unwrap());
    let request = asked.recv_request().unwrap().unwrap();
    // The same number means nothing on another link.
    forger.respond(request.id, b"forged").unwrap();
    wait_until("the end of the forger's link", || !link.is_open());
    assert!(answer.try_recv().is_err(), "somebody else has answered");
    asked.respond(request.id, b"answer").unwrap();
    assert_eq!(crate::support::callbacks::hear(&answer).unwrap(), b"answer");
}

#[test]
fn peers_that_are_expensive_to_check_delay_nobody_for_long() {
    let scene = Scene::new();
    let Scene { stage, reactor, mut bystander } = scene;
    let Stage { context, name, listener, .. } = stage;
    let serving = reactor.clone();
    reactor
        .accept_with(listener, move |accepted| {
            let _ = accepted.and_then(|connection| serving.adopt(connection));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    // Its pages are counted each time.
    let hello = Hello { ring_capacity: 512 << 20, ..Hello::honest() };
    let Ok((fd, _memory)) = std::panic::catch_unwind(|| raw::segment(hello.segment_len())) else {
        eprintln!("skipped: half a GiB of shared memory is too much here");
        return;
    };
    let over = AtomicBool::new(false);
    let worst = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if let Some(socket) = raw::try_dial(&name) {
                    let _ = raw::send(&socket, &hello.encode(), &[fd.as_fd()]);
                }
            }
        });
        let start = Instant::now();
        let mut worst = Duration::ZERO;
        while start.elapsed() < SLICE * 4 {
            let since = Instant::now();
            bystander.far.send(b"there?").unwrap();
            assert_eq!(receive(&mut bystander.far), b"there?");
            worst = worst.max(since.elapsed());
        }
        over.store(true, Ordering::Relaxed);
        worst
    });
    println!("peers that cost much: the longest round trip took {worst:?}");
    assert!(worst < HANG / 4, "{worst:?}");
    drop(context);
}

/// A process of another user that connects again and again.
struct Connects(Child);

impl Connects {
    /// Starts it. `None`, said aloud, where this machine cannot.
    fn start(name: &str, what: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can be another user");
            return None;
        }
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/connects.py"));
        command.args([name, "12345", what]).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("skipped: there is no python3");
            return None;
        };
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        Some(Self(child))
    }

    /// Stops it, or lets it go on.
    fn goes_on(&self, goes_on: bool) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let signal = if goes_on { Signal::CONT } else { Signal::STOP };
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Connects {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Floods the listener of a reactor, with a link of the same reactor beside it and with honest peers.
fn withstands_connects(policy: PeerPolicy, what: &str) {
    let context = Context::with_options(Options::new().peer_policy(policy)).unwrap();
    let name = unique_name();
    let reactor = Reactor::spawn(&context).unwrap();
    let serving = reactor.clone();
    let accept = move |accepted: slipring::Result<Connection>| {
        if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
            link.on_message(|link, message| link.write(message.to_vec()));
        }
        ControlFlow::Continue(())
    };
    reactor.accept_with(context.listen(&name).unwrap(), accept).unwrap();
    let mut bystander = Bystander::new(&context, &reactor);
    let Some(flooder) = Connects::start(&name, what) else { return };
    flooder.goes_on(false);
    compare(&format!("connects of another user, {what}"), &mut bystander, |over| {
        flooder.goes_on(true);
        while !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        flooder.goes_on(false);
    });
    flooder.goes_on(true);
    thread::sleep(Duration::from_millis(300));
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let start = Instant::now();
        let deadline = if sample::is_judged() { start + Duration::from_secs(1) } else { soon() };
        let mut link = context.connect_deadline(&name, deadline).unwrap();
        link.send(b"there?").unwrap();
        assert_eq!(receive(&mut link), b"there?");
        longest = longest.max(start.elapsed());
    }
    println!("{what}: an honest peer connects within {longest:?}");
}

#[test]
fn connects_of_users_that_are_not_admitted_leave_links_their_rate_and_honest_peers_a_place() {
    withstands_connects(PeerPolicy::SameUser, "lies");
    withstands_connects(PeerPolicy::SameUser, "silent");
}

#[test]
fn connects_of_an_admitted_user_leave_links_their_rate_and_others_a_place() {
    withstands_connects(PeerPolicy::Anyone, "silent");
    withstands_connects(PeerPolicy::Anyone, "lies");
}
