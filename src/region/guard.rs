//! The guard: what survives a load or store to memory whose owner has truncated it.
//!
//! Such an access raises `SIGBUS`. The guard's handler looks whether the address lies in a mapping
//! of a region, and if so maps zeros in its place and marks it: the access goes on over zeros and
//! ends with an error. Every other signal goes to the handler that was there before.
//!
//! ```text
//!   in_place ─▶ load ─▶ SIGBUS ─▶ handler ─▶ ours?  mark, mmap zeros ─▶ load ─▶ .. ─▶ marked: error
//!                                     └────▶ other: the previous handler, or death as ever
//! ```
//!
//! 1. The handler loads and stores atomics and makes raw system calls; it neither allocates nor
//!    locks, and keeps `errno`.
//! 2. Zeros replace the whole mapping, at once: one signal, however long it is. All accesses to it
//!    that are under way fail, whichever thread met the signal.
//! 3. A signal that somebody sent (`kill`) carries no address, and is never ours.

#![allow(unsafe_code)]

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};
use crate::region::table::{self, Slot};
use crate::shm::fork::Generation;
use crate::shm::page_size;

/// The guard of this process against memory that is truncated while it is accessed in place.
///
/// An application that wants [`Lease::in_place`](crate::Lease::in_place) for memory that others
/// can truncate installs it, once, early in `main`. The library never does: a signal handler is the
/// process's.
///
/// The handler that was there before gets every signal that is not a region's, in the way it had
/// asked for (`SA_SIGINFO`, `sa_mask`, `SA_NODEFER`, `SA_RESETHAND`, `SA_RESTART`); it may run on the
/// alternate stack. If there was none, the process dies as it would have. Whoever installs a handler
/// later must pass on what is not theirs, or the guard is gone.
///
/// # Examples
///
/// ```
/// use slipring::{ErrorKind, PosixShm, RegionFault, Registry, SigbusGuard, Source};
///
/// SigbusGuard::install()?;
/// # let key = format!("/slipring-guard-{}", std::process::id());
/// let object = PosixShm::create(&key, 8192)?;
/// let registry = Registry::new()?;
/// registry.register("input", Source::Posix(&key), 0, 8192)?;
/// let lease = registry.lease("input", 0, 8192)?;
/// let answer = lease.in_place(|bytes| {
///     rustix::fs::ftruncate(&object, 0).unwrap(); // what its owner may do at any moment
///     bytes.byte(5000)
/// });
/// let truncated = RegionFault::TruncatedInPlace { len: 8192 };
/// assert_eq!(answer.unwrap_err().kind(), &ErrorKind::Region(truncated));
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
pub enum SigbusGuard {}

/// What was there before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether the previous handler wanted to run once, and has.
static SPENT: AtomicBool = AtomicBool::new(false);
static GENERATION: OnceLock<Generation> = OnceLock::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);

impl SigbusGuard {
    /// Installs the guard; a second call does nothing. It stays until the process ends, and its
    /// children have it too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel lacks what it needs, or refuses.
    pub fn install() -> Result<()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if Self::is_installed() {
            return Ok(());
        }
        let generation = Generation::current()?;
        let before = disposition(None)?;
        // Before the handler can run, which reads them.
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (before.sa_flags & libc::SA_RESTART);
        let _ = GENERATION.set(generation);
        let _ = PREVIOUS.set(before);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        disposition(Some(&action(handler as usize, flags)))?;
        INSTALLED.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether it was installed, in this process or before a `fork`.
    pub fn is_installed() -> bool {
        // Pairs with `install`: the handler, and what it reads, are there.
        INSTALLED.load(Ordering::Acquire)
    }

    /// Guards whole pages that are mapped. `None`: there is no guard.
    pub(super) fn watch(pages: Range<usize>, writable: bool) -> Result<Option<Slot>> {
        if !Self::is_installed() {
            return Ok(None);
        }
        Ok(Some(Slot::claim(pages, writable, Generation::current()?.number())?))
    }
}

/// A thread that takes `SIGBUS`, for a while: the kernel kills a thread that faults while it blocks it.
///
/// One inside of another costs no system call.
#[derive(Debug)]
#[doc(hidden)]
pub struct Unblocked {
    /// What the thread blocked before, if that was among it.
    before: Option<libc::sigset_t>,
    /// A mask is its thread's.
    thread: core::marker::PhantomData<*const ()>,
}

thread_local! {
    /// How many [`Unblocked`] this thread has.
    static UNBLOCKED: Cell<usize> = const { Cell::new(0) };
}

