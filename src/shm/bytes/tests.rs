//! Unit tests of `shm::bytes`.

use std::thread;

use super::*;

// Miri accepts these tests: `cargo +nightly miri test --lib shm::bytes`.

#[test]
fn bytes_that_nobody_writes_are_read_by_every_method() {
    static CONSTANT: [u8; 331] = [7; 331];
    let owned: Vec<u8> = (0..331).map(|value| value as u8).collect();
    for slice in [&CONSTANT[..], &owned, &owned[3..], &owned[..5]] {
        let bytes = Bytes::of(slice);
        assert_eq!(bytes.to_vec(), slice);
        assert_eq!(bytes.byte(1), slice[1]);
        let start = bytes.start.align_offset(8);
        let aligned = bytes.slice(start.min(bytes.len()), bytes.len().saturating_sub(start));
        if let Some([word]) = aligned.words::<1>() {
            assert_eq!(word.to_ne_bytes(), slice[start..start + 8]);
            let lines = aligned.lines();
            let rest = lines.remainder().to_vec();
            let mut read: Vec<u8> = lines.flatten().flat_map(u64::to_ne_bytes).collect();
            read.extend(rest);
            assert_eq!(read, slice[start..]);
        }
        let mut copy = vec![0; slice.len()];
        BytesMut::of(&mut copy).copy_from_bytes(bytes);
        assert_eq!(copy, slice);
    }
}

/// Under Miri this finds stores and loads of mixed sizes that race.
#[test]
fn threads_that_share_a_view_mix_their_bytes_and_do_nothing_worse() {
    let mut memory = vec![0u8; 700];
    let view = BytesMut::of(&mut memory);
    let rounds = if cfg!(miri) { 3 } else { 2000 };
    thread::scope(|scope| {
        for (value, offset, len) in [(1u8, 0, 640), (2, 3, 640), (3, 8, 64), (4, 1, 9)] {
            scope.spawn(move || {
                for _ in 0..rounds {
                    view.slice(offset, len).copy_from(&vec![value; len]);
                    view.slice(offset, len).copy_from_bytes(Bytes::of(&vec![value; len]));
                }
            });
        }
        for offset in [0, 5] {
            let bytes = view.as_bytes().slice(offset, 640);
            scope.spawn(move || {
                for _ in 0..rounds {
                    assert!(bytes.to_vec().iter().all(|byte| *byte <= 4));
                    assert!(bytes.byte(0) <= 4);
                    let words = bytes.words::<4>().unwrap_or_default();
                    assert!(words.iter().flat_map(|word| word.to_ne_bytes()).all(|b| b <= 4));
                }
            });
        }
    });
    assert_eq!((memory[642], &memory[643..]), (2, &[0; 57][..]));
}
