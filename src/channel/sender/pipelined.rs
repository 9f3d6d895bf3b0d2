//! A long message that the sender copies in while the receiver already copies it out; see `pipeline`.

use crate::channel::envelope::Envelope;
use crate::channel::loan_descriptor::LoanDescriptor;
use crate::channel::pipeline::{BEHIND_ID, LONG, PIECE, tell};
use crate::channel::sender::Sender;
use crate::handshake::layout;

impl Sender {
    /// Copies a message into its block. The receiver of a long message is told after each piece, unless metadata stands in
    /// front of the descriptor, where the receiver looks for it.
    pub(crate) fn fill(&mut self, envelope: Envelope<'_>, message: &[u8]) {
        let tells = message.len() >= LONG
            && envelope.metadata.is_empty()
            && self.write_payload(envelope, message.len());
        if !tells {
            self.pooled.block.bytes_mut().copy_from_slice(message);
            return;
        }
        let behind = if envelope.id.is_some() { BEHIND_ID } else { 0 };
        let (mut filled, mut is_rung) = (0, false);
        for piece in message.chunks(PIECE) {
            let end = filled + piece.len();
            self.pooled.block.part_mut(filled, piece.len()).copy_from_slice(piece);
            filled = end;
            if filled < message.len() {
                tell(self.link.own(), layout::FILLED, filled as u64 | behind);
                is_rung = is_rung || self.announce_ahead();
            }
        }
        // The record is published after this, and the next message's descriptor is written after the record.
        tell(self.link.own(), layout::FILLED, 0);
    }

    /// Wakes a receiver that is asleep and eager. Returns `false` if there is none.
    fn announce_ahead(&mut self) -> bool {
        let link = &*self.link;
        let is_rung = self.data.look_ahead(link.own(), link.peer());
        if is_rung {
            self.count_wake();
            self.session.link.wake(self.data.bell());
        }
        is_rung
    }

    /// Writes the payload of the coming record to its place in the ring. Returns `false` if no loan slot is free.
    fn write_payload(&mut self, envelope: Envelope<'_>, len: usize) -> bool {
        if self.promise.is_none() {
            self.promise = self.ask_promise();
        }
        let Some((promise, place)) = self.promise.as_ref().zip(self.pooled.block.place()) else {
            return false;
        };
        let descriptor = LoanDescriptor::new(&promise.loan(place), len as u64).to_words();
        self.ring.put_words(self.pooled.offset + envelope.len(), &descriptor);
        self.write_envelope(self.pooled.offset, envelope);
        true
    }
}
