//! The attacks, and the kinds of servers that each one meets.

use crate::judge::Attack;
use crate::servers::Kind;
use crate::subject::Lack;

use Kind::{Blocking, Commit, EventLoop, OneThread, Poll, Reactor, TwoThreads};

const ALL: &[Kind] = &[Blocking, Reactor, EventLoop, OneThread, TwoThreads, Poll, Commit];

/// A service of committed buffers echoes nothing: it lends its clients nothing, and ends a link with a message that is no
/// request.
const ECHO: &[Kind] = &[Blocking, Reactor, EventLoop, OneThread, TwoThreads, Poll];

/// One thread of the server serves several peers.
const SHARED: &[Kind] = &[Reactor, EventLoop, OneThread, TwoThreads, Poll, Commit];

pub const ATTACKS: &[(Attack, &[Kind])] = &[
    // B5: descriptors that hang.
    (Attack::new("lingers-as-segment"), ECHO),
    (Attack::new("lingers-unread"), ALL),
    // Only a service of committed buffers takes descriptors that are no segments.
    (Attack::new("lingers-in-descriptors"), &[Commit]),
    (Attack::new("silent-files"), ALL),
    // B6, B7, D23: loans that do not come back.
    (Attack::new("stopped-borrower"), ECHO),
    (Attack::new("zombies"), ECHO),
    (Attack::new("miser"), ECHO),
    (Attack::new("eight-links"), ECHO),
    // B8, D18, D23: memory that is dear to map, to copy and to give back.
    (Attack::new("segment-pairs"), ALL),
    (Attack::new("large-segment-pairs"), ALL),
    (Attack::new("large-segment-bursts"), SHARED),
    (Attack::new("last-references"), ALL),
    // A blocking server and a runtime receive into memory of their own, a message a link at a time.
    (Attack { copies: true, ..Attack::new("messages-of-512-mib").heap(1100) }, ECHO),
    (Attack { copies: true, ..Attack::new("messages-of-1-gib").heap(2100) }, ECHO),
    // Only a service of committed buffers loads models: from two processes at a time.
    (Attack { copies: true, ..Attack::new("long-loads").heap(1600) }, &[Commit]),
    // B9, D21, D22: a server that lacks memory, or may not make long files.
    (Attack::new("messages-of-190-mb").on(Lack::Memory).heap(600), ALL),
    (Attack::new("long-echoes").on(Lack::FileSize), ECHO),
    // B10, D13, D19: strangers.
    (Attack::new("silent-peers"), ALL),
    (Attack::new("one-silent-peer"), ALL),
    (Attack::new("connects-same-user"), ALL),
    (Attack::new("connects-other-user"), ALL),
    (Attack::new("hellos-other-user"), ALL),
    (Attack::new("large-hellos"), ALL),
    (Attack::new("stranger-lingers"), ALL),
    // D14 to D17: rings and wakes.
    (Attack::new("dead-full-ring"), ALL),
    (Attack::new("endless-messages"), ECHO),
    (Attack::new("endless-packets-records"), ALL),
    (Attack::new("filled-lies"), ECHO),
    (Attack::new("endless-after-end"), ALL),
    (Attack::new("wakes"), ALL),
    // D20: what a process may map.
    (Attack::new("tiny-segments"), ALL),
];
