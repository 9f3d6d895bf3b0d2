//! The guard: an access to memory that its owner has truncated ends with an error instead of the process's
//! death.
//!
//! Such an access raises `SIGBUS`. The guard's handler checks whether the address lies in a mapping of a
//! region. If so, the handler marks the mapping and maps zeros over it: the access goes on over zeros and ends
//! with an error. Every other signal goes to the handler that was installed earlier.
//!
//! ```text
//!   in_place ─▶ load ─▶ SIGBUS ─▶ handler ─▶ ours?  mark, mmap zeros ─▶ load ─▶ .. ─▶ marked: error
//!                                     └────▶ other: the previous handler, or the default: death
//! ```
//!
//! 1. The handler loads and stores atomics and makes raw system calls. It neither allocates nor locks, and it
//!    preserves `errno`.
//! 2. Zeros replace the whole mapping at once, so a long access raises one signal. All accesses to the mapping
//!    in progress fail, whichever thread got the signal.
//! 3. A signal from another process (`kill`) carries no address, and the handler passes it on.

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

/// The guard of this process against memory that its owner truncates during an access in place.
///
/// An application that wants [`Lease::in_place`](crate::region::Lease::in_place) for memory that other
/// processes can truncate installs the guard once, early in `main`. The library never installs it: a signal
/// handler belongs to the process.
///
/// The previous handler gets every signal that is not a region's, in the way it asked for (`SA_SIGINFO`,
/// `sa_mask`, `SA_NODEFER`, `SA_RESETHAND`, `SA_RESTART`). It may run on the alternate stack. Without a
/// previous handler the process dies of such a signal, as it would without the guard. A handler that is
/// installed later must pass on the signals that it does not know, or the guard has no effect.
///
/// # Examples
///
/// ```
/// use slipring::ErrorKind;
/// use slipring::error::RegionFault;
/// use slipring::region::{PosixShm, Registry, SigbusGuard, Source};
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

/// The disposition of the signal before [`SigbusGuard::install`], as it reads it first. The handler needs one from its
/// first moment.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// The disposition that the guard's handler has replaced. It differs from [`BEFORE`] if another thread has installed a
/// handler in between.
static REPLACED: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether the previous handler wanted to run once (`SA_RESETHAND`) and has run.
static SPENT: AtomicBool = AtomicBool::new(false);
static GENERATION: OnceLock<Generation> = OnceLock::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);

impl SigbusGuard {
    /// Installs the guard. A second call has no effect. The guard stays until the process ends, and forked
    /// children have it, too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`](crate::ErrorKind::Os): the kernel is too old, or refuses.
    pub fn install() -> Result<()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if Self::is_installed() {
            return Ok(());
        }
        let generation = Generation::current()?;
        let before = disposition(None)?;
        // Both are set before the handler can run and read them. Only the call that installs it tells what it replaces.
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (before.sa_flags & libc::SA_RESTART);
        let _ = GENERATION.set(generation);
        let _ = BEFORE.set(before);
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        let _ = REPLACED.set(disposition(Some(&action(handler as usize, flags)))?);
        INSTALLED.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether the guard is installed, in this process or before a `fork`.
    pub fn is_installed() -> bool {
        // Pairs with `install`: the handler and its data are there.
        INSTALLED.load(Ordering::Acquire)
    }

    /// Guards whole mapped pages. Returns `None` if no guard is installed.
    pub(super) fn watch(pages: Range<usize>, writable: bool) -> Result<Option<Slot>> {
        if !Self::is_installed() {
            return Ok(None);
        }
        Ok(Some(Slot::claim(pages, writable, Generation::current()?.number())?))
    }
}

/// A scope in which the thread accepts `SIGBUS`. The kernel kills a thread that faults while it blocks the
/// signal.
///
/// A nested scope costs no system call.
#[derive(Debug)]
#[doc(hidden)]
pub struct Unblocked {
    /// The thread's earlier mask, if it blocked the signal.
    before: Option<libc::sigset_t>,
    /// A mask belongs to its thread.
    thread: core::marker::PhantomData<*const ()>,
}

thread_local! {
    /// The number of [`Unblocked`] scopes of this thread.
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

/// Returns the process's disposition of `SIGBUS` and installs `next`, if there is one.
fn disposition(next: Option<&libc::sigaction>) -> Result<libc::sigaction> {
    let mut before = action(libc::SIG_DFL, 0);
    let next = next.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `next` is null or valid, `before` a place for an action; the one handler that is ever
    // installed here is sound in every thread at every moment.
    let done = unsafe { libc::sigaction(libc::SIGBUS, next, &mut before) };
    if done == 0 { Ok(before) } else { Err(Error::os("sigaction", io::Error::last_os_error())) }
}

/// Returns whether the instruction that raised the signal would raise it a second time: a fault, not a
/// message.
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

/// Returns whether the address lies in a mapping of a region. The mapping can then be accessed.
fn replace_by_zeros(address: usize) -> bool {
    let Some(generation) = GENERATION.get() else { return false };
    let Some(found) = table::find(address, generation.number_now()) else { return false };
    // The mark comes before the zeros, so that an access that reads them finds it.
    found.mark();
    let page = address & !(page_size() - 1);
    // Where the kernel accounts for every writable page, a long mapping may exceed its limit.
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

/// Passes the signal to the handler that would get it without the guard.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, code: c_int) {
    let Some(previous) = REPLACED.get().or_else(|| BEFORE.get()) else { return die(code) };
    let once = previous.sa_flags & libc::SA_RESETHAND != 0;
    match previous.sa_sigaction {
        libc::SIG_DFL => die(code),
        // The kernel does not let a process ignore a fault.
        libc::SIG_IGN if is_fault(code) => die(code),
        libc::SIG_IGN => {}
        _ if once && SPENT.swap(true, Ordering::Relaxed) => die(code),
        handler => {
            // The kernel would block these signals while the handler runs. It restores the thread's mask when
            // the handler returns.
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

/// Does what the kernel does without a handler.
fn die(code: c_int) {
    let default = action(libc::SIG_DFL, 0);
    // SAFETY: a valid action, and no place for the one before.
    unsafe { libc::sigaction(libc::SIGBUS, &default, ptr::null_mut()) };
    // The instruction repeats a fault when the handler returns, with its own description.
    if !is_fault(code) {
        // SAFETY: a valid signal; it is delivered when the handler returns.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}
