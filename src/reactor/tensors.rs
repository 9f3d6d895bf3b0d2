//! Tensors over a link.

use crate::error::Result;
use crate::error::TrySendError;
use crate::reactor::commands::{Command, WriteFn};
use crate::reactor::link::Link;
use crate::reactor::outgoing::What;
use crate::tensor::{Outgoing, Tensor, TensorSet};

impl Link {
    /// Gives the tensors of every message that has some from now on to `callback`, in order with the messages
    /// that [`on_message`](Self::on_message) gets. It replaces an earlier one, also from inside of it.
    ///
    /// The set is the callback's own: what is on loan goes back to the peer when it is dropped, wherever
    /// that is.
    ///
    /// As long as there is no such callback tensors wait as messages do: in the ring, and with them what
    /// comes behind them.
    ///
    /// # Examples
    ///
    /// ```
    /// use slipring::{Address, Context, Reactor, Tensor};
    ///
    /// let address = Address::fresh();
    /// let context = Context::new()?;
    /// let reactor = Reactor::spawn(&context)?;
    /// let serving = reactor.clone();
    /// reactor.accept_with(context.listen(&address)?, move |accepted| {
    ///     if let Ok(link) = accepted.and_then(|connection| serving.adopt(connection)) {
    ///         link.on_tensors(|link, inputs| {
    ///             let values = inputs.get("values").and_then(|values| values.to_vec::<f32>().ok());
    ///             let sum: f32 = values.unwrap_or_default().iter().sum();
    ///             link.write_tensor(Tensor::from_slice([], &[sum]).unwrap());
    ///         });
    ///     }
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    ///
    /// let mut client = context.connect(&address)?;
    /// let mut values = context.alloc::<f32>([1000])?;
    /// values.fill(0.5);
    /// let mut inputs = slipring::TensorSet::new();
    /// inputs.insert("values", values.share()?)?;
    /// client.send_tensors(&inputs)?;
    /// let sum = client.recv_tensor()?.expect("an answer");
    /// assert_eq!(sum.to_vec::<f32>()?, [500.0]);
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn on_tensors(&self, callback: impl FnMut(&Link, TensorSet) + Send + 'static) {
        self.change();
        self.post(Command::OnTensors(self.clone(), Box::new(callback)));
    }

    /// Sends a tensor if there is room and nothing else waits for it; what is handed over and what is copied
    /// says [`Sender::send_tensor`](crate::Sender::send_tensor).
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_send_tensor(&self, tensor: &Tensor) -> Result<(), TrySendError> {
        self.try_with(tensor.byte_len(), |sender| sender.try_send_tensor(tensor))
    }

    /// Sends a set of tensors in one message, as [`try_send_tensor`](Self::try_send_tensor) does.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send), and as [`Sender::send_tensors`](crate::Sender::send_tensors).
    pub fn try_send_tensors(&self, tensors: &TensorSet) -> Result<(), TrySendError> {
        let needed =
            tensors.iter().fold(0usize, |sum, (_, tensor)| sum.saturating_add(tensor.byte_len()));
        self.try_with(needed, |sender| sender.try_send_tensors(tensors))
    }

    /// Sends a tensor, at once or as soon as there is room, in order with the other
    /// [writes](Self::write). While it waits it keeps its memory; a `&Tensor` that is on loan from another
    /// peer is copied for that time.
    ///
    /// It waits also where the pool has no room for a copy. A write that may not even wait, for its private
    /// bytes, ends the link as in [`write`](Self::write).
    pub fn write_tensor<'a>(&self, tensor: impl Into<Outgoing<'a>>) {
        self.put_tensor(tensor.into(), None);
    }

    /// As [`write_tensor`](Self::write_tensor), and then calls `callback`: with an error if it was not sent.
    pub fn write_tensor_with<'a>(
        &self,
        tensor: impl Into<Outgoing<'a>>,
        callback: impl FnOnce(&Link, Result<()>) + Send + 'static,
    ) {
        self.put_tensor(tensor.into(), Some(Box::new(callback)));
    }

    /// Sends a set of tensors in one message, as [`write_tensor`](Self::write_tensor) does.
    pub fn write_tensors(&self, tensors: TensorSet) {
        self.put(What::Tensors(tensors), Vec::new(), None);
    }

    /// As [`write_tensors`](Self::write_tensors), and then calls `callback`: with an error if they were not
    /// sent.
    pub fn write_tensors_with(
        &self,
        tensors: TensorSet,
        callback: impl FnOnce(&Link, Result<()>) + Send + 'static,
    ) {
        self.put(What::Tensors(tensors), Vec::new(), Some(Box::new(callback)));
    }

    fn put_tensor(&self, tensor: Outgoing<'_>, done: Option<WriteFn>) {
        self.put(What::Tensor(Box::new(tensor)), Vec::new(), done);
    }
}
