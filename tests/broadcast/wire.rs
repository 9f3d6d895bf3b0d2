//! `tests/subscriber.py`, an independent subscriber written from `docs/wire.md` alone, reads what the library
//! publishes, and is what it is to the publisher: slow, asleep, holding, evicted, gone.

use std::time::Duration;

use slipring::broadcast::{EventKind, PublishOptions, SubscribeOptions, SubscriberState};
use slipring::error::Eviction;
use slipring::{Context, Options, Shape, Tensor, TensorSet, meta};

use crate::driven::{Driven, told, what};
use crate::support::other::{Other, listen_for, say};
use crate::support::python::body;
use crate::support::{HANG, unique_name, wait_until};
use crate::{Stage, next};

const FRAME: usize = 1 << 20;

/// Publishes a frame, and returns what is said of it.
fn frame(stage: &mut Stage, missed: u64) -> String {
    let number = stage.publisher.sent() + 1;
    let bytes = body(FRAME, number as usize);
    let mut frame = stage.publisher.alloc::<u8>([1024, 1024]).unwrap();
    frame.copy_from_slice(&bytes);
    stage.publisher.send_tensor(frame).unwrap();
    format!("{number} {missed} tensors - UINT8 [1024, 1024] {}", what(&bytes))
}

/// Publishes a message of a length, and returns what is said of it.
fn message(stage: &mut Stage, len: usize, missed: u64) -> String {
    let number = stage.publisher.sent() + 1;
    let message = body(len, number as usize);
    stage.publisher.send(&message).unwrap();
    told(number, missed, &message)
}

/// Reads as many lines.
fn lines(driven: &mut Driven, count: usize) -> Vec<String> {
    driven.tell(&format!("take {count}"));
    (0..count).map(|_| driven.line()).collect()
}

/// Returns how many subscribers are asleep.
fn asleep(stage: &Stage) -> usize {
    let infos = stage.publisher.subscribers();
    infos.iter().filter(|one| one.state() == SubscriberState::Asleep).count()
}

fn kinds(stage: &Stage) -> Vec<EventKind> {
    stage.publisher.take_events().iter().map(|event| event.kind()).collect()
}

#[test]
fn messages_of_every_length_arrive_with_their_metadata() {
    for slot_len in [64, 256, 4096] {
        let mut stage = Stage::new(PublishOptions::new().slot_len(slot_len));
        let Some(mut driven) = Driven::join(&stage, "every") else { return };
        let long = "x".repeat(250);
        let some = [
            (meta! {}.unwrap(), String::new()),
            (meta! { "n" => 7, "yes" => true }.unwrap(), " n=7 yes=1".to_owned()),
            (meta! { "text" => long.as_str(), "n" => -1 }.unwrap(), format!(" text={long} n=-1")),
        ];
        for (metadata, text) in &some {
            let room = slot_len as usize - 16;
            for len in [0, 1, 8, room - 24, room - 1, room, room + 1, 300, 5000, 1 << 20] {
                let message = body(len, len);
                stage.publisher.send_with(&message, metadata).unwrap();
                let line = told(stage.publisher.sent(), 0, &message) + text;
                assert_eq!(driven.ask("next"), line, "{slot_len}");
            }
        }
        let stats = driven.ask("stats");
        assert!(stats.contains("holds 0"), "{stats}");
        assert_eq!(stats.contains("spilled 0"), slot_len == 4096, "{stats}");
    }
}

/// Returns what is said of a tensor.
fn of(name: &str, tensor: &Tensor) -> String {
    let bytes = tensor.bytes().unwrap().to_vec();
    format!("{name} {} {:?} {}", tensor.dtype(), tensor.shape().dims(), what(&bytes))
}

