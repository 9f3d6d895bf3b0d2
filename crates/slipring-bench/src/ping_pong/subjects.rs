//! The subjects: slipring as the harness drives it, with one `Exchange` and one entry of `ROWS` for each mode.

use std::time::{Duration, Instant};

use slipring::error::TryRecvError;
use slipring::options::Spin;
use slipring::{Address, Connection, Context, Listener, Options};

use super::broadcasts::{Echoed, Ignored, Shown, Streamed};
use super::calls::Called;
use super::commits::Executed;
use super::neighbours::Neighbours;
use super::registered::Committed;
use super::rows::{Kind, Row, one};
use super::{tensors, wakes};
use crate::Outcome;
use crate::exchange::{Exchange, Role, Setup, Turn, Turns};
use crate::floors::{events, futex};
use crate::payload::{self, FROM_LEADER};
use crate::reactors::{Crowd, Reactors};
use crate::runner::Pace;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const DIRECT: Row = Row {
    kind: Kind::Slipring,
    mode: "direct",
    sizes: &[8, 48],
    open: Direct::open,
    variants: one,
    pace: Pace::Batches,
    floor: Some("line-ro"),
    shown: true,
};

/// The rows of all subjects.
pub static ROWS: &[Row] = &[
    DIRECT,
    Row {
        mode: "inplace",
        sizes: &[KIB, 64 * KIB],
        open: InPlace::open,
        floor: Some("rotate"),
        ..DIRECT
    },
    Row {
        mode: "copy",
        sizes: &[MIB, 16 * MIB],
        open: Copied::open,
        floor: Some("memcpy"),
        ..DIRECT
    },
    Row {
        mode: "blocking",
        sizes: &[8],
        open: Blocking::open,
        pace: Pace::Asleep,
        floor: Some("futex"),
        ..DIRECT
    },
    Row {
        mode: "blocking-uds",
        sizes: &[8],
        open: Blocking::open,
        pace: Pace::Asleep,
        floor: Some("socket"),
        ..DIRECT
    },
    Row {
        mode: "epoll",
        sizes: &[8],
        open: Epoll::open,
        pace: Pace::Asleep,
        floor: Some("eventfd"),
        ..DIRECT
    },
    Row { mode: "tensor", sizes: &[8, MIB], open: tensors::Handed::open, ..DIRECT },
    // A gigabyte handed over, beside eight bytes handed over. Each side takes a gigabyte of memory.
    Row {
        mode: "tensor-flat",
        sizes: &[1 << 30],
        open: tensors::Handed::open,
        floor: Some("tensor"),
        shown: false,
        ..DIRECT
    },
    Row { mode: "tensor-alloc", sizes: &[4 * KIB], open: tensors::Fresh::untouched, ..DIRECT },
    Row {
        mode: "tensor-fill",
        sizes: &[64 * KIB, MIB, 16 * MIB],
        open: tensors::Fresh::filled,
        floor: Some("rotate"),
        ..DIRECT
    },
    Row {
        mode: "tensor-cold",
        sizes: &[1 << 30],
        open: tensors::Cold::open,
        pace: Pace::Each,
        floor: Some("populate"),
        shown: false,
        ..DIRECT
    },
    // The floor of `noisy`, which is slipring, too.
    Row {
        mode: "quiet",
        sizes: &[8],
        open: Crowd::quiet,
        pace: Pace::Each,
        floor: None,
        shown: false,
        ..DIRECT
    },
    Row { mode: "reactor", sizes: &[8], open: Reactors::one, ..DIRECT },
    Row { mode: "reactor-64", sizes: &[8], open: Reactors::some, ..DIRECT },
    Row {
        mode: "reactor-1000",
        sizes: &[8],
        open: Reactors::many,
        floor: Some("reactor-64"),
        ..DIRECT
    },
    Row { mode: "call", sizes: &[8], open: Called::open, floor: Some("direct"), ..DIRECT },
    Row { mode: "execute", sizes: &[8], open: Executed::open, floor: Some("direct"), ..DIRECT },
    // A commit of 300 regions of this size.
    Row {
        mode: "commit",
        sizes: &[4 * KIB],
        open: Committed::open,
        pace: Pace::Each,
        floor: Some("descriptors"),
        ..DIRECT
    },
    Row { mode: "token", sizes: &[8], open: Reactors::tokens, ..DIRECT },
    Row {
        mode: "noisy",
        sizes: &[8],
        open: Crowd::noisy,
        pace: Pace::Each,
        floor: Some("quiet"),
        ..DIRECT
    },
    #[cfg(feature = "tokio")]
    Row {
        mode: "tokio",
        sizes: &[8],
        open: super::runtimes::slipring,
        floor: Some("tokio-uds"),
        ..DIRECT
    },
    Row {
        mode: "stream",
        sizes: &[8, 64],
        open: Stream::one_by_one,
        pace: Pace::Stream,
        floor: Some("ring"),
        ..DIRECT
    },
    Row {
        mode: "stream-batch",
        sizes: &[64, 1024],
        open: Stream::batched,
        pace: Pace::Stream,
        floor: Some("ring"),
        ..DIRECT
    },
    // Messages of which one memory serves all readers.
    Row { mode: "broadcast", sizes: &[8], open: Echoed::open, floor: Some("direct"), ..DIRECT },
    Row {
        mode: "broadcast-stream",
        sizes: &[8, 64],
        open: Streamed::open,
        pace: Pace::Stream,
        floor: Some("stream"),
        ..DIRECT
    },
    Row {
        mode: "publish-1",
        sizes: &[64],
        open: Ignored::by_1,
        pace: Pace::Stream,
        floor: None,
        shown: false,
        ..DIRECT
    },
    Row {
        mode: "publish-4",
        sizes: &[64],
        open: Ignored::by_4,
        pace: Pace::Stream,
        floor: Some("publish-1"),
        ..DIRECT
    },
    Row {
        mode: "publish-16",
        sizes: &[64],
        open: Ignored::by_16,
        pace: Pace::Stream,
        floor: Some("publish-1"),
        ..DIRECT
    },
    Row {
        mode: "publish-64",
        sizes: &[64],
        open: Ignored::by_64,
        pace: Pace::Stream,
        floor: Some("publish-1"),
        ..DIRECT
    },
    Row {
        mode: "broadcast-tensor",
        sizes: &[8],
        open: Shown::open,
        pace: Pace::Batches,
        floor: None,
        shown: false,
        ..DIRECT
    },
    // A gigabyte to 16 subscribers, beside eight bytes to them.
    Row {
        mode: "broadcast-flat",
        sizes: &[MIB, 1 << 30],
        open: Shown::open,
        floor: Some("broadcast-tensor"),
        shown: false,
        ..DIRECT
    },
    // A stopped subscriber, one that gives nothing back, and a slow one, beside a healthy one.
    Row {
        mode: "beside",
        sizes: &[64, 64 * KIB],
        open: Neighbours::each,
        floor: Some("alone"),
        ..DIRECT
    },
    Row {
        mode: "beside-stream",
        sizes: &[64, 64 * KIB],
        open: Neighbours::streamed,
        pace: Pace::Stream,
        floor: Some("alone-stream"),
        ..DIRECT
    },
    Row {
        mode: "wake-8",
        sizes: &[8],
        open: wakes::slipring_last,
        pace: Pace::Asleep,
        floor: Some("futex-8"),
        ..DIRECT
    },
    Row {
        mode: "wake-8-send",
        sizes: &[8],
        open: wakes::slipring_send,
        pace: Pace::Asleep,
        floor: Some("futex-8-send"),
        ..DIRECT
    },
    Row {
        mode: "connect",
        sizes: &[8],
        open: Connect::open,
        pace: Pace::Each,
        floor: Some("uds"),
        ..DIRECT
    },
];

