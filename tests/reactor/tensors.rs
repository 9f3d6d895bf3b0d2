//! A reactor delivers tensors in order with the messages, keeps them in the ring until somebody wants them, and loans
//! come back however a link ends.

use std::sync::mpsc;
use std::time::Duration;

use crate::support::callbacks::{diary, hear, kind, receive, settle};
use crate::support::census::private_bytes;
use crate::support::other::{Other, alone, say, wait_for_death};
use crate::support::{pair_of, soon, unique_name, wait_until};
use slipring::error::{TensorFault, TrySendError};
use slipring::options::{Resource, Spin};
use slipring::{
    Connection, Context, Error, ErrorKind, EventLoop, Link, Options, Reactor, Tensor, TensorSet,
};

const QUOTA: usize = 4 << 20;

fn spins() -> [Options; 3] {
    [
        Spin::Never,
        Spin::Adaptive { max: Duration::from_micros(50) },
        Spin::For(Duration::from_micros(5)),
    ]
    .map(|spin| Options::new().spin(spin).pool_quota(QUOTA as u64))
}

/// A link on a reactor's thread, and its other end, each of its own context.
struct Pair {
    near: Context,
    far: Context,
    reactor: Reactor,
    link: Link,
    end: Connection,
}

fn served(options: Options) -> Pair {
    let near = Context::with_options(options.clone()).unwrap();
    let far = Context::with_options(options).unwrap();
    let (adopted, end) = pair_of(&near, &far);
    let reactor = Reactor::spawn(&near).unwrap();
    let link = reactor.adopt(adopted).unwrap();
    Pair { near, far, reactor, link, end }
}

/// How a link ended, told once.
fn end_of(link: &Link) -> mpsc::Receiver<Result<(), Error>> {
    let (say, said) = diary();
    link.on_closed(move |_, result| say(result));
    said
}

/// In the context's pool.
fn pooled(context: &Context, value: u32, count: usize) -> Tensor {
    let mut tensor = context.allocation().until(soon()).typed::<u32>([count]).unwrap();
    tensor.fill(value);
    tensor.share().unwrap()
}

/// A set of one pooled tensor, one inline, and one without a name.
fn set(context: &Context, value: u32) -> TensorSet {
    let mut set = TensorSet::new();
    set.insert("pooled", pooled(context, value, 3000)).unwrap();
    set.insert("inline", Tensor::from_slice([2], &[value, value + 1]).unwrap()).unwrap();
    set.push(Tensor::from_slice([1000], &[value; 1000]).unwrap());
    set
}

fn is_set(set: &TensorSet, value: u32) {
    assert_eq!(set.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["pooled", "inline", ""]);
    assert_eq!(set["pooled"].to_vec::<u32>().unwrap(), [value; 3000]);
    assert_eq!(set["inline"].to_vec::<u32>().unwrap(), [value, value + 1]);
    assert_eq!(set.at(2).unwrap().to_vec::<u32>().unwrap(), [value; 1000]);
}

/// The value in the only tensor of a set.
fn value(set: &TensorSet) -> u32 {
    assert_eq!(set.len(), 1);
    set.at(0).unwrap().to_vec::<u32>().unwrap()[0]
}

/// That nothing of a context's pool is in use any more.
fn is_whole(context: &Context) {
    wait_until("the return of what was lent", || context.alloc::<u8>([QUOTA]).is_ok());
}

fn scalar(value: u32) -> Tensor {
    Tensor::from_slice([1], &[value]).unwrap()
}

/// Writes until not even the shortest message fits. Returns how many were written.
fn fill(link: &Link) -> u32 {
    let mut sent = 0;
    for len in [500, 1] {
        while link.try_send(&[0; 500][..len]).is_ok() {
            sent += 1;
        }
    }
    sent
}

// Receiving.

