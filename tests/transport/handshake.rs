//! Two processes meet, or both learn why not. The listener continues, no matter what a peer does.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::census::{Census, leave_descriptors, processor_time};
use crate::support::other::{self, Other, over_threads_and_processes, say};
use crate::support::raw::{self, *};
use crate::support::{Stage, fault, soon, unique_name, wait_until};
use rustix::fs::{Mode, OFlags, SealFlags};
use slipring::error::Fault;
use slipring::options::PeerPolicy;
use slipring::peer::Peer;
use slipring::{Address, Connection, Context, Error, ErrorKind, Options};

fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

/// Runs `Context::connect` against a raw listener, which hears the Hello, answers by `answer` and
/// stays.
fn connect_to(answer: impl FnOnce(OwnedFd)) -> Result<Connection, Error> {
    let mut held = None;
    connect_to_mortal(|socket| {
        held = Some(socket.try_clone().unwrap());
        raw::receive(&socket).expect("a Hello");
        answer(socket);
    })
}

/// As [`connect_to`], but the raw listener receives nothing by itself, and its end closes when `answer` drops it.
fn connect_to_mortal(answer: impl FnOnce(OwnedFd)) -> Result<Connection, Error> {
    let name = unique_name();
    let listener = raw::listen(&name);
    let connector = thread::spawn(move || Context::new().unwrap().connect_deadline(&name, soon()));
    answer(raw::accept(&listener));
    connector.join().unwrap()
}

