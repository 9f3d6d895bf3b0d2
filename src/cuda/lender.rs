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
//! 3. An awaited word keeps the memory that it lies in while this process reads or writes it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cuda::device::Device;
use crate::cuda::import::Import;
use crate::cuda::library::is_ours;
use crate::cuda::memory::Area;
use crate::cuda::returner::{self, Until, Watch};
use crate::cuda::stream::Stream;
use crate::cuda::words::{Found, UNWRITTEN, WORD, found};
use crate::error::{ErrorKind, Result};
use crate::handshake::has_ended;
use crate::tensor::GpuLoan;

/// A process that lends memory of a GPU to this one, on one link.
#[derive(Debug)]
pub(super) struct Lender {
    /// For reads and writes of words. Nothing on it waits.
    stream: Stream,
    /// `None`: the kernel gives no pidfd for it.
    life: Option<Arc<OwnedFd>>,
    words: Mutex<Words>,
}

/// The words that this process awaits.
#[derive(Debug, Default)]
struct Words {
    /// Whether the process has ended. No word is awaited from then on.
    has_ended: bool,
    next: u64,
    awaited: HashMap<u64, Weak<AwaitedWord>>,
}

impl Lender {
    /// Returns the process of a pidfd, which is watched from now on.
    pub(super) fn new(device: &Device, life: Option<Arc<OwnedFd>>) -> Result<Arc<Self>> {
        let (stream, words) = (device.stream()?, Mutex::default());
        let lender = Arc::new(Self { stream, life, words });
        let watch: Weak<Self> = Arc::downgrade(&lender);
        returner::watch(watch);
        Ok(lender)
    }

    /// Returns whether its words lie on this GPU.
    pub(super) fn is_on(&self, device: &Device) -> bool {
        self.stream.device().is(device)
    }

    /// Makes later work of `stream` wait until the word of a loan is written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerDied`]; [`CudaFault::NoWords`](crate::error::CudaFault::NoWords);
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver).
    pub(super) fn await_word(
        self: &Arc<Self>,
        (loan, import): (&Arc<GpuLoan>, &Arc<Import>),
        (offset, value): (u64, u64),
        stream: &Stream,
    ) -> Result<Arc<AwaitedWord>> {
        let at = import.memory().start() + offset;
        let mut words = self.words();
        if words.has_ended {
            return Err(ErrorKind::PeerDied.into());
        }
        let number = words.next;
        words.next += 1;
        let word = Arc::new(AwaitedWord {
            lender: self.clone(),
            number,
            at,
            value,
            fate: Mutex::new(Fate::Unknown),
            import: import.clone(),
            loan: loan.clone(),
        });
        words.awaited.insert(number, Arc::downgrade(&word));
        drop(words);
        // It is watched before the stream waits for it.
        stream.await_word(at, value)?;
        Ok(word)
    }

    /// Returns the words that somebody awaits.
    fn awaited(&self) -> Vec<Arc<AwaitedWord>> {
        self.words().awaited.values().filter_map(Weak::upgrade).collect()
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Lender {
    fn until(&self) -> Until {
        let words = self.words();
        match &self.life {
            Some(life) if !words.has_ended => Until::Readable(life.clone()),
            Some(_) if !words.awaited.is_empty() => Until::Paused,
            _ => Until::Rung,
        }
    }

    fn look(&self) -> bool {
        if !self.life.as_ref().is_some_and(|life| has_ended(life.as_fd())) {
            return false;
        }
        self.words().has_ended = true;
        // Words that cannot be read or written now stay, and are looked at after a pause.
        self.awaited().iter().map(|word| word.settle()).fold(true, |all, settled| {
            if let Err(error) = &settled {
                let error = format_args!("{error:#}");
                tracing::warn!(error, "a stream waits for a peer that has ended");
            }
            all && settled.is_ok()
        })
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        if is_ours() {
            // The thread no longer sleeps on that process's pidfd.
            returner::ring();
        }
    }
}

/// A word that a stream awaits.
#[derive(Debug)]
pub(super) struct AwaitedWord {
    lender: Arc<Lender>,
    /// In the lender's table.
    number: u64,
    /// The address of the word.
    at: u64,
    value: u64,
    fate: Mutex<Fate>,
    /// It keeps the word mapped.
    import: Arc<Import>,
    loan: Arc<GpuLoan>,
}

/// What is known of the bytes behind a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Their writer lives, or has ended unnoticed.
    Unknown,
    /// They are written.
    Written,
    /// They are not, and this process is to say so in the word.
    Unwritten,
    /// They are not, and the word says so.
    Marked,
}

impl AwaitedWord {
    /// Checks that the bytes which the stream got to read were written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PeerDied`]: their writer's process ended before, or the link did, where the kernel gives no pidfd;
    /// [`CudaFault::Driver`](crate::error::CudaFault::Driver).
    pub(super) fn check(&self) -> Result<()> {
        // The check comes first: a child may find the lock taken forever.
        self.lender.stream.device().driver().check_fork()?;
        let ended = match &self.lender.life {
            Some(life) => has_ended(life.as_fd()),
            None => self.loan.lender_ended(),
        };
        if !ended {
            return Ok(());
        }
        match self.settle()? {
            Fate::Unwritten | Fate::Marked => Err(ErrorKind::PeerDied.into()),
            Fate::Unknown | Fate::Written => Ok(()),
        }
    }

    /// Finds out whether a lender that has ended has written the word. Otherwise writes it, if the lender's process has ended.
    fn settle(&self) -> Result<Fate> {
        let mut fate = self.fate();
        let Self { lender, at, value, .. } = self;
        if *fate == Fate::Unknown {
            let (mut word, area) = ([0; WORD as usize], Area { start: *at, len: WORD as usize });
            area.copy_to_host(&mut word, &lender.stream)?;
            *fate = match found(u64::from_le_bytes(word), *value) {
                Found::Value => Fate::Written,
                Found::Less => Fate::Unwritten,
                Found::Unwritten => Fate::Marked,
            };
        }
        if *fate == Fate::Unwritten && lender.life.is_some() {
            lender.stream.write_word(*at, value.wrapping_add(UNWRITTEN))?;
            let written = lender.stream.synchronize();
            if written.is_err() && !lender.stream.wait_to_end() {
                // The word may be written at any time.
                std::mem::forget(self.import.clone());
            }
            written?;
            *fate = Fate::Marked;
        }
        Ok(*fate)
    }

    fn fate(&self) -> MutexGuard<'_, Fate> {
        self.fate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AwaitedWord {
    fn drop(&mut self) {
        if is_ours() {
            self.lender.words().awaited.remove(&self.number);
        }
    }
}
