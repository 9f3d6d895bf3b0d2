//! Publishers: one writer of a topic, with many readers.
//!
//! 1. At most one reservation is open. While it is, the publisher sends nothing else.
//! 2. An open reservation borrows the publisher, which nothing else touches meanwhile.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::ops::DerefMut;
use std::ptr::NonNull;
use std::thread::LocalKey;
use std::time::Duration;

use slipring::broadcast::{
    Event, EventKind, Policy, PublishOptions, PublishReservation, Publisher, SubscriberInfo,
    SubscriberState,
};

use crate::context::{context_of, slipring_context};
use crate::failure::{Answer, Failure, guard};
use crate::half::{Half, free_half};
use crate::handle::{Handle, Kind, Lately};
use crate::pointers::{Out, bytes, get_sized, put_sized, text};
use crate::status::slipring_status::{
    self, SLIPRING_INVALID_ARGUMENT, SLIPRING_OK, SLIPRING_WRONG_STATE,
};
use crate::tensor::{Held, free_sent, slipring_tensor, tensor_of};
use crate::tensor_set::{free_sent_set, set_of, slipring_tensors};
use crate::timeout::Timeout;

/// The writer of a topic. Any number of subscribers read the same memory. One thread uses it at a time.
pub struct slipring_publisher(());

/// The options of a publisher. A field that is 0 has its default: `slipring_publisher_options options = {0};`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct slipring_publisher_options {
    /// The messages that the topic has places for: a power of two from 2 to 65536. A subscriber that wants every message may be one
    /// less behind before the publisher waits for it. 256.
    pub slots: u32,
    /// Bytes of a slot: a power of two from 64 to 2 MiB. A message of at most 16 bytes less lies in its slot, a longer one in the
    /// pool. 256.
    pub slot_len: u32,
    /// The messages before its join that a new subscriber gets. 0.
    pub history: u32,
    /// The most messages that a subscriber may ask for as the newest ones. 64.
    pub newest_limit: u32,
    /// The messages in the pool that one subscriber may hold at a time: 1 to 64. 4.
    pub hold_limit: u32,
    /// The most subscribers. 1024.
    pub subscriber_limit: u32,
    /// The bytes of the pool that one subscriber may hold at a time. No limit.
    pub hold_bytes: u64,
    /// How long the publisher waits for a subscriber that wants every message and reads nothing, in nanoseconds. Then it evicts the
    /// subscriber. 1 s.
    pub stall_after: i64,
    /// Not 0: subscribers may not ask for every message.
    pub without_every: u64,
}

/// Counts of a publisher.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_publisher_stats {
    /// Messages published.
    pub sent: u64,
    /// Bytes of the pool that are kept for subscribers.
    pub kept_bytes: u64,
    /// Subscribers now.
    pub subscribers: u64,
}

/// Whether a subscriber reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "a caller gets its numbers")]
pub enum slipring_subscriber_state {
    /// It is awake.
    SLIPRING_SUBSCRIBER_AWAKE = 0,
    /// It sleeps, because there is nothing to read.
    SLIPRING_SUBSCRIBER_ASLEEP = 1,
    /// Its process is stopped.
    SLIPRING_SUBSCRIBER_STOPPED = 2,
    /// It has left, and still holds messages.
    SLIPRING_SUBSCRIBER_LEFT = 3,
}

/// A subscriber of a topic.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_subscriber_info {
    /// Its number on this topic.
    pub id: u64,
    /// Its process, or -1 if that is outside of this process's pid namespace.
    pub pid: i64,
    /// What it asked for: SLIPRING_EVERY, SLIPRING_LATEST, or how many of the newest messages.
    pub policy: i64,
    /// Messages that it is behind.
    pub lag: u64,
    /// Messages in the pool that it holds.
    pub held: u64,
    /// The user of its process.
    pub uid: u32,
    /// A slipring_subscriber_state.
    pub state: u32,
}

