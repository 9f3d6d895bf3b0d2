//! Unit tests of `channel::backlog`.

use super::*;
use crate::account::Limits;
use crate::channel::message::RequestId;

fn kept(kind: MessageKind, len: usize) -> KeptMessage {
    let (metadata, attachments) = (Metadata::new(), Vec::new());
    KeptMessage { kind, body: vec![0; len], metadata, attachments, charge: None }
}

#[test]
fn a_backlog_keeps_order_within_a_kind_and_its_limit() {
    let mut backlog = Backlog::new(1000, Account::of_link((0, None), Limits::default()));
    backlog.admit(5000, true).unwrap();
    backlog.push(kept(MessageKind::Message, 100));
    backlog.push(kept(MessageKind::Request(RequestId(9)), 200));
    backlog.push(kept(MessageKind::Message, 300));
    assert!(backlog.admit(500, true).is_err());
    assert_eq!(backlog.take(|kind| *kind == MessageKind::Message).unwrap().body.len(), 100);
    assert_eq!(backlog.take(|kind| *kind == MessageKind::Message).unwrap().body.len(), 300);
    assert!(backlog.take(|kind| *kind == MessageKind::Message).is_none());
    backlog.admit(500, true).unwrap();
}
