//! Turns of operations on one name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type Names = BTreeMap<String, Arc<AsyncMutex<()>>>;

/// Lets one operation of each name run at a time, in the order of arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<Names>>);

/// The turn of an operation. It ends on drop.
pub(crate) struct Turn {
    turns: Turns,
    name: String,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of a name.
    pub(crate) async fn take(&self, name: &str) -> Turn {
        let turn = self.names().entry(name.to_owned()).or_default().clone();
        let held = Some(turn.lock_owned().await);
        Turn { turns: self.clone(), name: name.to_owned(), held }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut names = self.turns.names();
        // The map has one reference, this turn another, and each operation that waits a further one.
        if names.get(&self.name).is_some_and(|turn| Arc::strong_count(turn) == 2) {
            names.remove(&self.name);
        }
        drop(self.held.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_has_one_turn_at_a_time_and_leaves_nothing() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let other = turns.take("b").await;
        let waits = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take("a").await }
        });
        while Arc::strong_count(&turns.names()["a"]) < 3 {
            assert!(!waits.is_finished());
            tokio::task::yield_now().await;
        }
        drop((first, other));
        drop(waits.await.unwrap());
        assert!(turns.names().is_empty());
    }
}
