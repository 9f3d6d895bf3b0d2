//! The servers. Each sends back every message of up to 4 MiB; the service of committed buffers adds 1 to every byte.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use rustix::process::Resource;
use slipring::commit::{Client, Direction, Server, ServerOptions};
use slipring::error::{TryRecvError, TrySendError};
use slipring::tokio::{AsyncConnection, AsyncListener};
use slipring::{Connection, Context, ErrorKind, EventLoop, Listener, Options, Reactor, Result};

use crate::honest::{Dial, Trip};
use crate::subject::{Lack, Subject, limit};
use crate::support::other::{Other, say, wait_for_death};
use crate::support::service::Calculator;
use crate::support::unique_name;

/// The longest message that is sent back, in bytes. A server on one thread would copy longer ones on that thread.
const LONGEST: usize = 4 << 20;

/// The pool of each server, in bytes. An attacker who could keep all of it would harm the others.
const POOL: u64 = 256 << 20;

/// The descriptors that a server may have. 500 links that never end would use them up.
const DESCRIPTORS: u64 = 512;

/// The time after which a round trip counts as hanging.
const TRIP: Duration = Duration::from_secs(10);

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A thread a link.
    Blocking,
    /// A reactor with a thread of its own.
    Reactor,
    /// A reactor that the caller's thread runs.
    EventLoop,
    /// A tokio runtime of one thread.
    OneThread,
    /// A tokio runtime of two threads.
    TwoThreads,
    /// A loop that waits for descriptors, with mio.
    Poll,
    /// A service of committed buffers.
    Commit,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Reactor => "reactor",
            Self::EventLoop => "event loop",
            Self::OneThread => "tokio 1",
            Self::TwoThreads => "tokio 2",
            Self::Poll => "poll",
            Self::Commit => "commit",
        }
    }
}

/// Starts a server in another process.
pub fn start(test: &str, kind: Kind, lack: Lack) -> Subject {
    let address = unique_name();
    let process = Other::spawn(test, &format!("{address} {}", lack.name()));
    process.expect("listening");
    let context = Context::with_options(options().send_timeout(TRIP)).unwrap();
    let name = address.clone();
    let dial: Arc<Dial> = Arc::new(move || match kind {
        Kind::Commit => executor(&context, &name),
        _ => echoer(&context, &name),
    });
    Subject { process, address, dial }
}

/// Options of servers and clients: a pool that does not go on growing while it is used as before.
fn options() -> Options {
    Options::new().pool_footprint(1 << 20).pool_far_footprint(1 << 20)
}

/// A client of an echo server: the first of every eight messages goes through the pool.
fn echoer(context: &Context, name: &str) -> std::result::Result<Trip, String> {
    let deadline = Instant::now() + TRIP;
    let mut link = context.connect_deadline(name, deadline).map_err(|error| error.to_string())?;
    let mut number = 0usize;
    Ok(Box::new(move || {
        let message = vec![number as u8; if number.is_multiple_of(8) { 20_000 } else { 48 }];
        number += 1;
        let deadline = Instant::now() + TRIP;
        let sent = link.sender().send_deadline(&message, deadline);
        sent.map_err(|error| format!("send: {error}"))?;
        match link.receiver().recv_deadline(deadline) {
            Ok(Some(back)) if back == message => Ok(()),
            Ok(Some(_)) => Err("it got wrong bytes".into()),
            Ok(None) => Err("the server closed its link".into()),
            Err(error) => Err(format!("recv: {error}")),
        }
    }))
}

/// A client of the service.
fn executor(context: &Context, name: &str) -> std::result::Result<Trip, String> {
    let prepare = || -> Result<_> {
        let link = context.connect_deadline(name, Instant::now() + TRIP)?;
        let client = Client::new(link)?;
        let model = client.load(b"echo")?;
        let session = model.sessions(1)?.remove(0);
        let buffers = session.allocate_all()?;
        session.set(Direction::In, 0, &buffers[0])?;
        session.set(Direction::Out, 0, &buffers[1])?;
        session.commit()?;
        Ok((client, model, session, buffers))
    };
    let (client, model, session, buffers) = prepare().map_err(|error| error.to_string())?;
    let mut number = 0u8;
    Ok(Box::new(move || {
        let _keep = (&client, &model);
        number = number.wrapping_add(1);
        let execute = || -> Result<Vec<u8>> {
            buffers[0].write_at(0, &[number; 8])?;
            session.start()?.wait_deadline(Instant::now() + TRIP)?;
            buffers[1].to_vec()
        };
        match execute().map_err(|error| format!("execute: {error}"))? {
            bytes if bytes == [number.wrapping_add(1); 8] => Ok(()),
            other => Err(format!("it got {other:?} for {number}")),
        }
    }))
}

/// Serves until it is killed. The argument is the name and the [`Lack`].
pub fn serve(kind: Kind, argument: &str) {
    let (name, lack) = argument.split_once(' ').unwrap();
    let lack = Lack::named(lack);
    limit(Resource::Nofile, DESCRIPTORS);
    let context = Context::with_options(options().pool_quota(POOL)).unwrap();
    let listener = context.listen(name).unwrap();
    say("listening");
    lack.apply();
    match kind {
        Kind::Blocking => blocking(listener),
        Kind::Reactor => {
            let reactor = Reactor::spawn(&context).unwrap();
            echo_with(&reactor, listener);
            wait_for_death();
        }
        Kind::EventLoop => {
            let mut events = EventLoop::new(&context).unwrap();
            echo_with(&events.reactor(), listener);
            events.run().unwrap();
        }
        Kind::OneThread => {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(echo_tasks(listener));
        }
        Kind::TwoThreads => {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            // A task, because the thread that calls `block_on` is a third one.
            runtime.block_on(runtime.spawn(echo_tasks(listener))).unwrap();
        }
        Kind::Poll => poll(listener),
        Kind::Commit => {
            let options = ServerOptions::new().workers(2);
            let server = Server::with_options(&context, listener, Calculator::default(), options);
            let _server = server.unwrap();
            wait_for_death();
        }
    }
}

