//! Connections and listeners work inside a mio loop.

use std::thread;
use std::time::Duration;

use crate::support::{HANG, raw, soon, unique_name};
use mio::{Events, Interest, Poll, Token};
use slipring::error::TryRecvError;
use slipring::options::Spin;
use slipring::{Connection, Context, Options};

const LISTENER: Token = Token(usize::MAX);

#[test]
fn a_loop_serves_a_listener_and_its_links() {
    const CLIENTS: usize = 4;
    const ROUNDS: u32 = 500;
    let context = Context::with_options(Options::new().spin(Spin::Never)).unwrap();
    let name = unique_name();
    let mut listener = context.listen(&name).unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (context, name) = (context.clone(), name.clone());
            thread::spawn(move || {
                let mut link = context.connect_retry(&name, soon()).unwrap();
                for round in 0..ROUNDS {
                    link.send(&round.to_le_bytes()).unwrap();
                    let back = link.receiver().recv_deadline(soon()).unwrap().unwrap();
                    assert_eq!(back, round.to_le_bytes());
                }
                link.close().unwrap();
            })
        })
        .collect();
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).unwrap();
    let mut links: Vec<Option<Connection>> = Vec::new();
    let mut open = 0;
    while links.len() < CLIENTS || open > 0 {
        poll.poll(&mut events, Some(HANG)).unwrap();
        assert!(!events.is_empty(), "nobody woke it; {open} of {} links", links.len());
        let mut look: Vec<usize> = events
            .iter()
            .filter(|event| event.token() != LISTENER)
            .map(|event| event.token().0)
            .collect();
        while let Some(mut link) = listener.try_accept().unwrap() {
            let token = Token(links.len());
            poll.registry().register(&mut link, token, Interest::READABLE).unwrap();
            links.push(Some(link));
            // A message from before the registration causes no event, so the loop polls once.
            look.push(token.0);
            open += 1;
        }
        for token in look {
            if let Some(link) = &mut links[token]
                && !echo(link)
            {
                poll.registry().deregister(links[token].as_mut().unwrap()).unwrap();
                links[token] = None;
                open -= 1;
            }
        }
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_silent_peer_is_dropped_by_a_loop_that_waits_for_the_descriptor_alone() {
    let options = Options::new().handshake_timeout(Duration::from_millis(50));
    let context = Context::with_options(options).unwrap();
    let name = unique_name();
    let mut listener = context.listen(&name).unwrap();
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).unwrap();
    let mut wakeups = 0;
    // The timer is set anew for each of them, also while it runs for another.
    for dropped in 1..=3 {
        let silent = raw::dial(&name);
        while listener.stats().silent < dropped {
            poll.poll(&mut events, Some(HANG)).unwrap();
            assert!(!events.is_empty(), "nobody woke the loop for the peer that stays silent");
            wakeups += 1;
            while listener.try_accept().unwrap().is_some() {}
        }
        assert!(raw::receive(&silent).is_none(), "it was hung up");
    }
    assert!(wakeups <= 12, "{wakeups} wake-ups for three peers");
    // Without half-open peers the loop sleeps.
    poll.poll(&mut events, Some(Duration::from_millis(120))).unwrap();
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn a_loop_that_takes_turns_is_told_when_to_go_on() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut listener = context.listen(&name).unwrap();
    let sending = thread::spawn(move || {
        let mut link = context.connect(&name).unwrap();
        // Each is longer than the ones before, so each comes with a segment of its own.
        for len in [100 << 20, 150 << 20] {
            link.send(&vec![7; len]).unwrap();
            assert!(link.recv().unwrap().is_some(), "it has come");
        }
    });
    let mut link = listener.accept().unwrap();
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    poll.registry().register(&mut link, Token(0), Interest::READABLE).unwrap();
    link.receiver().take_turns();
    let mut turns = 0;
    let message = loop {
        match link.receiver().try_recv() {
            Ok(message) => break message.unwrap(),
            Err(TryRecvError::Empty) => {
                let rest = link.receiver().rest();
                turns += u32::from(rest.is_some());
                poll.poll(&mut events, rest.or(Some(HANG))).unwrap();
                assert!(rest.is_some() || !events.is_empty(), "no event, and nothing is left");
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(message.len() == 100 << 20 && message.iter().all(|byte| *byte == 7));
    assert!(turns > 100, "{turns} turns for 100 MiB");
    link.send(b"go on").unwrap();
    // A function that waits goes on by itself.
    let message = link.receiver().recv_deadline(soon()).unwrap().unwrap();
    assert!(message.len() == 150 << 20 && message.iter().all(|byte| *byte == 7));
    link.send(b"thanks").unwrap();
    sending.join().unwrap();
}

/// Sends back everything there is. `false`: the peer has closed.
fn echo(link: &mut Connection) -> bool {
    loop {
        match link.receiver().try_recv() {
            Ok(Some(message)) => link.send(&message).unwrap(),
            Ok(None) => return false,
            Err(TryRecvError::Empty) => return true,
            Err(error) => panic!("{error}"),
        }
    }
}
