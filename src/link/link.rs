//! A link: the mappings, the socket and the health that both halves of a connection and its loans share.
//!
//! 1. The link ends once: the health word rises, then the link wakes its sleepers.
//! 2. A thread that sleeps on a bell of the peer's also sleeps on the health word, so the end of the link wakes it.
//! 3. Each error after the end has the reason of the end.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::account::Account;
use crate::error::{Error, ErrorKind, Eviction, Result};
use crate::handshake::layout::Extents;
use crate::handshake::owned_socket::Socket;
use crate::handshake::packet::{Packet, Reason};
use crate::handshake::peer::Peer;
use crate::handshake::{layout, socket};
use crate::link::control_socket::ControlSocket;
use crate::link::health::{Health, HealthWord};
use crate::pool::{Borrower, BorrowerId, Holder};
use crate::shm::{Backing, Mapping, OwnWords, PeerMapping, PeerWords};
use crate::status::{self, Line, Row};
use crate::sync::Edge;

/// The terms of a link, from both Hellos.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// The longest message in bytes, both ways.
    pub(crate) max_message: u64,
    /// Bytes of this side's control section and ring.
    pub(crate) own: Extents,
    /// Bytes of the peer's control section and ring.
    pub(crate) peer: Extents,
    /// The most bytes of this side's pool that the peer maps.
    pub(crate) peer_pool_limit: u64,
    /// The pages of this side's second ring.
    pub(crate) backing: Backing,
    /// This side has connected.
    #[cfg(feature = "traces")]
    pub(crate) connected: bool,
}

/// The state of a link, private to this process.
#[derive(Debug)]
pub(crate) struct Link {
    own: Mapping,
    peer: PeerMapping,
    /// Dropped after the mappings: where the drop ends the socket, the peer has had the time to end its side.
    socket: Socket,
    identity: Peer,
    terms: Terms,
    /// Both processes are registered for `membarrier`.
    interrupts: bool,
    borrower: BorrowerId,
    health_word: HealthWord,
    control_socket: Mutex<ControlSocket>,
    account: Arc<Account>,
    /// The number of segments that the peer has retired.
    retires: Arc<AtomicU32>,
    /// A thread sleeps on the socket: a half that finds nothing arms it before it returns.
    by_descriptor: AtomicBool,
    /// The end of the peer was told of.
    is_told: AtomicBool,
    /// The row of the status page, and its line of the end.
    row: Arc<Row>,
    end_line: Line,
    peer_inode: u64,
    /// The command of the peer's process, once a half has waited.
    peer_command: OnceLock<Option<String>>,
}

impl Link {
    pub(crate) fn new(
        (own, peer): (Mapping, PeerMapping),
        (socket, identity): (Socket, Peer),
        terms: Terms,
        interrupts: bool,
        borrower: BorrowerId,
        control_socket: ControlSocket,
        (row, peer_inode): (Arc<Row>, u64),
    ) -> Self {
        Self {
            own,
            peer,
            socket,
            identity,
            terms,
            interrupts,
            borrower,
            health_word: HealthWord::new(),
            retires: control_socket.retires(),
            account: control_socket.account().clone(),
            control_socket: Mutex::new(control_socket),
            by_descriptor: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            end_line: row.line(status::layout::END),
            row,
            peer_inode,
            peer_command: OnceLock::new(),
        }
    }

    /// Returns the link's row of the status page.
    pub(crate) fn row(&self) -> &Arc<Row> {
        &self.row
    }

    /// Returns the inode of the peer's segment, by which the status page names it.
    pub(crate) fn peer_inode(&self) -> u64 {
        self.peer_inode
    }

    /// Returns this side's segment.
    #[inline(always)]
    pub(crate) fn own(&self) -> &Mapping {
        &self.own
    }

    /// Returns the peer's segment.
    #[inline(always)]
    pub(crate) fn peer(&self) -> &PeerMapping {
        &self.peer
    }

    #[inline(always)]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns who the peer is.
    #[inline(always)]
    pub(crate) fn identity(&self) -> &Peer {
        &self.identity
    }

