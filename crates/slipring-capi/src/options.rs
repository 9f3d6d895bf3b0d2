//! The options of a context.

#![allow(unsafe_code)]

use std::thread::LocalKey;
use std::time::Duration;

use slipring::Options;
use slipring::options::{PeerPolicy, Spin};

use crate::failure::{Answer, Failure, guard};
use crate::half::Half;
use crate::handle::{self, Handle, Kind, Lately};
use crate::pointers::Out;
use crate::status::slipring_status::{self, SLIPRING_INVALID_ARGUMENT};
use crate::timeout::SLIPRING_FOREVER;

/// The options of a context. One thread uses them at a time.
pub struct slipring_options(());

/// What slipring_options_set() sets.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum slipring_option {
    /// Bytes of the ring that this side writes: a power of two from one page to 1 GiB. 1 MiB, of which a link begins with 16 KiB.
    SLIPRING_OPTION_RING_CAPACITY = 1,
    /// The longest message in bytes; the smaller value of both sides counts. 1 GiB.
    SLIPRING_OPTION_MAX_MESSAGE = 2,
    /// The longest message in bytes that travels in the ring itself, at most a quarter of the ring. 4 KiB.
    SLIPRING_OPTION_INLINE_MAX = 3,
    /// Blocks that one peer may lend this side at once: 1 to 65536. 256.
    SLIPRING_OPTION_LOAN_SLOTS = 4,
    /// Bytes that the pool of this context may hold. 2 GiB.
    SLIPRING_OPTION_POOL_QUOTA = 5,
    /// Bytes of each block size that rotate between CPUs that share a cache. 2 MiB on AMD's processors, otherwise 512 KiB.
    SLIPRING_OPTION_POOL_FOOTPRINT = 6,
    /// As SLIPRING_OPTION_POOL_FOOTPRINT, between CPUs that share none. 32 MiB on AMD's processors, otherwise the same.
    SLIPRING_OPTION_POOL_FAR_FOOTPRINT = 7,
    /// Bytes of one peer's pool that this side is ready to map. 4 GiB.
    SLIPRING_OPTION_PEER_POOL_LIMIT = 8,
    /// Bytes of messages that may be set aside while a call waits for something else. 1 MiB.
    SLIPRING_OPTION_BACKLOG_LIMIT = 9,
    /// Peers of one listener that have not said Hello. 64.
    SLIPRING_OPTION_HALF_OPEN_LIMIT = 10,
    /// Nanoseconds that a peer may take for its Hello. 1 s.
    SLIPRING_OPTION_HANDSHAKE_TIMEOUT = 11,
    /// Nanoseconds that SLIPRING_DEFAULT waits for room. 30 s.
    SLIPRING_OPTION_SEND_TIMEOUT = 12,
    /// Nanoseconds that a peer may keep this side's blocks after the end; SLIPRING_FOREVER: as long as it lives. 1 s.
    SLIPRING_OPTION_RELEASE_GRACE = 13,
    /// Nanoseconds that a waiting thread polls at most before it sleeps, rarely where polling finds nothing. 0: it
    /// sleeps at once. SLIPRING_FOREVER: it never sleeps. 400 µs.
    SLIPRING_OPTION_SPIN = 14,
    /// Who may connect, and to whose listeners this side connects: a slipring_peer_policy.
    /// SLIPRING_PEERS_OF_SAME_USER.
    SLIPRING_OPTION_PEER_POLICY = 15,
    /// Whether rings and pool ask for huge pages: 0 or 1. 0.
    SLIPRING_OPTION_HUGE_PAGES = 16,
    /// Whether all pages are mapped at once rather than on first touch: 0 or 1. 0.
    SLIPRING_OPTION_PREFAULT = 17,
    /// The NUMA node of this side's rings. The node of the thread that connects or accepts.
    SLIPRING_OPTION_NUMA_NODE = 18,
    /// Whether this side's rings lie on the receiver's NUMA node: 0 or 1. 0.
    SLIPRING_OPTION_NUMA_OF_RECEIVER = 19,
    /// Bytes of writes of one slipring_link that may wait for room. 64 MiB.
    SLIPRING_OPTION_WRITE_LIMIT = 20,
}

/// The values of SLIPRING_OPTION_PEER_POLICY.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum slipring_peer_policy {
    /// Processes with the effective user id of this one.
    SLIPRING_PEERS_OF_SAME_USER = 0,
    /// Every process that can reach the socket.
    SLIPRING_PEERS_OF_ANYONE = 1,
}

thread_local! {
    static LATELY: Lately<Half<Options>> = const { Lately::new() };
}

impl Kind for Half<Options> {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0001;
    const WRONG: &'static str = "the handle is no slipring_options";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

/// Returns a copy of the options behind a pointer. A null pointer stands for the defaults.
///
/// # Safety
///
/// No other thread frees the handle meanwhile.
pub(crate) unsafe fn options_of(options: *const slipring_options) -> Answer<Options> {
    if options.is_null() {
        return Ok(Options::new());
    }
    // SAFETY: as the caller vouches.
    let options = unsafe { Handle::<Half<Options>>::of(options) }?;
    options.enter(|options| Ok(options.clone()))
}

fn wrong<T>(text: &'static str) -> Answer<T> {
    Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text))
}

