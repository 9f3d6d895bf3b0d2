//! A loan whose last use is under way on a stream. It goes back when that use is over.

use std::sync::Arc;

use crate::cuda::event::Event;
use crate::cuda::import::Import;
use crate::cuda::lender::AwaitedWord;
use crate::cuda::parked::Parked;
use crate::cuda::returner;
use crate::cuda::stream::Stream;
use crate::error::Result;
use crate::tensor::GpuLoan;

/// A use that ends.
struct Returning {
    /// Recorded after the use. `None` during the drop.
    event: Option<Event>,
    /// The word that the stream awaits. Its lender's end is watched until the use is over.
    _word: Option<Arc<AwaitedWord>>,
    import: Arc<Import>,
    _loan: Arc<GpuLoan>,
}

/// Gives a loan back when the work that `stream` has got so far is over.
pub(super) fn give_back(
    (loan, import): (&Arc<GpuLoan>, &Arc<Import>),
    word: Option<&Arc<AwaitedWord>>,
    stream: &Stream,
) -> Result<()> {
    if stream.is_idle().unwrap_or(false) {
        return Ok(());
    }
    let event = Some(import.recorded(stream)?);
    let (_word, import, _loan) = (word.cloned(), import.clone(), loan.clone());
    returner::give_back(stream.lane(), Returning { event, _word, import, _loan });
    Ok(())
}

impl Parked for Returning {
    fn is_over(&self) -> bool {
        self.event.as_ref().is_none_or(Event::is_over)
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.import.put_spare(event);
        }
    }
}
