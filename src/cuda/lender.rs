//! A peer whose streams write the words that streams of this process await, and what happens when it ends.
//!
//! ```text
//!   Device::open ── the stream awaits the word ── reached ─────────────────────────▶ read
//!                                              └─ the peer's process has ended: this process reads the word
//!                                                   reached: the bytes are written ▶ read
//!                                                   else: this process writes it ──▶ PeerDied
//! ```
//!
//! 1. The process of a peer that has ended writes nothing any more. So the word tells whether its writer was done. Where the
//!    kernel gives no pidfd, only the end of the link is known: the process may live and write. Then this process reads the
//!    word, and never writes it: a stream that awaits it goes on waiting.
//! 2. What this process writes in place of the peer is [`UNWRITTEN`] more than the value that is awaited. So a stream
//!    that awaits it goes on, and every process that reads the word knows that the bytes were not written.
//! 3. The thread `slipring-loans` reads and writes. A caller waits for its answer, and calls no driver, which may wait.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::cuda::device::Device;
use crate::cuda::import::Import;
use crate::cuda::library::is_ours;
use crate::cuda::parked::PAUSE;
use crate::cuda::returner::{self, Next, Source, Watch, Watched};
use crate::cuda::stream::{Stream, Until};
use crate::cuda::waits::{Place, Wait, Waits};
use crate::cuda::word_stream::WordStream;
use crate::cuda::words::{Found, UNWRITTEN, found};
use crate::error::{CudaFault, Error, ErrorKind, Result};
use crate::handshake::has_ended;
use crate::tensor::GpuLoan;

/// The longest sleep of a caller without a deadline between two looks at the same answer.
const LONG: Duration = Duration::from_secs(60);

/// A process that lends memory of GPUs to this one, on one link.
#[derive(Debug)]
pub(super) struct Lender {
    /// `None`: the kernel gives no pidfd for it.
    life: Option<Arc<OwnedFd>>,
    /// Whether the process is known to have ended. No word is awaited from then on.
    has_ended: AtomicBool,
    /// Those of the GPUs on which words of it are awaited.
    streams: Mutex<Vec<Arc<WordStream>>>,
    /// The thread's watch of the process.
    watched: OnceLock<Watched>,
}

impl Lender {
    /// Returns the process of a pidfd.
    pub(super) fn new(life: Option<Arc<OwnedFd>>) -> Arc<Self> {
        let (has_ended, streams, watched) = Default::default();
        Arc::new(Self { life, has_ended, streams, watched })
    }

    /// Makes later work of `stream` wait until the word of a loan is written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerDied`]; [`CudaFault::NoWords`]; [`CudaFault::Driver`].
    pub(super) fn await_word(
        self: &Arc<Self>,
        (loan, import): (&Arc<GpuLoan>, &Arc<Import>),
        (offset, value): (u64, u64),
        stream: &Stream,
    ) -> Result<Arc<AwaitedWord>> {
        let words = self.stream_of(stream.device())?;
        self.be_watched();
        let word = Waits::of_process().add(|place| AwaitedWord {
            lender: self.clone(),
            place,
            at: import.memory().start() + offset,
            value,
            state: Mutex::default(),
            answered: Condvar::new(),
            _import: import.clone(),
            loan: loan.clone(),
            stream: words,
        });
        // The thread stores the end before it reads the table, so one of the two sees the other.
        if self.has_ended.load(Ordering::Acquire) {
            return Err(ErrorKind::PeerDied.into());
        }
        stream.await_word(word.at, value)?;
        Ok(word)
    }

    /// Returns the stream for words of a GPU.
    fn stream_of(&self, device: &Device) -> Result<Arc<WordStream>> {
        let known = |streams: &[Arc<WordStream>]| {
            streams.iter().find(|stream| stream.device().is(device)).cloned()
        };
        if let Some(stream) = known(&self.streams()) {
            return Ok(stream);
        }
        let stream = WordStream::of(device)?;
        self.streams().push(stream.clone());
        Ok(stream)
    }

    /// Has the thread hear of the end of the process. If there is no thread now, the next word tries once more.
    fn be_watched(self: &Arc<Self>) {
        let Some(life) = self.life.clone().filter(|_| self.watched.get().is_none()) else { return };
        let (source, own): (_, Weak<Self>) = (Source::readable(life), Arc::downgrade(self));
        match returner::watch(Some(source), own) {
            // Another thread's stays, if it was faster.
            Some(watched) => drop(self.watched.set(watched)),
            None => {
                tracing::warn!("no thread to hear of the end of a peer: a stream may wait for it")
            }
        }
    }

