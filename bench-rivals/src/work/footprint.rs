//! What a process holds, from outside: memory and descriptors.

use std::fs;

use crate::Outcome;

/// What both processes hold together.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Proportional set size in KiB: a page that both map counts once.
    pub memory: f64,
    pub descriptors: f64,
}

impl Held {
    pub fn by(processes: &[u32]) -> Outcome<Held> {
        let mut held = Held { memory: 0.0, descriptors: 0.0 };
        for process in processes {
            let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
            let resident = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            let resident =
                resident.and_then(|line| line.trim().split(' ').next()).ok_or("no Pss")?;
            held.memory += resident.parse::<f64>()?;
            held.descriptors += fs::read_dir(format!("/proc/{process}/fd"))?.count() as f64;
        }
        Ok(held)
    }
}
