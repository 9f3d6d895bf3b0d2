//! The subscribers of a publisher, and the memory that its messages keep for them.
//!
//! The publisher and its host thread share the audience, under one lock. A short message does not take the lock: the
//! publisher looks at a counter, and copies the list of subscribers only after it has changed.
//!
//! ```text
//!   published ─▶ kept: the last ones, and those that a subscriber has yet to read
//!                  │ withdrawn: the slot says so
//!                  ▼
//!                held: a subscriber still reads it ─▶ its blocks go back to the pool
//! ```
//!
//! 1. A message that keeps memory is withdrawn once it is older than the history, and every subscriber has read it or may no
//!    longer ask for it.
//! 2. A withdrawn message keeps its memory as long as a subscriber holds it. An evicted or dead subscriber holds nothing.
//!    A subscriber that holds more bytes of such messages than it may is evicted.
//! 3. A subscriber is told of every segment that a kept message lies in, when it joins or before the message is published.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::broadcast::event::{Event, EventKind};
use crate::broadcast::record::{Kept, bytes_in_blocks};
use crate::broadcast::seat::Seat;
use crate::broadcast::slots::SlotWriter;
use crate::error::{Eviction, Result};
use crate::handshake::Policy;
use crate::handshake::packet::{Packet, Reason, Refusal, Topic, refusal};
use crate::handshake::socket;
use crate::shm::{Mapping, PeerMapping};
use crate::sync::Edge;
use crate::wake::before_last_look;

/// The most events that wait for the owner of the publisher.
const EVENTS: usize = 1024;

/// A message that keeps memory.
#[derive(Debug)]
struct Record {
    message: u64,
    /// Its bytes in blocks.
    bytes: u64,
    kept: Vec<Kept>,
}

/// The subscribers, and what is kept for them.
#[derive(Debug)]
pub(super) struct Audience {
    /// Changes with the list of subscribers.
    version: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    seats: BTreeMap<u64, Seat>,
    next_id: u64,
    /// The publisher has ended.
    is_over: bool,
    events: VecDeque<Event>,
    /// Messages in slots, oldest first.
    kept: VecDeque<Record>,
    /// Withdrawn messages that a subscriber holds.
    held: Vec<Record>,
    /// The most bytes that a subscriber may hold, or 0 if any number.
    hold_bytes: u64,
    /// Evicted subscribers, to be dropped without the lock.
    ended: Vec<Seat>,
}

impl Audience {
    /// Returns an audience of nobody. A subscriber may hold so many bytes, or any number with 0.
    pub(super) fn new(hold_bytes: u64) -> Self {
        let state = State { hold_bytes, ..State::default() };
        Self { version: AtomicU64::default(), state: Mutex::new(state) }
    }

    /// Returns a number that changes with the list of subscribers.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Only a bug of this crate panics under the lock, and each step leaves the tables whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the list of subscribers has changed, under the lock.
    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Adds a subscriber, and tells it of the memory that it may read, and then of the topic and of its first message. So
    /// a message that is published after the subscriber is in the list counts for it. Returns its number, or `None` if there are
    /// `most`, this process lacks what it takes to tell it, or the subscriber takes no packet. `newest` returns the number of the
    /// newest message.
    pub(super) fn join(
        &self,
        mut seat: Seat,
        (mut topic, fd): (Topic, BorrowedFd<'_>),
        newest: impl FnOnce() -> u64,
        most: usize,
    ) -> Option<u64> {
        let mut state = self.lock();
        // A publisher that looks from here on waits for the lock, and then finds the subscriber. Pairs with Publisher::wake: a
        // message whose publication misses the change is visible to the subscriber, which looks before it sleeps.
        self.changed();
        before_last_look(true);
        if state.is_over {
            return None;
        }
        if state.seats.len() >= most {
            let _ = socket::send(seat.link().socket(), &refusal(Refusal::Subscribers), &[]);
            return None;
        }
        // Any message that is published and not counted here waits for the lock, except the one that is under way.
        topic.first = (newest() + 1).saturating_sub(topic.history.into()).max(1);
        seat.begin(topic.first);
        // The subscriber reads messages once it knows the topic, and must find the segments that they name.
        let segments: Vec<u32> = state.segments_from(topic.first).into_iter().collect();
        let told = seat
            .announce(&segments, &segments)
            .and_then(|_| seat.link().post(&Packet::Topic(topic), &[fd]));
        if !matches!(told, Ok(true)) {
            if let Err(error) = told {
                tracing::warn!(error = format_args!("{error:#}"), "a subscriber is turned away");
                let _ = socket::send(seat.link().socket(), &refusal(Refusal::NoResources), &[]);
            }
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.note(EventKind::Joined, id, &seat);
        let link = seat.link().clone();
        state.seats.insert(id, seat);
        // A log can be slow, and publishing needs the lock.
        drop(state);
        tracing::debug!(peer = link.peer_name(), "a subscriber has joined");
        Some(id)
    }

    /// Removes a subscriber that has ended. Returns it and those that were evicted, to be dropped without the lock.
    pub(super) fn leave(&self, id: u64) -> Vec<Seat> {
        let mut state = self.lock();
        let Some(seat) = state.seats.remove(&id) else { return Vec::new() };
        // A publisher that waits for it sleeps on its link. With the seat the link leaves the watcher, which may not have seen
        // the end.
        seat.link().hang_up();
        // It may have failed, and read what it holds.
        seat.revoke();
        let kind = if seat.link().peer_left() { EventKind::Left } else { EventKind::Died };
        state.note(kind, id, &seat);
        state.sweep();
        self.changed();
        let mut ended = state.take_ended();
        drop(state);
        match kind {
            EventKind::Left => {
                tracing::debug!(peer = seat.link().peer_name(), "a subscriber has left");
            }
            _ => tracing::warn!(peer = seat.link().peer_name(), "a subscriber has died"),
        }
        ended.push(seat);
        ended
    }

    /// Evicts a subscriber. Returns whether there was one.
    pub(super) fn evict(&self, id: u64, cause: Eviction) -> bool {
        let mut state = self.lock();
        if !state.evict(id, cause) {
            return false;
        }
        state.sweep();
        self.changed();
        let ended = state.take_ended();
        drop(state);
        for seat in &ended {
            tracing::warn!(peer = seat.link().peer_name(), ?cause, "a subscriber was evicted");
        }
        drop(ended);
        true
    }

    /// Withdraws messages, as [`State::withdraw`] does, and notes whether this has changed the list of subscribers.
    pub(super) fn withdraw(
        &self,
        state: &mut State,
        writer: &SlotWriter<Mapping>,
        history: u64,
        overwritten: u64,
    ) {
        state.withdraw(writer, history, overwritten);
        if !state.ended.is_empty() {
            self.changed();
        }
    }
}

impl State {
    fn note(&mut self, kind: EventKind, id: u64, seat: &Seat) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event::new(kind, id, seat.link().identity()));
    }

