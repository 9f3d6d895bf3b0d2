//! Connections: their ends, their descriptor, their peer, and their counts.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::LocalKey;

use slipring::seam::Generation;
use slipring::stats::{HalfStats, Stats};
use slipring::{Receiver, Sender};

use crate::failure::{Answer, Failure, contain, guard, note};
use crate::half::Half;
use crate::handle::{Handle, Kind, Lately};
use crate::pointers::{Out, put_sized};
use crate::receiving::Receiving;
use crate::sending::Sending;
use crate::status::slipring_status::{self, SLIPRING_OTHER};

/// A connection to another process: messages with boundaries, in order, both ways. One thread at a time uses the
/// sending half, and one the receiving half. These may be two threads at once.
pub struct slipring_connection(());

/// The process on the other side, for which the kernel vouches.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct slipring_peer {
    /// The process id, or -1 if the process is outside of this process's pid namespace.
    pub pid: i64,
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
    /// A pidfd of the process, or -1. It belongs to the connection: do not close it.
    pub pidfd: i32,
}

/// Counts of one half of a connection.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct slipring_half_stats {
    /// Messages published, or received.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages that went through the pool. `messages` counts them, too.
    pub pooled: u64,
    /// Messages with tensors. `messages` does not count them.
    pub tensors: u64,
    /// Tokens triggered.
    pub triggers: u64,
    /// Triggers of the peer whose token is not registered here.
    pub stale_tokens: u64,
    /// System calls that woke the other side.
    pub wakes: u64,
    /// Times that this half slept.
    pub sleeps: u64,
}

/// Counts of a connection, and how much is queued, lent and held now.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct slipring_stats {
    /// The sending half.
    pub sent: slipring_half_stats,
    /// The receiving half.
    pub received: slipring_half_stats,
    /// Bytes of this side's ring that the peer has not given back.
    pub send_queue: u64,
    /// Bytes of the peer's ring that wait to be received.
    pub recv_queue: u64,
    /// Blocks of this side's pool that the peer has not returned.
    pub loans_out: u64,
    /// Blocks of the peer's pool that this side holds.
    pub loans_held: u64,
    /// Bytes of the context's pool in use.
    pub pool_bytes: u64,
}

/// A value on cache lines of its own: two threads use the two halves at once.
#[repr(align(128))]
struct OwnLines<T>(T);

/// What a handle of a connection holds.
pub(crate) struct Connection {
    sending: OwnLines<Half<Sending>>,
    receiving: OwnLines<Half<Receiving>>,
    peer: slipring_peer,
    /// Keeps the peer's pidfd open.
    _pidfd: Option<OwnedFd>,
}

thread_local! {
    static LATELY: Lately<Connection> = const { Lately::new() };
}

impl Kind for Connection {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0004;
    const WRONG: &'static str = "the handle is no slipring_connection";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

impl Connection {
    /// Returns a handle of a connection.
    pub(crate) fn handle(connection: slipring::Connection) -> Answer<*mut slipring_connection> {
        Ok(Handle::make(Self::new(connection)?))
    }

    /// Returns what a handle of a connection holds.
    pub(crate) fn new(connection: slipring::Connection) -> Answer<Self> {
        let generation = Generation::current()?;
        let identity = connection.peer();
        let pidfd = identity.pidfd().and_then(|pidfd| pidfd.try_clone_to_owned().ok());
        let peer = slipring_peer {
            pid: identity.pid().map_or(-1, i64::from),
            uid: identity.uid(),
            gid: identity.gid(),
            pidfd: pidfd.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        };
        let (sender, receiver) = connection.split();
        Ok(Self {
            sending: OwnLines(Half::new(Sending::new(sender, generation))?),
            receiving: OwnLines(Half::new(Receiving::new(receiver, generation))?),
            peer,
            _pidfd: pidfd,
        })
    }

    /// Calls `act` with the sending half of a connection, for work that is [done at once](Half::at_once).
    ///
    /// # Safety
    ///
    /// No other thread frees the handle or uses its sending half meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn sending_at_once<R>(
        connection: *mut slipring_connection,
        act: impl FnOnce(&mut Sending) -> Option<R>,
    ) -> Option<R> {
        // SAFETY: as the caller vouches.
        unsafe { Handle::<Self>::find(connection) }?.sending.0.at_once(act)
    }