#[test]
fn tensors_messages_and_triggers_come_in_the_order_of_their_sending() {
    for options in spins() {
        let Pair { far, link, mut end, .. } = served(options.ring_capacity(4096).loan_slots(4));
        let (say, said) = diary();
        let tensors = say.clone();
        link.on_tensors(move |_, set| {
            let is_one = set.len() == 1;
            let number = if is_one { value(&set) } else { set["inline"].to_vec().unwrap()[0] };
            if !is_one {
                is_set(&set, number);
            }
            tensors(number);
        });
        let triggered = say.clone();
        let token = link.register(move |_| triggered(u32::MAX)).unwrap();
        link.on_message(move |_, message| {
            assert!(!matches!(message.kind(), slipring::message::MessageKind::Tensors));
            say(u32::from_le_bytes(message.to_vec().try_into().unwrap()));
        });
        let heard = std::thread::spawn(move || (0..400).map(|_| hear(&said)).collect::<Vec<_>>());
        for round in 0..100u32 {
            end.send_tensor(pooled(&far, 4 * round, 2000)).unwrap();
            end.send(&(4 * round + 1).to_le_bytes()).unwrap();
            end.sender().trigger(token).unwrap();
            end.sender().send_tensors(&set(&far, 4 * round + 3)).unwrap();
        }
        let expected = |at: u32| if at % 4 == 2 { u32::MAX } else { at };
        assert_eq!(heard.join().unwrap(), (0..400).map(expected).collect::<Vec<_>>());
        drop(link);
        is_whole(&far);
    }
}

#[test]
fn tensors_wait_in_the_ring_until_somebody_wants_them() {
    for (options, far_lives) in
        spins().into_iter().flat_map(|options| [(options.clone(), true), (options, false)])
    {
        let Pair { far, reactor, link, mut end, .. } = served(options);
        let (say, said) = diary();
        let (message, read, closed) = (say.clone(), say.clone(), say.clone());
        link.on_message(move |_, each| message(format!("message {}", each.len())));
        link.on_closed(move |_, result| closed(format!("closed {result:?}")));
        link.read_with(move |_, each| read(format!("read {}", each.unwrap().unwrap().len())));
        end.sender().send_tensors(&set(&far, 7)).unwrap();
        end.send(b"behind it").unwrap();
        end.send(b"more").unwrap();
        let mut end = Some(end);
        if !far_lives {
            end.take().unwrap().close().unwrap();
        }
        // Twice, so that the loop has been through its turns.
        settle(&reactor);
        settle(&reactor);
        assert!(said.try_recv().is_err());
        assert!(link.is_open() && far.alloc::<u8>([QUOTA]).is_err(), "it is still on loan");
        link.on_tensors(move |_, set| {
            is_set(&set, 7);
            say("tensors".to_owned());
        });
        for expected in ["tensors", "read 9", "message 4"] {
            assert_eq!(hear(&said), expected);
        }
        drop(end);
        assert_eq!(hear(&said), "closed Ok(())");
        is_whole(&far);
    }
}

#[test]
fn tensors_are_set_aside_with_their_loans_while_a_call_waits() {
    for options in spins() {
        let Pair { far, reactor, link, mut end, .. } = served(options);
        let (say, said) = diary();
        let (answer, message) = (say.clone(), say.clone());
        link.on_message(move |_, each| message(("message", each.len() as u32)));
        link.call_with(*b"question", move |_, response| {
            answer(("answer", response.unwrap().len() as u32));
        });
        let request = end.recv_request().unwrap().unwrap();
        end.send_tensor(pooled(&far, 5, 500_000)).unwrap();
        end.send(b"between").unwrap();
        end.send_tensor(scalar(6)).unwrap();
        end.respond(request.id, b"yes").unwrap();
        assert_eq!(hear(&said), ("answer", 3));
        settle(&reactor);
        settle(&reactor);
        assert!(said.try_recv().is_err(), "what was sent behind tensors comes behind them");
        assert!(far.alloc::<u8>([QUOTA]).is_err(), "it is still on loan");
        link.on_tensors(move |_, set| {
            assert_eq!(set.at(0).unwrap().is_loaned(), value(&set) == 5);
            say(("tensors", value(&set)));
        });
        assert_eq!(hear(&said), ("tensors", 5));
        assert_eq!(hear(&said), ("message", 7));
        assert_eq!(hear(&said), ("tensors", 6));
        is_whole(&far);
        end.send(b"goes on").unwrap();
        assert_eq!(hear(&said), ("message", 7));
    }
}

