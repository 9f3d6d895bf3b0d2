//! One line of the results: a system at a work and size in one state of the machine.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Outcome;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub measure: String,
    /// Bytes of payload.
    pub bytes: usize,
    /// Live links, of which one is used.
    pub links: usize,
    pub system: String,
    /// `slipring`, `rival`, `kernel` or `floor`.
    pub kind: String,
    pub version: String,
    /// Where the CPUs were: `near` or `far`.
    pub state: String,
    /// Nanoseconds a round trip, or a message one way: the median of slices.
    pub p50_ns: Option<f64>,
    /// Of single round trips; their stamps include one reading of the clock.
    pub p99_ns: Option<f64>,
    pub p999_ns: Option<f64>,
    /// Fan-in: the slowest sender's part of its fair share. Idle: percent of a CPU. Footprint: descriptors.
    pub beside: Option<f64>,
    /// Footprint: KiB.
    pub memory_kib: Option<f64>,
    pub slices: usize,
    /// Slices during which the CPUs moved, or a side stayed awake that was to sleep.
    pub dropped: u64,
    /// The bounce of the writable line in the same moments.
    pub line_ns: Option<f64>,
    /// The best of a floor's variants: buffers, or slots.
    pub variant: Option<u64>,
    /// Whether both sides may write the memory that they share.
    pub writable: bool,
    pub options: String,
}

impl Figure {
    pub fn is(&self, measure: &str, bytes: usize, state: &str) -> bool {
        self.measure == measure && self.bytes == bytes && self.state == state
    }

    /// Messages a second.
    pub fn rate(&self) -> Option<f64> {
        self.p50_ns.map(|nanoseconds| 1e9 / nanoseconds)
    }
}

/// The results, and what is known of the machine, one fact a line.
#[derive(Default)]
pub struct Results {
    pub facts: Vec<String>,
    pub figures: Vec<Figure>,
}

impl Results {
    pub fn write(&self, path: &Path) -> Outcome<()> {
        let facts: String = self.facts.iter().map(|fact| format!("# {fact}\n")).collect();
        let mut writer = csv::Writer::from_writer(facts.into_bytes());
        for figure in &self.figures {
            writer.serialize(figure)?;
        }
        let text = writer.into_inner().map_err(|error| error.to_string())?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(path, text)?)
    }

    pub fn read(path: &Path) -> Outcome<Results> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let facts =
            text.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect();
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let figures = reader.deserialize().collect::<Result<_, _>>()?;
        Ok(Results { facts, figures })
    }
}
