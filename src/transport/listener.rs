//! A listener: it accepts peers, and no peer can end it.
//!
//! The listener owns the listening socket, the peers whose Hello has not come, a timer for the deadline of the oldest of
//! them, and an epoll instance that watches all three. So the epoll instance alone tells a loop when to call.
//!
//! 1. A peer that lies, stays silent or dies fails its own handshake alone.
//! 2. At most `half_open_limit` peers are half-open. One more, and the listener drops the oldest of the user that has most.
//!    Each is charged to its account with a descriptor. The listener refuses a silent peer whose account is full.
//! 3. One descriptor is held in reserve, so that the listener can turn a peer away when this process may open no more.
//! 4. The listener removes the path of its socket on drop, while its own socket is there.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::account::{Charge, Resource};
use crate::error::{Error, ErrorKind, Result};
use crate::handshake::address::Address;
use crate::handshake::exchange::Offer;
use crate::handshake::owned_socket::{ListeningSocket, Socket};
use crate::handshake::peer::Credentials;
use crate::handshake::role::Service;
use crate::handshake::{exchange, socket};
use crate::shm::fork::Generation;
use crate::status::layout::{END, REFUSED, SILENT};
use crate::status::{Facts, Kind, Line, Role, Row};
use crate::transport::allowance::Allowance;
use crate::transport::connection::Connection;
use crate::transport::core::Core;
use crate::transport::establish::{End, Established};
use crate::transport::socket_path::SocketPath;
use crate::wake::SpinPolicy;

/// The key of the listening socket; half-open peers have others.
const LISTENER: u64 = u64::MAX;

/// The key of the timer.
const TIMER: u64 = u64::MAX - 1;

/// How long the listener takes peers from the socket's queue at a time. A peer that lies can cost some 10 ms, for
/// counting the pages of a GiB, and a reactor has links beside the listener.
const SLICE: Duration = Duration::from_millis(2);

/// As [`SLICE`], for a reactor, whose links wait meanwhile.
pub(crate) const SHORT_SLICE: Duration = Duration::from_micros(500);

/// Peers that the listener takes from the socket's queue before it checks the half-open ones.
const BURST: usize = 64;

/// The pause before the next attempt, while the listener can neither accept a peer nor turn it away. The peer stays at
/// the head of the queue, so the socket stays readable.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// How long the listener does not look at its socket after a [`try_accept`](Listener::try_accept) that used up its slice,
/// in multiples of the time that it took. So a queue that never empties gets a third of the time.
const REST: u32 = 2;

/// Counts of the peers that a listener has met.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context};
///
/// let mut listener = Context::new()?.listen(Address::fresh())?;
/// assert!(listener.try_accept()?.is_none());
/// assert_eq!(listener.stats().accepted, 0);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Peers that became connections.
    pub accepted: u64,
    /// Peers that were refused, or broke the protocol.
    pub refused: u64,
    /// Peers whose Hello did not come in time, or that the listener dropped for others.
    pub silent: u64,
}