#[test]
fn a_description_in_the_pool_counts_while_it_is_set_aside() {
    const SETS: usize = 10;
    // A description is longer than the ring, so it lies in the pool. Two of them are longer than the limit.
    let options = Options::new().ring_capacity(16 << 10).backlog_limit(100_000);
    let Pair { reactor, link, mut end, .. } = served(options);
    let (say, said) = diary();
    let (answer, sets) = (say.clone(), say);
    link.call_with(*b"question", move |_, response| answer(response.unwrap().len()));
    let request = end.recv_request().unwrap().unwrap();
    let mut set = TensorSet::new();
    for number in 0..500 {
        set.insert(&format!("{number:0100}"), scalar(number)).unwrap();
    }
    for _ in 0..SETS {
        end.sender().send_tensors(&set).unwrap();
    }
    for _ in 0..2 * SETS {
        settle(&reactor);
    }
    // The loan of a description goes back when it is copied.
    let left = end.stats().loans_out;
    assert!(left as usize >= SETS - 2, "{left} of {SETS} descriptions are left");
    end.respond(request.id, b"yes").unwrap();
    link.on_tensors(move |_, set| sets(set.len()));
    for _ in 0..SETS {
        assert_eq!(hear(&said), 500);
    }
    assert_eq!(hear(&said), 3);
}

#[test]
fn sets_that_are_set_aside_take_about_the_memory_that_they_count() {
    alone("sets_that_are_set_aside_take_about_the_memory_that_they_count", || {
        const LIMIT: usize = 4 << 20;
        const MOST: usize = 1 << 15;
        let Pair { reactor, link, mut end, .. } = served(Options::new().backlog_limit(LIMIT));
        let (say, said) = diary();
        let (answer, sets) = (say.clone(), say);
        link.call_with(*b"question", move |_, response| answer(response.unwrap().len()));
        let request = end.recv_request().unwrap().unwrap();
        let mut set = TensorSet::new();
        (0..MOST).for_each(|number| set.push(scalar(number as u32)));
        let before = private_bytes();
        // Ten of them count as much as the limit.
        let mut sent = 8;
        (0..sent).for_each(|_| end.sender().send_tensors_deadline(&set, soon()).unwrap());
        wait_until("they are set aside", || end.stats().loans_out == 0);
        // Once no more is set aside, the pool or the ring is full at some point.
        while end.sender().try_send_tensors(&set).is_ok() {
            settle(&reactor);
            sent += 1;
            assert!(sent < 1000, "there is no limit");
        }
        let took = private_bytes().saturating_sub(before);
        assert!(took < 4 * LIMIT as u64, "{sent} sets that count {LIMIT} bytes took {took}");
        link.on_tensors(move |_, set| sets(set.len()));
        (0..sent).for_each(|_| assert_eq!(hear(&said), MOST));
        end.respond(request.id, b"yes").unwrap();
        assert_eq!(hear(&said), 3);
    });
}

#[test]
fn what_is_set_aside_is_bounded_and_an_end_gives_it_back() {
    for aborts in [false, true] {
        let options = Options::new().backlog_limit(4096).pool_quota(QUOTA as u64);
        let Pair { far, link, mut end, .. } = served(options);
        let (say, said) = diary();
        let ended = end_of(&link);
        link.call_with(*b"question", move |_, response| say(kind(response)));
        end.recv_request().unwrap().unwrap();
        let mut sent = 0u32;
        // Behind the limit they wait in the ring, which is full at some point.
        while end.sender().try_send_tensor(&scalar(sent)).is_ok() {
            sent += 1;
            assert!(sent < 1_000_000, "there is no limit");
        }
        if aborts {
            link.abort();
            assert_eq!(hear(&said), ErrorKind::LinkClosed);
            hear(&ended).unwrap();
        } else {
            drop(end);
            assert_eq!(hear(&said), ErrorKind::PeerClosed);
            let (say, said) = diary();
            link.on_tensors(move |_, set| say(value(&set)));
            (0..sent).for_each(|number| assert_eq!(hear(&said), number));
            hear(&ended).unwrap();
        }
        is_whole(&far);
    }
}

