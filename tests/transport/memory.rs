//! A peer chooses how long a message is. Where this process has no memory for a copy, the receive fails with
//! `OutOfMemory`, and the process, the link and the message stay. A limit on the size of files is an error, too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::census::limit_files;
use crate::support::other::alone;
use crate::support::{census, pair, pair_of, soon, unique_name, wait_until};
use slipring::error::TryRecvError;
use slipring::{Connection, Context, ErrorKind, Options, Tensor};

/// Longer than what the allocator may have at hand.
const LEN: usize = 64 << 20;

/// Runs `body` while this process may take only half of [`LEN`] more.
fn short_of_memory<T>(body: impl FnOnce() -> T) -> T {
    census::short_of_memory(LEN as u64 / 2, body)
}

fn is_short<T: std::fmt::Debug>(answer: Result<T, slipring::Error>) {
    let kind = answer.map(|_| "something was received").unwrap_err().kind().clone();
    assert!(matches!(kind, ErrorKind::OutOfMemory { bytes } if bytes >= LEN as u64), "{kind:?}");
}

/// Two ends, of which the near one has a long message of byte 7 to receive, and has its segment mapped.
fn with_message(publish: impl FnOnce(&mut Connection, &[u8]) + Send) -> (Connection, Connection) {
    let (mut near, mut far) = pair(Options::new());
    thread::scope(|scope| {
        scope.spawn(|| publish(&mut far, &vec![7; LEN]));
        wait_until("the message", || match near.receiver().try_peek() {
            Ok(Some(received)) => received.len() == LEN,
            Ok(None) => panic!("the peer has closed"),
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Failed(error)) => panic!("{error}"),
        });
    });
    (near, far)
}

/// That the message is there, and that the link goes on.
fn goes_on(mut near: Connection, mut far: Connection) {
    let message = near.recv().unwrap().unwrap();
    assert!(message.len() == LEN && message.iter().all(|byte| *byte == 7));
    far.send(b"after").unwrap();
    assert_eq!(near.recv().unwrap().unwrap(), b"after");
}

#[test]
fn a_message_for_which_there_is_no_memory_stays_the_next_one() {
    alone("a_message_for_which_there_is_no_memory_stays_the_next_one", || {
        let (mut near, far) = with_message(|far, bytes| far.send(bytes).unwrap());
        let mut message = b"before".to_vec();
        short_of_memory(|| {
            is_short(near.recv());
            is_short(near.receiver().recv_deadline(soon()));
            is_short(near.receiver().recv_into(&mut message));
            match near.receiver().try_recv() {
                Err(TryRecvError::Failed(error)) => is_short(Err::<(), _>(error)),
                other => panic!("{other:?}"),
            }
            // Without a copy it can be read.
            let received = near.receiver().peek().unwrap().unwrap();
            assert_eq!((received.len(), received.bytes().byte(LEN - 1)), (LEN, 7));
        });
        goes_on(near, far);
    });
}

#[test]
fn a_message_that_cannot_be_set_aside_stays_the_next_one() {
    alone("a_message_that_cannot_be_set_aside_stays_the_next_one", || {
        let (mut near, mut far) = with_message(|far, bytes| far.send(bytes).unwrap());
        let asked = near.submit(b"what?").unwrap();
        let request = far.recv_request().unwrap().unwrap();
        far.respond(request.id, b"that").unwrap();
        short_of_memory(|| is_short(near.wait(asked)));
        assert_eq!(near.wait(asked).unwrap(), b"that");
        goes_on(near, far);
    });
}

#[test]
fn a_request_and_a_response_for_which_there_is_no_memory_stay() {
    alone("a_request_and_a_response_for_which_there_is_no_memory_stay", || {
        let (mut near, mut far) = with_message(|far, bytes| {
            far.submit(bytes).unwrap();
        });
        short_of_memory(|| is_short(near.recv_request()));
        let request = near.recv_request().unwrap().unwrap();
        assert!(request.body == vec![7; LEN]);
        // The response is as long.
        thread::scope(|scope| {
            let responding = scope.spawn(|| near.respond(request.id, &request.body).unwrap());
            wait_until("the response", || far.receiver().try_peek().is_ok());
            responding.join().unwrap();
        });
        short_of_memory(|| is_short(far.wait(request.id)));
        assert!(far.wait(request.id).unwrap() == request.body);
    });
}

