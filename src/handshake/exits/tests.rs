//! Unit tests of `handshake::exits`.

use super::*;
use crate::handshake::untrusted::tests::{lingering, socket_with};

/// Waits until no thread of these exits is alive.
fn settle(exits: &'static Exits) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        exits.is_crowded();
        let state = exits.lock();
        if state.exiting.is_empty() && state.entrance.is_none() {
            return;
        }
        drop(state);
        assert!(Instant::now() < deadline, "the threads have not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lingering_sockets_end_at_once_also_in_the_queue_of_another() {
    let exits: &'static Exits = Box::leak(Box::new(Exits::default()));
    let mut far_ends = Vec::new();
    let start = Instant::now();
    for round in 0..4 {
        let mut fds = Vec::new();
        for _ in 0..3 {
            let (near, far) = lingering(Duration::from_secs(30));
            fds.push(near);
            far_ends.push(far);
        }
        fds = if round % 2 == 0 { fds } else { vec![socket_with(fds)] };
        let before = Instant::now();
        exits.take(&mut fds);
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
        if exits.lock().refused.is_some() {
            println!("skipped: the kernel refuses tables of a thread's own");
            return;
        }
        assert!(fds.is_empty());
    }
    settle(exits);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn what_is_taken_is_closed_and_what_the_process_has_beside_it_is_not() {
    let exits: &'static Exits = Box::leak(Box::new(Exits::default()));
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let pair = || rustix::net::socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
    let (kept, kept_far) = pair();
    let mut far_ends = Vec::new();
    for _ in 0..3 {
        let (mut given, far): (Vec<OwnedFd>, Vec<OwnedFd>) = (0..60).map(|_| pair()).unzip();
        exits.take(&mut given);
        assert!(given.is_empty());
        far_ends.extend(far);
    }
    for far in &far_ends {
        let deadline = Some(Instant::now() + Duration::from_secs(10));
        assert!(socket::wait_readable(far, deadline).unwrap(), "the other end is open");
        assert_eq!(socket::peek(far, &mut [0; 1]), Some(0));
    }
    assert!(socket::send(&kept, b"there", &[]).unwrap());
    assert_eq!(socket::peek(&kept_far, &mut [0; 8]), Some(5));
    settle(exits);
}

#[test]
fn threads_that_do_not_end_are_waited_for_and_others_close_meanwhile() {
    let exits: &'static Exits = Box::leak(Box::new(Exits::default()));
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let pair = || rustix::net::socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
    let in_time = || Some(Instant::now() + Duration::from_secs(10));
    // Their exits take long.
    let gate = std::sync::Arc::new(std::sync::RwLock::new(()));
    let shut = gate.write().unwrap();
    let (say, ids) = mpsc::channel();
    let threads: Vec<_> = (0..EXITING)
        .map(|_| {
            let (gate, say) = (gate.clone(), say.clone());
            std::thread::spawn(move || {
                say.send(gettid().as_raw_nonzero().get()).unwrap();
                drop(gate.read());
            })
        })
        .collect();
    exits.lock().exiting.extend(ids.iter().take(EXITING));
    assert!(exits.is_crowded());
    let (given, far) = pair();
    exits.take(&mut vec![given]);
    // Files of another user's do not wait for them.
    for _ in 0..20 {
        let (given, far) = pair();
        crate::handshake::closers::take(vec![given], 2);
        assert!(socket::wait_readable(&far, in_time()).unwrap(), "the other end is open");
        std::thread::sleep(GATHER);
    }
    if exits.lock().refused.is_some() {
        println!("skipped: the kernel refuses tables of a thread's own");
    } else {
        assert_eq!(socket::peek(&far, &mut [0; 1]), None, "a thread more has ended");
    }
    drop(shut);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(socket::wait_readable(&far, in_time()).unwrap(), "the other end is open");
    settle(exits);
}

#[test]
fn descriptors_in_flight_leave_the_user_most_of_its_own() {
    let exits: &'static Exits = Box::leak(Box::new(Exits::default()));
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    // Nobody receives them.
    let (near, far) = rustix::net::socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
    exits.lock().entrance = Some(near);
    let most = most_in_flight();
    let mut fds: Vec<_> = (0..most + 100).map(|_| far.try_clone().unwrap()).collect();
    exits.take(&mut fds);
    assert_eq!((fds.len(), exits.lock().in_flight), (100, most));
    exits.take(&mut fds);
    assert_eq!(fds.len(), 100);
    assert!(exits.is_pressed());
    // Those that it leaves, and other users', go to the threads that close files.
    let (given, other) =
        rustix::net::socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
    crate::handshake::closers::take(fds, 1);
    crate::handshake::closers::take(vec![given], 2);
    let deadline = Some(Instant::now() + Duration::from_secs(10));
    assert!(socket::wait_readable(&other, deadline).unwrap(), "the other end is open");
    exits.pass_on(&far);
    assert_eq!(exits.lock().in_flight, 0);
}

#[test]
fn a_refusal_of_a_table_holds_for_a_while() {
    let exits: &'static Exits = Box::leak(Box::new(Exits::default()));
    let mut given = vec![socket_with(Vec::new())];
    exits.lock().refused = Some(Instant::now() + RETRY);
    exits.take(&mut given);
    assert_eq!(given.len(), 1);
    exits.lock().refused = Some(Instant::now());
    exits.take(&mut given);
    assert!(given.is_empty());
    settle(exits);
}

#[test]
fn a_refusal_holds_for_long_only_where_nothing_is_lacking() {
    let of = |errno| holds(&std::io::Error::from_raw_os_error(errno));
    for errno in [libc::EAGAIN, libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
        assert_eq!(of(errno), PAUSE, "{errno}");
    }
    for errno in [libc::ENOSYS, libc::EPERM, libc::EINVAL, libc::EACCES] {
        assert_eq!(of(errno), RETRY, "{errno}");
    }
}
