//! The reasons why an operation on a tensor fails.

/// The reasons why a tensor is impossible, or cannot be used as the caller asks.
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
    #[error("unknown data type name: the names are those of KServe v2, such as FP32")]
    DataTypeName,
    /// A shape has too many dimensions.
    #[error("shape of {rank} dimensions, at most {max} fit")]
    Rank {
        /// Dimensions of the shape.
        rank: usize,
        /// The limit.
        max: usize,
    },
    /// A dimension is negative.
    #[error("dimension {at} is {value}")]
    Dimension {
        /// The dimension, counted from 0.
        at: usize,
        /// Its value.
        value: i64,
    },
    /// Shape and data type need more bytes than the address space has.
    #[error("shape and data type need more than 2^63 bytes")]
    Overflow,
    /// The bytes are more or fewer than shape and data type need.
    #[error("{len} bytes, shape and data type need {expected}")]
    Len {
        /// Bytes that the caller or the peer gave.
        len: u64,
        /// Bytes that shape and data type need.
        expected: u64,
    },
    /// The tensor has another data type.
    #[error("data type is {is}, not {wanted}")]
    DataType {
        /// The tensor's data type.
        is: &'static str,
        /// The data type that the caller asked for.
        wanted: &'static str,
    },
    /// Elements of the data type have any length, so the shape alone does not give the bytes.
    #[error("elements of BYTES have no fixed length: give the length (Allocation::encoded)")]
    BytesLen,
    /// A byte of a BOOL tensor is neither 0 nor 1.
    #[error("element {index} is {value}, in BOOL it is 0 or 1")]
    Bool {
        /// The element, counted from 0.
        index: u64,
        /// The byte.
        value: u8,
    },
    /// The bytes end within the length of a BYTES element.
    #[error("length of element {index} at byte {at} of BYTES: {left} bytes are left, 4 are needed")]
    ElementLength {
        /// The element, counted from 0.
        index: u64,
        /// The offset of its length, in bytes from the tensor's start.
        at: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// The bytes end within a BYTES element.
    #[error("element {index} at byte {at} of BYTES has {len} bytes, {left} are left")]
    Element {
        /// The element, counted from 0.
        index: u64,
        /// The offset of its bytes, in bytes from the tensor's start.
        at: u64,
        /// Its length in bytes.
        len: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// The bytes hold fewer BYTES elements than the shape says.
    #[error("{count} elements of BYTES, the shape says {expected}")]
    ElementCount {
        /// Elements in the bytes.
        count: u64,
        /// Elements of the shape.
        expected: u64,
    },
    /// Bytes follow the last BYTES element of the shape.
    #[error("{count} elements of BYTES end at byte {at}, {left} bytes are left")]
    Trailing {
        /// Elements of the shape.
        count: u64,
        /// Their end, in bytes from the tensor's start.
        at: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// A BYTES element is too long for its length field.
    #[error("element {index} of BYTES has {len} bytes, at most 4294967295 fit")]
    ElementTooLong {
        /// The element, counted from 0.
        index: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The bytes do not start at a multiple of the alignment.
    #[error("the bytes do not start at a multiple of {alignment}: copy them")]
    Alignment {
        /// The alignment in bytes.
        alignment: usize,
    },
    /// The sender can change the bytes, so no slice is safe.
    #[error("the sender can change the bytes: copy them, or trust the peer (Connection::trust)")]
    Unstable,
    /// A required pointer of a DLPack tensor is null.
    #[error("tensor of another library (DLPack): {field} is null")]
    DlpackNull {
        /// The pointer's name in `dlpack.h`.
        field: &'static str,
    },
    /// A DLPack tensor has the layout of another major version.
    #[error("tensor of another library (DLPack): version {major}.{minor}, only 1.x is supported")]
    DlpackVersion {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The bytes of a DLPack tensor are in memory that the processor does not read.
    #[error(
        "tensor of another library (DLPack): device type {device_type} is no memory of the host: copy the tensor there \
         first (`tensor.cpu()` in PyTorch, `array.get()` in CuPy), or send that of a GPU from there (cuda::Device::adopt_dlpack)"
    )]
    DlpackDevice {
        /// The number in `DLDeviceType`.
        device_type: i32,
    },
    /// The bytes of a DLPack tensor are not in memory of a GPU.
    #[error(
        "tensor of another library (DLPack): device type {device_type} is no memory of a CUDA GPU (kDLCUDA, 2)"
    )]
    DlpackNotOnGpu {
        /// The number in `DLDeviceType`.
        device_type: i32,
    },
    /// The bytes of a DLPack tensor are in memory of another GPU than the caller named.
    #[error(
        "tensor of another library (DLPack): it lies on GPU {device_id}, not on GPU {ordinal}: adopt it there"
    )]
    DlpackOtherGpu {
        /// The GPU's number, as the tensor says.
        device_id: i32,
        /// The number of the GPU that the caller named.
        ordinal: u32,
    },
    /// The number of dimensions of a DLPack tensor is negative.
    #[error("tensor of another library (DLPack): {ndim} dimensions")]
    DlpackRank {
        /// The number.
        ndim: i32,
    },
    /// No [`DType`](crate::DType) stands for the elements of a DLPack tensor.
    #[error(
        "tensor of another library (DLPack): elements of type code {code}, {bits} bits, {lanes} lanes have no data type"
    )]
    DlpackType {
        /// The number in `DLDataTypeCode`.
        code: u8,
        /// Bits of a lane.
        bits: u8,
        /// Lanes of an element.
        lanes: u16,
    },
    /// The elements of a DLPack tensor are not contiguous in row-major order.
    #[error(
        "tensor of another library (DLPack): stride of dimension {at} is {stride}, row-major order needs {expected}: copy it first"
    )]
    DlpackStride {
        /// The dimension, counted from 0.
        at: usize,
        /// Its stride in elements.
        stride: i64,
        /// The stride in row-major order, in elements.
        expected: i64,
    },
    /// The bytes of a DLPack tensor would start or end outside of the address space.
    #[error(
        "tensor of another library (DLPack): {len} bytes at offset {offset} lie outside of the address space"
    )]
    DlpackOffset {
        /// `byte_offset`.
        offset: u64,
        /// The tensor's length in bytes.
        len: u64,
    },
    /// The bytes lie in a region that the caller has not looked up.
    #[error("the tensor lies in a region: resolve it first (Tensor::resolve)")]
    Unresolved,
    /// The bytes lie in memory of a GPU, which the processor cannot read.
    #[error("the tensor lies on a GPU: open it there (cuda::Device), or copy it to the host")]
    OnGpu,
    /// The bytes lie in memory of a peer's GPU. The peer has lent them to this process alone.
    #[error("the tensor is on loan from a peer's GPU and cannot be sent on: copy it first")]
    GpuLoan,
    /// A range ends past the end of its allocation on a GPU.
    #[error("{len} bytes at offset {offset} of an allocation of {allocation} bytes")]
    GpuRange {
        /// Start, in bytes from the allocation's start.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The allocation's length in bytes.
        allocation: u64,
    },
    /// A name is too long.
    #[error("name of {len} bytes, at most {max} fit")]
    NameTooLong {
        /// The name's length in bytes.
        len: usize,
        /// The longest name in bytes.
        max: usize,
    },
    /// A name is not UTF-8.
    #[error("a name is not UTF-8")]
    NameUtf8,
    /// Two tensors of a set have one name.
    #[error("tensors {first} and {second} of the set have the same name")]
    SameName {
        /// The first of the two, counted from 0.
        first: usize,
        /// The second of the two, counted from 0.
        second: usize,
    },
    /// The set has too many tensors, or another number than the caller asked for.
    #[error("{count} tensors, at most {expected} may be")]
    Count {
        /// Tensors of the set.
        count: usize,
        /// The limit, or the number that the caller asked for.
        expected: usize,
    },
    /// The tensors of a message on GPUs are ordered by too many different words.
    #[error(
        "tensors of {count} different words (cuda::Order::Words), at most {max} fit into a message: make them parts of one tensor \
         (cuda::Device::part), send several messages, or use cuda::Order::Synchronized"
    )]
    Words {
        /// Different words of the tensors, up to the first one too many.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// A description ends too early or goes on past its last tensor.
    #[error("description of {len} bytes, tensor {index} ends at {needed}")]
    Description {
        /// The description's length in bytes.
        len: usize,
        /// The tensor, counted from 0.
        index: usize,
        /// The tensor's end in bytes.
        needed: usize,
    },
    /// A field of a description has an impossible value.
    #[error("{field} is {value:#x}")]
    Field {
        /// The field's name in `docs/wire.md`.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}