#[test]
fn tensors_in_blocks_frozen_and_inline_arrive() {
    for slot_len in [64, 256, 4096] {
        let mut stage = Stage::new(PublishOptions::new().slot_len(slot_len));
        let Some(mut driven) = Driven::join(&stage, "every") else { return };
        for round in 0..5usize {
            let mut lent = stage.publisher.alloc::<u16>([100, 70]).unwrap();
            lent.fill(round as u16 + 513);
            let mut frozen = stage.context.alloc_frozen::<f32>([30, 3, 10]).unwrap();
            frozen.fill(round as f32 - 0.5);
            let tensors = [
                ("lent", lent.share().unwrap()),
                ("frozen", frozen.share().unwrap()),
                ("copied", Tensor::from_slice([9000], &body(9000, round)).unwrap()),
                ("inline", Tensor::from_slice([2, 2], &[1.5f64, -0.0, 3.0, round as f64]).unwrap()),
                ("scalar", Tensor::from_slice(Shape::new(&[]).unwrap(), &[round as i64]).unwrap()),
                (
                    "yes or no, with a name that is long",
                    Tensor::from_slice([3], &[true; 3]).unwrap(),
                ),
                ("none", Tensor::from_slice::<u32>([4, 0], &[]).unwrap()),
            ];
            let mut set = TensorSet::new();
            let said = tensors.each_ref().map(|(name, tensor)| of(name, tensor)).join(", ");
            for (name, tensor) in tensors {
                set.insert(name, tensor).unwrap();
            }
            set.set_metadata(meta! { "round" => round as i64 }.unwrap());
            stage.publisher.send_tensors(&set).unwrap();
            let number = stage.publisher.sent();
            assert_eq!(driven.ask("next"), format!("{number} 0 tensors round={round} {said}"));
        }
        let set = TensorSet::new();
        stage.publisher.send_tensors(&set).unwrap();
        assert_eq!(driven.ask("next"), "6 0 tensors ");
        let frame = frame(&mut stage, 0);
        assert_eq!(driven.ask("next"), frame);
    }
}

#[test]
fn each_policy_receives_what_it_asks_for() {
    let mut stage = Stage::new(PublishOptions::new().slots(16).newest_limit(8));
    let joined =
        ["every", "newest:3", "newest:8", "latest"].map(|policy| Driven::join(&stage, policy));
    let [Some(mut every), Some(mut three), Some(mut eight), Some(mut latest)] = joined else {
        return;
    };
    for round in 0..4u64 {
        for one in [&mut every, &mut three, &mut eight, &mut latest] {
            assert_eq!(one.ask("look"), "nothing");
        }
        // By turns: a message in a slot, one in a block, a frame.
        let said: Vec<String> = (0..12)
            .map(|at| match at % 3 {
                0 => message(&mut stage, 20, 0),
                1 => message(&mut stage, 3000, 0),
                _ => frame(&mut stage, 0),
            })
            .collect();
        assert_eq!(lines(&mut every, 12), said, "{round}");
        for (one, depth) in [(&mut three, 3), (&mut eight, 8), (&mut latest, 1)] {
            let mut last = said[12 - depth..].to_vec();
            last[0] = last[0].replacen(" 0 ", &format!(" {} ", 12 - depth), 1);
            assert_eq!(lines(one, depth), last, "{round}");
        }
    }
    // A policy that is asked to wait for messages that were overwritten long ago.
    for _ in 0..100 {
        message(&mut stage, 5, 0);
        assert_eq!(lines(&mut every, 1).len(), 1);
    }
    let last = message(&mut stage, 6, 100);
    assert_eq!(latest.ask("next"), last);
    assert!(eight.ask("next").starts_with("142 93 "));
}

