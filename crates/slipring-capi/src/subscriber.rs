//! Subscribers: readers of a topic.
//!
//! 1. The current sample borrows the subscriber. Every other use of the subscriber drops it first.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::thread::LocalKey;
use std::time::Duration;

use slipring::broadcast::{Sample, SubscribeOptions, Subscriber};
use slipring::message::MessageKind;

use crate::context::{context_of, slipring_context};
use crate::failure::{Answer, Failure, guard};
use crate::half::{Half, free_half};
use crate::handle::{Handle, Kind, Lately};
use crate::messages::slipring_kind::{self, *};
use crate::pointers::{Out, buffer, put_sized, text};
use crate::publisher::{SLIPRING_EVERY, SLIPRING_LATEST};
use crate::status::slipring_status::{
    self, SLIPRING_BUFFER_TOO_SHORT, SLIPRING_INVALID_ARGUMENT, SLIPRING_OTHER_KIND,
    SLIPRING_WRONG_STATE,
};
use crate::tensor_set::{Set, slipring_tensors};
use crate::timeout::Timeout;

/// A reader of a topic. One thread uses it at a time.
pub struct slipring_subscriber(());

/// For slipring_subscriber_new(): the end of the publisher is SLIPRING_END or SLIPRING_PEER_DIED. Otherwise a receive waits for the
/// next publisher of the address.
pub const SLIPRING_NO_RECONNECT: u32 = 1;

/// In a sample: it is the first one of another publisher.
pub const SLIPRING_SAMPLE_RESTARTED: u32 = 1;

/// A message of a topic.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_sample {
    /// Its bytes, or NULL if it has tensors. They may be read until the next function of this subscriber but
    /// slipring_subscriber_check() and slipring_subscriber_copy().
    pub data: *const c_void,
    /// Its length in bytes.
    pub len: usize,
    /// Its number on the topic: the first one of a publisher has 1.
    pub sequence: u64,
    /// The messages before it that this subscriber did not get.
    pub missed: u64,
    /// SLIPRING_KIND_MESSAGE or SLIPRING_KIND_TENSORS.
    pub kind: slipring_kind,
    /// SLIPRING_SAMPLE_RESTARTED.
    pub flags: u32,
}

/// Counts of a subscriber.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct slipring_subscriber_stats {
    /// Messages received.
    pub received: u64,
    /// Messages missed.
    pub missed: u64,
    /// Messages in the publisher's pool that this subscriber holds.
    pub held: u64,
}

/// What a handle of a subscriber holds.
pub(crate) struct Subscribing {
    /// From a box. A pointer, because `sample` borrows it.
    subscriber: NonNull<Subscriber>,
    sample: Option<Sample<'static>>,
}

// SAFETY: the pointer is that of a box which this value owns, and what is in it and in the sample may change threads.
unsafe impl Send for Subscribing {}

const _: () = {
    const fn may_change_threads<T: Send>() {}
    may_change_threads::<Subscriber>();
    may_change_threads::<Sample<'static>>();
};

impl Drop for Subscribing {
    fn drop(&mut self) {
        self.sample = None;
        // SAFETY: the pointer comes from a box, and nothing borrows it any more.
        drop(unsafe { Box::from_raw(self.subscriber.as_ptr()) });
    }
}

thread_local! {
    static LATELY: Lately<Half<Subscribing>> = const { Lately::new() };
}

impl Kind for Half<Subscribing> {
    const MAGIC: u64 = 0x7d33_6601_c5ae_0008;
    const WRONG: &'static str = "the handle is no slipring_subscriber";

    fn lately() -> &'static LocalKey<Lately<Self>> {
        &LATELY
    }
}

impl Subscribing {
    /// Returns the subscriber. It ends the current sample.
    fn subscriber(&mut self) -> &mut Subscriber {
        self.sample = None;
        // SAFETY: it is of a box that lives as long as this value, and nothing borrows it.
        unsafe { self.subscriber.as_mut() }
    }

