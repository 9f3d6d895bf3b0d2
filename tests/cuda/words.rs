//! Words that nobody writes, on a GPU whose streams wait for each other and in a driver whose calls do.

use std::time::{Duration, Instant};

use slipring::cuda::{Device, Draft, GpuView, Stream};
use slipring::{Connection, Context, Error, ErrorKind};

use crate::support::cuda_driver as driver;
use crate::support::fake_cuda::{FakeCuda, Kind};
use crate::support::gpus::{Two, calls, device, hear, is_closed, recv, small_pool, whole_chunk};
use crate::support::other::{Other, listen_for, run_here, say, wait_for_death};
use crate::support::quiet::without_pidfds;
use crate::support::{soon, unique_name, wait_until};

/// A stream's pause before each of its acts.
const SLOW: Duration = Duration::from_millis(20);

/// An owner that is this slow writes no word before somebody kills it.
const TOO_SLOW: Duration = Duration::from_millis(200);

fn a_moment() -> Instant {
    Instant::now() + 10 * SLOW
}

fn is_dead(answer: Result<(), Error>) -> bool {
    matches!(answer.unwrap_err().kind(), ErrorKind::PeerDied)
}

fn is_late(answer: Result<(), Error>) -> bool {
    matches!(answer.unwrap_err().kind(), ErrorKind::TimedOut { .. })
}

/// Sends a tensor whose word comes behind ten seconds of work.
fn lend_unwritten(link: &mut Connection) -> (Draft<u8>, Stream) {
    let device = device();
    let (pool, stream) = (small_pool(&device), device.stream().unwrap());
    let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
    let other = pool.alloc::<u8>([4096], &stream).unwrap();
    (0..50).for_each(|_| draft.fill(1).unwrap());
    link.send_tensor(draft.share().unwrap()).unwrap();
    say("sent");
    (other, stream)
}

fn lend_and_die(mut link: Connection) {
    let _kept = lend_unwritten(&mut link);
    wait_for_death();
}

/// Sends two tensors, of two GPUs: the first one waits for a word which is written when the parent says so.
fn lend_on_two(name: &str) {
    let mut link = Context::new().unwrap().connect(name).unwrap();
    let devices = [Device::new(0).unwrap(), Device::new(1).unwrap()];
    let [(first, one), (second, two)] =
        devices.each_ref().map(|device| (small_pool(device), device.stream().unwrap()));
    let gate = first.alloc::<u64>([1], &one).unwrap();
    driver::begin(0);
    let (raw, at) = (one.as_raw() as usize, gate.device_ptr());
    assert_eq!(driver::cuStreamWaitValue64_v2(raw, at, 1 << 40, 0), 0);
    let mut draft = first.alloc::<u8>([4096], &one).unwrap();
    draft.fill(7).unwrap();
    link.send_tensor(draft.share().unwrap()).unwrap();
    let draft = second.alloc::<u8>([whole_chunk()], &two).unwrap();
    link.send_tensor(draft.share().unwrap()).unwrap();
    wait_until("the loan is back", || second.alloc::<u8>([1], &two).is_ok());
    say("back");
    listen_for("go on");
    let other = devices[0].stream().unwrap();
    assert_eq!(driver::cuStreamWriteValue64_v2(other.as_raw() as usize, at, 1 << 40, 0), 0);
    drop(gate);
    drop((first, second, link));
    devices.iter().for_each(is_closed);
}

/// A stream of the first GPU waits for a living owner. All of that GPU's streams share a queue, so another one waits behind it for
/// an owner that dies. What is read of that owner's word on such a GPU, `judge` says.
fn read_on_two(name: &str, judge: fn(&GpuView)) {
    let mut listener = Context::new().unwrap().listen(name).unwrap();
    say("listening");
    let mut accept = || listener.accept_deadline(soon()).unwrap();
    let (mut far, mut near) = (accept(), accept());
    let [one, two] = [0, 1].map(|at| Device::new(at).unwrap());
    let (unwritten, gated, lent) = (recv(&mut far), recv(&mut near), recv(&mut near));
    let (first, second) = (one.stream().unwrap(), one.stream().unwrap());
    let waiting = one.open(&gated, &first).unwrap();
    let view = one.open(&unwritten, &second).unwrap();
    say("open");
    listen_for("it is dead");
    judge(&view);
    // The thread that asks for that word gives loans back.
    let (own, stream) = (two.pool(), two.stream().unwrap());
    let mut other = own.alloc::<u8>([1], &stream).unwrap();
    let last = two.open(&lent, &stream).unwrap();
    (0..3).for_each(|_| other.fill(1).unwrap());
    drop((last, lent));
    say("dropped");
    listen_for("it is over");
    first.synchronize_deadline(soon()).unwrap();
    second.synchronize_deadline(soon()).unwrap();
    waiting.check_deadline(soon()).unwrap();
    drop((waiting, view, other, own, unwritten, gated, near, far));
    is_closed(&one);
    is_closed(&two);
}

