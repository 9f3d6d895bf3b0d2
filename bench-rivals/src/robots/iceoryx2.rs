//! iceoryx2: publish-subscribe of slices in place, with a user header, and an event service a topic.

#![allow(unsafe_code)]

use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::event::PortFactory as Event;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;

use super::node::FRAME;
use super::record;
use super::transport::{Each, Head, Outlet, PATIENCE, Policy, Topic, Transport};
use crate::Outcome;

pub struct Iceoryx2;

/// Samples of the longest buffer that a subscriber of the pipeline has.
const BUFFER: usize = 8;

/// [`Head`], as a service has it.
#[derive(Debug, Default, Clone, Copy, ZeroCopySend)]
#[repr(C)]
struct UserHeader {
    sequence: u64,
    stamp: u64,
}

impl Transport for Iceoryx2 {
    fn name(&self) -> &'static str {
        "iceoryx2"
    }

    fn package(&self) -> Option<&'static str> {
        Some("iceoryx2")
    }

    fn options(&self) -> &'static str {
        "safe overflow; buffers of 1, and of 8 for the tracker; an event service a topic; WaitSet"
    }

    fn publish(&self, robot: &str, topic: Topic) -> Outcome<Box<dyn Outlet>> {
        let (node, samples, events) = open(robot, topic)?;
        let longest = if topic == Topic::Frames { FRAME } else { 64 };
        let publisher = samples.publisher_builder().initial_max_slice_len(longest).create()?;
        let notifier = events.notifier_builder().create()?;
        Ok(Box::new(Writer { publisher, notifier, _node: node }))
    }

    fn receive(
        &self,
        robot: &str,
        topic: Topic,
        policy: Policy,
        each: &mut Each<'_>,
    ) -> Outcome<()> {
        let (_node, samples, events) = open(robot, topic)?;
        let count = match policy {
            Policy::Latest => 1,
            Policy::Newest(count) => count,
        };
        let subscriber = samples.subscriber_builder().buffer_size(count).create()?;
        let listener = events.listener_builder().create()?;
        let builder = WaitSetBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled);
        let waiter = builder.create::<ipc::Service>()?;
        let _attached = waiter.attach_notification(&listener)?;
        while !record::ends() {
            if let Some(sample) = subscriber.receive()? {
                let UserHeader { sequence, stamp } = *sample.user_header();
                let payload = sample.payload();
                each(Head { sequence, stamp }, &|offset, to| {
                    to.copy_from_slice(&payload[offset..][..to.len()]);
                })?;
                continue;
            }
            let mut failed = None;
            let taken = |_| {
                failed = listener.try_wait(|_| {}).err();
                CallbackProgression::Continue
            };
            waiter.wait_and_process_once_with_timeout(taken, PATIENCE)?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

type Samples = PortFactory<ipc::Service, [u8], UserHeader>;

fn open(robot: &str, topic: Topic) -> Outcome<(Node<ipc::Service>, Samples, Event<ipc::Service>)> {
    set_log_level(LogLevel::Error);
    // The process keeps its own handling of signals.
    let builder = NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled);
    let node = builder.create::<ipc::Service>()?;
    let name: ServiceName = format!("{robot}/{}", topic.name()).as_str().try_into()?;
    let samples = node.service_builder(&name).publish_subscribe::<[u8]>();
    let samples = samples.user_header::<UserHeader>().subscriber_max_buffer_size(BUFFER);
    let samples = samples.open_or_create()?;
    let events = node.service_builder(&name).event().open_or_create()?;
    Ok((node, samples, events))
}

struct Writer {
    publisher: Publisher<ipc::Service, [u8], UserHeader>,
    notifier: Notifier<ipc::Service>,
    _node: Node<ipc::Service>,
}

impl Outlet for Writer {
    fn send(&mut self, head: Head, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Outcome<()> {
        let mut sample = self.publisher.loan_slice_uninit(len)?;
        let Head { sequence, stamp } = head;
        *sample.user_header_mut() = UserHeader { sequence, stamp };
        let bytes = sample.payload_mut();
        // SAFETY: as long as the slice that it is made of, and borrowed like it. `u8` has no invalid values, and `fill` writes
        // every byte.
        fill(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<u8>(), len) });
        // SAFETY: initialized above.
        unsafe { sample.assume_init() }.send()?;
        self.notifier.notify()?;
        Ok(())
    }
}
