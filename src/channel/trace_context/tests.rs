//! Unit tests of `channel::trace_context`.

use super::*;
use crate::error::{ErrorKind, MetadataFault};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Returns a context with the span of [`PARENT`].
fn context(state: &str) -> Context {
    let trace = TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
    let id = SpanId::from_hex("00f067aa0ba902b7").unwrap();
    let state = TraceState::from_str(state).unwrap();
    let span = SpanContext::new(trace, id, TraceFlags::SAMPLED, false, state);
    Context::new().with_remote_span_context(span)
}

fn remote(parent: &str) -> SpanContext {
    let metadata = Metadata::of([(TRACEPARENT, parent.into())]).unwrap();
    metadata.remote_context().span().span_context().clone()
}

#[test]
fn what_is_injected_is_extracted() {
    let mut metadata = Metadata::of([("frame", 7.into())]).unwrap();
    metadata.inject(&context("vendor=1,other=2")).unwrap();
    let values: Vec<_> = metadata.iter().collect();
    let expected = [
        ("frame", Value::Integer(7)),
        (TRACEPARENT, Value::String(PARENT)),
        (TRACESTATE, Value::String("vendor=1,other=2")),
    ];
    assert_eq!(values, expected);
    let found = metadata.remote_context();
    let (found, sent) = (found.span().span_context().clone(), context("vendor=1,other=2"));
    let sent = sent.span().span_context().clone();
    assert!(found.is_remote());
    assert_eq!(
        (found.trace_id(), found.span_id(), found.trace_flags(), found.trace_state()),
        (sent.trace_id(), sent.span_id(), sent.trace_flags(), sent.trace_state())
    );
}

#[test]
fn a_context_without_a_span_writes_nothing() {
    let mut metadata = Metadata::new();
    metadata.inject(&Context::new()).unwrap();
    assert!(metadata.is_empty());
    assert!(!metadata.remote_context().has_active_span());
}

#[test]
fn a_bad_traceparent_is_none() {
    let bad = [
        "",
        "00",
        &PARENT[1..],
        &PARENT[..54],
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-", // version 0 ends there
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
        "0-04bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473é-0f067aa0ba902b7-01",
        "é0-4bf92f3577b34da6a3ce929d0e0e4736-0f067aa0ba902b7-01",
    ];
    for parent in bad {
        assert_eq!(remote(parent), SpanContext::NONE, "{parent}");
    }
    let number = Metadata::of([(TRACEPARENT, 7.into())]).unwrap();
    assert!(!number.remote_context().has_active_span());
}

#[test]
fn a_later_version_and_unknown_flags_are_read() {
    for parent in [
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff-more",
    ] {
        let span = remote(parent);
        assert_eq!(span.span_id().to_string(), "00f067aa0ba902b7", "{parent}");
        assert_eq!(span.trace_flags(), TraceFlags::SAMPLED, "{parent}");
    }
    assert!(!remote(&PARENT.replace("-01", "-00")).is_sampled());
}

#[test]
fn a_bad_tracestate_leaves_the_parent() {
    let values = [(TRACEPARENT, PARENT.into()), (TRACESTATE, "no equals sign".into())];
    let context = Metadata::of(values).unwrap().remote_context();
    assert_eq!(context.span().span_context().trace_state(), &TraceState::default());
    assert!(context.span().span_context().is_valid());
}

#[test]
fn the_new_parent_replaces_the_old_one() {
    let old = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let values =
        [(TRACEPARENT, old.into()), ("user", "ann".into()), (TRACESTATE, "vendor=1".into())];
    let mut metadata = Metadata::of(values).unwrap();
    metadata.inject(&context("")).unwrap();
    let values: Vec<_> = metadata.iter().collect();
    assert_eq!(values, [("user", Value::String("ann")), (TRACEPARENT, Value::String(PARENT))]);
}

#[test]
fn what_does_not_fit_is_left_out_and_the_parent_at_last() {
    let long = format!("vendor={}", "x".repeat(249));
    let mut metadata = Metadata::new();
    metadata.inject(&context(&long)).unwrap();
    assert_eq!(metadata.iter().collect::<Vec<_>>(), [(TRACEPARENT, Value::String(PARENT))]);

    // 512 bytes of entries: 443 leave the 69 of `traceparent`.
    for (second, fits) in [(180, true), (181, false)] {
        let (first, second) = ("x".repeat(255), "x".repeat(second));
        let mut metadata = Metadata::of([("a", (&first).into())]).unwrap();
        metadata.insert("b", &second).unwrap();
        let before = metadata.clone();
        let injected = metadata.inject(&context("vendor=1"));
        assert_eq!(metadata.get("a"), before.get("a"));
        assert_eq!(metadata.get("b"), before.get("b"));
        assert_eq!(metadata.len(), if fits { 3 } else { 2 });
        if !fits {
            let error = injected.unwrap_err();
            let full = ErrorKind::Metadata(MetadataFault::Len { len: 513, max: 512 });
            assert_eq!(*error.kind(), full);
        }
    }
}
