//! Mappings of shared memory into this process.
//!
//! A [`Mapping`] is memory of this process. A [`PeerMapping`] is memory of a peer, mapped read-only. A
//! [`ForeignMapping`] is part of an object that the user named. The first two can have a mirror: the tail of
//! the segment, from `mirror` on, is mapped a second time directly after itself, so that a record never wraps.
//!
//! ```text
//!   0            mirror                len              len + (len - mirror)
//!   │ control    │ data                │ mirror         │
//! ```
//!
//! Exclusive bytes are handed out once, as an [`Area`]. Its owner may form `&mut [u8]`.

#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::fmt::Debug;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, ErrorKind, Result};
use crate::shm::copy::{ask_line, store_line};
use crate::shm::discard::{LARGE, discard};
use crate::shm::fork::Generation;
use crate::shm::segment::most_freed;
use crate::shm::{Bytes, BytesMut, OwnRing, OwnWords, PeerRing, PeerWords, page_size};

/// The order of a relaxed load of a peer's word. ThreadSanitizer does not know fences, so under it the load
/// itself acquires.
const PEER_LOAD: Ordering = if cfg!(slipring_tsan) { Ordering::Acquire } else { Ordering::Relaxed };

/// A range of address space, unmapped on drop.
#[derive(Debug)]
struct Span {
    base: NonNull<u8>,
    /// Bytes of the segment, without its mirror.
    len: usize,
    /// Bytes of address space, with the mirror.
    extent: usize,
    generation: Generation,
    /// Whether areas over these bytes exist.
    handed_out: AtomicBool,
    /// How many bytes the drop frees at most, or 0 if it unmaps at once, however long that takes.
    frees: usize,
    /// The accounts that these bytes count for until they are unmapped.
    charge: OnceLock<Charge>,
}

/// The account that a mapping counts for until it is unmapped.
pub(super) type Charge = Box<dyn Debug + Send + Sync>;

// SAFETY: a span is plain address space; who may touch which bytes is the matter of its owners.
unsafe impl Send for Span {}
// SAFETY: as above: through `&Span` only atomics and raw addresses are reached.
unsafe impl Sync for Span {}

impl Span {
    fn map(fd: impl AsFd, len: usize, mirror: usize, prot: ProtFlags) -> Result<Self> {
        let span = Self::place(&fd, 0, (len, len + (len - mirror)), prot, MapFlags::SHARED)?;
        if mirror < len {
            span.mirror(&fd, mirror, prot)?;
        }
        // The mirror is a mapping of its own and starts at `len`.
        span.keep_from_children()?;
        Ok(span)
    }

    /// Maps `extent` bytes of `fd` from `offset` on, a multiple of the page size.
    fn map_from(
        fd: impl AsFd,
        offset: u64,
        extents: (usize, usize),
        prot: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self> {
        let span = Self::place(fd, offset, extents, prot, flags)?;
        span.keep_from_children()?;
        Ok(span)
    }

    fn place(
        fd: impl AsFd,
        offset: u64,
        (len, extent): (usize, usize),
        prot: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self> {
        let generation = Generation::current()?;
        // The mirror replaces the pages past the file's end before any access.
        // SAFETY: a null address asks for fresh memory, which overlaps nothing.
        let mapped =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), extent, prot, flags, fd, offset) };
        let base = mapped.map_err(|errno| unmapped(extent, errno))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap gives no null address");
        let (handed_out, charge) = (AtomicBool::new(false), OnceLock::new());
        Ok(Self { base, len, extent, generation, handed_out, frees: extent, charge })
    }

    /// Keeps the mapping out of forked children.
    fn keep_from_children(&self) -> Result<()> {
        let start = self.base.as_ptr().cast();
        // SAFETY: the range is this span's own, and the advice changes no byte of it.
        let kept = unsafe { rustix::mm::madvise(start, self.extent, Advice::LinuxDontFork) };
        kept.map_err(|errno| Error::os("madvise(MADV_DONTFORK)", errno))
    }

    /// Maps the file from `mirror` on behind the segment.
    fn mirror(&self, fd: impl AsFd, mirror: usize, prot: ProtFlags) -> Result<()> {
        // SAFETY: `len` lies inside of this span.
        let address = unsafe { self.base.add(self.len) };
        // SAFETY: from `len` to `extent` this span's own mapping is replaced, and nothing else.
        let placed = unsafe {
            rustix::mm::mmap(
                address.as_ptr().cast(),
                self.extent - self.len,
                prot,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                mirror as u64,
            )
        };
        placed.map(drop).map_err(|errno| unmapped(self.extent - self.len, errno))
    }

    fn advise(&self, advice: Advice, what: &'static str) -> Result<()> {
        // SAFETY: the range is this span's own mapping, and no advice used here changes its bytes.
        let done = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) };
        done.map_err(|errno| Error::os(what, errno))
    }
}

