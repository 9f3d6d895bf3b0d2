//! Several topics at once: a thread for each, which hands on what it receives.

use std::sync::mpsc::Sender;
use std::thread;

use slipring::broadcast::SubscribeOptions;
use slipring::{Context, ErrorKind, Tensor};

use crate::Outcome;
use crate::report::Arrival;
use crate::topic;

/// A message of a topic, and what was read of its tensor.
pub struct Message<T> {
    pub topic: &'static str,
    pub arrival: Arrival,
    pub content: T,
}

/// Receives on a thread of its own, until `to` has no receiver. An evicted subscriber subscribes once more. A failure is the
/// last thing that the thread hands on.
pub fn listen<T: Send + 'static>(
    context: &Context,
    robot: &str,
    topic: &'static str,
    policy: SubscribeOptions,
    to: &Sender<Outcome<Message<T>>>,
    read: impl Fn(Tensor) -> Outcome<T> + Send + 'static,
) {
    let (context, robot, to) = (context.clone(), robot.to_owned(), to.clone());
    thread::spawn(move || {
        let receive = || -> Outcome<()> {
            loop {
                let mut subscriber = topic::subscribe(&context, &robot, topic, policy.clone())?;
                let evicted = loop {
                    let sample = match subscriber.recv() {
                        Ok(Some(sample)) => sample,
                        Ok(None) => return Ok(()),
                        Err(error) if matches!(error.kind(), ErrorKind::Evicted { .. }) => {
                            break error;
                        }
                        Err(error) => return Err(error.into()),
                    };
                    let arrival = Arrival::of(&sample)?;
                    let content = read(sample.into_tensor()?)?;
                    if to.send(Ok(Message { topic, arrival, content })).is_err() {
                        return Ok(());
                    }
                };
                // This process stood still for longer than the publisher waits.
                eprintln!("robot: {topic}: {evicted}; it subscribes once more");
            }
        };
        if let Err(error) = receive() {
            let _ = to.send(Err(format!("{topic}: {error}").into()));
        }
    });
}