/// Returns the refusal that a raw peer receives for this packet.
fn refusal_of(stage: &mut Stage, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Option<u32> {
    let socket = raw::dial(&stage.name);
    raw::send(&socket, packet, fds).unwrap();
    let refused = stage.listener.stats().refused;
    let until = Instant::now() + Duration::from_millis(500);
    while stage.listener.stats().refused == refused {
        assert!(Instant::now() < until, "neither refused nor accepted");
        assert!(stage.listener.try_accept().unwrap().is_none(), "accepted");
    }
    let (answer, fds) = raw::receive(&socket)?;
    assert!(fds.is_empty(), "a refused peer gets no descriptor");
    assert!(raw::receive(&socket).is_none(), "a refusal is the last packet");
    Some(raw::refusal_code(&answer).expect("a refusal"))
}

const BAD_HELLO: Option<u32> = Some(2);
const BAD_SEGMENT: Option<u32> = Some(3);

#[test]
fn a_name_that_cannot_be_is_refused_with_the_reason() {
    let context = Context::new().unwrap();
    let long = "x".repeat(108);
    let cases = [
        ("", ErrorKind::AddressEmpty),
        (long.as_str(), ErrorKind::AddressTooLong { len: 108, max: 107 }),
        ("cam\0era", ErrorKind::AddressNul { at: 3 }),
        ("\0", ErrorKind::AddressNul { at: 0 }),
    ];
    for (name, expected) in cases {
        assert_eq!(kind(context.listen(name)), expected);
        assert_eq!(kind(context.connect(name)), expected);
        assert_eq!(kind(context.connect_retry(name, soon())), expected);
        assert_eq!(kind(Address::path(name)), expected);
    }
}

#[test]
fn the_longest_name_and_odd_bytes_are_names() {
    let context = Context::new().unwrap();
    let mut longest = unique_name().into_bytes();
    longest.resize(107, b'x');
    let mut odd = unique_name().into_bytes();
    odd.extend([0xFF, b'/', b' ', b'\n', 1]);
    for name in [longest, odd] {
        let address = Address::named(&name).unwrap();
        let mut listener = context.listen(&address).unwrap();
        let connector = thread::spawn({
            let (context, address) = (context.clone(), address.clone());
            move || context.connect_deadline(&address, soon()).unwrap()
        });
        listener.accept_deadline(soon()).unwrap();
        connector.join().unwrap();
        // No truncation: a prefix is another name.
        let prefix = Address::named(&name[..name.len() - 1]).unwrap();
        assert!(matches!(kind(context.connect(&prefix)), ErrorKind::NobodyListens { .. }));
    }
}

#[test]
fn a_name_in_use_is_said_and_free_again_after_the_listener() {
    let context = Context::new().unwrap();
    let name = unique_name();
    let listener = context.listen(&name).unwrap();
    let expected = ErrorKind::AddressInUse { address: format!("@{name}") };
    assert_eq!(kind(context.listen(&name)), expected);
    assert_eq!(kind(Context::new().unwrap().listen(&name)), expected);
    drop(listener);
    context.listen(&name).unwrap();
}

#[test]
fn nobody_listens_is_said_at_once() {
    let context = Context::new().unwrap();
    let name = unique_name();
    let expected = ErrorKind::NobodyListens { address: format!("@{name}") };
    assert_eq!(kind(context.connect(&name)), expected);
    let path = Address::path(std::env::temp_dir().join(&name)).unwrap();
    assert!(matches!(kind(context.connect(&path)), ErrorKind::NobodyListens { .. }));
}

#[test]
fn a_retrying_connect_waits_for_a_listener_and_not_longer_than_told() {
    let context = Context::new().unwrap();
    let name = unique_name();
    let end = context.connect_retry(&name, Instant::now() + Duration::from_millis(30));
    assert!(matches!(kind(end), ErrorKind::NobodyListens { .. }));
    let connector = thread::spawn({
        let (context, name) = (context.clone(), name.clone());
        move || context.connect_retry(&name, soon()).unwrap()
    });
    thread::sleep(Duration::from_millis(20));
    let mut listener = context.listen(&name).unwrap();
    listener.accept_deadline(soon()).unwrap();
    connector.join().unwrap();
}

#[test]
fn a_listener_that_goes_during_a_handshake_leaves_nobody_waiting_and_no_half_of_a_link() {
    let context = Context::new().unwrap();
    let mut outcomes = [0; 2];
    for round in 0..300 {
        let name = unique_name();
        let mut listener = context.listen(&name).unwrap();
        let connecting = {
            let context = context.clone();
            thread::spawn(move || context.connect_deadline(&name, soon()))
        };
        // Any moment of the handshake, with one look at the end or with many before it.
        let until = Instant::now() + Duration::from_micros(10 * round);
        let mut accepted = None;
        while Instant::now() < until && accepted.is_none() {
            if round % 2 == 0 {
                accepted = listener.try_accept().unwrap();
            }
        }
        if round % 2 == 1 {
            accepted = listener.try_accept().unwrap();
        }
        drop(listener);
        match connecting.join().unwrap() {
            Ok(mut near) => {
                let mut far = accepted.expect("both have a link, or neither");
                far.send(b"met").unwrap();
                assert_eq!(near.recv().unwrap().as_deref(), Some(&b"met"[..]));
                outcomes[0] += 1;
            }
            Err(error) => {
                let gone = matches!(error.kind(), ErrorKind::PeerClosed)
                    || matches!(error.kind(), ErrorKind::NobodyListens { .. });
                assert!(gone && accepted.is_none(), "{error:?}, accepted: {accepted:?}");
                outcomes[1] += 1;
            }
        }
    }
    eprintln!("{} met, {} were left", outcomes[0], outcomes[1]);
}

#[test]
fn every_way_to_meet_gives_a_working_link() {
    let context = Context::new().unwrap();
    let works = |mut near: Connection, mut far: Connection| {
        near.send(b"question").unwrap();
        assert_eq!(far.receiver().recv_deadline(soon()).unwrap().unwrap(), b"question");
        far.send(&[1; 20_000]).unwrap();
        let back = near.receiver().recv_deadline(soon()).unwrap().unwrap();
        assert_eq!(back, vec![1; 20_000]);
    };
    let meet = |listener: &mut slipring::Listener, address: &Address| {
        thread::scope(|scope| {
            let connector = scope.spawn(|| context.connect_deadline(address, soon()).unwrap());
            let far = listener.accept_deadline(soon()).unwrap();
            works(connector.join().unwrap(), far);
        });
    };
    // A fresh address, told as text.
    let fresh = Address::fresh();
    let told = Address::named(&fresh.to_string()[1..]).unwrap();
    let mut listener = context.listen(&fresh).unwrap();
    assert_eq!(listener.address(), Some(&fresh));
    meet(&mut listener, &told);
    // A path.
    let file = std::env::temp_dir().join(unique_name());
    let path = Address::path(&file).unwrap();
    let mut listener = context.listen(&path).unwrap();
    meet(&mut listener, &path);
    drop(listener);
    assert!(!file.exists(), "a listener removes its path");
    // A socket that listens already.
    let name = unique_name();
    let mut listener = context.listen_on(raw::listen(&name)).unwrap();
    assert_eq!(listener.address(), None);
    meet(&mut listener, &Address::named(&name).unwrap());
    // Two ends of a pair.
    let (near, far) = raw::socketpair();
    thread::scope(|scope| {
        let connector = scope.spawn(|| context.connect_socket(near).unwrap());
        let far = context.accept_socket(far).unwrap();
        works(connector.join().unwrap(), far);
    });
}

#[test]
fn a_pair_of_sockets_is_inherited_over_threads_and_processes() {
    // The pair cannot cross an exec here without unsafe code, so the socket goes over a link's
    // name: the other process dials and hands the connected socket in.
    over_threads_and_processes(
        "a_pair_of_sockets_is_inherited_over_threads_and_processes",
        Options::new,
        |mut link| {
            let name = link.receiver().recv_deadline(soon()).unwrap().unwrap();
            let socket = raw::dial(std::str::from_utf8(&name).unwrap());
            let mut second = Context::new().unwrap().accept_socket(socket).unwrap();
            assert_eq!(second.receiver().recv_deadline(soon()).unwrap().unwrap(), b"over the pair");
        },
        |mut link| {
            let name = unique_name();
            let listener = raw::listen(&name);
            link.send(name.as_bytes()).unwrap();
            let socket = raw::accept(&listener);
            let mut second = Context::new().unwrap().connect_socket(socket).unwrap();
            second.send(b"over the pair").unwrap();
            second.close().unwrap();
        },
    );
}

#[test]
fn a_stale_path_is_taken_over_and_a_living_one_is_not() {
    let context = Context::new().unwrap();
    let file = std::env::temp_dir().join(unique_name());
    let path = Address::path(&file).unwrap();
    // A socket file that nobody listens on any more: what a killed process leaves.
    drop(UnixListener::bind(&file).unwrap());
    drop(context.listen(&path).unwrap());
    assert!(!file.exists());
    std::fs::write(&file, "no socket").unwrap();
    assert!(matches!(kind(context.listen(&path)), ErrorKind::AddressInUse { .. }));
    assert_eq!(std::fs::read(&file).unwrap(), b"no socket", "other files are left alone");
    std::fs::remove_file(&file).unwrap();
    let listener = context.listen(&path).unwrap();
    assert!(matches!(kind(context.listen(&path)), ErrorKind::AddressInUse { .. }));
    drop(listener);
}

#[test]
fn listeners_that_want_one_path_at_a_time_never_take_a_living_one_for_stale() {
    let file = std::env::temp_dir().join(unique_name());
    let path = Address::path(&file).unwrap();
    let (living, listened, deadline) = (AtomicUsize::new(0), AtomicUsize::new(0), soon());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let context = Context::new().unwrap();
                for round in 0.. {
                    if listened.load(Ordering::SeqCst) >= 200 {
                        break;
                    }
                    assert!(Instant::now() < deadline, "nobody can listen");
                    match context.listen(&path) {
                        Ok(listener) => {
                            assert_eq!(living.fetch_add(1, Ordering::SeqCst), 0, "two listen");
                            listened.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            assert!(file.exists(), "another listener removed the file");
                            living.fetch_sub(1, Ordering::SeqCst);
                            drop(listener);
                        }
                        Err(error) => {
                            let kind = error.kind();
                            assert!(matches!(kind, ErrorKind::AddressInUse { .. }), "{error:#}");
                        }
                    }
                    if round % 8 == 0 && living.load(Ordering::SeqCst) == 0 {
                        // A process that dies.
                        drop(UnixListener::bind(&file));
                    }
                }
            });
        }
    });
    let _ = std::fs::remove_file(&file);
}

