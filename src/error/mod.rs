//! Errors and their texts.
//!
//! An [`Error`] has a [kind](Error::kind) to match on. Where the kernel refused a call or a deadline passed, its
//! source is the [`std::io::Error`] that says why. A full ring or an empty one is no error of a working exchange: it
//! is a variant of the operation's own answer ([`TrySendError::Full`], [`TryRecvError::Empty`]).
//!
//! A text starts in lower case and gives the fact, both numbers, the remedy, and the name of the option that raises
//! a limit. It never holds an address of memory, and names only those keys and paths that the caller gave. `{}`
//! prints the kind alone, as the source prints itself; `{:#}` prints both.

mod attempt;
mod commit;
mod cuda;
mod fault;
mod kind;
pub(crate) mod memory;
mod metadata;
mod panic;
mod region;
mod tensor;

pub use attempt::{TryRecvError, TrySendError};
pub use commit::CommitFault;
#[doc(hidden)]
pub use commit::{Direction, Slot, Unset};
pub use cuda::{CudaFault, GpuUuid};
pub use fault::Fault;
#[doc(no_inline)]
pub use kind::{Error, ErrorKind, Eviction, Result};
pub use metadata::MetadataFault;
pub(crate) use panic::contain;
pub use region::RegionFault;
pub use tensor::TensorFault;