#[test]
fn a_word_is_asked_for_and_loans_go_back_where_streams_share_a_queue() {
    const TEST: &str = "a_word_is_asked_for_and_loans_go_back_where_streams_share_a_queue";
    run_here(TEST, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        match role {
            "lends" => lend_on_two(name),
            "dies" => lend_and_die(Context::new().unwrap().connect(name).unwrap()),
            "reads" => read_on_two(name, |view| assert!(is_dead(view.check_deadline(soon())))),
            // The question lies behind the stream that waits, for ever.
            _ => read_on_two(name, |view| {
                (0..3).for_each(|_| assert!(is_late(view.check_deadline(a_moment()))));
            }),
        }
    });
    let cuda = FakeCuda::new().devices(2).of_kind(Kind::Words).delay(SLOW);
    if !cuda.tells(TEST) {
        return;
    }
    let one_queue = cuda.clone().one_queue();
    for (role, of_reader) in
        [("reads", one_queue.clone()), ("hangs", one_queue.without_priorities())]
    {
        let name = unique_name();
        let start = |cuda: &FakeCuda, role: &str| cuda.start(TEST, &format!("{role} {name}"));
        let mut reader: Other = start(&of_reader, role);
        reader.expect("listening");
        let mut mortal = start(&cuda.clone().delay(TOO_SLOW), "dies");
        mortal.expect("sent");
        let mut lender = start(&cuda, "lends");
        reader.expect("open");
        mortal.kill();
        mortal.wait();
        reader.tell("it is dead");
        reader.expect("dropped");
        lender.expect("back");
        if role == "hangs" {
            reader.kill();
            reader.wait();
        }
        lender.tell("go on");
        if role == "reads" {
            reader.tell("it is over");
            reader.succeeds();
        }
        lender.succeeds();
    }
    cuda.was_used_well();
}

#[test]
fn nothing_is_freed_while_a_stream_waits_for_a_word_that_its_owner_may_never_write() {
    const TEST: &str =
        "nothing_is_freed_while_a_stream_waits_for_a_word_that_its_owner_may_never_write";
    for kind in [Kind::Words, Kind::Handles] {
        // A free holds up every call of the reader's driver until all streams are done.
        let cuda = FakeCuda::new().of_kind(Kind::Words);
        if !cuda.tells(TEST) {
            return;
        }
        let reader = cuda.clone().locked().of_kind(kind);
        let slow = cuda.clone().delay(TOO_SLOW);
        let mut two = Two::start_with(TEST, [&slow, &reader], lend_and_die, |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            drop(pool.alloc::<u8>([1], &stream).unwrap());
            stream.synchronize().unwrap();
            let (tensor, waiting) = (recv(&mut link), device.stream().unwrap());
            let view = device.open(&tensor, &waiting).unwrap();
            drop(pool);
            std::thread::sleep(10 * SLOW);
            // A question about the word may count, too.
            assert!(device.trim().unwrap() > 0, "the chunk is to be freed");
            assert!(!waiting.is_idle().unwrap());
            view.check_deadline(soon()).unwrap();
            say("open");
            waiting.synchronize_deadline(soon()).unwrap();
            assert!(is_dead(view.check_deadline(soon())));
            wait_until("the chunk is freed", || device.trim().unwrap() == 0);
            drop((view, tensor, link));
            is_closed(&device);
        });
        two.owner.expect("sent");
        two.borrower.expect("open");
        two.owner.kill();
        two.owner.wait();
        two.borrower.succeeds();
        cuda.was_used_well();
    }
}