#[test]
fn what_a_connection_had_set_aside_comes_first() {
    let (here, there) = (
        Context::new().unwrap(),
        Context::with_options(Options::new().pool_quota(QUOTA as u64)).unwrap(),
    );
    for drops in [false, true] {
        let (mut near, mut far) = pair_of(&here, &there);
        let context = there.clone();
        let peer = std::thread::spawn(move || {
            let request = far.recv_request().unwrap().unwrap();
            far.send(b"first").unwrap();
            far.sender().send_tensors(&set(&context, 9)).unwrap();
            far.send(b"second").unwrap();
            far.send_tensor(scalar(10)).unwrap();
            far.respond(request.id, b"answer").unwrap();
            far.send_tensor(scalar(11)).unwrap();
            far
        });
        assert_eq!(near.call_deadline(b"request", soon()).unwrap(), b"answer");
        let mut far = peer.join().unwrap();
        let reactor = Reactor::spawn(&here).unwrap();
        let link = reactor.adopt(near).unwrap();
        if drops {
            link.abort();
            is_whole(&there);
            continue;
        }
        let (say, said) = diary();
        let message = say.clone();
        link.on_message(move |_, each| message(String::from_utf8(each.to_vec()).unwrap()));
        assert_eq!(hear(&said), "first");
        settle(&reactor);
        assert!(said.try_recv().is_err());
        link.on_tensors(move |_, set| match set.len() {
            1 => say(format!("tensor {}", value(&set))),
            _ => {
                is_set(&set, 9);
                say("set".to_owned());
            }
        });
        for expected in ["set", "second", "tensor 10", "tensor 11"] {
            assert_eq!(hear(&said), expected);
        }
        far.send_tensor(scalar(12)).unwrap();
        assert_eq!(hear(&said), "tensor 12");
        is_whole(&there);
    }
}

#[test]
fn a_tensor_callback_is_replaced_also_from_inside_of_it() {
    let Pair { link, mut end, .. } = served(Options::new());
    (0..4).for_each(|number| end.send_tensor(scalar(number)).unwrap());
    let (say, said) = diary();
    link.on_tensors(move |link, set| {
        say(("first", value(&set)));
        let say = say.clone();
        link.on_tensors(move |_, set| say(("second", value(&set))));
    });
    for expected in [("first", 0), ("second", 1), ("second", 2), ("second", 3)] {
        assert_eq!(hear(&said), expected);
    }
}

#[test]
fn a_panic_in_a_tensor_callback_ends_its_link_and_gives_the_tensors_back() {
    for options in spins() {
        let Pair { near, far, reactor, link, mut end } = served(options);
        let (adopted, mut witness) = pair_of(&near, &far);
        reactor.adopt(adopted).unwrap().on_tensors(|link, set| link.write_tensors(set));
        let ended = end_of(&link);
        let (say, said) = diary();
        link.write_tensor_with(pooled(&near, 1, 1000), move |_, result| say(result));
        hear(&said).unwrap();
        end.sender().send_tensors(&set(&far, 3)).unwrap();
        end.sender().send_tensors(&set(&far, 4)).unwrap();
        link.on_tensors(|_, set| {
            is_set(&set, 3);
            panic!("on purpose");
        });
        assert_eq!(kind(hear(&ended)), ErrorKind::CallbackPanicked);
        witness.sender().send_tensors(&set(&far, 5)).unwrap();
        is_set(&witness.receiver().recv_tensors_deadline(soon()).unwrap().unwrap(), 5);
        assert_eq!(end.receiver().recv_tensor_deadline(soon()).unwrap().unwrap().byte_len(), 4000);
        assert!(end.receiver().recv_tensor_deadline(soon()).unwrap().is_none());
        drop((end, witness));
        is_whole(&far);
        is_whole(&near);
    }
}

// Sending.