/// This side's end of a link, the messages that it has sent and received, and the salts of both directions.
pub struct Ends {
    pub link: Connection,
    sent: u64,
    received: u64,
    salts: (u64, u64),
}

impl Ends {
    /// Opens the end with a context of its own.
    pub fn open(setup: &Setup, options: Options) -> Outcome<Ends> {
        Ends::of(setup, &Context::with_options(options)?)
    }

    /// Opens the end with this context.
    pub fn of(setup: &Setup, context: &Context) -> Outcome<Ends> {
        let link = match setup.role {
            Role::Follower => {
                let mut listener = context.listen(setup.name)?;
                setup.meet()?;
                listener.accept()?
            }
            Role::Leader => {
                setup.meet()?;
                context.connect(setup.name)?
            }
        };
        let salts = setup.role.salts();
        Ok(Ends { link, sent: 0, received: 0, salts })
    }

    /// Returns the seed of the next message to send.
    pub fn next_out(&mut self) -> u64 {
        self.sent += 1;
        payload::seed(self.sent - 1, self.salts.0)
    }

    /// Returns the number and the seed of the next message to receive.
    pub fn next_in(&mut self) -> (u64, u64) {
        self.received += 1;
        (self.received - 1, payload::seed(self.received - 1, self.salts.1))
    }
}

