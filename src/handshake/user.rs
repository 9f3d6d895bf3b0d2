//! The user of this process, compared with that of a peer.
//!
//! The kernel reports a user that this process's user namespace does not map as the overflow uid. That number stands for
//! any number of users, so it names one user only where the namespace maps every user.

use std::fs::read_to_string;
use std::sync::OnceLock;

/// The overflow uid where `/proc` does not tell it: `DEFAULT_OVERFLOWUID` of the kernel.
const OVERFLOW: u32 = 65534;

/// The user ids of a namespace that maps all of them: all 32-bit numbers but the last, which names nobody.
const EVERYBODY: u64 = u32::MAX as u64;

/// How a peer's user compares with this process's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    Same,
    Different,
    /// Both user ids read as the overflow uid, which stands for every user without a mapping.
    Unknown,
}

/// Compares the effective user of this process with a peer's user id.
pub(super) fn compare(uid: u32) -> Compared {
    let own = rustix::process::geteuid().as_raw();
    if own != uid {
        return Compared::Different;
    }
    // The map is read each time: this process can enter another namespace.
    if own != overflow_uid() || read_to_string("/proc/self/uid_map").is_ok_and(|map| is_whole(&map))
    {
        Compared::Same
    } else {
        Compared::Unknown
    }
}

/// Returns the user id as which the kernel reports users without a mapping.
fn overflow_uid() -> u32 {
    static UID: OnceLock<u32> = OnceLock::new();
    *UID.get_or_init(|| {
        let told = read_to_string("/proc/sys/kernel/overflowuid").ok();
        told.and_then(|told| told.trim().parse().ok()).unwrap_or(OVERFLOW)
    })
}

/// Returns whether a `uid_map` (`user_namespaces(7)`) maps every user. Its ranges do not overlap.
fn is_whole(map: &str) -> bool {
    let counts = map.lines().map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<Option<u64>>() == Some(EVERYBODY)
}

#[cfg(test)]
mod tests;
