//! `slipring record`: topics into a file.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use slipring::broadcast::Sample;
use slipring::{Address, Context};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::quantity::{self, Len};
use crate::recording::{Head, Writer};
use crate::topic::{Join, Next, Topic};

/// How often the file gets what waits in the buffer while no message comes.
const IDLE: Duration = Duration::from_millis(100);

/// The time between two lines that tell how far the recording is.
const PROGRESS: Duration = Duration::from_secs(1);

/// The arguments of `slipring record`.
#[derive(Debug, Args)]
pub(crate) struct Record {
    /// The addresses of the topics
    #[arg(required = true)]
    addresses: Vec<String>,
    /// The file, in the format MCAP, which must not exist
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    join: Join,
    /// End after this time
    #[arg(short, long, value_name = "TIME", value_parser = quantity::duration)]
    duration: Option<Duration>,
    /// End after so many messages of all topics together
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End before the file is longer than this
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes)]
    max_bytes: Option<u64>,
}

/// The progress of a recording.
#[derive(Debug, Serialize)]
struct Progress {
    messages: u64,
    missed: u64,
    /// Bytes of the file.
    bytes: u64,
    topics: Vec<TopicProgress>,
}

#[derive(Debug, Serialize)]
struct TopicProgress {
    topic: String,
    messages: u64,
    missed: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, missed, bytes, topics } = self;
        write!(f, "{messages} messages in {}, {missed} missed", Len(*bytes as f64))?;
        if topics.len() > 1 {
            for TopicProgress { topic, messages, missed } in topics {
                write!(f, "; {topic}: {messages}, {missed} missed")?;
            }
        }
        Ok(())
    }
}

/// The state that the threads of a recording share.
#[derive(Debug)]
struct Session {
    writer: Mutex<Writer>,
    topics: Vec<Tally>,
    interrupt: Interrupt,
    most: Option<u64>,
    max_bytes: Option<u64>,
}

/// The counts of a topic.
#[derive(Debug)]
struct Tally {
    topic: String,
    messages: AtomicU64,
    missed: AtomicU64,
}

impl Record {
    pub(crate) fn run(self, output: Output) -> Result<(), Failure> {
        let interrupt = Interrupt::new()?;
        let context = Context::new()?;
        let named =
            self.addresses.iter().map(|address| Ok(address.parse::<Address>()?.to_string()));
        let topics: Vec<String> = named.collect::<Result<_, Failure>>()?;
        if topics.len() > usize::from(u16::MAX) {
            return Err(Failure::new(format!("{} topics, a file has 65535", topics.len())));
        }
        let writer = Writer::create(&self.output, &topics)
            .map_err(|failure| failure.of(self.output.display()))?;
        let tally = |topic| Tally { topic, messages: AtomicU64::new(0), missed: AtomicU64::new(0) };
        let session = Session {
            writer: Mutex::new(writer),
            topics: topics.into_iter().map(tally).collect(),
            interrupt: interrupt.clone(),
            most: self.count,
            max_bytes: self.max_bytes,
        };
        let end = self.duration.and_then(|duration| Instant::now().checked_add(duration));
        let recorded = thread::scope(|scope| {
            let followers = session.topics.iter().enumerate().map(|(channel, tally)| {
                let (session, context, join) = (&session, &context, &self.join);
                scope.spawn(move || {
                    let done = session.follow(context, channel as u16, tally, join);
                    done.inspect_err(|_| session.interrupt.set())
                        .map_err(|failure| failure.of(&tally.topic))
                })
            });
            let followers: Vec<_> = followers.collect();
            let mut next = Instant::now() + PROGRESS;
            let mut shown = Ok(());
            while followers.iter().any(|follower| !follower.is_finished()) && shown.is_ok() {
                thread::sleep(Duration::from_millis(5));
                if end.is_some_and(|end| Instant::now() >= end) {
                    interrupt.set();
                }
                if Instant::now() >= next {
                    next += PROGRESS;
                    shown = output.show(&session.progress());
                }
            }
            if shown.is_err() {
                interrupt.set();
            }
            let joined = followers.into_iter().map(|follower| {
                follower.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
            });
            let joined: Vec<_> = joined.collect(); // all of them, also behind a failure
            joined.into_iter().collect::<Result<(), Failure>>().and(shown)
        });
        if recorded.is_err() && session.progress().messages == 0 {
            session.writer().discard(&self.output)?;
            return recorded;
        }
        // What was recorded stays, whatever ended the recording.
        let finished =
            session.writer().finish().map_err(|failure| failure.of(self.output.display()));
        let shown = output.show(&session.progress());
        recorded.and(finished).and(shown)
    }
}

impl Session {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records a topic until it ends.
    fn follow(
        &self,
        context: &Context,
        channel: u16,
        tally: &Tally,
        join: &Join,
    ) -> Result<(), Failure> {
        let Some(mut topic) = Topic::join(context, &tally.topic, join, &self.interrupt)? else {
            return Ok(());
        };
        loop {
            let next = topic.next(Instant::now().checked_add(IDLE), |sample| {
                self.record(channel, tally, &sample)
            })?;
            match next {
                Next::Message(()) => {}
                Next::Late => self.writer().flush_in_time()?,
                Next::Ended | Next::Interrupted => return Ok(()),
            }
        }
    }

    fn record(&self, channel: u16, tally: &Tally, sample: &Sample<'_>) -> Result<(), Failure> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let head = Head::of(sample, sample.missed());
        let mut writer = self.writer();
        let recorded: u64 =
            self.topics.iter().map(|tally| tally.messages.load(Ordering::Relaxed)).sum();
        let tensors = sample.tensors().map(|(_, tensor)| tensor.byte_len()).sum::<usize>();
        let bytes = writer.len() + (sample.len() + tensors) as u64;
        if self.most.is_some_and(|most| recorded >= most)
            || self.max_bytes.is_some_and(|max| bytes > max)
        {
            self.interrupt.set();
            return Ok(());
        }
        let is_whole = writer.write(channel, nanos, &head, sample)?;
        writer.flush_in_time()?;
        tally.missed.fetch_add(sample.missed(), Ordering::Relaxed);
        if is_whole {
            tally.messages.fetch_add(1, Ordering::Relaxed);
        } else {
            tally.missed.fetch_add(1, Ordering::Relaxed);
        }
        if self.most.is_some_and(|most| recorded + u64::from(is_whole) >= most) {
            self.interrupt.set();
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        let topics = self.topics.iter().map(|tally| TopicProgress {
            topic: tally.topic.clone(),
            messages: tally.messages.load(Ordering::Relaxed),
            missed: tally.missed.load(Ordering::Relaxed),
        });
        let topics: Vec<TopicProgress> = topics.collect();
        Progress {
            messages: topics.iter().map(|topic| topic.messages).sum(),
            missed: topics.iter().map(|topic| topic.missed).sum(),
            bytes: self.writer().len(),
            topics,
        }
    }
}
