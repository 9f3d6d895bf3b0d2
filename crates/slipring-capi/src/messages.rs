//! Messages: by copy, and in place.

#![allow(unsafe_code)]

use std::ffi::c_void;

use slipring::seam::AtOnce;

use crate::connection::{Connection, slipring_connection};
use crate::pointers::{Out, buffer, bytes, find_buffer, find_bytes};
use crate::receiving::Receiving;
use crate::sending::Sending;
use crate::status::slipring_status::{self, SLIPRING_BUFFER_TOO_SHORT, SLIPRING_OK};
use crate::timeout::is_known;

/// The kind of a received message.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum slipring_kind {
    /// A plain message.
    SLIPRING_KIND_MESSAGE = 0,
    /// A request, which the peer waits for a response to: slipring_recv_request().
    SLIPRING_KIND_REQUEST = 1,
    /// The response to a request: slipring_wait().
    SLIPRING_KIND_RESPONSE = 2,
    /// Tensors: slipring_recv_tensors() receives them. The bytes in place are internal.
    SLIPRING_KIND_TENSORS = 3,
    /// A request with tensors: slipring_recv_tensor_request().
    SLIPRING_KIND_TENSOR_REQUEST = 4,
    /// A response with tensors: slipring_wait_tensors().
    SLIPRING_KIND_TENSOR_RESPONSE = 5,
    /// A kind that this version does not know.
    SLIPRING_KIND_OTHER = 255,
}

/// A received message in the peer's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_message {
    /// Its bytes. An honest peer does not write them. A hostile one may at any moment: copy what you check and then
    /// use.
    pub data: *const c_void,
    /// Its length in bytes.
    pub len: usize,
    /// Its kind.
    pub kind: slipring_kind,
}

/// Sends a message: copies it, and wakes the receiver if it sleeps. `message` may be NULL if `len` is 0.
///
/// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: there was no room, and nothing was sent. SLIPRING_TOO_LARGE,
/// SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY: nothing was sent. SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED,
/// SLIPRING_PEER_FAULT: the connection is over. SLIPRING_WRONG_STATE: a message is reserved, or a batch is open.
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_send(
    connection: *mut slipring_connection,
    message: *const c_void,
    len: usize,
    timeout: i64,
) -> slipring_status {
    if is_known(timeout)
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        && let Some(bytes) = unsafe { find_bytes(message, len) }
    {
        let act = move |sending: &mut Sending| Some(sending.send_at_once(bytes));
        // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
        match unsafe { Connection::sending_at_once(connection, act) } {
            None | Some(AtOnce::No) => {}
            Some(AtOnce::Done) => return SLIPRING_OK,
            // SAFETY: as above.
            Some(AtOnce::Due) => return unsafe { announce(connection) },
        }
    }
    // SAFETY: as that function demands.
    unsafe { send(connection, message, len, timeout) }
}

/// As [`slipring_send`].
///
/// # Safety
///
/// As [`slipring_send`].
#[inline(never)]
// SAFETY: as above.
unsafe extern "C" fn send(
    connection: *mut slipring_connection,
    message: *const c_void,
    len: usize,
    timeout: i64,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let message = unsafe { bytes(message, len) }?;
        sending.send(message, timeout)
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, act) }
}