/// What happened to a subscriber.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum slipring_event_kind {
    /// It has joined.
    SLIPRING_EVENT_JOINED = 0,
    /// It has left in order.
    SLIPRING_EVENT_LEFT = 1,
    /// Its process has died.
    SLIPRING_EVENT_DIED = 2,
    /// The publisher has evicted it.
    SLIPRING_EVENT_EVICTED = 3,
    /// A kind that this version does not know.
    SLIPRING_EVENT_OTHER = 255,
}

/// What happened to a subscriber.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_event {
    /// The subscriber's number on this topic.
    pub subscriber: u64,
    /// Its process, or -1 if that is outside of this process's pid namespace.
    pub pid: i64,
    /// The user of its process.
    pub uid: u32,
    /// What happened.
    pub kind: slipring_event_kind,
}

/// Every message: the publisher waits for the subscriber.
pub const SLIPRING_EVERY: i64 = -1;
/// The newest message, and never one that a later one follows.
pub const SLIPRING_LATEST: i64 = -2;

/// What a handle of a publisher holds.
pub(crate) struct Publishing {
    /// From a box. A pointer, because `open` borrows it.
    publisher: NonNull<Publisher>,
    open: Option<PublishReservation<'static>>,
    events: VecDeque<Event>,
}

// SAFETY: the pointer is that of a box which this value owns, and what is in it and in the reservation may change threads.
unsafe impl Send for Publishing {}

const _: () = {
    const fn may_change_threads<T: Send>() {}
    may_change_threads::<Publisher>();
    may_change_threads::<PublishReservation<'static>>();
};

impl Drop for Publishing {
    fn drop(&mut self) {
        self.open = None;
        // SAFETY: the pointer comes from a box, and nothing borrows it any more.
        drop(unsafe { Box::from_raw(self.publisher.as_ptr()) });
    }
}

thread_local! {
    static LATELY: Lately<Half<Publishing>> = const { Lately::new() };
}

impl Kind for Half<Publishing> {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0007;
    const WRONG: &'static str = "the handle is no slipring_publisher";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

/// Returns the number of a policy for C.
fn policy_number(policy: Policy) -> i64 {
    match policy {
        Policy::Every => SLIPRING_EVERY,
        Policy::Newest(messages) => i64::from(messages),
        _ => SLIPRING_LATEST,
    }
}

fn info_of(info: &SubscriberInfo) -> slipring_subscriber_info {
    use slipring_subscriber_state::*;
    let state = match info.state() {
        SubscriberState::Awake => SLIPRING_SUBSCRIBER_AWAKE,
        SubscriberState::Asleep => SLIPRING_SUBSCRIBER_ASLEEP,
        SubscriberState::Left => SLIPRING_SUBSCRIBER_LEFT,
        _ => SLIPRING_SUBSCRIBER_STOPPED,
    };
    slipring_subscriber_info {
        id: info.id(),
        pid: info.pid().map_or(-1, i64::from),
        policy: policy_number(info.policy()),
        lag: info.lag(),
        held: info.held() as u64,
        uid: info.uid(),
        state: state as u32,
    }
}

fn event_of(event: &Event) -> slipring_event {
    use slipring_event_kind::*;
    slipring_event {
        subscriber: event.subscriber(),
        pid: event.pid().map_or(-1, i64::from),
        uid: event.uid(),
        kind: match event.kind() {
            EventKind::Joined => SLIPRING_EVENT_JOINED,
            EventKind::Left => SLIPRING_EVENT_LEFT,
            EventKind::Died => SLIPRING_EVENT_DIED,
            EventKind::Evicted(_) => SLIPRING_EVENT_EVICTED,
            _ => SLIPRING_EVENT_OTHER,
        },
    }
}

fn options_from(of: &slipring_publisher_options) -> PublishOptions {
    let mut made = PublishOptions::new().every(of.without_every == 0);
    if of.slots != 0 {
        made = made.slots(of.slots);
    }
    if of.slot_len != 0 {
        made = made.slot_len(of.slot_len);
    }
    if of.history != 0 {
        made = made.history(of.history);
    }
    if of.newest_limit != 0 {
        made = made.newest_limit(of.newest_limit);
    }
    if of.hold_limit != 0 {
        made = made.hold_limit(of.hold_limit);
    }
    if of.subscriber_limit != 0 {
        made = made.subscriber_limit(of.subscriber_limit as usize);
    }
    if of.hold_bytes != 0 {
        made = made.hold_bytes(of.hold_bytes);
    }
    if of.stall_after != 0 {
        made = made.stall_after(Duration::from_nanos(of.stall_after.unsigned_abs()));
    }
    made
}

impl Publishing {
    /// Returns the publisher, on which nothing is open.
    fn publisher(&mut self) -> Answer<&mut Publisher> {
        if self.open.is_some() {
            let text = "a message is reserved: publish or discard it first";
            return Err(Failure::Border(SLIPRING_WRONG_STATE, text));
        }
        // SAFETY: it is of a box that lives as long as this value, and nothing borrows it.
        Ok(unsafe { self.publisher.as_mut() })
    }

