//! The stream on which this process reads and writes words in memory of peers: one a GPU.
//!
//! ```text
//!   ask ──▶ asked ──▶ batch: copies of words, writes of words, the event behind them ── over ──▶ answers
//! ```
//!
//! 1. The thread `slipring-loans` queues a batch, and asks for its event at later looks. It never waits for it: the batch may
//!    lie behind work that waits for a peer, where streams share a queue of the GPU (`CUDA_DEVICE_MAX_CONNECTIONS`).
//! 2. The stream has the highest priority, because streams of another priority do not share its queue.
//! 3. A batch keeps its words, and so the memory that they lie in, until it is over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::cuda::closer;
use crate::cuda::device::Device;
use crate::cuda::event::Event;
use crate::cuda::lender::AwaitedWord;
use crate::cuda::library::is_ours;
use crate::cuda::page::{Page, SLOTS};
use crate::cuda::per_gpu::PerGpu;
use crate::cuda::returner::{self, Held, Next, Watch, Watched};
use crate::cuda::stream::{Stream, ends_work};
use crate::error::{Error, Result};

static STREAMS: PerGpu<Arc<Mutex<Weak<WordStream>>>> = PerGpu::new();

/// The stream, and what it works on.
#[derive(Debug)]
pub(super) struct WordStream {
    asked: Mutex<Vec<Asked>>,
    /// The thread's, and a caller's where there is no thread.
    batch: Mutex<Option<Batch>>,
    watched: OnceLock<Watched>,
    /// Recorded behind each batch.
    event: Event,
    stream: Stream,
    /// Whether the log has been told that the driver refuses.
    is_told: AtomicBool,
    /// `None` during the drop.
    page: Option<Page>,
}

/// A word to be read.
#[derive(Debug)]
struct Asked {
    word: Arc<AwaitedWord>,
    _held: Held,
}

/// Work that the stream has got.
#[derive(Debug, Default)]
struct Batch {
    /// By their slots.
    reads: Vec<Read>,
    writes: Vec<Asked>,
    /// Whether the event is recorded behind it.
    is_recorded: bool,
    /// Whether the driver has refused to tell of it.
    is_refused: bool,
}

#[derive(Debug)]
struct Read {
    asked: Asked,
    /// The questions that this answers.
    covers: u64,
    /// Whether the writer's process had ended before.
    is_dead: bool,
}

impl WordStream {
    /// Returns that of a GPU, or a new one if no link has one. The driver may wait while it pins a page.
    pub(super) fn of(device: &Device) -> Result<Arc<Self>> {
        let known = STREAMS.of(device);
        let stream = known.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(stream) = stream {
            return Ok(stream);
        }
        // Outside of the lock. Two threads may make one each, and both work.
        let stream = Self::new(device)?;
        *known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&stream);
        Ok(stream)
    }

    fn new(device: &Device) -> Result<Arc<Self>> {
        let (event, stream) = (Event::private(device)?, device.urgent_stream()?);
        let page = Some(Page::new(device)?);
        let (asked, batch, watched, is_told) = Default::default();
        let new = Arc::new(Self { asked, batch, watched, event, stream, is_told, page });
        new.is_watched();
        Ok(new)
    }

    /// Returns its GPU.
    pub(super) fn device(&self) -> &Device {
        self.stream.device()
    }

    /// Has a word read.
    pub(super) fn ask(self: &Arc<Self>, word: Arc<AwaitedWord>) {
        self.asked().push(Asked { word, _held: Held::new() });
        if self.is_watched() {
            self.watched.get().into_iter().for_each(Watched::ring);
        }
    }

    /// Returns whether the thread looks at it. Otherwise the caller does.
    pub(super) fn is_watched(self: &Arc<Self>) -> bool {
        if self.watched.get().is_none() {
            let own: Weak<Self> = Arc::downgrade(self);
            returner::watch(None, own).into_iter().for_each(|watched| {
                // Another thread's stays, if it was faster.
                let _ = self.watched.set(watched);
            });
        }
        self.watched.get().is_some()
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self) -> &Page {
        self.page.as_ref().expect("there until it is dropped")
    }

    /// Answers what a batch has read. Returns the words to write in place of their dead writers.
    fn answer(&self, done: Batch) -> Vec<Asked> {
        let marked = done.writes.into_iter();
        marked.for_each(|asked| asked.word.is_marked());
        let reads = done.reads.into_iter().enumerate();
        reads
            .filter_map(|(slot, Read { asked, covers, is_dead })| {
                let is_to_mark = asked.word.is_read(self.page().word(slot), covers, is_dead);
                is_to_mark.then_some(asked)
            })
            .collect()
    }

    /// Queues writes of words and copies of others. Returns the words of dead writers for which the driver refuses.
    fn queue(&self, writes: Vec<Asked>, reads: Vec<Asked>) -> (Batch, Vec<Asked>) {
        let (mut batch, mut again) = (Batch::default(), Vec::new());
        let mut refused = |asked: Asked, covers, error: &Error| {
            self.tell(error);
            asked.word.is_refused(covers, error);
            if !ends_work(error) && asked.word.is_dead() {
                again.push(asked);
            }
        };
        for asked in writes {
            match asked.word.mark(&self.stream) {
                Ok(()) => batch.writes.push(asked),
                Err(error) => refused(asked, 0, &error),
            }
        }
        for asked in reads {
            let (covers, is_dead) = asked.word.begin();
            match self.page().copy(batch.reads.len(), asked.word.at(), &self.stream) {
                Ok(()) => batch.reads.push(Read { asked, covers, is_dead }),
                Err(error) => refused(asked, covers, &error),
            }
        }
        (batch, again)
    }

    /// Tells the log that the driver refuses, once until it works again.
    fn tell(&self, error: &Error) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            self.device().tell(error, "a peer's word is neither read nor written");
        }
    }

    /// Returns whether a batch is over, or the error after which nothing works any more.
    fn is_over(&self, batch: &mut Batch) -> Result<bool> {
        if !batch.is_recorded {
            self.event.record(&self.stream)?;
            batch.is_recorded = true;
        }
        self.event.query()
    }
}

impl Watch for WordStream {
    fn look(&self) -> Next {
        let mut current = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writes = Vec::new();
        if let Some(batch) = &mut *current {
            match self.is_over(batch) {
                Ok(false) => return Next::Pause,
                Ok(true) => {
                    self.is_told.store(false, Ordering::Relaxed);
                    writes = current.take().map(|done| self.answer(done)).unwrap_or_default()
                }
                Err(error) => {
                    if !std::mem::replace(&mut batch.is_refused, true) {
                        self.tell(&error);
                        for Read { asked, covers, .. } in &batch.reads {
                            asked.word.is_refused(*covers, &error);
                        }
                    }
                    if !ends_work(&error) {
                        return Next::Pause;
                    }
                    *current = None;
                }
            }
        }
        let mut asked = std::mem::take(&mut *self.asked());
        let rest = asked.split_off(asked.len().min(SLOTS));
        if writes.is_empty() && asked.is_empty() {
            return Next::Event;
        }
        // Another thread may have entered the context already.
        let _entered = self.device().enter();
        let (mut batch, again) = self.queue(writes, asked);
        self.asked().extend(again.into_iter().chain(rest));
        if !batch.reads.is_empty() || !batch.writes.is_empty() {
            // If this fails, the next look tries once more.
            let _ = self.is_over(&mut batch);
            *current = Some(batch);
        }
        Next::Pause
    }
}

impl Drop for WordStream {
    fn drop(&mut self) {
        if let Some(page) = self.page.take().filter(|_| is_ours()) {
            closer::close(page);
        }
    }
}
