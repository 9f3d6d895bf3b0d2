//! A system call of the library fails, once or from then on, in lives of other kinds than in `faults.rs`: links of a
//! reactor, requests and responses, frozen tensors, regions, and a listener with a backlog.
//!
//! A life ends in an error or in success, in time and without a panic. When calls succeed, the same life succeeds in
//! the same process, and the process holds what it held before.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use libc::{EAGAIN, EINTR, EIO, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use slipring::error::TrySendError;
use slipring::options::Spin;
use slipring::region::{PosixShm, Registry, SigbusGuard, Source};
use slipring::{Connection, Context, DType, Error, Options, Reactor, Tensor};

use crate::support::faulty::*;
use crate::support::raw;
use crate::support::trace::{Call, Meant};
use crate::support::{other, trim, unique_name};

/// Places of each call that are tried in each life where not all are.
const PLACES: usize = 4;

type Life = (&'static str, fn());

const LIVES: [Life; 6] = [
    ("plain", || life(plain)),
    ("reactor", || life(reactor)),
    ("calls", || life(calls)),
    ("frozen", || life(frozen)),
    ("regions", || life(regions)),
    ("crowd", || life(|context| crowd(context, false))),
];

/// For calls that fail from some place on.
const LASTING: [Life; 6] = {
    let [plain, reactor, calls, frozen, regions, _] = LIVES;
    [plain, reactor, calls, frozen, regions, LATE_CROWD]
};

const LATE_CROWD: Life = ("crowd", || life(|context| crowd(context, true)));

/// Peers that cannot be accepted.
const QUEUES: [Life; 2] = [LATE_CROWD, ("queue", || life(queue))];

/// In the other process: works in a context that lives on.
fn life(work: impl Fn(&Context) -> Ended) {
    SigbusGuard::install().unwrap();
    let options = Options::new()
        .handshake_timeout(PATIENCE)
        .send_timeout(PATIENCE)
        .spin(Spin::Adaptive { max: Duration::from_micros(20) });
    let context = Context::with_options(options).unwrap();
    disturbed(true, || {
        let ended = work(&context);
        trim(&context);
        ended
    })
}

/// Two ends that have met.
fn meet(context: &Context) -> Result<(Connection, Connection), Box<dyn std::error::Error>> {
    let (near, far) = raw::try_socketpair()?;
    thread::scope(|scope| {
        let accepting =
            thread::Builder::new().spawn_scoped(scope, || context.accept_socket(far))?;
        let connected = context.connect_socket(near);
        let accepted = accepting.join().unwrap();
        Ok((connected?, accepted?))
    })
}

fn plain(context: &Context) -> Ended {
    let (mut near, mut far) = meet(context)?;
    for len in [48, 20_000, 2 << 20] {
        near.sender().send_deadline(&vec![7; len], patience())?;
        let message =
            far.receiver().recv_deadline(patience())?.ok_or("an end instead of a message")?;
        assert_eq!(message, vec![7; len]);
    }
    // More than the first ring holds. Without a second one there is no room for all.
    let mut sent = 0;
    for _ in 0..40 {
        match near.sender().try_send(&[8; 1000]) {
            Ok(()) => sent += 1,
            Err(TrySendError::Full { .. }) => break,
            Err(TrySendError::Failed(error)) => return Err(error.into()),
        }
    }
    for _ in 0..sent {
        let message = far.receiver().recv_deadline(patience())?;
        assert_eq!(message.ok_or("an end instead of a message")?, [8; 1000]);
    }
    Ok(near.close()?)
}

fn calls(context: &Context) -> Ended {
    let (mut near, mut far) = meet(context)?;
    let mut made = Vec::new();
    for len in [0, 300, 20_000, 300_000] {
        made.push((near.submit(&vec![1; len])?, len));
    }
    let mut asked = Vec::new();
    for _ in &made {
        asked.push(far.recv_request()?.ok_or("an end instead of a request")?);
    }
    // In another order than they were made.
    for request in asked.into_iter().rev() {
        far.respond(request.id, &request.body)?;
    }
    for (id, len) in made {
        assert_eq!(near.wait(id)?, vec![1; len]);
    }
    let answering = thread::Builder::new().spawn(move || -> Result<(), Error> {
        while let Some(request) = far.recv_request()? {
            far.respond(request.id, &request.body)?;
        }
        Ok(())
    })?;
    let called = near.call(&[2; 50_000]);
    drop(near);
    // An error of its own ends the link, and with it the call.
    let answered = answering.join().unwrap();
    assert_eq!(called?, [2; 50_000]);
    Ok(answered?)
}

fn frozen(context: &Context) -> Ended {
    let (mut near, mut far) = meet(context)?;
    let bytes: Vec<_> = (0..20u32).map(|value| value.to_le_bytes().repeat(1000)).collect();
    let shape = slipring::Shape::from([1000]);
    let names: Vec<_> = (0..20).map(|value| value.to_string()).collect();
    let sources = names.iter().zip(&bytes);
    let sources = sources.map(|(name, bytes)| (&**name, DType::Uint32, shape, &bytes[..]));
    let mut set = context.freeze(sources)?;
    let mut drafted = context.alloc_frozen::<u32>([1000])?;
    drafted.fill(20);
    set.insert("drafted", drafted.share()?)?;
    near.sender().send_tensors_deadline(&set, patience())?;
    drop(set);
    let came =
        far.receiver().recv_tensors_deadline(patience())?.ok_or("an end instead of tensors")?;
    // Sent on as it is.
    far.sender().send_tensors_deadline(&came, patience())?;
    drop(far);
    let back =
        near.receiver().recv_tensors_deadline(patience())?.ok_or("an end instead of tensors")?;
    for (value, (_, tensor)) in back.iter().enumerate() {
        assert_eq!(tensor.to_vec::<u32>()?, [value as u32; 1000]);
    }
    Ok(())
}

/// Memory that can be touched safely.
fn memfd() -> Result<OwnedFd, rustix::io::Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("slipring-test-life", flags)?;
    let filled = || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 8192);
    rustix::io::retry_on_intr(filled)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