/// Returns the error of a mapping of `len` bytes.
fn unmapped(len: usize, errno: Errno) -> Error {
    match errno {
        // Also where the process may have no further mapping, or no further address space.
        Errno::NOMEM => Error::with_source(ErrorKind::OutOfMemory { bytes: len as u64 }, errno),
        _ => Error::os("mmap", errno),
    }
}

/// The addresses of a span, read without following its counted pointer.
#[derive(Debug, Clone)]
struct View {
    base: NonNull<u8>,
    extent: usize,
    /// The end of the last whole word.
    words: usize,
    span: Arc<Span>,
}

// SAFETY: as for `Span`, which it keeps.
unsafe impl Send for View {}
// SAFETY: as for `Span`.
unsafe impl Sync for View {}

impl View {
    fn new(span: Span) -> Self {
        Self::of(Arc::new(span))
    }

    fn of(span: Arc<Span>) -> Self {
        let (base, extent) = (span.base, span.extent);
        Self { base, extent, words: extent & !7, span }
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        self.find(offset, len).expect("inside of the mapping")
    }

    #[inline(always)]
    fn find(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset > self.extent || len > self.extent - offset {
            return None;
        }
        // SAFETY: just checked to lie inside of the mapping.
        Some(unsafe { self.base.add(offset) })
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "words are aligned");
        assert!(offset < self.words, "inside of the mapping");
        // SAFETY: a multiple of 8 in front of another one that is no more than `extent`.
        let word = unsafe { self.base.add(offset) };
        // `AtomicU64::from_ptr` asks for a word that can be written. A peer's is mapped read-only, where the documentation
        // of `core::sync::atomic` allows relaxed loads of 8 bytes, and nobody here does more with it.
        // SAFETY: inside of the mapping, aligned, alive as long as `self`; shared words are only
        // ever touched as atomics.
        unsafe { word.cast::<AtomicU64>().as_ref() }
    }

    /// Returns the words of the `len` bytes from `start` on.
    fn ring(&self, start: usize, len: u64) -> RingWords {
        let len = usize::try_from(len).expect("no longer than the mapping");
        assert!(start.is_multiple_of(8) && len.is_power_of_two() && len >= 8, "whole words");
        RingWords { first: self.at(start, len).cast(), mask: len - 8, _span: self.span.clone() }
    }

    /// Returns the low half of a word, on which threads sleep.
    fn futex(&self, offset: usize) -> &AtomicU32 {
        let low = if cfg!(target_endian = "little") { 0 } else { 4 };
        assert!(offset.is_multiple_of(8), "words are aligned");
        let word = self.at(offset + low, 4).cast::<AtomicU32>();
        // SAFETY: as for `word`; the kernel and we read it, whole.
        unsafe { word.as_ref() }
    }
}

/// Words that are checked to lie inside of a mapping. An access checks nothing.
#[derive(Debug)]
struct RingWords {
    first: NonNull<u64>,
    /// The bits of a position that are an offset from the first word, in bytes.
    mask: usize,
    _span: Arc<Span>,
}

