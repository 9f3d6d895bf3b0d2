//! Metadata: a few named values that travel beside a message. No I/O.
//!
//! ```text
//!   section: u16 bytes of the entries │ entry … │ zeros up to a multiple of 8
//!   entry:   u8 type │ u8 length of the name │ name │ value
//! ```
//!
//! 1. A [`Metadata`] holds its section as it travels. [`Metadata::insert`] and [`Metadata::replace`] check each entry, so
//!    every section that exists is valid.
//! 2. Metadata without values has no section.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{MetadataFault, Result, memory};

/// The longest name in bytes.
const NAME: usize = 63;

/// The longest string in bytes.
const TEXT: usize = u8::MAX as usize;

/// The most bytes of entries.
const ENTRIES: usize = 512;

/// Bytes of the field that holds the length of the entries.
const HEAD: usize = 2;

/// The longest section in bytes.
pub(crate) const LONGEST: usize = (HEAD + ENTRIES).next_multiple_of(8);

/// Bytes of the shortest entry: an empty string with a name of one byte.
const SHORTEST: usize = 4;

const INTEGER: u8 = 1;
const FLOAT: u8 = 2;
const STRING: u8 = 3;
const TIME: u8 = 4;
const BOOLEAN: u8 = 5;

/// A value in [`Metadata`].
///
/// # Examples
///
/// ```
/// use slipring::message::Value;
///
/// assert_eq!(Value::from(7), Value::Integer(7));
/// assert_eq!(Value::from("left"), Value::String("left"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// A string of up to 255 bytes.
    String(&'a str),
    /// A time of the system's clock, to the nanosecond.
    Time(SystemTime),
    /// A truth value.
    Bool(bool),
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Value<'_> {
            fn from(value: $integer) -> Self {
                Self::Integer(value.into())
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32);

impl From<f32> for Value<'_> {
    fn from(value: f32) -> Self {
        Self::Float(value.into())
    }
}

impl From<f64> for Value<'_> {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Self::String(value)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Self::String(value)
    }
}

impl From<SystemTime> for Value<'_> {
    fn from(value: SystemTime) -> Self {
        Self::Time(value)
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// A few named values beside a message, a request or tensors: at most 512 bytes, encoded. An integer, a float, a time or a
/// truth value takes 10 bytes and its name, a string 3 bytes, itself and its name.
///
/// [`meta!`](crate::meta) makes one in one expression. The values keep their order.
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
/// use slipring::message::{Metadata, Value};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("frame", 7)?;
/// metadata.insert("camera", "left")?;
/// near.sender().send_with(b"hello", &metadata)?;
///
/// let (message, metadata) = far.receiver().recv_with()?.expect("a message");
/// assert_eq!(message, b"hello");
/// assert_eq!(metadata.get("frame"), Some(Value::Integer(7)));
/// assert_eq!(metadata.iter().count(), 2);
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    section: Vec<u8>,
}

impl Metadata {
    /// Returns metadata without values.
    pub const fn new() -> Self {
        Self { section: Vec::new() }
    }

