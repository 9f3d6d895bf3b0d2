//! Publishers and subscribers.
//!
//! | module | promises |
//! |---|---|
//! | [`policies`] | what each policy receives and misses, and what history is |
//! | [`reactors`] | many subscribers on one thread |
//! | [`shares`] | what they leave of its time to others |
//! | [`segments`] | which segments of the pool a subscriber is told of, and which it may unmap |
//! | [`memory`] | who keeps which memory of the pool, and when it comes back |
//! | [`neighbours`] | that a bad subscriber costs the others nothing |
//! | [`in_place`] | messages that are written in place, and batches |
//! | [`long_slots`] | messages that lie in long slots, and are read there |
//! | [`deaths`] | that nothing of what is killed is missed, or kept |
//! | [`shortage`] | what the publisher's own lack of descriptors costs |
//! | [`stalls`] | how long a send waits, and for whom |
//! | [`hostile`] | subscribers and publishers that lie |
//! | [`late`] | liars that join late |
//! | [`lives`] | joins, ends, restarts, evictions, and what the publisher is told of them |
//! | [`wire`] | that `docs/wire.md` is enough to write a subscriber |
//! | [`hostile_wire`] | and one that lies without end |

mod deaths;
mod driven;
mod hostile;
mod hostile_wire;
mod in_place;
mod late;
mod lives;
mod long_slots;
mod memory;
mod neighbours;
mod policies;
mod reactors;
mod segments;
mod shares;
mod shortage;
mod stalls;
#[path = "../support/mod.rs"]
mod support;
mod wire;

use slipring::broadcast::{PublishOptions, Publisher, SubscribeOptions, Subscriber};
use slipring::{Context, Options};

use support::{soon, unique_name};

/// A publisher and the context and address of its subscribers.
struct Stage {
    context: Context,
    publisher: Publisher,
    name: String,
}

impl Stage {
    fn new(options: PublishOptions) -> Self {
        Self::with(Options::new(), options)
    }

    fn with(context: Options, options: PublishOptions) -> Self {
        let name = unique_name();
        let publisher = Context::with_options(context).unwrap().publish(&name, options).unwrap();
        Self { context: Context::new().unwrap(), publisher, name }
    }

    /// Returns the bytes of the pool that subscribers may ask for or hold.
    fn kept_bytes(&mut self) -> u64 {
        self.publisher.reclaim();
        self.publisher.kept_bytes()
    }

    fn subscribe(&self, options: SubscribeOptions) -> Subscriber {
        self.context.subscribe(&self.name, options.reconnect(false)).unwrap()
    }
}

/// Receives the next message, which must come.
fn next(subscriber: &mut Subscriber) -> (Vec<u8>, u64) {
    let sample = subscriber.recv_deadline(soon()).unwrap().expect("a message");
    (sample.to_vec().unwrap(), sample.missed())
}
