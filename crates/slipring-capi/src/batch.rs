//! Batches: messages that become visible together.

#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::connection::{Connection, slipring_connection};
use crate::pointers::{Out, bytes};
use crate::sending::Sending;
use crate::status::slipring_status;

/// Starts a batch: messages that become visible together, at the cost of one publication. slipring_publish() sends
/// it, and slipring_discard() drops it. The first batch of a connection takes the ring's whole length.
///
/// SLIPRING_WRONG_STATE: a message is reserved, or a batch is open. SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED,
/// SLIPRING_PEER_FAULT, SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_batch_begin(
    connection: *mut slipring_connection,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, Sending::begin) }
}

/// Adds a message of at most SLIPRING_OPTION_INLINE_MAX bytes to the batch.
///
/// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: there was no room. SLIPRING_TOO_LARGE: the message, or the batch with
/// it. The batch stays as it was. SLIPRING_WRONG_STATE: no batch is open. SLIPRING_PEER_CLOSED, SLIPRING_PEER_DIED,
/// SLIPRING_PEER_FAULT, SLIPRING_FORKED.
///
/// The descriptor of the connection does not tell when there is room for a batch: publish it, and wait with
/// slipring_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_batch_push(
    connection: *mut slipring_connection,
    message: *const c_void,
    len: usize,
    timeout: i64,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let message = unsafe { bytes(message, len) }?;
        let room = sending.add(message.len(), timeout)?;
        // SAFETY: the room has as many bytes, which nobody else has.
        unsafe { room.copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, act) }
}

/// Adds a message of `len` bytes, which the caller writes in place before slipring_publish(), and writes its address
/// to `data`. Its bytes have arbitrary values. Do not free them.
///
/// The statuses of slipring_batch_push().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_batch_reserve(
    connection: *mut slipring_connection,
    len: usize,
    timeout: i64,
    data: *mut *mut c_void,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(data) }?;
        out.set(sending.add(len, timeout)?.cast());
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, act) }
}
