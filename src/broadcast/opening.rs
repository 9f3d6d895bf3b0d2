//! The opening of a message that has more than its slot's bytes: its metadata, and its body in the publisher's pool.

use std::sync::Arc;

use crate::broadcast::record::Published;
use crate::broadcast::sample::{Body, Rare};
use crate::channel::attachment::borrow_held;
use crate::channel::hold::Hold;
use crate::channel::loan_descriptor as pooled;
use crate::channel::loan_descriptor::LoanDescriptor;
use crate::channel::segment_cache::SegmentCache;
use crate::channel::{Claims, ExtensionSlot, Metadata};
use crate::error::{Error, Fault, Result};
use crate::link::session::Session;
use crate::ring::Kind;
use crate::tensor::open_set;

/// Opens a message whose payload in the slot is in the buffer. Returns where the payload begins behind the metadata, and the rest.
/// A payload that has spilled replaces what is in the buffer.
pub(super) fn open(
    published: Published,
    (payload, len): (&mut Vec<u8>, &mut usize),
    (session, segments): (&Arc<Session>, &mut SegmentCache),
    hold: Option<&Hold<'_>>,
    extension: &mut Option<Arc<ExtensionSlot>>,
) -> Result<(usize, Rare)> {
    let header = published.header;
    let lie = || Error::from(Fault::RecordHeader { header: header.to_word() });
    if published.is_spilled {
        let hold = hold.ok_or_else(lie)?;
        let descriptor = payload.first_chunk().ok_or_else(lie)?;
        let descriptor = LoanDescriptor::decode(descriptor);
        let range = borrow_held(session, segments, &descriptor, hold)?;
        if range.bytes().len() as u64 != header.len() {
            return Err(lie());
        }
        *payload = range.bytes().try_to_vec()?;
        range.check()?;
        *len = payload.len();
    }
    let (metadata, rest) = published.split(&payload[..*len])?;
    let start = *len - rest.len();
    if header.kind() == Kind::Message {
        let body = match (header.is_pooled(), hold) {
            (false, _) => Body::Slot,
            (true, Some(hold)) => {
                let descriptor = rest.first_chunk().ok_or_else(lie)?;
                let descriptor = LoanDescriptor::decode(descriptor);
                Body::Block(borrow_held(session, segments, &descriptor, hold)?)
            }
            (true, None) => return Err(lie()),
        };
        return Ok((start, Rare { metadata, body }));
    }
    let table = header.attachments() * pooled::LEN;
    let (table, description) = rest.split_at_checked(table).ok_or_else(lie)?;
    let mut claims = Claims::held((session, segments), table, hold, Metadata::new(), extension);
    let set = open_set(description, &mut claims)?;
    claims.finish()?;
    Ok((start, Rare { metadata, body: Body::Tensors(set) }))
}