    /// Calls `act` with the receiving half of a connection, for work that is [done at once](Half::at_once).
    ///
    /// # Safety
    ///
    /// No other thread frees the handle or uses its receiving half meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn receiving_at_once<R>(
        connection: *mut slipring_connection,
        act: impl FnOnce(&mut Receiving) -> Option<R>,
    ) -> Option<R> {
        // SAFETY: as the caller vouches.
        unsafe { Handle::<Self>::find(connection) }?.receiving.0.at_once(act)
    }

    /// Calls `act` with the sending half of a connection.
    ///
    /// # Safety
    ///
    /// No other thread frees the handle or uses its sending half meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn sending(
        connection: *mut slipring_connection,
        act: impl FnOnce(&mut Sending) -> Answer,
    ) -> slipring_status {
        // SAFETY: as the caller vouches.
        match unsafe { Handle::<Self>::of(connection) } {
            Ok(connection) => connection.sending.0.run(act),
            Err(failure) => note(failure),
        }
    }

    /// Calls `act` with the receiving half of a connection.
    ///
    /// # Safety
    ///
    /// No other thread frees the handle or uses its receiving half meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn receiving(
        connection: *mut slipring_connection,
        act: impl FnOnce(&mut Receiving) -> Answer,
    ) -> slipring_status {
        // SAFETY: as the caller vouches.
        match unsafe { Handle::<Self>::of(connection) } {
            Ok(connection) => connection.receiving.0.run(act),
            Err(failure) => note(failure),
        }
    }

    /// Calls `act` with both halves of a connection.
    ///
    /// # Safety
    ///
    /// No other thread frees the handle or uses either half meanwhile.
    pub(crate) unsafe fn with_both(
        connection: *mut slipring_connection,
        act: impl FnOnce(&mut Sending, &mut Receiving) -> Answer,
    ) -> slipring_status {
        // SAFETY: as the caller vouches.
        match unsafe { Handle::<Self>::of(connection) } {
            Ok(connection) => connection
                .sending
                .0
                .run(|sending| connection.receiving.0.enter(|receiving| act(sending, receiving))),
            Err(failure) => note(failure),
        }
    }

    /// Calls `act` with both halves, on which nothing is open.
    fn both<R>(&self, act: impl FnOnce(&Sender, &Receiver) -> R) -> Answer<R> {
        self.sending.0.enter(|sending| {
            sending.check_process()?;
            self.receiving.0.enter(|receiving| Ok(act(sending.sender()?, receiving.idle()?)))
        })
    }

    /// Returns the connection, which leaves its handle.
    fn end(self) -> Answer<slipring::Connection> {
        let (sending, receiving) = (self.sending.0.into_inner(), self.receiving.0.into_inner());
        let (sender, receiver) = (sending?.end(), receiving?.end());
        // Both halves of a handle are of one connection, so nobody sees this error.
        slipring::Connection::join(sender, receiver)
            .map_err(|_| Failure::Border(SLIPRING_OTHER, "the halves are of two connections"))
    }
}

/// Takes a connection out of its handle, which is gone.
///
/// # Safety
///
/// No other thread uses the handle.
pub(crate) unsafe fn take_connection(
    connection: *mut slipring_connection,
) -> Answer<slipring::Connection> {
    // SAFETY: nobody else frees the handle.
    let found = unsafe { Handle::<Connection>::of(connection) }?;
    found.sending.0.check_whole()?;
    found.receiving.0.check_whole()?;
    // SAFETY: as the caller vouches.
    match unsafe { Handle::<Connection>::free(connection) }? {
        Some(connection) => connection.end(),
        None => Err(Failure::Border(SLIPRING_OTHER, "the handle is gone")),
    }
}

/// Frees a connection, and calls `act` with what it was.
///
/// # Safety
///
/// No other thread uses the handle.
unsafe fn end(
    connection: *mut slipring_connection,
    act: impl FnOnce(slipring::Connection) -> Answer,
) -> slipring_status {
    guard(|| {
        if !connection.is_null() {
            // SAFETY: nobody else frees the handle.
            let connection = unsafe { Handle::<Connection>::of(connection) }?;
            connection.sending.0.check_unused()?;
            connection.receiving.0.check_unused()?;
        }
        // SAFETY: as the caller vouches.
        match unsafe { Handle::<Connection>::free(connection) }? {
            Some(connection) => contain(|| act(connection.end()?)),
            None => Ok(()),
        }
    })
}