// SAFETY: as for `Span`, which it keeps.
unsafe impl Send for RingWords {}
// SAFETY: as for `Span`.
unsafe impl Sync for RingWords {}

impl RingWords {
    #[inline(always)]
    fn word(&self, position: u64) -> &AtomicU64 {
        // SAFETY: what is left under the mask is the offset of a word of the `mask + 8` bytes that `View::ring`
        // found to lie inside of the mapping.
        let word = unsafe { self.first.byte_add(position as usize & self.mask) };
        // As in `View::word`: a peer's words are mapped read-only, and only loaded.
        // SAFETY: inside of the mapping, aligned as `first` is, alive as long as `self`; shared words are only ever
        // touched as atomics.
        unsafe { word.cast::<AtomicU64>().as_ref() }
    }
}

/// Words of a ring of this process.
#[derive(Debug)]
pub(crate) struct MappedRing(RingWords);

/// Words of a peer's ring.
#[derive(Debug)]
pub(crate) struct PeerMappedRing(RingWords);

impl OwnRing for MappedRing {
    #[inline(always)]
    fn store(&self, position: u64, value: u64, order: Ordering) {
        self.0.word(position).store(value, order);
    }
}

impl PeerRing for PeerMappedRing {
    #[inline(always)]
    fn load(&self, position: u64) -> u64 {
        self.0.word(position).load(PEER_LOAD)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let charge = self.charge.take();
        // In a forked child nothing is mapped here, or something else is.
        if self.generation.is_current() {
            let (base, extent, generation) = (self.base, self.extent, self.generation);
            let pages = Pages { base, extent, generation, _charge: charge };
            if self.frees > LARGE {
                discard(pages, &generation);
            }
        }
    }
}

/// Address space that nothing borrows from any more.
struct Pages {
    base: NonNull<u8>,
    extent: usize,
    generation: Generation,
    /// Dropped after the pages are unmapped.
    _charge: Option<Charge>,
}

// SAFETY: plain address space, which only the drop touches.
unsafe impl Send for Pages {}

/// Bytes that one call unmaps. The kernel lets no other thread map anything meanwhile: some 3 ms for as many pages that are
/// freed.
const STEP: usize = 16 << 20;

impl Drop for Pages {
    fn drop(&mut self) {
        // The process may have forked while they waited.
        if !self.generation.is_current() {
            return;
        }
        let mut done = 0;
        while done < self.extent {
            let len = STEP.min(self.extent - done);
            // SAFETY: `done` lies inside of the mapping.
            let start = unsafe { self.base.add(done) };
            // SAFETY: the range is this mapping's own, and nothing borrows from it any more.
            let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), len) };
            debug_assert!(unmapped.is_ok());
            done += len;
        }
    }
}

