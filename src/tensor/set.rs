//! Sets of tensors.

use std::collections::HashMap;
use std::ops::Index;

use crate::channel::Metadata;
use crate::error::{Result, TensorFault};
use crate::region::Registry;
use crate::tensor::descriptor::MAX_NAME;
use crate::tensor::view::Tensor;

/// Tensors that travel in one message, such as a model's inputs. Each has an index, and a name if the caller
/// gave one. The set may have [metadata](Self::metadata), which travels with it.
///
/// # Examples
///
/// ```
/// use slipring::{Tensor, TensorSet};
///
/// let mut inputs = TensorSet::new();
/// inputs.insert("ids", Tensor::from_slice([1, 3], &[7i64, 8, 9])?)?;
/// inputs.insert("mask", Tensor::from_slice([1, 3], &[true, true, false])?)?;
/// assert_eq!(inputs["ids"].shape().dims(), [1, 3]);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TensorSet {
    entries: Vec<(Box<str>, Tensor)>,
    /// The indexes by name, of a set that is [too long](SCANNED) to be searched.
    names: HashMap<Box<str>, usize>,
    metadata: Metadata,
}

/// The most tensors of a set without a table of names, which takes memory.
const SCANNED: usize = 64;

impl TensorSet {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn with_capacity(count: usize) -> Self {
        Self { entries: Vec::with_capacity(count), ..Self::default() }
    }

    /// Returns the named values that travel with the set. Of a received set, the values that the sender gave.
    ///
    /// # Examples
    ///
    /// ```
    /// # use slipring::{Address, Context, Tensor, TensorSet};
    /// # let (context, address) = (Context::new()?, Address::fresh());
    /// # let mut listener = context.listen(&address)?;
    /// # let far = std::thread::spawn(move || listener.accept());
    /// # let mut near = context.connect(&address)?;
    /// # let mut far = far.join().unwrap()?;
    /// use slipring::message::Value;
    /// use slipring::meta;
    ///
    /// let mut inputs = TensorSet::new();
    /// inputs.insert("ids", Tensor::from_slice([1, 3], &[7i64, 8, 9])?)?;
    /// inputs.set_metadata(meta! { "model" => "bert", "step" => 3 }?);
    /// near.sender().send_tensors(&inputs)?;
    ///
    /// let inputs = far.receiver().recv_tensors()?.expect("a set");
    /// assert_eq!(inputs.metadata().get("model"), Some(Value::String("bert")));
    /// # Ok::<(), slipring::Error>(())
    /// ```
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Replaces the named values that travel with the set.
    pub fn set_metadata(&mut self, metadata: Metadata) {
        self.metadata = metadata;
    }

    /// Appends a tensor without a name.
    pub fn push(&mut self, tensor: Tensor) {
        self.add(Box::default(), tensor);
    }

    /// Appends a tensor with a name of up to 255 bytes. An empty name counts as none.
    ///
    /// # Errors
    ///
    /// - [`TensorFault::SameName`]: another tensor of the set has this name.
    /// - [`TensorFault::NameTooLong`]: the name has more than 255 bytes.
    pub fn insert(&mut self, name: &str, tensor: Tensor) -> Result<()> {
        if name.len() > MAX_NAME {
            return Err(TensorFault::NameTooLong { len: name.len(), max: MAX_NAME }.into());
        }
        Ok(self.try_insert(name, tensor)?)
    }

    pub(super) fn try_insert(&mut self, name: &str, tensor: Tensor) -> Result<(), TensorFault> {
        let second = self.entries.len();
        if let Some(first) = self.position(name) {
            return Err(TensorFault::SameName { first, second });
        }
        self.add(name.into(), tensor);
        Ok(())
    }

    fn add(&mut self, name: Box<str>, tensor: Tensor) {
        self.entries.push((name, tensor));
        match self.entries.len() - 1 {
            last if last > SCANNED => self.note_name(last),
            SCANNED => self.note_names(),
            _ => {}
        }
    }

    fn note_names(&mut self) {
        self.names.clear();
        if self.entries.len() > SCANNED {
            (0..self.entries.len()).for_each(|at| self.note_name(at));
        }
    }

