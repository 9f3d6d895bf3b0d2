//! Clients that lie in their messages. The tests make every byte, as `docs/wire.md` says.
//!
//! After each attack an honest client executes, and the server holds no more than before.

use slipring::commit::ServerOptions;
use slipring::error::Fault;
use slipring::message::Token;
use slipring::{DType, ErrorKind, Tensor};

use crate::support::census::short_of_memory;
use crate::support::commit::*;
use crate::support::other::alone;
use crate::support::raw::message;
use crate::support::service::Stage;
use crate::support::{soon, wait_until};

/// Returns one honest message of every kind that has a body, of a client that has sent no descriptors.
fn honest_messages() -> Vec<Bytes> {
    let pieces = |bytes: Bytes| bytes.u64(1).passed(0, 1).memory(0, 0, 0, 8).memory(1, 0, 0, 8);
    vec![
        head(LOAD_DESCRIPTOR, 0, 1).u64(0).u64(0).u64(4),
        pieces(head(COMMIT, 2, 1)),
        pieces(head(UPDATE, 2, 1)),
        head(EXECUTE, 1, 1).u64(9),
        head(EXECUTE, 3, 1).u64(9).u64(10).u64(11),
        head(RELEASE, 0, 1).u64(9),
        head(UNLOAD, 0, 1).u64(9),
        head(DISCARD, 0, 1).u64(0),
    ]
}

#[test]
fn a_truncated_or_lengthened_message_ends_only_its_link() {
    alone("a_truncated_or_lengthened_message_ends_only_its_link", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        for len in 0..16 {
            watch.ends("a cut head", &head(LOAD, 0, 1).0[..len]);
        }
        for Bytes(bytes) in honest_messages() {
            for len in (0..bytes.len()).step_by(3).chain([bytes.len() - 1]) {
                watch.ends("cut", &bytes[..len]);
            }
            for more in [1, 8, 32, 5000] {
                watch.ends("longer", &[&bytes[..], &vec![0; more]].concat());
            }
        }
        watch.is_undisturbed();
    });
}

#[test]
fn invalid_kinds_counts_and_fields_end_only_their_link() {
    alone("invalid_kinds_counts_and_fields_end_only_their_link", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        for act in [0, 9, 64, 65, 66, 67, 68, 69, 70, 255, 256, 257, u16::MAX] {
            watch.ends("an act", &head(act, 0, 1).u64(0).0);
        }
        for Bytes(bytes) in honest_messages() {
            let mut zero = bytes.clone();
            zero[2] = 1;
            watch.ends("a byte that is zero", &zero);
            let is = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
            for count in [0, 1, 2, 3, 1024, 1025, 4096, 4097, 1 << 27, 1 << 31, u32::MAX] {
                if count != is {
                    watch.ends("a count", &Bytes(bytes.clone()).with(4, count).0);
                }
            }
        }
        for Bytes(bytes) in &honest_messages()[1..3] {
            let lie = |at, word| Bytes(bytes.clone()).with(at, word).0;
            // How many descriptors, and the zero behind; which, what object, and the zero behind.
            for (at, words) in [
                (32, &[0, 3, u32::MAX][..]),
                (36, &[1, u32::MAX]),
                (44, &[1, 2, u32::MAX]),
                (48, &[0, 3, u32::MAX]),
                (52, &[1]),
                (76, &[1]),
            ] {
                for word in words {
                    watch.ends(&format!("{word} at {at}"), &lie(at, *word));
                }
            }
        }
        watch.is_undisturbed();
    });
}

#[test]
fn descriptors_that_were_never_sent_end_only_their_link() {
    alone("descriptors_that_were_never_sent_end_only_their_link", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        for first in [0, 1, 1 << 40, u64::MAX] {
            watch.ends("load", &head(LOAD_DESCRIPTOR, 0, 1).u64(first).u64(0).u64(4).0);
            let commit = |act| head(act, 1, 1).u64(1).passed(first, 1).memory(0, 0, 0, 8).0;
            watch.ends("commit", &commit(COMMIT));
            watch.ends("update", &commit(UPDATE));
            if first > 0 {
                watch.ends("discard", &head(DISCARD, 0, 1).u64(first).0);
            }
        }
        watch.is_undisturbed();
    });
}