/// Returns the options with one changed.
fn with(options: Options, option: u32, value: u64) -> Answer<Options> {
    use slipring_option::*;
    use slipring_peer_policy::*;
    let flag = || match value {
        0 | 1 => Ok(value == 1),
        _ => wrong("the option is 0 or 1"),
    };
    let small = || {
        u32::try_from(value).or_else(|_| wrong("the value of the option is longer than 32 bits"))
    };
    let is_forever = value == SLIPRING_FOREVER as u64;
    let time = Duration::from_nanos(value);
    const KEYS: [slipring_option; 20] = [
        SLIPRING_OPTION_RING_CAPACITY,
        SLIPRING_OPTION_MAX_MESSAGE,
        SLIPRING_OPTION_INLINE_MAX,
        SLIPRING_OPTION_LOAN_SLOTS,
        SLIPRING_OPTION_POOL_QUOTA,
        SLIPRING_OPTION_POOL_FOOTPRINT,
        SLIPRING_OPTION_POOL_FAR_FOOTPRINT,
        SLIPRING_OPTION_PEER_POOL_LIMIT,
        SLIPRING_OPTION_BACKLOG_LIMIT,
        SLIPRING_OPTION_HALF_OPEN_LIMIT,
        SLIPRING_OPTION_HANDSHAKE_TIMEOUT,
        SLIPRING_OPTION_SEND_TIMEOUT,
        SLIPRING_OPTION_RELEASE_GRACE,
        SLIPRING_OPTION_SPIN,
        SLIPRING_OPTION_PEER_POLICY,
        SLIPRING_OPTION_HUGE_PAGES,
        SLIPRING_OPTION_PREFAULT,
        SLIPRING_OPTION_NUMA_NODE,
        SLIPRING_OPTION_NUMA_OF_RECEIVER,
        SLIPRING_OPTION_WRITE_LIMIT,
    ];
    let Some(key) = KEYS.into_iter().find(|key| *key as u32 == option) else {
        return wrong("there is no such option");
    };
    Ok(match key {
        SLIPRING_OPTION_RING_CAPACITY => options.ring_capacity(value),
        SLIPRING_OPTION_MAX_MESSAGE => options.max_message(value),
        SLIPRING_OPTION_INLINE_MAX => options.inline_max(value),
        SLIPRING_OPTION_LOAN_SLOTS => options.loan_slots(small()?),
        SLIPRING_OPTION_POOL_QUOTA => options.pool_quota(value),
        SLIPRING_OPTION_POOL_FOOTPRINT => options.pool_footprint(value),
        SLIPRING_OPTION_POOL_FAR_FOOTPRINT => options.pool_far_footprint(value),
        SLIPRING_OPTION_PEER_POOL_LIMIT => options.peer_pool_limit(value),
        SLIPRING_OPTION_BACKLOG_LIMIT => options.backlog_limit(value as usize),
        SLIPRING_OPTION_HALF_OPEN_LIMIT => options.half_open_limit(value as usize),
        SLIPRING_OPTION_HANDSHAKE_TIMEOUT => options.handshake_timeout(time),
        SLIPRING_OPTION_SEND_TIMEOUT => options.send_timeout(time),
        SLIPRING_OPTION_RELEASE_GRACE => {
            options.release_grace(if is_forever { Duration::MAX } else { time })
        }
        SLIPRING_OPTION_SPIN => options.spin(match value {
            0 => Spin::Never,
            _ if is_forever => Spin::Forever,
            _ => Spin::Adaptive { max: time },
        }),
        SLIPRING_OPTION_PEER_POLICY => options.peer_policy(match value {
            _ if value == SLIPRING_PEERS_OF_SAME_USER as u64 => PeerPolicy::SameUser,
            _ if value == SLIPRING_PEERS_OF_ANYONE as u64 => PeerPolicy::Anyone,
            _ => return wrong("there is no such slipring_peer_policy"),
        }),
        SLIPRING_OPTION_HUGE_PAGES => options.huge_pages(flag()?),
        SLIPRING_OPTION_PREFAULT => options.prefault(flag()?),
        SLIPRING_OPTION_NUMA_NODE => options.numa_node(small()?),
        SLIPRING_OPTION_NUMA_OF_RECEIVER => options.numa_of_receiver(flag()?),
        SLIPRING_OPTION_WRITE_LIMIT => options.write_limit(value as usize),
    })
}

/// Makes options with their defaults. Free them with slipring_options_free(), at the earliest after
/// slipring_context_new(), which copies them.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_options_new(
    options: *mut *mut slipring_options,
) -> slipring_status {
    // SAFETY: the header demands a place for the answer.
    let out = unsafe { Out::new(options) };
    guard(|| {
        out?.set(Handle::make(Half::new(Options::new())?));
        Ok(())
    })
}

/// Sets an option, a slipring_option. slipring_context_new() checks the value.
///
/// SLIPRING_INVALID_ARGUMENT: there is no such option, or it cannot have this value.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_options_set(
    options: *mut slipring_options,
    option: u32,
    value: u64,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let options = unsafe { Handle::<Half<Options>>::of(options) };
    guard(|| {
        options?.enter(|options| {
            *options = with(options.clone(), option, value)?;
            Ok(())
        })
    })
}

/// Sets how many blocks and bytes of the context's pool one connection's peer may hold. 1024 and a quarter of the
/// quota.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_options_set_loan_limit(
    options: *mut slipring_options,
    blocks: u32,
    bytes: u64,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    let options = unsafe { Handle::<Half<Options>>::of(options) };
    guard(|| {
        options?.enter(|options| {
            *options = options.clone().loan_limit(blocks, bytes);
            Ok(())
        })
    })
}

/// Frees options. NULL has no effect.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_options_free(options: *mut slipring_options) -> slipring_status {
    // SAFETY: the header demands that no other thread uses the handle.
    unsafe { handle::free::<Half<Options>, _>(options) }
}
