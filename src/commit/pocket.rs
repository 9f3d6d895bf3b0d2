//! What whoever leads does itself as soon as it has left the loop: one short job, handed over without a lock, since a
//! callback of the loop and its leader are one thread.

use std::cell::RefCell;
use std::sync::Arc;

use crate::reactor;

/// A job of a thread of the crew.
pub(super) trait Errand: Send + Sync {
    /// Whether it may take longer than waking a thread does.
    fn is_long(&self) -> bool;

    fn run(self: Arc<Self>, ticket: u64);
}

/// An errand, and the ticket it answers.
pub(super) type Carried = (Arc<dyn Errand>, u64);

thread_local! {
    static POCKET: RefCell<Option<Carried>> = const { RefCell::new(None) };
}

/// Puts it there, if nothing is.
#[inline]
pub(super) fn put(carried: Carried) -> Result<(), Carried> {
    POCKET.with_borrow_mut(|pocket| {
        if pocket.is_some() {
            return Err(carried);
        }
        *pocket = Some(carried);
        reactor::leave();
        Ok(())
    })
}

#[inline]
pub(super) fn take() -> Option<Carried> {
    POCKET.take()
}
