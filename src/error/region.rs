//! The reasons why an operation on named memory fails.

/// The reasons why a region cannot be registered, found, or accessed.
///
/// The names and keys in the texts are those that the caller gave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionFault {
    /// The region's name has no bytes.
    #[error("region name is empty")]
    NameEmpty,
    /// The region's name is too long.
    #[error("region name of {len} bytes, at most {max} fit")]
    NameTooLong {
        /// The name's length in bytes.
        len: usize,
        /// The longest name in bytes.
        max: usize,
    },
    /// A region of this name is registered, of this kind or another.
    #[error("region {name:?} is already registered: unregister it, or take another name")]
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
        /// The region's kind.
        is: &'static str,
        /// The kind that the caller asked for.
        wanted: &'static str,
    },
    /// The registry holds as many regions as it may, those included that only leases keep.
    #[error(
        "{count} regions are registered, at most {limit} may be: unregister some, or allow more (Registry::with_limits)"
    )]
    TooManyRegions {
        /// Regions in the registry.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// The registered regions leave no room for this one.
    #[error(
        "regions take {used} of {limit} bytes, this one needs {needed} more: unregister some, or allow more (Registry::with_limits)"
    )]
    TooManyBytes {
        /// Bytes of all regions in host memory.
        used: u64,
        /// Bytes of the region to register.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The key names no object: it is empty or has only dots.
    #[error("key {key:?} names no object")]
    KeyNamesNothing {
        /// The key.
        key: String,
    },
    /// The key is too long.
    #[error("key of {len} bytes, at most {max} fit")]
    KeyTooLong {
        /// The key's length in bytes, without its leading slash.
        len: usize,
        /// The longest key in bytes.
        max: usize,
    },
    /// The key has a slash behind its name's start, or a control character.
    #[error("key has {character:?} at byte {at}")]
    KeyCharacter {
        /// The character.
        character: char,
        /// Its offset in bytes from the key's start.
        at: usize,
    },
    /// The kernel cannot open the object of this key. The source says why.
    #[error("shared memory object {key:?} cannot be opened")]
    Open {
        /// The key.
        key: String,
    },
    /// The kernel cannot create the object of this key. The source says why.
    #[error("shared memory object {key:?} cannot be created")]
    Create {
        /// The key.
        key: String,
    },
    /// The object is of another kind than the caller said.
    #[error("not {expected}")]
    NotThat {
        /// The kind that the caller said.
        expected: &'static str,
    },
    /// The descriptor is not open for `pread`.
    #[error("descriptor is not open for reading at an offset (flags {flags:#o})")]
    AccessMode {
        /// Its flags, as `F_GETFL` returns them.
        flags: u32,
    },
    /// The region has no bytes.
    #[error("region of 0 bytes")]
    Empty,
    /// Offset and length add up to more than 2^64 bytes.
    #[error("{len} bytes at {offset} go past 2^64")]
    Overflow {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
    },
    /// The offset lies past the end.
    #[error("offset {offset} is past the end at {size}")]
    Offset {
        /// The offset in bytes.
        offset: u64,
        /// Bytes of the object or the region.
        size: u64,
    },
    /// The range starts inside and ends outside.
    #[error("{len} bytes at {offset} go past the end at {size}")]
    Range {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// Bytes of the object or the region.
        size: u64,
    },
    /// The object is shorter than the registered region.
    #[error("{there} of {len} bytes are left: the object was truncated")]
    Truncated {
        /// Bytes that are left of the accessed range.
        there: u64,
        /// Bytes of the range.
        len: u64,
    },
    /// The object became shorter during an access in place. The last reads returned zeros.
    #[error("the object was truncated during an access in place to {len} bytes")]
    TruncatedInPlace {
        /// Bytes of the accessed range.
        len: u64,
    },
    /// The region's descriptor or a seal forbids writing.
    #[error(
        "the memory cannot be written: its descriptor is open for reading only, or it is sealed against writing"
    )]
    ReadOnly,
    /// The processor cannot reach the memory.
    #[error("the processor cannot reach {kind} memory")]
    OutOfReach {
        /// The kind of memory.
        kind: &'static str,
    },
    /// The memory's owner can truncate it, and no guard is installed.
    #[error("the object can be truncated: copy, or install the guard (SigbusGuard::install)")]
    Unguarded,
    /// The memory's owner can truncate it, so a view of it lasts no longer than one access.
    #[error("the object can be truncated or has holes: copy, or access it in place")]
    Unsealed,
    /// The guard watches as many mappings as it can.
    #[error("all {limit} guarded mappings are in use: unregister some regions")]
    GuardFull {
        /// Mappings that the guard can watch.
        limit: usize,
    },
}
