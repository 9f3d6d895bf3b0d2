//! Unit tests of `handshake::peer`.

use super::*;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

const BOTH: [&str; 2] = ["pid", "ipc"];

/// Returns a peer with this pid and a pidfd of this process.
fn peer(pid: Option<u32>) -> Peer {
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).ok().map(Arc::new);
    Peer { credentials: Credentials { pid, uid: 0, gid: 0 }, pidfd }
}

#[test]
fn a_namespace_is_another_one_only_where_that_is_seen() {
    assert_eq!(peer(Some(std::process::id())).other_namespace(&BOTH), None);
    // No process has this pid (`PID_MAX_LIMIT` is 2²²), so `/proc` has no entry.
    assert_eq!(peer(Some(u32::MAX / 2)).other_namespace(&BOTH), None);
    assert_eq!(peer(None).other_namespace(&BOTH), Some("pid"));
    assert_eq!(peer(None).other_namespace(&["ipc"]), None);
}
