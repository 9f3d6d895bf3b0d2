//! A subscription to a topic, as the commands ask for it.

use std::time::{Duration, Instant};

use clap::Args;
use slipring::broadcast::{Policy, Sample, SubscribeOptions, Subscriber};
use slipring::{Context, ErrorKind};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::quantity;

/// What a command asks for that was told no policy, in this order. A publisher waits for none of them; it may refuse the first
/// ones.
const GENTLE: [Policy; 4] =
    [Policy::Newest(64), Policy::Newest(16), Policy::Newest(4), Policy::Latest];

/// The options of a command that subscribes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Join {
    /// Which messages to get: every (the publisher waits for this command), newest:N or latest. Default: as many of the newest
    /// ones as the publisher admits, up to 64
    #[arg(short, long, value_name = "POLICY", value_parser = policy)]
    policy: Option<Policy>,
    /// How long to wait for a publisher that is not there yet
    #[arg(short, long, value_name = "TIME", default_value = "0s", value_parser = quantity::duration)]
    wait: Duration,
    /// Go on with the next publisher when this one has ended
    #[arg(long)]
    follow: bool,
}

fn policy(text: &str) -> Result<Policy, String> {
    match (text, text.strip_prefix("newest:").map(str::parse)) {
        ("every", _) => Ok(Policy::Every),
        ("latest", _) => Ok(Policy::Latest),
        (_, Some(Ok(messages))) => Ok(Policy::Newest(messages)),
        _ => Err("a policy is every, newest:N or latest".into()),
    }
}

/// The result of a wait for a message.
#[derive(Debug)]
pub(crate) enum Next<T> {
    /// The result of the caller's function.
    Message(T),
    /// The publisher has ended in order.
    Ended,
    /// The time is over.
    Late,
    /// The user wants the end.
    Interrupted,
}

/// A subscription.
#[derive(Debug)]
pub(crate) struct Topic {
    subscriber: Subscriber,
    interrupt: Interrupt,
}

impl Topic {
    /// Subscribes. Returns `None` if the user wants the end meanwhile.
    pub(crate) fn join(
        context: &Context,
        address: &str,
        join: &Join,
        interrupt: &Interrupt,
    ) -> Result<Option<Self>, Failure> {
        let end = Instant::now().checked_add(join.wait);
        let asked = join.policy.as_ref().map_or(&GENTLE[..], std::slice::from_ref);
        let mut policies = asked.iter().peekable();
        while let Some(policy) = policies.peek()
            && !interrupt.is_set()
        {
            let slice = Interrupt::slice(end).saturating_duration_since(Instant::now());
            let options = match policy {
                Policy::Every => SubscribeOptions::every(),
                Policy::Newest(messages) => SubscribeOptions::newest(*messages),
                _ => SubscribeOptions::latest(),
            };
            let options = options.reconnect(join.follow).wait_for_publisher(slice);
            match context.subscribe(address, options) {
                Ok(subscriber) => {
                    return Ok(Some(Self { subscriber, interrupt: interrupt.clone() }));
                }
                Err(error) => match error.kind() {
                    ErrorKind::PolicyRefused if policies.len() > 1 => drop(policies.next()),
                    ErrorKind::NobodyListens { .. }
                        if end.is_none_or(|end| Instant::now() < end) => {}
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(None)
    }

    /// Waits for the next message, until a time at most, and makes something of it.
    pub(crate) fn next<T>(
        &mut self,
        until: Option<Instant>,
        make: impl FnOnce(Sample<'_>) -> Result<T, Failure>,
    ) -> Result<Next<T>, Failure> {
        loop {
            if self.interrupt.is_set() {
                return Ok(Next::Interrupted);
            }
            match self.subscriber.recv_deadline(Interrupt::slice(until)) {
                Ok(Some(sample)) => return make(sample).map(Next::Message),
                Ok(None) => return Ok(Next::Ended),
                Err(error) if !error.is_timeout() => return Err(error.into()),
                Err(_) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Ok(Next::Late);
                }
                Err(_) => {}
            }
        }
    }

    /// Returns how many messages were received, and how many were missed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.subscriber.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read() {
        assert_eq!(policy("every"), Ok(Policy::Every));
        assert_eq!(policy("newest:7"), Ok(Policy::Newest(7)));
        assert_eq!(policy("latest"), Ok(Policy::Latest));
        for wrong in ["", "newest", "newest:", "newest:-1", "all"] {
            assert!(policy(wrong).is_err(), "{wrong}");
        }
    }
}