#[test]
fn a_folder_whose_lock_somebody_keeps_costs_the_removal_of_files_alone() {
    let folder = std::env::temp_dir().join(unique_name());
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("socket");
    let path = Address::path(&file).unwrap();
    let context = Context::new().unwrap();
    let locked = File::open(&folder).unwrap();
    locked.lock().unwrap();
    drop(context.listen(&path).unwrap());
    assert!(file.exists(), "without the lock it is left");
    assert!(matches!(kind(context.listen(&path)), ErrorKind::AddressInUse { .. }));
    drop(locked);
    drop(context.listen(&path).unwrap());
    assert!(!file.exists());
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn a_descriptor_that_is_no_such_socket_is_refused() {
    let context = Context::new().unwrap();
    let expected = ErrorKind::NotSeqpacket;
    let name = unique_name();
    let no_sockets = || -> Vec<OwnedFd> {
        let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let (datagram, _) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        vec![File::open("/dev/null").unwrap().into(), stream.into(), datagram.into(), tcp.into()]
    };
    for fd in no_sockets() {
        assert_eq!(kind(context.listen_on(fd)), expected);
    }
    for fd in no_sockets() {
        assert_eq!(kind(context.connect_socket(fd)), expected);
    }
    for fd in no_sockets() {
        assert_eq!(kind(context.accept_socket(fd)), expected);
    }
    assert_eq!(kind(context.listen_on(raw::socketpair().0)), expected);
    assert_eq!(kind(context.connect_socket(raw::listen(&name))), expected);
    assert_eq!(kind(context.accept_socket(raw::listen(&unique_name()))), expected);
}

#[test]
fn a_policy_that_refuses_is_heard_on_both_sides() {
    let none = || Options::new().peer_policy(PeerPolicy::Custom(Arc::new(|_| false)));
    let uid = rustix::process::geteuid().as_raw();
    let mut stage = Stage::new(Options::new());
    let name = unique_name();
    // The listener refuses.
    let strict = Context::with_options(none()).unwrap();
    let mut listener = strict.listen(&name).unwrap();
    let connector = thread::spawn({
        let name = name.clone();
        move || kind(Context::new().unwrap().connect_deadline(&name, soon()))
    });
    wait_until("the refusal", || {
        assert!(listener.try_accept().unwrap().is_none());
        listener.stats().refused == 1
    });
    let refused = ErrorKind::NotAdmittedByPeer;
    assert_eq!(connector.join().unwrap(), refused);
    // The connecting side refuses, before any descriptor leaves.
    let raw_listener = raw::listen(&unique_name());
    let _ = raw_listener;
    let not_admitted = ErrorKind::PeerNotAdmitted { uid };
    assert_eq!(kind(strict.connect(&stage.name)), not_admitted);
    stage.is_undisturbed();
    let seen = stage.listener.stats();
    assert_eq!((seen.accepted, seen.refused + seen.silent), (1, 1), "{seen:?}");
}

#[test]
fn a_policy_is_asked_about_the_maker_and_about_the_sender() {
    let asked = Arc::new(AtomicUsize::new(0));
    let policy = |limit: usize| {
        let asked = asked.clone();
        asked.store(0, Ordering::SeqCst);
        let admits = move |who: &Peer| {
            assert_eq!(who.uid(), rustix::process::geteuid().as_raw());
            assert_eq!(who.pid(), Some(std::process::id()));
            asked.fetch_add(1, Ordering::SeqCst) < limit
        };
        Options::new().peer_policy(PeerPolicy::Custom(Arc::new(admits)))
    };
    for (limit, admitted) in [(0, false), (1, false), (2, true)] {
        let context = Context::with_options(policy(limit)).unwrap();
        let name = unique_name();
        let mut listener = context.listen(&name).unwrap();
        let peer = RawPeer::greet(raw::dial(&name), Hello::honest());
        let accepted = listener.accept_deadline(Instant::now() + Duration::from_millis(50));
        assert_eq!(accepted.is_ok(), admitted);
        assert_eq!(asked.load(Ordering::SeqCst), if limit == 0 { 1 } else { 2 });
        let (answer, _fds) = raw::receive(&peer.socket).unwrap();
        assert_eq!(raw::refusal_code(&answer), (!admitted).then_some(1));
        // The same on the connecting side.
        let context = Context::with_options(policy(limit)).unwrap();
        let listener = raw::listen(&unique_name_of(&name));
        let target = unique_name_of(&name);
        let connector = thread::spawn(move || context.connect_deadline(&target, soon()));
        let socket = raw::accept(&listener);
        let heard = raw::receive(&socket);
        assert_eq!(heard.is_some(), limit > 0, "no descriptor leaves before the first question");
        if limit > 0 {
            RawPeer::greet(socket, Hello::honest());
        }
        let met = connector.join().unwrap();
        match admitted {
            true => drop(met.unwrap()),
            false => assert!(matches!(kind(met), ErrorKind::PeerNotAdmitted { .. })),
        }
    }
}

fn unique_name_of(name: &str) -> String {
    format!("{name}-raw")
}

#[test]
fn another_user_is_refused_and_admitted_only_by_a_policy() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: another user needs root to become one");
        return;
    }
    let name = unique_name();
    let test = "another_user_is_refused_and_admitted_only_by_a_policy";
    let mut other = Other::start(test, &name, |name| {
        let become_nobody = || {
            // SAFETY: sets ids of this process, in which nobody else relies on them.
            assert_eq!(unsafe { libc::setgid(65534) }, 0);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setuid(65534) }, 0);
        };
        become_nobody();
        let context = Context::new().unwrap();
        // Our own policy first: root is not us.
        let met = context.connect_retry(format!("{name}-any"), soon());
        assert_eq!(kind(met), ErrorKind::PeerNotAdmitted { uid: 0 });
        let open = Options::new().peer_policy(PeerPolicy::Anyone);
        let context = Context::with_options(open).unwrap();
        let met = context.connect_retry(format!("{name}-same"), soon());
        assert_eq!(kind(met), ErrorKind::NotAdmittedByPeer);
        let mut link = context.connect_retry(format!("{name}-any"), soon()).unwrap();
        assert_eq!(link.peer().uid(), 0);
        link.send(b"from nobody").unwrap();
        link.send(&[1; 20_000]).unwrap();
        link.close().unwrap();
        say("done");
    });
    let same = Context::new().unwrap();
    let mut refusing = same.listen(format!("{name}-same")).unwrap();
    let refuser = thread::spawn(move || {
        wait_until("the refusal", || {
            assert!(refusing.try_accept().unwrap().is_none());
            refusing.stats().refused == 1
        });
    });
    let any = Options::new().peer_policy(PeerPolicy::Anyone);
    let any = Context::with_options(any).unwrap();
    let mut listener = any.listen(format!("{name}-any")).unwrap();
    let mut link = listener.accept_deadline(soon()).unwrap();
    assert_eq!((link.peer().uid(), link.peer().gid()), (65534, 65534));
    assert_eq!(link.peer().pid(), Some(other.pid()));
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"from nobody");
    assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), vec![1; 20_000]);
    refuser.join().unwrap();
    other.expect("done");
    other.succeeds();
}