fn regions(context: &Context) -> Ended {
    let object = PosixShm::create(&format!("/{}", unique_name()), 20_000)?;
    object.write_at(100, &[3; 5000])?;
    let registry = Registry::new()?;
    registry.register("posix", Source::Posix(object.key()), 0, 20_000)?;
    let fd = memfd()?;
    registry.register("memfd", Source::Memfd(fd.as_fd()), 0, 8192)?;
    let lease = registry.lease("posix", 100, 5000)?;
    let mut bytes = [0; 5000];
    lease.read_at(0, &mut bytes)?;
    assert_eq!(bytes, [3; 5000]);
    lease.write_at(4000, &[4; 1000])?;
    lease.in_place(|bytes| assert_eq!(bytes.len(), 5000))?;
    lease.in_place_mut(|room| assert_eq!(room.len(), 5000))?;
    registry.lease("memfd", 0, 8192)?.bytes().map(|bytes| assert_eq!(bytes.len(), 8192))?;
    // By its name to somebody who has it, too.
    let (mut near, mut far) = meet(context)?;
    near.sender().send_tensor_deadline(
        &Tensor::in_region(registry.lease("posix", 100, 4000)?, DType::Uint8, [4000])?,
        patience(),
    )?;
    let named =
        far.receiver().recv_tensor_deadline(patience())?.ok_or("an end instead of a tensor")?;
    let named = named.resolve(&registry)?;
    assert_eq!(named.to_private()?.to_vec::<u8>()?, [3; 4000]);
    drop((named, lease));
    let _ = registry.unregister("posix")?;
    Ok(object.unlink()?)
}