#[test]
fn a_record_of_another_kind_ends_only_its_link() {
    alone("a_record_of_another_kind_ends_only_its_link", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        let mut hostile = Hostile::connect(&watch.stage);
        let _ = hostile.link.call_deadline(&head(LOAD, 0, 1).0, soon()).unwrap_err();
        assert_eq!(hostile.hear(), None);
        let mut hostile = Hostile::connect(&watch.stage);
        let tensor = Tensor::from_slice([2], &[1u8, 2]).unwrap();
        let _ = hostile.link.send_tensor(&tensor);
        assert_eq!(hostile.hear(), None);
        assert_eq!(tensor.dtype(), DType::Uint8);
        drop((hostile, tensor));
        watch.executes(5);
        wait_until("the end of others", || watch.stage.server.stats().clients == 1);
    });
}

#[test]
fn tokens_instead_of_messages_run_nothing_and_hold_up_no_client() {
    alone("tokens_instead_of_messages_run_nothing_and_hold_up_no_client", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        let mut hostile = Hostile::connect(&watch.stage);
        let counts = || watch.stage.counts.of("execute");
        for round in 0..20u32 {
            let before = counts();
            for token in [0, 1, round << 16, round << 16 | 1, 0xffff, u32::MAX] {
                (0..500).for_each(|_| hostile.link.sender().trigger(Token::from(token)).unwrap());
            }
            watch.executes(round as u8);
            assert_eq!(counts(), before + 1);
        }
        // Tokens wait behind a message as any record does, and the link goes on.
        hostile.load("echo");
        drop(hostile);
        watch.is_undisturbed();
    });
}

#[test]
fn ids_that_are_invented_or_of_another_client_are_unknown() {
    alone("ids_that_are_invented_or_of_another_client_are_unknown", || {
        let watch = Watch::new(ServerOptions::new().workers(2));
        let foreign = watch.session.id().unwrap();
        let mut hostile = Hostile::connect(&watch.stage);
        let unloaded = hostile.load("echo");
        let open = hostile.load("echo");
        assert_eq!(hostile.ask(&head(UNLOAD, 0, 2).u64(unloaded).0), Some((2, Said::Done)));
        let ids = [0, 1, foreign, foreign - 1, foreign ^ 1, unloaded, open, u64::MAX];
        let unknown = Some((u64::MAX, Said::Failed(4)));
        for id in ids {
            let one = |act, count| head(act, count, u64::MAX).u64(id).0;
            assert_eq!(hostile.ask(&one(EXECUTE, 1)), unknown);
            assert_eq!(hostile.ask(&one(RELEASE, 0)), unknown);
            let all = head(EXECUTE, 3, u64::MAX).u64(id).u64(id).u64(foreign).0;
            assert_eq!(hostile.ask(&all), unknown);
            let update = head(UPDATE, 0, u64::MAX).u64(id).passed(0, 0).0;
            assert_eq!(hostile.ask(&update), unknown);
            if id != open {
                assert_eq!(hostile.ask(&one(UNLOAD, 0)), unknown);
                let commit = head(COMMIT, 0, u64::MAX).u64(id).passed(0, 0).0;
                assert_eq!(hostile.ask(&commit), unknown);
            }
            watch.executes(2);
        }
        drop(hostile);
        watch.is_undisturbed();
    });
}

#[test]
fn a_dead_client_whose_ring_is_all_requests_is_found_dead() {
    alone("a_dead_client_whose_ring_is_all_requests_is_found_dead", || {
        let watch = Watch::new(ServerOptions::new().workers(1));
        let raw = Raw::connect(&watch.stage);
        // The server answers none of these.
        raw.peer.fill_ring(message(24), &head(DISCARD, 0, 1).u64(0).0);
        drop(raw);
        watch.is_undisturbed();
        let ends = watch.stage.counts.ends.lock().unwrap();
        let end = ends.last().unwrap();
        let Some(ErrorKind::Fault(Fault::RecordsAfterEnd { .. })) = end else { panic!("{end:?}") };
    });
}

#[test]
fn a_request_for_which_there_is_no_memory_ends_its_link() {
    alone("a_request_for_which_there_is_no_memory_ends_its_link", || {
        let watch = Watch::new(ServerOptions::new().workers(1));
        let mut hostile = Hostile::connect(&watch.stage);
        let load = [&head(LOAD, 0, 1).0[..], &vec![b'x'; 64 << 20]].concat();
        // The server maps the client's memory: a block of it lies ready for the next message.
        for _ in 0..4 {
            let Some((1, Said::Loaded(model))) = hostile.ask(&load) else { panic!("not loaded") };
            assert_eq!(hostile.ask(&head(UNLOAD, 0, 2).u64(model).0), Some((2, Said::Done)));
        }
        short_of_memory(32 << 20, || {
            assert_eq!(hostile.ask(&load), None);
            watch.executes(3);
        });
        drop(hostile);
        watch.is_undisturbed();
        let ends = watch.stage.counts.ends.lock().unwrap();
        let bytes = load.len() as u64;
        assert!(ends.contains(&Some(ErrorKind::OutOfMemory { bytes })), "{ends:?}");
    });
}