impl Unblocked {
    /// Unblocks the signal on this thread until the value is dropped.
    pub fn start() -> Self {
        let outer = UNBLOCKED.replace(UNBLOCKED.get() + 1);
        let mut blocked = None;
        if outer == 0 {
            let mut before = no_signals();
            // SAFETY: both sets are valid; the call changes this thread's mask only.
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &sigbus_alone(), &mut before) };
            // SAFETY: a valid set.
            let was = unsafe { libc::sigismember(&before, libc::SIGBUS) } == 1;
            blocked = was.then_some(before);
        }
        Self { before: blocked, thread: core::marker::PhantomData }
    }
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        UNBLOCKED.set(UNBLOCKED.get() - 1);
        if self.before.is_some() {
            // SAFETY: a valid set; the call changes this thread's mask only.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &sigbus_alone(), ptr::null_mut()) };
        }
    }
}

fn no_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` is a place for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: `sigemptyset` has written all of it.
    unsafe { set.assume_init() }
}

fn sigbus_alone() -> libc::sigset_t {
    let mut set = no_signals();
    // SAFETY: a valid set, and a valid signal.
    unsafe { libc::sigaddset(&mut set, libc::SIGBUS) };
    set
}

fn action(handler: libc::sighandler_t, flags: c_int) -> libc::sigaction {
    libc::sigaction {
        sa_sigaction: handler,
        sa_mask: no_signals(),
        sa_flags: flags,
        sa_restorer: None,
    }
}

/// What the process does on `SIGBUS`, before `next` takes its place.
fn disposition(next: Option<&libc::sigaction>) -> Result<libc::sigaction> {
    let mut before = action(libc::SIG_DFL, 0);
    let next = next.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `next` is null or valid, `before` a place for an action; the one handler that is ever
    // installed here is sound in every thread at every moment.
    let done = unsafe { libc::sigaction(libc::SIGBUS, next, &mut before) };
    if done == 0 { Ok(before) } else { Err(Error::os("sigaction", io::Error::last_os_error())) }
}

/// Whether the instruction that raised the signal would raise it again: a fault, not a message.
fn is_fault(code: c_int) -> bool {
    matches!(code, libc::BUS_ADRALN | libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR)
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over a valid description, for as long as the handler runs.
    let description = unsafe { &*info };
    let code = description.si_code;
    if matches!(code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR) {
        // SAFETY: these two carry an address.
        let address = unsafe { description.si_addr() }.addr();
        if replace_by_zeros(address) {
            return;
        }
    }
    pass_on(signal, info, context, code);
}

/// Whether the address lies in a mapping of a region, which can be touched from now on.
fn replace_by_zeros(address: usize) -> bool {
    let Some(generation) = GENERATION.get() else { return false };
    let Some(found) = table::find(address, generation.number_now()) else { return false };
    // Before the zeros are there: who reads them finds the mark afterwards.
    found.mark();
    let page = address & !(page_size() - 1);
    // Where the kernel accounts for every writable page, a long mapping may be too much for it.
    map_zeros(found.pages.clone(), found.writable)
        || map_zeros(page..page + page_size(), found.writable)
}

fn map_zeros(pages: Range<usize>, writable: bool) -> bool {
    let mut prot = ProtFlags::READ;
    prot.set(ProtFlags::WRITE, writable);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let start = ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: the pages are a region's mapping, which its access keeps; nobody has a reference to
    // its bytes, whose values may change at any moment anyway. rustix makes the call itself, without
    // touching `errno`.
    unsafe { rustix::mm::mmap_anonymous(start, pages.len(), prot, flags) }.is_ok()
}

/// Gives the signal to whoever would have had it without us.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, code: c_int) {
    let Some(previous) = PREVIOUS.get() else { return die(code) };
    let once = previous.sa_flags & libc::SA_RESETHAND != 0;
    match previous.sa_sigaction {
        libc::SIG_DFL => die(code),
        // The kernel does not let a fault be ignored.
        libc::SIG_IGN if is_fault(code) => die(code),
        libc::SIG_IGN => {}
        _ if once && SPENT.swap(true, Ordering::Relaxed) => die(code),
        handler => {
            // The kernel would block these while it runs; it restores the thread's mask when we return.
            // SAFETY: a valid set; the call changes this thread's mask only.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &previous.sa_mask, ptr::null_mut()) };
            if previous.sa_flags & libc::SA_NODEFER != 0 {
                // SAFETY: as above.
                unsafe {
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &sigbus_alone(), ptr::null_mut())
                };
            }
            if previous.sa_flags & libc::SA_SIGINFO != 0 {
                type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                // SAFETY: the process had installed this address as such a handler.
                let handler: Handler = unsafe { core::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the process had installed this address as such a handler.
                let handler: extern "C" fn(c_int) = unsafe { core::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

/// What the kernel does where nobody handles the signal.
fn die(code: c_int) {
    let default = action(libc::SIG_DFL, 0);
    // SAFETY: a valid action, and no place for the one before.
    unsafe { libc::sigaction(libc::SIGBUS, &default, ptr::null_mut()) };
    // A fault is raised again by the instruction that we return to, with its own description.
    if !is_fault(code) {
        // SAFETY: a valid signal; it is delivered when the handler returns.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}
