//! Descriptors in flight: a process that sends as many as its user may, so that no other process of the user can send one.

#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit};

use super::other::{listen_for, say};
use super::raw;

/// Becomes a user whose descriptors in flight the kernel counts.
pub fn become_nobody() {
    // SAFETY: sets ids of this process, in which nobody else relies on them.
    assert_eq!(unsafe { libc::setgid(65534) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setuid(65534) }, 0);
}

/// In a process of its own: sends descriptors that nobody receives, as many as its limit allows. It begins at the word "crowd",
/// says `name`, receives them at "go", and ends at "end".
pub fn crowd(name: &str) {
    let limit = Rlimit { current: Some(4096), maximum: Some(4096) };
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    become_nobody();
    listen_for("crowd");
    let mut pairs = Vec::new();
    let stdin = std::io::stdin();
    // 253 in a packet is the kernel's limit (SCM_MAX_FD).
    let many = [stdin.as_fd(); 250];
    while pairs.len() < 4 {
        let (near, far) = raw::socketpair();
        (0..3).for_each(|_| raw::send(&near, b"descriptors", &many).unwrap());
        pairs.push((near, far));
    }
    say(name);
    listen_for("go");
    drop(pairs);
    say("gone");
    listen_for("end");
}
