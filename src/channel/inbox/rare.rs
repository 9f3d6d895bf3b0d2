//! The slow path of the inbox: triggers, packets, and messages with an envelope or in a segment that is not cached.

use std::time::Instant;

use crate::channel::inbox::{Flow, Inbox, RecordHead};
use crate::error::{Fault, Result, TryRecvError};
use crate::patience::RecvPatience;
use crate::ring::{Header, Kind, Record, largest_payload};

/// The most packets records after the end of the socket for which no packet came. A writer sends a packet before each of
/// them, so an honest one has none.
const SURPLUS: u64 = 1024;

/// The most triggers in a row from a peer that was given no token.
pub(crate) const TOKENS: u32 = 1 << 16;

/// The most of them that a caller that does not wait handles at a time: some microseconds. An honest peer sends none.
pub(crate) const TURN: u32 = 256;

impl Inbox {
    /// Checks a record that is no plain message. Acts on triggers and packets, and waits for the record after them.
    #[cold]
    pub(crate) fn check_rare(
        &mut self,
        mut record: Record,
        patience: RecvPatience,
    ) -> Result<Option<RecordHead>, TryRecvError> {
        let mut start = None;
        loop {
            match record.header.kind() {
                Kind::Close => {
                    self.flow = Flow::Closed;
                    return Ok(None);
                }
                Kind::Trigger if self.takes_triggers => {
                    let offset = record.offset;
                    self.token(record).map_err(|fault| self.fail(fault))?;
                    return Ok(Some(RecordHead { header: record.header, offset, len: 4 }));
                }
                Kind::Trigger => {
                    self.token(record).map_err(|fault| self.fail(fault))?;
                    self.stats.stale_tokens += 1;
                    let tokens = self.count_stray_token();
                    if tokens == TOKENS {
                        return Err(self.fail(Fault::UnexpectedTokens { count: TOKENS }).into());
                    }
                    self.discard(record.header);
                    if tokens.is_multiple_of(TURN) && matches!(patience, RecvPatience::None) {
                        return Err(TryRecvError::Empty);
                    }
                    record = self.await_record(patience)?;
                }
                Kind::Packets => {
                    let start = *start.get_or_insert_with(Instant::now);
                    if !self.take_packets(record.header).map_err(|error| self.fail(error))? {
                        self.await_share(patience)?;
                        continue;
                    }
                    self.discard(record.header);
                    // Reading the socket takes time.
                    patience.check(start)?;
                    if matches!(patience, RecvPatience::None) && self.is_turn_over(start) {
                        return Err(TryRecvError::Empty);
                    }
                    record = self.await_record(patience)?;
                }
                Kind::Moved => {
                    if !self.follow().map_err(|error| self.fail(error))? {
                        self.await_share(patience)?;
                        continue;
                    }
                    record = self.await_record(patience)?;
                }
                // A lack of our own memory or descriptors ends the link, too: the record's contents are lost.
                _ => {
                    let checked = self.check_envelope(record).map_err(|error| self.fail(error))?;
                    if checked.is_some() {
                        return Ok(checked);
                    }
                    self.await_share(patience)?;
                }
            }
        }
    }

    /// Returns whether an operation that began at `start` has taken a turn of a thread that serves several peers.
    fn is_turn_over(&self, start: Instant) -> bool {
        self.link.control_socket().is_turn_over(start)
    }

    /// Counts a trigger that nobody takes. Returns how many there were after the last message.
    fn count_stray_token(&mut self) -> u32 {
        let messages = self.stats.messages;
        let (since, count) = &mut self.stray_tokens;
        *count = if *since == messages { *count + 1 } else { 1 };
        *since = messages;
        *count
    }

    /// Returns the token of a trigger.
    pub(crate) fn token(&self, record: Record) -> Result<u32, Fault> {
        let header = record.header;
        if header.is_pooled() || header.len() != 4 {
            return Err(Fault::RecordHeader { header: header.to_word() });
        }
        let mut token = [0; 4];
        self.ring.bytes(record.offset, 4).copy_to(&mut token);
        Ok(u32::from_le_bytes(token))
    }

    /// Goes on in the second ring of the peer, which is on the socket. Returns `false` if the socket rests before it has come.
    fn follow(&mut self) -> Result<bool> {
        let capacity = self.link.terms().peer.second_ring;
        let mut control_socket = self.link.control_socket();
        if !control_socket.fetch_ring(self.link.socket())? {
            return Ok(false);
        }
        let ring = control_socket.take_ring(self.link.socket())?;
        drop(control_socket);
        self.discard(Header::MOVED);
        self.consumer.move_to(&ring, 0, capacity);
        self.ring = ring;
        self.plain_max = self.max_message.min(largest_payload(capacity));
        // At most one ring of records is left here, too.
        self.ended_at = None;
        Ok(true)
    }

    /// Reads the socket. The peer sends no more packets until this side has read the ones that wait. Returns `false` if the
    /// socket rests and packets may be left.
    fn take_packets(&mut self, header: Header) -> Result<bool> {
        if header.is_pooled() || header.len() != 0 {
            return Err(Fault::RecordHeader { header: header.to_word() }.into());
        }
        let mut control_socket = self.link.control_socket();
        let is_done = control_socket.take(self.link.socket())?;
        // A record that waits for the socket is counted once.
        self.packets_records += u64::from(is_done);
        let records = self.packets_records;
        self.segments.forget_retired(self.link.retires());
        match control_socket.packets_at_end() {
            Some(packets) if records > packets.saturating_add(SURPLUS) => {
                Err(Fault::PacketsAfterEnd { records, packets }.into())
            }
            _ => Ok(is_done),
        }
    }
}
