//! Sets of tensors.

mod table;

use std::fmt;
use std::ops::Index;

use crate::channel::Metadata;
use crate::error::{Result, TensorFault};
use crate::region::Registry;
use crate::tensor::descriptor::MAX_NAME;
use crate::tensor::set::table::Table;
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
#[derive(Default)]
pub struct TensorSet {
    /// In order, or in the order of the table.
    entries: Vec<(Box<str>, Tensor)>,
    /// Of a set that has been [too long](SCANNED) to be searched.
    table: Option<Box<Table>>,
    metadata: Metadata,
}

/// The most tensors of a set without a table, which takes memory.
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
        if let Some(entry) = self.named(name) {
            let first = self.table.as_ref().and_then(|table| table.place(entry)).unwrap_or(entry);
            return Err(TensorFault::SameName { first, second });
        }
        self.add(name.into(), tensor);
        Ok(())
    }

    fn add(&mut self, name: Box<str>, tensor: Tensor) {
        match &mut self.table {
            Some(table) => table.push(&name),
            None if self.entries.len() == SCANNED => {
                let mut table = Box::<Table>::default();
                self.entries.iter().for_each(|(name, _)| table.push(name));
                table.push(&name);
                self.table = Some(table);
            }
            None => {}
        }
        self.entries.push((name, tensor));
    }

    /// Returns the entry of this name.
    fn named(&self, name: &str) -> Option<usize> {
        if let Some(table) = &self.table {
            return table.named(name);
        }
        let is_named = |(other, _): &(Box<str>, Tensor)| !name.is_empty() && **other == *name;
        self.entries.iter().position(is_named)
    }

    /// Returns the entry at this place.
    fn entry(&self, place: usize) -> Option<&(Box<str>, Tensor)> {
        let entry = self.table.as_ref().map_or(Some(place), |table| table.at(place))?;
        self.entries.get(entry)
    }

    /// Returns the bytes of memory that the set takes while it waits, without pools and loans.
    pub(crate) fn private_len(&self) -> usize {
        let entry = size_of::<(Box<str>, Tensor)>();
        let tensors = self.entries.iter();
        let tensors = tensors.map(|(name, tensor)| entry + name.len() + tensor.private_len());
        let table = self.table.as_ref().map_or(0, |table| table.private_len());
        self.metadata.section().len() + tensors.sum::<usize>() + table
    }

    /// Returns the bytes of this process's pool that the set keeps.
    pub(crate) fn pool_len(&self) -> usize {
        self.entries.iter().map(|(_, tensor)| tensor.pool_len()).sum()
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
        self.named(name).and_then(|entry| self.entries.get(entry)).map(|(_, tensor)| tensor)
    }

    /// Returns the tensor at this index, counted from 0.
    pub fn at(&self, place: usize) -> Option<&Tensor> {
        self.entry(place).map(|(_, tensor)| tensor)
    }

    /// Removes and returns the tensor with this name. The ones after it move up.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let entry = self.named(name)?;
        let Some(table) = &mut self.table else { return Some(self.entries.remove(entry).1) };
        table.swap_remove(name, &self.entries.last()?.0);
        Some(self.entries.swap_remove(entry).1)
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
        (0..self.entries.len()).map(|place| {
            let entry = self.table.as_ref().and_then(|table| table.at(place)).unwrap_or(place);
            let (name, tensor) = &self.entries[entry];
            (&**name, tensor)
        })
    }
}

impl fmt::Debug for TensorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors: Vec<_> = self.iter().collect();
        f.debug_struct("TensorSet")
            .field("tensors", &tensors)
            .field("metadata", &self.metadata)
            .finish()
    }
}

/// Iterates over names and tensors, in order.
impl IntoIterator for TensorSet {
    type Item = (Box<str>, Tensor);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        let Some(table) = self.table else { return self.entries.into_iter() };
        let mut entries: Vec<_> = self.entries.into_iter().map(Some).collect();
        let ordered = table.into_order().into_iter().filter_map(|entry| entries[entry].take());
        ordered.collect::<Vec<_>>().into_iter()
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

    fn numbered(count: u32) -> TensorSet {
        let mut set = TensorSet::new();
        for number in 0..count {
            let tensor = Tensor::from_slice([1], &[number]).unwrap();
            set.insert(&format!("{number}"), tensor).unwrap();
        }
        set
    }

    fn number(tensor: &Tensor) -> u32 {
        tensor.to_vec::<u32>().unwrap()[0]
    }

    #[test]
    fn the_others_keep_their_order_when_tensors_are_removed() {
        let unnamed = || Tensor::from_slice([1], &[u32::MAX]).unwrap();
        for count in [4, SCANNED as u32, SCANNED as u32 + 1, 3 * SCANNED as u32] {
            let mut set = numbered(count);
            set.push(unnamed());
            let mut left: Vec<u32> = (0..count).chain([u32::MAX]).collect();
            for step in 0..count {
                // From the start, the end and the middle, until one is left.
                let named = left.len() - 1;
                let place = [0, named - 1, named / 2][step as usize % 3];
                let name = left.remove(place).to_string();
                assert_eq!(number(&set.remove(&name).unwrap()).to_string(), name);
                assert!(set.remove(&name).is_none() && set.get(&name).is_none());
                assert!(set.iter().map(|(_, tensor)| number(tensor)).eq(left.iter().copied()));
                for (at, expected) in left.iter().enumerate() {
                    assert_eq!(set.at(at).map(number), Some(*expected));
                    let named = set.get(&expected.to_string()).map(number);
                    assert_eq!(named, (*expected != u32::MAX).then_some(*expected));
                }
                assert_eq!((set.len(), set.iter().len()), (left.len(), left.len()));
                assert!(set.at(left.len()).is_none());
            }
            set.insert("last", unnamed()).unwrap();
            let again = set.try_insert("last", unnamed());
            assert_eq!(again, Err(TensorFault::SameName { first: 1, second: 2 }));
            let names: Vec<_> = set.into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["".into(), "last".into()] as [Box<str>; 2], "{count}");
        }
    }

    #[test]
    fn a_set_that_tensors_were_removed_from_is_taken_apart_in_order() {
        let mut set = numbered(3 * SCANNED as u32);
        set.remove("1").unwrap();
        let shown = format!("{set:?}");
        assert!(shown.find("\"0\"") < shown.find("\"2\"") && !shown.contains("\"1\""), "{shown}");
        let numbers: Vec<u32> = set.into_iter().map(|(_, tensor)| number(&tensor)).collect();
        assert!(numbers.into_iter().eq([0].into_iter().chain(2..3 * SCANNED as u32)));
    }

    /// It takes minutes if a removal makes the table again.
    #[test]
    fn half_of_the_largest_set_is_removed() {
        let mut set = numbered(1 << 15);
        for number in (0..1 << 15).step_by(2) {
            set.remove(&number.to_string()).unwrap();
        }
        assert!(set.iter().map(|(_, tensor)| number(tensor)).eq((1..1 << 15).step_by(2)));
    }

    #[test]
    fn the_names_of_a_long_set_count_twice() {
        let taken = |length: usize| {
            let mut set = TensorSet::new();
            for number in 0..=SCANNED {
                let name = format!("{number:0length$}");
                set.insert(&name, Tensor::from_slice([1], &[0u32]).unwrap()).unwrap();
            }
            set.private_len()
        };
        assert_eq!(taken(110) - taken(10), 2 * 100 * (SCANNED + 1));
    }
}
