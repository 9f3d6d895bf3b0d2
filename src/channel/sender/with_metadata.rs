//! Sends with metadata.

use std::time::Instant;

use crate::channel::envelope::{Envelope, PLAIN};
use crate::channel::message::RequestId;
use crate::channel::metadata::Metadata;
use crate::channel::sender::reservation::{POOLED, Reservation};
use crate::channel::sender::{Sender, into_error};
use crate::error::{Result, TrySendError};
use crate::patience::SendPatience;
use crate::ring::Kind;

impl Sender {
    /// Sends a message with metadata, as [`send`](Self::send) does.
    /// [`Receiver::recv_with`](crate::Receiver::recv_with) returns both. A receiver that calls
    /// [`recv`](crate::Receiver::recv) gets the message alone.
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
    /// use slipring::message::Value;
    /// use slipring::meta;
    ///
    /// near.sender().send_with(b"tick", &meta! { "frame" => 7 }?)?;
    /// let (message, metadata) = far.receiver().recv_with()?.expect("a message");
    /// assert_eq!((&message[..], metadata.get("frame")), (&b"tick"[..], Some(Value::Integer(7))));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_with(&mut self, message: &[u8], metadata: &Metadata) -> Result<()> {
        self.put(PLAIN.with(metadata), message, SendPatience::Default).map_err(into_error)
    }

    /// As [`send_with`](Self::send_with), but waits for room until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_with_deadline(
        &mut self,
        message: &[u8],
        metadata: &Metadata,
        deadline: Instant,
    ) -> Result<()> {
        self.put(PLAIN.with(metadata), message, SendPatience::Until(deadline)).map_err(into_error)
    }

    /// As [`send_with`](Self::send_with), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_send_with(
        &mut self,
        message: &[u8],
        metadata: &Metadata,
    ) -> Result<(), TrySendError> {
        self.put(PLAIN.with(metadata), message, SendPatience::None)
    }

    /// Sends the response to a request with metadata, as [`respond`](Self::respond) does.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn respond_with(
        &mut self,
        request: RequestId,
        body: &[u8],
        metadata: &Metadata,
    ) -> Result<()> {
        let envelope = Envelope::new(Kind::Response).of(request).with(metadata);
        self.put(envelope, body, SendPatience::Default).map_err(into_error)
    }

    /// As [`respond_with`](Self::respond_with), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send).
    pub fn try_respond_with(
        &mut self,
        request: RequestId,
        body: &[u8],
        metadata: &Metadata,
    ) -> Result<(), TrySendError> {
        let envelope = Envelope::new(Kind::Response).of(request).with(metadata);
        self.put(envelope, body, SendPatience::None)
    }

    /// Returns room for a message of `len` bytes with metadata, as [`reserve`](Self::reserve) does.
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
    /// let mut room = near.sender().reserve_with(5, &meta! { "frame" => 7 }?)?;
    /// room.copy_from_slice(b"hello");
    /// room.publish()?;
    ///
    /// let received = far.receiver().peek()?.expect("a message");
    /// assert_eq!(received.metadata().len(), 1);
    /// assert_eq!(received.bytes().to_vec(), b"hello");
    /// # Ok::<(), slipring::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn reserve_with(&mut self, len: usize, metadata: &Metadata) -> Result<Reservation<'_>> {
        if metadata.is_empty() {
            return self.reserve(len);
        }
        let (envelope, patience) = (PLAIN.with(metadata), SendPatience::Default);
        if len > self.inline_max {
            self.room_in_pool(len, envelope, patience).map_err(into_error)?;
            self.metadata.clone_from(metadata);
            let header = envelope.pooled();
            return Ok(Reservation { offset: POOLED, header, next: 0, len, sender: self });
        }
        let header = envelope.header(len);
        let offset = self.room_in_ring(header, patience).map_err(into_error)?;
        self.write_envelope(offset, envelope);
        let offset = offset + envelope.len();
        Ok(Reservation { offset, header, next: 0, len, sender: self })
    }
}
