//! An endless stream of things between two ends. The kind, length and bytes of each thing follow from a seed and its
//! number, so the receiver knows all of them beforehand.

use std::sync::LazyLock;

use slipring::{Context, Error, Tensor};

use super::soon;

/// The longest thing.
const LONGEST: usize = 64 << 10;

/// Bytes that all things are cut from.
static CLOTH: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = (0..(2 * LONGEST as u64 + 64) / 8).flat_map(|at| mix(at).to_le_bytes());
    words.collect()
});

/// The generator `splitmix64`: every number has its own, which looks random.
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Random numbers.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// Below `sides`.
    pub fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0) % sides
    }
}

/// The form in which a thing travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Message,
    Tensor,
    /// A tensor in memory that nobody can write any more.
    Frozen,
}

/// One end's things, one after the other.
#[derive(Debug, Clone)]
pub struct Stream {
    seed: u64,
    next: u64,
}

impl Stream {
    pub fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    fn dice(&self, number: u64) -> u64 {
        mix(self.seed ^ mix(number))
    }

    /// The number of the thing that is next.
    pub fn number(&self) -> u64 {
        self.next
    }

    pub fn kind(&self) -> Kind {
        match self.dice(self.next) % 64 {
            0 => Kind::Frozen,
            1..8 => Kind::Tensor,
            _ => Kind::Message,
        }
    }

    /// The bytes of the thing with this number.
    pub fn bytes(&self, number: u64) -> Vec<u8> {
        let dice = self.dice(number) >> 8;
        let longest = match dice % 16 {
            0..8 => 57,
            8..12 => 600,
            12..15 => 8 << 10,
            _ => LONGEST,
        };
        let (start, len) = ((dice >> 8) as usize % LONGEST, 1 + (dice >> 32) as usize % longest);
        let mut bytes = CLOTH[start..start + len].to_vec();
        bytes.iter_mut().zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
        bytes
    }

    /// The next one's bytes.
    pub fn cut(&mut self) -> Vec<u8> {
        self.next += 1;
        self.bytes(self.next - 1)
    }

    /// As [`cut`](Self::cut), in memory of `context`'s pool.
    ///
    /// # Errors
    ///
    /// As [`Allocation::typed`](slipring::tensor::Allocation::typed) after a long time.
    pub fn cut_tensor(&mut self, context: &Context) -> Result<Tensor, Error> {
        let frozen = self.kind() == Kind::Frozen;
        let bytes = self.cut();
        let memory = context.allocation().until(soon());
        let memory = if frozen { memory.frozen() } else { memory };
        let mut tensor = memory.typed::<u8>([bytes.len()])?;
        tensor.copy_from_slice(&bytes);
        tensor.share()
    }
}
