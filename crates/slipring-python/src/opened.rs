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

/// A tensor on a GPU, opened for a stream. It counts as a view of its memory.
pub struct Opened {
    // The view ends before its guard: the first field is dropped first.
    view: Detached<GpuView>,
    _guard: ViewGuard,
    stream: StreamNumber,
}

impl Opened {
    /// Returns where the elements are and how many bytes they have, if a library that asks for this can use the view: it names the
    /// stream that the view was opened for, or wants no order.
    pub fn place_for(&self, asked: &Asked) -> Option<(u64, usize)> {
        let wants_this = asked.stream.is_unordered() || asked.stream == self.stream;
        let fits = wants_this && asked.copy != Some(true);
        fits.then(|| (self.view.device_ptr(), self.view.byte_len()))
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
        let views = views.map_err(raise)?;
        for ((at, view), guard) in places.into_iter().zip(views).zip(guards) {
            let view = Detached::new(view);
            opened[at] = Some(Arc::new(Opened { view, _guard: guard, stream }));
        }
    }
    Ok(opened)
}