    fn note_name(&mut self, at: usize) {
        let name = &self.entries[at].0;
        if !name.is_empty() {
            self.names.insert(name.clone(), at);
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        if self.entries.len() > SCANNED {
            return self.names.get(name).copied();
        }
        let is_named = |(other, _): &(Box<str>, Tensor)| !name.is_empty() && **other == *name;
        self.entries.iter().position(is_named)
    }

    /// Returns the bytes of memory that the set takes while it waits, without pools and loans.
    pub(crate) fn private_len(&self) -> usize {
        let entry = size_of::<(Box<str>, Tensor)>();
        let tensors = self.iter().map(|(name, tensor)| entry + name.len() + tensor.private_len());
        self.metadata.section().len() + tensors.sum::<usize>()
    }

    /// Returns the bytes of this process's pool that the set keeps.
    pub(crate) fn pool_len(&self) -> usize {
        self.iter().map(|(_, tensor)| tensor.pool_len()).sum()
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the set has no tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the tensor with this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.position(name).and_then(|at| self.at(at))
    }

    /// Returns the tensor at this index, counted from 0.
    pub fn at(&self, place: usize) -> Option<&Tensor> {
        self.entries.get(place).map(|(_, tensor)| tensor)
    }

    /// Removes and returns the tensor with this name. The ones after it move up.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let at = self.position(name)?;
        let (_, tensor) = self.entries.remove(at);
        self.note_names();
        Some(tensor)
    }

    /// Looks up the regions that a peer has named, as [`Tensor::resolve`] does.
    ///
    /// # Errors
    ///
    /// As [`Tensor::resolve`].
    pub fn resolve(mut self, registry: &Registry) -> Result<Self> {
        let resolve = |(name, tensor): (Box<str>, Tensor)| Ok((name, tensor.resolve(registry)?));
        let entries: Result<_> =
            std::mem::take(&mut self.entries).into_iter().map(resolve).collect();
        Ok(Self { entries: entries?, ..self })
    }

    /// Returns an iterator over names and tensors, in order. A tensor without a name has an empty one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (&**name, tensor))
    }
}

/// Iterates over names and tensors, in order.
impl IntoIterator for TensorSet {
    type Item = (Box<str>, Tensor);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Iterates over names and tensors, in order.
impl<'a> IntoIterator for &'a TensorSet {
    type Item = (&'a str, &'a Tensor);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter().collect::<Vec<_>>().into_iter()
    }
}

/// For sets that this process makes. A peer's set may have other names, which [`get`](TensorSet::get) tells.
///
/// # Panics
///
/// If no tensor has this name.
impl Index<&str> for TensorSet {
    type Output = Tensor;

    fn index(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| panic!("no tensor is named {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_sets_of_any_length() {
        for count in [1, SCANNED - 1, SCANNED, SCANNED + 1, 3 * SCANNED] {
            let mut set = TensorSet::new();
            for at in 0..count {
                let tensor = Tensor::from_slice([1], &[at as u32]).unwrap();
                set.insert(&format!("{at}"), tensor).unwrap();
            }
            set.push(Tensor::from_slice([1], &[0u32]).unwrap());
            let found = |set: &TensorSet, at: usize| {
                set.get(&format!("{at}")).map(|tensor| tensor.to_vec::<u32>().unwrap()[0])
            };
            assert!((0..count).all(|at| found(&set, at) == Some(at as u32)), "{count}");
            assert!(set.get("").is_none() && set.get("none").is_none());
            let again = set.try_insert("0", Tensor::from_slice([1], &[0u32]).unwrap());
            assert_eq!(again, Err(TensorFault::SameName { first: 0, second: count + 1 }));
            set.remove("0").unwrap();
            assert_eq!(found(&set, 0), None);
            assert!((1..count).all(|at| found(&set, at) == Some(at as u32)), "{count}");
            set.insert("0", Tensor::from_slice([1], &[0u32]).unwrap()).unwrap();
            assert_eq!(found(&set, 0), Some(0));
        }
    }
}
