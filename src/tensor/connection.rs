//! Tensors over both halves of a connection, and connections to peers that are trusted.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use crate::error::Result;
use crate::tensor::outgoing::Outgoing;
use crate::tensor::set::TensorSet;
use crate::tensor::view::Tensor;
use crate::transport::{Connection, TryRecvError, TrySendError};

impl Connection {
    /// As [`Sender::send_tensor`](crate::Sender::send_tensor).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn send_tensor<'a>(&mut self, tensor: impl Into<Outgoing<'a>>) -> Result<()> {
        self.sender().send_tensor(tensor)
    }

    /// As [`Sender::send_tensor_deadline`](crate::Sender::send_tensor_deadline).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send_tensor_deadline<'a>(
        &mut self,
        tensor: impl Into<Outgoing<'a>>,
        deadline: Instant,
    ) -> Result<()> {
        self.sender().send_tensor_deadline(tensor, deadline)
    }

    /// As [`Sender::try_send_tensor`](crate::Sender::try_send_tensor).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn try_send_tensor(&mut self, tensor: &Tensor) -> Result<(), TrySendError> {
        self.sender().try_send_tensor(tensor)
    }

    /// As [`Sender::send_tensors`](crate::Sender::send_tensors).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send_tensors(&mut self, tensors: &TensorSet) -> Result<()> {
        self.sender().send_tensors(tensors)
    }

    /// As [`Sender::send_tensors_deadline`](crate::Sender::send_tensors_deadline).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send_tensors_deadline(&mut self, tensors: &TensorSet, deadline: Instant) -> Result<()> {
        self.sender().send_tensors_deadline(tensors, deadline)
    }

    /// As [`Sender::try_send_tensors`](crate::Sender::try_send_tensors).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_send_tensors(&mut self, tensors: &TensorSet) -> Result<(), TrySendError> {
        self.sender().try_send_tensors(tensors)
    }

    /// As [`Receiver::recv_tensor`](crate::Receiver::recv_tensor).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub fn recv_tensor(&mut self) -> Result<Option<Tensor>> {
        self.receiver().recv_tensor()
    }

    /// As [`Receiver::recv_tensor_deadline`](crate::Receiver::recv_tensor_deadline).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv_tensor_deadline(&mut self, deadline: Instant) -> Result<Option<Tensor>> {
        self.receiver().recv_tensor_deadline(deadline)
    }

    /// As [`Receiver::try_recv_tensor`](crate::Receiver::try_recv_tensor).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn try_recv_tensor(&mut self) -> Result<Option<Tensor>, TryRecvError> {
        self.receiver().try_recv_tensor()
    }

    /// As [`Receiver::recv_tensors`](crate::Receiver::recv_tensors).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv_tensors(&mut self) -> Result<Option<TensorSet>> {
        self.receiver().recv_tensors()
    }

    /// As [`Receiver::recv_tensors_deadline`](crate::Receiver::recv_tensors_deadline).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv_tensors_deadline(&mut self, deadline: Instant) -> Result<Option<TensorSet>> {
        self.receiver().recv_tensors_deadline(deadline)
    }

    /// As [`Receiver::try_recv_tensors`](crate::Receiver::try_recv_tensors).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_recv_tensors(&mut self) -> Result<Option<TensorSet>, TryRecvError> {
        self.receiver().try_recv_tensors()
    }

    /// Vouches for this peer: tensors that come from it are read as slices while they are on loan.
    ///
    /// # Safety
    ///
    /// - The peer writes nothing that it has lent until it has it back. Its code must not be hostile, and must
    ///   not keep pointers to what it has sent. This library does neither; another implementation of
    ///   `docs/wire.md`, or a process that somebody else controls, may.
    pub unsafe fn trust(mut self) -> TrustedConnection {
        self.receiver().trust();
        TrustedConnection { connection: self }
    }
}

/// A connection to a peer that is trusted, made by [`Connection::trust`].
#[derive(Debug)]
pub struct TrustedConnection {
    connection: Connection,
}

impl Deref for TrustedConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for TrustedConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}
