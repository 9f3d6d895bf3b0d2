//! Counters as dicts.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use slipring::stats::{HalfStats, Stats};

/// Returns the counters of a connection.
pub fn to_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let all = of(
        py,
        &[
            ("send_queue", stats.send_queue),
            ("recv_queue", stats.recv_queue),
            ("loans_out", stats.loans_out),
            ("loans_held", stats.loans_held),
            ("pool_bytes", stats.pool_bytes),
        ],
    )?;
    all.set_item("sent", half(py, &stats.sent)?)?;
    all.set_item("received", half(py, &stats.received)?)?;
    Ok(all)
}

fn half<'py>(py: Python<'py>, stats: &HalfStats) -> PyResult<Bound<'py, PyDict>> {
    let HalfStats { messages, bytes, pooled, tensors, wakes, sleeps, .. } = *stats;
    let HalfStats { gpu_by_events, gpu_by_words, gpu_synchronized, .. } = *stats;
    let counts = [
        ("messages", messages),
        ("bytes", bytes),
        ("pooled", pooled),
        ("tensors", tensors),
        ("gpu_by_events", gpu_by_events),
        ("gpu_by_words", gpu_by_words),
        ("gpu_synchronized", gpu_synchronized),
        ("wakes", wakes),
        ("sleeps", sleeps),
    ];
    of(py, &counts)
}

fn of<'py>(py: Python<'py>, counts: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, count) in counts {
        all.set_item(name, count)?;
    }
    Ok(all)
}