/// Accepts connections on an address.
///
/// No peer can end a listener: a peer that lies, stays silent or dies fails its own handshake. An error of
/// [`accept`](Self::accept) says what this process lacks (descriptors, memory), and the next call goes on.
///
/// # Examples
///
/// ```
/// use slipring::{Address, Context};
///
/// let (context, address) = (Context::new()?, Address::fresh());
/// let mut listener = context.listen(&address)?;
/// let client = std::thread::spawn(move || context.connect(&address));
/// let link = listener.accept()?;
/// assert_eq!(link.peer().pid(), Some(std::process::id()));
/// assert_eq!(listener.stats().accepted, 1);
/// client.join().unwrap()?.close()?;
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    core: Arc<Core>,
    /// The peers that it serves.
    service: Service,
    address: Option<Address>,
    socket: ListeningSocket,
    epoll: OwnedFd,
    /// Peers whose Hello has not come, oldest first.
    half_open: VecDeque<HalfOpen>,
    /// Expires at the deadline of a half-open peer, or at the end of a rest.
    timer: OwnedFd,
    /// Whether the timer runs, or has expired unseen. It runs on after its peer has sent its Hello, so that a stream of
    /// peers costs one setting per `handshake_timeout`.
    is_timed: bool,
    next_key: u64,
    allowance: Allowance,
    /// Closed for a moment to turn a peer away when no descriptor is left.
    reserve: Option<OwnedFd>,
    /// The peer at the head of the queue could neither be accepted nor turned away.
    stuck: bool,
    /// Until then the epoll instance does not watch the socket, and the timer runs.
    rests_until: Option<Instant>,
    spin: SpinPolicy,
    /// Whether the last peer came while the listener polled.
    is_busy: bool,
    stats: ListenerStats,
    /// The line of the status page with these counts.
    line: Line,
    generation: Generation,
    /// The file to remove on drop.
    path: Option<SocketPath>,
}

#[derive(Debug)]
struct HalfOpen {
    key: u64,
    /// The user that made the peer's socket.
    user: u32,
    socket: Socket,
    deadline: Instant,
    charge: Charge,
}

impl Listener {
    pub(super) fn bind(core: Arc<Core>, address: Address, service: Service) -> Result<Self> {
        let target = address.to_socket_address()?;
        let socket = socket::open()?;
        // A peer that connects as soon as the socket listens is heard with its credentials.
        socket::receive_credentials(&socket)?;
        let bind = || socket::bind_and_listen(&socket, &target);
        let bound = match address.as_path() {
            Some(path) => SocketPath::bind(path, bind, |errno| *errno == Errno::ADDRINUSE),
            None => bind().map(|()| None),
        };
        let path = match bound {
            Ok(path) => path,
            Err(errno @ Errno::ADDRINUSE) => {
                let kind = ErrorKind::AddressInUse { address: address.to_string() };
                return Err(Error::with_source(kind, errno));
            }
            Err(errno) => return Err(Error::os("bind", errno)),
        };
        let mut listener = Self::start(core, ListeningSocket::new(socket, true), service)?;
        listener.path = path;
        listener.address = Some(address);
        Ok(listener)
    }

    pub(super) fn adopt(core: Arc<Core>, socket: OwnedFd) -> Result<Self> {
        Self::start(core, ListeningSocket::new(socket, false), Service::Links)
    }

