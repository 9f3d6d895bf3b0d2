//! Calls: requests that wait for a response, and the responses.

#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::connection::{Connection, slipring_connection};
use crate::pointers::{Out, bytes};
use crate::receiving::Receiving;
use crate::sending::Sending;
use crate::status::slipring_status::{self, SLIPRING_OK};
use crate::tensor_set::{Set, free_sent_set, set_of, slipring_tensors};

/// A request of the peer, or a response of it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_call {
    /// The number that the response carries.
    pub id: u64,
    /// Its bytes, in private memory. They may be read until the next function that uses the receiving half. Do not free them.
    pub data: *const c_void,
    /// Its length in bytes.
    pub len: usize,
}

/// Sends a request, and writes the number that its response will carry. Up to 4096 requests may be open.
/// `request` may be NULL if `len` is 0.
///
/// Uses both halves. SLIPRING_TIMED_OUT: there was no room (also with SLIPRING_NONBLOCK). SLIPRING_RESOURCE_LIMIT: too many are
/// open. Otherwise as slipring_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_submit(
    connection: *mut slipring_connection,
    request: *const c_void,
    len: usize,
    timeout: i64,
    id: *mut u64,
) -> slipring_status {
    let act = move |sending: &mut Sending, receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(id) }?;
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let request = unsafe { bytes(request, len) }?;
        out.set(sending.submit(receiving, request, timeout)?);
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses either half meanwhile.
    unsafe { Connection::with_both(connection, act) }
}

/// Waits for the response to a request. Other messages that come meanwhile are set aside, and received later. With
/// SLIPRING_WOULD_BLOCK and SLIPRING_TIMED_OUT the request stays open.
///
/// SLIPRING_PEER_CLOSED: the peer has left without a response.
/// SLIPRING_INVALID_ARGUMENT: no open request has this number. Otherwise as slipring_recv(). A peek ends.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_wait(
    connection: *mut slipring_connection,
    id: u64,
    timeout: i64,
    response: *mut slipring_call,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(response) }?;
        let (data, len) = receiving.wait(id, timeout)?;
        out.set(slipring_call { id, data, len });
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}

/// Forgets a request: its response is dropped when it comes. No effect on a number that is not open.
///
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_abandon(
    connection: *mut slipring_connection,
    id: u64,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, move |receiving| receiving.abandon(id)) }
}

/// Receives the next message if it is a request with bytes. Answer it with slipring_respond() or slipring_respond_tensors(), in any
/// order.
///
/// SLIPRING_OTHER_KIND: the next message is of another kind, and stays the next one. Otherwise as slipring_recv(). A peek ends.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_recv_request(
    connection: *mut slipring_connection,
    timeout: i64,
    request: *mut slipring_call,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(request) }?;
        let (id, data, len) = receiving.recv_request(timeout)?;
        out.set(slipring_call { id, data, len });
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}

/// Answers a request of the peer. `response` may be NULL if `len` is 0. A number that is not open at the peer is the end of the
/// connection there.
///
/// The statuses of slipring_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_respond(
    connection: *mut slipring_connection,
    id: u64,
    response: *const c_void,
    len: usize,
    timeout: i64,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let response = unsafe { bytes(response, len) }?;
        sending.respond(id, response, timeout)
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::sending(connection, act) }
}

/// Sends a request with tensors. With SLIPRING_OK the set and its tensors are gone. With any other status they stay yours.
///
/// Otherwise as slipring_submit() and slipring_send_tensors().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_submit_tensors(
    connection: *mut slipring_connection,
    tensors: *mut slipring_tensors,
    timeout: i64,
    id: *mut u64,
) -> slipring_status {
    let act = move |sending: &mut Sending, receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(id) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let set = unsafe { set_of(tensors) }?;
        out.set(set.enter(|set| sending.submit_tensors(receiving, set, timeout))?);
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses either half meanwhile.
    let status = unsafe { Connection::with_both(connection, act) };
    if status == SLIPRING_OK {
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent_set(tensors) };
    }
    status
}

/// Waits for a response with tensors, as slipring_wait() does for one with bytes. Free the set with slipring_tensors_free(), unless
/// a send took it.
///
/// SLIPRING_OTHER_KIND: the response has bytes, and slipring_wait() returns it. Otherwise as slipring_wait().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_wait_tensors(
    connection: *mut slipring_connection,
    id: u64,
    timeout: i64,
    tensors: *mut *mut slipring_tensors,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensors) }?;
        out.set(Set::handle(receiving.wait_tensors(id, timeout)?)?);
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}

/// Receives the next message if it is a request with tensors. Free the set with slipring_tensors_free(), unless a send took it.
///
/// SLIPRING_OTHER_KIND: the next message is of another kind, and stays the next one. Otherwise as slipring_recv(). A peek ends.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_recv_tensor_request(
    connection: *mut slipring_connection,
    timeout: i64,
    id: *mut u64,
    tensors: *mut *mut slipring_tensors,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut number = unsafe { Out::new(id) }?;
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensors) }?;
        let (id, set) = receiving.recv_tensor_request(timeout)?;
        out.set(Set::handle(set)?);
        number.set(id);
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}

/// Answers a request with tensors. With SLIPRING_OK the set and its tensors are gone. With any other status they stay yours.
///
/// The statuses of slipring_send_tensors().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_respond_tensors(
    connection: *mut slipring_connection,
    id: u64,
    tensors: *mut slipring_tensors,
    timeout: i64,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { set_of(tensors) }?.enter(|set| sending.respond_tensors(id, set, timeout))
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    let status = unsafe { Connection::sending(connection, act) };
    if status == SLIPRING_OK {
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent_set(tensors) };
    }
    status
}
