//! Shared by `producer`, `consumer` and `weights`: the names of their tensors, a checksum, options, and files.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use lexopt::prelude::{Long, ValueExt};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use slipring::{DType, Shape};

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// The time between two reports of either side.
pub const SECOND: Duration = Duration::from_secs(1);

/// The name of the tensor that goes with each other one. It is `UINT64 [3]`: number, stamp, checksum.
pub const HEAD: &str = "slipring.head";
/// The index of the number, which counts a producer's tensors from 0.
pub const NUMBER: usize = 0;
/// The index of the stamp, which is [`now`] before the send. Both sides run on one machine and share its clock.
pub const STAMP: usize = 1;
/// The index of the [`checksum`] of the bytes, which the producer takes of its source.
pub const CHECKSUM: usize = 2;

/// FNV-1a over words of 8 bytes, in eight lanes: about 20 GB/s. It detects every change of a single word. It finds
/// accidents, and an attacker can forge it.
pub struct Checksum {
    lanes: [u64; 8],
    tail: u64,
}

impl Checksum {
    pub fn new() -> Self {
        Self { lanes: core::array::from_fn(|lane| 0xcbf2_9ce4_8422_2325 + lane as u64), tail: 0 }
    }

    fn step(sum: u64, word: u64) -> u64 {
        (sum ^ word).wrapping_mul(0x100_0000_01b3)
    }

    /// Adds 64 bytes, as words in native order.
    #[inline]
    pub fn line(&mut self, line: [u64; 8]) {
        for (lane, word) in self.lanes.iter_mut().zip(line) {
            *lane = Self::step(*lane, word);
        }
    }

    /// Adds the remaining bytes, fewer than 64, and returns the sum.
    pub fn finish(mut self, rest: &[u8]) -> u64 {
        for byte in rest {
            self.tail = Self::step(self.tail, u64::from(*byte));
        }
        self.lanes
            .iter()
            .fold(Self::step(self.tail, rest.len() as u64), |sum, lane| Self::step(sum, *lane))
    }
}

/// Returns the checksum of private bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    let (lines, rest) = bytes.as_chunks::<64>();
    let mut sum = Checksum::new();
    for line in lines {
        let (words, _) = line.as_chunks::<8>();
        sum.line(core::array::from_fn(|at| u64::from_ne_bytes(words[at])));
    }
    sum.finish(rest)
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A tensor of a file: name, data type, shape, bytes.
pub type Stored<'a> = (String, DType, Shape, &'a [u8]);

/// Returns the tensors of a file in the file's order. A tensor of a data type that slipring does not have (`F8_E4M3`, ...)
/// goes as bytes.
pub fn tensors<'a>(file: &'a SafeTensors<'a>) -> Outcome<Vec<Stored<'a>>> {
    let stored = |(name, view): (&str, TensorView<'a>)| {
        let bytes = view.data();
        Ok(match dtype(view.dtype()) {
            Some(dtype) => (name.to_owned(), dtype, Shape::new(view.shape())?, bytes),
            None => (name.to_owned(), DType::Uint8, Shape::from([bytes.len()]), bytes),
        })
    };
    let mut tensors = file.iter().map(stored).collect::<Outcome<Vec<_>>>()?;
    // The crate iterates in an order that differs each time.
    tensors.sort_by(|(name, .., bytes), (other, .., others)| {
        (bytes.as_ptr(), name).cmp(&(others.as_ptr(), other))
    });
    Ok(tensors)
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::Uint8,
        Dtype::U16 => DType::Uint16,
        Dtype::U32 => DType::Uint32,
        Dtype::U64 => DType::Uint64,
        Dtype::I8 => DType::Int8,
        Dtype::I16 => DType::Int16,
        Dtype::I32 => DType::Int32,
        Dtype::I64 => DType::Int64,
        Dtype::F16 => DType::Fp16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F8_E4M3 => DType::Fp8E4m3fn,
        Dtype::F8_E5M2 => DType::Fp8E5m2,
        Dtype::F32 => DType::Fp32,
        Dtype::F64 => DType::Fp64,
        _ => return None,
    })
}

/// Returns the bytes of a file.
pub fn read(path: &Path) -> Outcome<Vec<u8>> {
    let explain = |error| format!("{}: {error}", path.display());
    if !std::fs::metadata(path).map_err(explain)?.is_file() {
        return Err(format!("{}: not a regular file", path.display()).into());
    }
    Ok(std::fs::read(path).map_err(explain)?)
}

/// The command line.
pub struct Options<const N: usize> {
    pub name: String,
    pub file: Option<std::path::PathBuf>,
    pub numbers: [u64; N],
}

/// Parses `--name`, `--file`, and the options in `known`, which take numbers.
pub fn options<const N: usize>(mut known: [(&str, u64); N]) -> Result<Options<N>, lexopt::Error> {
    let (mut name, mut file) = ("camera".to_owned(), None);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        let place = known.iter_mut().find(|(option, _)| argument == Long(option));
        match (argument, place) {
            (_, Some((_, number))) => *number = arguments.value()?.parse()?,
            (Long("name"), _) => name = arguments.value()?.string()?,
            (Long("file"), _) => file = Some(arguments.value()?.into()),
            (other, _) => return Err(other.unexpected()),
        }
    }
    Ok(Options { name, file, numbers: known.map(|(_, number)| number) })
}