/// Memory of this process, mapped read-write.
#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    view: View,
}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, the part from `mirror` on twice.
    pub(crate) fn map(fd: impl AsFd, len: usize, mirror: usize) -> Result<Self> {
        let span = Span::map(fd, len, mirror, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { view: View::new(span) })
    }

    /// As [`map`](Self::map), but the drop unmaps the memory before it returns, however long that takes. Memory that is mapped to
    /// write cannot be sealed, and a long mapping of few pages needs no other thread.
    pub(crate) fn map_unmapped_at_once(fd: impl AsFd, len: usize) -> Result<Self> {
        let mut span = Span::map(fd, len, len, ProtFlags::READ | ProtFlags::WRITE)?;
        span.frees = 0;
        Ok(Self { view: View::new(span) })
    }

    /// Returns the word at `offset`, to sleep on or to wake.
    pub(crate) fn futex(&self, offset: usize) -> &AtomicU32 {
        self.view.futex(offset)
    }

    /// Moves the line of the word at `offset` to this core, for a store to come.
    #[inline(always)]
    pub(crate) fn ask_word(&self, offset: usize) {
        ask_line(NonNull::from(self.view.word(offset)).cast());
    }

    pub(crate) fn generation(&self) -> &Generation {
        &self.view.span.generation
    }

    /// Returns the bytes at `offset`, as the peer sees them through its own mapping.
    #[cfg(all(test, not(slipring_loom)))]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Bytes<'_> {
        let start = self.view.at(offset, len);
        // SAFETY: inside of a mapping that lives as long as `self` and cannot shrink.
        unsafe { Bytes::new(start, len) }
    }

    /// Asks for huge pages. It has no effect where shared memory has none.
    pub(crate) fn prefer_huge_pages(&self) -> Result<()> {
        self.view.span.advise(Advice::LinuxHugepage, "madvise(MADV_HUGEPAGE)")
    }

    /// Makes every page present and writable.
    pub(crate) fn prefault(&self) -> Result<()> {
        self.view.span.advise(Advice::LinuxPopulateWrite, "madvise(MADV_POPULATE_WRITE)")
    }

    /// Makes the pages of the first `len` bytes present and writable, if the kernel can (Linux 5.14): else the first access
    /// does.
    pub(crate) fn populate(&self, len: usize) {
        let len = len.min(self.view.span.len);
        let start = self.view.base.as_ptr().cast();
        // SAFETY: the range is the start of this mapping, and the advice changes no byte of it.
        let _ = unsafe { rustix::mm::madvise(start, len, Advice::LinuxPopulateWrite) };
    }

    /// Moves the pages to a NUMA node and keeps them there.
    pub(crate) fn bind_to_node(&self, node: u32) -> Result<()> {
        const MPOL_BIND: libc::c_long = 2;
        const MPOL_MF_MOVE: libc::c_ulong = 2;
        let mut nodes = [0u64; 16];
        let bits = nodes.len() * 64;
        let Some(word) = nodes.get_mut(node as usize / 64) else {
            return Err(Error::os("mbind", std::io::Error::from_raw_os_error(libc::EINVAL)));
        };
        *word = 1 << (node % 64);
        // SAFETY: the range is this mapping; the mask has `bits` bits; pages move, bytes stay.
        let moved = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.view.base.as_ptr(),
                self.view.span.len,
                MPOL_BIND,
                nodes.as_ptr(),
                bits as libc::c_ulong,
                MPOL_MF_MOVE,
            )
        };
        if moved == 0 { Ok(()) } else { Err(Error::os("mbind", std::io::Error::last_os_error())) }
    }

    /// Returns all bytes from `control` on, the mirror included, as one area. The caller shares the words
    /// below `control`. Only the first call returns the area.
    pub(super) fn take_area(&self, control: usize) -> Area {
        self.hand_out();
        let len = self.view.extent - control;
        Area { base: self.view.at(control, len), len, span: self.view.span.clone() }
    }

    /// Returns `count` areas of `len` bytes each, from the start on. Only the first call returns them.
    pub(super) fn split(&self, len: usize, count: usize) -> Vec<Area> {
        self.hand_out();
        assert!(len * count <= self.view.span.len, "blocks inside of the segment");
        (0..count)
            .map(|index| {
                let base = self.view.at(index * len, len);
                Area { base, len, span: self.view.span.clone() }
            })
            .collect()
    }

    /// Claims the bytes: areas are exclusive, so a mapping hands out its bytes once.
    fn hand_out(&self) {
        let again = self.view.span.handed_out.swap(true, Ordering::Relaxed);
        assert!(!again, "a mapping's areas are handed out once");
    }
}

impl OwnWords for Mapping {
    type Ring = MappedRing;

    fn ring(&self, start: usize, len: u64) -> MappedRing {
        MappedRing(self.view.ring(start, len))
    }

    #[inline(always)]
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.view.word(offset).store(value, order);
    }

    fn add(&self, offset: usize, value: u64) {
        self.view.word(offset).fetch_add(value, Ordering::Relaxed);
    }
}

/// Bytes of this process that no other object of it can name.
#[derive(Debug)]
pub(crate) struct Area {
    base: NonNull<u8>,
    len: usize,
    span: Arc<Span>,
}

