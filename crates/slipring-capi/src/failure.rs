//! Why a function did not do what it was asked to do.

use std::panic::{AssertUnwindSafe, catch_unwind};

use slipring::error::{TryRecvError, TrySendError};
use slipring::{Error, ErrorKind};

use crate::last_error;
use crate::status::slipring_status::{self, *};

/// The answer of a function's body.
pub(crate) type Answer<T = ()> = Result<T, Failure>;

/// Why a function did not do what it was asked to do.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It would have to wait. No error.
    WouldBlock,
    /// Nothing follows. No error.
    End,
    /// The library's error.
    Library(Error),
    /// An error of the caller or of this border, with its text.
    Border(slipring_status, &'static str),
    /// A panic, with its text.
    Panic(String),
}

impl Failure {
    /// Returns the status for C.
    pub(crate) fn status(&self) -> slipring_status {
        match self {
            Self::WouldBlock => SLIPRING_WOULD_BLOCK,
            Self::End => SLIPRING_END,
            Self::Library(error) => slipring_status::of(error.kind()),
            Self::Border(status, _) => *status,
            Self::Panic(_) => SLIPRING_PANIC,
        }
    }

    /// Returns the text for people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::WouldBlock | Self::End => String::new(),
            Self::Library(error) => format!("{error:#}"),
            Self::Border(_, text) => (*text).to_owned(),
            Self::Panic(text) => format!("slipring panicked: {text}"),
        }
    }

    /// Returns the name of the library's error kind, or nothing.
    pub(crate) fn kind(&self) -> String {
        let Self::Library(error) = self else { return String::new() };
        error.kind().name()
    }

    /// Returns the kernel's number of the error, or 0.
    pub(crate) fn number(&self) -> i32 {
        let Self::Library(error) = self else { return 0 };
        let source = std::error::Error::source(error);
        let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        source.and_then(std::io::Error::raw_os_error).unwrap_or(0)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<ErrorKind> for Failure {
    fn from(kind: ErrorKind) -> Self {
        Self::Library(kind.into())
    }
}

impl From<TrySendError> for Failure {
    fn from(error: TrySendError) -> Self {
        match error {
            TrySendError::Full { .. } => Self::WouldBlock,
            TrySendError::Failed(error) => Self::Library(error),
        }
    }
}

impl From<TryRecvError> for Failure {
    fn from(error: TryRecvError) -> Self {
        match error {
            TryRecvError::Empty => Self::WouldBlock,
            TryRecvError::Failed(error) => Self::Library(error),
        }
    }
}

/// Runs the body of a function. Returns its status, and keeps the text of an error.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce() -> Answer) -> slipring_status {
    match contain(body) {
        Ok(()) => SLIPRING_OK,
        Err(failure) => note(failure),
    }
}

/// Keeps the text of a failure. Returns its status.
#[cold]
pub(crate) fn note(failure: Failure) -> slipring_status {
    let status = failure.status();
    if !matches!(failure, Failure::WouldBlock | Failure::End) {
        last_error::keep(failure);
    }
    status
}

/// Runs a body. A panic ends here.
#[inline(always)]
pub(crate) fn contain<T>(body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    end_panics(body).unwrap_or_else(Err)
}

/// Runs a body. Returns a panic as a failure.
#[inline(always)]
pub(crate) fn end_panics<T>(body: impl FnOnce() -> T) -> Result<T, Failure> {
    // A panic poisons the half that the body has changed.
    catch_unwind(AssertUnwindSafe(body)).map_err(panicked)
}

#[cold]
fn panicked(payload: Box<dyn std::any::Any + Send>) -> Failure {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    // The drop of a payload may panic, too. That payload leaks.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    Failure::Panic(text)
}