    fn send(&mut self, message: &[u8], timeout: i64) -> Answer {
        let publisher = self.publisher()?;
        match Timeout::new(timeout)? {
            Timeout::Default => Ok(publisher.send(message)?),
            Timeout::None => Ok(publisher.try_send(message)?),
            time => match publisher.try_send(message).map_err(Failure::from) {
                Err(Failure::WouldBlock) => Ok(publisher.send_deadline(message, time.deadline())?),
                answer => answer,
            },
        }
    }

    fn send_tensor(&mut self, held: &mut Held, timeout: i64) -> Answer {
        let publisher = self.publisher()?;
        let tensor = held.share()?;
        match Timeout::new(timeout)? {
            Timeout::Default => Ok(publisher.send_tensor(tensor)?),
            time => Ok(publisher.send_tensor_deadline(tensor, time.deadline())?),
        }
    }

    fn reserve(&mut self, len: usize) -> Answer<*mut u8> {
        self.publisher()?;
        // SAFETY: it is of a box that lives as long as this value. `open` borrows it, and is dropped before it.
        let publisher: &'static mut Publisher = unsafe { self.publisher.as_mut() };
        let mut room = publisher.reserve(len)?;
        let start = room.deref_mut().as_mut_ptr();
        self.open = Some(room);
        Ok(start)
    }

    fn publish(&mut self) -> Answer {
        let text = "no message is reserved: slipring_publisher_reserve";
        let nothing = Failure::Border(SLIPRING_WRONG_STATE, text);
        Ok(self.open.take().ok_or(nothing)?.publish()?)
    }

    fn next_event(&mut self) -> Answer<slipring_event> {
        if self.events.is_empty() {
            let events = self.publisher()?.take_events();
            self.events.extend(events);
        }
        self.events.pop_front().map(|event| event_of(&event)).ok_or(Failure::WouldBlock)
    }
}

/// Returns the publisher behind a pointer.
///
/// # Safety
///
/// No other thread frees the handle meanwhile.
unsafe fn publisher_of<'a>(publisher: *const slipring_publisher) -> Answer<&'a Half<Publishing>> {
    // SAFETY: as the caller vouches.
    let half = unsafe { Handle::<Half<Publishing>>::of(publisher) }?;
    half.check_process()?;
    Ok(half)
}

/// Makes a topic at an address, and its publisher. Subscribers come and go by themselves. `options` may be NULL, for the defaults;
/// `size` is `sizeof *options`. Free it with slipring_publisher_free(), which ends the topic in order.
///
/// SLIPRING_ADDRESS_IN_USE, SLIPRING_INVALID_ARGUMENT (an option, the address), SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY,
/// SLIPRING_FORKED, SLIPRING_OS.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_new(
    context: *mut slipring_context,
    address: *const c_char,
    options: *const slipring_publisher_options,
    size: usize,
    publisher: *mut *mut slipring_publisher,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(publisher) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let context = unsafe { context_of(context) }?;
        // SAFETY: the header demands a text.
        let address = unsafe { text(address) }?;
        let mut known = slipring_publisher_options::default();
        if !options.is_null() {
            // SAFETY: the header demands `size` readable bytes; each bit pattern is one of the structure.
            unsafe { get_sized(options, size, &mut known) }?;
        }
        if known.stall_after < 0 {
            let text = "stall_after is negative";
            return Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text));
        }
        let publisher = context.publish(address, options_from(&known))?;
        let publisher = NonNull::from(Box::leak(Box::new(publisher)));
        let made = Publishing { publisher, open: None, events: VecDeque::new() };
        out.set(Handle::make(Half::new(made)?));
        Ok(())
    })
}

