//! Tensors on a GPU that were opened together, for one stream.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use slipring::Error;
use slipring::cuda::GpuView;
use slipring::error::ErrorKind;

use crate::deadline::Deadline;
use crate::detached::Detached;
use crate::error::raise;
use crate::gpu::{self, Asked};
use crate::memory::ViewGuard;
use crate::stream::StreamNumber;
use crate::tensor::Tensor;

/// Views whose memory the library gives back together. The interpreter is left once for all of them.
struct Together {
    views: Vec<GpuView>,
    /// The caller's stream, which outlives the views. PyO3 counts the thread as detached when it is dropped, and so keeps the
    /// reference until a thread attaches: an attached one as soon as the views have ended, another one at a later call of this
    /// module, and without an interpreter none does.
    _stream: Py<PyAny>,
}

/// A tensor on a GPU, opened for a stream.
pub struct Opened {
    together: Arc<Detached<Together>>,
    at: usize,
    /// Counts as a view of this tensor's memory.
    _guard: ViewGuard,
    stream: StreamNumber,
}

impl Opened {
    /// Returns where the elements are and how many bytes they have, if a library that asks for this can use the view: it names the
    /// stream that the view was opened for, or wants no order. No driver is asked.
    ///
    /// # Errors
    ///
    /// `PeerDied`: the lender has ended.
    pub fn place_for(&self, asked: &Asked) -> Result<Option<(u64, usize)>, Error> {
        let wants_this = asked.stream.is_unordered() || asked.stream == self.stream;
        if !wants_this || asked.copy == Some(true) {
            return Ok(None);
        }
        let view = &self.together.views[self.at];
        if view.lender_ended() {
            return Err(ErrorKind::PeerDied.into());
        }
        Ok(Some((view.device_ptr(), view.byte_len())))
    }

    /// Returns what tells the tensors apart that are not checked by one check: their number, while one of them lives.
    pub fn together(&self) -> usize {
        Arc::as_ptr(&self.together) as usize
    }

    /// Waits for the work that the stream has got, and checks that it has read what was written.
    ///
    /// # Errors
    ///
    /// As [`gpu::check_view`].
    pub fn check(&self, py: Python<'_>, deadline: &Deadline) -> PyResult<()> {
        gpu::check_view(py, &self.together.views[self.at], deadline)
    }
}

/// Opens the tensors that lie on GPUs, all of a GPU at once. `None`: a tensor of the host.
///
/// # Errors
///
/// `TypeError`, `ValueError`: as [`StreamNumber::of`]. `ValueError`: the stream is of one GPU, and the tensors are for several.
/// `PeerDied`, `GpuError`, `TensorGone`, `Forked`.
pub fn open_all(
    tensors: &[Tensor],
    stream: &Bound<'_, PyAny>,
) -> PyResult<Vec<Option<Arc<Opened>>>> {
    let (py, object, stream) = (stream.py(), stream, StreamNumber::of(stream)?);
    let mut of_gpus: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        tensor.memory().facts()?;
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
        let (groups, ats) = group(views.map_err(raise)?);
        let groups = groups.into_iter().map(|views| {
            Arc::new(Detached::new(Together { views, _stream: object.clone().unbind() }))
        });
        let groups: Vec<_> = groups.collect();
        for ((place, guard), (group, at)) in places.into_iter().zip(guards).zip(ats) {
            let together = groups[group].clone();
            opened[place] = Some(Arc::new(Opened { together, at, _guard: guard, stream }));
        }
    }
    Ok(opened)
}

/// Returns the views by what goes back together, and for each view its group and its place there.
fn group(views: Vec<GpuView>) -> (Vec<Vec<GpuView>>, Vec<(usize, usize)>) {
    let mut groups: Vec<Vec<GpuView>> = Vec::new();
    let mut known = HashMap::new();
    let mut ats = Vec::with_capacity(views.len());
    for view in views {
        let group = *known.entry(view.together()).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Vec::new());
        }
        ats.push((group, groups[group].len()));
        groups[group].push(view);
    }
    (groups, ats)
}
