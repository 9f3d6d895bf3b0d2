//! slipring's reactor: each side serves its links by callbacks on one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use slipring::error::{TryRecvError, TrySendError};
use slipring::message::{Bytes, Token};
use slipring::{Connection, Context, EventLoop, Link};

use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::payload::{self, FROM_FOLLOWER, FROM_LEADER};

/// A loop that serves several links, of which one carries the messages.
pub struct Reactors {
    events: EventLoop,
    used: Link,
    /// The others, which stay open.
    _others: Vec<Link>,
    progress: Arc<Progress>,
    /// The peer's token, where tokens answer tokens.
    token: Option<Token>,
}

/// The progress of an exchange. Callbacks and the loop around them run on one thread.
struct Progress {
    salts: (u64, u64),
    received: AtomicU64,
    /// Messages to receive.
    target: AtomicU64,
    leads: bool,
    failed: AtomicBool,
}

impl Progress {
    /// Counts a received message. Returns whether this side sends one now.
    fn advance(&self) -> bool {
        let received = self.received.load(Ordering::Relaxed) + 1;
        self.received.store(received, Ordering::Relaxed);
        !self.leads || received < self.target.load(Ordering::Relaxed)
    }

    fn check(&self, bytes: Bytes<'_>) -> bool {
        let mut word = [0; 8];
        bytes.copy_to(&mut word);
        u64::from_ne_bytes(word)
            == payload::seed(self.received.load(Ordering::Relaxed), self.salts.1)
    }

    /// Returns the next message to send.
    fn next(&self) -> [u8; 8] {
        let sent = self.received.load(Ordering::Relaxed) - u64::from(!self.leads);
        payload::seed(sent, self.salts.0).to_ne_bytes()
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    fn is_done(&self) -> bool {
        self.received.load(Ordering::Relaxed) >= self.target.load(Ordering::Relaxed)
            || self.failed.load(Ordering::Relaxed)
    }
}

impl Reactors {
    /// Opens one link.
    pub fn one(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::messages(setup, 1)
    }

    /// Opens 64 links.
    pub fn some(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::messages(setup, 64)
    }

    /// Opens 1,000 links.
    pub fn many(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::messages(setup, 1000)
    }

    /// Opens `links` links, of which the middle one carries the messages.
    pub fn messages(setup: &Setup, links: usize) -> Outcome<Box<dyn Exchange>> {
        let reactors = Self::open(setup, links)?;
        let progress = reactors.progress.clone();
        reactors.used.on_message(move |link, message| {
            if !progress.check(message.bytes()) {
                progress.fail();
            }
            if progress.advance() && link.try_send(&progress.next()).is_err() {
                progress.fail();
            }
        });
        Ok(Box::new(reactors))
    }

    /// Opens a link over which tokens go each way: the payload is the token.
    pub fn tokens(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let mut reactors = Self::open(setup, 1)?;
        let (progress, theirs) = (reactors.progress.clone(), Arc::new(AtomicU64::new(0)));
        let answer = theirs.clone();
        let mine = reactors.used.register(move |link| {
            if progress.advance() {
                link.trigger(Token::from(answer.load(Ordering::Relaxed) as u32));
            }
        })?;
        reactors.used.write(u32::from(mine).to_le_bytes());
        let told = theirs.clone();
        reactors.used.read_with(move |_, message| {
            if let Ok(Some(bytes)) = message
                && let Ok(token) = bytes.try_into()
            {
                told.store(u64::from(u32::from_le_bytes(token)), Ordering::Relaxed);
            }
        });
        reactors.events.run_until(|| theirs.load(Ordering::Relaxed) != 0)?;
        reactors.token = Some(Token::from(theirs.load(Ordering::Relaxed) as u32));
        Ok(Box::new(reactors))
    }

    fn open(setup: &Setup, links: usize) -> Outcome<Self> {
        Context::raise_descriptor_limit()?;
        let context = Context::new()?;
        let connections = meet(setup, &context, links)?;
        let leads = setup.role == Role::Leader;
        let salts = if leads { (FROM_LEADER, FROM_FOLLOWER) } else { (FROM_FOLLOWER, FROM_LEADER) };
        let progress = Arc::new(Progress {
            salts,
            received: AtomicU64::new(0),
            target: AtomicU64::new(0),
            leads,
            failed: AtomicBool::new(false),
        });
        let mut events = EventLoop::new(&context)?;
        let reactor = events.reactor();
        let mut links = Vec::new();
        for connection in connections {
            links.push(reactor.adopt(connection)?);
        }
        let used = links.swap_remove(links.len() / 2);
        for link in &links {
            let stray = progress.clone();
            link.on_message(move |_, _| stray.fail());
        }
        Ok(Self { events, used, _others: links, progress, token: None })
    }