/// Enters a user namespace of its own, in a process of one thread. `maps`: its user appears there as the overflow uid.
/// Otherwise the namespace maps nobody, and every user appears as that.
fn enter_user_namespace(maps: bool) -> std::io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: changes the credentials of this process alone, which holds nothing that depends on them.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if maps {
        std::fs::write("/proc/self/uid_map", format!("65534 {} 1", user.as_raw()))?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/gid_map", format!("65534 {} 1", group.as_raw()))?;
    }
    assert_eq!(rustix::process::geteuid().as_raw(), 65534);
    Ok(())
}

#[test]
fn users_that_the_user_namespace_does_not_map_are_nobodys_equals() {
    let test = "users_that_the_user_namespace_does_not_map_are_nobodys_equals";
    for maps in [true, false] {
        // In the other process, its argument says which.
        let argument = format!("{maps} {}", unique_name());
        let mut server = Other::start(test, &argument, |argument| {
            let (maps, name) = argument.split_once(' ').unwrap();
            let ended = other::fork(|| {
                if let Err(error) = enter_user_namespace(maps == "true") {
                    return say(&format!("no user namespace: {error}"));
                }
                let mut listener = Context::new().unwrap().listen(name).unwrap();
                // Neither the maker of its own socket nor anybody else.
                let met = Context::new().unwrap().connect_deadline(name, soon()).unwrap_err();
                assert_eq!(*met.kind(), ErrorKind::PeerNotAdmitted { uid: 65534 });
                assert!(format!("{met:#}").contains("user_namespaces(7)"), "{met:#}");
                assert!(listener.try_accept().unwrap().is_none());
                say("listening");
                let seen = listener.stats().refused;
                wait_until("the refusals", || {
                    assert!(listener.try_accept().unwrap().is_none(), "a stranger is admitted");
                    listener.stats().refused == seen + 2
                });
            });
            assert_eq!(ended, 0);
        });
        let first = server.hear();
        if first != "listening" {
            eprintln!("SKIPPED: {first}");
            return;
        }
        let (_, name) = argument.split_once(' ').unwrap();
        // The user of this process, and another one where this one is root. Both trust anybody.
        for uid in [None, Some(5000)] {
            let ended = other::fork(|| {
                if let Some(uid) = uid.filter(|_| rustix::process::geteuid().is_root()) {
                    // SAFETY: sets ids of this process, in which nobody else relies on them.
                    assert_eq!(unsafe { libc::setuid(uid) }, 0);
                }
                let anyone = Options::new().peer_policy(PeerPolicy::Anyone);
                let met = Context::with_options(anyone).unwrap().connect_deadline(name, soon());
                // A server without an identity can send no refusal.
                let expected =
                    if maps { ErrorKind::NotAdmittedByPeer } else { ErrorKind::PeerClosed };
                assert_eq!(kind(met), expected);
            });
            assert_eq!(ended, 0);
        }
        server.succeeds();
    }
}

#[test]
fn a_process_without_an_identity_is_told_why_it_cannot_connect() {
    let test = "a_process_without_an_identity_is_told_why_it_cannot_connect";
    other::alone(test, || {
        let name = unique_name();
        let mut listener = Context::new().unwrap().listen(&name).unwrap();
        let ended = other::fork(|| {
            if let Err(error) = enter_user_namespace(false) {
                eprintln!("SKIPPED: no user namespace: {error}");
                return;
            }
            let anyone = Options::new().peer_policy(PeerPolicy::Anyone);
            let met = Context::with_options(anyone).unwrap().connect_deadline(&name, soon());
            let met = met.unwrap_err();
            assert_eq!(*met.kind(), ErrorKind::UnmappedUser);
            assert!(met.to_string().contains("uid_map"), "{met}");
        });
        assert_eq!(ended, 0);
        assert!(listener.try_accept().unwrap().is_none());
    });
}

#[test]
fn without_a_common_version_both_sides_learn_both_ranges() {
    let mut stage = Stage::new(Options::new());
    for theirs in [(0, 0), (2, 2), (2, 9), (7, u16::MAX)] {
        let hello = Hello { version_min: theirs.0, version_max: theirs.1, ..Hello::honest() };
        // We connect.
        let met = connect_to(|socket| drop(RawPeer::greet(socket, hello)));
        assert_eq!(kind(met), ErrorKind::NoCommonVersion { ours: (1, 1), theirs });
        // They connect, and our refusal carries our range.
        let peer = RawPeer::greet(raw::dial(&stage.name), hello);
        stage.refuses_one();
        let (answer, _) = raw::receive(&peer.socket).unwrap();
        assert_eq!(raw::refusal_code(&answer), BAD_HELLO);
        assert_eq!(answer[16..20], [1, 0, 1, 0]);
        // They refuse us, with their range.
        let met = connect_to(|socket| {
            raw::send(&socket, &raw::refusal_packet(theirs, 2), &[]).unwrap();
        });
        assert_eq!(kind(met), ErrorKind::NoCommonVersion { ours: (1, 1), theirs });
    }
    // A wider range that holds ours is fine.
    let wide = Hello { version_min: 0, version_max: 9, ..Hello::honest() };
    stage.link_with(wide);
    stage.is_undisturbed();
}

