//! Records with an envelope: the id of a request or response, and metadata.

use crate::channel::inbox::{Inbox, RecordHead};
use crate::channel::loan_descriptor as pooled;
use crate::channel::message::RequestId;
use crate::channel::metadata::{LONGEST, Metadata};
use crate::error::{Fault, Result};
use crate::ring::{Header, Kind, Record};

impl Inbox {
    /// Checks a request, a response, a message in the pool, or any message with metadata. `None`: it needs the socket, which
    /// rests.
    pub(super) fn check_envelope(&mut self, record: Record) -> Result<Option<RecordHead>> {
        let header = record.header;
        let envelope = self.open_envelope(record)?;
        // The envelope lies within the payload.
        let (offset, len) = (record.offset + envelope, header.len() as usize - envelope);
        let head = RecordHead { header, offset, len };
        if header.has_tensors() {
            self.check_tensors(&head)?;
            return Ok(Some(head));
        }
        if !header.is_pooled() {
            let max = self.link.terms().max_message;
            if len as u64 > max {
                return Err(Fault::MessageLength { len: len as u64, max }.into());
            }
            return Ok(Some(head));
        }
        if len != pooled::LEN {
            return Err(Fault::RecordHeader { header: header.to_word() }.into());
        }
        let descriptor = self.descriptor(record, envelope)?;
        if !self.is_at_hand(descriptor.segment)? {
            return Ok(None);
        }
        self.open_window_for(descriptor.segment);
        self.borrow(descriptor)?;
        Ok(Some(self.pooled_head(Record { header, offset })))
    }

    /// Reads the id and the metadata of a record. Returns their length in bytes.
    fn open_envelope(&mut self, record: Record) -> Result<usize> {
        let header = record.header;
        let payload = self.ring.bytes(record.offset, header.len() as usize);
        let too_short = || Fault::RecordHeader { header: header.to_word() };
        let mut envelope = 0;
        if !matches!(header.kind(), Kind::Message | Kind::Tensors) {
            let mut id = [0; 8];
            if payload.len() < id.len() {
                return Err(too_short().into());
            }
            payload.slice(0, id.len()).copy_to(&mut id);
            self.id = RequestId(u64::from_le_bytes(id));
            envelope = id.len();
        }
        if !header.has_metadata() {
            return Ok(envelope);
        }
        // The head is read with the rest, and once: the peer may change it meanwhile.
        let most = LONGEST.min(payload.len() - envelope);
        let mut bytes = [0; LONGEST];
        payload.slice(envelope, most).copy_to(&mut bytes[..most]);
        let section = Metadata::section_len([bytes[0], bytes[1]]).map_err(Fault::Metadata)?;
        if section > most {
            return Err(too_short().into());
        }
        self.metadata.replace(&bytes[..section])?;
        Ok(envelope + section)
    }

    /// Returns the metadata of the record at the ring's position.
    pub(crate) fn metadata(&self, head: &RecordHead) -> &Metadata {
        const NONE: &Metadata = &Metadata::new();
        if head.header.has_metadata() { &self.metadata } else { NONE }
    }

    /// Takes the metadata of a record that the caller releases.
    #[inline]
    pub(super) fn take_metadata(&mut self, header: Header) -> Metadata {
        if header.has_metadata() { std::mem::take(&mut self.metadata) } else { Metadata::new() }
    }
}
