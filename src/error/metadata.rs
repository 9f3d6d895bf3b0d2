//! The reasons why metadata is impossible.

/// The reasons why the metadata of a message is impossible. A caller gets them from
/// [`Metadata`](crate::message::Metadata), and a peer that sends such metadata ends its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataFault {
    /// A name is empty or too long.
    #[error("name of {len} bytes in metadata, 1 to {max} fit")]
    Name {
        /// Bytes of the name.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Two values have the same name.
    #[error("values {first} and {second} of the metadata have the same name")]
    SameName {
        /// The first one, counted from 0.
        first: usize,
        /// The second one, counted from 0.
        second: usize,
    },
    /// A string is too long.
    #[error("string of {len} bytes in metadata, at most {max} fit")]
    Text {
        /// Bytes of the string.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// All values together are too long, or there is a section without values.
    #[error("metadata of {len} bytes, 1 to {max} fit")]
    Len {
        /// Bytes of the encoded values.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A time is too far from 1970 for a count of nanoseconds.
    #[error("a time in metadata lies within 292 years of 1970")]
    Time,
    /// A number names no type of values.
    #[error("type {code} of value {index} of the metadata is unknown")]
    Type {
        /// The value, counted from 0.
        index: usize,
        /// The number.
        code: u8,
    },
    /// A boolean is neither 0 nor 1.
    #[error("value {index} of the metadata is a boolean of {value}, it is 0 or 1")]
    Bool {
        /// The value, counted from 0.
        index: usize,
        /// The number.
        value: u64,
    },
    /// A name or a string is not UTF-8.
    #[error("value {index} of the metadata is not UTF-8")]
    Utf8 {
        /// The value, counted from 0.
        index: usize,
    },
    /// The metadata ends within a value.
    #[error("value {index} of the metadata is cut short")]
    Cut {
        /// The value, counted from 0.
        index: usize,
    },
    /// Bytes behind the values are not zero.
    #[error("the bytes behind the metadata are not zero")]
    Padding,
}
