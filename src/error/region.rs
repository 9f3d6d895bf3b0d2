//! What can be wrong with named memory, and with who registered it.

/// Why a region cannot be registered, found or touched.
///
/// Names and keys in it are those that the caller gave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionFault {
    /// The region's name has no bytes.
    #[error("region name is empty")]
    NameEmpty,
    /// The region's name has too many bytes.
    #[error("region name of {len} bytes, at most {max} may be")]
    NameTooLong {
        /// The name's length in bytes.
        len: usize,
        /// The longest name in bytes.
        max: usize,
    },
    /// A region of this name, of whatever kind, is registered.
    #[error("region {name:?} is already registered")]
    Exists {
        /// The name.
        name: String,
    },
    /// No region of this name is registered.
    #[error("no region {name:?} is registered")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The region of this name is of another kind.
    #[error("region {name:?} is {is}, not {wanted}")]
    OtherKind {
        /// The name.
        name: String,
        /// What it is.
        is: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// As many regions as may be are registered, or are going away.
    #[error("{count} regions are registered, at most {limit} may be")]
    TooManyRegions {
        /// Regions that there are.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// The regions that there are leave no room for this one.
    #[error("regions take {used} of {limit} bytes, this one needs {needed} more")]
    TooManyBytes {
        /// Bytes of all regions in memory of this machine.
        used: u64,
        /// Bytes of the one to be registered.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The key names no object: it has no bytes, or only dots.
    #[error("key {key:?} names no object")]
    KeyNamesNothing {
        /// The key.
        key: String,
    },
    /// The key has too many bytes.
    #[error("key of {len} bytes, at most {max} may be")]
    KeyTooLong {
        /// The key's length in bytes, without its leading slash.
        len: usize,
        /// The longest key in bytes.
        max: usize,
    },
    /// A character of the key is none of those that may be.
    #[error("key has {character:?} at byte {at}")]
    KeyCharacter {
        /// The character.
        character: char,
        /// Where it stands, in bytes from the key's start.
        at: usize,
    },
    /// The object of this key cannot be opened. The source says why.
    #[error("shared memory object {key:?} cannot be opened")]
    Open {
        /// The key.
        key: String,
    },
    /// The object of this key cannot be created. The source says why.
    #[error("shared memory object {key:?} cannot be created")]
    Create {
        /// The key.
        key: String,
    },
    /// What was opened, or handed over, is not what it was said to be.
    #[error("not {expected}")]
    NotThat {
        /// What was expected.
        expected: &'static str,
    },
    /// The descriptor cannot be used to read at a place.
    #[error("descriptor is not open for reading at a place (flags {flags:#o})")]
    AccessMode {
        /// Its flags, as `F_GETFL` gives them.
        flags: u32,
    },
    /// A region of no bytes.
    #[error("region of 0 bytes")]
    Empty,
    /// Offset and length make more than 2^64 bytes.
    #[error("{len} bytes at {offset} go past 2^64")]
    Overflow {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
    },
    /// The offset lies behind the end.
    #[error("offset {offset} is past the end at {size}")]
    Offset {
        /// The offset in bytes.
        offset: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// The range starts inside and ends outside.
    #[error("{len} bytes at {offset} go past the end at {size}")]
    Range {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// The object has become shorter than what was registered.
    #[error("only {there} of {len} bytes are there: the object was truncated")]
    Truncated {
        /// Bytes that are left of the range that was accessed.
        there: u64,
        /// Bytes of the range.
        len: u64,
    },
    /// The object became shorter while it was accessed in place: what was read last were zeros.
    #[error("the object was truncated during an access in place to {len} bytes")]
    TruncatedInPlace {
        /// Bytes of the range that was accessed.
        len: u64,
    },
    /// The region can only be read: its descriptor, or a seal, says so.
    #[error("the region is read-only")]
    ReadOnly,
    /// The memory is not in this process's reach.
    #[error("{kind} memory cannot be reached from the processor")]
    OutOfReach {
        /// What kind of memory it is.
        kind: &'static str,
    },
    /// The memory's owner can truncate it, and nothing is there to survive that.
    #[error("the object can be truncated: copy, or install the guard")]
    Unguarded,
    /// The memory's owner can truncate it, so it is read within an access only.
    #[error("the object can be truncated or has holes: no view of it outlives an access")]
    Unsealed,
    /// All places for guarded mappings are taken.
    #[error("{limit} mappings are guarded, no more may be")]
    GuardFull {
        /// How many may be.
        limit: usize,
    },
}