#[test]
fn a_late_subscriber_receives_the_history() {
    let mut stage = Stage::new(PublishOptions::new().slots(16).history(3));
    let Some(mut first) = Driven::join(&stage, "every") else { return };
    let said: Vec<String> = (0..5)
        .map(|at| if at % 2 == 0 { message(&mut stage, 7, 0) } else { frame(&mut stage, 0) })
        .collect();
    assert_eq!(lines(&mut first, 5), said);
    let joined =
        ["every", "newest:2", "latest", "newest:9"].map(|policy| Driven::join(&stage, policy));
    let [Some(mut every), Some(mut two), Some(mut latest), Some(mut nine)] = joined else { return };
    assert_eq!(lines(&mut every, 3), said[2..]);
    assert_eq!(lines(&mut nine, 3), said[2..]);
    assert_eq!(lines(&mut two, 2)[1], said[4]);
    assert!(latest.ask("next").starts_with("5 "));
    for one in [&mut every, &mut two, &mut latest, &mut nine] {
        assert_eq!(one.ask("look"), "nothing");
    }
    let said = message(&mut stage, 4000, 0);
    for one in [&mut every, &mut two, &mut latest, &mut nine, &mut first] {
        assert_eq!(one.ask("next"), said);
    }
}

#[test]
fn sleepers_of_both_ways_are_woken() {
    let mut stage = Stage::new(PublishOptions::default());
    let joined =
        ["every", "every armed", "latest", "latest armed"].map(|one| Driven::join(&stage, one));
    let Some(mut sleepers) = joined.into_iter().collect::<Option<Vec<_>>>() else { return };
    let mut honest = stage.subscribe(SubscribeOptions::every());
    for round in 0..40 {
        sleepers.iter_mut().for_each(|one| one.tell("next"));
        wait_until("the sleep", || asleep(&stage) == 4);
        let said = message(&mut stage, if round % 5 == 4 { 20_000 } else { 12 }, 0);
        next(&mut honest);
        sleepers.iter_mut().for_each(|one| assert_eq!(one.line(), said));
    }
    for one in &mut sleepers {
        let stats = one.ask("stats");
        let slept: u32 = stats.split([' ', ',']).nth(1).unwrap().parse().unwrap();
        // A message that comes between the state word and the sleep is found by the last look.
        assert!(slept >= 20, "{stats}");
    }
    // The end of the publisher wakes them, too.
    sleepers.iter_mut().for_each(|one| one.tell("next"));
    std::thread::sleep(Duration::from_millis(50));
    drop(stage);
    sleepers.iter_mut().for_each(|one| assert_eq!(one.line(), "end: in order"));
}

#[test]
fn a_publisher_that_waits_for_room_is_woken() {
    // A publisher that nobody wakes would evict.
    let options = PublishOptions::new().slots(4).newest_limit(1).stall_after(HANG / 2);
    let mut stage = Stage::with(Options::new().pool_quota(6 << 20), options);
    let joined = ["every", "every armed"].map(|one| Driven::join(&stage, one));
    let [Some(mut one), Some(mut two)] = joined else { return };
    [&mut one, &mut two].into_iter().for_each(|driven| driven.tell("all"));
    let mut said = Vec::new();
    for round in 0..400 {
        // It waits for slots, then for memory.
        said.push(if round % 4 == 3 { frame(&mut stage, 0) } else { message(&mut stage, 9, 0) });
    }
    assert!(kinds(&stage).iter().all(|kind| *kind == EventKind::Joined));
    drop(stage);
    for driven in [&mut one, &mut two] {
        for line in &said {
            assert_eq!(driven.line(), *line);
        }
        assert_eq!(driven.line(), "end: in order");
    }
}

#[test]
fn a_hot_subscriber_is_woken_when_it_sleeps() {
    let mut stage = Stage::new(PublishOptions::new().slots(16).stall_after(HANG / 2));
    let Some(mut driven) = Driven::join(&stage, "every") else { return };
    for round in 0..20 {
        for _ in 0..2 {
            // Its position may lag behind by an eighth of the slots.
            let said: Vec<String> = (0..12).map(|_| message(&mut stage, round, 0)).collect();
            assert_eq!(lines(&mut driven, 12), said);
        }
        driven.tell("next");
        wait_until("the sleep", || asleep(&stage) == 1);
        let said = message(&mut stage, round, 0);
        assert_eq!(driven.line(), said);
    }
    let stats = driven.ask("stats");
    assert!(!stats.contains("hot 0"), "{stats}");
}

