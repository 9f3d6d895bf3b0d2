//! The command line of `many_links`.

use lexopt::{Arg, Parser, ValueExt};
use slipring::Context;
use slipring::options::Spin;

use crate::Outcome;

/// The options of a run, or of the peer process.
pub struct Options {
    pub links: usize,
    pub rate: u64,
    pub seconds: u32,
    pub floor: bool,
    /// Whether the reactors spin before they sleep.
    pub spin: bool,
    /// Whether the links are subscriptions to one topic.
    pub topic: bool,
    /// Hidden: the process is the peer and listens here.
    pub serve: Option<String>,
}

impl Options {
    /// Parses the command line of this process.
    pub fn parse() -> Outcome<Options> {
        let mut options = Options {
            links: 1000,
            rate: 100,
            seconds: 5,
            floor: true,
            spin: true,
            topic: false,
            serve: None,
        };
        let mut words = Parser::from_env();
        while let Some(word) = words.next()? {
            match word {
                Arg::Long("links") => options.links = words.value()?.parse()?,
                Arg::Long("rate") => options.rate = words.value()?.parse()?,
                Arg::Long("seconds") => options.seconds = words.value()?.parse()?,
                Arg::Long("floor") => options.floor = words.value()? != "no",
                Arg::Long("spin") => options.spin = words.value()? != "no",
                Arg::Long("topic") => options.topic = words.value()? == "yes",
                Arg::Long("serve") => options.serve = Some(words.value()?.string()?),
                _ => return Err(word.unexpected().into()),
            }
        }
        if options.links == 0 || options.rate == 0 || options.seconds == 0 {
            return Err("--links, --rate and --seconds are at least 1".into());
        }
        Ok(options)
    }

    /// Returns a context for the reactors.
    pub fn context(&self) -> slipring::Result<Context> {
        let options = slipring::Options::new();
        Context::with_options(if self.spin { options } else { options.spin(Spin::Never) })
    }
}
