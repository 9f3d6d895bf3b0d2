//! Unit tests of `error::kind`.

use super::*;
use crate::error::GpuUuid;

#[test]
fn an_error_crosses_threads_and_is_small() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<Error>();
    assert_eq!(size_of::<Error>(), size_of::<usize>());
}

/// Numbers that a text must show: four digits, which nothing else in a text resembles.
const N: [u64; 4] = [7001, 7002, 7003, 7004];

fn error_kinds() -> Vec<ErrorKind> {
    let [a, b, c, d] = N;
    let (x, y, z, w) = (a as usize, b as usize, c as usize, d as usize);
    vec![
        ErrorKind::AddressEmpty,
        ErrorKind::AddressTooLong { len: y, max: x },
        ErrorKind::AddressNul { at: x },
        ErrorKind::AddressEscape { at: x },
        ErrorKind::NotSeqpacket,
        ErrorKind::AddressInUse { address: "@camera".into() },
        ErrorKind::NobodyListens { address: "@camera".into() },
        ErrorKind::InvalidOption { name: "ring_capacity", value: a, must: "a power of two" },
        ErrorKind::PeerNotAdmitted { uid: a as u32 },
        ErrorKind::UnmappedUser,
        ErrorKind::NotAdmittedByPeer,
        ErrorKind::RefusedByPeer { code: a as u32 },
        ErrorKind::WrongService { publishes: true },
        ErrorKind::PolicyRefused,
        ErrorKind::Evicted { cause: Eviction::Stalled },
        ErrorKind::HoldLimit { limit: a as u32 },
        ErrorKind::HoldBytes { needed: a, held: b, limit: c },
        ErrorKind::NoCommonVersion { ours: (a as u16, b as u16), theirs: (c as u16, d as u16) },
        ErrorKind::Fault(Fault::Magic),
        ErrorKind::TimedOut { after: Duration::from_millis(a) },
        ErrorKind::PeerClosed,
        ErrorKind::PeerDied,
        ErrorKind::MessageTooLarge { len: b, max: a },
        ErrorKind::BatchTooLarge { needed: b, capacity: a },
        ErrorKind::PoolExhausted { needed: a, used: b, quota: c },
        ErrorKind::LoanRevoked,
        ErrorKind::OtherKind { next: "has tensors", method: "`recv_tensor`" },
        ErrorKind::BacklogFull { messages: x, needed: y, used: z, limit: w },
        ErrorKind::CallsInFlight { calls: x, limit: y },
        ErrorKind::WritesFull { bytes: y, limit: x },
        ErrorKind::LinkClosed,
        ErrorKind::CallbackPanicked,
        ErrorKind::TokensSpent,
        ErrorKind::NumbersSpent,
        ErrorKind::ReactorStopped,
        ErrorKind::UnknownRequest { id: a },
        ErrorKind::Metadata(MetadataFault::Padding),
        ErrorKind::Tensor(TensorFault::Overflow),
        ErrorKind::Region(RegionFault::Empty),
        ErrorKind::Commit(CommitFault::EmptyBuffer),
        ErrorKind::Cuda(CudaFault::NoDevice),
        ErrorKind::OutOfMemory { bytes: a },
        ErrorKind::AccountFull {
            resource: "mappings",
            account: "link",
            used: a,
            needed: b,
            limit: c,
        },
        ErrorKind::FileSizeLimit { bytes: a, limit: b },
        ErrorKind::DescriptorLimit { limit: a },
        ErrorKind::Forked,
        ErrorKind::Os { call: "accept4" },
        ErrorKind::BufferTooShort { len: y, room: x },
    ]
}