#[test]
fn a_subscriber_that_stalls_is_evicted_and_told_so() {
    let options = PublishOptions::new().slots(16).stall_after(Duration::from_millis(30));
    let mut stage = Stage::with(Options::new().pool_quota(64 << 20), options);
    let joined = ["every", "every armed"].map(|one| Driven::join(&stage, one));
    let [Some(mut stuck), Some(mut other)] = joined else { return };
    let mut honest = stage.subscribe(SubscribeOptions::every());
    let first = frame(&mut stage, 0);
    assert_eq!((stuck.ask("hold"), other.ask("next")), (first.clone(), first));
    assert_eq!(next(&mut honest).1, 0);
    other.tell("take 199");
    for number in 1..200 {
        if number % 2 == 0 {
            frame(&mut stage, 0)
        } else {
            message(&mut stage, 10, 0)
        };
        assert_eq!(next(&mut honest).1, 0);
    }
    for number in 2..=200 {
        assert!(other.line().starts_with(&format!("{number} 0 ")));
    }
    let stalled = EventKind::Evicted(Eviction::Stalled);
    assert_eq!(kinds(&stage), [EventKind::Joined, EventKind::Joined, EventKind::Joined, stalled]);
    assert_eq!(stuck.ask("drop"), "end: evicted 1");
    assert_eq!(stuck.ask("next"), "end: evicted 1");
    // And by its owner.
    let id = stage.publisher.subscribers()[0].id();
    assert!(stage.publisher.evict(id));
    assert_eq!(other.ask("next"), "end: evicted 2");
}

#[test]
fn what_a_subscriber_holds_stays_as_it_is() {
    holds_two_frames(PublishOptions::new().hold_limit(2));
}

#[test]
fn what_a_subscriber_holds_has_no_more_bytes_than_the_topic_says() {
    holds_two_frames(PublishOptions::new().hold_limit(64).hold_bytes(2 * FRAME as u64));
}

/// Lets subscribers hold as much as they may, which is two frames.
fn holds_two_frames(options: PublishOptions) {
    let mut stage = Stage::new(options.stall_after(HANG));
    let joined = ["latest", "every"].map(|one| Driven::join(&stage, one));
    let [Some(mut latest), Some(mut every)] = joined else { return };
    for round in 0..3u64 {
        let (mut said, base) = (Vec::new(), stage.publisher.sent());
        for _ in 0..2 {
            said.push(frame(&mut stage, 0));
            assert!(latest.ask("hold").starts_with(&format!("{} ", stage.publisher.sent())));
        }
        for line in &said {
            assert_eq!(every.ask("hold"), *line);
        }
        assert_eq!(stage.publisher.subscribers().iter().map(|one| one.held()).sum::<usize>(), 4);
        // Without a free word, messages in slots alone are read.
        let third = frame(&mut stage, 0);
        assert_eq!(latest.ask("look"), "nothing");
        assert_eq!(
            (every.ask("look"), every.ask("next")),
            ("hold limit".into(), "hold limit".into())
        );
        let mut last = message(&mut stage, 5, 1);
        assert_eq!(latest.ask("look"), last);
        for _ in 0..20 {
            last = message(&mut stage, 9000, 0);
        }
        assert_eq!([&mut latest, &mut every].map(|one| one.ask("drop")), ["unchanged 2"; 2]);
        let left = lines(&mut every, 22);
        assert_eq!((&left[0], left.last().unwrap()), (&third, &last), "{round}");
        assert_eq!(stage.publisher.sent(), base + 24);
        assert!(latest.ask("look").starts_with(&format!("{} 19 ", base + 24)));
        message(&mut stage, 1, 0);
        assert!(
            [&mut latest, &mut every]
                .map(|one| one.ask("next"))
                .iter()
                .all(|one| one.contains(" 0 "))
        );
        assert_eq!(stage.publisher.subscribers().iter().map(|one| one.held()).sum::<usize>(), 0);
    }
    frame(&mut stage, 0);
    assert!(stage.kept_bytes() < 2 * FRAME as u64);
}

