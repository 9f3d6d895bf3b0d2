//! A session: the use of a link by this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::handshake::layout;
use crate::handshake::packet::Reason;
use crate::handshake::socket;
use crate::link::env::LinkEnv;
use crate::link::link::Link;
use crate::shm::OwnWords;
use crate::sync::Edge;
use crate::wake::{Attention, Waker};

/// What the user of a link holds: while a half or a loan lives, the peer may expect answers. When
/// the last of them is dropped, the peer is told, and our own loans end when it has gone, too.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) link: Arc<Link>,
    pub(crate) env: Arc<LinkEnv>,
    /// Wakes the peer's sender when a loan was returned, from any thread.
    room: Mutex<Waker>,
    /// The user vouches that the peer leaves alone what it has lent.
    trusted: AtomicBool,
}

impl Session {
    pub(crate) fn new(link: Arc<Link>, env: Arc<LinkEnv>) -> Self {
        let room = Waker::new(layout::SENDER_STATE, layout::ROOM_BELL);
        Self { link, env, room: Mutex::new(room), trusted: AtomicBool::new(false) }
    }

    /// The user vouches that the peer leaves alone what it has lent.
    pub(crate) fn trust(&self) {
        self.trusted.store(true, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Relaxed)
    }

    /// Returns a loan of the peer's: its block may be used again.
    pub(crate) fn return_loan(&self, slot: u32, generation: u64) {
        let link = &*self.link;
        if !link.own.generation().is_current() {
            return;
        }
        let word = layout::RETURNS + 8 * slot as usize;
        // Pairs with Account::reclaim: our loads of the block are done.
        link.own.store(word, generation, Edge::Return.store());
        if !crate::wake::is_asleep(&link.peer, layout::SENDER_STATE) {
            return;
        }
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        // A parking word that cannot be is the sender's loss alone; the next look at data says so.
        match room.look(&link.own, &link.peer) {
            Ok(Some(Attention::Wake)) => link.wake(room.bell()),
            Ok(Some(Attention::Call)) => link.call(Reason::Room),
            Ok(_) | Err(_) => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.link.own.generation().is_current() {
            // No half and no loan is left: what was never taken is nobody's. The peer looks once it finds us gone.
            self.link.own.store(layout::RELEASED, 1, Edge::Return.store());
            socket::shutdown(&self.link.socket);
            self.env.retire(&self.link);
        }
    }
}