/// Peers that wait in the queue of a listener, each of which is accepted or told why not; where nobody
/// can be accepted for long, `late` by its own deadline.
fn crowd(context: &Context, late: bool) -> Ended {
    const PEERS: usize = 5;
    let name = unique_name();
    let mut listener = context.listen(&name)?;
    thread::scope(|scope| -> Ended {
        let mut connecting = Vec::new();
        for _ in 0..PEERS {
            let connect = || -> Result<(), Error> {
                let mut link = context.connect_deadline(&name, patience())?;
                link.send(b"hello")?;
                link.receiver().recv_deadline(patience()).map(drop)
            };
            match thread::Builder::new().spawn_scoped(scope, connect) {
                Ok(started) => connecting.push(started),
                Err(error) => {
                    drop(listener);
                    return Err(error.into());
                }
            }
        }
        let (mut failed, mut ended) = (Vec::new(), Ok(()));
        while connecting.iter().any(|peer| !peer.is_finished()) {
            let slice = std::time::Instant::now() + Duration::from_millis(10);
            let served = listener.accept_deadline(slice).and_then(|mut link| {
                link.receiver().recv_deadline(patience())?;
                link.send(b"hello")
            });
            match served {
                Err(error) if error.is_timeout() => {}
                Err(error) => failed.push(error),
                Ok(()) => {}
            }
        }
        for peer in connecting {
            match peer.join().unwrap() {
                // Nobody hangs: a refused peer is told.
                Err(error) if error.is_timeout() && !late => {
                    panic!("a peer was told nothing: {error}")
                }
                Err(error) => ended = Err(error.into()),
                Ok(()) => {}
            }
        }
        assert!(late || failed.len() <= PEERS, "one failure costs one peer: {failed:?}");
        failed.into_iter().for_each(|error| ended = Err(error.into()));
        ended
    })
}

/// Peers in the queue of a listener that a reactor serves, for a while: whatever fails, nobody spins.
fn queue(context: &Context) -> Ended {
    const WHILE: Duration = Duration::from_millis(300);
    let name = unique_name();
    let (say, said) = mpsc::channel();
    let reactor = Reactor::spawn(context)?;
    reactor.accept_with(context.listen(&name)?, move |accepted| {
        let _ = say.send(accepted.map(drop));
        ControlFlow::Continue(())
    })?;
    let peers: Vec<_> = (0..3).map(|_| raw::dial(&name)).collect();
    thread::sleep(WHILE);
    drop(peers);
    reactor.shutdown();
    let told: Vec<Result<(), Error>> = said.iter().collect();
    assert!(told.len() < 100, "told {} times in {WHILE:?}", told.len());
    Ok(told.into_iter().collect::<Result<(), _>>()?)
}

/// Returns the next word of a callback, or the error that ended its link.
fn hear<T>(said: &mpsc::Receiver<Result<T, Error>>) -> Result<T, Box<dyn std::error::Error>> {
    match said.recv_timeout(PATIENCE + PATIENCE / 2) {
        Ok(word) => Ok(word?),
        Err(RecvTimeoutError::Timeout) => panic!("a callback is never called"),
        Err(RecvTimeoutError::Disconnected) => Err("a callback was dropped".into()),
    }
}

fn reactor(context: &Context) -> Ended {
    let reactor = Reactor::spawn(context)?;
    let ended = served(context, &reactor);
    reactor.shutdown();
    ended
}

/// Everything that links of a reactor do, by callbacks on both sides.
fn served(context: &Context, reactor: &Reactor) -> Ended {
    let name = unique_name();
    let serving = reactor.clone();
    let (accepted, links) = mpsc::channel();
    let serve = move |connection: Result<Connection, Error>| {
        let link = connection.and_then(|connection| serving.adopt(connection));
        if let Ok(link) = &link {
            link.on_message(|link, message| match message.kind() {
                slipring::message::MessageKind::Request(id) => link.respond(id, message.to_vec()),
                _ => link.write(message.to_vec()),
            });
            link.on_tensors(|link, tensors| link.write_tensors(tensors));
        }
        let _ = accepted.send(link);
        ControlFlow::Continue(())
    };
    reactor.accept_with(context.listen(&name)?, serve)?;
    let near = context.connect_deadline(&name, patience())?;
    let far = hear(&links)?;
    let near = reactor.adopt(near)?;

    let (end, ends) = mpsc::channel();
    near.on_closed(move |_, result| drop(end.send(result)));
    let (say, said) = mpsc::channel();
    for len in [48, 20_000, 600_000] {
        let (done, read) = (say.clone(), say.clone());
        near.write_with(vec![5; len], move |_, result| drop(done.send(result.map(|()| 0))));
        near.read_with(move |_, message| {
            drop(read.send(message.map(|message| message.map_or(0, |message| message.len()))));
        });
        let heard = hear(&said)?.max(hear(&said)?);
        if heard != len {
            return Err("an end instead of a message".into());
        }
    }
    let (answer, answers) = mpsc::channel();
    near.call_with(vec![6; 50_000], move |_, answered| drop(answer.send(answered)));
    assert_eq!(hear(&answers)?, [6; 50_000]);
    let (came, sets) = mpsc::channel();
    let missed = came.clone();
    near.on_tensors(move |_, tensors| drop(came.send(Ok(tensors))));
    let mut tensor = context.alloc::<u32>([5000])?;
    tensor.fill(7);
    near.write_tensor_with(tensor, move |_, sent| {
        if let Err(error) = sent {
            let _ = missed.send(Err(error));
        }
    });
    // A set that cannot be sent back ends the link, which drops the callback.
    assert_eq!(hear(&sets)?.at(0).unwrap().to_vec::<u32>()?, [7; 5000]);
    let (ran, runs) = mpsc::channel();
    let token = near.register(move |_| drop(ran.send(Ok(()))))?;
    far.trigger(token);
    hear(&runs)?;
    near.close();
    hear(&ends)
}