    /// Runs the loop until `count` more messages were received.
    fn receive(&mut self, count: u64, first: impl FnOnce(&Self) -> Outcome<()>) -> Outcome<()> {
        if count == 0 {
            return Ok(());
        }
        // The follower's turn of the loop that took the last message may have taken the next one, too.
        self.progress.target.fetch_add(count, Ordering::Relaxed);
        first(self)?;
        let progress = self.progress.clone();
        self.events.run_until(|| progress.is_done())?;
        match self.progress.failed.load(Ordering::Relaxed) {
            true => Err("a message was wrong, or on a wrong link".into()),
            false => Ok(()),
        }
    }
}

impl Exchange for Reactors {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        self.receive(count, |this| match this.token {
            Some(token) => {
                this.used.trigger(token);
                Ok(())
            }
            None => Ok(this.used.try_send(&this.progress.next())?),
        })
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        self.receive(count, |_| Ok(()))
    }
}

/// Links of a crowd, with the noisy one.
const CROWD: usize = 50;

/// Messages of noise between two polls for the answer.
const NOISE: usize = 2;

/// A reactor that serves many links. Its peer may keep one of them full, and makes round trips over the others in turn.
#[expect(clippy::large_enum_variant, reason = "a process has one of them")]
pub enum Crowd {
    /// The peer, without a reactor.
    Leader {
        /// All links. The first one may be noisy.
        links: Vec<Connection>,
        /// Whether the first link is kept full.
        noisy: bool,
        /// Round trips made.
        number: u64,
    },
    /// The reactor.
    Follower {
        /// The loop that serves all links.
        events: EventLoop,
        /// Messages sent back.
        echoed: Arc<AtomicU64>,
        /// Messages to send back before `follow` returns.
        target: u64,
    },
}

impl Crowd {
    /// Opens links of which none is noisy.
    pub fn quiet(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, false)
    }

    /// Opens links of which one is kept full.
    pub fn noisy(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::open(setup, true)
    }

    fn open(setup: &Setup, noisy: bool) -> Outcome<Box<dyn Exchange>> {
        let context = Context::new()?;
        let mut links = meet(setup, &context, CROWD)?;
        if setup.role == Role::Leader {
            return Ok(Box::new(Self::Leader { links, noisy, number: 0 }));
        }
        let mut events = EventLoop::new(&context)?;
        let reactor = events.reactor();
        let heard = AtomicU64::new(0);
        reactor.adopt(links.swap_remove(0))?.on_message(move |_, message| {
            heard.fetch_add(message.bytes().byte(0).into(), Ordering::Relaxed);
        });
        let echoed = Arc::new(AtomicU64::new(0));
        for link in links {
            let echoed = echoed.clone();
            reactor.adopt(link)?.on_message(move |link, message| {
                let mut word = [0; 8];
                message.bytes().copy_to(&mut word);
                // The leader notices a missing echo.
                let _ = link.try_send(&word);
                echoed.fetch_add(1, Ordering::Relaxed);
            });
        }
        Ok(Box::new(Self::Follower { events, echoed, target: 0 }))
    }
}

impl Exchange for Crowd {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        let Self::Leader { links, noisy, number } = self else {
            return Err("the follower does not lead".into());
        };
        let [noise, others @ ..] = &mut links[..] else { return Err("no links".into()) };
        for _ in 0..count {
            let link = &mut others[*number as usize % (CROWD - 1)];
            let word = payload::seed(*number, FROM_LEADER);
            link.send(&word.to_ne_bytes())?;
            let echo = loop {
                match link.receiver().try_recv() {
                    Ok(Some(echo)) => break echo,
                    Ok(None) => return Err("the peer has closed".into()),
                    Err(TryRecvError::Empty) => {}
                    Err(error) => return Err(error.into()),
                }
                for _ in 0..if *noisy { NOISE } else { 0 } {
                    if matches!(noise.sender().try_send(&[1; 64]), Err(TrySendError::Full { .. })) {
                        break;
                    }
                }
            };
            payload::check(payload::sum(&echo), word, *number)?;
            *number += 1;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let Self::Follower { events, echoed, target } = self else {
            return Err("the leader does not follow".into());
        };
        *target += count;
        Ok(events.run_until(|| echoed.load(Ordering::Relaxed) >= *target)?)
    }
}

/// Opens `links` links and returns this side's ends, in the same order on both sides.
fn meet(setup: &Setup, context: &Context, links: usize) -> Outcome<Vec<Connection>> {
    match setup.role {
        Role::Follower => {
            let mut listener = context.listen(setup.name)?;
            setup.meet()?;
            (0..links).map(|_| Ok(listener.accept()?)).collect()
        }
        Role::Leader => {
            setup.meet()?;
            (0..links).map(|_| Ok(context.connect(setup.name)?)).collect()
        }
    }
}