    fn next(&mut self, timeout: i64) -> Answer<slipring_sample> {
        let timeout = Timeout::new(timeout)?;
        self.sample = None;
        // SAFETY: it is of a box that lives as long as this value, and nothing borrows it. What this function keeps of it is
        // `sample`, which is dropped before it is used again.
        let subscriber: &'static mut Subscriber = unsafe { self.subscriber.as_mut() };
        let sample = match timeout {
            Timeout::Default | Timeout::Forever => subscriber.recv()?,
            Timeout::None => subscriber.try_recv()?,
            time => match subscriber.try_recv().map_err(Failure::from) {
                Err(Failure::WouldBlock) => self.subscriber_until(time)?,
                sample => sample?,
            },
        };
        let sample = sample.ok_or(Failure::End)?;
        let has_tensors = sample.kind() == MessageKind::Tensors;
        let (data, len) = if has_tensors {
            (std::ptr::null(), 0)
        } else {
            let bytes = sample.bytes()?;
            (bytes.as_ptr().cast(), bytes.len())
        };
        let found = slipring_sample {
            data,
            len,
            sequence: sample.sequence(),
            missed: sample.missed(),
            kind: if has_tensors { SLIPRING_KIND_TENSORS } else { SLIPRING_KIND_MESSAGE },
            flags: if sample.restarted() { SLIPRING_SAMPLE_RESTARTED } else { 0 },
        };
        self.sample = Some(sample);
        Ok(found)
    }

    /// Waits for a sample. The try before it has returned nothing.
    #[cold]
    fn subscriber_until(&mut self, time: Timeout) -> Answer<Option<Sample<'static>>> {
        // SAFETY: as in `next`.
        let subscriber: &'static mut Subscriber = unsafe { self.subscriber.as_mut() };
        Ok(subscriber.recv_deadline(time.deadline())?)
    }

    fn sample(&self) -> Answer<&Sample<'static>> {
        let text = "no sample is current: slipring_subscriber_next first";
        self.sample.as_ref().ok_or(Failure::Border(SLIPRING_WRONG_STATE, text))
    }

    fn copy(&self, room: &mut [u8], out: &mut Out<usize>) -> Answer {
        let sample = self.sample()?;
        out.set(sample.len());
        match room.get_mut(..sample.len()) {
            Some(room) => Ok(sample.copy_to(room)?),
            None => {
                let text = "the buffer is shorter than the sample";
                Err(Failure::Border(SLIPRING_BUFFER_TOO_SHORT, text))
            }
        }
    }

    fn take_tensors(&mut self) -> Answer<Set> {
        if self.sample()?.kind() != MessageKind::Tensors {
            let text = "the sample has bytes, and no tensors";
            return Err(Failure::Border(SLIPRING_OTHER_KIND, text));
        }
        Ok(self.sample.take().map(|sample| Set::from(sample.into_tensors())).unwrap_or_default())
    }
}

/// Returns the subscriber behind a pointer.
///
/// # Safety
///
/// No other thread frees the handle meanwhile.
unsafe fn subscriber_of<'a>(
    subscriber: *const slipring_subscriber,
) -> Answer<&'a Half<Subscribing>> {
    // SAFETY: as the caller vouches.
    let half = unsafe { Handle::<Half<Subscribing>>::of(subscriber) }?;
    half.check_process()?;
    Ok(half)
}