/// Receives the next message into a buffer of `capacity` bytes, and writes its length to `len`.
///
/// SLIPRING_BUFFER_TOO_SHORT: `len` is the length that is needed, and the message stays the next one. After every
/// other status but SLIPRING_OK it is 0. SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: nothing has arrived. SLIPRING_END:
/// nothing follows. SLIPRING_OTHER_KIND: slipring_peek() and slipring_release() pass over the message.
/// SLIPRING_PEER_DIED, SLIPRING_PEER_FAULT: the connection is over, and each message that came before was received.
/// SLIPRING_LOAN_REVOKED, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY: the message cannot be read. Whether the
/// connection is over the next call tells. SLIPRING_FORKED.
///
/// A peek ends: its message is the one that is received.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_recv(
    connection: *mut slipring_connection,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    timeout: i64,
) -> slipring_status {
    if is_known(timeout)
        // SAFETY: the header demands a place for the answer.
        && let Some(mut out) = unsafe { Out::find(len) }
        // SAFETY: the header demands that the bytes may be written.
        && let Some(room) = unsafe { find_buffer(buffer, capacity) }
    {
        let act = |receiving: &mut Receiving| receiving.recv_at_once(room);
        // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
        if let Some(received) = unsafe { Connection::receiving_at_once(connection, act) } {
            out.set(received);
            return SLIPRING_OK;
        }
    }
    // SAFETY: as that function demands.
    unsafe { recv(connection, buffer, capacity, len, timeout) }
}

/// As [`slipring_recv`].
///
/// # Safety
///
/// As [`slipring_recv`].
#[inline(never)]
// SAFETY: as above.
unsafe extern "C" fn recv(
    connection: *mut slipring_connection,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    timeout: i64,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(len) }?;
        // SAFETY: the header demands that the bytes may be written.
        let room = unsafe { self::buffer(buffer, capacity) }?;
        receiving.recv(room, timeout, &mut out)
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    let status = unsafe { Connection::receiving(connection, act) };
    if !matches!(status, SLIPRING_OK | SLIPRING_BUFFER_TOO_SHORT) {
        // SAFETY: as above.
        if let Ok(mut out) = unsafe { Out::new(len) } {
            out.set(0);
        }
    }
    status
}

/// Reserves room for a message of `len` bytes, which the caller writes in place, and writes its address to `data`.
/// Its bytes start at a multiple of 8, and have arbitrary values. They may be written until slipring_publish() or
/// slipring_discard(). Do not free them.
///
/// The statuses of slipring_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_reserve(
    connection: *mut slipring_connection,
    len: usize,
    timeout: i64,
    data: *mut *mut c_void,
) -> slipring_status {
    if is_known(timeout)
        // SAFETY: the header demands a place for the answer.
        && let Some(mut out) = unsafe { Out::find(data) }
    {
        let act = |sending: &mut Sending| sending.reserve_at_once(len);
        // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
        if let Some(room) = unsafe { Connection::sending_at_once(connection, act) } {
            out.set(room.as_ptr().cast());
            return SLIPRING_OK;
        }
    }
    // SAFETY: as that function demands.
    unsafe { reserve(connection, len, timeout, data) }
}

/// As [`slipring_reserve`].
///
/// # Safety
///
/// As [`slipring_reserve`].
#[inline(never)]
// SAFETY: as above.
unsafe extern "C" fn reserve(
    connection: *mut slipring_connection,
    len: usize,
    timeout: i64,
    data: *mut *mut c_void,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(data) }?;
        out.set(sending.reserve(len, timeout)?.cast());
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, act) }
}

/// Makes the reserved message, or all messages of the batch, visible to the receiver, and wakes it if it sleeps. Does
/// not wait. Nothing is open afterwards, whatever the status.
///
/// SLIPRING_WRONG_STATE: nothing is reserved, and no batch is open. SLIPRING_PEER_FAULT, SLIPRING_PEER_CLOSED,
/// SLIPRING_PEER_DIED: the connection is over. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publish(connection: *mut slipring_connection) -> slipring_status {
    let act = |sending: &mut Sending| Some(sending.publish_at_once());
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    match unsafe { Connection::sending_at_once(connection, act) } {
        None | Some(AtOnce::No) => {}
        Some(AtOnce::Done) => return SLIPRING_OK,
        // SAFETY: as above.
        Some(AtOnce::Due) => return unsafe { announce(connection) },
    }
    // SAFETY: as that function demands.
    unsafe { publish(connection) }
}

