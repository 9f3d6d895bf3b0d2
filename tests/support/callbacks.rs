//! What the reactor's tests share: hearing what callbacks say.

use std::sync::mpsc;

use slipring::{Connection, Error, ErrorKind, Reactor};

use super::{HANG, soon};

/// What comes next.
pub fn hear<T>(said: &mpsc::Receiver<T>) -> T {
    said.recv_timeout(HANG).expect("nothing comes")
}

/// The next message of a plain connection.
pub fn receive(far: &mut Connection) -> Vec<u8> {
    far.recv_deadline(soon()).unwrap().expect("a message, not the end")
}

pub fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

/// What a callback says of itself, in the order of the calls.
pub fn diary<T: Send + 'static>() -> (impl Fn(T) + Clone + Send + 'static, mpsc::Receiver<T>) {
    let (to, said) = mpsc::channel();
    (
        move |word| {
            // Whoever listened may be gone.
            let _ = to.send(word);
        },
        said,
    )
}

/// Waits until the reactor has done what it was asked for so far.
pub fn settle(reactor: &Reactor) {
    let (say, said) = diary();
    reactor.defer(move || say(()));
    hear(&said);
}
