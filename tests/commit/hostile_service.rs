//! Services that lie. The tests make every byte, as `docs/wire.md` says.

use std::thread;

use slipring::commit::{Client, Direction, SessionState};
use slipring::error::{CommitFault, Fault};
use slipring::message::Token;
use slipring::{Context, DType, Error, ErrorKind, Tensor};

use crate::support::commit::*;
use crate::support::{soon, unique_name};

/// Returns what a client that calls `act` gets when the service answers `lie` after `honest` answers.
fn lied_to<T: std::fmt::Debug>(
    honest: &[fn(u64) -> Bytes],
    lie: impl Fn(u64) -> Option<Bytes> + Sync,
    act: impl FnOnce(&Client) -> Result<T, Error>,
) -> ErrorKind {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut listener = context.listen(&name).unwrap();
    thread::scope(|scope| {
        let lie = &lie;
        scope.spawn(move || {
            let mut link = listener.accept_deadline(soon()).unwrap();
            link.sender().admit_descriptors(64);
            let mut answers = honest.iter();
            while let Ok(Some(asked)) = link.receiver().recv_deadline(soon()) {
                let ticket = u64::from_le_bytes(asked[8..16].try_into().unwrap());
                let answer = match answers.next() {
                    Some(answer) => Some(answer(ticket)),
                    None => lie(ticket),
                };
                match answer {
                    Some(Bytes(bytes)) => {
                        let _ = link.send(&bytes);
                    }
                    None => return,
                }
            }
        });
        let client = Client::connect(&context, &name).unwrap();
        let kind = act(&client).unwrap_err().kind().clone();
        // The link has ended.
        if matches!(kind, ErrorKind::Fault(_)) {
            let again = client.load(b"x").unwrap_err();
            assert_eq!(*again.kind(), kind);
        }
        kind
    })
}

/// Returns the description of `echo`, of two buffers, for tests to change fields of.
fn description(ticket: u64) -> Bytes {
    let region = |bytes: Bytes| bytes.u64(8).u32(0).text("");
    let bytes = region(region(head(LOADED, 2, ticket).u64(5).u64(2)));
    (0..2).fold(bytes, |bytes, at| {
        let bytes = bytes.u32(at).u32(0).u32(at).u32(uint8() | 1 << 8).u64(0).u64(8).u32(0);
        bytes.u32(1).u32(1).u32(1).u32(8).u32(1).u64(8).text("")
    })
}

/// The start of the first buffer in it.
const BUFFER: usize = 16 + 16 + 2 * 16;

fn uint8() -> u32 {
    u32::from(DType::Uint8.code())
}

