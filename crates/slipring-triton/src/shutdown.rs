//! The signal that ends a server.

use tokio::sync::watch;

/// Becomes `true` once, when the server must take no more requests.
pub(crate) type Shutdown = watch::Receiver<bool>;