// SAFETY: an area is the only way to its bytes, like a `Box<[u8]>`.
unsafe impl Send for Area {}
// SAFETY: as above; through `&Area` bytes can only be read.
unsafe impl Sync for Area {}

impl Area {
    /// Returns its length in bytes.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes at `offset` for writing.
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let start = self.find(offset, len).expect("inside of the area");
        // SAFETY: inside of the mapping, which `self.span` keeps; `&mut self` of the only area over
        // these bytes excludes other references; every bit pattern is a `u8`. The peer can read
        // them at any moment, which is its own matter: it gets no more than torn bytes.
        unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Returns the address of the bytes at `offset`, if they lie inside of the area.
    #[inline(always)]
    pub(crate) fn find(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: just checked to lie inside of the area.
        Some(unsafe { self.base.add(offset) })
    }

    /// Copies bytes to `offset`, a multiple of 8. It may clear up to 7 bytes after the end.
    #[inline(always)]
    pub(crate) fn put(&mut self, offset: usize, from: &[u8]) {
        if !self.put_short(offset, from) {
            self.bytes_mut(offset, from.len()).copy_from_slice(from);
        }
    }

    /// As [`put`](Self::put), for up to 64 bytes, which it loads [word by word](store_line). Returns `false` if there are more, or
    /// if they do not fit.
    #[inline(always)]
    pub(crate) fn put_short(&mut self, offset: usize, from: &[u8]) -> bool {
        const SHORT: usize = 64;
        let padded = from.len().next_multiple_of(8);
        let fits = padded <= self.len && offset <= self.len - padded;
        if from.len() > SHORT || !fits || !offset.is_multiple_of(8) {
            return false;
        }
        if let Ok(line) = from.try_into() {
            // SAFETY: just checked to lie inside of the area.
            let to = unsafe { self.base.add(offset) };
            // SAFETY: inside of the mapping; `&mut self` of the only area over these bytes excludes other references.
            unsafe { store_line(to, line) };
            return true;
        }
        let (words, tail) = from.as_chunks::<8>();
        let mut at = offset;
        for word in words {
            self.put_word(at, u64::from_ne_bytes(*word));
            at += 8;
        }
        if !tail.is_empty() {
            let mut last = [0; 8];
            for (to, from) in last.iter_mut().zip(tail) {
                *to = *from;
            }
            self.put_word(at, u64::from_ne_bytes(last));
        }
        true
    }

    /// Writes words to `offset`, a multiple of 8.
    #[inline(always)]
    pub(crate) fn put_words(&mut self, offset: usize, words: &[u64]) {
        let len = size_of_val(words);
        assert!(offset <= self.len && len <= self.len - offset, "inside of the area");
        assert!(offset.is_multiple_of(8), "words are aligned");
        for (index, word) in words.iter().enumerate() {
            self.put_word(offset + index * 8, *word);
        }
    }

    /// Stores a word. The compiler does not merge the store with its neighbours.
    #[inline(always)]
    fn put_word(&mut self, offset: usize, word: u64) {
        // SAFETY: the caller has checked that the word lies inside of the area.
        let at = unsafe { self.base.add(offset) }.cast::<u64>().as_ptr();
        // SAFETY: inside of the mapping and aligned, since areas start at multiples of a page or a
        // block; `&mut self` of the only area over these bytes excludes other references.
        unsafe { AtomicU64::from_ptr(at) }.store(word, Ordering::Relaxed);
    }

    /// Returns the bytes at `offset` for reading.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset, "inside of the area");
        // SAFETY: `offset` was just checked to lie inside of the area.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: as for `bytes_mut`; only this process writes these bytes, and only by `&mut self`.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Keeps all of the mapping that the area is part of.
    pub(super) fn keep(&self) -> KeptSpan {
        KeptSpan(self.span.clone())
    }

    /// Returns whether the calling process made this area.
    pub(crate) fn generation(&self) -> &Generation {
        &self.span.generation
    }
}