#[test]
fn a_refusal_is_told_with_its_reason() {
    for code in [1, 2, 3, 4, 0, u32::MAX] {
        let reason = match code {
            1 => ErrorKind::NotAdmittedByPeer,
            code => ErrorKind::RefusedByPeer { code },
        };
        let met = connect_to(|socket| {
            raw::send(&socket, &raw::refusal_packet((1, 1), code), &[]).unwrap();
        });
        assert_eq!(kind(met), reason);
        // Also one that comes before our Hello was read, or sent.
        let met = connect_to_mortal(|socket| {
            raw::send(&socket, &raw::refusal_packet((1, 1), code), &[]).unwrap();
        });
        assert_eq!(kind(met), reason);
    }
}

#[test]
fn a_silent_listener_costs_a_deadline() {
    let name = unique_name();
    let _listener = raw::listen(&name);
    let options = Options::new().handshake_timeout(Duration::from_millis(30));
    let context = Context::with_options(options).unwrap();
    assert!(context.connect(&name).unwrap_err().is_timeout());
    let deadline = Instant::now() + Duration::from_millis(30);
    assert!(Context::new().unwrap().connect_deadline(&name, deadline).unwrap_err().is_timeout());
    let (near, far) = raw::socketpair();
    assert!(context.connect_socket(near).unwrap_err().is_timeout());
    drop(far);
    let (near, _far) = raw::socketpair();
    assert!(context.accept_socket(near).unwrap_err().is_timeout());
}

#[test]
fn a_listener_whose_queue_is_full_costs_a_deadline() {
    let name = unique_name();
    let listener = raw::listen(&name);
    rustix::net::listen(&listener, 0).unwrap();
    let _first = raw::dial(&name);
    let deadline = Instant::now() + Duration::from_millis(30);
    let met = Context::new().unwrap().connect_deadline(&name, deadline);
    assert!(met.unwrap_err().is_timeout());
}

/// Returns how many times this thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_peer_sleeps_until_a_full_queue_has_a_place_for_it() {
    let name = unique_name();
    let listener = raw::listen(&name);
    rustix::net::listen(&listener, 0).unwrap();
    let _first = raw::dial(&name);
    let options = Options::new().handshake_timeout(Duration::from_millis(500));
    let context = Context::with_options(options).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let (start, before) = (Instant::now(), sleeps());
            assert!(context.connect(&name).unwrap_err().is_timeout());
            (start.elapsed(), sleeps() - before)
        });
        thread::sleep(Duration::from_millis(300));
        drop(raw::accept(&listener));
        // The one that waits, which sends its Hello and hears nothing.
        let waiter = raw::accept(&listener);
        assert!(raw::receive(&waiter).is_some());
        let (time, sleeps) = waits.join().unwrap();
        assert!(time < Duration::from_secs(2), "{time:?}");
        assert!(sleeps < 30, "it slept {sleeps} times");
    });
}

#[test]
fn a_silent_peer_is_dropped_at_its_deadline_and_blocks_nobody() {
    let mut stage = Stage::new(Options::new().handshake_timeout(Duration::from_millis(50)));
    let silent = raw::dial(&stage.name);
    let ended = stage.listener.accept_deadline(Instant::now() + Duration::from_millis(20));
    assert!(ended.unwrap_err().is_timeout());
    assert_eq!(stage.listener.stats().silent, 0, "its time is not over");
    wait_until("the end of the silent peer", || {
        assert!(stage.listener.try_accept().unwrap().is_none());
        stage.listener.stats().silent == 1
    });
    assert!(raw::receive(&silent).is_none(), "it was hung up");
    stage.is_undisturbed();
}

#[test]
fn a_flood_of_silent_peers_keeps_no_honest_one_out() {
    let limit = 16;
    let mut stage = Stage::new(Options::new().half_open_limit(limit));
    // Kept open: the listener has to let go of them itself.
    let flood: Vec<OwnedFd> = (0..limit * 5).map(|_| raw::dial(&stage.name)).collect();
    stage.is_undisturbed();
    let more: Vec<OwnedFd> = (0..limit * 5).map(|_| raw::dial(&stage.name)).collect();
    stage.is_undisturbed();
    let seen = stage.listener.stats();
    assert!(seen.silent >= (limit * 9) as u64, "{seen:?}");
    assert_eq!(seen.accepted, 2);
    drop((flood, more));
    stage.is_undisturbed();
}

#[test]
fn a_flood_of_liars_does_not_outlast_a_deadline() {
    let mut stage = Stage::new(Options::new());
    let stop = AtomicUsize::new(0);
    thread::scope(|scope| {
        let name = stage.name.clone();
        let stop = &stop;
        scope.spawn(move || {
            while stop.load(Ordering::Relaxed) == 0 {
                match raw::try_dial(&name) {
                    Some(liar) => drop(raw::send(&liar, &[0xAA; 128], &[])),
                    None => thread::yield_now(),
                }
            }
        });
        let start = Instant::now();
        for _ in 0..5 {
            let met = stage.listener.accept_deadline(Instant::now() + Duration::from_millis(20));
            let timed_out = met.as_ref().is_err_and(Error::is_timeout);
            stop.store(if timed_out { 0 } else { 1 }, Ordering::Relaxed);
            assert!(timed_out, "{met:?}");
        }
        stop.store(1, Ordering::Relaxed);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(stage.listener.stats().refused > 0);
    });
    stage.is_undisturbed();
}

#[test]
fn a_peer_that_hangs_up_without_a_word_is_nothing() {
    let mut stage = Stage::new(Options::new());
    for _ in 0..100 {
        drop(raw::dial(&stage.name));
    }
    stage.is_undisturbed();
    let socket = raw::dial(&stage.name);
    assert!(stage.listener.try_accept().unwrap().is_none());
    drop(socket);
    stage.is_undisturbed();
    // A listener that hangs up is told of.
    assert_eq!(kind(connect_to_mortal(drop)), ErrorKind::PeerClosed);
    let heard_first = connect_to_mortal(|socket| drop(raw::receive(&socket)));
    assert_eq!(kind(heard_first), ErrorKind::PeerClosed);
}

