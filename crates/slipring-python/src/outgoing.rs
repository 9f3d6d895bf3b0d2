//! What a send takes: tensors of this package as they are, and copies of all others.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slipring::{Tensor, TensorSet};

use crate::arrays::{Source, copy_in, copy_loan};
use crate::deadline::Deadline;
use crate::detached::Detached;
use crate::error::raise;
use crate::memory::Memory;
use crate::tensor;

/// A tensor to send.
pub struct Outgoing {
    tensor: Detached<Tensor>,
    /// The memory of a draft, which is gone when it is sent.
    draft: Option<Arc<Memory>>,
}

impl Outgoing {
    fn new(tensor: Tensor, draft: Option<Arc<Memory>>) -> Self {
        Self { tensor: Detached::when(tensor.gpu().is_some(), tensor), draft }
    }

    /// Returns the tensor of an object, without a copy if it is a [`tensor::Tensor`] of this process.
    ///
    /// # Errors
    ///
    /// As [`tensor::Tensor::sendable`], [`Memory::take_for_send`] and [`copy_in`].
    pub fn of(object: &Bound<'_, PyAny>, source: Source<'_>, wait: &Deadline) -> PyResult<Self> {
        let Ok(tensor) = object.cast::<tensor::Tensor>() else {
            return Ok(Self::new(copy_in(object, source, wait)?, None));
        };
        let memory = tensor.get().sendable()?;
        Ok(match memory.take_for_send()? {
            Some((tensor, true)) => Self::new(tensor, Some(memory.clone())),
            Some((tensor, false)) => Self::new(tensor, None),
            None => Self::new(copy_loan(object.py(), memory, source, wait)?, None),
        })
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Returns another handle of the tensor, for a set.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`.
    fn another(&self) -> PyResult<Tensor> {
        match self.tensor.try_clone() {
            Some(tensor) => Ok(tensor),
            None => self.tensor.to_private().map_err(raise),
        }
    }

    /// Ends the send: a draft that was sent is gone. A drop without this call makes it ready.
    pub fn sent(mut self) {
        if let Some(memory) = self.draft.take() {
            memory.finish(None);
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(memory) = self.draft.take() {
            memory.finish(self.tensor.try_clone());
        }
    }
}

/// Tensors to send in one message.
#[derive(Default)]
pub struct OutgoingSet {
    tensors: Vec<Outgoing>,
}

impl From<Outgoing> for OutgoingSet {
    fn from(tensor: Outgoing) -> Self {
        Self { tensors: vec![tensor] }
    }
}

impl OutgoingSet {
    /// Returns the tensors of a dict, with their names, or of a sequence, without names.
    ///
    /// # Errors
    ///
    /// `TypeError`: the object is neither. Otherwise as [`Outgoing::of`].
    pub fn of(
        object: &Bound<'_, PyAny>,
        source: Source<'_>,
        wait: &Deadline,
    ) -> PyResult<(Self, Vec<String>)> {
        let (mut set, mut names) = (Self::default(), Vec::new());
        if let Ok(named) = object.cast::<PyDict>() {
            for (name, tensor) in named {
                names.push(name.extract()?);
                set.tensors.push(Outgoing::of(&tensor, source, wait)?);
            }
        } else {
            for tensor in object.try_iter()? {
                set.tensors.push(Outgoing::of(&tensor?, source, wait)?);
            }
        }
        Ok((set, names))
    }

    /// Returns the set of all tensors, with these names.
    ///
    /// # Errors
    ///
    /// `InvalidTensor`: two names are the same, or one is too long.
    pub fn to_set(&self, names: &[String]) -> PyResult<Detached<TensorSet>> {
        let is_on_gpu = self.tensors.iter().any(|one| one.tensor.gpu().is_some());
        let mut set = Detached::when(is_on_gpu, TensorSet::new());
        for (at, tensor) in self.tensors.iter().enumerate() {
            match names.get(at) {
                Some(name) => set.insert(name, tensor.another()?).map_err(raise)?,
                None => set.push(tensor.another()?),
            }
        }
        Ok(set)
    }

    /// Ends the send, as [`Outgoing::sent`] does for each tensor.
    pub fn sent(self) {
        self.tensors.into_iter().for_each(Outgoing::sent);
    }
}