    /// Returns the metadata of these names and values, as [`meta!`](crate::meta) does.
    ///
    /// # Errors
    ///
    /// As [`insert`](Self::insert).
    pub fn of<'a>(values: impl IntoIterator<Item = (&'a str, Value<'a>)>) -> Result<Self> {
        let mut metadata = Self::new();
        for (name, value) in values {
            metadata.insert(name, value)?;
        }
        Ok(metadata)
    }

    /// Appends a value with a name of 1 to 63 bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Metadata`](crate::ErrorKind::Metadata), and the metadata stays as it was:
    ///
    /// - [`MetadataFault::Name`]: the name is empty or too long.
    /// - [`MetadataFault::SameName`]: another value has this name.
    /// - [`MetadataFault::Text`]: the string has more than 255 bytes.
    /// - [`MetadataFault::Time`]: the time lies too far from 1970.
    /// - [`MetadataFault::Len`]: the values would take more than 512 bytes.
    pub fn insert<'a>(&mut self, name: &str, value: impl Into<Value<'a>>) -> Result<()> {
        self.push(name, value.into()).map_err(Into::into)
    }

    fn push(&mut self, name: &str, value: Value<'_>) -> Result<(), MetadataFault> {
        if !(1..=NAME).contains(&name.len()) {
            return Err(MetadataFault::Name { len: name.len(), max: NAME });
        }
        if let Some(first) = self.iter().position(|(other, _)| other == name) {
            return Err(MetadataFault::SameName { first, second: self.len() });
        }
        let mut bytes = [0; 8];
        let (code, text) = match value {
            Value::Integer(value) => (INTEGER, value),
            Value::Float(value) => (FLOAT, value.to_bits() as i64),
            Value::String(_) => (STRING, 0),
            Value::Time(value) => (TIME, nanoseconds(value).ok_or(MetadataFault::Time)?),
            Value::Bool(value) => (BOOLEAN, value.into()),
        };
        bytes.copy_from_slice(&text.to_le_bytes());
        let (length, body) = match value {
            Value::String(text) if text.len() > TEXT => {
                return Err(MetadataFault::Text { len: text.len(), max: TEXT });
            }
            Value::String(text) => (Some(text.len() as u8), text.as_bytes()),
            _ => (None, &bytes[..]),
        };
        let end = HEAD.max(HEAD + self.entries().len());
        let entry = 2 + name.len() + usize::from(length.is_some()) + body.len();
        let len = end - HEAD + entry;
        if len > ENTRIES {
            return Err(MetadataFault::Len { len, max: ENTRIES });
        }
        self.section.resize(end, 0);
        self.section.extend([code, name.len() as u8]);
        self.section.extend(name.as_bytes());
        self.section.extend(length);
        self.section.extend(body);
        self.section[..HEAD].copy_from_slice(&(len as u16).to_le_bytes());
        self.section.resize((HEAD + len).next_multiple_of(8), 0);
        Ok(())
    }

    /// Returns the value with this name.
    pub fn get(&self, name: &str) -> Option<Value<'_>> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Returns an iterator over names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let mut left = self.entries();
        std::iter::from_fn(move || {
            // The section was checked, so only its end is left to find.
            let (entry, rest) = decode(left, 0).ok().filter(|_| !left.is_empty())?;
            left = rest;
            Some(entry)
        })
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.section.is_empty()
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.section.clear();
    }

    /// Returns the section as it travels: a multiple of 8 bytes, none for metadata without values.
    #[inline]
    pub(crate) fn section(&self) -> &[u8] {
        &self.section
    }

    fn entries(&self) -> &[u8] {
        let Some((head, rest)) = self.section.split_first_chunk::<HEAD>() else { return &[] };
        &rest[..u16::from_le_bytes(*head).into()]
    }

    /// Returns the bytes of a section that starts with these bytes.
    ///
    /// # Errors
    ///
    /// [`MetadataFault::Len`]: there is no such section.
    pub(crate) fn section_len(head: [u8; HEAD]) -> Result<usize, MetadataFault> {
        let len = usize::from(u16::from_le_bytes(head));
        if !(1..=ENTRIES).contains(&len) {
            return Err(MetadataFault::Len { len, max: ENTRIES });
        }
        Ok((HEAD + len).next_multiple_of(8))
    }

    /// Replaces the values by those of a section that a peer wrote, from a private copy of its bytes.
    ///
    /// # Errors
    ///
    /// - [`Fault::Metadata`](crate::error::Fault::Metadata): the section is impossible.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory)
    pub(crate) fn replace(&mut self, section: &[u8]) -> Result<()> {
        self.section.clear();
        judge(section).map_err(crate::error::Fault::Metadata)?;
        memory::reserve(&mut self.section, section.len())?;
        self.section.extend_from_slice(section);
        Ok(())
    }
}