    /// Returns whether the process has ended and writes nothing more.
    fn is_dead(&self) -> bool {
        self.life.as_ref().is_some_and(|life| has_ended(life.as_fd()))
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<WordStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Lender {
    fn look(&self) -> Next {
        if !self.is_dead() {
            return Next::Event;
        }
        self.has_ended.store(true, Ordering::Release);
        // Those of other peers are read, too.
        Waits::of_process().ask_all();
        Next::Over
    }
}

/// A word that a stream awaits.
#[derive(Debug)]
pub(super) struct AwaitedWord {
    lender: Arc<Lender>,
    place: Place,
    /// The address of the word.
    at: u64,
    value: u64,
    state: Mutex<State>,
    /// Signalled at each answer.
    answered: Condvar,
    /// It keeps the word mapped.
    _import: Arc<Import>,
    loan: Arc<GpuLoan>,
    stream: Arc<WordStream>,
}

#[derive(Debug, Default)]
struct State {
    fate: Fate,
    /// The questions so far, and those that are answered.
    asked: u64,
    answered: u64,
    /// Whether a question waits for its answer to be begun.
    is_asked: bool,
    /// The driver's last answer, if it refused.
    fault: Option<CudaFault>,
}

/// What is known of the bytes behind a word.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Their writer lives, or has ended unnoticed.
    #[default]
    Unknown,
    /// They are written.
    Written,
    /// They are not, and never will be.
    Unwritten,
}

impl AwaitedWord {
    /// Checks that the bytes which the stream got to read were written. It waits for the answer `until` then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerDied`]: their writer's process ended before, or the link did, where the kernel gives no pidfd;
    /// [`ErrorKind::TimedOut`]; [`CudaFault::Driver`].
    pub(super) fn check(self: &Arc<Self>, until: Option<Until>) -> Result<()> {
        // The check comes first: a child may find the lock taken forever.
        self.stream.device().driver().check_fork()?;
        let has_ended = match self.lender.life {
            Some(_) => self.lender.is_dead(),
            None => self.loan.lender_ended(),
        };
        let mut state = self.state();
        if state.fate == Fate::Unknown {
            state.asked += 1;
            let question = state.asked;
            drop(state);
            // An answer to an earlier question may be older than what the stream has read.
            self.clone().ask();
            state = self.await_answer(question, until)?;
        }
        match (state.fate, state.fault.clone()) {
            (Fate::Written, _) => Ok(()),
            (Fate::Unwritten, _) => Err(ErrorKind::PeerDied.into()),
            (Fate::Unknown, Some(fault)) => Err(fault.into()),
            (Fate::Unknown, None) if has_ended => Err(ErrorKind::PeerDied.into()),
            (Fate::Unknown, None) => Ok(()),
        }
    }

    fn await_answer(&self, question: u64, until: Option<Until>) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        while state.fate == Fate::Unknown && state.answered < question {
            let left = until.map_or(Ok(LONG), Until::left)?;
            if self.stream.is_watched() {
                let waited = self.answered.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                drop(state);
                self.stream.look();
                std::thread::sleep(PAUSE.0.min(left));
                state = self.state();
            }
        }
        Ok(state)
    }

    /// Returns the address.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Begins an answer. Returns the questions so far, and whether the writer is dead.
    pub(super) fn begin(&self) -> (u64, bool) {
        let is_dead = self.lender.is_dead();
        let mut state = self.state();
        state.is_asked = false;
        (state.asked, is_dead)
    }

    /// Returns whether the writer is dead.
    pub(super) fn is_dead(&self) -> bool {
        self.lender.is_dead()
    }

    /// Answers the questions until `covers`: this was read, after the writer's death if it `is_dead`. Returns whether the word is
    /// to be written in its place.
    pub(super) fn is_read(&self, word: u64, covers: u64, is_dead: bool) -> bool {
        let found = found(word, self.value);
        if found != Found::Less {
            self.place.open();
        }
        let mut state = self.state();
        match found {
            Found::Value => state.fate = Fate::Written,
            Found::Unwritten => state.fate = Fate::Unwritten,
            Found::Less if is_dead => state.fate = Fate::Unwritten,
            Found::Less => {}
        }
        state.fault = None;
        self.answer(state, covers);
        found == Found::Less && is_dead
    }

    /// Queues the write of the word in place of its writer.
    pub(super) fn mark(&self, stream: &Stream) -> Result<()> {
        stream.write_word(self.at, self.value.wrapping_add(UNWRITTEN))
    }

    /// Notes that the word is written in place of its writer.
    pub(super) fn is_marked(&self) {
        self.place.open();
    }

    /// Answers the questions until `covers`: the driver refuses.
    pub(super) fn is_refused(&self, covers: u64, error: &Error) {
        let mut state = self.state();
        if let ErrorKind::Cuda(fault) = error.kind() {
            state.fault = Some(fault.clone());
        }
        self.answer(state, covers);
    }

    fn answer(&self, mut state: MutexGuard<'_, State>, covers: u64) {
        state.answered = state.answered.max(covers);
        drop(state);
        self.answered.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wait for AwaitedWord {
    fn ask(self: Arc<Self>) {
        if !std::mem::replace(&mut self.state().is_asked, true) {
            self.stream.clone().ask(self);
        }
    }
}

impl Drop for AwaitedWord {
    fn drop(&mut self) {
        if is_ours() {
            self.place.leave();
        }
    }
}
