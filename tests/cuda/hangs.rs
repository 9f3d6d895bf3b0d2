//! Streams that hang, and owners that die: what goes on all the same, and who is told.

use std::ffi::CStr;
use std::time::Duration;

use slipring::cuda::{Device, Draft, GpuView, Pool, Stream};
use slipring::{Connection, Context, ErrorKind};

use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{
    Two, device, exchange, hear_out, is_closed, pool_options, recv, small_pool, whole_chunk,
};
use crate::support::other::{Other, listen_for, run_here, say, wait_for_death};
use crate::support::{soon, unique_name, wait_until};

/// A stream's pause before each of its acts: longer than everything else that happens meanwhile.
const SLOW: Duration = Duration::from_millis(20);

/// A stream that waits for a word which nobody writes until it is told to go on.
struct Hung {
    stream: Stream,
    word: Draft<u64>,
    _pool: Pool,
}

impl Hung {
    const VALUE: u64 = u64::MAX >> 1;

    fn new(device: &Device) -> Self {
        let (stream, pool) = (device.stream().unwrap(), device.pool());
        let word = pool.alloc::<u64>([1], &stream).unwrap();
        driver::begin(device.ordinal() as i32);
        let raw = stream.as_raw() as usize;
        assert_eq!(driver::cuStreamWaitValue64_v2(raw, word.device_ptr(), Self::VALUE, 0), 0);
        Self { stream, word, _pool: pool }
    }

    fn go_on(self) {
        let other = self.stream.device().stream().unwrap();
        driver::begin(self.stream.device().ordinal() as i32);
        let raw = other.as_raw() as usize;
        assert_eq!(driver::cuStreamWriteValue64_v2(raw, self.word.device_ptr(), Self::VALUE, 0), 0);
    }
}

/// A call of the driver that hangs until this is dropped, also by a test that fails.
pub struct HungCall;

impl HungCall {
    /// Has the next call of this name hang.
    pub fn next(name: &CStr) -> Self {
        assert_eq!(driver::fakeHang(name.as_ptr()), 0);
        Self
    }
}

impl Drop for HungCall {
    fn drop(&mut self) {
        driver::fakeGoOn();
    }
}

/// Sends a tensor of a whole chunk, and says when it is back.
fn lend_and_wait(name: &str) {
    let mut link = Context::new().unwrap().connect(name).unwrap();
    let device = device();
    let (pool, stream) = (small_pool(&device), device.stream().unwrap());
    let draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
    link.send_tensor(draft.share().unwrap()).unwrap();
    wait_until("the loan is back", || pool.alloc::<u8>([1], &stream).is_ok());
    say("back");
    drop((pool, link));
    is_closed(&device);
}

/// Sends a tensor that will not be written before somebody kills this process.
fn lend_and_die(mut link: Connection) {
    let device = device();
    let (pool, stream) = (small_pool(&device), device.stream().unwrap());
    let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
    // Ten seconds of work come before the word.
    (0..50).for_each(|_| draft.fill(1).unwrap());
    link.send_tensor(draft.share().unwrap()).unwrap();
    say("sent");
    wait_for_death();
}

