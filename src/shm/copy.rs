//! The one function that copies bulk bytes from memory that a peer writes, and the one that copies them to
//! memory that others write and read.
//!
//! A plain `memcpy` would be a data race, which is undefined. On x86-64 long copies use a loop of vector moves
//! in inline assembly, whose loads the compiler does not see. (`rep movsb` took 335 ns for 1 KiB with badly
//! aligned source and target, this loop 20.) Short copies and other machines use relaxed atomic loads of 8
//! bytes.

#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", not(slipring_tsan)))]
use core::arch::x86_64::__m128i;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The length from which vector moves are faster than loads of 8 bytes. Source: `benches/in_process.rs`
/// (`copy_out`), Zen 4.
const BULK: usize = 256;

/// The length from which a copy between regions bypasses the caches, where it would only evict other data. 16
/// MiB take 0.65 ms past the caches and 0.91 ms through them, 512 KiB 19 and 11 µs (Zen 5, 32 MiB of third
/// level).
const STREAM: usize = 8 << 20;

/// Copies `out.len()` bytes from `from` to `out`.
///
/// # Safety
///
/// - `from..from + out.len()` is mapped readable for the whole call.
/// - `out` does not overlap it.
#[inline(always)]
pub(super) unsafe fn copy_out(from: NonNull<u8>, out: &mut [u8]) {
    if cfg!(all(target_arch = "x86_64", not(slipring_tsan))) && out.len() >= BULK {
        // SAFETY: the caller's promise is this function's.
        unsafe { copy_bulk(from, out) }
    } else {
        // SAFETY: the caller's promise is this function's.
        unsafe { copy_words(from, out) }
    }
}

/// # Safety
///
/// As for [`copy_out`].
#[inline(always)]
unsafe fn copy_bulk(from: NonNull<u8>, out: &mut [u8]) {
    let lines = out.len() / 64;
    // SAFETY: the caller vouches for the bytes to read; those to write are `out`'s, which is exclusive.
    unsafe { copy_lines(from, NonNull::from(&mut *out).cast(), lines) };
    let done = lines * 64;
    // SAFETY: `done <= out.len()`, inside of what the caller vouches for.
    let rest = unsafe { from.add(done) };
    // SAFETY: the caller's promise, for the last bytes.
    unsafe { copy_words(rest, &mut out[done..]) }
}

/// Copies lines of 64 bytes. A byte in both ranges is read before it is written, or after: then its new value
/// is copied.
///
/// # Safety
///
/// - `lines` is not 0, and as many lines at `from` are mapped readable, and at `to` writable, for the whole call.
/// - Nobody in this process has a reference to any of them, but for the caller's own to `to`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_lines(from: NonNull<u8>, to: NonNull<u8>, lines: usize) {
    // SAFETY: reads and writes `lines * 64` bytes that the caller vouches for.
    unsafe {
        core::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to.as_ptr() => _,
            lines = inout(reg) lines => _,
            options(nostack),
        );
    }
}

/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_lines(from: NonNull<u8>, to: NonNull<u8>, lines: usize) {
    for index in 0..lines * 64 {
        // SAFETY: inside of what the caller vouches for.
        let byte = unsafe { load_byte(from, index) };
        // SAFETY: inside of what the caller vouches for.
        unsafe { store_byte(to, index, byte) };
    }
}

/// Copies as [`copy_lines`] does, past the caches.
///
/// # Safety
///
/// As for [`copy_lines`], and `to` is aligned to 16.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(from: NonNull<u8>, to: NonNull<u8>, lines: usize) {
    // SAFETY: reads and writes `lines * 64` bytes that the caller vouches for. The fence orders the stores,
    // which are weaker than others, before whatever comes next.
    unsafe {
        core::arch::asm!(
            "2:",
            "prefetchnta [{from} + 512]",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movntps [{to}], {a}",
            "movntps [{to} + 16], {b}",
            "movntps [{to} + 32], {c}",
            "movntps [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            "sfence",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to.as_ptr() => _,
            lines = inout(reg) lines => _,
            options(nostack),
        );
    }
}