/// Keeps memory mapped, and gives no access to it.
#[derive(Debug)]
pub(super) struct KeptSpan(Arc<Span>);

impl KeptSpan {
    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> *const u8 {
        self.0.base.as_ptr()
    }

    /// Returns the length in bytes, without a mirror.
    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    /// Returns whether no other object keeps the memory mapped.
    pub(super) fn is_sole(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Memory of a peer, mapped read-only.
#[derive(Debug, Clone)]
pub(crate) struct PeerMapping {
    view: View,
}

impl PeerMapping {
    /// Maps the first `len` bytes of `fd`, the part from `mirror` on twice. The caller has checked that `fd`
    /// cannot shrink.
    pub(crate) fn map(fd: impl AsFd, len: usize, mirror: usize) -> Result<Self> {
        Ok(Self { view: View::new(Span::map(fd, len, mirror, ProtFlags::READ)?) })
    }

    /// Maps `len` bytes that nobody can write. The mapping is private, which makes no difference then: Linux
    /// before 6.7 refuses a shared mapping of a sealed file by a descriptor that is open for writing.
    pub(super) fn map_frozen(fd: impl AsFd, len: usize) -> Result<Self> {
        let span = Span::map_from(fd, 0, (len, len), ProtFlags::READ, MapFlags::PRIVATE)?;
        Ok(Self { view: View::new(span) })
    }

    /// Keeps the account that the mapping counts for until the memory is unmapped, which may be after the drop.
    pub(crate) fn count(&self, charge: impl Debug + Send + Sync + 'static) {
        let charged = self.view.span.charge.set(Box::new(charge));
        debug_assert!(charged.is_ok(), "a mapping counts for one account");
    }

    /// Returns whether `other` is the same mapping.
    #[inline(always)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.view.base == other.view.base
    }

    /// Returns the length in bytes, without a mirror.
    pub(super) fn len(&self) -> usize {
        self.view.span.len
    }

    pub(crate) fn generation(&self) -> &Generation {
        &self.view.span.generation
    }

    /// Keeps the memory mapped.
    pub(super) fn keep(&self) -> KeptSpan {
        KeptSpan(self.view.span.clone())
    }

    /// Returns a reference that does not keep the memory mapped.
    pub(super) fn downgrade(&self) -> WeakMapping {
        WeakMapping(Arc::downgrade(&self.view.span))
    }

    /// Returns the word at `offset` to sleep on. Only loads and futex calls may use it.
    pub(crate) fn futex(&self, offset: usize) -> &AtomicU32 {
        self.view.futex(offset)
    }

    /// Makes every page present.
    pub(crate) fn prefault(&self) -> Result<()> {
        self.view.span.advise(Advice::LinuxPopulateRead, "madvise(MADV_POPULATE_READ)")
    }

    /// Returns the bytes at `offset`, which the peer can change at any moment.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Bytes<'_> {
        self.find(offset, len).expect("inside of the mapping")
    }

    /// As [`bytes`](Self::bytes). `None`: they do not lie inside of the mapping.
    #[inline(always)]
    pub(crate) fn find(&self, offset: usize, len: usize) -> Option<Bytes<'_>> {
        let start = self.view.find(offset, len)?;
        // SAFETY: inside of a mapping that lives as long as `self` and cannot shrink.
        Some(unsafe { Bytes::new(start, len) })
    }
}

/// A reference to memory of a peer that may be unmapped.
#[derive(Debug)]
pub(super) struct WeakMapping(Weak<Span>);

impl WeakMapping {
    /// Returns the mapping if the memory is still mapped.
    pub(super) fn upgrade(&self) -> Option<PeerMapping> {
        self.0.upgrade().map(|span| PeerMapping { view: View::of(span) })
    }