/// Joins a topic. `policy` is SLIPRING_EVERY, SLIPRING_LATEST, or how many of the newest messages are wanted. `flags` are
/// SLIPRING_NO_RECONNECT or 0. `timeout` is for a publisher that is not there yet: with SLIPRING_NONBLOCK and SLIPRING_DEFAULT it
/// does not wait. Free it with slipring_subscriber_free().
///
/// SLIPRING_NOBODY_LISTENS: there is no publisher. SLIPRING_REFUSED: the publisher does not offer the policy, or has as many
/// subscribers as it may. SLIPRING_INVALID_ARGUMENT, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED, SLIPRING_OS.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_new(
    context: *mut slipring_context,
    address: *const c_char,
    policy: i64,
    flags: u32,
    timeout: i64,
    subscriber: *mut *mut slipring_subscriber,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(subscriber) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let context = unsafe { context_of(context) }?;
        // SAFETY: the header demands a text.
        let address = unsafe { text(address) }?;
        let wrong = |text| Failure::Border(SLIPRING_INVALID_ARGUMENT, text);
        let options = match policy {
            SLIPRING_EVERY => SubscribeOptions::every(),
            SLIPRING_LATEST => SubscribeOptions::latest(),
            newest => match u32::try_from(newest) {
                Ok(newest) if newest > 0 => SubscribeOptions::newest(newest),
                _ => return Err(wrong("the policy is EVERY, LATEST, or a number from 1 on")),
            },
        };
        if flags & !SLIPRING_NO_RECONNECT != 0 {
            return Err(wrong("flags other than NO_RECONNECT"));
        }
        let options = options.reconnect(flags & SLIPRING_NO_RECONNECT == 0);
        let options = match Timeout::new(timeout)? {
            Timeout::None | Timeout::Default => options,
            Timeout::Forever => options.wait_for_publisher(Duration::MAX),
            Timeout::For(time) => options.wait_for_publisher(time),
        };
        let made = context.subscribe(address, options)?;
        let subscriber = NonNull::from(Box::leak(Box::new(made)));
        out.set(Handle::make(Half::new(Subscribing { subscriber, sample: None })?));
        Ok(())
    })
}

/// Takes the next message, which is the current one until the next function of this subscriber but slipring_subscriber_check() and
/// slipring_subscriber_copy(), and looks at it in place. A
/// subscriber that wants every message reads long ones in the publisher's slot, which the publisher writes again only after that.
///
/// What is read is what was sent if slipring_subscriber_check() says so behind the last read. slipring_subscriber_copy() does both.
///
/// SLIPRING_WOULD_BLOCK, SLIPRING_TIMED_OUT: nothing has come. SLIPRING_END, SLIPRING_PEER_DIED: the topic has ended, with
/// SLIPRING_NO_RECONNECT. SLIPRING_EVICTED: the publisher has given up waiting for this subscriber. SLIPRING_PEER_FAULT,
/// SLIPRING_LOAN_REVOKED, SLIPRING_RESOURCE_LIMIT, SLIPRING_OUT_OF_MEMORY, SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_next(
    subscriber: *mut slipring_subscriber,
    timeout: i64,
    sample: *mut slipring_sample,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(sample) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let half = unsafe { subscriber_of(subscriber) }?;
        out.set(half.enter(|subscribing| subscribing.next(timeout))?);
        Ok(())
    })
}

/// Copies the bytes of the current message, and writes its length to `len`. The copy is what was sent.
///
/// SLIPRING_BUFFER_TOO_SHORT: `len` is the length that is needed. SLIPRING_LOAN_REVOKED: the publisher has written over it.
/// SLIPRING_WRONG_STATE: no message is current. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_copy(
    subscriber: *mut slipring_subscriber,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(len) }?;
        out.set(0);
        // SAFETY: the header demands that the bytes may be written.
        let room = unsafe { self::buffer(buffer, capacity) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { subscriber_of(subscriber) }?.enter(|subscribing| subscribing.copy(room, &mut out))
    })
}

/// Checks that the publisher has not written over the current message. Call it behind the last read of its bytes.
///
/// SLIPRING_LOAN_REVOKED: what was read may be other data. SLIPRING_WRONG_STATE: no message is current. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_check(
    subscriber: *mut slipring_subscriber,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { subscriber_of(subscriber) }?
            .enter(|subscribing| Ok(subscribing.sample()?.bytes().map(drop)?))
    })
}

