//! The accesses to memory that others write: single words, and copies of bulk bytes from it and to it.
//!
//! A plain `memcpy` of such memory would be a data race, which is undefined. Rust's memory model allows accesses that race
//! if each is atomic and all that meet have one size. Here that size is a byte, whatever the length of a copy:
//!
//! 1. On x86-64 and aarch64 every access is inline assembly. The compiler sees none of its loads and stores. Each block
//!    stands for relaxed atomic loads and stores of single bytes: the processor tears its accesses into nothing smaller.
//!    Long copies are loops of vector moves. (`rep movsb` took 335 ns for 1 KiB with badly aligned source and target,
//!    such a loop 20.)
//! 2. On other machines, under Miri and under ThreadSanitizer every access is an atomic load or store of a byte.
//! 3. Bytes of an [`Origin::FROZEN`] view, which nobody writes, are never viewed as atomics: a shared reference to plain
//!    bytes does not allow that.

#![allow(unsafe_code)]

use core::ptr::NonNull;

pub(super) use access::{Origin, ask_line, load_byte, load_line, load_word, store_line};
use access::{copy_lines, store_byte, store_word};

/// The length from which loops of vector moves are faster than words, where both sides are shared memory. Copies to private memory
/// use them from a line on: 64 bytes take 12 instructions instead of 48.
const BULK: usize = 256;

/// The bytes of a line.
const LINE: usize = 64;

/// x86-64: inline assembly.
///
/// A build for processors with AVX encodes its vector instructions with a VEX prefix, and so does this module then. Beside
/// them an old encoding keeps the upper halves of the registers, and the processor waits for those: `Bytes::lines` took
/// 1,594 ns for 1 KiB instead of 9.
#[cfg(all(target_arch = "x86_64", not(any(slipring_tsan, miri))))]
mod access {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;
    use core::ptr::NonNull;

    /// Whether others may write the bytes of a view. Assembly reads both in the same way.
    #[derive(Debug, Clone, Copy)]
    pub(in crate::shm) struct Origin;

    impl Origin {
        pub(in crate::shm) const SHARED: Self = Self;
        pub(in crate::shm) const FROZEN: Self = Self;
    }