/// As [`slipring_publish`].
///
/// # Safety
///
/// As [`slipring_publish`].
#[inline(never)]
// SAFETY: as above.
unsafe extern "C" fn publish(connection: *mut slipring_connection) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, Sending::publish) }
}

/// Wakes the receiver of a message that was published at once.
///
/// # Safety
///
/// No other thread frees the handle or uses its sending half meanwhile.
#[cold]
// SAFETY: as above.
unsafe extern "C" fn announce(connection: *mut slipring_connection) -> slipring_status {
    // SAFETY: as the caller vouches.
    unsafe { Connection::sending(connection, Sending::announce) }
}

/// Publishes the first `len` bytes of the reserved message.
///
/// SLIPRING_INVALID_ARGUMENT: `len` is more than was reserved. The message stays reserved. Otherwise as
/// slipring_publish().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publish_first(
    connection: *mut slipring_connection,
    len: usize,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, |sending| sending.publish_first(len)) }
}

/// Drops the reserved message or the batch. Nothing is sent.
///
/// SLIPRING_WRONG_STATE: nothing is reserved, and no batch is open. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_discard(connection: *mut slipring_connection) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, Sending::discard) }
}

/// Returns the next message, of any kind, in place. It stays the next one until slipring_release(). Its bytes may be
/// read until then, or until another function that uses the receiving half, slipring_connection_rest() included. Do not
/// free them. Those of an honest peer are aligned to 8 bytes.
///
/// Do not hand them to slipring_send() if the peer may be hostile: it can write them meanwhile. Copy them first.
///
/// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: nothing has arrived. SLIPRING_END: nothing follows. SLIPRING_PEER_DIED,
/// SLIPRING_PEER_FAULT: the connection is over. SLIPRING_LOAN_REVOKED, SLIPRING_RESOURCE_LIMIT,
/// SLIPRING_OUT_OF_MEMORY: the message cannot be read. SLIPRING_FORKED. After all but SLIPRING_OK `message` is as it was.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_peek(
    connection: *mut slipring_connection,
    timeout: i64,
    message: *mut slipring_message,
) -> slipring_status {
    if is_known(timeout)
        // SAFETY: the header demands a place for the answer.
        && let Some(mut out) = unsafe { Out::find(message) }
    {
        // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
        let peeked = unsafe { Connection::receiving_at_once(connection, Receiving::peek_at_once) };
        if let Some(peeked) = peeked {
            out.set(peeked);
            return SLIPRING_OK;
        }
    }
    // SAFETY: as that function demands.
    unsafe { peek(connection, timeout, message) }
}

/// As [`slipring_peek`].
///
/// # Safety
///
/// As [`slipring_peek`].
#[inline(never)]
// SAFETY: as above.
unsafe extern "C" fn peek(
    connection: *mut slipring_connection,
    timeout: i64,
    message: *mut slipring_message,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(message) }?;
        receiving.peek(timeout, &mut out)
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}

/// Returns the memory of the peeked message to the peer. Its bytes may not be read after that.
///
/// SLIPRING_WRONG_STATE: no message is peeked at. SLIPRING_LOAN_REVOKED: the peer had taken the memory back, so what
/// was read of it may be other data, and the connection is over. SLIPRING_PEER_FAULT, SLIPRING_RESOURCE_LIMIT,
/// SLIPRING_OUT_OF_MEMORY: of a message with tensors. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_release(connection: *mut slipring_connection) -> slipring_status {
    let act = |receiving: &mut Receiving| receiving.release_at_once().then_some(());
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    if unsafe { Connection::receiving_at_once(connection, act) }.is_some() {
        return SLIPRING_OK;
    }
    // SAFETY: as that function demands.
    unsafe { release(connection) }
}

/// As [`slipring_release`].
///
/// # Safety
///
/// As [`slipring_release`].
#[inline(never)]
// SAFETY: as above.
unsafe extern "C" fn release(connection: *mut slipring_connection) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, Receiving::release) }
}
