//! What can be wrong with a tensor, whoever made it.

use crate::error::DlpackFault;

/// Why a tensor cannot be what it is said to be, or not be used so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFault {
    /// A number names no data type.
    #[error("data type code {code} is unknown")]
    DataTypeCode {
        /// The number.
        code: u8,
    },
    /// A name names no data type.
    #[error("unknown data type name")]
    DataTypeName,
    /// A shape has more dimensions than there may be.
    #[error("shape of {rank} dimensions, at most {max} may be")]
    Rank {
        /// Dimensions.
        rank: usize,
        /// The most there may be.
        max: usize,
    },
    /// A dimension is negative.
    #[error("dimension {at} is {value}")]
    Dimension {
        /// Which dimension, counted from 0.
        at: usize,
        /// Its value.
        value: i64,
    },
    /// A shape and data type make more bytes than can be addressed.
    #[error("shape and data type make more than 2^63 bytes")]
    Overflow,
    /// The bytes are more or fewer than shape and data type make.
    #[error("{len} bytes where shape and data type make {expected}")]
    Len {
        /// Bytes that there are.
        len: u64,
        /// Bytes that there must be.
        expected: u64,
    },
    /// The tensor has another data type.
    #[error("data type is {is}, not {wanted}")]
    DataType {
        /// The tensor's.
        is: &'static str,
        /// The one that was asked for.
        wanted: &'static str,
    },
    /// The data type has elements of any length, so shape alone does not give the bytes.
    #[error("BYTES elements have no length of their own")]
    BytesLen,
    /// A byte of a BOOL tensor is neither 0 nor 1.
    #[error("BOOL element {index} is {value}")]
    Bool {
        /// Which element, counted from 0.
        index: u64,
        /// The byte.
        value: u8,
    },
    /// The bytes end within the length of a BYTES element.
    #[error("length of BYTES element {index} at byte {at}: {left} bytes are left, 4 are needed")]
    ElementLength {
        /// Which element, counted from 0.
        index: u64,
        /// Where its length stands, in bytes from the tensor's start.
        at: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// The bytes end within a BYTES element.
    #[error("BYTES element {index} at byte {at} has {len} bytes, {left} are left")]
    Element {
        /// Which element, counted from 0.
        index: u64,
        /// Where its bytes start, in bytes from the tensor's start.
        at: u64,
        /// Its length in bytes.
        len: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// There are fewer BYTES elements than the shape says.
    #[error("{count} BYTES elements where the shape says {expected}")]
    ElementCount {
        /// Elements that there are.
        count: u64,
        /// Elements that there must be.
        expected: u64,
    },
    /// There is something behind the BYTES elements that the shape says there are.
    #[error("{count} BYTES elements end at byte {at}, {left} bytes are left")]
    Trailing {
        /// Elements that there must be.
        count: u64,
        /// Where they end, in bytes from the tensor's start.
        at: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// A BYTES element is too long for its length field.
    #[error("BYTES element {index} of {len} bytes, at most 4294967295 may be")]
    ElementTooLong {
        /// Which element, counted from 0.
        index: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The bytes do not start at a multiple of the element's alignment.
    #[error("the bytes do not start at a multiple of {alignment}")]
    Alignment {
        /// The alignment in bytes.
        alignment: usize,
    },
    /// The sender could still change the bytes, so they are no slice.
    #[error("the sender can still change the bytes: copy them, or trust it")]
    Unstable,
    /// Another library's tensor cannot be taken.
    #[error("DLPack: {0}")]
    Dlpack(DlpackFault),
    /// The bytes lie in a region that was not looked up yet.
    #[error("the tensor lies in a region, which is to be resolved first")]
    Unresolved,
    /// The bytes lie in memory of a GPU, which the processor does not read.
    #[error("the tensor lies on a GPU: open it there (cuda::Device), or copy it to the host")]
    OnGpu,
    /// The bytes lie in memory of a peer's GPU that is on loan, and such a loan goes to one process alone.
    #[error("the tensor is on loan from a peer's GPU and cannot be sent on: copy it first")]
    GpuLoan,
    /// A range leads beyond the end of the allocation of a GPU that it lies in.
    #[error("{len} bytes at offset {offset} of an allocation of {allocation} bytes")]
    GpuRange {
        /// Start, in bytes from the allocation's start.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The allocation's length in bytes.
        allocation: u64,
    },
    /// A name has more bytes than there may be.
    #[error("name of {len} bytes, at most {max} may be")]
    NameTooLong {
        /// The name's length in bytes.
        len: usize,
        /// The longest name in bytes.
        max: usize,
    },
    /// A name is no UTF-8.
    #[error("a name is no UTF-8")]
    NameUtf8,
    /// Two tensors of a set have one name.
    #[error("tensors {first} and {second} of a set have the same name")]
    SameName {
        /// The first of them, counted from 0.
        first: usize,
        /// The other one.
        second: usize,
    },
    /// The set has more tensors than there may be, or another number than was asked for.
    #[error("{count} tensors where {expected} may be")]
    Count {
        /// Tensors that there are.
        count: usize,
        /// Tensors that there may be.
        expected: usize,
    },
    /// A description ends too early, or goes on behind its last tensor.
    #[error("description of {len} bytes, tensor {index} ends at {needed}")]
    Description {
        /// The description's length in bytes.
        len: usize,
        /// Which tensor, counted from 0.
        index: usize,
        /// Where it ends, in bytes.
        needed: usize,
    },
    /// A field of a description has a value that it cannot have.
    #[error("{field} is {value:#x}")]
    Field {
        /// The field's name in `docs/wire.md`.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl From<DlpackFault> for TensorFault {
    fn from(fault: DlpackFault) -> Self {
        Self::Dlpack(fault)
    }
}
