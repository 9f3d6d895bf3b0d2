//! Accounts: they count what peers make this process hold, for each link, peer process, user, and for all together.
//!
//! ```text
//!   process ──┬── user 1000 ──┬── peer 4711 ──┬── link
//!             │               │               └── link
//!             │               └── peer 4712 ───── link
//!             ├── user 1001 ────── peer 4713 ──── link
//!             └── strangers ────── of user 1002 ── a peer without a Hello
//! ```
//!
//! 1. A thing is charged before it is taken. Its [`Charge`] subtracts on drop.
//! 2. All together have a limit for each [`Resource`]. A user gets at most three quarters of what other users leave, and a
//!    peer process two thirds of what its user's other ones leave. So a peer that holds nothing can take something, whatever
//!    number of links a greedy peer has.
//! 3. Peers that are not admitted yet have an account together, of an eighth of the limit. One user's part of it is two thirds
//!    of what the others leave.
//! 4. Counts are relaxed atomics: they order nothing. Two threads that charge at a time may both be refused where one of
//!    them had room.

// The folder is named after its chief object.
#[expect(clippy::module_inception)]
mod account;
mod limits;
mod resource;

pub(crate) use account::{Account, Charge};
pub(crate) use limits::Limits;
pub use resource::Resource;
