//! Messages of tensors.

use std::time::Instant;

use crate::broadcast::publisher::{Publisher, into_error};
use crate::broadcast::record::{Draft, Kept, single_header, single_payload};
use crate::channel::Metadata;
use crate::channel::loan_descriptor::LEN;
use crate::error::Result;
use crate::patience::SendPatience;
use crate::tensor::{Outgoing, TensorSet};

impl Publisher {
    /// Publishes a tensor: one block, which all subscribers read.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::OnGpu`](crate::error::TensorFault::OnGpu): the tensor lies on a GPU.
    /// - Otherwise as [`send`](Self::send).
    pub fn send_tensor<'a>(&mut self, tensor: impl Into<Outgoing<'a>>) -> Result<()> {
        self.send_tensor_with(tensor, &Metadata::new())
    }

    /// Publishes as [`send_tensor`](Self::send_tensor) does. It waits for subscribers as [`send_deadline`](Self::send_deadline)
    /// does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and as [`send_tensor`](Self::send_tensor).
    pub fn send_tensor_deadline<'a>(
        &mut self,
        tensor: impl Into<Outgoing<'a>>,
        deadline: Instant,
    ) -> Result<()> {
        self.send_tensor_with_deadline(tensor, &Metadata::new(), deadline)
    }

    /// Publishes a tensor with metadata, as [`send_tensor`](Self::send_tensor) does.
    ///
    /// # Errors
    ///
    /// As [`send_tensor`](Self::send_tensor).
    pub fn send_tensor_with<'a>(
        &mut self,
        tensor: impl Into<Outgoing<'a>>,
        metadata: &Metadata,
    ) -> Result<()> {
        self.put_tensor(tensor.into(), metadata, SendPatience::Default)
    }

    /// Publishes as [`send_tensor_with`](Self::send_tensor_with) does. It waits for subscribers as
    /// [`send_deadline`](Self::send_deadline) does.
    ///
    /// # Errors
    ///
    /// As [`send_tensor_deadline`](Self::send_tensor_deadline).
    pub fn send_tensor_with_deadline<'a>(
        &mut self,
        tensor: impl Into<Outgoing<'a>>,
        metadata: &Metadata,
        deadline: Instant,
    ) -> Result<()> {
        self.put_tensor(tensor.into(), metadata, SendPatience::Until(deadline))
    }

    fn put_tensor(
        &mut self,
        mut tensor: Outgoing<'_>,
        metadata: &Metadata,
        patience: SendPatience,
    ) -> Result<()> {
        self.await_room(patience).map_err(into_error)?;
        let pool = self.context.pool().clone();
        let most = self.room().saturating_sub(LEN);
        if metadata.is_empty()
            && let Some((block, description, len)) = tensor.take_single(&pool, most)
        {
            let payload = &single_payload(&block, description)[..LEN + len];
            let published =
                self.publish(single_header(len), payload, vec![Kept::Block(block)], patience);
            return published.map_err(into_error);
        }
        let described = tensor.describe_for_all(&pool)?;
        let draft = self
            .draft(patience, |alloc| Draft::tensors(metadata.section(), described, &pool, alloc));
        self.publish_draft(draft, patience).map_err(into_error)
    }

    /// Publishes a set of tensors in one message, with the metadata of the set, as [`send_tensor`](Self::send_tensor) does.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::MessageTooLarge`](crate::ErrorKind::MessageTooLarge): there are more than 255 blocks, or the names and shapes take more than 1 MiB.
    /// - Otherwise as [`send_tensor`](Self::send_tensor).
    pub fn send_tensors(&mut self, tensors: &TensorSet) -> Result<()> {
        self.put_tensors(tensors, SendPatience::Default)
    }

    /// Publishes as [`send_tensors`](Self::send_tensors) does. It waits for subscribers as
    /// [`send_deadline`](Self::send_deadline) does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut), and as [`send_tensors`](Self::send_tensors).
    pub fn send_tensors_deadline(&mut self, tensors: &TensorSet, deadline: Instant) -> Result<()> {
        self.put_tensors(tensors, SendPatience::Until(deadline))
    }

    fn put_tensors(&mut self, tensors: &TensorSet, patience: SendPatience) -> Result<()> {
        self.await_room(patience).map_err(into_error)?;
        let pool = self.context.pool().clone();
        let described = tensors.describe_for_all(&pool)?;
        let draft = self.draft(patience, |alloc| {
            Draft::tensors(tensors.metadata().section(), described, &pool, alloc)
        });
        self.publish_draft(draft, patience).map_err(into_error)
    }
}
