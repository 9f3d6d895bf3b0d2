//! One value that a receiver keeps between messages and whose type the transport does not know.

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

/// One value that a receiver keeps between messages: for example the mappings of a peer's GPU memory, which are
/// opened once and serve many messages.
///
/// 1. The slot is filled at most once, and its type stays what it was then.
/// 2. It lives as long as the receiver, and as long as any tensor that uses it.
/// 3. It may hold loans of the peer's, which go back when it is dropped.
#[derive(Default)]
pub struct ExtensionSlot {
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl ExtensionSlot {
    /// Returns the value in the slot, and makes it on the first call. `None`: the value has another type.
    pub fn get<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.kept.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl fmt::Debug for ExtensionSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtensionSlot").field("is_used", &self.kept.get().is_some()).finish()
    }
}