#[test]
fn a_packet_that_is_no_hello_is_refused() {
    let mut stage = Stage::new(Options::new());
    let (fd, _memory) = segment(Hello::honest().segment_len());
    let fd = fd.as_fd();
    let honest = Hello::honest().encode();
    let mut longer = honest.clone();
    longer.push(0);
    let mut empty_magic = honest.clone();
    empty_magic[..8].fill(0);
    let kind_of = |value| Fault::Field { field: "kind", value };
    let cut = |len| Fault::PacketLength { len, expected: 128 };
    let cases: [(&[u8], Fault); 10] = [
        (&[], cut(0)),
        (&honest[..1], cut(1)),
        (&honest[..16], cut(16)),
        (&honest[..127], cut(127)),
        (&longer, Fault::Truncated),
        (&[0; 100_000], Fault::Truncated),
        (&[0; 128], Fault::Magic),
        (&empty_magic, Fault::Magic),
        (&segment_packet(1, page()), kind_of(3)),
        (&[&honest[..8], &[0xFF; 2], &honest[10..]].concat(), kind_of(0xFFFF)),
    ];
    for (packet, expected) in cases {
        assert_eq!(refusal_of(&mut stage, packet, &[fd]), BAD_HELLO, "{expected:?}");
        let met = connect_to(|socket| {
            raw::send(&socket, packet, &[fd]).unwrap();
        });
        assert_eq!(fault(met), expected);
    }
    // A Retire carries no descriptor.
    assert_eq!(refusal_of(&mut stage, &retire_packet(1), &[]), BAD_HELLO);
    let met = connect_to(|socket| raw::send(&socket, &retire_packet(1), &[]).unwrap());
    assert_eq!(fault(met), kind_of(4));
    // A Refusal from the connecting side needs no answer.
    let refused = stage.listener.stats().refused;
    let socket = raw::dial(&stage.name);
    raw::send(&socket, &refusal_packet((1, 1), 1), &[]).unwrap();
    stage.refuses_one();
    assert_eq!(stage.listener.stats().refused, refused + 1);
    assert!(raw::receive(&socket).is_none());
    stage.is_undisturbed();
}

/// Every field of a Hello: name, offset, length in bytes, and values that it cannot have.
const FIELDS: [(&str, usize, usize, &[u64]); 17] = [
    ("head.zero", 10, 2, &[1, 0xFFFF]),
    ("descriptors", 12, 4, &[0, 2, 1 << 31, 0xFFFF_FFFF]),
    ("version_min", 16, 2, &[2, 0xFFFF]),
    ("flags", 24, 4, &[2, 4, 1 << 31, 0xFFFF_FFFF]),
    ("role", 28, 4, &[3, 0xFFFF_FFFF]),
    ("control_len", 32, 8, &[0, 1, 4096, 8191, 8193, 1 << 31, 1 << 32, 1 << 63, u64::MAX]),
    ("ring_capacity", 40, 8, &[0, 1, 2048, 65535, 65537, 1 << 31, 1 << 32, 1 << 63, u64::MAX]),
    ("loan_slots", 48, 4, &[0, 65537, 1 << 31, 0xFFFF_FFFF]),
    // A table that does not match the control section.
    ("control_len", 48, 4, &[513, 65536]),
    ("max_message", 56, 8, &[0, (1 << 40) + 1, 1 << 63, u64::MAX]),
    ("numa_node", 52, 4, &[1024, 1 << 31, 0xFFFF_FFFE]),
    // A link has neither.
    ("policy", 72, 4, &[1, 2, 3, 1 << 31]),
    ("depth", 76, 4, &[1, 1 << 31]),
    // No power of two, no longer than the first ring, or too long.
    ("second_ring", 80, 8, &[1, 4096, (128 << 10) + 1, 64 << 10, 1 << 31, 1 << 63, u64::MAX]),
    ("hello.zero", 88, 8, &[1, 1 << 63]),
    ("hello.zero", 96, 8, &[1, u64::MAX]),
    ("hello.zero", 120, 8, &[1, 1 << 63]),
];

#[test]
fn every_lying_field_of_a_hello_is_refused_by_its_name() {
    let mut stage = Stage::new(Options::new());
    let (fd, _memory) = segment(Hello::honest().segment_len());
    let fd = fd.as_fd();
    for (name, offset, len, lies) in FIELDS {
        for lie in lies {
            let mut packet = Hello::honest().encode();
            packet[offset..offset + len].copy_from_slice(&lie.to_le_bytes()[..len]);
            assert_eq!(refusal_of(&mut stage, &packet, &[fd]), BAD_HELLO, "{name} {lie:#x}");
            let met = connect_to(|socket| raw::send(&socket, &packet, &[fd]).unwrap());
            let met = fault(met);
            assert!(matches!(met, Fault::Field { field, .. } if field == name), "{met:?} {lie:#x}");
        }
    }
    let ours = Hello::honest().architecture;
    for theirs in [0, ours ^ 1, ours ^ 0x300, ours ^ 1 << 16, ours ^ 1 << 24, u32::MAX] {
        let packet = Hello { architecture: theirs, ..Hello::honest() }.encode();
        assert_eq!(refusal_of(&mut stage, &packet, &[fd]), BAD_HELLO);
        let met = connect_to(|socket| raw::send(&socket, &packet, &[fd]).unwrap());
        assert_eq!(fault(met), Fault::Architecture { ours, theirs });
    }
    stage.is_undisturbed();
}

#[test]
fn every_limit_that_a_hello_may_name_is_accepted() {
    let mut stage = Stage::new(Options::new());
    let honest = Hello::honest();
    let slots = |loan_slots: u32| Hello {
        loan_slots,
        control_len: (4096 + 8 * u64::from(loan_slots)).next_multiple_of(page()),
        ..honest
    };
    for hello in [
        Hello { ring_capacity: page(), ..honest },
        Hello { ring_capacity: 16 << 20, ..honest },
        Hello { second_ring: 2 * honest.ring_capacity, ..honest },
        Hello { second_ring: 1 << 30, ..honest },
        slots(1),
        slots(65_536),
        Hello { max_message: 1, ..honest },
        Hello { max_message: 1 << 40, ..honest },
        Hello { numa_node: 0, ..honest },
        Hello { numa_node: 1023, ..honest },
        Hello { pool_limit: 0, ..honest },
        Hello { pool_limit: u64::MAX, ..honest },
        Hello { flags: 1, ..honest },
    ] {
        let (mut link, mut peer) = stage.link_with(hello);
        peer.say(b"!");
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"!", "{hello:?}");
        link.send(b"?").unwrap();
        assert_eq!(link.sender().max_message(), hello.max_message.min(1 << 30));
    }
    stage.is_undisturbed();
}

