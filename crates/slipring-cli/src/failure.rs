//! Why a command failed, and the exit code that says so.

use std::fmt;
use std::process::ExitCode;

use slipring::error::ErrorKind;

/// The exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 nobody listens, or no such process; \
4 refused by the peer; 5 the peer went away; 6 too late.";

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// Returns a failure without a code of its own.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { code: 1, text: text.into() }
    }

    /// Returns the failure of a command whose object is not there.
    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self { code: 3, text: text.into() }
    }

    /// Returns a failure with one of the [`EXIT_CODES`].
    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Returns the failure of a command that has waited for too long.
    pub(crate) fn too_late(text: impl Into<String>) -> Self {
        Self { code: 6, text: text.into() }
    }

    /// Returns the end of a command whose reader went away, as `head` does. It is no failure, and nobody is told.
    pub(crate) fn unread() -> Self {
        Self { code: 0, text: String::new() }
    }

    /// Returns whether there is something to tell.
    pub(crate) fn is_told(&self) -> bool {
        !self.text.is_empty()
    }

    /// Returns the failure with the thing that it concerns in front.
    pub(crate) fn of(self, what: impl fmt::Display) -> Self {
        let text = if self.is_told() { format!("{what}: {}", self.text) } else { self.text };
        Self { text, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<slipring::Error> for Failure {
    fn from(error: slipring::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::NobodyListens { .. } => 3,
            ErrorKind::NotAdmittedByPeer
            | ErrorKind::PeerNotAdmitted { .. }
            | ErrorKind::RefusedByPeer { .. }
            | ErrorKind::WrongService { .. }
            | ErrorKind::PolicyRefused
            | ErrorKind::Evicted { .. } => 4,
            ErrorKind::PeerClosed | ErrorKind::PeerDied => 5,
            ErrorKind::TimedOut { .. } => 6,
            _ => 1,
        };
        Self { code, text: format!("{error:#}") }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        failure.code.into()
    }
}
