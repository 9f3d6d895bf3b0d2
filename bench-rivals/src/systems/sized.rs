//! What systems with slots of one type need: a type for each size.

use crate::work::{CHOSEN, Work};

/// A message of `BYTES` bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Slot<const BYTES: usize>(pub [u8; BYTES]);

/// How many slots a ring has. In streams and with many senders they fill the queue's bytes, 4 slots at least. Elsewhere
/// there is one message at a time: 1 MiB of slots, 4 at least and 1,024 at most, as more would only use more of the caches.
pub fn slots(work: Work, bytes: usize) -> usize {
    let slots = match work {
        Work::Stream(queue) => queue.bytes() / bytes,
        Work::FanIn => CHOSEN / bytes,
        _ => ((1 << 20) / bytes).min(1024),
    };
    slots.max(4).next_power_of_two()
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
