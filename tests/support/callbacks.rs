//! Callbacks of a reactor that report to the test.

use std::sync::mpsc;

use slipring::{Connection, Error, ErrorKind, Reactor};

use super::{HANG, soon};

/// Returns the next word.
pub fn hear<T>(said: &mpsc::Receiver<T>) -> T {
    said.recv_timeout(HANG).expect("nothing comes")
}

/// Returns the next message of a plain connection.
pub fn receive(far: &mut Connection) -> Vec<u8> {
    far.receiver().recv_deadline(soon()).unwrap().expect("a message, not the end")
}

pub fn kind<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorKind {
    answer.unwrap_err().kind().clone()
}

/// Returns a function for callbacks to report with, and the receiver of the reports in the order of the calls.
pub fn diary<T: Send + 'static>() -> (impl Fn(T) + Clone + Send + 'static, mpsc::Receiver<T>) {
    let (to, said) = mpsc::channel();
    (
        move |word| {
            // The test may have dropped the receiver.
            let _ = to.send(word);
        },
        said,
    )
}

/// Waits until the reactor has done everything that was asked for so far.
pub fn settle(reactor: &Reactor) {
    let (say, said) = diary();
    reactor.defer(move || say(()));
    hear(&said);
}
