//! A loan whose last use is under way on the borrower's stream. It goes back when that use is over.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::closer::{self, Parked};
use crate::cuda::event::Event;
use crate::cuda::imports::Import;
use crate::cuda::stream::Stream;
use crate::error::Result;
use crate::tensor::{GpuLoan, GpuOrder};

/// A use that ends.
struct Returning {
    /// Recorded after the use. `None` during the drop.
    event: Option<Event>,
    /// The stream, while it may wait for a word that a dead lender never writes.
    waiting: Mutex<Option<Stream>>,
    import: Arc<Import>,
    loan: Arc<GpuLoan>,
}

/// Gives a loan back when the work that `stream` has got so far is over.
pub(super) fn give_back(
    (loan, import): (&Arc<GpuLoan>, &Arc<Import>),
    stream: &Stream,
) -> Result<()> {
    if stream.is_idle().unwrap_or(false) {
        return Ok(());
    }
    let event = Some(import.recorded(stream)?);
    let waits = matches!(loan.place.order, GpuOrder::Word { .. });
    let waiting = Mutex::new(waits.then(|| stream.clone()));
    closer::end(Returning { event, waiting, import: import.clone(), loan: loan.clone() });
    Ok(())
}

impl Returning {
    /// Writes the word in place of a lender that has ended: its streams write nothing any more. All that wait for the word
    /// are uses of this lender's memory.
    fn release_stream(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(stream), GpuOrder::Word { offset, value }) = (&*waiting, self.loan.place.order)
        else {
            return;
        };
        if !self.loan.lender_ended() {
            return;
        }
        let word = self.import.memory().start() + offset;
        let written = stream.device().stream().and_then(|own| own.write_word(word, value));
        if let Err(error) = written {
            let error = format_args!("{error:#}");
            tracing::warn!(error, "a stream waits for a peer that has ended");
        }
        *waiting = None;
    }
}

impl Parked for Returning {
    fn is_over(&self) -> bool {
        let is_over = self.event.as_ref().is_none_or(Event::is_over);
        if !is_over {
            self.release_stream();
        }
        is_over
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.import.put_spare(event);
        }
    }
}