    fn start(core: Arc<Core>, socket: ListeningSocket, service: Service) -> Result<Self> {
        // Accepted sockets inherit the option, so no Hello comes without credentials.
        socket::receive_credentials(&socket)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|errno| Error::os("epoll_create1", errno))?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(|errno| Error::os("timerfd_create", errno))?;
        for (watched, key) in [(&*socket, LISTENER), (&timer, TIMER)] {
            epoll::add(&epoll, watched, EventData::new_u64(key), EventFlags::IN)
                .map_err(|errno| Error::os("epoll_ctl", errno))?;
        }
        let reserve = reserve_descriptor(&socket);
        let row = Row::open(&Facts {
            role: match service {
                Service::Links => Role::Accepted,
                Service::Broadcast(_) => Role::Publishes,
            },
            context: core.pool().number(),
            address: &socket::own_name(&socket),
            ..Facts::of(Kind::Listener)
        })?;
        let generation = Generation::current()?;
        let spin = core.options().spin_of_listener();
        Ok(Self {
            core,
            service,
            address: None,
            socket,
            epoll,
            half_open: VecDeque::new(),
            timer,
            is_timed: false,
            next_key: 0,
            allowance: Allowance::default(),
            reserve,
            stuck: false,
            rests_until: None,
            spin,
            is_busy: false,
            stats: ListenerStats::default(),
            line: row.line(END),
            generation,
            path: None,
        })
    }

    /// Returns the address, or `None` if the socket was inherited.
    pub fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// Returns the address as the kernel says it, for the status page.
    pub(crate) fn name(&self) -> Vec<u8> {
        socket::own_name(&self.socket)
    }

    /// Returns the counts of this listener.
    pub fn stats(&self) -> ListenerStats {
        self.stats
    }

    /// Waits for a peer and connects with it.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::DescriptorLimit`], [`ErrorKind::OutOfMemory`], [`ErrorKind::FileSizeLimit`], [`ErrorKind::Os`]: this process lacks what the
    ///   next connection needs. The listener turned the peer away, and goes on.
    /// - [`ErrorKind::Forked`]: this process is a fork of the one that made the listener.
    pub fn accept(&mut self) -> Result<Connection> {
        loop {
            if let Some(connection) = self.accept_until(None)? {
                return Ok(connection.into_connection());
            }
        }
    }

    /// Accepts as [`accept`](Self::accept) does, until `deadline`.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`]: no peer came in time.
    /// - Otherwise as [`accept`](Self::accept).
    pub fn accept_deadline(&mut self, deadline: Instant) -> Result<Connection> {
        let start = Instant::now();
        match self.accept_until(Some(deadline))? {
            Some(connection) => Ok(connection.into_connection()),
            None => Err(ErrorKind::TimedOut { after: start.elapsed() }.into()),
        }
    }

    /// Accepts as [`accept`](Self::accept) does, but does not wait. Returns `None` if no peer is ready.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn try_accept(&mut self) -> Result<Option<Connection>> {
        Ok(self.accept_until(Some(Instant::now()))?.map(Established::into_connection))
    }

    /// Accepts as [`try_accept`](Self::try_accept) does, a peer of any role that this listener serves.
    pub(crate) fn try_accept_any(&mut self) -> Result<Option<Established>> {
        self.accept_until(Some(Instant::now()))
    }

    /// Accepts as [`try_accept`](Self::try_accept) does, for about [`SHORT_SLICE`]. `Ok(None)`: the listener stays readable
    /// if peers are left.
    pub(crate) fn try_accept_soon(&mut self) -> Result<Option<Connection>> {
        self.generation.check()?;
        self.core.prepare();
        let now = Instant::now();
        self.drop_silent(now);
        for key in self.ready_keys(Some(now))? {
            let connected = self.take_event(key, SHORT_SLICE)?;
            if connected.is_some() || now.elapsed() >= SHORT_SLICE {
                return Ok(connected.map(Established::into_connection));
            }
        }
        Ok(None)
    }

    /// Waits until `deadline` for the first event. Returns the keys of what has events.
    fn ready_keys(&self, deadline: Option<Instant>) -> Result<Vec<u64>> {
        let mut events = [MaybeUninit::<Event>::uninit(); 16];
        loop {
            match epoll::wait(&self.epoll, &mut events, timeout(deadline).as_ref()) {
                Ok((ready, _)) => return Ok(ready.iter().map(|event| event.data.u64()).collect()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::os("epoll_wait", errno)),
            }
        }
    }

    /// As [`ready_keys`](Self::ready_keys), but polls before it sleeps: the wake-up of a thread whose CPU is idle takes some
    /// 30 µs of both sides.
    fn await_events(&mut self, deadline: Option<Instant>) -> Result<Vec<u64>> {
        if self.spin.polls() {
            let start = Instant::now();
            let limit = start + self.spin.limit();
            let until = deadline.map_or(limit, |deadline| deadline.min(limit));
            while Instant::now() < until {
                let keys = self.ready_keys(Some(start))?;
                if !keys.is_empty() {
                    self.spin.caught();
                    self.is_busy = true;
                    return Ok(keys);
                }
            }
        }
        self.spin.slept();
        self.is_busy = false;
        self.ready_keys(deadline)
    }

    /// Handles an event. Takes new peers for about `slice`.
    fn take_event(&mut self, key: u64, slice: Duration) -> Result<Option<Established>> {
        match key {
            LISTENER => self.take_new(slice),
            TIMER => self.expire().map(|()| None),
            key => self.check_again(key),
        }
    }

    fn accept_until(&mut self, deadline: Option<Instant>) -> Result<Option<Established>> {
        self.generation.check()?;
        let began = Instant::now();
        if self
            .rests_until
            .is_some_and(|until| until <= began || deadline.is_none_or(|deadline| deadline > began))
        {
            self.end_rest();
        }
        loop {
            self.core.prepare();
            let now = Instant::now();
            self.drop_silent(now);
            let is_late = deadline.is_some_and(|deadline| deadline <= now);
            let slice = if is_late { SHORT_SLICE } else { SLICE };
            let keys =
                if is_late { self.ready_keys(deadline)? } else { self.await_events(deadline)? };
            let idle = keys.is_empty();
            for key in keys {
                let connected = self.take_event(key, slice);
                if connected.is_err() && self.stuck && key == LISTENER {
                    // The caller that waits for the socket would call at once, for ever.
                    let now = Instant::now();
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
                    std::thread::sleep(left.map_or(PAUSE, |left| left.min(PAUSE)));
                }
                let connected = connected?;
                if connected.is_some() {
                    return Ok(connected);
                }
            }
            let now = Instant::now();
            if let Some(deadline) = deadline.filter(|deadline| *deadline <= now) {
                // A caller that waits for an edge must empty the queue, but endless liars must not keep it long past its
                // deadline.
                let took = now - deadline.max(began);
                if !idle && took >= SHORT_SLICE {
                    self.rest(took * REST);
                }
                if idle || took >= SHORT_SLICE {
                    return Ok(None);
                }
            }
        }
    }

    /// Does not look at the socket for `time`. The end of the rest causes an edge of the epoll instance.
    fn rest(&mut self, time: Duration) {
        let (data, none) = (EventData::new_u64(LISTENER), EventFlags::empty());
        self.rests_until = Some(Instant::now() + time);
        if epoll::modify(&self.epoll, &self.socket, data, none).is_err()
            || self.set_timer().is_err()
        {
            self.end_rest();
        }
    }

    /// Watches the socket. This causes an edge of the epoll instance if peers are left in the queue.
    fn end_rest(&mut self) {
        self.rests_until = None;
        let _ = epoll::delete(&self.epoll, &self.socket);
        // The entry had room a moment ago. Without it, `accept` finds peers by its deadline.
        let data = EventData::new_u64(LISTENER);
        let _ = epoll::add(&self.epoll, &self.socket, data, EventFlags::IN);
    }

    /// Takes peers from the socket's queue until one connects, for about `slice`, and one of them in any case: a thread that
    /// gets too little time comes forward, too.
    fn take_new(&mut self, slice: Duration) -> Result<Option<Established>> {
        let start = Instant::now();
        for taken in 0..BURST {
            if taken > 0 && start.elapsed() >= slice {
                break;
            }
            let peer = match socket::accept(self.socket.as_fd()) {
                Ok(Some(peer)) => Socket::new(peer),
                Ok(None) => {
                    self.stuck = false;
                    return Ok(None);
                }
                Err(error) => {
                    self.stuck = !self.turn_away();
                    return Err(error);
                }
            };
            self.stuck = false;
            let options = self.core.options();
            let maker = socket::maker(&peer);
            let maker = match maker.and_then(|maker| options.admit(&maker).map(|()| maker)) {
                Ok(maker) => maker,
                Err(error) => {
                    self.note(&exchange::refuse(&peer, error));
                    continue;
                }
            };
            match self.check(peer)? {
                Checked::Connected(connection) => return Ok(Some(*connection)),
                Checked::Silent(peer) => self.keep(peer, &maker)?,
                Checked::Over => {}
            }
        }
        Ok(None)
    }

    /// Checks a half-open peer whose socket is readable.
    fn check_again(&mut self, key: u64) -> Result<Option<Established>> {
        let Some(at) = self.half_open.iter().position(|peer| peer.key == key) else {
            return Ok(None);
        };
        let Some(HalfOpen { socket, user, deadline, charge, .. }) = self.half_open.remove(at)
        else {
            return Ok(None);
        };
        // The socket lives on in its connection.
        let _ = epoll::delete(&self.epoll, &socket);
        match self.check(socket)? {
            Checked::Connected(connection) => Ok(Some(*connection)),
            Checked::Over => Ok(None),
            Checked::Silent(socket) => {
                let events = EventFlags::IN;
                epoll::add(&self.epoll, &socket, EventData::new_u64(key), events)
                    .map_err(|errno| Error::os("epoll_ctl", errno))?;
                self.half_open.insert(at, HalfOpen { key, user, socket, deadline, charge });
                Ok(None)
            }
        }
    }

    /// Accepts a peer if its Hello has come.
    fn check(&mut self, socket: Socket) -> Result<Checked> {
        let may_cost = |user, bytes| self.allowance.take(user, bytes);
        let answer = match self.core.accept(&socket, self.service, may_cost) {
            Ok(Offer::Silent) => return Ok(Checked::Silent(socket)),
            Ok(Offer::Overdrawn(error)) => {
                self.note(&error);
                return Ok(Checked::Over);
            }
            Ok(Offer::Accepted(sides)) => self.core.establish(socket, *sides, End::Accepting),
            Err(error) => Err(error),
        };
        match answer {
            Ok(connection) => {
                self.stats.accepted += 1;
                self.line.store(0, self.stats.accepted);
                if self.is_busy {
                    // The peer maps its segments meanwhile.
                    self.core.prepare();
                }
                Ok(Checked::Connected(Box::new(connection)))
            }
            Err(error) => {
                self.note(&error);
                match error.kind() {
                    // The caller hears what this process lacks.
                    ErrorKind::DescriptorLimit { .. }
                    | ErrorKind::OutOfMemory { .. }
                    | ErrorKind::FileSizeLimit { .. }
                    | ErrorKind::UnmappedUser
                    | ErrorKind::Os { .. } => Err(error),
                    _ => Ok(Checked::Over),
                }
            }
        }
    }

    fn note(&mut self, error: &Error) {
        self.stats.refused += 1;
        self.line.store(REFUSED, self.stats.refused);
        if matches!(error.kind(), ErrorKind::PeerNotAdmitted { .. } | ErrorKind::Fault(_)) {
            tracing::warn!(error = format_args!("{error:#}"), "a peer was refused");
        } else {
            tracing::debug!(error = format_args!("{error:#}"), "a peer was not accepted");
        }
    }

    /// Keeps a peer whose Hello has not come. If there are too many, drops the oldest of the user that has most. If the account
    /// of such peers is full, drops the oldest one of the same user, or refuses the peer.
    fn keep(&mut self, socket: Socket, maker: &Credentials) -> Result<()> {
        let user = maker.uid;
        if self.half_open.len() >= self.core.options().most_half_open() {
            self.drop_of_most(user);
        }
        let account = self.core.options().stranger(maker);
        let charge = account.charge(Resource::Descriptors, 1).or_else(|_| {
            if let Some(oldest) = self.half_open.iter().position(|peer| peer.user == user) {
                self.drop_at(oldest);
            }
            account.charge(Resource::Descriptors, 1)
        });
        let charge = match charge {
            Ok(charge) => charge,
            Err(error) => {
                self.note(&exchange::refuse(&socket, error));
                return Ok(());
            }
        };
        let key = self.next_key;
        self.next_key += 1;
        epoll::add(&self.epoll, &socket, EventData::new_u64(key), EventFlags::IN)
            .map_err(|errno| Error::os("epoll_ctl", errno))?;
        let deadline = self.core.options().handshake_deadline();
        self.half_open.push_back(HalfOpen { key, user, socket, deadline, charge });
        if self.is_timed { Ok(()) } else { self.set_timer() }
    }

    /// Drops the peers whose time is over, once the timer has expired.
    fn expire(&mut self) -> Result<()> {
        let now = Instant::now();
        self.drop_silent(now);
        if self.rests_until.is_some_and(|until| until <= now) {
            self.end_rest();
        }
        self.set_timer()
    }

    /// Sets the timer to the deadline of the oldest half-open peer or the end of a rest, or stops it if there is none. This also takes back
    /// what an expired timer has reported.
    fn set_timer(&mut self) -> Result<()> {
        let first = self.half_open.front().map(|peer| peer.deadline);
        let next = first.into_iter().chain(self.rests_until).min();
        // Zero would stop the timer.
        let value = timeout(next).map(|left| match left {
            Timespec { tv_sec: 0, tv_nsec: 0 } => Timespec { tv_sec: 0, tv_nsec: 1 },
            left => left,
        });
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: none, it_value: value.unwrap_or(none) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)
            .map_err(|errno| Error::os("timerfd_settime", errno))?;
        self.is_timed = next.is_some();
        Ok(())
    }

    fn drop_silent(&mut self, now: Instant) {
        while self.half_open.front().is_some_and(|peer| peer.deadline <= now) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        self.drop_at(0);
    }

    /// Drops the oldest peer of the user that has most, with one of `comer` on its way.
    fn drop_of_most(&mut self, comer: u32) {
        let mut counts = HashMap::from([(comer, 1)]);
        for peer in &self.half_open {
            *counts.entry(peer.user).or_insert(0) += 1;
        }
        let most = counts.into_iter().max_by_key(|(user, count)| (*count, *user == comer));
        let is_of_most = |peer: &HalfOpen| most.is_some_and(|(user, _)| peer.user == user);
        let oldest = self.half_open.iter().position(is_of_most);
        self.drop_at(oldest.unwrap_or_default());
    }

    fn drop_at(&mut self, at: usize) {
        if let Some(peer) = self.half_open.remove(at) {
            let _ = epoll::delete(&self.epoll, &peer.socket);
            socket::end(&peer.socket);
            self.stats.silent += 1;
            self.line.store(SILENT, self.stats.silent);
        }
    }

    /// Takes the peer at the head of the queue with the descriptor held in reserve, and hangs up: no other descriptor
    /// is left for it, and it would keep the socket readable. Returns `false` if the peer is still there.
    fn turn_away(&mut self) -> bool {
        if self.reserve.take().is_none() {
            self.reserve = reserve_descriptor(&self.socket);
            return false;
        }
        let turned = socket::accept(self.socket.as_fd());
        let gone = turned.is_ok();
        // The drop of a `Socket` never waits.
        drop(turned.map(|peer| peer.map(Socket::new)));
        self.reserve = reserve_descriptor(&self.socket);
        gone
    }

    /// Returns whether the peer at the head of the queue can now neither be accepted nor turned away.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck
    }
}

/// A half-open peer after a check.
enum Checked {
    Connected(Box<Established>),
    Silent(Socket),
    /// Refused, or gone.
    Over,
}

fn reserve_descriptor(any: &OwnedFd) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(any, 3).ok()
}

fn timeout(until: Option<Instant>) -> Option<Timespec> {
    let left = until?.saturating_duration_since(Instant::now());
    let seconds = left.as_secs().min(i64::MAX as u64) as i64;
    Some(Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() })
}

impl AsFd for Listener {
    /// Returns a descriptor that is readable when [`try_accept`](Listener::try_accept) has something to do: a peer has
    /// come, or the time of a silent one is over.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        // Nobody joins the queue after this. The drop of the socket needs a descriptor to take those who wait.
        self.socket.end();
        self.reserve = None;
        if let Some(path) = self.path.take() {
            path.remove();
        }
    }
}