#[test]
fn writes_of_tensors_and_messages_leave_in_order_and_complete_in_order() {
    const COUNT: u32 = 600;
    for options in spins() {
        let Pair { near, link, mut end, .. } =
            served(options.ring_capacity(4096).loan_slots(3).inline_max(100));
        let (say, said) = diary();
        let mut frozen = near.alloc_frozen::<u32>([5000]).unwrap();
        frozen.fill(42);
        let frozen = frozen.share().unwrap();
        let reader = std::thread::spawn(move || {
            for number in 0..COUNT {
                match number % 5 {
                    0 => assert_eq!(receive(&mut end), vec![number as u8; 300]),
                    1 => {
                        let set = end.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
                        is_set(&set, number);
                    }
                    2 => {
                        let tensor = end.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
                        assert_eq!(tensor.to_vec::<u32>().unwrap(), [number; 700]);
                    }
                    3 => {
                        let tensor = end.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
                        assert_eq!(tensor.as_slice::<u32>().unwrap(), [42; 5000]);
                    }
                    _ => {
                        let tensor = end.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
                        assert_eq!(tensor.to_vec::<u32>().unwrap(), [number; 900]);
                    }
                }
            }
            end
        });
        for number in 0..COUNT {
            let say = say.clone();
            let done = move |_: &Link, result| say((number, result));
            match number % 5 {
                0 => link.write_with(vec![number as u8; 300], done),
                1 => link.write_tensors_with(set(&near, number), done),
                2 => {
                    let mut tensor = near.allocation().until(soon()).typed::<u32>([700]).unwrap();
                    tensor.fill(number);
                    link.write_tensor_with(tensor, done);
                }
                3 => link.write_tensor_with(&frozen, done),
                _ => {
                    let private = Tensor::from_slice([900], &[number; 900]).unwrap();
                    link.write_tensor_with(private, done);
                }
            }
        }
        for number in 0..COUNT {
            let (completed, result) = hear(&said);
            assert_eq!(completed, number);
            result.unwrap();
        }
        assert_eq!(link.waiting_bytes(), 0);
        reader.join().unwrap();
        drop(frozen);
        is_whole(&near);
    }
}

#[test]
fn tensors_are_sent_now_or_not_at_all_behind_what_waits() {
    let Pair { near, link, mut end, .. } = served(Options::new().ring_capacity(4096));
    link.try_send_tensor(&scalar(1)).unwrap();
    link.try_send_tensors(&set(&near, 2)).unwrap();
    let sent = fill(&link);
    let (say, said) = diary();
    link.write_tensor_with(scalar(3), move |_, result| say(result));
    assert!(matches!(link.try_send_tensor(&scalar(4)), Err(TrySendError::Full { .. })));
    assert!(matches!(link.try_send_tensors(&set(&near, 4)), Err(TrySendError::Full { .. })));
    let next =
        |end: &mut Connection| end.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
    assert_eq!(value(&next(&mut end)), 1);
    is_set(&next(&mut end), 2);
    (0..sent).for_each(|_| drop(receive(&mut end)));
    hear(&said).unwrap();
    assert_eq!(value(&next(&mut end)), 3);
    link.close();
    let late = link.try_send_tensor(&scalar(5)).unwrap_err();
    let TrySendError::Failed(late) = late else { panic!("{late:?}") };
    assert_eq!(*late.kind(), ErrorKind::LinkClosed);
    assert!(end.receiver().recv_tensors_deadline(soon()).unwrap().is_none());
}

#[test]
fn a_tensor_goes_to_many_links_and_comes_back_after_the_last() {
    // The block counts for each link, and all links are of this process.
    let loans = 8 * QUOTA as u64;
    let options = Options::new().pool_quota(QUOTA as u64).loan_limit(64, loans).ring_capacity(4096);
    let Pair { near, far, reactor, link, end } = served(options);
    let mut links = vec![(link, end)];
    for _ in 0..4 {
        let (adopted, end) = pair_of(&near, &far);
        links.push((reactor.adopt(adopted).unwrap(), end));
    }
    let tensor = pooled(&near, 8, 300_000);
    let mut filled = Vec::new();
    for (index, (link, _)) in links.iter().enumerate() {
        filled.push(if index % 2 == 0 { fill(link) } else { 0 });
        link.write_tensor(&tensor);
        // Of that nothing is private.
        assert!(link.waiting_bytes() < 1000 + QUOTA, "the block counts for each link");
    }
    drop(tensor);
    for ((_, mut end), filled) in links.into_iter().zip(filled) {
        for _ in 0..filled {
            end.receiver().recv_deadline(soon()).unwrap().unwrap();
        }
        let tensor = end.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        assert_eq!(tensor.to_vec::<u32>().unwrap(), [8; 300_000]);
        assert!(near.alloc::<u8>([QUOTA]).is_err());
    }
    is_whole(&near);
}