/// The error of a link that the peer has closed.
pub fn gone() -> &'static str {
    "the peer has closed"
}

/// Opens a side that sends short messages and answers at once, with these options.
pub fn direct(setup: &Setup, options: Options) -> Outcome<Box<dyn Exchange>> {
    Direct::with(setup, options)
}

/// Short messages, sent from a buffer and received into one.
struct Direct {
    ends: Ends,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Direct {
    fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Self::with(setup, Options::new())
    }

    fn with(setup: &Setup, options: Options) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, options)?;
        Ok(Box::new(Turns(Direct { ends, outgoing: vec![0; setup.bytes], incoming: Vec::new() })))
    }

    /// Checks the message in `incoming`.
    fn check(&mut self) -> Outcome<()> {
        let (number, seed) = self.ends.next_in();
        let expected = payload::expected(self.incoming.len(), seed);
        payload::check(payload::sum(&self.incoming), expected, number)
    }
}

impl Turn for Direct {
    fn send(&mut self) -> Outcome<()> {
        payload::fill(&mut self.outgoing, self.ends.next_out());
        Ok(self.ends.link.send(&self.outgoing)?)
    }

    fn receive(&mut self) -> Outcome<()> {
        self.ends.link.receiver().recv_into(&mut self.incoming)?.ok_or_else(gone)?;
        self.check()
    }
}

/// Messages of which every byte is written in place and summed in place.
struct InPlace {
    ends: Ends,
    bytes: usize,
}

impl InPlace {
    fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        Ok(Box::new(Turns(InPlace {
            ends: Ends::open(setup, Options::new())?,
            bytes: setup.bytes,
        })))
    }
}

impl Turn for InPlace {
    fn send(&mut self) -> Outcome<()> {
        let seed = self.ends.next_out();
        let mut room = self.ends.link.sender().reserve(self.bytes)?;
        payload::fill(&mut room, seed);
        Ok(room.publish()?)
    }

    fn receive(&mut self) -> Outcome<()> {
        let (number, seed) = self.ends.next_in();
        let received = self.ends.link.receiver().peek()?.ok_or_else(gone)?;
        let (got, len) = (payload::sum_in_place(received.bytes()), received.len());
        received.release()?;
        payload::check(got, payload::expected(len, seed), number)
    }
}

/// Long messages, copied in and out.
struct Copied {
    ends: Ends,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Copied {
    fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, Options::new())?;
        let (outgoing, incoming) = (vec![1; setup.bytes], vec![0; setup.bytes]);
        Ok(Box::new(Turns(Copied { ends, outgoing, incoming })))
    }
}

impl Turn for Copied {
    fn send(&mut self) -> Outcome<()> {
        payload::mark(&mut self.outgoing, self.ends.next_out());
        Ok(self.ends.link.send(&self.outgoing)?)
    }

    fn receive(&mut self) -> Outcome<()> {
        let (number, seed) = self.ends.next_in();
        self.ends.link.receiver().recv_into(&mut self.incoming)?.ok_or_else(gone)?;
        payload::check_marks(&self.incoming, seed, number)
    }
}

/// As `Direct`. Both sides sleep at once, and each idles before it sends, as the floor does.
struct Blocking(Direct);

impl Blocking {
    fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, Options::new().spin(Spin::Never))?;
        let (outgoing, incoming) = (vec![0; setup.bytes], Vec::new());
        Ok(Box::new(Turns(Blocking(Direct { ends, outgoing, incoming }))))
    }
}

impl Turn for Blocking {
    fn send(&mut self) -> Outcome<()> {
        futex::idle();
        self.0.send()
    }

    fn receive(&mut self) -> Outcome<()> {
        self.0.receive()
    }
}

/// As `Blocking`, in a loop that sleeps in `epoll_wait` on the connection's descriptor.
struct Epoll {
    direct: Direct,
    events: events::Loop,
}

impl Epoll {
    fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, Options::new())?;
        let events = events::Loop::new(&ends.link)?;
        let (outgoing, incoming) = (vec![0; setup.bytes], Vec::new());
        let direct = Direct { ends, outgoing, incoming };
        Ok(Box::new(Turns(Epoll { direct, events })))
    }
}

impl Turn for Epoll {
    fn send(&mut self) -> Outcome<()> {
        futex::idle();
        self.direct.send()
    }

