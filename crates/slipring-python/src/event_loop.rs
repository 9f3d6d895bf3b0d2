//! Waits in an event loop of asyncio, which `slipring._asyncio` does.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// `slipring._asyncio`, from its first use on.
static ASYNCIO: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Calls a function of `slipring._asyncio`.
pub fn asyncio<'py, A>(py: Python<'py>, function: &str, arguments: A) -> PyResult<Bound<'py, PyAny>>
where
    A: pyo3::call::PyCallArgs<'py>,
{
    let load = || py.import("slipring._asyncio").map(Bound::unbind);
    ASYNCIO.get_or_try_init(py, load)?.bind(py).getattr(function)?.call1(arguments)
}

/// Takes an object's descriptor out of event loops, before it is closed, and wakes the tasks that wait for it.
pub fn unwatch(owner: &Bound<'_, PyAny>) -> PyResult<()> {
    match ASYNCIO.get(owner.py()) {
        Some(module) => module.bind(owner.py()).getattr("unwatch")?.call1((owner,)).map(drop),
        None => Ok(()),
    }
}
