//! Objects that wait until nothing uses them.

use std::time::Duration;

/// The first and the longest sleep between two checks of running work.
pub(super) const PAUSE: (Duration, Duration) =
    (Duration::from_micros(100), Duration::from_millis(20));

/// The name of a stream: the work of each ends in order. `None`: no stream uses the object.
pub(super) type Lane = Option<(u32, usize)>;

/// An object that is to be dropped when nothing uses it.
pub(super) trait Parked: Send {
    /// Returns whether nothing uses it any more, so that it can be dropped.
    fn is_over(&self) -> bool;

    /// Returns whether its drop may wait for work on a GPU.
    fn drop_waits(&self) -> bool {
        false
    }
}