fn faults() -> Vec<Fault> {
    let [a, b, c, _] = N;
    let (x, y) = (a as usize, b as usize);
    vec![
        Fault::PacketLength { len: x, expected: y },
        Fault::Magic,
        Fault::Overrun { message: a },
        Fault::Field { field: "hello.flags", value: a },
        Fault::Architecture { ours: a as u32, theirs: b as u32 },
        Fault::NoCredentials,
        Fault::DescriptorCount { count: x, expected: y },
        Fault::Truncated,
        Fault::NotMemfd,
        Fault::Seals { seals: a as u32, required: b as u32 },
        Fault::MemorySize { size: a, expected: b },
        Fault::Sparse { allocated: a, size: b },
        Fault::Excess { allocated: b, most: a },
        Fault::AccessMode,
        Fault::RecordHeader { header: a },
        Fault::RecordMissing,
        Fault::RecordLength { len: a, capacity: b },
        Fault::RecordsAfterEnd { len: a, capacity: b },
        Fault::PacketsAfterEnd { records: a, packets: b },
        Fault::Position { position: a, tail: b, head: c },
        Fault::Parking { value: a },
        Fault::UnexpectedTokens { count: a as u32 },
        Fault::UnknownSegment { segment: a as u32 },
        Fault::HeldDescriptors { count: y, limit: x },
        Fault::UnknownDescriptors { first: a, count: y },
        Fault::UnknownAllocation { number: a },
        Fault::PeerAllocations { count: y, limit: x },
        Fault::SegmentRange { offset: a, len: b, capacity: c },
        Fault::LoanSlot { slot: b, slots: a },
        Fault::MessageLength { len: b, max: a },
        Fault::PeerPool { bytes: b, segments: c as usize, limit: a },
        Fault::Metadata(MetadataFault::Padding),
        Fault::Tensor(TensorFault::Overflow),
        Fault::UnknownRequest { id: a },
    ]
}

fn metadata_faults() -> Vec<MetadataFault> {
    let [a, b, ..] = N;
    let (x, y) = (a as usize, b as usize);
    vec![
        MetadataFault::Name { len: y, max: x },
        MetadataFault::SameName { first: x, second: y },
        MetadataFault::Text { len: y, max: x },
        MetadataFault::Len { len: y, max: x },
        MetadataFault::Time,
        MetadataFault::Type { index: x, code: 7 },
        MetadataFault::Bool { index: x, value: b },
        MetadataFault::Utf8 { index: x },
        MetadataFault::Cut { index: x },
        MetadataFault::Padding,
    ]
}

fn tensor_faults() -> Vec<TensorFault> {
    let [a, b, c, d] = N;
    let (x, y) = (a as usize, b as usize);
    vec![
        TensorFault::DataTypeCode { code: 15 },
        TensorFault::DataTypeName,
        TensorFault::Rank { rank: y, max: x },
        TensorFault::Dimension { at: 1, value: -1 },
        TensorFault::Overflow,
        TensorFault::Len { len: a, expected: b },
        TensorFault::DataType { is: "FP16", wanted: "FP32" },
        TensorFault::BytesLen,
        TensorFault::Bool { index: a, value: 7 },
        TensorFault::ElementLength { index: a, at: b, left: 3 },
        TensorFault::Element { index: a, at: b, len: d, left: c },
        TensorFault::ElementCount { count: a, expected: b },
        TensorFault::Trailing { count: a, at: b, left: c },
        TensorFault::ElementTooLong { index: a, len: 1 << 32 },
        TensorFault::Alignment { alignment: x },
        TensorFault::Unstable,
        TensorFault::DlpackNull { field: "data" },
        TensorFault::DlpackVersion { major: a as u32, minor: b as u32 },
        TensorFault::DlpackDevice { device_type: a as i32 },
        TensorFault::DlpackNotOnGpu { device_type: a as i32 },
        TensorFault::DlpackOtherGpu { device_id: a as i32, ordinal: b as u32 },
        TensorFault::DlpackRank { ndim: -1 },
        TensorFault::DlpackType { code: 1, bits: 16, lanes: a as u16 },
        TensorFault::DlpackStride { at: 1, stride: a as i64, expected: b as i64 },
        TensorFault::DlpackOffset { offset: a, len: b },
        TensorFault::Unresolved,
        TensorFault::OnGpu,
        TensorFault::GpuLoan,
        TensorFault::GpuRange { offset: a, len: b, allocation: c },
        TensorFault::NameTooLong { len: y, max: x },
        TensorFault::NameUtf8,
        TensorFault::SameName { first: x, second: y },
        TensorFault::Count { count: y, expected: x },
        TensorFault::Words { count: y, max: x },
        TensorFault::Description { len: x, index: 3, needed: y },
        TensorFault::Field { field: "tensor.flags", value: a },
    ]
}