/// Publishes a message: copies it once, and wakes the subscribers that sleep. `message` may be NULL if `len` is 0. It waits only
/// for subscribers that want every message and are behind: SLIPRING_DEFAULT until they have read or are evicted.
///
/// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: a subscriber is too far behind, or the pool is full; nothing was published.
/// SLIPRING_TOO_LARGE, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY. SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_send(
    publisher: *mut slipring_publisher,
    message: *const c_void,
    len: usize,
    timeout: i64,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that the bytes are readable and stay as they are.
        let message = unsafe { bytes(message, len) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { publisher_of(publisher) }?.enter(|publishing| publishing.send(message, timeout))
    })
}

/// Reserves room for a message of `len` bytes, which the caller writes in place, and writes its address to `data`. Its bytes have
/// arbitrary values. They may be written until slipring_publisher_publish() or slipring_publisher_discard(). It waits as
/// slipring_publisher_send() with SLIPRING_DEFAULT does.
///
/// The statuses of slipring_publisher_send().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_reserve(
    publisher: *mut slipring_publisher,
    len: usize,
    data: *mut *mut c_void,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(data) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let half = unsafe { publisher_of(publisher) }?;
        out.set(half.enter(|publishing| publishing.reserve(len))?.cast());
        Ok(())
    })
}

/// Publishes the reserved message. Nothing is reserved afterwards, whatever the status.
///
/// SLIPRING_WRONG_STATE: nothing is reserved. SLIPRING_RESOURCE_LIMIT, SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_publish(
    publisher: *mut slipring_publisher,
) -> slipring_status {
    // SAFETY: the header demands that nobody frees the handle meanwhile.
    guard(|| unsafe { publisher_of(publisher) }?.enter(Publishing::publish))
}

/// Drops the reserved message. Nothing is published.
///
/// SLIPRING_WRONG_STATE: nothing is reserved. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_discard(
    publisher: *mut slipring_publisher,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { publisher_of(publisher) }?.enter(|publishing| match publishing.open.take() {
            Some(_) => Ok(()),
            None => Err(Failure::Border(SLIPRING_WRONG_STATE, "no message is reserved")),
        })
    })
}

/// Publishes a tensor, which all subscribers read in place. With SLIPRING_OK the tensor is gone: do not use the handle again. With
/// any other status it stays yours, shared. SLIPRING_NONBLOCK is SLIPRING_TIMED_OUT if it would wait.
///
/// Otherwise as slipring_publisher_send() and slipring_send_tensor().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_send_tensor(
    publisher: *mut slipring_publisher,
    tensor: *mut slipring_tensor,
    timeout: i64,
) -> slipring_status {
    let status = guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let publisher = unsafe { publisher_of(publisher) }?;
        // SAFETY: as above.
        let held = unsafe { tensor_of(tensor) }?;
        publisher.enter(|publishing| held.enter(|held| publishing.send_tensor(held, timeout)))
    });
    if status == SLIPRING_OK {
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent(tensor) };
    }
    status
}