#[test]
fn a_free_of_the_program_that_holds_up_the_driver_holds_up_no_deadline_and_no_tensor_of_the_host() {
    const TEST: &str = "a_free_of_the_program_that_holds_up_the_driver_holds_up_no_deadline_and_no_tensor_of_the_host";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    // Two seconds of work come before the word.
    let slow = cuda.clone().delay(TOO_SLOW);
    let two = Two::start_with(
        TEST,
        [&slow, &cuda.clone().locked()],
        |mut link| {
            let device = device();
            let (pool, stream) = (small_pool(&device), device.stream().unwrap());
            let mut draft = pool.alloc::<u8>([4096], &stream).unwrap();
            (0..10).for_each(|_| draft.fill(7).unwrap());
            link.send_tensor(draft.share().unwrap()).unwrap();
            for _ in 0..3 {
                assert_eq!(recv(&mut link).byte_len(), 64);
                link.send(b"got").unwrap();
            }
            hear(&mut link);
            drop((pool, link));
            is_closed(&device);
        },
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let tensor = recv(&mut link);
            let view = device.open(&tensor, &stream).unwrap();
            driver::begin(0);
            let foreign = driver::alloc(4096);
            let context = Context::new().unwrap();
            std::thread::scope(|threads| {
                let free = threads.spawn(|| {
                    driver::begin(0);
                    assert_eq!(driver::cuMemFree_v2(foreign), 0);
                });
                std::thread::sleep(5 * SLOW);
                let start = Instant::now();
                for round in 0..3 {
                    assert!(is_late(view.check_deadline(a_moment())));
                    let mut own = context.alloc::<u8>([64]).unwrap();
                    own.copy_from_slice(&[round; 64]);
                    link.send_tensor(own.share().unwrap()).unwrap();
                    hear(&mut link);
                }
                assert!(start.elapsed() < 8 * TOO_SLOW, "{:?}", start.elapsed());
                assert!(!free.is_finished());
            });
            view.check_deadline(soon()).unwrap();
            assert_eq!(view.to_host().unwrap().as_slice::<u8>().unwrap(), [7; 4096]);
            link.send(b"read").unwrap();
            drop((view, tensor, link));
            is_closed(&device);
        },
    );
    two.succeed();
    cuda.was_used_well();
}

#[test]
fn a_view_tells_of_a_word_that_another_reader_has_marked_while_the_owner_lives() {
    const TEST: &str =
        "a_view_tells_of_a_word_that_another_reader_has_marked_while_the_owner_lives";
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    let mut two = Two::start_with(
        TEST,
        [&cuda.clone().delay(TOO_SLOW), &cuda],
        |mut link| {
            let (other, stream) = lend_unwritten(&mut link);
            let own = stream.device().stream().unwrap();
            // The first word lies behind all ranges, and the tensor is the chunk's first.
            let word = other.device_ptr() - 4096 + whole_chunk() as u64;
            driver::begin(0);
            let raw = own.as_raw() as usize;
            assert_eq!(driver::cuStreamWriteValue64_v2(raw, word, (1 << 62) + 1, 0), 0);
            wait_for_death();
        },
        |mut link| {
            let device = device();
            let stream = device.stream().unwrap();
            let tensor = recv(&mut link);
            let view = device.open(&tensor, &stream).unwrap();
            stream.synchronize_deadline(soon()).unwrap();
            assert!(is_dead(view.check()));
            assert!(is_dead(view.read(&mut [0; 4096])));
            drop((view, tensor, link));
            is_closed(&device);
        },
    );
    two.borrower.succeeds();
    two.owner.kill();
    two.owner.wait();
    cuda.was_used_well();
}

#[test]
fn a_reader_that_cannot_hear_of_its_owners_death_writes_no_word_and_is_told() {
    const TEST: &str = "a_reader_that_cannot_hear_of_its_owners_death_writes_no_word_and_is_told";
    run_here(TEST, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        if role == "dies" {
            let mut listener = Context::new().unwrap().listen(name).unwrap();
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
        if role == "unaware" {
            without_pidfds();
        }
        let mut link = Context::new().unwrap().connect(name).unwrap();
        let (device, tensor) = (device(), recv(&mut link));
        let stream = device.stream().unwrap();
        if role == "unaware" {
            let view = device.open(&tensor, &stream).unwrap();
            view.check().unwrap();
            say("open");
            listen_for("it is dead");
            wait_until("the link ends", || link.send(b"still there?").is_err());
            assert!(is_dead(view.check_deadline(soon())));
            let late = stream.synchronize_deadline(a_moment());
            assert!(is_late(late), "nobody has written the word");
            say("told");
            // The other reader writes it.
            stream.synchronize_deadline(soon()).unwrap();
            assert!(is_dead(view.check_deadline(soon())));
            drop(view);
        } else {
            say("open");
            listen_for("go on");
            let view = device.open(&tensor, &stream).unwrap();
            say("waits");
            stream.synchronize_deadline(soon()).unwrap();
            assert!(is_dead(view.check()));
        }
        drop((tensor, link));
        is_closed(&device);
    });
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    let name = unique_name();
    let mut owner = cuda.clone().delay(TOO_SLOW).start(TEST, &format!("dies {name}"));
    owner.expect("listening");
    let mut unaware = cuda.start(TEST, &format!("unaware {name}"));
    let mut aware = cuda.start(TEST, &format!("aware {name}"));
    unaware.expect("open");
    aware.expect("open");
    // Stopped, it opens the tensor before its owner dies, and hears of that later.
    aware.tell("go on");
    aware.expect("waits");
    aware.stop();
    owner.kill();
    owner.wait();
    unaware.tell("it is dead");
    unaware.expect("told");
    aware.go_on();
    unaware.succeeds();
    aware.succeeds();
    cuda.was_used_well();
}