fn field(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Fault(Fault::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_to_no_request_end_the_clients_link() {
    let load = |client: &Client| client.load(b"echo");
    type Lie = fn(u64) -> Option<Bytes>;
    let lies: [(&str, Lie); 12] = [
        ("commit.ticket", |ticket| Some(description(ticket + 1))),
        ("commit.ticket", |_| Some(description(0))),
        ("commit.ticket", |_| Some(description(u64::MAX))),
        ("commit.ticket", |ticket| Some(head(DONE, 0, ticket))),
        ("commit.ticket", |ticket| Some(head(EXECUTED, 0, ticket))),
        ("commit.ticket", |ticket| Some(head(COMMITTED, 0, ticket).u64(1))),
        ("commit.act", |ticket| Some(head(LOAD, 0, ticket))),
        ("commit.act", |ticket| Some(head(0, 0, ticket))),
        ("commit.act", |ticket| Some(head(70, 0, ticket))),
        ("commit.count", |ticket| Some(head(DONE, 1, ticket))),
        ("commit.len", |_| Some(Bytes(vec![]))),
        ("commit.len", |ticket| {
            let mut bytes = description(ticket);
            bytes.0.push(0);
            Some(bytes)
        }),
    ];
    for (name, lie) in lies {
        assert_eq!(field(&lied_to(&[], lie, load)), name);
    }
    let gone = lied_to(&[], |_| None, load);
    assert!(matches!(gone, ErrorKind::PeerClosed | ErrorKind::PeerDied), "{gone:?}");
}

#[test]
fn the_client_refuses_inconsistent_descriptions() {
    let load = |client: &Client| client.load(b"echo");
    // A malformed description ends the link. An inconsistent one fails only the load.
    for (at, word, name) in [
        (BUFFER, 3, "commit.direction"),
        (BUFFER + 12, 0xff, "commit.dtype"),
        (BUFFER + 12, uint8() | 1 << 9, "commit.dtype"),
        (BUFFER + 52, 9, "commit.count"),
        (4, 4097, "commit.count"),
        (4, 3, "commit.len"),
        (24, 4097, "commit.regions"),
        (24, u32::MAX, "commit.regions"),
        (32 + 12, 256, "commit.text"),
        (32 + 12, u32::MAX, "commit.text"),
    ] {
        let lie = |ticket| Some(description(ticket).with(at, word));
        assert_eq!(field(&lied_to(&[], lie, load)), name, "{word} at {at}");
    }
    for (at, word) in [
        // An unknown region; a wrong index; offsets and sizes past the region.
        (BUFFER + 8, 2),
        (BUFFER + 8, u32::MAX),
        (BUFFER + 4, 1),
        (BUFFER + 16, 1),
        (BUFFER + 20, u32::MAX),
        (BUFFER + 24, 9),
        (BUFFER + 28, u32::MAX),
        (32, 0),
    ] {
        let lie = |ticket| Some(description(ticket).with(at, word));
        let kind = lied_to(&[], lie, load);
        let refused = matches!(kind, ErrorKind::Commit(CommitFault::Description { .. }));
        assert!(refused, "{word} at {at}: {kind:?}");
    }
}

/// Loads, commits and executes.
fn execute(client: &Client) -> Result<(), Error> {
    let model = client.load(b"echo")?;
    let session = model.session(0)?;
    let _buffers = session.allocate_all()?;
    session.commit()?;
    session.execute()
}

/// Loads, commits and executes two sessions at once.
fn execute_all(client: &Client) -> Result<(), Error> {
    let model = client.load(b"echo")?;
    let sessions = model.sessions(2)?;
    let _buffers = [sessions[0].allocate_all()?, sessions[1].allocate_all()?];
    sessions[0].commit()?;
    sessions[1].commit()?;
    model.execute_all()?.into_iter().try_for_each(|(_, outcome)| outcome)
}

fn failure(bytes: Bytes, at: u32) -> Bytes {
    bytes.u32(at).u32(3).u64(0).u64(0).u64(0).text("")
}

#[test]
fn invalid_answers_to_commits_and_executions_end_the_clients_link() {
    let committed: fn(u64) -> Bytes = |ticket| head(COMMITTED, 0, ticket).u64(ticket | 1 << 20);
    type Lie = fn(u64) -> Bytes;
    let zero: Lie = |ticket| head(COMMITTED, 0, ticket).u64(0);
    let kind = lied_to(&[description], |ticket| Some(zero(ticket)), execute);
    assert_eq!(field(&kind), "commit.ticket");
    let of_one: [(&str, Lie); 5] = [
        ("commit.ticket", |ticket| failure(head(EXECUTED, 1, ticket), 1)),
        ("commit.ticket", |ticket| failure(failure(head(EXECUTED, 2, ticket), 0), 1)),
        ("commit.ticket", |ticket| head(DONE, 0, ticket)),
        ("commit.count", |ticket| head(EXECUTED, 1025, ticket)),
        ("commit.len", |ticket| head(EXECUTED, 1, ticket)),
    ];
    for (name, lie) in of_one {
        let kind = lied_to(&[description, committed], |ticket| Some(lie(ticket)), execute);
        assert_eq!(field(&kind), name);
    }
    let of_two: [Lie; 4] = [
        |ticket| failure(head(EXECUTED, 1, ticket), 2),
        |ticket| failure(head(EXECUTED, 1, ticket), u32::MAX),
        |ticket| failure(failure(head(EXECUTED, 2, ticket), 1), 0),
        |ticket| failure(failure(head(EXECUTED, 2, ticket), 1), 1),
    ];
    for lie in of_two {
        let honest = [description, committed, committed];
        let kind = lied_to(&honest, |ticket| Some(lie(ticket)), execute_all);
        assert_eq!(field(&kind), "commit.ticket");
    }
    // The second execution fails, honestly.
    let honest = [description, committed, committed];
    let kind = lied_to(&honest, |ticket| Some(failure(head(EXECUTED, 1, ticket), 1)), execute_all);
    assert_eq!(kind, ErrorKind::Commit(CommitFault::Panicked));
}

#[test]
fn faults_of_any_code_are_reported_and_change_nothing() {
    for code in [0, 1, 4, 9, 10, 14, 17, 18, u32::MAX] {
        let lie = |ticket| {
            let bytes = head(FAILED, 0, ticket).u32(code).u64(u64::MAX).u64(u64::MAX);
            Some(bytes.u64(u64::MAX).text("x"))
        };
        let kind = lied_to(&[description], lie, execute);
        assert!(matches!(kind, ErrorKind::Commit(_)), "{kind:?}");
    }
    let long = |ticket| {
        let bytes = head(FAILED, 0, ticket).u32(2).u64(0).u64(0).u64(0);
        Some(bytes.text(&"x".repeat(1025)))
    };
    assert_eq!(field(&lied_to(&[description], long, execute)), "commit.text");
}

/// Returns a model without buffers, under the id of [`description`].
fn nothing(ticket: u64) -> Bytes {
    head(LOADED, 0, ticket).u64(5).u64(0)
}

#[test]
fn models_with_the_same_server_id_are_distinct_at_the_client() {
    let done: fn(u64) -> Bytes = |ticket| head(DONE, 0, ticket);
    let lie = |ticket| Some(head(FAILED, 0, ticket).u32(3).u64(0).u64(0).u64(0).text(""));
    for closed in [false, true] {
        let honest =
            if closed { vec![nothing, done, description] } else { vec![nothing, description] };
        let kind = lied_to(&honest, lie, |client| {
            let first = client.load(b"first")?;
            let session = first.session(0)?;
            if closed {
                first.close()?;
            }
            let second = client.load(b"second")?;
            let _buffers = second.session(0)?.allocate_all()?;
            assert_eq!(second.session(0)?.state()?, SessionState::Complete);
            let asked = session.allocate_all().and_then(|_| second.session(0)?.commit());
            assert_eq!(second.session(0)?.state()?, SessionState::Complete);
            asked
        });
        let due = if closed { CommitFault::ModelClosed } else { CommitFault::Panicked };
        assert_eq!(kind, ErrorKind::Commit(due));
    }
}

#[test]
fn a_service_that_sends_records_of_another_kind_ends_the_clients_link() {
    for what in 0..2 {
        let (context, name) = (Context::new().unwrap(), unique_name());
        let mut listener = context.listen(&name).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut link = listener.accept_deadline(soon()).unwrap();
                link.sender().admit_descriptors(64);
                link.receiver().recv_deadline(soon()).unwrap();
                if what == 0 {
                    link.send_tensor(Tensor::from_slice([1], &[1u8]).unwrap()).unwrap();
                } else {
                    link.submit(&head(DONE, 0, 1).0).unwrap();
                }
                let _ = link.receiver().recv_deadline(soon());
            });
            let client = Client::connect(&context, &name).unwrap();
            let kind = client.load(b"echo").unwrap_err().kind().clone();
            assert_eq!(field(&kind), "commit.kind");
            assert_eq!(*client.load(b"echo").unwrap_err().kind(), kind);
        });
    }
}

#[test]
fn tokens_of_a_service_do_nothing_and_an_endless_stream_ends_the_clients_link() {
    let (context, name) = (Context::new().unwrap(), unique_name());
    let mut listener = context.listen(&name).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut link = listener.accept_deadline(soon()).unwrap();
            link.sender().admit_descriptors(64);
            let asked = link.receiver().recv_deadline(soon()).unwrap().unwrap();
            for token in [0, 1, 0xffff, u32::MAX] {
                link.sender().trigger(Token::from(token)).unwrap();
            }
            let ticket = u64::from_le_bytes(asked[8..16].try_into().unwrap());
            link.send(&description(ticket).0).unwrap();
            link.receiver().recv_deadline(soon()).unwrap().unwrap();
            while link.sender().trigger(Token::from(7)).is_ok() {}
        });
        let client = Client::connect(&context, &name).unwrap();
        let model = client.load(b"echo").unwrap();
        assert_eq!(model.count(Direction::In), 1);
        let kind = client.load(b"echo").unwrap_err().kind().clone();
        assert!(matches!(kind, ErrorKind::Fault(Fault::UnexpectedTokens { .. })), "{kind:?}");
        assert_eq!(*model.session(0).unwrap_err().kind(), kind);
    });
}
