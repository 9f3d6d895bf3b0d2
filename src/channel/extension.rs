//! What a receiving half keeps of what its peer sends.

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

/// Room for one thing, whose kind the transport does not know: mappings of a GPU's memory, which are
/// opened once and used by many messages. It lives as long as the receiving half, or a loan that uses it,
/// and holds the peer's loans that it needs for that.
#[derive(Default)]
pub struct ExtensionSlot {
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl ExtensionSlot {
    /// What lies there, made by whoever asks first. `None`: it is of another kind.
    pub fn get<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.kept.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl fmt::Debug for ExtensionSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtensionSlot").field("is_used", &self.kept.get().is_some()).finish()
    }
}
