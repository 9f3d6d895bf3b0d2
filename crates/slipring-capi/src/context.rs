//! Contexts, and the connections that they make.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::thread::LocalKey;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use slipring::{Context, ErrorKind};

use crate::connection::{Connection, slipring_connection};
use crate::failure::{Answer, Failure, guard};
use crate::handle::{self, Handle, Kind, Lately};
use crate::options::{options_of, slipring_options};
use crate::pointers::{Out, text};
use crate::status::slipring_status::{self, SLIPRING_INVALID_ARGUMENT, SLIPRING_OS};
use crate::timeout::Timeout;

/// What all connections of a program share: the options, and the pool of memory for long messages. Most programs have
/// one. Any number of threads may use it at a time.
pub struct slipring_context(());

thread_local! {
    static LATELY: Lately<Context> = const { Lately::new() };
}

impl Kind for Context {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0002;
    const WRONG: &'static str = "the handle is no slipring_context";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

/// Returns the context behind a pointer.
///
/// # Safety
///
/// No other thread frees the handle meanwhile.
pub(crate) unsafe fn context_of<'a>(context: *const slipring_context) -> Answer<&'a Context> {
    // SAFETY: as the caller vouches.
    unsafe { Handle::<Context>::of(context) }
}

/// Makes a context. `options` may be NULL, for the defaults. Free it with slipring_context_free().
///
/// SLIPRING_INVALID_ARGUMENT: an option has a value that it may not have. SLIPRING_OS: the kernel is older than Linux
/// 5.1.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_context_new(
    options: *const slipring_options,
    context: *mut *mut slipring_context,
) -> slipring_status {
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(context) };
    guard(|| {
        // SAFETY: the header demands that nobody frees the options meanwhile.
        let options = unsafe { options_of(options) }?;
        out?.set(Handle::make(Context::with_options(options)?));
        Ok(())
    })
}

/// Frees a context. Its listeners and connections live on. NULL has no effect.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_context_free(context: *mut slipring_context) -> slipring_status {
    // SAFETY: the header demands that no other thread uses the handle.
    unsafe { handle::free::<Context, _>(context) }
}

/// Returns unused memory of the context's pool to the system.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_context_trim(context: *mut slipring_context) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let context = unsafe { context_of(context) };
    guard(|| {
        context?.trim();
        Ok(())
    })
}

/// Connects to a listener, and retries every few milliseconds while nobody listens: after `timeout` the status is
/// SLIPRING_NOBODY_LISTENS. With SLIPRING_NONBLOCK and SLIPRING_DEFAULT it does not retry. In each case it waits for the
/// answer of a listener that is there, for at most SLIPRING_OPTION_HANDSHAKE_TIMEOUT: it may block.
///
/// `address`: "camera" or "@camera" is an abstract name; a text with a slash is a path. Close the connection with
/// slipring_connection_close().
///
/// SLIPRING_NOBODY_LISTENS, SLIPRING_TIMED_OUT, SLIPRING_REFUSED, SLIPRING_INVALID_ARGUMENT (the address),
/// SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED, SLIPRING_PEER_FAULT, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY,
/// SLIPRING_FORKED, SLIPRING_OS.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connect(
    context: *mut slipring_context,
    address: *const c_char,
    timeout: i64,
    connection: *mut *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let context = unsafe { context_of(context) };
    // SAFETY: the header demands a text.
    let address = unsafe { text(address) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(connection) };
    guard(|| {
        let (context, address, mut out) = (context?, address?, out?);
        let made = match Timeout::new(timeout)? {
            Timeout::None | Timeout::Default => context.connect(address),
            time => context.connect_retry(address, time.deadline()),
        };
        out.set(Connection::handle(made?)?);
        Ok(())
    })
}

/// Connects over a connected SOCK_SEQPACKET Unix socket, such as one end of a socketpair. The other end uses
/// slipring_accept_socket(). The function takes the descriptor in every case: do not close it.
///
/// It waits for the other end, and its statuses are those of slipring_connect() with SLIPRING_DEFAULT.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_connect_socket(
    context: *mut slipring_context,
    socket: c_int,
    connection: *mut *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands a descriptor that is the caller's to give.
    let socket = unsafe { taken(socket) };
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let context = unsafe { context_of(context) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(connection) };
    guard(|| {
        let (context, mut out) = (context?, out?);
        out.set(Connection::handle(context.connect_socket(socket?)?)?);
        Ok(())
    })
}

/// Accepts over a connected SOCK_SEQPACKET Unix socket. The other end uses slipring_connect_socket(). The function
/// takes the descriptor in every case: do not close it.
///
/// As slipring_connect().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_accept_socket(
    context: *mut slipring_context,
    socket: c_int,
    connection: *mut *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands a descriptor that is the caller's to give.
    let socket = unsafe { taken(socket) };
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let context = unsafe { context_of(context) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(connection) };
    guard(|| {
        let (context, mut out) = (context?, out?);
        out.set(Connection::handle(context.accept_socket(socket?)?)?);
        Ok(())
    })
}

/// Makes two connections with each other in this process, for tests.
///
/// SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED, SLIPRING_OS.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_pair(
    context: *mut slipring_context,
    one: *mut *mut slipring_connection,
    other: *mut *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let context = unsafe { context_of(context) };
    // SAFETY: the header demands a place for the answer.
    let one = unsafe { Out::new(one) };
    // SAFETY: the header demands a place for the answer.
    let other = unsafe { Out::new(other) };
    guard(|| {
        let (mut one, mut other) = (one?, other?);
        let (near, far) = pair(context?)?;
        // Both are made before one is given away.
        let (near, far) = (Connection::new(near)?, Connection::new(far)?);
        one.set(Handle::make(near));
        other.set(Handle::make(far));
        Ok(())
    })
}

fn pair(context: &Context) -> Answer<(slipring::Connection, slipring::Connection)> {
    let flags = SocketFlags::CLOEXEC;
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (near, far) = ends.map_err(|_| ErrorKind::Os { call: "socketpair" })?;
    std::thread::scope(|scope| {
        // A handshake needs both sides at once.
        let accepting =
            std::thread::Builder::new().spawn_scoped(scope, || context.accept_socket(far));
        let no_thread =
            |_| Failure::Border(SLIPRING_OS, "the kernel makes no thread for the other side");
        let accepting = accepting.map_err(no_thread)?;
        let near = context.connect_socket(near)?;
        match accepting.join() {
            Ok(far) => Ok((near, far?)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns a descriptor that the caller has given away.
///
/// # Safety
///
/// The descriptor is open, and the caller's to give.
unsafe fn taken(descriptor: RawFd) -> Answer<OwnedFd> {
    if descriptor < 0 {
        let text = "the descriptor is negative";
        return Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text));
    }
    // SAFETY: as the caller vouches; -1 is none.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