    /// Returns whether the memory is still mapped.
    pub(super) fn is_mapped(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Part of an object that is no segment of slipring's and that other processes write, too.
#[derive(Debug)]
pub struct ForeignMapping {
    view: View,
    /// Bytes from the mapping's start, that of a page, to the start of the part.
    lead: usize,
}

impl ForeignMapping {
    /// Maps the `len` bytes of `fd` at `offset`, with any alignment. The caller makes sure that the object
    /// cannot become shorter, or that the process survives the signal.
    pub(crate) fn map(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> Result<Self> {
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, writable);
        let lead = offset % page_size() as u64;
        let extent = lead as usize + len;
        let span = Span::map_from(fd, offset - lead, (extent, extent), prot, MapFlags::SHARED)?;
        Ok(Self { view: View::new(span), lead: lead as usize })
    }

    /// As [`map`](Self::map), for a mapping that outlives the descriptor: the end of the last one frees the whole object.
    pub(crate) fn map_alone(
        fd: impl AsFd,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self> {
        let mut mapping = Self::map(&fd, offset, len, writable)?;
        let frees = most_freed(fd).and_then(|bytes| usize::try_from(bytes).ok());
        let span = Arc::get_mut(&mut mapping.view.span).expect("nothing else knows it");
        span.frees = frees.unwrap_or(usize::MAX);
        Ok(mapping)
    }

    /// Returns the mapped addresses, in whole pages.
    pub(crate) fn pages(&self) -> Range<usize> {
        let start = self.view.base.addr().get();
        start..start + self.view.extent.next_multiple_of(page_size())
    }

    /// Returns the bytes at `offset` of the part.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Bytes<'_> {
        let start = self.view.at(self.lead + offset, len);
        // SAFETY: inside of a mapping that lives as long as `self`; that it can be touched is the
        // promise of its creator.
        unsafe { Bytes::new(start, len) }
    }

    /// Returns the bytes at `offset` of the part for writing. The mapping is writable.
    pub(crate) fn bytes_mut(&self, offset: usize, len: usize) -> BytesMut<'_> {
        let start = self.view.at(self.lead + offset, len);
        // SAFETY: as for `bytes`; the caller's mapping is writable.
        unsafe { BytesMut::new(start, len) }
    }
}

impl PeerWords for PeerMapping {
    type Ring = PeerMappedRing;

    fn ring(&self, start: usize, len: u64) -> PeerMappedRing {
        PeerMappedRing(self.view.ring(start, len))
    }

    #[inline(always)]
    fn load(&self, offset: usize) -> u64 {
        self.view.word(offset).load(PEER_LOAD)
    }
}

impl PeerWords for Mapping {
    type Ring = PeerMappedRing;

    fn ring(&self, start: usize, len: u64) -> PeerMappedRing {
        PeerMappedRing(self.view.ring(start, len))
    }

    #[inline(always)]
    fn load(&self, offset: usize) -> u64 {
        self.view.word(offset).load(PEER_LOAD)
    }
}

/// Returns how many pages of the `len` bytes of a file from `start` on are allocated, in memory or swapped out. Returns
/// `None` if the kernel does not tell (before Linux 6.5, or in a sandbox).
pub(crate) fn present_pages(fd: impl AsFd, start: u64, len: u64) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let range = [start, len];
    // Pages in the cache, dirty, under writeback, evicted, recently evicted.
    let mut counts = [0u64; 5];
    // SAFETY: both arrays are laid out as `cachestat_range` and `cachestat`, and outlive the call.
    let done = unsafe {
        libc::syscall(
            CACHESTAT,
            fd.as_fd().as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0 as libc::c_uint,
        )
    };
    (done == 0).then(|| counts[0] + counts[3])
}

/// Returns the NUMA node of the caller's processor.
pub(crate) fn node_of_caller() -> Option<u32> {
    let (mut cpu, mut node) = (0u32, 0u32);
    let unused = core::ptr::null_mut::<libc::c_void>();
    // SAFETY: both places are valid to write a `u32` to; the third argument is unused since 2.6.24.
    let done = unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, &mut node, unused) };
    (done == 0).then_some(node)
}

#[cfg(all(test, not(slipring_loom)))]
mod tests;