#[test]
fn a_copy_of_a_view_fails_or_panics_and_never_aborts() {
    alone("a_copy_of_a_view_fails_or_panics_and_never_aborts", || {
        let (mut near, far) = with_message(|far, bytes| far.send(bytes).unwrap());
        let received = near.receiver().peek().unwrap().unwrap();
        short_of_memory(|| {
            is_short(received.bytes().try_to_vec());
            let copied = catch_unwind(AssertUnwindSafe(|| received.bytes().to_vec()));
            let said = copied.unwrap_err();
            assert_eq!(*said.downcast::<String>().unwrap(), format!("no memory for {LEN} bytes"));
        });
        goes_on(near, far);
    });
}

#[test]
fn tensors_for_whose_copies_there_is_no_memory_stay() {
    alone("tensors_for_whose_copies_there_is_no_memory_stay", || {
        let (mut near, mut far) = pair(Options::new());
        let lent = thread::scope(|scope| {
            scope.spawn(|| {
                far.send_tensor(Tensor::from_slice([LEN], &vec![7u8; LEN]).unwrap()).unwrap();
            });
            near.recv_tensor().unwrap().unwrap()
        });
        short_of_memory(|| {
            is_short(lent.to_vec::<u8>());
            is_short(lent.to_private());
            is_short(lent.bytes().unwrap().try_to_vec());
        });
        assert!(lent.to_vec::<u8>().unwrap() == vec![7; LEN]);
    });
}

#[test]
fn no_memory_for_a_ring_or_for_the_pool_is_an_error() {
    alone("no_memory_for_a_ring_or_for_the_pool_is_an_error", || {
        let context = Context::new().unwrap();
        let other =
            Context::with_options(Options::new().ring_capacity(LEN as u64).prefault(true)).unwrap();
        let (mut near, mut far) = pair_of(&context, &context);
        let (name, bytes) = (unique_name(), vec![7; LEN]);
        let _listener = context.listen(&name).unwrap();
        short_of_memory(|| {
            is_short(other.connect(&name).map(drop));
            is_short(near.send(&bytes));
            near.send(b"short").unwrap();
            assert_eq!(far.recv().unwrap().unwrap(), b"short");
        });
    });
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    alone("a_limit_on_the_size_of_files_is_an_error_and_no_signal", || {
        const MIB: usize = 1 << 20;
        let context = Context::new().unwrap();
        let (mut near, mut far) = pair_of(&context, &context);
        let long = Tensor::from_slice([3 * MIB], &vec![1u8; 3 * MIB]).unwrap();
        let is_refused = |answer: Result<(), slipring::Error>, limit: usize| {
            let error = answer.unwrap_err();
            let ErrorKind::FileSizeLimit { bytes, limit: most } = *error.kind() else {
                panic!("{error:?}")
            };
            assert!(most == limit as u64 && bytes > most, "{error}");
            assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
        };
        limit_files(MIB as u64);
        for _ in 0..2 {
            is_refused(near.send(&vec![0; 3 * MIB]), MIB);
            is_refused(near.send_tensor(&long), MIB);
            is_refused(context.alloc::<u8>([3 * MIB]).map(drop), MIB);
            is_refused(context.alloc_frozen::<u8>([3 * MIB]).map(drop), MIB);
            // The link goes on.
            near.send(b"short").unwrap();
            assert_eq!(far.recv().unwrap().unwrap(), b"short");
        }
        // Not even a ring may be made.
        limit_files(4096);
        let name = unique_name();
        let mut listener = context.listen(&name).unwrap();
        thread::scope(|scope| {
            let other = Context::with_options(Options::new().ring_capacity(1 << 20)).unwrap();
            let connecting = scope.spawn(move || other.connect_deadline(&name, soon()).map(drop));
            let deadline = Instant::now() + Duration::from_millis(100);
            let _ = listener.accept_deadline(deadline);
            is_refused(connecting.join().unwrap(), 4096);
        });
        near.send(b"short").unwrap();
        assert_eq!(far.recv().unwrap().unwrap(), b"short");
    });
}
