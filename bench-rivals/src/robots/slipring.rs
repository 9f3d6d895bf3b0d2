//! slipring: broadcasts of tensors with metadata.

use std::time::{Duration, Instant};

use slipring::broadcast::{PublishOptions, Publisher, SubscribeOptions};
use slipring::message::{Metadata, Value};
use slipring::{Address, Context, Options, meta, options::Spin};

use super::record;
use super::transport::{Each, Head, Outlet, PATIENCE, Policy, Topic, Transport};
use crate::Outcome;
use crate::systems::Kind;

pub struct Slipring {
    name: &'static str,
    options: &'static str,
    spin: Option<Spin>,
}

pub const DEFAULT: Slipring = Slipring {
    name: "slipring",
    options: "defaults; recv_deadline, which polls for up to 400 µs before it sleeps",
    spin: None,
};

pub const ASLEEP: Slipring = Slipring {
    name: "slipring, Spin::Never",
    options: "Spin::Never; recv_deadline, which sleeps at once",
    spin: Some(Spin::Never),
};

impl Slipring {
    fn context(&self) -> Outcome<Context> {
        Ok(match self.spin {
            Some(spin) => Context::with_options(Options::new().spin(spin))?,
            None => Context::new()?,
        })
    }
}

fn address(robot: &str, topic: Topic) -> Outcome<Address> {
    Ok(Address::named(format!("{robot}/{}", topic.name()))?)
}

impl Transport for Slipring {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        Kind::Slipring
    }

    fn package(&self) -> Option<&'static str> {
        Some("slipring")
    }

    fn options(&self) -> &'static str {
        self.options
    }

    fn publish(&self, robot: &str, topic: Topic) -> Outcome<Box<dyn Outlet>> {
        let publisher = self.context()?.publish(address(robot, topic)?, PublishOptions::new())?;
        Ok(Box::new(publisher))
    }

    fn receive(
        &self,
        robot: &str,
        topic: Topic,
        policy: Policy,
        each: &mut Each<'_>,
    ) -> Outcome<()> {
        let options = match policy {
            Policy::Latest => SubscribeOptions::latest(),
            Policy::Newest(count) => SubscribeOptions::newest(u32::try_from(count)?),
        };
        let options = options.wait_for_publisher(Duration::MAX);
        let mut subscriber = self.context()?.subscribe(address(robot, topic)?, options)?;
        while !record::ends() {
            let sample = match subscriber.recv_deadline(Instant::now() + PATIENCE) {
                Ok(sample) => sample.ok_or("the publisher has ended")?,
                Err(error) if error.is_timeout() => continue,
                Err(error) => return Err(error.into()),
            };
            let head = head(sample.metadata())?;
            let tensor = sample.into_tensor()?;
            let bytes = tensor.bytes()?;
            each(head, &|offset, to| bytes.slice(offset, to.len()).copy_to(to))?;
        }
        Ok(())
    }
}

fn head(metadata: &Metadata) -> Outcome<Head> {
    match (metadata.get("sequence"), metadata.get("stamp")) {
        (Some(Value::Integer(sequence)), Some(Value::Integer(stamp))) => {
            Ok(Head { sequence: sequence as u64, stamp: stamp as u64 })
        }
        _ => Err("a message without sequence or stamp".into()),
    }
}

impl Outlet for Publisher {
    fn send(&mut self, head: Head, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Outcome<()> {
        let mut tensor = self.alloc::<u8>([len])?;
        fill(&mut tensor);
        let (sequence, stamp) = (head.sequence as i64, head.stamp as i64);
        let metadata = meta! { "sequence" => sequence, "stamp" => stamp }?;
        Ok(self.send_tensor_with(tensor, &metadata)?)
    }
}