#[test]
fn long_requests_that_wait_are_bounded_in_bytes() {
    alone("long_requests_that_wait_are_bounded_in_bytes", || {
        let watch = Watch::new(ServerOptions::new().workers(1));
        let model = watch.stage.client().load(b"slow 3000").unwrap();
        let session = model.session(0).unwrap();
        let _buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        let count = watch.stage.counts.of("execute");
        let execution = session.start().unwrap();
        wait_until("the execution", || watch.stage.counts.of("execute") > count);
        // The only worker is busy.
        let mut hostile = Hostile::connect(&watch.stage);
        let long = vec![b'x'; 40 << 20];
        for ticket in 0..2 {
            hostile.link.send(&[&head(LOAD, 0, ticket).0[..], &long].concat()).unwrap();
        }
        assert_eq!(hostile.hear(), Some((1, Said::Failed(14))), "80 MiB would wait");
        assert!(matches!(hostile.hear(), Some((0, Said::Loaded(_)))));
        execution.wait().unwrap();
        // One at a time.
        let again = [&head(LOAD, 0, 2).0[..], &long].concat();
        assert!(matches!(hostile.ask(&again), Some((2, Said::Loaded(_)))));
        watch.executes(3);
    });
}

#[test]
fn more_requests_than_may_wait_are_refused_one_by_one() {
    alone("more_requests_than_may_wait_are_refused_one_by_one", || {
        let watch = Watch::new(ServerOptions::new().workers(1));
        let model = watch.stage.client().load(b"slow 300").unwrap();
        let session = model.session(0).unwrap();
        let buffers = session.allocate_all().unwrap();
        session.commit().unwrap();
        let count = watch.stage.counts.of("execute");
        let execution = session.start().unwrap();
        wait_until("the execution", || watch.stage.counts.of("execute") > count);
        // The only worker is busy.
        let mut hostile = Hostile::connect(&watch.stage);
        for ticket in 0..20 {
            hostile.link.send(&[&head(LOAD, 0, ticket).0[..], b"echo"].concat()).unwrap();
        }
        let answers: Vec<_> = (0..20).map(|_| hostile.hear().unwrap()).collect();
        let refused = answers.iter().filter(|(_, said)| *said == Said::Failed(14)).count();
        let loaded = answers.iter().filter(|(_, said)| matches!(said, Said::Loaded(_))).count();
        assert_eq!((refused, loaded), (4, 16), "{answers:?}");
        execution.wait().unwrap();
        hostile.load("echo");
        drop((hostile, session, model, buffers));
        watch.is_undisturbed();
    });
}

#[test]
fn a_service_learns_what_its_clients_links_ended_with() {
    let stage = Stage::new();
    let last = |count: usize| {
        wait_until("an end", || stage.counts.of("gone") == count);
        stage.counts.ends.lock().unwrap().last().unwrap().clone()
    };
    let client = stage.client();
    client.load(b"echo").unwrap();
    drop(client);
    assert_eq!(last(1), None);
    let field = |field, value| Some(ErrorKind::Fault(Fault::Field { field, value }));
    let mut hostile = Hostile::connect(&stage);
    hostile.load("echo");
    assert_eq!(hostile.ask(&head(9, 0, 1).0), None);
    assert_eq!(last(2), field("commit.act", 9));
    let mut hostile = Hostile::connect(&stage);
    let never = Fault::UnknownDescriptors { first: 7, count: 1 };
    assert_eq!(hostile.ask(&head(LOAD_DESCRIPTOR, 0, 1).u64(7).u64(0).u64(1).0), None);
    assert_eq!(last(3), Some(ErrorKind::Fault(never)));
    let mut hostile = Hostile::connect(&stage);
    let _ = hostile.link.send_tensor(Tensor::from_slice([2], &[1u8, 2]).unwrap());
    assert_eq!(hostile.hear(), None);
    assert_eq!(last(4), field("commit.kind", 2));
    // This client dies without a message.
    let raw = Raw::connect(&stage);
    wait_until("the client", || stage.server.stats().clients == 1);
    drop(raw);
    assert_eq!(last(5), Some(ErrorKind::PeerDied));
}
