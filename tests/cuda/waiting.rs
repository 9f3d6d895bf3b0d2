//! Sets of tensors of a GPU that wait for room: the longer ring of their link, and its end.

use slipring::cuda::{Device, Pool, Stream};
use slipring::{Connection, Context, DType, Options, Reactor, Tensor, TensorSet};

use crate::support::callbacks::{diary, hear, settle};
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{alone, device, is_closed, numbers, recv, small_pool, whole_chunk};
use crate::support::other::{run_here, say, wait_for_death};
use crate::support::raw;
use crate::support::{pair_of, soon, wait_until};

/// The parts of a set.
const PARTS: u32 = 40;

/// A set is this long in the ring, at least: its names are.
const LEN: usize = 40 * 200;

/// The tensors of the sets, and the pool and stream that they come from.
struct Sets {
    device: Device,
    /// Each part starts with its number.
    whole: Tensor,
    stream: Stream,
    pool: Pool,
}

impl Sets {
    fn new() -> Self {
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        let mut draft = pool.alloc::<u32>([64 * PARTS as usize], &stream).unwrap();
        draft.write(&numbers(0, 64 * PARTS)).unwrap();
        let whole = draft.share().unwrap();
        Self { device, whole, stream, pool }
    }

    fn set(&self, number: u32) -> TensorSet {
        let mut set = TensorSet::new();
        for at in 0..PARTS {
            let part = self.device.part(&self.whole, 256 * u64::from(at), DType::Uint32, [16]);
            set.insert(&format!("{number} {at:0200}"), part.unwrap()).unwrap();
        }
        set
    }

    /// Sends a tensor of each of more pools than a narrow socket takes packets. When they are dropped, their withdrawals fill it.
    fn lend_of_many(&self, near: &mut Connection, far: &mut Connection) -> Vec<Pool> {
        let pools: Vec<Pool> = (0..40).map(|_| small_pool(&self.device)).collect();
        for pool in &pools {
            let draft = pool.alloc::<u8>([1], &self.stream).unwrap();
            near.send_tensor(draft.share().unwrap()).unwrap();
            drop(recv(far));
        }
        pools
    }

    /// Receives a set, which has this number.
    fn is_next(&self, far: &mut Connection, number: u32) {
        let set = far.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
        assert_eq!(set.len(), PARTS as usize);
        let views =
            self.device.open_all(set.iter().map(|(_, tensor)| tensor), &self.stream).unwrap();
        for at in [0, PARTS - 1] {
            assert_eq!(set.iter().nth(at as usize).unwrap().0, format!("{number} {at:0200}"));
            let copy = views[at as usize].to_host().unwrap();
            assert_eq!(copy.as_slice::<u32>().unwrap(), numbers(64 * at, 16));
        }
    }
}

/// A link on whose socket few packets wait at once.
fn narrow_pair(near: &Context, far: &Context) -> (Connection, Connection) {
    let (socket, other) = raw::socketpair();
    // The kernel takes the least that it allows.
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1).unwrap();
    std::thread::scope(|scope| {
        let connector = scope.spawn(|| near.connect_socket(socket).unwrap());
        let accepted = far.accept_socket(other).unwrap();
        (connector.join().unwrap(), accepted)
    })
}

#[test]
fn sets_that_wait_while_the_socket_is_full_go_on_in_the_longer_ring() {
    const TEST: &str = "sets_that_wait_while_the_socket_is_full_go_on_in_the_longer_ring";
    const COUNT: u32 = 12;
    for of_kind in [Kind::Words, Kind::Synchronized, Kind::Events] {
        let cuda = FakeCuda::new().of_kind(of_kind);
        alone(TEST, &cuda, || {
            // The number of sets that lie in the ring before. One alone fits into the short one.
            for before in [0, 1] {
                let sets = Sets::new();
                let context = Context::new().unwrap();
                let (mut near, mut far) = narrow_pair(&context, &Context::new().unwrap());
                near.send_tensor(&sets.whole).unwrap();
                drop(recv(&mut far));
                let pools = sets.lend_of_many(&mut near, &mut far);
                let reactor = Reactor::spawn(&context).unwrap();
                let link = reactor.adopt(near).unwrap();
                let (say, said) = diary();
                let write = |number| {
                    let done = say.clone();
                    let set = sets.set(number);
                    link.write_tensors_with(set, move |_, result| done((number, result.is_ok())));
                };
                (0..before).for_each(write);
                settle(&reactor);
                assert_eq!(link.waiting_bytes(), 0);
                drop(pools);
                // The withdrawals fill the socket, and the packet for the longer ring finds no room.
                wait_until("the chunks are freed", || sets.device.trim().unwrap() == 0);
                (before..COUNT).for_each(write);
                settle(&reactor);
                assert!(link.waiting_bytes() > LEN * (COUNT - before) as usize);
                for number in 0..COUNT {
                    sets.is_next(&mut far, number);
                    if number == before {
                        // More than the short ring holds.
                        wait_until("all are sent", || link.waiting_bytes() == 0);
                    }
                }
                (0..COUNT).for_each(|number| assert_eq!(hear(&said), (number, true)));
                drop((link, reactor, far, sets));
                is_closed(&device());
            }
        });
        cuda.was_used_well();
    }
}

