//! ZeroMQ: PUB and SUB sockets over `ipc://`.

#![allow(unsafe_code)]

use zmq::{Context, Message, PollEvents, Socket, SocketType};

use super::record;
use super::transport::{Each, Head, Outlet, PATIENCE, Policy, Topic, Transport};
use crate::Outcome;

/// Bytes of a head, in front of the payload: CONFLATE keeps single parts only.
const HEAD: usize = 16;

pub struct Zmq;

impl Transport for Zmq {
    fn name(&self) -> &'static str {
        "ZeroMQ, ipc"
    }

    fn package(&self) -> Option<&'static str> {
        Some("zeromq-src")
    }

    fn options(&self) -> &'static str {
        "PUB and SUB; CONFLATE on both where the latest is meant; zmq_poll; drawn and read in place"
    }

    fn publish(&self, robot: &str, topic: Topic) -> Outcome<Box<dyn Outlet>> {
        let socket = Context::new().socket(SocketType::PUB)?;
        socket.set_linger(0)?;
        // Its queue of up to 1,000 frames would otherwise grow whenever a reader is late.
        socket.set_conflate(topic != Topic::Detections)?;
        socket.bind(&endpoint(robot, topic))?;
        Ok(Box::new(socket))
    }

    fn receive(
        &self,
        robot: &str,
        topic: Topic,
        policy: Policy,
        each: &mut Each<'_>,
    ) -> Outcome<()> {
        let socket = Context::new().socket(SocketType::SUB)?;
        socket.set_linger(0)?;
        // Only before the connect.
        socket.set_conflate(policy == Policy::Latest)?;
        socket.set_subscribe(b"")?;
        socket.connect(&endpoint(robot, topic))?;
        let (mut message, patience) = (Message::new(), PATIENCE.as_millis() as i64);
        while !record::ends() {
            if socket.poll(PollEvents::POLLIN, patience)? == 0 {
                continue;
            }
            socket.recv(&mut message, 0)?;
            let (start, payload) =
                message.split_at_checked(HEAD).ok_or("a message without a head")?;
            let word = |at: usize| -> Outcome<u64> {
                Ok(u64::from_ne_bytes(start[at..at + 8].try_into()?))
            };
            let head = Head { sequence: word(0)?, stamp: word(8)? };
            each(head, &|offset, to| to.copy_from_slice(&payload[offset..][..to.len()]))?;
        }
        Ok(())
    }
}

/// An abstract name, which leaves no file behind.
fn endpoint(robot: &str, topic: Topic) -> String {
    format!("ipc://@{robot}/{}", topic.name())
}

impl Outlet for Socket {
    fn send(&mut self, head: Head, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Outcome<()> {
        // SAFETY: `fill` writes every byte behind the head, and the head is written here. `u8` has no invalid values.
        #[expect(deprecated, reason = "the other constructors write every byte once more")]
        let mut message = unsafe { Message::with_capacity_unallocated(HEAD + len) };
        let (start, payload) = message.split_at_mut(HEAD);
        start[..8].copy_from_slice(&head.sequence.to_ne_bytes());
        start[8..].copy_from_slice(&head.stamp.to_ne_bytes());
        fill(payload);
        Ok(Socket::send(self, message, 0)?)
    }
}
