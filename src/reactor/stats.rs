//! Counters of links and reactors.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::channel::HalfStats;

/// The counters of a [`Link`](crate::Link), from [`Link::stats`](crate::Link::stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// The sending half.
    pub sent: HalfStats,
    /// Messages, requests, responses and tensors that the loop has taken out of the ring.
    pub messages_received: u64,
    /// Bytes of these messages.
    pub bytes_received: u64,
    /// How often the peer's sender, asleep for want of room, had to be woken.
    pub receive_wakes: u64,
    /// Writes that wait for room.
    pub waiting_writes: u64,
    /// Bytes of these writes, as [`Options::write_limit`](crate::Options::write_limit) counts them.
    pub waiting_bytes: u64,
    /// Tokens that the peer triggered and that name no function here.
    pub stale_tokens: u64,
}

/// The counters of a reactor, from [`Reactor::stats`](crate::Reactor::stats).
///
/// The counters of messages, bytes and wakes include links that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReactorStats {
    /// Links that the reactor serves now.
    pub links: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes of the messages sent.
    pub bytes_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes of the messages received.
    pub bytes_received: u64,
    /// How often a peer had to be woken, for a message or for room.
    pub wakes: u64,
    /// How often the loop went to sleep.
    pub sleeps: u64,
    /// Writes that wait for room.
    pub waiting_writes: u64,
    /// Bytes of these writes.
    pub waiting_bytes: u64,
}

impl ReactorStats {
    /// Adds the counts of one link.
    pub(super) fn add(&mut self, link: &LinkStats) {
        self.messages_sent += link.sent.messages;
        self.bytes_sent += link.sent.bytes;
        self.messages_received += link.messages_received;
        self.bytes_received += link.bytes_received;
        self.wakes += link.sent.wakes + link.receive_wakes;
        self.waiting_writes += link.waiting_writes;
        self.waiting_bytes += link.waiting_bytes;
    }
}

/// The counters of a link's receiving half. The loop writes them, and any thread reads them.
#[derive(Debug, Default)]
pub(super) struct ReceiveCounters {
    messages: AtomicU64,
    bytes: AtomicU64,
    wakes: AtomicU64,
}

impl ReceiveCounters {
    /// Publishes the counts of the receiver.
    #[inline(always)]
    pub(super) fn publish(&self, stats: &HalfStats) {
        self.messages.store(stats.messages, Ordering::Relaxed);
        self.bytes.store(stats.bytes, Ordering::Relaxed);
        self.wakes.store(stats.wakes, Ordering::Relaxed);
    }

    /// Fills in the fields of `stats` that count what the link received.
    pub(super) fn fill(&self, stats: &mut LinkStats) {
        stats.messages_received = self.messages.load(Ordering::Relaxed);
        stats.bytes_received = self.bytes.load(Ordering::Relaxed);
        stats.receive_wakes = self.wakes.load(Ordering::Relaxed);
    }
}