fn blocking(mut listener: Listener) {
    loop {
        if let Ok(link) = listener.accept() {
            // Without memory for a thread the link ends.
            let _ = thread::Builder::new().spawn(move || echo(link));
        }
    }
}

fn echo(mut link: Connection) -> Result<()> {
    while let Some(message) = link.recv()? {
        if message.len() <= LONGEST {
            link.send(&message)?;
        }
    }
    link.close()
}

fn echo_with(reactor: &Reactor, listener: Listener) {
    let serving = reactor.clone();
    let accepted = reactor.accept_with(listener, move |accepted| {
        if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
            link.on_message(|link, message| {
                if message.len() <= LONGEST {
                    link.write(message.to_vec());
                }
            });
        }
        ControlFlow::Continue(())
    });
    accepted.unwrap();
}

async fn echo_tasks(listener: Listener) {
    let mut listener = AsyncListener::new(listener).unwrap();
    loop {
        if let Ok(link) = listener.accept().await {
            tokio::spawn(echo_task(link));
        }
    }
}

async fn echo_task(mut link: AsyncConnection) -> Result<()> {
    while let Some(message) = link.recv().await? {
        if message.len() <= LONGEST {
            link.send(&message).await?;
        }
    }
    link.close()
}

/// How many messages of a link the loop handles before it looks at the others.
const SHARE: usize = 16;

/// A link of the loop, and a message that waits for room.
struct Served {
    link: Connection,
    waiting: Option<Vec<u8>>,
}

/// Where a link stands after its turn.
enum Turn {
    /// It has more to do after this time, or in the next turn if it is zero.
    Rests(Duration),
    /// Its descriptor will tell.
    Sleeps,
    Over,
}

impl Served {
    fn turn(&mut self) -> Turn {
        for _ in 0..SHARE {
            if let Some(message) = &self.waiting {
                match self.link.sender().try_send(message) {
                    Ok(()) => self.waiting = None,
                    Err(TrySendError::Full { .. }) => return Turn::Sleeps,
                    Err(_) => return Turn::Over,
                }
            }
            match self.link.receiver().try_peek() {
                Ok(Some(message)) if message.len() > LONGEST => {
                    if message.release().is_err() {
                        return Turn::Over;
                    }
                }
                Ok(Some(message)) => {
                    self.waiting = Some(message.bytes().to_vec());
                    if message.release().is_err() {
                        return Turn::Over;
                    }
                }
                Ok(None) => return Turn::Over,
                Err(TryRecvError::Empty) => {
                    return self.link.receiver().rest().map_or(Turn::Sleeps, Turn::Rests);
                }
                Err(_) => return Turn::Over,
            }
        }
        Turn::Rests(Duration::ZERO)
    }
}

fn poll(mut listener: Listener) {
    const LISTENER: Token = Token(0);
    /// After a failed accept, which no event may follow.
    const AGAIN: Duration = Duration::from_millis(50);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(256);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).unwrap();
    let mut links: HashMap<Token, Served> = HashMap::new();
    let mut next = 1;
    let mut ready: Vec<Token> = Vec::new();
    let mut resting: HashMap<Token, Instant> = HashMap::new();
    let mut accept_again = false;
    loop {
        let again = accept_again.then_some(AGAIN);
        let rested =
            resting.values().min().map(|until| until.saturating_duration_since(Instant::now()));
        let patience = match ready.is_empty() {
            false => Some(Duration::ZERO),
            true => again.into_iter().chain(rested).min(),
        };
        if let Err(error) = poll.poll(&mut events, patience) {
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
            continue;
        }
        for token in events.iter().map(|event| event.token()) {
            if !ready.contains(&token) {
                ready.push(token);
            }
        }
        let now = Instant::now();
        for (token, _) in resting.extract_if(|_, until| *until <= now) {
            if !ready.contains(&token) {
                ready.push(token);
            }
        }
        if accept_again && !ready.contains(&LISTENER) {
            ready.push(LISTENER);
        }
        for token in std::mem::take(&mut ready) {
            if token == LISTENER {
                accept_again = false;
                for _ in 0..SHARE {
                    match listener.try_accept() {
                        Ok(Some(mut link)) => {
                            let token = Token(next);
                            next += 1;
                            let interest = Interest::READABLE | Interest::WRITABLE;
                            link.receiver().take_turns();
                            if poll.registry().register(&mut link, token, interest).is_ok() {
                                links.insert(token, Served { link, waiting: None });
                                // What came before the registration causes no event.
                                ready.push(token);
                            }
                        }
                        Ok(None) => break,
                        Err(error) => {
                            accept_again = matches!(
                                error.kind(),
                                ErrorKind::DescriptorLimit { .. } | ErrorKind::OutOfMemory { .. }
                            );
                            // The next peer waits.
                            ready.push(LISTENER);
                            break;
                        }
                    }
                }
                continue;
            }
            let Some(served) = links.get_mut(&token) else { continue };
            match served.turn() {
                Turn::Rests(Duration::ZERO) => ready.push(token),
                Turn::Rests(rest) => {
                    resting.insert(token, Instant::now() + rest);
                }
                Turn::Sleeps => {}
                Turn::Over => {
                    let mut served = links.remove(&token).unwrap();
                    let _ = poll.registry().deregister(&mut served.link);
                }
            }
        }
    }
}