    fn receive(&mut self) -> Outcome<()> {
        let Direct { ends, incoming, .. } = &mut self.direct;
        loop {
            match ends.link.receiver().try_recv_into(incoming) {
                Ok(received) => {
                    received.ok_or_else(gone)?;
                    break;
                }
                Err(TryRecvError::Empty) => self.events.sleep()?,
                Err(error) => return Err(error.into()),
            }
        }
        self.direct.check()
    }
}

/// Messages one way, filled and summed in place, and one answer at the end.
struct Stream {
    ends: Ends,
    bytes: usize,
    batch: usize,
}

impl Stream {
    fn one_by_one(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, Options::new())?;
        Ok(Box::new(Stream { ends, bytes: setup.bytes, batch: 1 }))
    }

    fn batched(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let ends = Ends::open(setup, Options::new())?;
        Ok(Box::new(Stream { ends, bytes: setup.bytes, batch: 16 }))
    }

    fn send_batch(&mut self, count: u64) -> Outcome<()> {
        let (first, salt) = (self.ends.sent, self.ends.salts.0);
        self.ends.sent += count;
        let mut batch = self.ends.link.sender().batch()?;
        for number in first..first + count {
            payload::fill(batch.reserve(self.bytes)?, payload::seed(number, salt));
        }
        Ok(batch.publish()?)
    }
}

impl Exchange for Stream {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        if self.batch == 1 {
            for _ in 0..count {
                let seed = self.ends.next_out();
                let mut room = self.ends.link.sender().reserve(self.bytes)?;
                payload::fill(&mut room, seed);
                room.publish()?;
            }
        } else {
            let mut left = count;
            while left > 0 {
                let some = left.min(self.batch as u64);
                self.send_batch(some)?;
                left -= some;
            }
        }
        self.ends.link.recv()?.ok_or_else(gone)?;
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let (mut got, mut expected) = (0u64, 0u64);
        if self.batch == 1 {
            for _ in 0..count {
                let (_, seed) = self.ends.next_in();
                let received = self.ends.link.receiver().peek()?.ok_or_else(gone)?;
                got = got.wrapping_add(payload::sum_in_place(received.bytes()));
                expected = expected.wrapping_add(payload::expected(received.len(), seed));
                received.release()?;
            }
        } else {
            let (late, salt) = (Instant::now() + Duration::from_secs(60), self.ends.salts.1);
            let mut left = count;
            while left > 0 {
                let Ends { link, received, .. } = &mut self.ends;
                let seen = link.receiver().drain_deadline(left as usize, late, |_, bytes| {
                    let seed = payload::seed(*received, salt);
                    *received += 1;
                    got = got.wrapping_add(payload::sum_in_place(bytes));
                    expected = expected.wrapping_add(payload::expected(bytes.len(), seed));
                })?;
                if seen == 0 {
                    return Err(gone().into());
                }
                left -= seen as u64;
            }
        }
        payload::check(got, expected, self.ends.received)?;
        Ok(self.ends.link.send(b"done")?)
    }
}

/// Connect, handshake and first echo, over a fresh link each time.
struct Connect {
    context: Context,
    listener: Option<Listener>,
    address: Address,
    number: u64,
}

impl Connect {
    fn open(setup: &Setup) -> Outcome<Box<dyn Exchange>> {
        let context = Context::new()?;
        let address = Address::named(setup.name)?;
        let listener = match setup.role {
            Role::Leader => None,
            Role::Follower => Some(context.listen(&address)?),
        };
        setup.meet()?;
        Ok(Box::new(Connect { context, listener, address, number: 0 }))
    }
}

impl Exchange for Connect {
    fn lead(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count {
            let mut link = self.context.connect(&self.address)?;
            let word = payload::seed(self.number, FROM_LEADER).to_ne_bytes();
            link.send(&word)?;
            let echo = link.recv()?.ok_or_else(gone)?;
            payload::check(payload::sum(&echo), payload::sum(&word), self.number)?;
            self.number += 1;
        }
        Ok(())
    }

    fn follow(&mut self, count: u64) -> Outcome<()> {
        let listener = self.listener.as_mut().ok_or("only the follower listens")?;
        for _ in 0..count {
            let mut link = listener.accept()?;
            let word = link.recv()?.ok_or_else(gone)?;
            link.send(&word)?;
            // The leader closes the link after it has taken the time.
            link.recv()?;
        }
        Ok(())
    }
}