fn region_faults() -> Vec<RegionFault> {
    let [a, b, c, _] = N;
    let (x, y, name) = (a as usize, b as usize, || "input".to_owned());
    vec![
        RegionFault::NameEmpty,
        RegionFault::NameTooLong { len: y, max: x },
        RegionFault::Exists { name: name() },
        RegionFault::Unknown { name: name() },
        RegionFault::OtherKind { name: name(), is: "memfd", wanted: "dmabuf" },
        RegionFault::TooManyRegions { count: x, limit: y },
        RegionFault::TooManyBytes { used: a, needed: b, limit: c },
        RegionFault::KeyNamesNothing { key: "..".into() },
        RegionFault::KeyTooLong { len: y, max: x },
        RegionFault::KeyCharacter { character: '/', at: x },
        RegionFault::Open { key: name() },
        RegionFault::Create { key: name() },
        RegionFault::NotThat { expected: "a dmabuf" },
        RegionFault::AccessMode { flags: 0o1 },
        RegionFault::Empty,
        RegionFault::Overflow { offset: a, len: b },
        RegionFault::Offset { offset: b, size: a },
        RegionFault::Range { offset: a, len: b, size: c },
        RegionFault::Truncated { there: a, len: b },
        RegionFault::TruncatedInPlace { len: a },
        RegionFault::ReadOnly,
        RegionFault::OutOfReach { kind: "CUDA" },
        RegionFault::Unguarded,
        RegionFault::Unsealed,
        RegionFault::GuardFull { limit: x },
    ]
}

fn cuda_faults() -> Vec<CudaFault> {
    let [a, b, c, _] = N;
    let uuid = GpuUuid([1; 16]);
    vec![
        CudaFault::NoLibrary,
        CudaFault::MissingSymbol { symbol: "cuMemAlloc" },
        CudaFault::DriverTooOld { version: 11, needed: 12 },
        CudaFault::NoDevice,
        CudaFault::Ordinal { ordinal: b as u32, count: a as u32 },
        CudaFault::NoIpc { ordinal: a as u32 },
        CudaFault::Driver { call: "cuInit", code: a as u32, name: "CUDA_ERROR".into() },
        CudaFault::OtherDevice { is: uuid, asked: uuid },
        CudaFault::OneDevice { is: uuid, asked: uuid },
        CudaFault::NoPeerAccess { is: uuid, asked: uuid },
        CudaFault::HiddenDevice { is: uuid },
        CudaFault::OtherNamespace { namespace: "ipc" },
        CudaFault::NoDescriptors { ordinal: a as u32 },
        CudaFault::NotExportable { why: "it has no bytes" },
        CudaFault::NoWords { ordinal: a as u32 },
        CudaFault::NotAllocation,
        CudaFault::WrongDevice { said: uuid },
        CudaFault::ShortAllocation { claimed: a },
        CudaFault::Announced { limit: a as usize },
        CudaFault::OtherStream,
        CudaFault::StreamNumber { number: a as i64 },
        CudaFault::Capturing,
        CudaFault::NotPinnable { why: "it lies in no segment of a pool" },
        CudaFault::PinLimit { used: a, needed: b, limit: c },
        CudaFault::TwoStreams,
        CudaFault::Closing,
        CudaFault::OnHost,
        CudaFault::Allocation { len: a, claimed: b },
        CudaFault::Exhausted { needed: a, used: b, quota: c },
    ]
}

/// The text starts in lower case, ends without a full stop, and shows every number of the value.
fn check_text(value: &(impl fmt::Debug + fmt::Display)) {
    let (text, value) = (value.to_string(), format!("{value:?}"));
    let first = text.chars().next().unwrap();
    let is_constant = text.split(' ').next().is_some_and(|word| word.contains('_'));
    assert!(!first.is_uppercase() || is_constant, "{text:?} starts in upper case");
    assert!(!text.ends_with('.') && !text.contains(". "), "{text:?} is more than a clause");
    for number in N {
        let shown = [format!("{number}"), format!("{number:x}"), format!("{number:o}")];
        let has = shown.iter().any(|shown| text.contains(shown));
        assert!(has || !value.contains(&shown[0]), "{text:?} hides {number} of {value}");
    }
}