#[test]
fn all_links_of_a_gpu_share_a_stream_for_words() {
    const TEST: &str = "all_links_of_a_gpu_share_a_stream_for_words";
    const LINKS: usize = 5;
    run_here(TEST, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        let device = device();
        let stream = device.stream().unwrap();
        if role == "owner" {
            let context = Context::new().unwrap();
            let pool = small_pool(&device);
            let tensor = pool.alloc::<u8>([64], &stream).unwrap().share().unwrap();
            let mut links: Vec<_> = (0..LINKS).map(|_| context.connect(name).unwrap()).collect();
            links.iter_mut().for_each(|link| link.send_tensor(&tensor).unwrap());
            links.iter_mut().for_each(hear);
            drop((tensor, pool, links));
            return is_closed(&device);
        }
        let mut listener = Context::new().unwrap().listen(name).unwrap();
        say("listening");
        let mut links: Vec<_> =
            (0..LINKS).map(|_| listener.accept_deadline(soon()).unwrap()).collect();
        for link in &mut links {
            let view = device.open(&recv(link), &stream).unwrap();
            stream.synchronize_deadline(soon()).unwrap();
            view.check().unwrap();
        }
        links.iter_mut().for_each(|link| link.send(b"read").unwrap());
        drop(links);
        is_closed(&device);
    });
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    let name = unique_name();
    let mut reader = cuda.start(TEST, &format!("reader {name}"));
    reader.expect("listening");
    let mut owner = cuda.start(TEST, &format!("owner {name}"));
    reader.succeeds();
    owner.succeeds();
    cuda.was_used_well();
    for name in ["cuStreamCreateWithPriority", "cuMemHostAlloc", "cuMemFreeHost"] {
        assert_eq!(calls(&cuda.trace(), name), 1, "{name}");
    }
}

#[test]
fn words_that_come_to_be_awaited_later_hold_up_no_free_for_ever() {
    const TEST: &str = "words_that_come_to_be_awaited_later_hold_up_no_free_for_ever";
    run_here(TEST, |argument| {
        let (role, name) = argument.split_once(' ').unwrap();
        if role == "owner" {
            return lend_and_die(Context::new().unwrap().connect(name).unwrap());
        }
        let mut listener = Context::new().unwrap().listen(name).unwrap();
        say("listening");
        let mut accept = || listener.accept_deadline(soon()).unwrap();
        let (mut early, mut late) = (accept(), accept());
        let device = device();
        let (pool, stream) = (small_pool(&device), device.stream().unwrap());
        drop(pool.alloc::<u8>([1], &stream).unwrap());
        stream.synchronize().unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let tensors = [recv(&mut early), recv(&mut late)];
        let first = device.open(&tensors[0], &streams[0]).unwrap();
        drop(pool);
        std::thread::sleep(5 * SLOW);
        let second = device.open(&tensors[1], &streams[1]).unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        // A question about a word may count, too.
        assert!(device.trim().unwrap() > 0, "both words are not written");
        say("open");
        wait_until("the chunk is freed", || device.trim().unwrap() == 0);
        assert!(streams[0].is_idle().unwrap() && !streams[1].is_idle().unwrap());
        assert!(is_dead(first.check()));
        second.check().unwrap();
        say("freed");
        streams[1].synchronize_deadline(soon()).unwrap();
        drop((first, second, tensors, early, late));
        is_closed(&device);
    });
    let cuda = FakeCuda::new().of_kind(Kind::Words);
    if !cuda.tells(TEST) {
        return;
    }
    let name = unique_name();
    let mut reader = cuda.start(TEST, &format!("reader {name}"));
    reader.expect("listening");
    let owner = || {
        let owner = cuda.clone().delay(TOO_SLOW).start(TEST, &format!("owner {name}"));
        owner.expect("sent");
        owner
    };
    let (mut early, mut late) = (owner(), owner());
    reader.expect("open");
    early.kill();
    early.wait();
    reader.expect("freed");
    late.kill();
    late.wait();
    reader.succeeds();
    cuda.was_used_well();
}
