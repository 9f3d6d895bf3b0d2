//! Memory whose last use is under way on a stream: a loan, which goes back when that use is over, and memory of this process that
//! a stream of another GPU uses, which is used again then.

use std::sync::Arc;

use crate::cuda::event::Event;
use crate::cuda::import::Import;
use crate::cuda::lender::AwaitedWord;
use crate::cuda::parked::Parked;
use crate::cuda::returner;
use crate::cuda::store::OwnedTensor;
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

/// A use of memory of this process that ends.
struct Ending {
    /// Recorded after the use.
    event: Event,
    _tensor: Arc<OwnedTensor>,
}

/// Lets go of memory of this process when the work that `stream` has got so far is over. The stream is of another GPU, whose
/// events the memory's pool does not have.
pub(super) fn end_behind(tensor: &Arc<OwnedTensor>, stream: &Stream) -> Result<()> {
    if stream.is_idle().unwrap_or(false) {
        return Ok(());
    }
    let event = Event::private(stream.device())?;
    event.record(stream)?;
    returner::give_back(stream.lane(), Ending { event, _tensor: tensor.clone() });
    Ok(())
}

impl Parked for Ending {
    fn is_over(&self) -> bool {
        self.event.is_over()
    }
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
