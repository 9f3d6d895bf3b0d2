//! A session: the use of a link by this process, from the handshake to the drop of the last half or loan.
//!
//! 1. Each half and each loan kept by this process holds the session.
//! 2. The drop of the last half limits how long the peer may keep its loans of this side's blocks. The drop of the
//!    session tells the peer that this side has ended and holds no loan.
//! 3. A loan is returned once, by one store, from any thread.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::handshake::packet::Reason;
use crate::handshake::{layout, socket};
use crate::link::env::LinkEnv;
use crate::link::health::Health;
use crate::link::link::Link;
use crate::link::parts::Parts;
use crate::shm::OwnWords;
use crate::sync::Edge;
use crate::wake::{Attention, Waker};

/// The use of a link by this process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) link: Arc<Link>,
    pub(crate) env: Arc<LinkEnv>,
    /// Halves that are not dropped.
    halves: AtomicU8,
    /// Wakes the peer's sender when a loan was returned, from any thread.
    room: Mutex<Waker>,
    /// Whether the user vouches that the peer does not write to blocks on loan.
    trusted: AtomicBool,
    /// For each loan slot of this side, what this process keeps in it. Made for the first loan.
    kept: OnceLock<Box<[Parts]>>,
}

impl Session {
    pub(crate) fn new(link: Arc<Link>, env: Arc<LinkEnv>) -> Self {
        let room = Waker::new(layout::SENDER_STATE, layout::ROOM_BELL);
        let (trusted, kept) = (AtomicBool::new(false), OnceLock::new());
        Self { link, env, halves: AtomicU8::new(2), room: Mutex::new(room), trusted, kept }
    }

    /// Notes that a half is dropped. After the last one the peer's loans have a deadline.
    pub(crate) fn leave(&self) {
        // Relaxed: the registry's lock orders what the halves did.
        let was_last = self.halves.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last && self.link.own().generation().is_current() {
            self.env.leave(&self.link);
        }
    }

    /// Takes back all that the peer holds of this side's pool, at once.
    pub(crate) fn revoke(&self) {
        if self.link.own().generation().is_current() {
            self.env.pool().close(self.link.borrower());
        }
    }

    /// Notes that the user vouches that the peer does not write to blocks on loan.
    pub(crate) fn trust(&self) {
        self.trusted.store(true, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Relaxed)
    }

    /// Moves the line of the return behind that of this slot to this core. Senders of this library use slots in turn, so that is
    /// where this process returns its next loan.
    #[inline(always)]
    pub(crate) fn prepare_return(&self, slot: u32) {
        let next = (slot + 1) % self.link.terms().own.loan_slots;
        self.link.own().ask_word(layout::RETURNS + 8 * next as usize);
    }

    /// Notes that this process keeps the peer's loan in a slot of this side.
    #[inline]
    pub(crate) fn keep_loan(&self, slot: u32) {
        self.kept()[slot as usize].take();
    }

    #[inline]
    fn kept(&self) -> &[Parts] {
        let slots = self.link.terms().own.loan_slots;
        self.kept.get_or_init(|| (0..slots).map(|_| Parts::new()).collect())
    }

    /// Holds a message of a publisher in one of the first `limit` slots, with one part. Returns the slot, or `None` if none of
    /// them is free.
    #[inline]
    pub(crate) fn take_hold(&self, limit: u32) -> Option<u32> {
        let kept = self.kept();
        let slot = kept.iter().take(limit as usize).position(Parts::is_free)?;
        kept[slot].take();
        Some(slot as u32)
    }

    /// Adds a part to a held message, of which the caller has one.
    pub(crate) fn add_part(&self, slot: u32) {
        self.kept()[slot as usize].add();
    }

    /// Counts bytes of a held message. Returns all of it that were counted, and those of all other held messages.
    pub(crate) fn count_held(&self, slot: u32, bytes: u64) -> (u64, u64) {
        let kept = self.kept();
        let needed = kept[slot as usize].count(bytes);
        let others =
            kept.iter().enumerate().filter(|(at, kept)| *at != slot as usize && !kept.is_free());
        (needed, others.map(|(_, kept)| kept.bytes()).fold(0, u64::saturating_add))
    }

    /// Drops a part of a held message. The drop of the last one gives the hold back.
    #[inline]
    pub(crate) fn drop_part(&self, slot: u32) {
        let part = &self.kept()[slot as usize];
        if part.drop_one() {
            self.store_return(slot, 0);
            // This side takes the slot only now: its next hold comes after that store.
            part.free();
        }
    }

    /// Returns how many loans or held messages of the peer's this process keeps.
    pub(crate) fn kept_loans(&self) -> u64 {
        let kept = self.kept.get().into_iter().flatten();
        kept.filter(|kept| !kept.is_free()).count() as u64
    }

    /// Returns a loan to the peer, which may then reuse the block.
    pub(crate) fn return_loan(&self, slot: u32, generation: u64) {
        if let Some(kept) = self.kept.get() {
            // The store of the generation orders this before the peer's next loan in the slot.
            kept[slot as usize].free();
        }
        self.store_return(slot, generation);
    }

    #[inline(always)]
    fn store_return(&self, slot: u32, generation: u64) {
        let link = &*self.link;
        if !link.own().generation().is_current() {
            return;
        }
        let word = layout::RETURNS + 8 * slot as usize;
        // Pairs with Account::reclaim: this process's loads of the block are done.
        link.own().store(word, generation, Edge::Return.store());
        if !crate::wake::is_asleep(link.peer(), layout::SENDER_STATE) {
            return;
        }
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        // An impossible state word costs only the peer's sender its wake-up. The receiving half reports the fault.
        match room.look(link.own(), link.peer()) {
            Ok(Some(Attention::Wake)) => link.wake(room.bell()),
            Ok(Some(Attention::Call)) => link.call(Reason::Room),
            Ok(_) | Err(_) => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.link.own().generation().is_current() {
            // No half and no loan is left, so nobody will read what was not received. The peer loads the word when it
            // sees the end of this side.
            self.link.own().store(layout::RELEASED, 1, Edge::Return.store());
            // First, so that the watcher does not wake for the end of a link that this side has dropped.
            self.env.retire(&self.link);
            if Arc::strong_count(&self.link) == 1 {
                // The drop of the link ends the socket, after it has unmapped both segments. The ring has told the peer of
                // the end. If the peer drops its side meanwhile, its watcher does not wake up for nothing.
            } else if self.link.health() == Health::Failed {
                // The socket was shut down when the link failed, so that the peer would not look a second time.
                socket::end(self.link.socket());
            } else {
                socket::shutdown(self.link.socket());
            }
        }
    }
}