/// Shows the names and values.
impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Makes [`Metadata`](crate::message::Metadata) of names and values: integers, floats, strings, booleans and
/// [`SystemTime`]. Returns a [`Result`](crate::Result), with the errors of
/// [`Metadata::insert`](crate::message::Metadata::insert).
///
/// # Examples
///
/// ```
/// use slipring::meta;
/// use slipring::message::Value;
///
/// let now = std::time::SystemTime::now();
/// let metadata = meta! { "stamp" => now, "frame" => 7, "exposure" => 0.02, "camera" => "left" }?;
/// assert_eq!(metadata.get("stamp"), Some(Value::Time(now)));
/// assert_eq!(metadata.len(), 4);
/// # Ok::<(), slipring::Error>(())
/// ```
#[macro_export]
macro_rules! meta {
    ($($name:expr => $value:expr),* $(,)?) => {
        $crate::message::Metadata::of([$(($name, $crate::message::Value::from($value))),*])
    };
}

/// Returns a time as nanoseconds since the epoch, or `None` if they are too many.
fn nanoseconds(time: SystemTime) -> Option<i64> {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).ok(),
        Err(before) => i64::try_from(before.duration().as_nanos()).ok().map(|since| -since),
    }
}

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// Checks a section that a peer wrote.
fn judge(section: &[u8]) -> Result<(), MetadataFault> {
    let Some((head, rest)) = section.split_first_chunk::<HEAD>() else {
        return Err(MetadataFault::Len { len: 0, max: ENTRIES });
    };
    let len = usize::from(u16::from_le_bytes(*head));
    if !(1..=ENTRIES).contains(&len) || rest.len() < len {
        return Err(MetadataFault::Len { len, max: ENTRIES });
    }
    let (mut left, padding) = rest.split_at(len);
    if padding.len() >= 8 || padding.iter().any(|byte| *byte != 0) {
        return Err(MetadataFault::Padding);
    }
    let (mut names, mut second) = ([""; ENTRIES / SHORTEST], 0);
    while !left.is_empty() {
        let ((name, _), rest) = decode(left, second)?;
        if let Some(first) = names[..second].iter().position(|other| *other == name) {
            return Err(MetadataFault::SameName { first, second });
        }
        names[second] = name;
        second += 1;
        left = rest;
    }
    Ok(())
}

/// A name with its value, and the bytes behind them.
type Decoded<'a> = ((&'a str, Value<'a>), &'a [u8]);

/// Decodes the entry at the start of `bytes`, which is number `index`.
fn decode(bytes: &[u8], index: usize) -> Result<Decoded<'_>, MetadataFault> {
    let cut = MetadataFault::Cut { index };
    let ([code, len], rest) = bytes.split_first_chunk().ok_or(cut)?;
    let len = usize::from(*len);
    if !(1..=NAME).contains(&len) {
        return Err(MetadataFault::Name { len, max: NAME });
    }
    let (name, rest) = rest.split_at_checked(len).ok_or(cut)?;
    let name = str::from_utf8(name).map_err(|_| MetadataFault::Utf8 { index })?;
    if *code == STRING {
        let (len, rest) = rest.split_first().ok_or(cut)?;
        let (text, rest) = rest.split_at_checked((*len).into()).ok_or(cut)?;
        let text = str::from_utf8(text).map_err(|_| MetadataFault::Utf8 { index })?;
        return Ok(((name, Value::String(text)), rest));
    }
    if !(INTEGER..=BOOLEAN).contains(code) {
        return Err(MetadataFault::Type { index, code: *code });
    }
    let (word, rest) = rest.split_first_chunk().ok_or(cut)?;
    let word = i64::from_le_bytes(*word);
    let value = match *code {
        INTEGER => Value::Integer(word),
        FLOAT => Value::Float(f64::from_bits(word as u64)),
        TIME => Value::Time(time(word)),
        _ if word & !1 == 0 => Value::Bool(word == 1),
        _ => return Err(MetadataFault::Bool { index, value: word as u64 }),
    };
    Ok(((name, value), rest))
}

#[cfg(test)]
mod tests;
