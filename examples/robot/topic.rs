//! The three topics: their addresses, what each message carries, and how it is read.
//!
//! | topic | tensor | policy of its readers |
//! |---|---|---|
//! | `camera/frames` | `UINT8 [height, width, 3]` | detector, viewer: latest; logger: every |
//! | `detections` | `FP32 [n, 3]`: x, y, area | tracker: newest 8; logger: every |
//! | `tracks` | `FP32 [n, 4]`: x, y, and pixels a frame along both | viewer: latest; logger: every |
//!
//! The metadata of each message names the frame that it is about: `sequence`, its number, and `stamp`, the time of its making.

use std::time::{Duration, SystemTime};

use slipring::broadcast::{PublishOptions, Publisher, Sample, SubscribeOptions, Subscriber};
use slipring::message::Value;
use slipring::{Address, Context, ErrorKind, Tensor, meta};

use crate::Outcome;

pub const FRAMES: &str = "camera/frames";
pub const DETECTIONS: &str = "detections";
pub const TRACKS: &str = "tracks";

/// The number of a frame, and the time of its making.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub sequence: u64,
    pub stamp: SystemTime,
}

impl Head {
    pub fn of(sample: &Sample<'_>) -> Outcome<Head> {
        let metadata = sample.metadata();
        match (metadata.get("sequence"), metadata.get("stamp")) {
            (Some(Value::Integer(sequence)), Some(Value::Time(stamp))) => {
                Ok(Head { sequence: u64::try_from(sequence)?, stamp })
            }
            _ => Err("a message without sequence or stamp".into()),
        }
    }

    pub fn metadata(&self) -> Outcome<slipring::message::Metadata> {
        Ok(meta! { "sequence" => self.sequence as i64, "stamp" => self.stamp }?)
    }

    pub fn age(&self) -> Duration {
        self.stamp.elapsed().unwrap_or_default() // the clock may have been set back
    }
}

pub fn publish(
    context: &Context,
    robot: &str,
    topic: &str,
    options: PublishOptions,
) -> Outcome<Publisher> {
    context.publish(address(robot, topic)?, options).map_err(|error| match error.kind() {
        ErrorKind::AddressInUse { .. } => {
            format!("another process publishes {topic} of {robot}: end it, or take another --name")
                .into()
        }
        _ => error.into(),
    })
}

/// Waits for a publisher of the topic.
pub fn subscribe(
    context: &Context,
    robot: &str,
    topic: &str,
    policy: SubscribeOptions,
) -> Outcome<Subscriber> {
    let policy = policy.wait_for_publisher(Duration::MAX);
    Ok(context.subscribe(address(robot, topic)?, policy)?)
}

/// An abstract name, which may have slashes.
fn address(robot: &str, topic: &str) -> Outcome<Address> {
    Ok(Address::named(format!("{robot}/{topic}"))?)
}

/// Sends rows of numbers, or none.
pub fn send<const N: usize>(
    publisher: &mut Publisher,
    head: &Head,
    row: Option<[f64; N]>,
) -> Outcome<()> {
    let mut rows = publisher.alloc::<f32>([row.iter().len(), N])?;
    for (element, value) in rows.iter_mut().zip(row.iter().flatten()) {
        *element = *value as f32;
    }
    Ok(publisher.send_tensor_with(rows, &head.metadata()?)?)
}

/// Returns the first row of a tensor with rows of `N` numbers, if it has any.
pub fn row<const N: usize>(tensor: &Tensor) -> Outcome<Option<[f64; N]>> {
    match tensor.shape().dims() {
        [0, columns] if *columns == N => return Ok(None),
        [_, columns] if *columns == N => {}
        dims => return Err(format!("a tensor of shape {dims:?}, expected [n, {N}]").into()),
    }
    let elements = tensor.to_vec::<f32>()?;
    let first = elements.first_chunk::<N>();
    Ok(first.map(|row| row.map(f64::from)))
}