    /// Asks for the line of a byte, to write there soon. It reads and writes nothing.
    #[inline(always)]
    pub(in crate::shm) fn ask_line(at: NonNull<u8>) {
        // SAFETY: a prefetch has no effect but on the caches, whatever the address.
        unsafe {
            asm!(
                "prefetchw byte ptr [{at}]",
                at = in(reg) at.as_ptr(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    /// A vector instruction in the encoding of this build.
    #[cfg(target_feature = "avx")]
    macro_rules! vector {
        ($instruction:literal) => {
            concat!("v", $instruction)
        };
    }

    /// A vector instruction in the encoding of this build.
    #[cfg(not(target_feature = "avx"))]
    macro_rules! vector {
        ($instruction:literal) => {
            $instruction
        };
    }

    /// A load of 8 bytes into the high half of a register that keeps its low half, in the encoding of this build.
    #[cfg(target_feature = "avx")]
    macro_rules! load_high {
        ($to:literal, $from:literal) => {
            concat!("vmovhps ", $to, ", ", $to, ", qword ptr ", $from)
        };
    }

    /// A load of 8 bytes into the high half of a register that keeps its low half, in the encoding of this build.
    #[cfg(not(target_feature = "avx"))]
    macro_rules! load_high {
        ($to:literal, $from:literal) => {
            concat!("movhps ", $to, ", qword ptr ", $from)
        };
    }

    /// # Safety
    ///
    /// The byte at `from` is mapped readable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn load_byte(_: Origin, from: NonNull<u8>) -> u8 {
        let byte: u32;
        // SAFETY: reads the byte that the caller vouches for.
        unsafe {
            asm!(
                "movzx {byte:e}, byte ptr [{from}]",
                byte = lateout(reg) byte,
                from = in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        byte as u8
    }

    /// # Safety
    ///
    /// The 8 bytes at `from` are mapped readable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn load_word(_: Origin, from: NonNull<u8>) -> u64 {
        let word;
        // SAFETY: reads the bytes that the caller vouches for.
        unsafe {
            asm!(
                "mov {word}, qword ptr [{from}]",
                word = lateout(reg) word,
                from = in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        word
    }

    /// Returns the 64 bytes at `from` as words in native order, by vector loads. The compiler turns sums of them
    /// into vector sums. Source: `ping_pong --modes inplace`, where 1 KiB and 64 KiB take 5 % less than by words.
    ///
    /// # Safety
    ///
    /// The 64 bytes at `from` are mapped readable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn load_line(_: Origin, from: NonNull<u8>) -> [u64; 8] {
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: reads the bytes that the caller vouches for.
        unsafe {
            asm!(
                vector!("movdqu {a}, [{from}]"),
                vector!("movdqu {b}, [{from} + 16]"),
                vector!("movdqu {c}, [{from} + 32]"),
                vector!("movdqu {d}, [{from} + 48]"),
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
    /// The byte at `to` is mapped writable.
    #[inline(always)]
    pub(super) unsafe fn store_byte(to: NonNull<u8>, byte: u8) {
        // SAFETY: writes the byte that the caller vouches for.
        unsafe {
            asm!(
                "mov byte ptr [{to}], {byte}",
                byte = in(reg_byte) byte,
                to = in(reg) to.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }

    /// # Safety
    ///
    /// The 8 bytes at `to` are mapped writable.
    #[inline(always)]
    pub(super) unsafe fn store_word(to: NonNull<u8>, word: u64) {
        // SAFETY: writes the bytes that the caller vouches for.
        unsafe {
            asm!(
                "mov qword ptr [{to}], {word}",
                word = in(reg) word,
                to = in(reg) to.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies a line by loads of 8 bytes and stores of 16. Wider loads would wait for stores of 8 that the caller has just done.
    ///
    /// # Safety
    ///
    /// The 64 bytes at `to` are mapped writable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn store_line(to: NonNull<u8>, line: &[u8; 64]) {
        // SAFETY: reads `line` and writes the bytes that the caller vouches for.
        unsafe {
            asm!(
                vector!("movsd {a}, qword ptr [{from}]"),
                vector!("movsd {b}, qword ptr [{from} + 16]"),
                vector!("movsd {c}, qword ptr [{from} + 32]"),
                vector!("movsd {d}, qword ptr [{from} + 48]"),
                load_high!("{a}", "[{from} + 8]"),
                load_high!("{b}", "[{from} + 24]"),
                load_high!("{c}", "[{from} + 40]"),
                load_high!("{d}", "[{from} + 56]"),
                vector!("movups [{to}], {a}"),
                vector!("movups [{to} + 16], {b}"),
                vector!("movups [{to} + 32], {c}"),
                vector!("movups [{to} + 48], {d}"),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                from = in(reg) line.as_ptr(),
                to = in(reg) to.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies lines of 64 bytes. A byte in both ranges is read before it is written, or after: then its new value
    /// is copied.
    ///
    /// # Safety
    ///
    /// - `lines` is not 0, and as many lines at `from` are mapped readable, and at `to` writable, for the whole call.
    /// - Nobody in this process has a reference to any of them, but for the caller's own to `to`.
    #[inline(always)]
    pub(super) unsafe fn copy_lines(_: Origin, from: NonNull<u8>, to: NonNull<u8>, lines: usize) {
        // SAFETY: reads and writes `lines * 64` bytes that the caller vouches for.
        unsafe {
            asm!(
                "2:",
                vector!("movups {a}, [{from}]"),
                vector!("movups {b}, [{from} + 16]"),
                vector!("movups {c}, [{from} + 32]"),
                vector!("movups {d}, [{from} + 48]"),
                vector!("movups [{to}], {a}"),
                vector!("movups [{to} + 16], {b}"),
                vector!("movups [{to} + 32], {c}"),
                vector!("movups [{to} + 48], {d}"),
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
}

/// aarch64: inline assembly.
#[cfg(all(target_arch = "aarch64", not(any(slipring_tsan, miri))))]
mod access {
    use core::arch::asm;
    use core::ptr::NonNull;

    /// Whether others may write the bytes of a view. Assembly reads both in the same way.
    #[derive(Debug, Clone, Copy)]
    pub(in crate::shm) struct Origin;

    impl Origin {
        pub(in crate::shm) const SHARED: Self = Self;
        pub(in crate::shm) const FROZEN: Self = Self;
    }

    /// Asks for the line of a byte, to write there soon. It reads and writes nothing.
    #[inline(always)]
    pub(in crate::shm) fn ask_line(at: NonNull<u8>) {
        // SAFETY: a prefetch has no effect but on the caches, whatever the address.
        unsafe {
            asm!(
                "prfm pstl1keep, [{at}]",
                at = in(reg) at.as_ptr(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    /// # Safety
    ///
    /// The byte at `from` is mapped readable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn load_byte(_: Origin, from: NonNull<u8>) -> u8 {
        let byte: u32;
        // SAFETY: reads the byte that the caller vouches for.
        unsafe {
            asm!(
                "ldrb {byte:w}, [{from}]",
                byte = lateout(reg) byte,
                from = in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        byte as u8
    }

    /// # Safety
    ///
    /// The 8 bytes at `from` are mapped readable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn load_word(_: Origin, from: NonNull<u8>) -> u64 {
        let word;
        // SAFETY: reads the bytes that the caller vouches for.
        unsafe {
            asm!(
                "ldr {word}, [{from}]",
                word = lateout(reg) word,
                from = in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        word
    }

    /// Returns the 64 bytes at `from` as words in native order.
    ///
    /// # Safety
    ///
    /// The 64 bytes at `from` are mapped readable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn load_line(origin: Origin, from: NonNull<u8>) -> [u64; 8] {
        core::array::from_fn(|index| {
            // SAFETY: inside of the 64 bytes that the caller vouches for.
            let at = unsafe { from.add(index * 8) };
            // SAFETY: as above.
            unsafe { load_word(origin, at) }
        })
    }

    /// # Safety
    ///
    /// The byte at `to` is mapped writable.
    #[inline(always)]
    pub(super) unsafe fn store_byte(to: NonNull<u8>, byte: u8) {
        // SAFETY: writes the byte that the caller vouches for.
        unsafe {
            asm!(
                "strb {byte:w}, [{to}]",
                byte = in(reg) u32::from(byte),
                to = in(reg) to.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }

    /// # Safety
    ///
    /// The 8 bytes at `to` are mapped writable.
    #[inline(always)]
    pub(super) unsafe fn store_word(to: NonNull<u8>, word: u64) {
        // SAFETY: writes the bytes that the caller vouches for.
        unsafe {
            asm!(
                "str {word}, [{to}]",
                word = in(reg) word,
                to = in(reg) to.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies a line.
    ///
    /// # Safety
    ///
    /// The 64 bytes at `to` are mapped writable.
    #[inline(always)]
    pub(in crate::shm) unsafe fn store_line(to: NonNull<u8>, line: &[u8; 64]) {
        // SAFETY: the caller's promise is that function's.
        unsafe { super::store_words(to, line) };
    }

    /// Copies lines of 64 bytes. A byte in both ranges is read before it is written, or after: then its new value
    /// is copied.
    ///
    /// # Safety
    ///
    /// - `lines` is not 0, and as many lines at `from` are mapped readable, and at `to` writable, for the whole call.
    /// - Nobody in this process has a reference to any of them, but for the caller's own to `to`.
    #[inline(always)]
    pub(super) unsafe fn copy_lines(_: Origin, from: NonNull<u8>, to: NonNull<u8>, lines: usize) {
        // SAFETY: reads and writes `lines * 64` bytes that the caller vouches for.
        unsafe {
            asm!(
                "2:",
                "ldp {a:q}, {b:q}, [{from}]",
                "ldp {c:q}, {d:q}, [{from}, #32]",
                "stp {a:q}, {b:q}, [{to}]",
                "stp {c:q}, {d:q}, [{to}, #32]",
                "add {from}, {from}, #64",
                "add {to}, {to}, #64",
                "subs {lines}, {lines}, #1",
                "b.ne 2b",
                a = out(vreg) _,
                b = out(vreg) _,
                c = out(vreg) _,
                d = out(vreg) _,
                from = inout(reg) from.as_ptr() => _,
                to = inout(reg) to.as_ptr() => _,
                lines = inout(reg) lines => _,
                options(nostack),
            );
        }
    }
}

/// Any machine, Miri and ThreadSanitizer: atomic loads and stores of single bytes.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(slipring_tsan, miri))
)))]
mod access {
    use core::ptr::NonNull;
    use core::sync::atomic::{AtomicU8, Ordering};

    /// Whether others may write the bytes of a view.
    #[derive(Debug, Clone, Copy)]
    pub(in crate::shm) struct Origin {
        is_frozen: bool,
    }

    impl Origin {
        /// Others may write the bytes.
        pub(in crate::shm) const SHARED: Self = Self { is_frozen: false };
        /// Nobody writes the bytes while the view lives.
        pub(in crate::shm) const FROZEN: Self = Self { is_frozen: true };
    }

    /// Asks for the line of a byte, to write there soon, where assembly can.
    #[inline(always)]
    pub(in crate::shm) fn ask_line(_: NonNull<u8>) {}

    /// # Safety
    ///
    /// The byte at `from` is mapped readable, and `origin` tells whether others write it.
    #[inline(always)]
    pub(in crate::shm) unsafe fn load_byte(origin: Origin, from: NonNull<u8>) -> u8 {
        if origin.is_frozen {
            // SAFETY: the caller vouches for the byte, which nobody writes.
            return unsafe { from.read() };
        }
        // `AtomicU8::from_ptr` asks for a byte that can be written, too. A peer's memory is mapped read-only, where the
        // documentation of `core::sync::atomic` allows relaxed loads.
        // SAFETY: mapped readable; bytes that others write are only ever touched as atomics of one byte.
        unsafe { from.cast::<AtomicU8>().as_ref() }.load(Ordering::Relaxed)
    }

    /// Returns `N` bytes.
    ///
    /// # Safety
    ///
    /// As for [`load_byte`], for `N` bytes.
    unsafe fn load_bytes<const N: usize>(origin: Origin, from: NonNull<u8>) -> [u8; N] {
        core::array::from_fn(|index| {
            // SAFETY: inside of what the caller vouches for.
            let at = unsafe { from.add(index) };
            // SAFETY: as above.
            unsafe { load_byte(origin, at) }
        })
    }

    /// # Safety
    ///
    /// As for [`load_byte`], for 8 bytes.
    pub(in crate::shm) unsafe fn load_word(origin: Origin, from: NonNull<u8>) -> u64 {
        // SAFETY: the caller's promise is that function's.
        u64::from_ne_bytes(unsafe { load_bytes(origin, from) })
    }

    /// Returns the 64 bytes at `from` as words in native order.
    ///
    /// # Safety
    ///
    /// As for [`load_byte`], for 64 bytes.
    pub(in crate::shm) unsafe fn load_line(origin: Origin, from: NonNull<u8>) -> [u64; 8] {
        core::array::from_fn(|index| {
            // SAFETY: inside of the 64 bytes that the caller vouches for.
            let at = unsafe { from.add(index * 8) };
            // SAFETY: as above.
            unsafe { load_word(origin, at) }
        })
    }

    /// # Safety
    ///
    /// The byte at `to` is mapped writable.
    pub(super) unsafe fn store_byte(to: NonNull<u8>, byte: u8) {
        // SAFETY: mapped writable; bytes that others write are only ever touched as atomics of one byte.
        unsafe { AtomicU8::from_ptr(to.as_ptr()) }.store(byte, Ordering::Relaxed);
    }

    /// # Safety
    ///
    /// The 8 bytes at `to` are mapped writable.
    pub(super) unsafe fn store_word(to: NonNull<u8>, word: u64) {
        for (index, byte) in word.to_ne_bytes().into_iter().enumerate() {
            // SAFETY: inside of the 8 bytes that the caller vouches for.
            let at = unsafe { to.add(index) };
            // SAFETY: as above.
            unsafe { store_byte(at, byte) };
        }
    }

    /// Copies a line.
    ///
    /// # Safety
    ///
    /// The 64 bytes at `to` are mapped writable.
    pub(in crate::shm) unsafe fn store_line(to: NonNull<u8>, line: &[u8; 64]) {
        // SAFETY: the caller's promise is that function's.
        unsafe { super::store_words(to, line) };
    }

    /// Copies lines of 64 bytes. A byte in both ranges is read before it is written, or after: then its new value
    /// is copied.
    ///
    /// # Safety
    ///
    /// - As many lines at `from` are mapped readable, and at `to` writable, for the whole call.
    /// - Nobody in this process has a reference to any of them, but for the caller's own to `to`.
    pub(super) unsafe fn copy_lines(
        origin: Origin,
        from: NonNull<u8>,
        to: NonNull<u8>,
        lines: usize,
    ) {
        for index in 0..lines * super::LINE {
            // SAFETY: inside of what the caller vouches for.
            let source = unsafe { from.add(index) };
            // SAFETY: inside of what the caller vouches for.
            let byte = unsafe { load_byte(origin, source) };
            // SAFETY: inside of what the caller vouches for.
            let target = unsafe { to.add(index) };
            // SAFETY: inside of what the caller vouches for.
            unsafe { store_byte(target, byte) };
        }
    }
}

/// Copies `out.len()` bytes from `from` to `out`.
///
/// # Safety
///
/// - `from..from + out.len()` is mapped readable for the whole call, and `origin` tells whether others write it.
/// - `out` does not overlap it.
#[inline(always)]
pub(super) unsafe fn copy_out(origin: Origin, from: NonNull<u8>, out: &mut [u8]) {
    let mut done = 0;
    if out.len() >= LINE {
        let lines = out.len() / LINE;
        // SAFETY: the caller vouches for the bytes to read; those to write are `out`'s, which is exclusive.
        unsafe { copy_lines(origin, from, NonNull::from(&mut *out).cast(), lines) };
        done = lines * LINE;
    }
    // SAFETY: `done <= out.len()`, inside of what the caller vouches for.
    let rest = unsafe { from.add(done) };
    // SAFETY: the caller's promise, for the last bytes.
    unsafe { copy_words(origin, rest, &mut out[done..]) }
}

/// Copies `len` bytes from memory that others write to memory that others write and read.
///
/// No length bypasses the caches: whoever reads the target next would fetch it from memory.
///
/// # Safety
///
/// - `from..from + len` is mapped readable and `to..to + len` writable for the whole call. `origin` tells whether others
///   write what is read.
/// - Nobody in this process has a reference to any of them, but for the caller's own.
pub(super) unsafe fn copy_across(origin: Origin, from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    let mut done = 0;
    if len >= BULK {
        let lines = len / LINE;
        // SAFETY: as many lines are inside of what the caller vouches for.
        unsafe { copy_lines(origin, from, to, lines) };
        done = lines * LINE;
    }
    // SAFETY: `done <= len`, inside of what the caller vouches for.
    let from = unsafe { from.add(done) };
    // SAFETY: as above.
    let to = unsafe { to.add(done) };
    // SAFETY: the caller's promise, for the last bytes.
    unsafe { copy_short(origin, from, to, len - done) }
}

/// # Safety
///
/// As for [`copy_across`].
unsafe fn copy_short(origin: Origin, from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    let mut chunk = [0; BULK];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(chunk.len());
        // SAFETY: `done < len`, inside of what the caller vouches for.
        let from = unsafe { from.add(done) };
        // SAFETY: as above.
        let to = unsafe { to.add(done) };
        // SAFETY: `done + part <= len`; `chunk` is private.
        unsafe { copy_words(origin, from, &mut chunk[..part]) };
        // SAFETY: `done + part <= len`; `chunk` is private.
        unsafe { store_words(to, &chunk[..part]) };
        done += part;
    }
}

/// # Safety
///
/// As for [`copy_out`].
#[inline(always)]
unsafe fn copy_words(origin: Origin, from: NonNull<u8>, out: &mut [u8]) {
    let (words, tail) = out.as_chunks_mut::<8>();
    let done = words.len() * 8;
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the word lies inside of what the caller vouches for.
        let at = unsafe { from.add(index * 8) };
        // SAFETY: as above.
        *word = unsafe { load_word(origin, at) }.to_ne_bytes();
    }
    for (index, byte) in tail.iter_mut().enumerate() {
        // SAFETY: `done + index < out.len()`, inside of what the caller vouches for.
        let at = unsafe { from.add(done + index) };
        // SAFETY: as above.
        *byte = unsafe { load_byte(origin, at) };
    }
}

/// Copies `bytes` to `to`, which others may read and write in the meantime.
///
/// # Safety
///
/// - `to..to + bytes.len()` is mapped writable for the whole call.
/// - `bytes` does not overlap it.
pub(super) unsafe fn copy_in(to: NonNull<u8>, bytes: &[u8]) {
    if bytes.len() >= BULK {
        let from = NonNull::from(bytes).cast();
        // SAFETY: the caller vouches for the bytes to write; those to read are `bytes`, which nobody writes.
        unsafe { copy_across(Origin::FROZEN, from, to, bytes.len()) }
    } else {
        // SAFETY: the caller's promise is that function's.
        unsafe { store_words(to, bytes) }
    }
}

/// # Safety
///
/// As for [`copy_in`].
#[inline(always)]
unsafe fn store_words(to: NonNull<u8>, bytes: &[u8]) {
    let (words, tail) = bytes.as_chunks::<8>();
    let done = words.len() * 8;
    for (index, word) in words.iter().enumerate() {
        // SAFETY: the word lies inside of what the caller vouches for.
        let at = unsafe { to.add(index * 8) };
        // SAFETY: as above.
        unsafe { store_word(at, u64::from_ne_bytes(*word)) };
    }
    for (index, byte) in tail.iter().enumerate() {
        // SAFETY: `done + index < bytes.len()`, inside of what the caller vouches for.
        let at = unsafe { to.add(done + index) };
        // SAFETY: as above.
        unsafe { store_byte(at, *byte) };
    }
}

#[cfg(test)]
mod tests;
