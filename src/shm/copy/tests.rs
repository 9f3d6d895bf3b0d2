//! Unit tests of `shm::copy`.

use super::*;

#[test]
fn every_length_and_alignment_copies_exactly() {
    let mut source: Vec<u8> = (0..4096u32).map(|value| (value * 31 % 251) as u8).collect();
    let base = NonNull::new(source.as_mut_ptr()).unwrap();
    for start in 0..17 {
        for len in (0..130).chain([255, 256, 257, 1000, 4000]) {
            let mut out = vec![0xAA; len + 2];
            // SAFETY: `start` is inside of `source`.
            let from = unsafe { base.add(start) };
            // SAFETY: `start` and `len` stay inside of `source`, which `out` does not overlap.
            unsafe { copy_out(Origin::SHARED, from, &mut out[1..=len]) };
            let expected: Vec<u8> =
                (start..start + len).map(|value| (value as u32 * 31 % 251) as u8).collect();
            assert_eq!(&out[1..=len], &expected);
            assert_eq!((out[0], out[len + 1]), (0xAA, 0xAA));
        }
    }
}

#[test]
fn every_length_and_alignment_is_copied_in_exactly() {
    let source: Vec<u8> = (0..4096u32).map(|value| (value * 31 % 251) as u8).collect();
    for start in 0..17 {
        for len in (0..180).chain([255, 256, 257, 1000, 4000]) {
            let mut target = vec![0xAA_u8; 4096];
            let base = NonNull::new(target.as_mut_ptr()).unwrap();
            // SAFETY: `start` is inside of `target`.
            let to = unsafe { base.add(start) };
            // SAFETY: `start + len` stays inside of `target`, which `source` does not overlap.
            unsafe { copy_in(to, &source[..len]) };
            assert_eq!(&target[start..start + len], &source[..len]);
            assert!(target[..start].iter().chain(&target[start + len..]).all(|b| *b == 0xAA));
        }
    }
}

#[test]
fn a_line_is_stored_exactly() {
    let source: Vec<u8> = (0..96).collect();
    for start in 0..17 {
        let mut target = [0xAA_u8; 96];
        let line = source[start..].first_chunk().unwrap();
        // SAFETY: `start` is inside of `target`.
        let to = unsafe { NonNull::from(&mut target).cast().add(start) };
        // SAFETY: 64 bytes behind `start` are inside of `target`, which `source` does not overlap.
        unsafe { store_line(to, line) };
        assert_eq!(&target[start..start + 64], line);
        assert!(target[..start].iter().chain(&target[start + 64..]).all(|byte| *byte == 0xAA));
    }
}
