//! Receives that return metadata.

use std::time::Instant;

use crate::channel::inbox::awaited::Awaited;
use crate::channel::inbox::receiver::{Received, Receiver, into_error};
use crate::channel::message::RequestId;
use crate::channel::metadata::Metadata;
use crate::channel::pipeline::MESSAGES;
use crate::error::{ErrorKind, Result, TryRecvError};
use crate::patience::RecvPatience;

impl Receiver {
    /// Receives the next message and its metadata, as [`recv`](Self::recv) does. The metadata of a message that was sent
    /// without has no values.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// # let mut far = far.join().unwrap()?;
    /// use slipring::meta;
    ///
    /// near.sender().send_with(b"tick", &meta! { "frame" => 7 }?)?;
    /// near.send(b"tock")?;
    /// let metadata = far.receiver().recv_with()?.map(|(_, metadata)| metadata);
    /// assert_eq!(metadata, Some(meta! { "frame" => 7 }?));
    /// let metadata = far.receiver().recv_with()?.map(|(_, metadata)| metadata);
    /// assert!(metadata.is_some_and(|metadata| metadata.is_empty()));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_with(&mut self) -> Result<Option<(Vec<u8>, Metadata)>> {
        self.take_with(RecvPatience::Forever).map_err(into_error)
    }

    /// As [`recv_with`](Self::recv_with), but waits only until `deadline`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`], and as [`recv`](Self::recv).
    pub fn recv_with_deadline(&mut self, deadline: Instant) -> Result<Option<(Vec<u8>, Metadata)>> {
        self.take_with(RecvPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`recv_with`](Self::recv_with), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv).
    pub fn try_recv_with(&mut self) -> Result<Option<(Vec<u8>, Metadata)>, TryRecvError> {
        self.take_with(RecvPatience::None)
    }

    fn take_with(
        &mut self,
        patience: RecvPatience,
    ) -> Result<Option<(Vec<u8>, Metadata)>, TryRecvError> {
        let kept = self.kept(Awaited::Message, patience, MESSAGES)?;
        Ok(kept.map(|kept| (kept.body, kept.metadata)))
    }

    /// Receives the response to a request, and its metadata.
    pub(crate) fn response(
        &mut self,
        id: RequestId,
        deadline: Instant,
    ) -> Result<(Vec<u8>, Metadata)> {
        let response = self.response_with(id, RecvPatience::Until(deadline)).map_err(into_error)?;
        response.ok_or_else(|| ErrorKind::PeerClosed.into())
    }
}

impl Received<'_> {
    /// Returns the message's metadata.
    pub fn metadata(&self) -> &Metadata {
        match self.set_aside() {
            Some(kept) => &kept.metadata,
            None => self.receiver.inbox.metadata(&self.head),
        }
    }
}
