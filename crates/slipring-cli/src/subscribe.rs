//! `slipring sub`: the messages of a topic, a line each.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use slipring::Context;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::message::Report;
use crate::output::Output;
use crate::quantity;
use crate::store::Store;
use crate::topic::{Join, Next, Topic};

/// The arguments of `slipring sub`.
#[derive(Debug, Args)]
pub(crate) struct Subscribe {
    /// The address of the topic
    address: String,
    #[command(flatten)]
    join: Join,
    /// End after so many messages
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End if no message comes for this long
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    timeout: Option<Duration>,
    /// Store each message in a file of its own in this folder: .npy for a tensor, .safetensors for several, .bin for bytes
    #[arg(short, long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// How many of a message's first bytes to show
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = quantity::bytes)]
    preview: u64,
}

#[derive(Debug, Serialize)]
struct Summary {
    received: u64,
    missed: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages were received, {} missed", self.received, self.missed)
    }
}

impl Subscribe {
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        let mut store = self.out.as_ref().map(Store::open).transpose()?;
        let context = Context::new()?;
        let Some(mut topic) = Topic::join(&context, &self.address, &self.join, &interrupt)? else {
            return Ok(());
        };
        let mut received = 0;
        let mut ended = Ok(());
        while self.count.is_none_or(|count| received < count) {
            let until = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            let next = topic.next(until, |sample| {
                let report = Report::of(&sample, self.preview as usize)?;
                let files = store.as_mut().map_or(Ok(Vec::new()), |store| store.keep(&sample))?;
                output.show(&report.stored(files))
            });
            match next {
                Ok(Next::Message(())) => received += 1,
                Ok(Next::Ended | Next::Interrupted) => break,
                Ok(Next::Late) => {
                    let timeout = self.timeout.unwrap_or_default().as_millis();
                    ended = Err(Failure::too_late(format!("no message came for {timeout} ms")));
                    break;
                }
                Err(failure) => {
                    ended = Err(failure);
                    break;
                }
            }
        }
        let (_, missed) = topic.counts();
        let shown = output.show(&Summary { received, missed });
        ended.and(shown)
    }
}