    /// Evicts a subscriber. Returns whether there was one.
    fn evict(&mut self, id: u64, cause: Eviction) -> bool {
        let Some(seat) = self.seats.remove(&id) else { return false };
        // Before its memory is free.
        seat.evict(cause);
        self.note(EventKind::Evicted(cause), id, &seat);
        self.ended.push(seat);
        true
    }

    /// Takes the subscribers that were evicted, to be dropped without the lock.
    pub(super) fn take_ended(&mut self) -> Vec<Seat> {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    pub(super) fn seats(&self) -> impl Iterator<Item = (u64, &Seat)> {
        self.seats.iter().map(|(id, seat)| (*id, seat))
    }

    pub(super) fn seat(&self, id: u64) -> Option<&Seat> {
        self.seats.get(&id)
    }

    /// Returns the numbers and the words of all subscribers.
    pub(super) fn words(&self) -> (Vec<u64>, Vec<PeerMapping>) {
        self.seats.iter().map(|(id, seat)| (*id, seat.words())).unzip()
    }

    /// Notes the end of the publisher, and tells all subscribers.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.seats.values().for_each(Seat::say_end);
    }

    /// Sends a packet that wakes a subscriber.
    pub(super) fn call(&self, id: u64) {
        if let Some(seat) = self.seats.get(&id) {
            seat.link().call(Reason::Data);
        }
    }

    /// Returns the subscriber that is waited for and furthest behind, with its position.
    pub(super) fn last(&self, newest: u64) -> Option<(u64, u64)> {
        let positions = self.waited_for().map(|(id, seat)| {
            seat.stay_awake(newest);
            (seat.position(newest), id)
        });
        positions.min().map(|(position, id)| (id, position))
    }

    /// Returns the subscribers that are waited for.
    pub(super) fn waited_for(&self) -> impl Iterator<Item = (u64, &Seat)> {
        self.seats().filter(|(_, seat)| seat.is_waited_for())
    }

    /// Returns the first message that a subscriber may ask for.
    fn asked(&self, newest: u64) -> u64 {
        let of = |seat: &Seat| {
            seat.stay_awake(newest);
            let depth = match seat.policy() {
                Policy::Every => u64::MAX,
                Policy::Newest(count) => count.into(),
                Policy::Latest => 1,
            };
            seat.position(newest).max((newest + 1).saturating_sub(depth))
        };
        let reading = self.seats.values().filter(|seat| !seat.is_over());
        reading.map(of).min().unwrap_or(u64::MAX)
    }

    /// Tells all subscribers of the segments of a message. Returns the first one that is waited for and takes no packet.
    ///
    /// # Errors
    ///
    /// This process lacks what it takes to tell one that is waited for.
    pub(super) fn announce(&mut self, kept: &[Kept]) -> Result<Option<u64>> {
        if self.seats.values_mut().all(|seat| seat.knows(kept.iter().map(Kept::segment))) {
            return Ok(None);
        }
        let segments: Vec<u32> = kept.iter().map(Kept::segment).collect();
        let mut needed: Vec<u32> = self.segments().into_iter().collect();
        needed.extend(&segments);
        let mut failed = None;
        for (id, seat) in &mut self.seats {
            match seat.announce(&segments, &needed) {
                Ok(false) if seat.is_waited_for() => drop(failed.get_or_insert(*id)),
                Err(error) if seat.is_waited_for() => return Err(error),
                // One that may miss messages misses this one.
                _ => {}
            }
        }
        Ok(failed)
    }