    /// Names the peer's process and its command, for errors.
    pub(crate) fn peer_name(&self) -> String {
        match self.learn_command() {
            Some(command) => format!("process {} ({command})", self.identity.pid().unwrap_or(0)),
            None => self.identity.to_string(),
        }
    }

    /// Reads the command of the peer's process, which nobody can do after its end.
    pub(crate) fn learn_command(&self) -> Option<&str> {
        self.peer_command.get_or_init(|| self.identity.command()).as_deref()
    }

    /// Returns the error of a link whose peer's process has ended, or has ended the socket without a close.
    #[cold]
    pub(crate) fn death(&self) -> Error {
        let exit = self.identity.exit().map_or_else(String::new, |exit| format!(": {exit}"));
        let who = format!("{}{exit}", self.peer_name());
        let who = std::io::Error::new(std::io::ErrorKind::ConnectionReset, who);
        Error::with_source(ErrorKind::PeerDied, who)
    }

    #[inline(always)]
    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns whether both processes are registered for `membarrier`.
    #[inline(always)]
    pub(crate) fn interrupts(&self) -> bool {
        self.interrupts
    }

    /// Returns the peer's account with the pool.
    #[inline(always)]
    pub(crate) fn borrower(&self) -> BorrowerId {
        self.borrower
    }

    /// Returns what the peer makes this process hold.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    #[inline(always)]
    pub(crate) fn health_word(&self) -> &HealthWord {
        &self.health_word
    }

    /// Returns the number of segments that the peer has retired.
    #[inline(always)]
    pub(crate) fn retires(&self) -> u32 {
        self.retires.load(Ordering::Relaxed)
    }

    /// Returns the receiving side of the socket, locked.
    pub(crate) fn control_socket(&self) -> MutexGuard<'_, ControlSocket> {
        // Only a bug of this crate panics under the lock, and each step leaves the table whole.
        self.control_socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a thread sleeps on the socket.
    pub(crate) fn use_descriptor(&self) {
        self.by_descriptor.store(true, Ordering::Relaxed);
    }

    /// Returns whether a thread sleeps on the socket.
    pub(crate) fn by_descriptor(&self) -> bool {
        self.by_descriptor.load(Ordering::Relaxed)
    }