/// The samples hold every variant: as many as the enum's source has texts.
fn check_all<T: fmt::Debug + fmt::Display>(name: &str, source: &str, samples: &[T]) {
    let (_, body) = source.split_once(&format!("pub enum {name} {{")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let kinds: std::collections::HashSet<_> = samples.iter().map(std::mem::discriminant).collect();
    assert_eq!(kinds.len(), body.matches("#[error(").count(), "samples of {name}");
    samples.iter().for_each(check_text);
}

#[test]
fn every_text_keeps_the_rules() {
    check_all("ErrorKind", include_str!("../kind.rs"), &error_kinds());
    check_all("Fault", include_str!("../fault.rs"), &faults());
    check_all("MetadataFault", include_str!("../metadata.rs"), &metadata_faults());
    check_all("TensorFault", include_str!("../tensor.rs"), &tensor_faults());
    check_all("RegionFault", include_str!("../region.rs"), &region_faults());
    check_all("CudaFault", include_str!("../cuda.rs"), &cuda_faults());
}

#[test]
fn a_limit_that_an_option_raises_names_the_option() {
    let (x, y) = (1, 2);
    let texts = [
        ErrorKind::PoolExhausted { needed: 1, used: 2, quota: 3 }.to_string(),
        ErrorKind::BacklogFull { messages: 1, needed: 2, used: 3, limit: 4 }.to_string(),
        ErrorKind::WritesFull { bytes: y, limit: x }.to_string(),
        ErrorKind::MessageTooLarge { len: 2, max: 1 }.to_string(),
        ErrorKind::BatchTooLarge { needed: 2, capacity: 1 }.to_string(),
        Fault::PeerPool { bytes: 2, segments: 1, limit: 1 }.to_string(),
        RegionFault::TooManyRegions { count: x, limit: x }.to_string(),
        RegionFault::TooManyBytes { used: 1, needed: 2, limit: 1 }.to_string(),
        CudaFault::Exhausted { needed: 1, used: 2, quota: 2 }.to_string(),
        CudaFault::Announced { limit: x }.to_string(),
    ];
    for (name, text) in [
        "Options::pool_quota",
        "Options::backlog_limit",
        "Options::write_limit",
        "Options::max_message",
        "Options::ring_capacity",
        "Options::peer_pool_limit",
        "Registry::with_limits",
        "Registry::with_limits",
        "PoolOptions::quota",
        "PoolOptions::chunk",
    ]
    .into_iter()
    .zip(texts)
    {
        assert!(text.contains(name), "{text:?} does not name {name}");
    }
}

#[test]
fn a_text_never_repeats_its_source() {
    for kind in error_kinds() {
        let error = Error::with_source(kind, io::Error::other("the reason below"));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(!error.to_string().contains(&source), "{error}");
        assert_eq!(format!("{error:#}"), format!("{error}: {source}"));
    }
}

#[test]
fn a_text_gives_the_fact_and_both_numbers() {
    let error = Error::from(ErrorKind::MessageTooLarge { len: 4096, max: 1024 });
    let text = "message of 4096 bytes, the link takes 1024 (Options::max_message of both sides)";
    assert_eq!(error.to_string(), text);
    let error = Error::from(Fault::SegmentRange { offset: 0, len: 4096, capacity: 1024 });
    assert_eq!(
        error.to_string(),
        "the peer broke the protocol: descriptor claims 4096 bytes at 0, the segment holds 1024"
    );
    let error = Error::from(RegionFault::Range { offset: 64, len: 4096, size: 1024 });
    assert_eq!(error.to_string(), "4096 bytes at 64 go past the end at 1024");
}

#[test]
fn a_descriptor_limit_is_named() {
    let error = Error::os("accept4", io::Error::from_raw_os_error(libc::EMFILE));
    assert!(matches!(error.kind(), ErrorKind::DescriptorLimit { limit } if *limit > 0));
    assert!(std::error::Error::source(&error).is_some());
}
