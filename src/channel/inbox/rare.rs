//! The slow path of the inbox: triggers, packets, requests, responses, and messages whose segment is not cached.

use std::time::Instant;

use crate::channel::inbox::{Flow, Inbox, RecordHead};
use crate::channel::loan_descriptor as pooled;
use crate::channel::message::RequestId;
use crate::error::{Fault, Result, TryRecvError};
use crate::patience::RecvPatience;
use crate::ring::{Header, Kind, Record};

/// The most triggers in a row from a peer that was given no token.
const TOKENS: u32 = 1 << 16;

impl Inbox {
    /// Checks a record that is no plain message. Acts on triggers and packets, and waits for the record after them.
    #[cold]
    pub(crate) fn check_rare(
        &mut self,
        mut record: Record,
        patience: RecvPatience,
    ) -> Result<Option<RecordHead>, TryRecvError> {
        let (mut start, mut tokens) = (None, 0);
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
                    tokens += 1;
                    if tokens == TOKENS {
                        return Err(self.fail(Fault::UnexpectedTokens { count: TOKENS }).into());
                    }
                    self.discard(record.header);
                    record = self.await_record(patience)?;
                }
                Kind::Packets => {
                    let start = *start.get_or_insert_with(Instant::now);
                    self.take_packets(record.header).map_err(|error| self.fail(error))?;
                    self.discard(record.header);
                    // Reading the socket takes time.
                    patience.check(start)?;
                    record = self.await_record(patience)?;
                }
                Kind::Tensors => return self.check_record(record, patience),
                // A lack of our own memory or descriptors ends the link, too: the record's contents are lost.
                _ => {
                    return Ok(Some(
                        self.check_envelope(record).map_err(|error| self.fail(error))?,
                    ));
                }
            }
        }
    }

    /// Returns the token of a trigger.
    pub(crate) fn token(&self, record: Record) -> Result<u32, Fault> {
        let header = record.header;
        if header.is_pooled() || header.len() != 4 {
            return Err(Fault::RecordHeader { header: header.to_word() });
        }
        let mut token = [0; 4];
        self.link.peer().bytes(record.offset, 4).copy_to(&mut token);
        Ok(u32::from_le_bytes(token))
    }

    /// Reads the socket. The peer sends no more packets until this side has read the ones that wait.
    fn take_packets(&mut self, header: Header) -> Result<()> {
        if header.is_pooled() || header.len() != 0 {
            return Err(Fault::RecordHeader { header: header.to_word() }.into());
        }
        let mut control_socket = self.link.control_socket();
        control_socket.take(self.link.socket())?;
        self.segments.forget_retired(self.link.retires());
        Ok(())
    }

    /// Checks a request, a response, or a message in the pool.
    fn check_envelope(&mut self, record: Record) -> Result<RecordHead> {
        let header = record.header;
        let payload = self.link.peer().bytes(record.offset, header.len() as usize);
        let envelope = if header.kind() == Kind::Message { 0 } else { 8 };
        let fixed = envelope + if header.is_pooled() { pooled::LEN } else { 0 };
        if payload.len() < fixed || header.is_pooled() && payload.len() != fixed {
            return Err(Fault::RecordHeader { header: header.to_word() }.into());
        }
        let mut id = [0; 8];
        payload.slice(0, envelope).copy_to(&mut id[..envelope]);
        self.id = RequestId(u64::from_le_bytes(id));
        let offset = record.offset + envelope;
        let link = &self.link;
        let max = link.terms().max_message;
        if !header.is_pooled() {
            let len = payload.len() - envelope;
            if len as u64 > max {
                return Err(Fault::MessageLength { len: len as u64, max }.into());
            }
            return Ok(RecordHead { header, offset, len });
        }
        let descriptor = self.descriptor(record, envelope)?;
        self.open_window_for(descriptor.segment);
        self.borrow(descriptor)?;
        Ok(self.pooled_head(Record { header, offset }))
    }
}