/// Publishes a set of tensors in one message. With SLIPRING_OK the set and its tensors are gone. With any other status they stay
/// yours. SLIPRING_NONBLOCK is SLIPRING_TIMED_OUT if it would wait.
///
/// Otherwise as slipring_publisher_send() and slipring_send_tensors().
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_send_tensors(
    publisher: *mut slipring_publisher,
    tensors: *mut slipring_tensors,
    timeout: i64,
) -> slipring_status {
    let status = guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let publisher = unsafe { publisher_of(publisher) }?;
        // SAFETY: as above.
        let set = unsafe { set_of(tensors) }?;
        publisher.enter(|publishing| {
            let publisher = publishing.publisher()?;
            let time = Timeout::new(timeout)?;
            set.enter(|set| {
                set.send(|tensors| match time {
                    Timeout::Default => Ok(publisher.send_tensors(tensors)?),
                    time => Ok(publisher.send_tensors_deadline(tensors, time.deadline())?),
                })
            })
        })
    });
    if status == SLIPRING_OK {
        // SAFETY: the header demands that no other thread uses the handle.
        unsafe { free_sent_set(tensors) };
    }
    status
}

/// Writes the next thing that happened to a subscriber. SLIPRING_WOULD_BLOCK: nothing more. The publisher keeps the latest ones
/// until they are asked for.
///
/// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_next_event(
    publisher: *mut slipring_publisher,
    event: *mut slipring_event,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(event) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        out.set(unsafe { publisher_of(publisher) }?.enter(Publishing::next_event)?);
        Ok(())
    })
}

/// Writes the subscribers of now: at most `capacity` of them to `infos`, and their count to `count`, which may be higher. `infos`
/// may be NULL if `capacity` is 0.
///
/// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_subscribers(
    publisher: *mut slipring_publisher,
    infos: *mut slipring_subscriber_info,
    capacity: usize,
    count: *mut usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(count) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let half = unsafe { publisher_of(publisher) }?;
        let found = half.enter(|publishing| Ok(publishing.publisher()?.subscribers()))?;
        for (at, info) in found.iter().take(capacity).enumerate() {
            // SAFETY: the header demands room for as many.
            unsafe { Out::new(infos.wrapping_add(at)) }?.set(info_of(info));
        }
        out.set(found.len());
        Ok(())
    })
}

/// Evicts a subscriber by its number: its next receive is SLIPRING_EVICTED. SLIPRING_INVALID_ARGUMENT: there is none.
///
/// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_evict(
    publisher: *mut slipring_publisher,
    subscriber: u64,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { publisher_of(publisher) }?.enter(|publishing| {
            if publishing.publisher()?.evict(subscriber) {
                return Ok(());
            }
            let text = "the topic has no subscriber with this number";
            Err(Failure::Border(SLIPRING_INVALID_ARGUMENT, text))
        })
    })
}

/// Writes the counts of a publisher. `size` is `sizeof *stats`.
///
/// SLIPRING_WRONG_STATE: a message is reserved. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_get_stats(
    publisher: *mut slipring_publisher,
    stats: *mut slipring_publisher_stats,
    size: usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { publisher_of(publisher) }?.enter(|publishing| {
            let publisher = publishing.publisher()?;
            Ok(slipring_publisher_stats {
                sent: publisher.sent(),
                kept_bytes: publisher.kept_bytes(),
                subscribers: publisher.subscribers().len() as u64,
            })
        })?;
        // SAFETY: the header demands that `size` bytes may be written; three words have no padding.
        unsafe { put_sized(stats, size, &found) }
    })
}

/// Ends a topic in order, and frees its publisher: subscribers get what was published before. What is reserved is not published.
/// NULL has no effect.
///
/// SLIPRING_BUSY: another thread uses the publisher. It is not freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_publisher_free(
    publisher: *mut slipring_publisher,
) -> slipring_status {
    // SAFETY: the header demands that no other thread frees the handle.
    unsafe { free_half::<Publishing, _>(publisher) }
}