/// Publishes four messages that a subscriber finds later, and goes on until it is told to end.
fn publish_and_wait(name: &str) {
    let publisher = Context::new().unwrap().publish(name, PublishOptions::new().history(4));
    let mut publisher = publisher.unwrap();
    for number in 0..4 {
        publisher.send(&body(number * 5000, number)).unwrap();
    }
    say("published");
    listen_for("end");
}

#[test]
fn a_subscriber_with_few_words_holds_few_messages() {
    let mut stage = Stage::new(PublishOptions::new().hold_limit(64));
    let Some(mut driven) = Driven::join(&stage, "every") else { return };
    // Its Hello offers 16 words.
    for _ in 0..16 {
        let said = message(&mut stage, 3000, 0);
        assert_eq!(driven.ask("hold"), said);
    }
    assert_eq!(stage.publisher.subscribers()[0].held(), 16);
    let said = message(&mut stage, 3000, 0);
    assert_eq!(
        (driven.ask("next"), driven.ask("drop")),
        ("hold limit".into(), "unchanged 16".into())
    );
    assert_eq!(driven.ask("next"), said);
}

#[test]
fn what_was_not_read_is_read_after_the_end() {
    for ending in ["drop", "kill"] {
        let name = unique_name();
        let mut other = Other::start("what_was_not_read_is_read_after_the_end", &name, |name| {
            publish_and_wait(name);
        });
        other.expect("published");
        let Some(mut driven) = Driven::start(&name, "every") else { return };
        assert_eq!(driven.line(), "joined 1: 256 slots of 256, 4 holds, history 4");
        if ending == "kill" {
            other.kill();
        } else {
            other.tell("end");
        }
        let (lines, end) = driven.all();
        assert_eq!(end, if ending == "kill" { "died" } else { "in order" });
        assert_eq!(lines.len(), 4, "{lines:?}");
    }
}

#[test]
fn the_end_of_a_subscriber_gives_back_what_it_held() {
    let options = PublishOptions::new().hold_limit(4);
    let mut stage = Stage::with(Options::new().pool_quota(32 << 20), options);
    for (ending, kind) in
        [("leave", EventKind::Left), ("kill", EventKind::Died), ("exit", EventKind::Died)]
    {
        let Some(mut driven) = Driven::join(&stage, "newest:8") else { return };
        for _ in 0..4 {
            let said = frame(&mut stage, 0);
            assert_eq!(driven.ask("hold"), said);
        }
        for _ in 0..10 {
            frame(&mut stage, 0);
        }
        assert!(stage.kept_bytes() >= 8 * FRAME as u64);
        let id = stage.publisher.subscribers()[0].id();
        match ending {
            "leave" => assert_eq!(driven.ask("leave"), "left"),
            "kill" => driven.kill(),
            _ => drop(driven),
        }
        wait_until("its end", || stage.publisher.subscribers().is_empty());
        assert_eq!(kinds(&stage), [EventKind::Joined, kind], "{ending} of {id}");
        message(&mut stage, 1, 0);
        assert_eq!(stage.kept_bytes(), 0, "{ending}");
    }
}

#[test]
fn refusals_name_their_reason() {
    let stage = Stage::new(PublishOptions::new().newest_limit(4).every(false).subscriber_limit(1));
    let refused = [("every", "code 7"), ("newest:5", "code 7"), ("newest:0", "code 2")];
    for (policy, why) in refused {
        let Some(driven) = Driven::start(&stage.name, policy) else { return };
        driven.fails(why);
    }
    let Some(_first) = Driven::join(&stage, "latest") else { return };
    Driven::start(&stage.name, "latest").unwrap().fails("code 8");
    let name = unique_name();
    let mut listener = stage.context.listen(&name).unwrap();
    let driven = Driven::start(&name, "latest").unwrap();
    wait_until("the refusal", || {
        assert!(listener.try_accept().unwrap().is_none());
        listener.stats().refused == 1
    });
    driven.fails("code 6");
}
