//! Exceptions: the classes of `slipring._errors`, with the texts of the Rust library.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use slipring::error::CudaFault;
use slipring::{Error, ErrorKind};

/// Returns the exception of an error.
#[cold]
pub fn raise(error: Error) -> PyErr {
    exception(class_of(error.kind()), format!("{error:#}"))
}

/// Returns the exception of an operation that waited in slices: `error` is that of the last one.
#[cold]
pub fn timed_out(after: Duration, error: &Error) -> PyErr {
    let text = Error::from(ErrorKind::TimedOut { after }).to_string();
    let source = std::error::Error::source(error);
    exception("TimedOut", source.map_or(text.clone(), |source| format!("{text}: {source}")))
}

/// Returns whether an exception is `TimedOut`.
pub fn is_timeout(py: Python<'_>, error: &PyErr) -> bool {
    find(py, "TimedOut").is_ok_and(|class| error.is_instance(py, &class))
}

/// Returns an exception of a class of `slipring._errors`.
#[cold]
pub fn exception(class: &'static str, text: String) -> PyErr {
    Python::attach(|py| match find(py, class) {
        Ok(class) => PyErr::from_type(class, text),
        Err(error) => error,
    })
}

fn find<'py>(py: Python<'py>, class: &'static str) -> PyResult<Bound<'py, PyType>> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = ERRORS.get_or_try_init(py, || py.import("slipring._errors").map(Bound::unbind))?;
    Ok(errors.bind(py).getattr(class)?.cast_into()?)
}

/// Returns the name of the class that stands for a kind of error.
fn class_of(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AddressEmpty
        | ErrorKind::AddressTooLong { .. }
        | ErrorKind::AddressNul { .. }
        | ErrorKind::AddressEscape { .. }
        | ErrorKind::NotSeqpacket => "InvalidAddress",
        ErrorKind::AddressInUse { .. } => "AddressInUse",
        ErrorKind::NobodyListens { .. } => "NobodyListens",
        ErrorKind::InvalidOption { .. } => "InvalidOption",
        ErrorKind::PeerNotAdmitted { .. }
        | ErrorKind::UnmappedUser
        | ErrorKind::NotAdmittedByPeer
        | ErrorKind::RefusedByPeer { .. }
        | ErrorKind::WrongService { .. }
        | ErrorKind::PolicyRefused
        | ErrorKind::NoCommonVersion { .. } => "Refused",
        ErrorKind::Evicted { .. } => "Evicted",
        ErrorKind::HoldLimit { .. } => "HoldLimit",
        ErrorKind::Fault(_) => "ProtocolFault",
        ErrorKind::TimedOut { .. } => "TimedOut",
        ErrorKind::PeerClosed => "PeerClosed",
        ErrorKind::PeerDied => "PeerDied",
        ErrorKind::MessageTooLarge { .. } => "TooLarge",
        ErrorKind::PoolExhausted { .. }
        | ErrorKind::OutOfMemory { .. }
        | ErrorKind::FileSizeLimit { .. }
        | ErrorKind::AccountFull { .. }
        | ErrorKind::DescriptorLimit { .. }
        | ErrorKind::BacklogFull { .. }
        | ErrorKind::CallsInFlight { .. } => "ResourceLimit",
        ErrorKind::LoanRevoked => "LoanRevoked",
        ErrorKind::OtherKind { .. } => "OtherKind",
        ErrorKind::LinkClosed => "Closed",
        ErrorKind::Metadata(_)
        | ErrorKind::Tensor(_)
        | ErrorKind::Cuda(CudaFault::NotExportable { .. } | CudaFault::StreamNumber { .. }) => {
            "InvalidTensor"
        }
        ErrorKind::Cuda(_) => "GpuError",
        ErrorKind::Forked => "Forked",
        ErrorKind::Os { .. } => "SystemCallFailed",
        _ => "Error",
    }
}
