//! The process on the other side of a connection.

use pyo3::prelude::*;

/// The process on the other side, as the kernel described it when the connection was made.
#[pyclass(frozen, eq, hash, module = "slipring")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The process id, or `None` if the process is outside of this process's pid namespace.
    #[pyo3(get)]
    pid: Option<u32>,
    /// The effective user id.
    #[pyo3(get)]
    uid: u32,
    /// The effective group id.
    #[pyo3(get)]
    gid: u32,
    text: String,
}

impl Peer {
    /// Returns the ids of a peer.
    pub fn of(peer: &slipring::peer::Peer) -> Self {
        Self { pid: peer.pid(), uid: peer.uid(), gid: peer.gid(), text: peer.to_string() }
    }

    /// Returns the name of the process, for error texts.
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[pymethods]
impl Peer {
    fn __repr__(&self) -> String {
        format!("<slipring.Peer: {}>", self.text)
    }
}