#[test]
fn all_bytes_that_wait_count_and_those_of_the_pool_are_no_private_memory() {
    let options = Options::new()
        .ring_capacity(4096)
        .write_limit(100_000)
        .link_limit(Resource::Memory, 200_000);
    let Pair { near, link, end: _end, .. } = served(options);
    fill(&link);
    let (say, said) = diary();
    // One write of any length may wait, and its blocks count for the limit alone.
    let first = say.clone();
    link.write_tensor_with(pooled(&near, 1, 300_000), move |_, result| first(result));
    assert!(link.waiting_bytes() >= 1_200_000);
    let second = say.clone();
    link.write_tensor_with(pooled(&near, 2, 10), move |_, result| second(result));
    assert!(matches!(kind(hear(&said)), ErrorKind::WritesFull { limit: 100_000, .. }));
    let ended = end_of(&link);
    link.abort();
    let _ = hear(&ended);
    hear(&said).unwrap_err();

    let options = Options::new().ring_capacity(4096).write_limit(100_000);
    let Pair { link, end: _end, .. } = served(options);
    fill(&link);
    let (say, said) = diary();
    let full = say;
    let private = || Tensor::from_slice([60_000], &[1u8; 60_000]).unwrap();
    link.write_tensor(private());
    assert!((60_000..70_000).contains(&link.waiting_bytes()));
    let mut second = TensorSet::new();
    second.push(private());
    link.write_tensors_with(second, move |_, result| full(result));
    assert!(matches!(kind(hear(&said)), ErrorKind::WritesFull { limit: 100_000, .. }));
    assert!(link.is_open());
    let ended = end_of(&link);
    link.write_tensor(private());
    assert!(matches!(kind(hear(&ended)), ErrorKind::WritesFull { .. }));
}

#[test]
fn a_stopped_peer_keeps_no_more_of_the_pool_than_its_limits() {
    const FRAME: usize = 1 << 20;
    let options = Options::new().pool_quota(64 << 20).loan_limit(4, 8 << 20).write_limit(8 << 20);
    let near = Context::with_options(options).unwrap();
    let reactor = Reactor::spawn(&near).unwrap();
    let far = Context::new().unwrap();
    let mut ends: Vec<_> = (0..3)
        .map(|_| {
            let (near, far) = crate::support::pair_of(&near, &far);
            (reactor.adopt(near).unwrap(), far)
        })
        .collect();
    // The first one receives nothing.
    for number in 0..100u8 {
        let mut frame =
            near.alloc::<u8>([FRAME]).unwrap_or_else(|error| panic!("{number}: {error}"));
        frame.fill(number);
        let frame = frame.share().unwrap();
        for (link, _) in &ends {
            // A write that the stopped link refuses ends nothing.
            link.write_tensor_with(frame.try_clone().unwrap(), |_, _| ());
        }
        drop(frame);
        for (_, end) in &mut ends[1..] {
            let tensor = end.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![number; FRAME]);
        }
    }
    assert!(near.pool_bytes() <= 32 << 20, "{}", near.pool_bytes());
}

#[test]
fn what_waits_comes_back_however_the_link_ends() {
    for end_by in 0..5 {
        let options = Options::new().pool_quota(QUOTA as u64).ring_capacity(4096);
        let Pair { near, far, reactor, link, mut end } = served(options);
        let (adopted, mut other) = pair_of(&near, &far);
        let forwarding = link.clone();
        let (say, said) = diary();
        let forwarded = say.clone();
        reactor.adopt(adopted).unwrap().on_tensors(move |_, set| {
            let say = say.clone();
            forwarding.write_tensors_with(set, move |_, result| say(result));
            forwarded(Ok(()));
        });
        fill(&link);
        let ended = end_of(&link);
        // On loan from elsewhere, on its way to nowhere.
        other.send_tensor(pooled(&far, 1, 1000)).unwrap();
        hear(&said).unwrap();
        let (say, waits) = diary();
        let again = say.clone();
        link.write_tensor_with(near.alloc::<u8>([1 << 20]).unwrap(), move |_, result| say(result));
        link.write_tensors_with(set(&near, 1), move |_, result| again(result));
        settle(&reactor);
        assert!(waits.try_recv().is_err());
        match end_by {
            0 => link.abort(),
            1 => drop(end),
            2 => reactor.shutdown(),
            3 => {
                link.on_message(|_, _| panic!("on purpose"));
                end.send(b"message").unwrap();
            }
            _ => {
                // In order: all that waits is delivered.
                link.close();
                while end.receiver().try_recv().is_ok() {}
                while end.receiver().recv_tensors_deadline(soon()).unwrap().is_some() {}
                hear(&ended).unwrap();
                (0..2).for_each(|_| hear(&waits).unwrap());
                drop((end, other));
                is_whole(&near);
                is_whole(&far);
                continue;
            }
        }
        let expected = [
            ErrorKind::LinkClosed,
            ErrorKind::PeerClosed,
            ErrorKind::ReactorStopped,
            ErrorKind::CallbackPanicked,
        ][end_by]
            .clone();
        assert_eq!(kind(hear(&said)), expected);
        (0..2).for_each(|_| assert_eq!(kind(hear(&waits)), expected));
        hear(&ended).ok();
        is_whole(&near);
        drop(other);
        is_whole(&far);
    }
}