/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_lines(from: NonNull<u8>, to: NonNull<u8>, lines: usize) {
    // SAFETY: the caller's promise is that function's.
    unsafe { copy_lines(from, to, lines) }
}

/// Copies `len` bytes from memory that others write to memory that others write and read.
///
/// # Safety
///
/// - `from..from + len` is mapped readable and `to..to + len` writable for the whole call.
/// - Nobody in this process has a reference to any of them, but for the caller's own.
pub(super) unsafe fn copy_across(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    let mut done = 0;
    if cfg!(all(target_arch = "x86_64", not(slipring_tsan))) && len >= BULK {
        if len >= STREAM {
            done = to.align_offset(16);
            // SAFETY: `done` is less than 16, and `len` more.
            unsafe { copy_short(from, to, done) };
        }
        let lines = (len - done) / 64;
        // SAFETY: `done < len`, inside of what the caller vouches for.
        let from = unsafe { from.add(done) };
        // SAFETY: as above.
        let to = unsafe { to.add(done) };
        if len >= STREAM {
            // SAFETY: as many lines are inside of what the caller vouches for; `done` aligns `to`.
            unsafe { stream_lines(from, to, lines) };
        } else {
            // SAFETY: as many lines are inside of what the caller vouches for.
            unsafe { copy_lines(from, to, lines) };
        }
        done += lines * 64;
    }
    // SAFETY: `done <= len`, inside of what the caller vouches for.
    let from = unsafe { from.add(done) };
    // SAFETY: as above.
    let to = unsafe { to.add(done) };
    // SAFETY: the caller's promise, for the last bytes.
    unsafe { copy_short(from, to, len - done) }
}

/// # Safety
///
/// As for [`copy_across`].
unsafe fn copy_short(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    let mut chunk = [0; BULK];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(chunk.len());
        // SAFETY: `done < len`, inside of what the caller vouches for.
        let from = unsafe { from.add(done) };
        // SAFETY: as above.
        let to = unsafe { to.add(done) };
        // SAFETY: `done + part <= len`; `chunk` is private.
        unsafe { copy_words(from, &mut chunk[..part]) };
        // SAFETY: `done + part <= len`; `chunk` is private.
        unsafe { copy_in(to, &chunk[..part]) };
        done += part;
    }
}

/// # Safety
///
/// As for [`copy_out`].
#[inline(always)]
unsafe fn copy_words(from: NonNull<u8>, out: &mut [u8]) {
    let mut lead = 0;
    // Messages start at multiples of 8. Only parts of them may not.
    if !from.addr().get().is_multiple_of(8) {
        lead = from.align_offset(8).min(out.len());
        for (index, byte) in out[..lead].iter_mut().enumerate() {
            // SAFETY: `index < lead <= out.len()`, inside of what the caller vouches for.
            *byte = unsafe { load_byte(from, index) };
        }
    }
    let rest = &mut out[lead..];
    let (words, tail) = rest.as_chunks_mut::<8>();
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the word ends inside of what the caller vouches for, and `lead` aligns it.
        *word = unsafe { load_word(from, lead + index * 8) }.to_ne_bytes();
    }
    let done = lead + words.len() * 8;
    for (index, byte) in tail.iter_mut().enumerate() {
        // SAFETY: `done + index < out.len()`, inside of what the caller vouches for.
        *byte = unsafe { load_byte(from, done + index) };
    }
}

/// # Safety
///
/// `from + offset` is mapped readable.
#[inline(always)]
pub(super) unsafe fn load_byte(from: NonNull<u8>, offset: usize) -> u8 {
    // SAFETY: the caller vouches for the byte.
    let at = unsafe { from.add(offset) };
    // SAFETY: mapped readable; a peer's bytes are only ever read as atomics.
    unsafe { AtomicU8::from_ptr(at.as_ptr()) }.load(Ordering::Relaxed)
}

/// # Safety
///
/// `from + offset` is aligned to 8 and 8 bytes from there are mapped readable.
#[inline(always)]
pub(super) unsafe fn load_word(from: NonNull<u8>, offset: usize) -> u64 {
    // SAFETY: the caller vouches for the word.
    let at = unsafe { from.add(offset) };
    // SAFETY: aligned and mapped readable; a peer's words are only ever read as atomics.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.load(Ordering::Relaxed)
}