/// Takes the tensors of the current message. Free the set with slipring_tensors_free(), unless a send took it. The memory goes back
/// to the publisher when its tensors are freed.
///
/// SLIPRING_OTHER_KIND: the message has bytes. SLIPRING_WRONG_STATE: no message is current. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_take_tensors(
    subscriber: *mut slipring_subscriber,
    tensors: *mut *mut slipring_tensors,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(tensors) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let set = unsafe { subscriber_of(subscriber) }?.enter(Subscribing::take_tensors)?;
        out.set(Handle::make(Half::new(set)?));
        Ok(())
    })
}

/// Gives the current message back before the next one is wanted: its bytes may not be read after that. No effect if none is
/// current.
///
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_release(
    subscriber: *mut slipring_subscriber,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { subscriber_of(subscriber) }?.enter(|subscribing| {
            subscribing.subscriber().release();
            Ok(())
        })
    })
}

/// Writes the counts of a subscriber. `size` is `sizeof *stats`.
///
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_get_stats(
    subscriber: *mut slipring_subscriber,
    stats: *mut slipring_subscriber_stats,
    size: usize,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { subscriber_of(subscriber) }?.enter(|subscribing| {
            let subscriber = subscribing.subscriber();
            let ((received, missed), held) = (subscriber.counts(), subscriber.held() as u64);
            Ok(slipring_subscriber_stats { received, missed, held })
        })?;
        // SAFETY: the header demands that `size` bytes may be written; three words have no padding.
        unsafe { put_sized(stats, size, &found) }
    })
}

/// Returns a descriptor for epoll or poll, which becomes readable when there is a message or the topic ends. Before each sleep call
/// slipring_subscriber_next() with SLIPRING_NONBLOCK until it returns SLIPRING_WOULD_BLOCK. It belongs to the subscriber: do not
/// close it. After a sample with SLIPRING_SAMPLE_RESTARTED ask for it again: another publisher has another one.
///
/// SLIPRING_WOULD_BLOCK: no publisher is there now. SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_descriptor(
    subscriber: *mut slipring_subscriber,
    descriptor: *mut c_int,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(descriptor) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let found = unsafe { subscriber_of(subscriber) }?.enter(|subscribing| {
            let found = subscribing.subscriber().descriptor().map(|found| found.as_raw_fd());
            found.ok_or(Failure::WouldBlock)
        })?;
        out.set(found);
        Ok(())
    })
}

/// As slipring_connection_take_turns(), for a thread that serves several peers.
///
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_take_turns(
    subscriber: *mut slipring_subscriber,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        unsafe { subscriber_of(subscriber) }?.enter(|subscribing| {
            subscribing.subscriber().take_turns();
            Ok(())
        })
    })
}

/// As slipring_connection_rest(), for a subscriber.
///
/// SLIPRING_FORKED.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_rest(
    subscriber: *mut slipring_subscriber,
    nanoseconds: *mut i64,
) -> slipring_status {
    guard(|| {
        // SAFETY: the header demands a place for the answer.
        let mut out = unsafe { Out::new(nanoseconds) }?;
        // SAFETY: the header demands that nobody frees the handle meanwhile.
        let half = unsafe { subscriber_of(subscriber) }?;
        let rest = half.enter(|subscribing| Ok(subscribing.subscriber().rest()))?;
        out.set(rest.map_or(i64::MAX, |rest| i64::try_from(rest.as_nanos()).unwrap_or(i64::MAX)));
        Ok(())
    })
}

/// Leaves a topic, and frees the subscriber. Tensors that were taken stay readable. NULL has no effect.
///
/// SLIPRING_BUSY: another thread uses the subscriber. It is not freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
// SAFETY: the header says what it demands.
pub unsafe extern "C" fn slipring_subscriber_free(
    subscriber: *mut slipring_subscriber,
) -> slipring_status {
    // SAFETY: the header demands that no other thread frees the handle.
    unsafe { free_half::<Subscribing, _>(subscriber) }
}