/// In the other process, the life that it is to lead; in the test, all of them.
fn lives(test: &str, meant: Meant, errors: &[i32], (lives, how): (&[Life], How)) {
    other::run_here(test, |life| lives.iter().find(|(name, _)| *name == life).unwrap().1());
    let mut met = 0;
    for (life, _) in lives {
        met += sweep((test, life), (meant, errors), how, PLACES);
    }
    assert!(met > 0, "no such call is made");
}

const ONCE: (&[Life], How) = (&LIVES, once);
const FOR_LONG: (&[Life], How) = (&LASTING, from_then_on);
const IN_QUEUES: (&[Life], How) = (&QUEUES, from_then_on);

macro_rules! in_all_lives {
    ($($test:ident: $meant:expr, $errors:expr, $how:expr;)*) => {$(
        #[test]
        fn $test() {
            lives(stringify!($test), $meant, &$errors, $how);
        }
    )*};
}

/// Calls on files and their memory.
fn is_of_a_file(call: &Call) -> bool {
    [
        libc::SYS_openat,
        libc::SYS_unlink,
        libc::SYS_unlinkat,
        libc::SYS_newfstatat,
        libc::SYS_fstat,
        libc::SYS_fstatfs,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_fallocate,
        libc::SYS_ftruncate,
    ]
    .contains(&call.number)
}

/// Those of them that a signal may interrupt.
fn is_slow_on_files(call: &Call) -> bool {
    [libc::SYS_openat, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_fallocate]
        .contains(&call.number)
}

fn is_of_a_socket(call: &Call) -> bool {
    [
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
    ]
    .contains(&call.number)
}

/// Those of them that a signal may interrupt.
fn is_slow_on_sockets(call: &Call) -> bool {
    [libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_accept4, libc::SYS_connect]
        .contains(&call.number)
}

fn is_of_a_loop(call: &Call) -> bool {
    [libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_eventfd2].contains(&call.number)
}

in_all_lives! {
    descriptors_may_be_refused: needs_a_descriptor, [EMFILE, ENFILE], ONCE;
    memory_may_be_refused: needs_memory, [ENOMEM], ONCE;
    calls_on_files_may_fail: is_of_a_file, [EIO, ENOMEM], ONCE;
    calls_on_files_may_be_interrupted: is_slow_on_files, [EINTR], ONCE;
    calls_on_sockets_may_fail: is_of_a_socket, [ENOMEM, ENOBUFS], ONCE;
    calls_on_sockets_may_be_interrupted: is_slow_on_sockets, [EINTR], ONCE;
    calls_of_loops_may_fail: is_of_a_loop, [ENOMEM, EMFILE], ONCE;
    threads_may_be_refused: is_new_thread, [EAGAIN], ONCE;
    waits_in_each_life_may_be_interrupted: is_wait, [EINTR], ONCE;
    descriptors_may_be_refused_for_long: needs_a_descriptor, [EMFILE, ENFILE], FOR_LONG;
    memory_may_be_refused_for_long: needs_memory, [ENOMEM], FOR_LONG;
    space_may_be_refused_for_long: needs_space, [ENOSPC], FOR_LONG;
    packets_may_be_refused_for_long: |call| call.number == libc::SYS_sendmsg, [ENOBUFS, ENOMEM],
        FOR_LONG;
    peers_may_be_refused_for_long: |call| call.number == libc::SYS_accept4,
        [ENFILE, ENOMEM, EMFILE, ENOBUFS], IN_QUEUES;
    threads_may_be_refused_for_long: is_new_thread, [EAGAIN], FOR_LONG;
}
