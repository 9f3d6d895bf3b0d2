//! The command line of `ping_pong`.

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

use crate::Outcome;

/// The options of a run, or of a process that a run starts.
pub struct Options {
    pub modes: Option<Vec<String>>,
    pub sizes: Option<Vec<usize>>,
    pub seconds: Option<f64>,
    pub cpus: (usize, usize),
    pub json: bool,
    /// The file for the results.
    pub csv: Option<PathBuf>,
    /// Busy loops beside the measurement.
    pub busy: usize,
    /// Pairs of processes that run at once. With 0, one pair runs, pinned.
    pub pairs: usize,
    /// Hidden: the process is a child of the process with this id.
    pub follow: Option<u32>,
    /// Hidden: the child is the busy loop with this number.
    pub busy_loop: Option<usize>,
    /// Hidden: the child is one side of a pair with this carrier and name.
    pub pair: Option<String>,
    /// Hidden: the child is a neighbour of this kind, at the topic of this name.
    pub neighbour: Option<String>,
}

impl Options {
    /// Parses the command line of this process.
    pub fn parse() -> Outcome<Options> {
        use lexopt::prelude::{Long, ValueExt};
        let mut options = Options {
            modes: None,
            sizes: None,
            seconds: None,
            cpus: (0, 1),
            json: false,
            csv: None,
            busy: 0,
            pairs: 0,
            follow: None,
            busy_loop: None,
            pair: None,
            neighbour: None,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("modes") => options.modes = Some(list(&parser.value()?.string()?)?),
                Long("sizes") => options.sizes = Some(list(&parser.value()?.string()?)?),
                Long("seconds") => options.seconds = Some(parser.value()?.parse()?),
                Long("cpus") => match list(&parser.value()?.string()?)?[..] {
                    [leader, follower] if leader != follower => options.cpus = (leader, follower),
                    _ => return Err("--cpus takes two different CPUs, as 0,1".into()),
                },
                Long("json") => options.json = true,
                Long("csv") => options.csv = Some(parser.value()?.into()),
                Long("busy") => options.busy = parser.value()?.parse()?,
                Long("pairs") => options.pairs = parser.value()?.parse()?,
                Long("loop") => options.busy_loop = Some(parser.value()?.parse()?),
                Long("pair") => options.pair = Some(parser.value()?.string()?),
                Long("neighbour") => options.neighbour = Some(parser.value()?.string()?),
                Long("follow") => options.follow = Some(parser.value()?.parse()?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }
}

fn list<T: FromStr<Err: Error + Send + Sync + 'static>>(text: &str) -> Outcome<Vec<T>> {
    text.split(',').map(|part| Ok(part.trim().parse()?)).collect()
}
