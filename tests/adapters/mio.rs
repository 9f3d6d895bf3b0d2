//! Connections and listeners work inside a mio loop.

use std::thread;

use crate::support::{HANG, soon, unique_name};
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
