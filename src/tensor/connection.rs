//! Tensors over a connection, and connections to trusted peers.

#![allow(unsafe_code)]

use crate::error::Result;
use crate::tensor::outgoing::Outgoing;
use crate::tensor::view::Tensor;
use crate::transport::Connection;

impl Connection {
    /// Sends a tensor, as [`Sender::send_tensor`](crate::Sender::send_tensor).
    ///
    /// # Errors
    ///
    /// As [`Sender::send_tensor`](crate::Sender::send_tensor).
    #[inline]
    pub fn send_tensor<'a>(&mut self, tensor: impl Into<Outgoing<'a>>) -> Result<()> {
        self.sender().send_tensor(tensor)
    }

    /// Receives the next tensor, as [`Receiver::recv_tensor`](crate::Receiver::recv_tensor).
    ///
    /// # Errors
    ///
    /// As [`Receiver::recv_tensor`](crate::Receiver::recv_tensor).
    #[inline(always)]
    pub fn recv_tensor(&mut self) -> Result<Option<Tensor>> {
        self.receiver().recv_tensor()
    }

    /// Trusts the peer: this side reads its tensors as slices while they are on loan.
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
    /// - The peer does not take memory back that this side still reads as a slice. It takes memory back when it
    ///   [aborts](crate::Connection::abort) the link, and after
    ///   [`Options::release_grace`](crate::Options::release_grace) when it has dropped the link or this side's link has
    ///   failed. So the peer never aborts, and its grace is `Duration::MAX`; or this side drops all slices in time.
    ///   Without slices nothing is required: other reads of memory that was taken back return an error.
    pub unsafe fn trust(mut self) -> Self {
        self.receiver().trust();
        self
    }
}