#[test]
fn a_hello_has_one_descriptor() {
    let mut stage = Stage::new(Options::new());
    let (fd, _memory) = segment(Hello::honest().segment_len());
    let fd = fd.as_fd();
    let packet = Hello::honest().encode();
    for count in [0, 2, 3, 4, 10, 253] {
        let fds = vec![fd; count];
        assert_eq!(refusal_of(&mut stage, &packet, &fds), BAD_HELLO, "{count}");
        let met = fault(connect_to(|socket| raw::send(&socket, &packet, &fds).unwrap()));
        let counted =
            matches!(met, Fault::DescriptorCount { count: met, expected: 1 } if met == count);
        assert!(counted || count > 2 && met == Fault::Truncated, "{count}: {met:?}");
    }
    stage.is_undisturbed();
}

#[test]
fn many_descriptors_are_all_closed() {
    let test = "many_descriptors_are_all_closed";
    let mut other = Other::start(test, "", |_| {
        let mut stage = Stage::new(Options::new());
        let (fd, _memory) = segment(Hello::honest().segment_len());
        let packet = Hello::honest().encode();
        // The listener has made its side of the next link now.
        refusal_of(&mut stage, &[], &[]);
        let before = Census::take();
        for count in [0, 1, 2, 3, 4, 100, 253] {
            let wrong = if count == 1 { &packet[..100] } else { &packet[..] };
            refusal_of(&mut stage, wrong, &vec![fd.as_fd(); count]);
            connect_to(|socket| raw::send(&socket, wrong, &vec![fd.as_fd(); count]).unwrap())
                .unwrap_err();
        }
        before.comes_back();
    });
    other.succeeds();
}

#[test]
fn a_segment_is_sealed_allocated_shared_memory_of_the_right_size() {
    let mut stage = Stage::new(Options::new());
    let packet = Hello::honest().encode();
    let len = Hello::honest().segment_len();
    let seals = |seals: SealFlags| Fault::Seals { seals: seals.bits(), required: SEALS.bits() };
    let size = |size| Fault::MemorySize { size, expected: len };
    let mut cases: Vec<(&str, OwnedFd, Fault)> = Vec::new();
    let mut add = |what, fd: OwnedFd, fault| cases.push((what, fd, fault));
    let (pipe_out, pipe_in) = std::io::pipe().unwrap();
    add("a pipe's end", pipe_out.into(), Fault::NotMemfd);
    add("a pipe's other end", pipe_in.into(), Fault::AccessMode);
    add("a directory", File::open("/").unwrap().into(), Fault::NotMemfd);
    add("a socket", raw::socketpair().0, Fault::NotMemfd);
    add("/dev/zero", File::open("/dev/zero").unwrap().into(), Fault::NotMemfd);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    add("an eventfd", event, Fault::NotMemfd);
    let path = std::env::temp_dir().join(unique_name());
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(len).unwrap();
    std::fs::remove_file(&path).unwrap();
    add("a plain file", file.into(), Fault::NotMemfd);
    let shm = format!("/dev/shm/{}", unique_name());
    let file = File::options().read(true).write(true).create_new(true).open(&shm).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
    std::fs::remove_file(&shm).unwrap();
    // On tmpfs, and sealed against sealing from birth.
    add("POSIX shared memory", file.into(), seals(SealFlags::SEAL));
    let good = segment(len).0;
    let by_path = format!("/proc/self/fd/{}", good.as_raw_fd());
    let path_only = rustix::fs::open(&by_path, OFlags::PATH, Mode::empty()).unwrap();
    add("an O_PATH descriptor", path_only, Fault::AccessMode);
    let (unsealed, _memory) = memfd(len, true, SealFlags::empty());
    let by_path = format!("/proc/self/fd/{}", unsealed.as_raw_fd());
    let write_only = rustix::fs::open(&by_path, OFlags::WRONLY, Mode::empty()).unwrap();
    rustix::fs::fcntl_add_seals(&unsealed, SEALS).unwrap();
    add("a write-only memfd", write_only, Fault::AccessMode);
    add("no seals", memfd(len, true, SealFlags::empty()).0, seals(SealFlags::empty()));
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
        let there = SEALS - missing;
        add("a seal less", memfd(len, true, there).0, seals(there));
    }
    add("sparse", memfd(len, false, SEALS).0, Fault::Sparse { allocated: 0, size: len });
    let (holed, _memory) = memfd(len, true, SealFlags::empty());
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&holed, punch, len - page(), page()).unwrap();
    rustix::fs::fcntl_add_seals(&holed, SEALS).unwrap();
    let sparse = Fault::Sparse { allocated: len - page(), size: len };
    add("one hole", holed, sparse);
    let (long, _memory) = memfd(len, true, SealFlags::empty());
    let (behind, keep) = (4 << 20, rustix::fs::FallocateFlags::KEEP_SIZE);
    rustix::fs::fallocate(&long, keep, len, behind).unwrap();
    rustix::fs::fcntl_add_seals(&long, SEALS).unwrap();
    // No more than a huge page and a page.
    let huge = page() * page() / 8;
    let most = len.next_multiple_of(huge) + page();
    if len + behind > most {
        add("blocks behind its end", long, Fault::Excess { allocated: len + behind, most });
    }
    for other in [page(), len - page(), len + page(), 2 * len] {
        add("another size", segment(other).0, size(other));
    }
    add("no byte", memfd(0, true, SEALS).0, size(0));
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::HUGETLB;
    match rustix::fs::memfd_create("huge", flags) {
        Ok(huge) => {
            let _ = rustix::fs::ftruncate(&huge, 2 << 20);
            rustix::fs::fcntl_add_seals(&huge, SEALS).unwrap();
            add("huge pages", huge, Fault::NotMemfd);
        }
        Err(_) => eprintln!("SKIPPED: no huge page memfds here"),
    }
    for (what, fd, expected) in cases {
        assert_eq!(refusal_of(&mut stage, &packet, &[fd.as_fd()]), BAD_SEGMENT, "{what}");
        let met = connect_to(|socket| raw::send(&socket, &packet, &[fd.as_fd()]).unwrap());
        assert_eq!(fault(met), expected, "{what}");
    }
    // More seals than needed do no harm.
    let (fd, _memory) = memfd(len, true, SealFlags::empty());
    drop(_memory);
    rustix::fs::fcntl_add_seals(&fd, SEALS | SealFlags::WRITE).unwrap();
    let socket = raw::dial(&stage.name);
    raw::send(&socket, &packet, &[fd.as_fd()]).unwrap();
    stage.listener.accept_deadline(soon()).unwrap();
    stage.is_undisturbed();
}

