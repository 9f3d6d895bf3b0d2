//! What systems with slots of one type need: a type for each size.

/// A message of `BYTES` bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Slot<const BYTES: usize>(pub [u8; BYTES]);

impl<const BYTES: usize> Slot<BYTES> {
    pub const ZERO: Self = Self([0; BYTES]);

    pub fn boxed() -> Box<Self> {
        Box::new(Self::ZERO)
    }
}

/// How many slots a ring of this system has: 1 MiB of them, 1024 at most, 4 at least.
pub fn slots(bytes: usize) -> usize {
    ((1 << 20) / bytes).clamp(4, 1024).next_power_of_two()
}

/// Calls `$function::<BYTES>(..)` for the size that is asked for.
macro_rules! by_size {
    ($bytes:expr, [$($size:literal),*], $function:ident $arguments:tt) => {
        match $bytes {
            $($size => $function::<$size> $arguments,)*
            other => Err(format!("no slots of {other} bytes").into()),
        }
    };
}
pub(super) use by_size;
