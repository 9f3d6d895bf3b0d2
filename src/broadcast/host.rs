//! The host of a publisher: a thread that admits subscribers and sees their end.
//!
//! 1. The thread sleeps until somebody comes or goes. It sends nothing but the topic. While it lacks the descriptors for those
//!    who come, it tries again after a pause, or when somebody goes.
//! 2. After the publisher's end it keeps the memory that subscribers have yet to read, for the context's `release_grace`.
//! 3. A forked child has no such thread, and its drop does nothing.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::broadcast::audience::Audience;
use crate::broadcast::layout::NEWEST;
use crate::broadcast::seat::Seat;
use crate::error::{Error, Result};
use crate::handshake::packet::Topic;
use crate::handshake::role::Role;
use crate::shm::fork::Generation;
use crate::shm::{Mapping, PeerWords};
use crate::transport::{ACCEPT_PAUSE, Established, Listener};

/// The keys of the listener and of the bell. Subscribers have others.
const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

/// The most subscribers that one turn admits, as of a listener of a reactor.
const ACCEPTS: usize = 16;

/// How long the end of a publisher waits for the thread to close the listener, which takes it microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two looks whether subscribers have read what was published.
const PAUSE: Duration = Duration::from_millis(5);

/// What the thread and the publisher share.
#[derive(Debug)]
pub(super) struct Desk {
    pub(crate) audience: Arc<Audience>,
    pub(crate) topic: Topic,
    /// The descriptor of the topic, which every subscriber gets.
    pub(crate) fd: OwnedFd,
    pub(crate) words: Mapping,
    pub(crate) most: usize,
    /// How long the memory of the last messages stays after the end. `None`: as long as a subscriber reads it.
    pub(crate) grace: Option<Duration>,
}

/// The handle of the thread. Its drop lets the thread end, and waits until the address is free.
#[derive(Debug)]
pub(super) struct Host {
    bell: Arc<OwnedFd>,
    stopped: Arc<AtomicBool>,
    /// The thread says here that it listens no more.
    closed: Mutex<Receiver<()>>,
    generation: Generation,
}

impl Host {
    /// Starts the thread.
    pub(super) fn start(desk: Desk, listener: Listener) -> Result<Self> {
        let os = |call| move |errno: Errno| Error::os(call, errno);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os("epoll_create1"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).map_err(os("eventfd"))?);
        for (fd, key) in [(listener.as_fd(), LISTENER), (bell.as_fd(), BELL)] {
            let data = EventData::new_u64(key);
            epoll::add(&epoll, fd, data, EventFlags::IN).map_err(os("epoll_ctl"))?;
        }
        let stopped = Arc::new(AtomicBool::new(false));
        let (close, closed) = mpsc::sync_channel(1);
        let (stopper, kept) = (stopped.clone(), bell.clone());
        let paused_until = None;
        let door =
            Door { desk, listener, epoll, paused_until, stopped: stopper, close, _bell: kept };
        std::thread::Builder::new()
            .name("slipring-publish".into())
            .spawn(move || door.run())
            .map_err(|error| Error::os("thread spawn", error))?;
        let closed = Mutex::new(closed);
        Ok(Self { bell, stopped, closed, generation: Generation::current()? })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.stopped.store(true, Ordering::Release);
            let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
            let closed = self.closed.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = closed.recv_timeout(PATIENCE);
        }
    }
}

/// The thread's part.
struct Door {
    desk: Desk,
    listener: Listener,
    epoll: OwnedFd,
    /// Until then epoll does not watch the listener, which can neither accept nor turn away the peer at the head of its queue.
    paused_until: Option<Instant>,
    stopped: Arc<AtomicBool>,
    close: SyncSender<()>,
    /// Open as long as the thread waits for it.
    _bell: Arc<OwnedFd>,
}

impl Door {
    fn run(mut self) {
        let mut events = [MaybeUninit::<Event>::uninit(); 64];
        while !self.stopped.load(Ordering::Acquire) {
            let keys: Vec<u64> =
                match epoll::wait(&self.epoll, &mut events, self.timeout().as_ref()) {
                    Ok((ready, _)) => ready.iter().map(|event| event.data.u64()).collect(),
                    Err(Errno::INTR) => continue,
                    // Does not happen with open descriptors of this process.
                    Err(_) => break,
                };
            for key in keys {
                match key {
                    LISTENER => self.admit(),
                    BELL => {}
                    key => {
                        self.dismiss(key / 2);
                        // Its descriptors are free.
                        self.resume(None);
                    }
                }
            }
            self.resume(Some(Instant::now()));
        }
        self.end();
    }

    /// Admits those who have come. Others stay in the queue.
    fn admit(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.try_accept_any() {
                Ok(Some(established)) => self.seat(established),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(
                        error = format_args!("{error:#}"),
                        "a subscriber is turned away"
                    );
                    if self.listener.is_stuck() {
                        self.pause();
                    }
                    return;
                }
            }
        }
    }

    /// Stops watching the listener for a while: epoll would report it in every turn.
    fn pause(&mut self) {
        if self.watch(EventFlags::empty()) {
            self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        }
    }

    /// Watches the listener if its pause is over at `now`, or whenever it would be.
    fn resume(&mut self, now: Option<Instant>) {
        let Some(until) = self.paused_until else { return };
        if now.is_none_or(|now| now >= until) && self.watch(EventFlags::IN) {
            self.paused_until = None;
        }
    }

    /// Sets the events of the listener. Returns whether epoll has taken them.
    fn watch(&self, events: EventFlags) -> bool {
        epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), events).is_ok()
    }

    /// Returns how long the thread sleeps. `None`: until there is an event.
    fn timeout(&self) -> Option<Timespec> {
        let left = self.paused_until?.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }

    fn seat(&self, established: Established) {
        let Role::Subscriber(policy) = established.role else { return };
        let session = established.session;
        let Desk { audience, topic, fd, words, most, .. } = &self.desk;
        let link = session.link.clone();
        let seat = Seat::new(session, policy, topic.hold_limit);
        let newest = || words.load(NEWEST);
        let Some(id) = audience.join(seat, (*topic, fd.as_fd()), newest, *most) else { return };
        let add = |fd, key, events| {
            epoll::add(&self.epoll, fd, EventData::new_u64(key), events | EventFlags::ET)
        };
        let mut added = add(link.socket().as_fd(), id * 2, EventFlags::RDHUP);
        if let (Ok(()), Some(pidfd)) = (added, link.identity().pidfd()) {
            added = add(pidfd, id * 2 + 1, EventFlags::IN);
        }
        if added.is_err() {
            self.dismiss(id);
        }
    }

    /// Removes a subscriber that has ended.
    fn dismiss(&self, id: u64) {
        // Dropped without the lock.
        drop(self.desk.audience.leave(id));
    }

    /// Keeps what subscribers may still read, and ends.
    fn end(self) {
        let Self { desk, listener, close, .. } = self;
        drop(listener);
        let _ = close.try_send(());
        let newest = desk.words.load(NEWEST);
        let deadline = desk.grace.and_then(|grace| Instant::now().checked_add(grace));
        while !desk.audience.lock().is_done(newest)
            && deadline.is_none_or(|deadline| Instant::now() < deadline)
        {
            std::thread::sleep(PAUSE);
            let over: Vec<u64> = {
                let state = desk.audience.lock();
                state
                    .seats()
                    .filter(|(_, seat)| !seat.link().is_alive())
                    .map(|(id, _)| id)
                    .collect()
            };
            over.into_iter().for_each(|id| drop(desk.audience.leave(id)));
        }
        let seats = desk.audience.lock().clear();
        drop(seats);
    }
}