#[test]
fn a_free_that_waits_for_a_stream_holds_up_no_loan_and_no_word() {
    const TEST: &str = "a_free_that_waits_for_a_stream_holds_up_no_loan_and_no_word";
    run_here(TEST, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        match role {
            "lends" => return lend_and_wait(name),
            "dies" => return lend_and_die(Context::new().unwrap().connect(name).unwrap()),
            _ => {}
        }
        let mut listener = Context::new().unwrap().listen(name).unwrap();
        say("listening");
        let device = device();
        let mut next = || {
            let mut link = listener.accept_deadline(soon()).unwrap();
            let tensor = recv(&mut link);
            say("received");
            (link, tensor)
        };
        let ((near, lent), (far, unwritten)) = (next(), next());
        // The driver frees the chunk of a dropped pool when all streams are done.
        let (hung, stream, dropped) = (Hung::new(&device), device.stream().unwrap(), device.pool());
        drop(dropped.alloc::<u8>([1], &stream).unwrap());
        stream.synchronize().unwrap();
        drop(dropped);
        std::thread::sleep(5 * SLOW);
        assert_eq!(device.trim().unwrap(), 1, "the chunk is being freed");
        // The stream still works when the view is dropped.
        let own = device.pool();
        let mut other = own.alloc::<u8>([1], &stream).unwrap();
        let view = device.open(&lent, &stream).unwrap();
        (0..3).for_each(|_| other.fill(1).unwrap());
        drop((view, lent));
        say("dropped");
        listen_for("it is back");
        let waiting = device.stream().unwrap();
        drop(device.open(&unwritten, &waiting).unwrap());
        assert!(!waiting.is_idle().unwrap());
        say("waiting");
        waiting.synchronize_deadline(soon()).unwrap();
        wait_until("the reader gives its loan back", || device.trim().unwrap() == 1);
        hung.go_on();
        drop((other, own, unwritten, near, far));
        is_closed(&device);
    });
    let cuda = FakeCuda::new().of_kind(Kind::Words).delay(SLOW);
    // A GPU is done with the owner's work before anybody can kill the owner.
    if !cuda.tells(TEST) {
        return;
    }
    let name = unique_name();
    let start =
        |cuda: &FakeCuda, role: &str| -> Other { cuda.start(TEST, &format!("{role} {name}")) };
    let mut reader = start(&cuda, "reads");
    reader.expect("listening");
    let mut lender = start(&cuda, "lends");
    reader.expect("received");
    let mut mortal = start(&cuda.clone().delay(10 * SLOW), "dies");
    mortal.expect("sent");
    reader.expect("received");
    reader.expect("dropped");
    lender.expect("back");
    lender.succeeds();
    reader.tell("it is back");
    reader.expect("waiting");
    mortal.kill();
    mortal.wait();
    reader.succeeds();
    cuda.was_used_well();
}

/// Checks that the bytes of a view were never written.
fn is_unwritten(view: &GpuView) {
    assert_eq!(*view.check().unwrap_err().kind(), ErrorKind::PeerDied);
    assert_eq!(*view.to_host().unwrap_err().kind(), ErrorKind::PeerDied);
    let late = view.read_deadline(&mut [0; 4096], soon()).unwrap_err();
    assert_eq!(*late.kind(), ErrorKind::PeerDied);
}

#[test]
fn a_stream_goes_on_when_the_owner_dies_and_its_views_say_that_nothing_was_written() {
    const TEST: &str =
        "a_stream_goes_on_when_the_owner_dies_and_its_views_say_that_nothing_was_written";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    let slow = cuda.clone().delay(10 * SLOW);
    // A GPU is done with the owner's work before anybody can kill the owner.
    if !cuda.tells(TEST) {
        return;
    }
    let mut two = Two::start_with(TEST, [&slow, &cuda], lend_and_die, |mut link| {
        let device = device();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let tensor = recv(&mut link);
        let views = streams.each_ref().map(|stream| device.open(&tensor, stream).unwrap());
        assert!(streams.iter().all(|stream| !stream.is_idle().unwrap()));
        views.iter().for_each(|view| view.check().unwrap());
        say("open");
        // Nobody drops a view, and nobody asks for an end.
        streams[0].synchronize().unwrap();
        is_unwritten(&views[0]);
        streams[1].synchronize().unwrap();
        is_unwritten(&views[1]);
        let late = device.open(&tensor, &streams[0]).unwrap_err();
        assert_eq!(*late.kind(), ErrorKind::PeerDied);
        drop((views, tensor, link));
        is_closed(&device);
    });
    two.owner.expect("sent");
    two.borrower.expect("open");
    two.owner.kill();
    two.owner.wait();
    two.borrower.succeeds();
    cuda.was_used_well();
}

#[test]
fn two_readers_of_a_dead_owner_are_both_told() {
    const TEST: &str = "two_readers_of_a_dead_owner_are_both_told";
    run_here(TEST, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        if role == "dies" {
            let context = Context::new().unwrap();
            let mut listener = context.listen(name).unwrap();
            say("listening");
            let mut links = [(); 2].map(|()| listener.accept_deadline(soon()).unwrap());
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
            (0..50).for_each(|_| draft.fill(1).unwrap());
            let tensor = draft.share().unwrap();
            links.iter_mut().for_each(|link| link.send_tensor(&tensor).unwrap());
            wait_for_death();
        }
        let mut link = Context::new().unwrap().connect(name).unwrap();
        let device = device();
        let stream = device.stream().unwrap();
        let tensor = recv(&mut link);
        let view = device.open(&tensor, &stream).unwrap();
        say("open");
        stream.synchronize().unwrap();
        is_unwritten(&view);
        // The others have time to write the word, too.
        say("told");
        listen_for("all are told");
        is_unwritten(&view);
        drop((view, tensor, link));
        is_closed(&device);
    });
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    let name = unique_name();
    let mut owner = cuda.clone().delay(10 * SLOW).start(TEST, &format!("dies {name}"));
    owner.expect("listening");
    let mut readers = [(); 2].map(|()| cuda.start(TEST, &format!("reads {name}")));
    readers.iter().for_each(|reader| reader.expect("open"));
    owner.kill();
    owner.wait();
    readers.iter().for_each(|reader| reader.expect("told"));
    readers.iter_mut().for_each(|reader| reader.tell("all are told"));
    readers.iter_mut().for_each(Other::succeeds);
    cuda.was_used_well();
}

