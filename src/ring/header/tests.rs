//! Unit tests of `ring::header`.

use super::*;

#[test]
fn every_header_survives_its_word() {
    for kind in [Kind::Message, Kind::Request, Kind::Response, Kind::Trigger] {
        for len in [0, 1, 48, 57, 512, 513, u32::MAX] {
            let (plain, pooled) = (Header::new(kind, len), Header::pooled(kind, len));
            for header in [plain, pooled, plain.with_more(), pooled.with_more()] {
                assert_ne!(header.to_word() as u32, 0, "the low half marks a record");
                assert_eq!(Header::from_word(header.to_word()), Ok(header));
                assert_eq!((header.kind(), header.len()), (kind, len.into()));
            }
            assert!(plain.with_more().more() && !plain.more());
            assert!(pooled.is_pooled() && !plain.is_pooled());
            for header in [plain, pooled, plain.with_more(), pooled.with_more()] {
                let sooner = Header::plain_from_word(header.to_word());
                assert_eq!(sooner.is_some(), header.is_plain());
                let is_alone = header.is_plain() && !header.more();
                assert_eq!(header.is_line(), is_alone && u64::from(len) <= SHORT);
            }
            assert_eq!(plain.with_more().is_plain(), kind == Kind::Message);
            assert!(!pooled.is_plain());
        }
    }
}

#[test]
fn a_header_with_metadata_is_no_plain_one() {
    let tensors = Header::tensors(Kind::Tensors, 1, 100);
    assert!(tensors.is_single() && tensors.is_plain_tensors());
    let [message, request] = [Kind::Message, Kind::Request].map(|kind| Header::new(kind, 100));
    for plain in [message, request, Header::pooled(Kind::Message, 100), tensors] {
        for header in [plain.with_metadata(), plain.with_metadata().with_more()] {
            assert_eq!(Header::from_word(header.to_word()), Ok(header));
            assert!(header.has_metadata() && !plain.has_metadata());
            assert_eq!((header.kind(), header.len()), (plain.kind(), 100));
            assert!(!header.is_plain() && !header.is_line());
            assert!(!header.is_single() && !header.is_plain_tensors());
            assert!(Header::plain_from_word(header.to_word()).is_none());
        }
    }
    for kind in [Kind::Close, Kind::Trigger, Kind::Packets] {
        assert!(Header::from_word(Header::new(kind, 0).with_metadata().to_word()).is_err());
    }
}

#[test]
fn a_lying_header_is_a_fault() {
    let close = Header::new(Kind::Close, 0).to_word();
    assert_eq!(Header::from_word(close).map(Header::kind), Ok(Kind::Close));
    for bit in 12..32 {
        assert!(Header::from_word(1 | 1 << bit).is_err(), "bit {bit} must be zero");
        assert!(Header::plain_from_word(1 | 1 << bit).is_none(), "bit {bit}");
    }
    let tensors = Header::tensors(Kind::Tensors, 3, 100);
    assert_eq!(Header::from_word(tensors.to_word()), Ok(tensors));
    assert_eq!((tensors.kind(), tensors.attachments(), tensors.version()), (Kind::Tensors, 3, 1));
    for kind in [Kind::TensorRequest, Kind::TensorResponse] {
        let header = Header::tensors(kind, 1, 100);
        assert_eq!(Header::from_word(header.to_word()), Ok(header));
        assert!(header.kind() == kind && header.has_tensors());
        assert!(!header.is_single() && !header.is_plain_tensors() && !header.is_plain());
        let long = header.with_long_description();
        assert_eq!(Header::from_word(long.to_word()), Ok(long));
        assert!(long.is_pooled() && !header.is_pooled());
        assert!(Header::single_from_word(long.to_word()).is_none());
        assert!(Header::plain_from_word(header.to_word()).is_none());
    }
    let long = tensors.with_long_description();
    assert_eq!(Header::from_word(long.to_word()), Ok(long));
    for bit in 12..16 {
        assert!(Header::from_word(tensors.to_word() | 1 << bit).is_err(), "bit {bit}");
    }
    for kind in (10..=255).chain([0]) {
        assert!(Header::from_word(kind | 8 << 32).is_err(), "kind {kind} is none");
        assert!(Header::plain_from_word(kind | 8 << 32).is_none(), "kind {kind}");
    }
    for word in [close | MORE, close | POOLED, close | TIGHT, close | 1 << 32] {
        assert!(Header::from_word(word).is_err(), "a close has neither flags nor payload");
    }
}

#[test]
fn a_single_tensor_is_told_by_its_word() {
    let is_single = |header: Header| {
        let single = Header::single_from_word(header.to_word());
        assert!(single.is_none_or(|single| single == header && header.is_single()));
        single.is_some()
    };
    for len in 0..=100 {
        let header = Header::tensors(Kind::Tensors, 1, len);
        assert!(is_single(header), "{len} bytes");
        let loose = Header(header.to_word() & !TIGHT);
        assert_eq!(is_single(loose), u64::from(len) <= SHORT, "{len} bytes, not tight");
        assert!(!is_single(header.with_more()) && !is_single(header.with_metadata()));
    }
    for attachments in [0, 2, 255] {
        assert!(!is_single(Header::tensors(Kind::Tensors, attachments, 48)));
    }
    for kind in [Kind::TensorRequest, Kind::TensorResponse] {
        assert!(!is_single(Header::tensors(kind, 1, 48)));
    }
    let single = Header::tensors(Kind::Tensors, 1, 48).to_word();
    for bit in (0..32).filter(|bit| 1u64 << bit != TIGHT) {
        assert!(Header::single_from_word(single ^ 1 << bit).is_none(), "bit {bit}");
    }
}