#[test]
fn a_connect_without_descriptors_says_so_and_leaks_none() {
    let name = unique_name();
    let test = "a_connect_without_descriptors_says_so_and_leaks_none";
    let mut other = Other::start(test, &name, |name| {
        let context = Context::new().unwrap();
        // The watcher's descriptors come with the first link.
        let first = context.connect_retry(name, soon()).unwrap();
        drop(first);
        thread::sleep(Duration::from_millis(20));
        let before = Census::take();
        let mut met_all = false;
        for free in 0..8 {
            let limit = leave_descriptors(free);
            let met = context.connect_deadline(name, soon());
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            match met {
                Err(error) => {
                    let limited =
                        matches!(error.kind(), ErrorKind::DescriptorLimit { limit } if *limit > 0);
                    assert!(limited, "{free} free: {error:?}");
                }
                Ok(mut link) => {
                    link.send(b"hello").unwrap();
                    met_all = true;
                }
            }
        }
        assert!(met_all, "eight descriptors are enough");
        assert!(Census::take().mappings <= before.mappings + 4);
        context.connect_deadline(name, soon()).unwrap().send(b"at last").unwrap();
    });
    let context = Context::new().unwrap();
    let mut listener = context.listen(&name).unwrap();
    loop {
        match listener.accept_deadline(soon()).unwrap().receiver().recv_deadline(soon()) {
            Ok(Some(message)) if message == b"at last" => break,
            _ => {}
        }
    }
    other.succeeds();
}

#[test]
fn a_listener_without_descriptors_says_so_turns_peers_away_and_goes_on() {
    let name = unique_name();
    let test = "a_listener_without_descriptors_says_so_turns_peers_away_and_goes_on";
    let mut other = Other::start(test, &name, |name| {
        let context = Context::new().unwrap();
        let mut listener = context.listen(name).unwrap();
        say("listening");
        drop(listener.accept_deadline(soon()).unwrap());
        for free in 0..6 {
            thread::sleep(Duration::from_millis(10));
            let limit = leave_descriptors(free);
            say("short");
            let met = listener.accept_deadline(soon());
            // The waiting peer was refused. A listener that has nobody to accept does not spin.
            let before = processor_time();
            let waited = listener.accept_deadline(Instant::now() + Duration::from_millis(100));
            let spent = processor_time() - before;
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            if let Err(error) = &met {
                let limited = matches!(error.kind(), ErrorKind::DescriptorLimit { .. });
                assert!(limited, "{free} free: {error:?}");
            }
            if let Err(error) = waited {
                let quiet = error.is_timeout() && spent < Duration::from_millis(60);
                assert!(quiet || !error.is_timeout(), "{free} free: {error:?}, {spent:?} spent");
            }
            say(if met.is_ok() { "accepted" } else { "refused" });
        }
        let mut link = listener.accept_deadline(soon()).unwrap();
        assert_eq!(link.receiver().recv_deadline(soon()).unwrap().unwrap(), b"at last");
        say("done");
    });
    other.expect("listening");
    let context = Context::new().unwrap();
    drop(context.connect_deadline(&name, soon()).unwrap());
    let mut refused = 0;
    for _ in 0..6 {
        other.expect("short");
        let met = context.connect_deadline(&name, soon());
        if other.hear() == "refused" {
            refused += 1;
            if let Err(error) = met {
                let told = matches!(
                    error.kind(),
                    ErrorKind::PeerClosed | ErrorKind::RefusedByPeer { code: 4 }
                );
                assert!(told, "{error:?}");
            }
        }
    }
    assert!(refused >= 2, "few descriptors are too few");
    context.connect_deadline(&name, soon()).unwrap().send(b"at last").unwrap();
    other.expect("done");
    other.succeeds();
}

#[test]
fn a_link_made_with_few_descriptors_still_sees_the_death_of_its_peer() {
    // Twice each: what a listener makes beforehand takes one of them the first time.
    const FREE: [u64; 8] = [2, 2, 3, 3, 4, 4, 5, 5];
    let name = unique_name();
    let test = "a_link_made_with_few_descriptors_still_sees_the_death_of_its_peer";
    let mut other = Other::start(test, &name, |name| {
        let context = Context::new().unwrap();
        let mut listener = context.listen(name).unwrap();
        say("listening");
        drop(listener.accept_deadline(soon()).unwrap());
        for free in FREE {
            thread::sleep(Duration::from_millis(10));
            let limit = leave_descriptors(free);
            say("short");
            let met = listener.accept_deadline(soon());
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            if let Ok(link) = met {
                assert!(link.peer().pidfd().is_some(), "{free} descriptors were free");
            }
            say("done");
        }
    });
    other.expect("listening");
    let context = Context::new().unwrap();
    drop(context.connect_deadline(&name, soon()).unwrap());
    for _ in FREE {
        other.expect("short");
        let _ = context.connect_deadline(&name, soon());
        other.expect("done");
    }
    other.succeeds();
}

#[test]
fn a_link_is_known_to_its_process_by_few_descriptors() {
    let test = "a_link_is_known_to_its_process_by_few_descriptors";
    let mut other = Other::start(test, "", |_| {
        let context = Context::new().unwrap();
        let _first = crate::support::pair_of(&context, &context);
        let before = Census::take();
        let links: Vec<_> = (0..10).map(|_| crate::support::pair_of(&context, &context)).collect();
        let now = Census::take();
        // Both ends are here: twenty sides.
        assert!(now.descriptors - before.descriptors <= 20 * 3);
        wait_until("the last helper's end", || Census::take().threads <= before.threads);
        drop(links);
    });
    other.succeeds();
}
