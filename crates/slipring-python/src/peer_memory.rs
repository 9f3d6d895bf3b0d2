//! Memory of a peer as a whole, for a device that pins it.

use pyo3::prelude::*;

use crate::process::Owner;

/// Memory of a peer that this process has mapped. It stays mapped as long as this object.
#[pyclass(frozen, module = "slipring")]
pub struct PeerMemory {
    memory: slipring::seam::SegmentMemory,
    owner: Owner,
}

impl PeerMemory {
    pub fn new(memory: slipring::seam::SegmentMemory) -> Self {
        Self { memory, owner: Owner::here() }
    }
}

#[pymethods]
impl PeerMemory {
    /// The address of the first byte, that of a page.
    #[getter]
    fn start(&self) -> PyResult<usize> {
        self.owner.check()?;
        Ok(self.memory.start().addr())
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.byte_len()
    }

    /// Whether nothing else keeps the memory mapped: no link and no tensor.
    #[getter]
    fn unused(&self) -> bool {
        self.memory.is_unused()
    }
}