#[test]
fn a_peer_that_dies_ends_the_writes_of_tensors_that_wait() {
    let name = unique_name();
    let test = "a_peer_that_dies_ends_the_writes_of_tensors_that_wait";
    let mut peer = Other::start(test, &name, |name| {
        let context = Context::with_options(Options::new().ring_capacity(4096)).unwrap();
        let mut link = context.connect_retry(name, soon()).unwrap();
        let _held = link.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        say("held");
        wait_for_death();
    });
    let options = Options::new().pool_quota(QUOTA as u64).ring_capacity(4096);
    let context = Context::with_options(options).unwrap();
    let mut listener = context.listen(&name).unwrap();
    let reactor = Reactor::spawn(&context).unwrap();
    let link = reactor.adopt(listener.accept_deadline(soon()).unwrap()).unwrap();
    link.write_tensor(context.alloc::<u8>([1 << 20]).unwrap());
    peer.expect("held");
    fill(&link);
    let ended = end_of(&link);
    let (say, said) = diary();
    let again = say.clone();
    link.write_tensor_with(context.alloc::<u8>([1 << 20]).unwrap(), move |_, result| say(result));
    link.write_tensors_with(set(&context, 1), move |_, result| again(result));
    settle(&reactor);
    assert!(said.try_recv().is_err() && context.alloc::<u8>([QUOTA]).is_err());
    peer.kill();
    (0..2).for_each(|_| assert_eq!(kind(hear(&said)), ErrorKind::PeerDied));
    assert_eq!(kind(hear(&ended)), ErrorKind::PeerDied);
    is_whole(&context);
}

#[test]
fn a_callback_sends_on_what_it_got_by_copy_or_frozen_without_one() {
    for options in spins() {
        let (first, middle, last) = (
            Context::with_options(options.clone()).unwrap(),
            Context::with_options(options.clone()).unwrap(),
            Context::with_options(options).unwrap(),
        );
        let (mut from, near) = pair_of(&first, &middle);
        let (onward, mut to) = pair_of(&middle, &last);
        let reactor = Reactor::spawn(&middle).unwrap();
        let onward = reactor.adopt(onward).unwrap();
        reactor.adopt(near).unwrap().on_tensors(move |_, set| onward.write_tensors(set));
        let mut frozen = first.alloc_frozen::<u32>([1000]).unwrap();
        frozen.fill(5);
        from.send_tensor(frozen).unwrap();
        let there = to.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        assert_eq!(there.as_slice::<u32>().unwrap(), [5; 1000]);
        assert_eq!(middle.pool_bytes(), 0, "nothing was copied");
        for number in 0..50 {
            from.send_tensor(pooled(&first, number, 200_000)).unwrap();
            let there = to.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
            assert_eq!(there.to_vec::<u32>().unwrap(), [number; 200_000]);
            assert!(there.is_loaned() && middle.pool_bytes() > 0);
        }
        drop(there);
        is_whole(&first);
        is_whole(&middle);
    }
}