    /// Sends a packet. Returns `false` if the socket's queue is full.
    pub(crate) fn post(&self, packet: &Packet, fds: &[BorrowedFd<'_>]) -> Result<bool> {
        match socket::send(&self.socket, &packet.encode(), fds) {
            Ok(sent) => Ok(sent),
            Err(Errno::PIPE | Errno::CONNRESET) => {
                // The peer reads no more packets, so it has ended the link.
                self.hang_up();
                Err(self.end())
            }
            Err(errno) => Err(Error::os("sendmsg", errno)),
        }
    }

    /// Returns whether the peer has read all packets.
    #[cold]
    pub(crate) fn has_received_all(&self) -> bool {
        socket::unreceived(&self.socket) == 0
    }

    /// Wakes the peer's event loop that sleeps on its socket.
    #[cold]
    pub(crate) fn call(&self, reason: Reason) {
        match socket::send(&self.socket, &Packet::Wake(reason).encode(), &[]) {
            // A full queue is readable, and a peer that is gone needs no wake-up.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            // The peer would sleep for ever. The end of the link wakes it.
            Err(errno) if self.is_alive() => drop(self.fail(Error::os("sendmsg", errno))),
            Err(_) => {}
        }
    }

    #[inline(always)]
    pub(crate) fn is_alive(&self) -> bool {
        self.health_word.is_alive()
    }

    pub(crate) fn health(&self) -> Health {
        self.health_word.health()
    }

    /// Wakes all threads that sleep on this link, which has ended.
    fn rouse(&self) {
        if self.end_line.is_current() {
            self.end_line.store(0, self.health() as u64);
        }
        // In loom models the word is no futex.
        #[cfg(not(slipring_loom))]
        let _ = futex::wake(self.health_word.word(), futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// Raises the health. If the peer ended without closing a link that this side used, the status page counts its death.
    fn raise(&self, health: Health) {
        let is_used = !self.health_word.is_retired();
        if self.health_word.raise(health)
            && is_used
            && self.end_line.is_current()
            && !self.peer_left()
        {
            self.end_line.store(status::layout::DIED, 1);
        }
    }

    /// Returns whether to log the end of the peer: `true` once, and `false` if this side had dropped the link or had found the
    /// peer at fault.
    pub(crate) fn take_news(&self) -> bool {
        let is_news = match self.health() {
            Health::Alive => !self.health_word.is_retired(),
            Health::HungUp | Health::Dead => true,
            Health::Failed => false,
        };
        is_news && !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Notes in the status page that the publisher evicted the peer.
    pub(crate) fn show_eviction(&self, cause: Eviction) {
        if self.end_line.is_current() {
            self.end_line.store(status::layout::EVICTED, cause as u64 + 1);
        }
    }

    /// Notes that the peer's end of the socket is closed.
    pub(crate) fn hang_up(&self) {
        self.raise(Health::HungUp);
        self.rouse();
    }

    /// Notes that the peer's process has ended.
    pub(crate) fn die(&self) {
        self.raise(Health::Dead);
        self.rouse();
        // A forked child of the peer's may hold the other end open.
        socket::end(&self.socket);
    }

    /// Ends the link from this side. Each later operation returns this error, after the receiver has returned the
    /// messages that the peer sent before.
    #[cold]
    pub(crate) fn fail(&self, error: impl Into<Error>) -> Error {
        let error = error.into();
        let kind = self.health_word.fail(error.kind());
        self.rouse();
        socket::shutdown(&self.socket);
        if kind == error.kind() { error } else { kind.clone().into() }
    }

    /// Returns the error of a link that has ended, when nothing is left to receive.
    #[cold]
    pub(crate) fn end(&self) -> Error {
        match self.health_word.failure() {
            Some(kind) => kind.clone().into(),
            _ if self.peer_left() => ErrorKind::PeerClosed.into(),
            _ => self.death(),
        }
    }

    /// Returns whether the peer's receiver has left.
    pub(crate) fn peer_left(&self) -> bool {
        crate::wake::is_gone(self.peer.load(layout::RECEIVER_STATE))
    }

    /// Returns whether the peer has let go of this link in order, and holds no loan of this side's.
    pub(crate) fn peer_released(&self) -> bool {
        self.peer.load(layout::RELEASED) != 0
    }

    /// Checks that the peer has taken none of its loans back. Then what the caller has read of a loan before this is what
    /// the peer had written when it lent it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LoanRevoked`]
    #[inline(always)]
    pub(crate) fn check_loans(&self) -> Result<()> {
        // Pairs with `Tables::count_out`: a load that saw what the peer wrote there next is followed by one of the mark.
        Edge::Recheck.acquire();
        if self.peer.load(layout::REVOKED) == 0 { Ok(()) } else { Err(revoked()) }
    }

    /// Tells the peer that it cannot rely on what it reads of this side's loans.
    #[cold]
    pub(crate) fn revoke_loans(&self) {
        revoke(&self.own);
    }

    /// Sleeps while the low half of the bell in `bells` is `value` and the link is alive. May return early: the caller checks what it
    /// waits for.
    pub(crate) fn sleep(
        &self,
        bells: &PeerMapping,
        bell: usize,
        value: u32,
        deadline: Option<Instant>,
    ) -> Result<()> {
        static WAITV: OnceLock<bool> = OnceLock::new();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if *WAITV.get_or_init(waitv_works) {
            self.sleep_on_both(bells.futex(bell), value, left)
        } else {
            self.sleep_on_bell(bells.futex(bell), value, left)
        }
    }

    fn sleep_on_both(
        &self,
        bell: &AtomicU32,
        value: u32,
        left: Option<std::time::Duration>,
    ) -> Result<()> {
        let mut waits = [futex::Wait::new(), futex::Wait::new()];
        waits[0].val = value.into();
        waits[0].uaddr = futex::WaitPtr::new((&raw const *bell).cast_mut().cast());
        waits[0].flags = futex::WaitFlags::SIZE_U32;
        waits[1].val = Health::Alive as u64;
        waits[1].uaddr =
            futex::WaitPtr::new((&raw const *self.health_word.word()).cast_mut().cast());
        waits[1].flags = futex::WaitFlags::SIZE_U32 | futex::WaitFlags::PRIVATE;
        let until = left.map(monotonic_after);
        let clock = rustix::thread::ClockId::Monotonic;
        let flags = futex::WaitvFlags::empty();
        woken(futex::waitv(&waits, flags, until.as_ref(), clock).map(drop), "futex_waitv")
    }

    /// Sleeps on the bell alone, for kernels without `futex_waitv` (before 5.16). The thread wakes every 25 ms to check
    /// the health.
    fn sleep_on_bell(
        &self,
        bell: &AtomicU32,
        value: u32,
        left: Option<std::time::Duration>,
    ) -> Result<()> {
        const SLICE: std::time::Duration = std::time::Duration::from_millis(25);
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: slice.subsec_nanos().into() };
        let slept = futex::wait(bell, futex::Flags::empty(), value, Some(&timeout));
        woken(slept, "futex wait")
    }

    /// Wakes the peer's thread that sleeps on a bell of this side, after the caller added to the bell.
    #[cold]
    pub(crate) fn wake(&self, bell: usize) {
        wake_all(&self.own, bell);
    }
}

/// Wakes all threads that sleep on a bell of this process, after the caller added to the bell.
#[cold]
pub(crate) fn wake_all(own: &Mapping, bell: usize) {
    let _ = futex::wake(own.futex(bell), futex::Flags::empty(), i32::MAX as u32);
}

fn revoke(own: &Mapping) {
    own.store(layout::REVOKED, 1, Ordering::Relaxed);
}

#[cold]
fn revoked() -> Error {
    ErrorKind::LoanRevoked.into()
}

fn woken(result: Result<(), Errno>, call: &'static str) -> Result<()> {
    match result {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(Error::os(call, errno)),
    }
}

fn monotonic_after(left: std::time::Duration) -> futex::Timespec {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = now.tv_nsec + i64::from(left.subsec_nanos());
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX / 2);
    futex::Timespec {
        tv_sec: now.tv_sec.saturating_add(seconds).saturating_add(nanos / 1_000_000_000),
        tv_nsec: nanos % 1_000_000_000,
    }
}

/// Returns whether the kernel (5.16) and the sandbox allow `futex_waitv`.
fn waitv_works() -> bool {
    let word = AtomicU32::new(1);
    let mut wait = futex::Wait::new();
    wait.uaddr = futex::WaitPtr::new((&raw const word).cast_mut().cast());
    wait.flags = futex::WaitFlags::SIZE_U32 | futex::WaitFlags::PRIVATE;
    let clock = rustix::thread::ClockId::Monotonic;
    let flags = futex::WaitvFlags::empty();
    // The word differs from the expected value, so a kernel with the call returns EAGAIN.
    futex::waitv(&[wait], flags, None, clock) == Err(Errno::AGAIN)
}

/// The loans that a peer has returned, for the pool. It keeps both mappings alive, not the link.
#[derive(Debug)]
pub(crate) struct Returns {
    own: Mapping,
    peer: PeerMapping,
    identity: Peer,
    row: Arc<Row>,
}

impl Returns {
    pub(crate) fn new((own, peer): (Mapping, PeerMapping), identity: &Peer, row: Arc<Row>) -> Self {
        Self { own, peer, identity: identity.without_pidfd(), row }
    }
}

impl Borrower for Returns {
    fn returned(&self, slot: u32) -> u64 {
        self.peer.load(layout::RETURNS + 8 * slot as usize)
    }

    fn holds_nothing(&self) -> bool {
        self.peer.load(layout::RELEASED) != 0
    }

    fn revoke(&self) {
        revoke(&self.own);
    }

    fn holder(&self) -> Holder {
        Holder { uid: self.identity.uid(), pid: self.identity.pid() }
    }

    fn name(&self) -> String {
        self.identity.to_string()
    }

    fn line(&self) -> Option<Line> {
        Some(self.row.line(status::layout::LOANS))
    }
}
