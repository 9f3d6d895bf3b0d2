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
    wait: Mutex<Wait>,
    import: Arc<Import>,
    loan: Arc<GpuLoan>,
}

/// What the borrower's stream may wait for.
enum Wait {
    /// Nothing that a lender's end keeps from coming.
    Events,
    /// This stream waits for a word that a dead lender never writes.
    Word(Stream),
    /// This process writes the word on a stream of its own, and so uses the memory until that is done.
    Written(Stream),
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
    let wait = Mutex::new(if waits { Wait::Word(stream.clone()) } else { Wait::Events });
    closer::give_back(Returning { event, wait, import: import.clone(), loan: loan.clone() });
    Ok(())
}

impl Returning {
    /// Writes the word in place of a lender that has ended: its streams write nothing any more. All that wait for the word
    /// are uses of this lender's memory.
    fn release_stream(&self, wait: &mut Wait) {
        let (Wait::Word(stream), GpuOrder::Word { offset, value }) =
            (&*wait, self.loan.place.order)
        else {
            return;
        };
        if !self.loan.lender_ended() {
            return;
        }
        let word = self.import.memory().start() + offset;
        let own = stream.device().stream();
        match own.and_then(|own| own.write_word(word, value).map(|()| own)) {
            Ok(own) => *wait = Wait::Written(own),
            Err(error) => {
                let error = format_args!("{error:#}");
                tracing::warn!(error, "a stream waits for a peer that has ended");
            }
        }
    }
}

impl Parked for Returning {
    fn is_over(&self) -> bool {
        let mut wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        if self.event.as_ref().is_none_or(Event::is_over) {
            return match &*wait {
                Wait::Written(own) => own.is_idle().unwrap_or(false),
                _ => true,
            };
        }
        self.release_stream(&mut wait);
        false
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.import.put_spare(event);
        }
    }
}
