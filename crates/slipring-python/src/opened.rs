//! Tensors on a GPU that were opened together, for one stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use slipring::cuda::GpuView;

use crate::detached::Detached;
use crate::error::raise;
use crate::gpu::{self, Asked};
use crate::memory::ViewGuard;
use crate::stream::StreamNumber;
use crate::tensor::Tensor;

/// A tensor on a GPU, opened for a stream.
pub struct Opened {
    /// Those that were opened together. They end together, so the interpreter is left once for all of them.
    views: Arc<Detached<Vec<GpuView>>>,
    at: usize,
    /// Counts as a view of this tensor's memory.
    _guard: ViewGuard,
    stream: StreamNumber,
}

impl Opened {
    /// Returns where the elements are and how many bytes they have, if a library that asks for this can use the view: it names the
    /// stream that the view was opened for, or wants no order.
    pub fn place_for(&self, asked: &Asked) -> Option<(u64, usize)> {
        let wants_this = asked.stream.is_unordered() || asked.stream == self.stream;
        let fits = wants_this && asked.copy != Some(true);
        let view = &self.views[self.at];
        fits.then(|| (view.device_ptr(), view.byte_len()))
    }
}

/// Opens the tensors that lie on GPUs, all of a GPU at once. `None`: a tensor of the host.
///
/// # Errors
///
/// `ValueError`: the stream is of one GPU, and the tensors are for several. `PeerDied`, `GpuError`, `TensorGone`, `Forked`.
pub fn open_all(
    py: Python<'_>,
    tensors: &[Tensor],
    stream: StreamNumber,
) -> PyResult<Vec<Option<Arc<Opened>>>> {
    let mut of_gpus: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        if let Some(ordinal) = tensor.ordinal(py)? {
            of_gpus.entry(ordinal).or_default().push(at);
        }
    }
    if of_gpus.len() > 1 && stream.is_address() {
        let text = format!(
            "the tensors are for {} GPUs, a stream is of 1: name the GPU, too",
            of_gpus.len()
        );
        return Err(PyValueError::new_err(text));
    }
    let mut opened: Vec<Option<Arc<Opened>>> = tensors.iter().map(|_| None).collect();
    for (ordinal, places) in of_gpus {
        let viewed = places.iter().map(|at| tensors[*at].memory().view());
        let (ready, guards): (Vec<_>, Vec<_>) =
            viewed.collect::<PyResult<Vec<_>>>()?.into_iter().unzip();
        let views = py.detach(|| {
            let views = gpu::open_all(ordinal, ready.iter().map(|tensor| &***tensor), stream);
            drop(ready);
            views
        });
        let views = Arc::new(Detached::new(views.map_err(raise)?));
        for (at, (place, guard)) in places.into_iter().zip(guards).enumerate() {
            let views = views.clone();
            opened[place] = Some(Arc::new(Opened { views, at, _guard: guard, stream }));
        }
    }
    Ok(opened)
}