#[test]
fn bytes_that_were_written_before_the_owner_died_are_read() {
    const TEST: &str = "bytes_that_were_written_before_the_owner_died_are_read";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    let mut two = Two::start_with(
        TEST,
        [&cuda, &cuda.clone().delay(SLOW)],
        |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
            draft.fill(7).unwrap();
            link.send_tensor(draft.share().unwrap()).unwrap();
            stream.synchronize().unwrap();
            say("written");
            wait_for_death();
        },
        |mut link| {
            let device = device();
            let (own, stream) = (device.pool(), device.stream().unwrap());
            let tensor = recv(&mut link);
            // A second of work comes before the wait for the word.
            let mut other = own.alloc::<u8>([1], &stream).unwrap();
            (0..50).for_each(|_| other.fill(1).unwrap());
            let view = device.open(&tensor, &stream).unwrap();
            say("open");
            listen_for("it is dead");
            let copy = view.to_host().unwrap();
            assert_eq!(copy.as_slice::<u8>().unwrap(), [7; 4096]);
            stream.synchronize().unwrap();
            view.check().unwrap();
            drop((view, tensor, link, other, own));
            is_closed(&device);
        },
    );
    two.owner.expect("written");
    two.borrower.expect("open");
    two.owner.kill();
    two.owner.wait();
    two.borrower.tell("it is dead");
    two.borrower.succeeds();
    cuda.was_used_well();
}

#[test]
fn a_thread_that_hangs_in_the_driver_with_a_pool_holds_up_no_loan() {
    const TEST: &str = "a_thread_that_hangs_in_the_driver_with_a_pool_holds_up_no_loan";
    let cuda = FakeCuda::new().devices(2).of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    exchange(
        TEST,
        &cuda,
        |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            let draft = pool.alloc::<u8>([whole_chunk()], &stream).unwrap();
            link.send_tensor(draft.share().unwrap()).unwrap();
            wait_until("the loan is back", || pool.alloc::<u8>([1], &stream).is_ok());
            link.send(b"it is back").unwrap();
            drop(pool);
            hear_out(&mut link);
        },
        |mut link| {
            let [home, other] = [0, 1].map(|at| Device::new(at).unwrap());
            let (pool, near) = (home.pool_with(pool_options()).unwrap(), home.stream().unwrap());
            let lent = recv(&mut link);
            // A stream of another GPU has the last use of a tensor of the pool.
            let own = pool.alloc::<u8>([1], &near).unwrap().share().unwrap();
            let (reads, borrows) = (Hung::new(&other), Hung::new(&home));
            drop((other.open(&own, &reads.stream).unwrap(), own));
            drop((home.open(&lent, &borrows.stream).unwrap(), lent));
            let draft = pool.alloc::<u8>([1], &near).unwrap();
            std::thread::scope(|threads| {
                let hung = HungCall::next(c"cuStreamWriteValue64_v2");
                let hangs = threads.spawn(|| drop(draft.share().unwrap()));
                wait_until("it hangs", || driver::fakeHangs() == 1);
                let reader = reads.stream.clone();
                reads.go_on();
                wait_until("the tensor is read", || reader.is_idle().unwrap());
                // Enough for the thread that gives loans back to look.
                std::thread::sleep(5 * SLOW);
                borrows.go_on();
                let back = link.receiver().recv_deadline(soon());
                drop(hung);
                assert!(back.unwrap().is_some(), "the owner has its loan back");
                hangs.join().unwrap();
            });
            // What the other GPU has read is used again.
            wait_until("the pool is empty", || {
                pool.trim().unwrap();
                pool.bytes().unwrap() == 0
            });
            drop((pool, near));
            link.close().unwrap();
            [home, other].iter().for_each(is_closed);
        },
    );
}
