//! POSIX message queues, one each way. Without privileges a queue has ten messages of 8 KiB at most.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Kind, System};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup};
use crate::work::connect::{Connect, Connects};
use crate::work::fan_in::{FanIn, Maker, Part as FanInPart, SENDERS, Send1};
use crate::work::link::{End, both, names};
use crate::work::{self, Queue, Treatment, Work};

pub struct PosixMq {
    name: &'static str,
    /// Whether it asks again and again, in place of blocking.
    polled: bool,
}

pub const BLOCKING: PosixMq = PosixMq { name: "posix mq", polled: false };
/// For round trips and streams only.
pub const POLLED: PosixMq = PosixMq { name: "posix mq, polled", polled: true };

/// Messages in a queue: `/proc/sys/fs/mqueue/msg_max`, as it is by default.
const MESSAGES: i64 = 10;
/// The longest message: `/proc/sys/fs/mqueue/msgsize_max`, as it is by default.
const LONGEST: usize = 8192;

impl System for PosixMq {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        Kind::Kernel
    }

    fn options(&self, _work: Work, _bytes: usize) -> String {
        let how = if self.polled { "O_NONBLOCK, again and again" } else { "blocking" };
        format!("{how}; {MESSAGES} messages in a queue, as many as msg_max admits")
    }

    fn does(&self, work: Work, bytes: usize) -> bool {
        match work {
            Work::Trip(Treatment::Untouched) | Work::Stream(Queue::Long) => false,
            Work::Trip(_) | Work::Stream(_) => bytes <= LONGEST,
            Work::Wake | Work::FanIn | Work::Connect | Work::Idle | Work::Footprint => !self.polled,
            Work::FanOut | Work::Reactor(_) => false,
        }
    }

    fn open(&self, work: Work, setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let (bytes, polled) = (setup.bytes, self.polled);
        match work {
            Work::FanIn => FanIn::open(setup, |setup, _| fan_in(setup)),
            Work::Connect => Connect::open(setup, Fresh),
            _ => {
                let (out, inward) = both(
                    setup,
                    |name| MessageQueue::create(name, bytes, polled),
                    |name| MessageQueue::open(name, polled),
                )?;
                work::over(Queues { out, inward }, work, setup)
            }
        }
    }
}

/// A queue, which on Linux is a descriptor.
struct MessageQueue {
    descriptor: OwnedFd,
    /// Its name, if this is the side that has made it.
    created: Option<CString>,
}

impl MessageQueue {
    fn create(name: &str, bytes: usize, polled: bool) -> Outcome<Self> {
        // SAFETY: plain integers, of which any bytes are values.
        let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
        attributes.mq_maxmsg = MESSAGES;
        attributes.mq_msgsize = i64::try_from(bytes)?;
        let (name, flags) = (named(name)?, libc::O_CREAT | libc::O_EXCL | flags(polled));
        // SAFETY: the name ends in a zero, and the attributes outlive the call.
        let descriptor = unsafe { libc::mq_open(name.as_ptr(), flags, 0o600, &raw mut attributes) };
        Ok(MessageQueue { descriptor: owned(descriptor)?, created: Some(name) })
    }

    fn open(name: &str, polled: bool) -> Outcome<Self> {
        let name = named(name)?;
        // SAFETY: the name ends in a zero.
        let descriptor = unsafe { libc::mq_open(name.as_ptr(), flags(polled)) };
        Ok(MessageQueue { descriptor: owned(descriptor)?, created: None })
    }

    #[inline]
    fn send(&self, message: &[u8]) -> Outcome<()> {
        let descriptor = self.descriptor.as_raw_fd();
        loop {
            // SAFETY: so many bytes are readable until the call returns.
            let sent =
                unsafe { libc::mq_send(descriptor, message.as_ptr().cast(), message.len(), 0) };
            if sent == 0 {
                return Ok(());
            }
            passes()?;
        }
    }

    #[inline]
    fn receive(&self, message: &mut [u8]) -> Outcome<()> {
        let (descriptor, len) = (self.descriptor.as_raw_fd(), message.len());
        loop {
            let bytes = message.as_mut_ptr().cast();
            // SAFETY: so many bytes are writable until the call returns.
            let got = unsafe { libc::mq_receive(descriptor, bytes, len, std::ptr::null_mut()) };
            if got == len as isize {
                return Ok(());
            }
            if got >= 0 {
                return Err(format!("a message of {got} bytes").into());
            }
            passes()?;
        }
    }
}

impl Drop for MessageQueue {
    fn drop(&mut self) {
        if let Some(name) = &self.created {
            // SAFETY: the name ends in a zero.
            unsafe { libc::mq_unlink(name.as_ptr()) };
        }
    }
}

fn named(name: &str) -> Outcome<CString> {
    Ok(CString::new(format!("/{name}"))?)
}

fn flags(polled: bool) -> libc::c_int {
    let polled = if polled { libc::O_NONBLOCK } else { 0 };
    libc::O_RDWR | libc::O_CLOEXEC | polled
}

fn owned(descriptor: libc::mqd_t) -> Outcome<OwnedFd> {
    if descriptor < 0 {
        return Err(Error::last_os_error().into());
    }
    // SAFETY: the kernel has just made it for this caller.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Returns the error of the last call, unless the caller makes the call again.
fn passes() -> Outcome<()> {
    let error = Error::last_os_error();
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(error.into()),
    }
}

struct Queues {
    out: MessageQueue,
    inward: MessageQueue,
}

impl End for Queues {
    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.out.send(message)
    }

    fn receive(&mut self, message: &mut Vec<u8>) -> Outcome<()> {
        self.inward.receive(message)
    }
}

/// A link that is connected for the first message: each side has made its queue, and opens the other's.
struct Fresh;

impl Connects for Fresh {
    type Own = MessageQueue;
    type End = Queues;

    fn prepare(&mut self, setup: &Setup) -> Outcome<MessageQueue> {
        MessageQueue::create(&names(setup).0, setup.bytes, false)
    }

    fn connect(&mut self, setup: &Setup, out: MessageQueue) -> Outcome<Queues> {
        Ok(Queues { out, inward: MessageQueue::open(&names(setup).1, false)? })
    }
}

/// One queue, into which all send.
fn fan_in(setup: &Setup) -> Outcome<FanInPart> {
    if setup.role == Role::Leader {
        let queue = MessageQueue::create(setup.name, setup.bytes, false)?;
        setup.meet()?;
        let mut message = [0; work::fan_in::BYTES];
        return Ok(FanInPart::Receiver(Box::new(move |tally| {
            while !tally.is_done() {
                queue.receive(&mut message)?;
                tally.take(&message);
            }
            Ok(())
        })));
    }
    setup.meet()?;
    let maker = |_| {
        let queue = MessageQueue::open(setup.name, false)?;
        let make = move || -> Outcome<Send1> { Ok(Box::new(move |message| queue.send(message))) };
        Ok(Box::new(make) as Maker)
    };
    Ok(FanInPart::Senders((0..SENDERS).map(maker).collect::<Outcome<_>>()?))
}
