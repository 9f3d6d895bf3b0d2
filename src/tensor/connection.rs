//! Tensors over both halves of a connection, and connections to trusted peers.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use crate::error::{Result, TryRecvError, TrySendError};
use crate::tensor::outgoing::Outgoing;
use crate::tensor::set::TensorSet;
use crate::tensor::view::Tensor;
use crate::transport::Connection;

impl Connection {
    /// Sends a tensor with [`Sender::send_tensor`](crate::Sender::send_tensor).
    ///
    /// # Errors
    ///
    /// As [`Sender::send_tensor`](crate::Sender::send_tensor).
    #[inline]
    pub fn send_tensor<'a>(&mut self, tensor: impl Into<Outgoing<'a>>) -> Result<()> {
        self.sender().send_tensor(tensor)
    }

    /// Sends a tensor with [`Sender::send_tensor_deadline`](crate::Sender::send_tensor_deadline).
    ///
    /// # Errors
    ///
    /// As [`Sender::send_tensor_deadline`](crate::Sender::send_tensor_deadline).
    pub fn send_tensor_deadline<'a>(
        &mut self,
        tensor: impl Into<Outgoing<'a>>,
        deadline: Instant,
    ) -> Result<()> {
        self.sender().send_tensor_deadline(tensor, deadline)
    }

    /// Sends a tensor with [`Sender::try_send_tensor`](crate::Sender::try_send_tensor).
    ///
    /// # Errors
    ///
    /// As [`Sender::try_send_tensor`](crate::Sender::try_send_tensor).
    #[inline]
    pub fn try_send_tensor(&mut self, tensor: &Tensor) -> Result<(), TrySendError> {
        self.sender().try_send_tensor(tensor)
    }

    /// Sends a set with [`Sender::send_tensors`](crate::Sender::send_tensors).
    ///
    /// # Errors
    ///
    /// As [`Sender::send_tensors`](crate::Sender::send_tensors).
    pub fn send_tensors(&mut self, tensors: &TensorSet) -> Result<()> {
        self.sender().send_tensors(tensors)
    }

    /// Sends a set with [`Sender::send_tensors_deadline`](crate::Sender::send_tensors_deadline).
    ///
    /// # Errors
    ///
    /// As [`Sender::send_tensors_deadline`](crate::Sender::send_tensors_deadline).
    pub fn send_tensors_deadline(&mut self, tensors: &TensorSet, deadline: Instant) -> Result<()> {
        self.sender().send_tensors_deadline(tensors, deadline)
    }

    /// Sends a set with [`Sender::try_send_tensors`](crate::Sender::try_send_tensors).
    ///
    /// # Errors
    ///
    /// As [`Sender::try_send_tensors`](crate::Sender::try_send_tensors).
    pub fn try_send_tensors(&mut self, tensors: &TensorSet) -> Result<(), TrySendError> {
        self.sender().try_send_tensors(tensors)
    }

    /// Receives a tensor with [`Receiver::recv_tensor`](crate::Receiver::recv_tensor).
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv_tensor`](crate::Receiver::recv_tensor).
    #[inline(always)]
    pub fn recv_tensor(&mut self) -> Result<Option<Tensor>> {
        self.receiver().recv_tensor()
    }

    /// Receives a tensor with [`Receiver::recv_tensor_deadline`](crate::Receiver::recv_tensor_deadline).
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv_tensor_deadline`](crate::Receiver::recv_tensor_deadline).
    pub fn recv_tensor_deadline(&mut self, deadline: Instant) -> Result<Option<Tensor>> {
        self.receiver().recv_tensor_deadline(deadline)
    }

    /// Receives a tensor with [`Receiver::try_recv_tensor`](crate::Receiver::try_recv_tensor).
    ///
    /// # Errors
    ///
    /// As [`Receiver::try_recv_tensor`](crate::Receiver::try_recv_tensor).
    #[inline]
    pub fn try_recv_tensor(&mut self) -> Result<Option<Tensor>, TryRecvError> {
        self.receiver().try_recv_tensor()
    }

    /// Receives a set with [`Receiver::recv_tensors`](crate::Receiver::recv_tensors).
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv_tensors`](crate::Receiver::recv_tensors).
    pub fn recv_tensors(&mut self) -> Result<Option<TensorSet>> {
        self.receiver().recv_tensors()
    }

    /// Receives a set with [`Receiver::recv_tensors_deadline`](crate::Receiver::recv_tensors_deadline).
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv_tensors_deadline`](crate::Receiver::recv_tensors_deadline).
    pub fn recv_tensors_deadline(&mut self, deadline: Instant) -> Result<Option<TensorSet>> {
        self.receiver().recv_tensors_deadline(deadline)
    }

    /// Receives a set with [`Receiver::try_recv_tensors`](crate::Receiver::try_recv_tensors).
    ///
    /// # Errors
    ///
    /// As [`Receiver::try_recv_tensors`](crate::Receiver::try_recv_tensors).
    pub fn try_recv_tensors(&mut self) -> Result<Option<TensorSet>, TryRecvError> {
        self.receiver().try_recv_tensors()
    }

    /// Returns a connection that trusts the peer: its tensors are read as slices while they are on loan.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context, Tensor};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// # let far = far.join().unwrap()?;
    /// // SAFETY: the peer runs this crate's code, under the same user, and keeps no pointers.
    /// let mut far = unsafe { far.trust() };
    /// let mut scores = context.alloc::<f32>([2])?;
    /// scores.copy_from_slice(&[0.25, 0.75]);
    /// near.send_tensor(scores)?;
    /// let scores = far.recv_tensor()?.unwrap();
    /// assert_eq!(scores.as_slice::<f32>()?, [0.25, 0.75]); // on loan, and yet a slice
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// - The peer does not write memory that it has lent until the memory comes back. So the peer's code is
    ///   not hostile and keeps no pointers to what it has sent. This library keeps none. Another
    ///   implementation of `docs/wire.md`, or a process under another party's control, may.
    pub unsafe fn trust(mut self) -> TrustedConnection {
        self.receiver().trust();
        TrustedConnection { connection: self }
    }
}

/// A connection to a trusted peer. [`Connection::trust`] makes it.
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