/// Ends a connection in order and frees it. The peer receives all that was sent before. What is reserved is not sent,
/// and what was peeked at is not there any more. NULL has no effect.
///
/// SLIPRING_PEER_DIED, SLIPRING_PEER_FAULT: the peer may not have received the last messages. The handle is freed.
/// SLIPRING_FORKED: the handle is freed here, and the parent's connection goes on. SLIPRING_BUSY: another thread uses
/// the connection. It is not freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connection_close(
    connection: *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands that no other thread uses the handle.
    unsafe { end(connection, |connection| Ok(connection.close()?)) }
}

/// Ends a connection, takes back at once all memory that the peer holds of it, and frees it. NULL has no effect.
///
/// SLIPRING_BUSY: another thread uses the connection. It is not freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connection_abort(
    connection: *mut slipring_connection,
) -> slipring_status {
    let abort = |connection: slipring::Connection| {
        connection.abort();
        Ok(())
    };
    // SAFETY: the header demands that no other thread uses the handle.
    unsafe { end(connection, abort) }
}

/// Returns a descriptor for epoll or poll. It belongs to the connection: do not close it, and do not read from it.
///
/// Ask for it before the first receive. Before each sleep call slipring_recv() or slipring_peek() with
/// SLIPRING_NONBLOCK until they return SLIPRING_WOULD_BLOCK, and likewise slipring_send() if a message had no room.
/// The descriptor then becomes readable when there is a message, room in the ring, or the end of the connection. It
/// never becomes writable, and tells of no room for a batch, nor in a pool that other peers have filled.
///
/// Uses both halves. SLIPRING_WRONG_STATE: a message is reserved or peeked at, or a batch is open. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connection_descriptor(
    connection: *mut slipring_connection,
    descriptor: *mut c_int,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let connection = unsafe { Handle::<Connection>::of(connection) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(descriptor) };
    guard(|| {
        let mut out = out?;
        out.set(connection?.both(|sender, _| sender.descriptor().as_raw_fd())?);
        Ok(())
    })
}

/// Notes that the calling thread serves several peers: from now on the peer of this connection has a bounded share of
/// its time. A receive with SLIPRING_NONBLOCK then returns SLIPRING_WOULD_BLOCK although something is left, and
/// slipring_connection_rest() says when to go on. A long message is still received whole. A peek ends.
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connection_take_turns(
    connection: *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, Receiving::take_turns) }
}

/// Writes when to receive again after SLIPRING_WOULD_BLOCK, in nanoseconds from now: 0 for the next turn of the loop,
/// or SLIPRING_FOREVER, at the next event of the descriptor. Only after slipring_connection_take_turns(). A peek ends.
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connection_rest(
    connection: *mut slipring_connection,
    nanoseconds: *mut i64,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(nanoseconds) }?;
        let rest = receiving.rest()?.map(|rest| i64::try_from(rest.as_nanos()).unwrap_or(i64::MAX));
        out.set(rest.unwrap_or(i64::MAX));
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}

/// Writes who the peer is. Any thread may ask at any time.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connection_peer(
    connection: *mut slipring_connection,
    peer: *mut slipring_peer,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let connection = unsafe { Handle::<Connection>::of(connection) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(peer) };
    guard(|| {
        out?.set(connection?.peer);
        Ok(())
    })
}

/// Writes the counts of a connection. `size` is `sizeof *stats`, so that a program can run with an older or newer
/// library.
///
/// Uses both halves. SLIPRING_WRONG_STATE: a message is reserved or peeked at, or a batch is open. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connection_get_stats(
    connection: *mut slipring_connection,
    stats: *mut slipring_stats,
    size: usize,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let connection = unsafe { Handle::<Connection>::of(connection) };
    guard(|| {
        let found = connection?.both(Stats::of)?;
        let found = slipring_stats {
            sent: half_stats(found.sent),
            received: half_stats(found.received),
            send_queue: found.send_queue,
            recv_queue: found.recv_queue,
            loans_out: found.loans_out,
            loans_held: found.loans_held,
            pool_bytes: found.pool_bytes,
        };
        // SAFETY: the header demands that `size` bytes may be written; words alone have no padding.
        unsafe { put_sized(stats, size, &found) }
    })
}

fn half_stats(stats: HalfStats) -> slipring_half_stats {
    slipring_half_stats {
        messages: stats.messages,
        bytes: stats.bytes,
        pooled: stats.pooled,
        tensors: stats.tensors,
        triggers: stats.triggers,
        stale_tokens: stats.stale_tokens,
        wakes: stats.wakes,
        sleeps: stats.sleeps,
    }
}