    /// Returns the segments that kept messages lie in.
    fn segments(&self) -> BTreeSet<u32> {
        let records = self.kept.iter().chain(&self.held);
        records.flat_map(|record| &record.kept).map(Kept::segment).collect()
    }

    /// Returns the segments that messages in slots lie in, from number `first` on.
    fn segments_from(&self, first: u64) -> BTreeSet<u32> {
        let records = self.kept.iter().filter(|record| record.message >= first);
        records.flat_map(|record| &record.kept).map(Kept::segment).collect()
    }

    /// Keeps the memory of a message that was published.
    pub(super) fn keep(&mut self, message: u64, kept: Vec<Kept>) {
        self.kept.push_back(Record { message, bytes: bytes_in_blocks(&kept), kept });
    }

    /// Returns how many messages keep memory in their slots.
    pub(super) fn kept_count(&self) -> usize {
        self.kept.len()
    }

    /// Returns how many messages keep memory, also withdrawn ones.
    pub(super) fn messages_with_memory(&self) -> usize {
        self.kept.len() + self.held.len()
    }

    /// Returns the number of the oldest message that keeps memory in its slot.
    pub(super) fn oldest_kept(&self) -> Option<u64> {
        self.kept.front().map(|record| record.message)
    }

    /// Withdraws the messages that nobody may ask for any more, and those before `overwritten`, whose slots are about to be
    /// overwritten. Frees what no subscriber holds.
    fn withdraw(&mut self, writer: &SlotWriter<Mapping>, history: u64, overwritten: u64) {
        let newest = writer.next() - 1;
        let history = (newest + 1).saturating_sub(history);
        let end = self.asked(newest).min(history).max(overwritten);
        let count = self.kept.iter().take_while(|record| record.message < end).count();
        if count > 0 {
            for record in self.kept.drain(..count) {
                writer.withdraw(record.message);
                self.held.push(record);
            }
            writer.look_for_holders();
        }
        self.sweep();
    }

    /// Frees the withdrawn messages that no subscriber holds. Evicts those that hold too much.
    fn sweep(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (mut holds, mut overdrawn) = (HashSet::new(), Vec::new());
        for (id, seat) in &self.seats {
            let mut held: Vec<u64> = seat.held().collect();
            if self.is_too_much(&held) {
                // The words may be of different moments. What a second look finds, too, was held between the two.
                Edge::Reclaim.acquire();
                let still: Vec<u64> = seat.held().collect();
                held.retain(|message| still.contains(message));
                if self.is_too_much(&held) {
                    overdrawn.push(*id);
                    continue;
                }
            }
            holds.extend(held);
        }
        for id in overdrawn {
            self.evict(id, Eviction::Overdrawn);
        }
        // Pairs with the subscriber's store of 0: its loads of the message are done.
        Edge::Reclaim.acquire();
        self.held.retain(|record| holds.contains(&record.message));
    }

    /// Returns whether a subscriber that holds these messages holds more bytes than it may. The newest one does not count, since
    /// a subscriber holds it before it knows its bytes, and one message alone is never too much.
    fn is_too_much(&self, held: &[u64]) -> bool {
        if self.hold_bytes == 0 || held.len() < 3 {
            return false;
        }
        let newest = held.iter().max();
        let counts = |record: &&Record| {
            let is_other = Some(&record.message) != newest;
            record.bytes > 0 && is_other && held.contains(&record.message)
        };
        let bytes: Vec<u64> = self.held.iter().filter(counts).map(|record| record.bytes).collect();
        bytes.len() > 1 && bytes.iter().sum::<u64>() > self.hold_bytes
    }

    /// Returns the bytes of the pool that are kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        let records = self.kept.iter().chain(&self.held);
        records.flat_map(|record| &record.kept).map(Kept::bytes).sum()
    }

    /// Returns whether no subscriber has anything to read or to give back.
    pub(super) fn is_done(&mut self, newest: u64) -> bool {
        self.sweep();
        let is_done = |seat: &Seat| seat.is_over() || seat.position(newest) > newest;
        self.held.is_empty()
            && (self.kept.is_empty() || self.seats.values().all(is_done))
            && self.seats.values().all(|seat| seat.held().next().is_none())
    }

    /// Ends all: what subscribers still read may be used anew.
    pub(super) fn clear(&mut self) -> BTreeMap<u64, Seat> {
        self.seats.values().for_each(Seat::revoke);
        self.kept.clear();
        self.held.clear();
        std::mem::take(&mut self.seats)
    }
}