#[test]
fn a_write_waits_for_memory_that_another_peer_holds() {
    for options in spins() {
        let Pair { near, far, reactor, link, mut end } = served(options);
        let (adopted, mut holder) = pair_of(&near, &far);
        let holding = reactor.adopt(adopted).unwrap();
        holding.write_tensor(near.alloc::<u8>([QUOTA]).unwrap());
        let held = holder.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        let (say, said) = diary();
        let again = say.clone();
        // They are copied, for which there is no memory now; what comes behind them waits, too.
        let private = Tensor::from_slice([1 << 20], &vec![9u8; 1 << 20]).unwrap();
        assert!(matches!(link.try_send_tensor(&private), Err(TrySendError::Full { .. })));
        link.write_tensor_with(private, move |_, result| say(("tensor", result)));
        link.write_with(*b"behind it", move |_, result| again(("message", result)));
        settle(&reactor);
        assert!(said.try_recv().is_err() && end.receiver().try_recv().is_err());
        drop(held);
        for expected in ["tensor", "message"] {
            let (what, result) = hear(&said);
            assert_eq!(what, expected);
            result.unwrap();
        }
        let tensor = end.receiver().recv_tensor_deadline(soon()).unwrap().unwrap();
        assert_eq!(tensor.to_vec::<u8>().unwrap(), vec![9; 1 << 20]);
        assert_eq!(receive(&mut end), b"behind it");
    }
}

#[test]
fn two_sets_that_wait_for_memory_do_not_keep_it_from_each_other() {
    let options = Options::new().pool_quota(QUOTA as u64);
    let Pair { near, far, reactor, link, mut end } = served(options);
    let (adopted, mut other_end) = pair_of(&near, &far);
    let other = reactor.adopt(adopted).unwrap();
    let held = near.alloc::<u8>([QUOTA]).unwrap();
    let two = |value: u8| {
        let mut set = TensorSet::new();
        (0..2).for_each(|_| {
            set.push(Tensor::from_slice([3 << 19], &vec![value; 3 << 19]).unwrap());
        });
        set
    };
    link.write_tensors(two(1));
    other.write_tensors(two(2));
    settle(&reactor);
    drop(held);
    // Whichever has it first, the other one has it when that was read.
    std::thread::scope(|scope| {
        for (end, value) in [(&mut end, 1), (&mut other_end, 2)] {
            scope.spawn(move || {
                let set = end.receiver().recv_tensors_deadline(soon()).unwrap().unwrap();
                assert_eq!(set.at(1).unwrap().to_vec::<u8>().unwrap(), vec![value; 3 << 19]);
            });
        }
    });
    // A set that can never be sent is refused.
    let mut three = two(3);
    three.push(Tensor::from_slice([2 << 20], &vec![3u8; 2 << 20]).unwrap());
    let (say, said) = diary();
    link.write_tensors_with(three, move |_, result| say(result));
    assert!(matches!(kind(hear(&said)), ErrorKind::PoolExhausted { .. }));
}

#[test]
fn an_own_loop_serves_tensors() {
    let near = Context::new().unwrap();
    let (adopted, mut end) = pair_of(&near, &near);
    let mut events = EventLoop::new(&near).unwrap();
    let link = events.reactor().adopt(adopted).unwrap();
    link.on_tensors(|link, set| link.write_tensors(set));
    end.sender().send_tensors(&set(&near, 6)).unwrap();
    while events.poll_once(1000).unwrap() > 0 {}
    is_set(&end.receiver().recv_tensors_deadline(soon()).unwrap().unwrap(), 6);
    // A set with too many for the peer ends in an answer, not in waiting.
    let mut many = TensorSet::new();
    for number in 0..256 {
        many.push(pooled(&near, number, 1));
    }
    let (say, said) = diary();
    link.write_tensors_with(many, move |_, result| say(result));
    while events.poll_once(1000).unwrap() > 0 {}
    let fault = TensorFault::Count { count: 256, expected: 255 };
    assert_eq!(kind(hear(&said)), ErrorKind::Tensor(fault));
    assert!(link.is_open());
}

#[test]
fn tensors_belong_to_no_thread() {
    fn any_thread<T: Send + Sync + 'static>() {}
    any_thread::<Tensor>();
    any_thread::<slipring::TensorMut<f32>>();
    any_thread::<TensorSet>();
    any_thread::<slipring::tensor::Outgoing<'static>>();
}