/// Returns the 64 bytes at `from` as words in native order, by vector loads. The compiler turns sums of them
/// into vector sums. Source: `ping_pong --modes inplace`, where 1 KiB and 64 KiB take 5 % less than by words.
///
/// # Safety
///
/// `from` is aligned to 8 and 64 bytes from there are mapped readable.
#[cfg(all(target_arch = "x86_64", not(slipring_tsan)))]
#[inline(always)]
pub(super) unsafe fn load_line(from: NonNull<u8>) -> [u64; 8] {
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: reads 64 bytes that the caller vouches for.
    unsafe {
        core::arch::asm!(
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            from = in(reg) from.as_ptr(),
            options(nostack, preserves_flags, readonly),
        );
    }
    // SAFETY: both are 64 bytes of which every pattern is a value.
    unsafe { core::mem::transmute([a, b, c, d]) }
}

/// # Safety
///
/// As above.
#[cfg(not(all(target_arch = "x86_64", not(slipring_tsan))))]
#[inline(always)]
pub(super) unsafe fn load_line(from: NonNull<u8>) -> [u64; 8] {
    // SAFETY: each word is inside of what the caller vouches for.
    core::array::from_fn(|index| unsafe { load_word(from, index * 8) })
}

/// Copies `bytes` to `to` by relaxed stores: others may read and write in the meantime.
///
/// # Safety
///
/// - `to..to + bytes.len()` is mapped writable for the whole call.
/// - `bytes` does not overlap it.
pub(super) unsafe fn copy_in(to: NonNull<u8>, bytes: &[u8]) {
    let lead = to.align_offset(8).min(bytes.len());
    let (head, rest) = bytes.split_at(lead);
    let (words, tail) = rest.as_chunks::<8>();
    for (index, byte) in head.iter().enumerate() {
        // SAFETY: `index < bytes.len()`, inside of what the caller vouches for.
        unsafe { store_byte(to, index, *byte) };
    }
    for (index, word) in words.iter().enumerate() {
        // SAFETY: the word ends inside of what the caller vouches for.
        let at = unsafe { to.add(lead + index * 8) };
        // SAFETY: mapped writable, and `lead` aligns it.
        let word_there = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
        word_there.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    let done = lead + words.len() * 8;
    for (index, byte) in tail.iter().enumerate() {
        // SAFETY: `done + index < bytes.len()`, inside of what the caller vouches for.
        unsafe { store_byte(to, done + index, *byte) };
    }
}

/// # Safety
///
/// `to + offset` is mapped writable.
unsafe fn store_byte(to: NonNull<u8>, offset: usize, byte: u8) {
    // SAFETY: the caller vouches for the byte.
    let at = unsafe { to.add(offset) };
    // SAFETY: mapped writable; bytes that others write are only ever touched as atomics.
    unsafe { AtomicU8::from_ptr(at.as_ptr()) }.store(byte, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_copies_exactly() {
        let mut source: Vec<u8> = (0..4096u32).map(|value| (value * 31 % 251) as u8).collect();
        // Atomics are viewed through the mutable buffer.
        let base = NonNull::new(source.as_mut_ptr()).unwrap();
        for start in 0..17 {
            for len in (0..130).chain([255, 256, 257, 1000, 4000]) {
                let mut out = vec![0xAA; len + 2];
                // SAFETY: `start` is inside of `source`.
                let from = unsafe { base.add(start) };
                // SAFETY: `start` and `len` stay inside of `source`, which `out` does not overlap.
                unsafe { copy_out(from, &mut out[1..=len]) };
                let expected: Vec<u8> =
                    (start..start + len).map(|value| (value as u32 * 31 % 251) as u8).collect();
                assert_eq!(&out[1..=len], &expected);
                assert_eq!((out[0], out[len + 1]), (0xAA, 0xAA));
            }
        }
    }
    #[test]
    fn every_length_and_alignment_is_copied_in_exactly() {
        let source: Vec<u8> = (0..200u32).map(|value| (value * 31 % 251) as u8).collect();
        for start in 0..17 {
            for len in 0..180 {
                let mut target = vec![0xAA_u8; 200];
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
}
