//! Listeners.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::LocalKey;

use slipring::Listener;
use slipring::stats::ListenerStats;

use crate::connection::{Connection, slipring_connection};
use crate::context::{context_of, slipring_context};
use crate::failure::{Failure, guard};
use crate::half::{Half, free_half};
use crate::handle::{Handle, Kind, Lately};
use crate::pointers::{Out, put_sized, text};
use crate::status::slipring_status;
use crate::timeout::Timeout;

/// Accepts connections on an address. One thread uses it at a time. No peer can end it.
pub struct slipring_listener(());

/// Counts of the peers that a listener has met.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct slipring_listener_stats {
    /// Peers that became connections.
    pub accepted: u64,
    /// Peers that were refused, or broke the protocol.
    pub refused: u64,
    /// Peers whose Hello did not come in time.
    pub silent: u64,
}

thread_local! {
    static LATELY: Lately<Half<Listener>> = const { Lately::new() };
}

impl Kind for Half<Listener> {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0003;
    const WRONG: &'static str = "the handle is no slipring_listener";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

/// Listens on an address: "camera" or "@camera" is an abstract name, a text with a slash is a path. Free the listener
/// with slipring_listener_free().
///
/// SLIPRING_ADDRESS_IN_USE, SLIPRING_INVALID_ARGUMENT (the address), SLIPRING_RESOURCE_LIMIT, SLIPRING_FORKED,
/// SLIPRING_OS.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_listen(
    context: *mut slipring_context,
    address: *const c_char,
    listener: *mut *mut slipring_listener,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let context = unsafe { context_of(context) };
    // SAFETY: the header demands a text.
    let address = unsafe { text(address) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(listener) };
    guard(|| {
        let (context, mut out) = (context?, out?);
        out.set(Handle::make(Half::new(context.listen(address?)?)?));
        Ok(())
    })
}

/// Waits for a peer and connects with it. Close the connection with slipring_connection_close().
///
/// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT, SLIPRING_FORKED. SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY and
/// SLIPRING_OS say what this process lacks for the peer, which was turned away. The listener goes on.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_accept(
    listener: *mut slipring_listener,
    timeout: i64,
    connection: *mut *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let listener = unsafe { Handle::<Half<Listener>>::of(listener) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(connection) };
    guard(|| {
        let (timeout, mut out) = (Timeout::new(timeout)?, out?);
        let accepted = listener?.enter(|listener| match timeout {
            Timeout::None => listener.try_accept()?.ok_or(Failure::WouldBlock),
            Timeout::Default | Timeout::Forever => Ok(listener.accept()?),
            time => Ok(listener.accept_deadline(time.deadline())?),
        });
        out.set(Connection::handle(accepted?)?);
        Ok(())
    })
}

/// Returns a descriptor that is readable when slipring_accept() with SLIPRING_NONBLOCK has something to do. It
/// belongs to the listener: do not close it.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_listener_descriptor(
    listener: *mut slipring_listener,
    descriptor: *mut c_int,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let listener = unsafe { Handle::<Half<Listener>>::of(listener) };
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(descriptor) };
    guard(|| {
        let mut out = out?;
        listener?.enter(|listener| {
            out.set(listener.as_fd().as_raw_fd());
            Ok(())
        })
    })
}

/// Writes the counts of a listener. `size` is `sizeof *stats`.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_listener_get_stats(
    listener: *mut slipring_listener,
    stats: *mut slipring_listener_stats,
    size: usize,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let listener = unsafe { Handle::<Half<Listener>>::of(listener) };
    guard(|| {
        let ListenerStats { accepted, refused, silent, .. } =
            listener?.enter(|listener| Ok(listener.stats()))?;
        let found = slipring_listener_stats { accepted, refused, silent };
        // SAFETY: the header demands that `size` bytes may be written; three words have no padding.
        unsafe { put_sized(stats, size, &found) }
    })
}

/// Ends a listener and frees it. Its connections live on. NULL has no effect.
///
/// SLIPRING_BUSY: another thread accepts. The listener is not freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_listener_free(
    listener: *mut slipring_listener,
) -> slipring_status {
    // SAFETY: the header demands that no other thread frees the handle.
    unsafe { free_half::<Listener, _>(listener) }
}
