//! Tensors that are sent and received.

#![allow(unsafe_code)]

use crate::connection::{Connection, slipring_connection};
use crate::pointers::Out;
use crate::receiving::Receiving;
use crate::sending::Sending;
use crate::status::slipring_status::{self, SLIPRING_OK};
use crate::tensor::{free_sent, slipring_tensor, tensor_of};
use crate::tensor_set::{Set, free_sent_set, set_of, slipring_tensors};

/// Sends a tensor: hands its memory over, and wakes the receiver if it sleeps. With SLIPRING_OK the tensor is gone: do not use the
/// handle again. With any other status it stays yours, though a connection that ends in the middle may keep its memory: then each function
/// on it is SLIPRING_WRONG_STATE, and it is to be freed. To send a tensor to several peers, clone it.
///
/// A tensor of a pool is handed over without a copy. One that is on loan from a peer, private, or of another context's pool is
/// copied.
///
/// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: there was no room. SLIPRING_INVALID_TENSOR: this kind of memory cannot be sent.
/// Otherwise as slipring_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_send_tensor(
    connection: *mut slipring_connection,
    tensor: *mut slipring_tensor,
    timeout: i64,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { tensor_of(tensor) }?.enter(|held| sending.send_tensor(held, timeout))
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    let status = unsafe { Connection::sending(connection, act) };
    if status == SLIPRING_OK {
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent(tensor) };
    }
    status
}

/// Sends a set of tensors in one message, as slipring_send_tensor() does. With SLIPRING_OK the set and its tensors are gone. With
/// any other status they stay yours.
///
/// SLIPRING_WRONG_STATE: a tensor of the set was taken. SLIPRING_INVALID_TENSOR: more than 32,768 tensors, or more than 255 in pools.
/// SLIPRING_TOO_LARGE: names and shapes take more than 4 MiB. Otherwise as slipring_send_tensor().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_send_tensors(
    connection: *mut slipring_connection,
    tensors: *mut slipring_tensors,
    timeout: i64,
) -> slipring_status {
    let act = move |sending: &mut Sending| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { set_of(tensors) }?.enter(|set| sending.send_tensors(set, timeout))
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    let status = unsafe { Connection::sending(connection, act) };
    if status == SLIPRING_OK {
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent_set(tensors) };
    }
    status
}

/// Receives the next message if it is one tensor, and makes a handle for it. Its memory is the peer's, and goes back with
/// slipring_tensor_free(). It stays readable when the peer dies.
///
/// SLIPRING_OTHER_KIND: the next message has no tensors, and stays the next one. SLIPRING_INVALID_TENSOR: it has another number
/// of tensors, and is dropped. Otherwise as slipring_recv(). A peek ends: its message is the one that is received.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_recv_tensor(
    connection: *mut slipring_connection,
    timeout: i64,
    tensor: *mut *mut slipring_tensor,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensor) }?;
        out.set(receiving.recv_tensor(timeout)?);
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}

/// Receives the next message if it has tensors, and makes a set of them. Free it with slipring_tensors_free(), unless a send took
/// it.
///
/// SLIPRING_OTHER_KIND: the next message has no tensors, and stays the next one. Otherwise as slipring_recv(). A peek ends: its
/// message is the one that is received.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_recv_tensors(
    connection: *mut slipring_connection,
    timeout: i64,
    tensors: *mut *mut slipring_tensors,
) -> slipring_status {
    let act = move |receiving: &mut Receiving| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensors) }?;
        out.set(Set::handle(receiving.recv_tensors(timeout)?)?);
        Ok(())
    };
    // SAFETY: the header demands that nobody frees the handle or uses this half meanwhile.
    unsafe { Connection::receiving(connection, act) }
}