/// How a link ends while sets wait.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// Behind the sets, which the peer reads.
    Close,
    /// The reactor shuts down.
    Shutdown,
    /// The peer drops its end.
    Peer,
    Abort,
}

fn ends_while_sets_wait(end: End) {
    const SENT: u32 = 2;
    const COUNT: u32 = 5;
    let (first, sets) = (Sets::new(), Sets::new());
    // A set takes two loans, and an allocation that the peer has open keeps one.
    let context = Context::with_options(Options::new().loan_limit(2 * SENT, 1 << 20)).unwrap();
    let (near, mut far) = pair_of(&context, &Context::new().unwrap());
    let reactor = Reactor::spawn(&context).unwrap();
    let link = reactor.adopt(near).unwrap();
    let ((say, said), (tell, told)) = (diary(), diary());
    link.on_closed(move |_, _| tell(()));
    for number in 0..COUNT {
        let done = say.clone();
        let set = if number < SENT { first.set(number) } else { sets.set(number) };
        link.write_tensors_with(set, move |_, result| done((number, result)));
    }
    // Each try after the first one asks for the room that it lacked.
    (0..10).for_each(|_| settle(&reactor));
    assert!(link.waiting_bytes() > LEN * (COUNT - SENT) as usize, "{end:?}");
    for number in 0..SENT {
        let (written, sent) = hear(&said);
        assert_eq!(written, number);
        sent.unwrap();
    }
    match end {
        End::Close => {
            link.close();
            (0..COUNT).for_each(|number| sets.is_next(&mut far, number));
            assert!(far.receiver().recv_tensors_deadline(soon()).unwrap().is_none());
        }
        End::Shutdown => reactor.shutdown(),
        End::Peer => drop(far),
        End::Abort => link.abort(),
    }
    for number in SENT..COUNT {
        let (written, sent) = hear(&said);
        assert_eq!((written, sent.is_ok()), (number, end == End::Close), "{end:?}");
    }
    hear(&told);
    assert_eq!(link.waiting_bytes(), 0);
    let Sets { pool, stream, whole, .. } = sets;
    drop(whole);
    wait_until("it is back", || pool.alloc::<u8>([whole_chunk()], &stream).is_ok());
}

#[test]
fn a_link_that_ends_while_sets_wait_keeps_none_of_their_memory() {
    const TEST: &str = "a_link_that_ends_while_sets_wait_keeps_none_of_their_memory";
    const ENDS: [End; 4] = [End::Close, End::Shutdown, End::Peer, End::Abort];
    run_here(TEST, |name| {
        let end = ENDS.into_iter().find(|end| format!("{end:?}") == name).unwrap();
        ends_while_sets_wait(end);
        if end == End::Abort {
            // What was sent stays lent while the peer's process lives, which is this one.
            say("all else is back");
            wait_for_death();
        }
        is_closed(&device());
    });
    for of_kind in Kind::ALL {
        for end in ENDS {
            let cuda = FakeCuda::new().of_kind(of_kind);
            if !cuda.is_there(TEST) {
                return;
            }
            let mut process = cuda.start(TEST, &format!("{end:?}"));
            if end == End::Abort {
                process.expect("all else is back");
                process.kill();
                process.wait();
            } else {
                process.succeeds();
            }
            cuda.was_used_well();
        }
    }
}
