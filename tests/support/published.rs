//! Messages of a topic that tell their number, and of which each byte follows from it.

use slipring::ErrorKind;
use slipring::broadcast::OwnedSample;

/// Returns message `number`. `len` is at least 8.
pub fn message(number: u64, len: usize) -> Vec<u8> {
    let rest = (8..len).map(|at| (number as usize * 31 + at * 7 + len) as u8);
    number.to_le_bytes().into_iter().chain(rest).collect()
}

/// Returns the number of a message, whose bytes must all be right.
pub fn number_of(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == message(number, bytes.len()), "a wrong byte in message {number}");
    number
}

/// Returns the bytes of a sample. `None`: the publisher has taken them back.
pub fn bytes_of(sample: &OwnedSample) -> Option<Vec<u8>> {
    let bytes = match sample.tensors().next() {
        Some((_, tensor)) => tensor.to_vec::<u8>(),
        None => sample.to_vec(),
    };
    match bytes {
        Err(error) if *error.kind() == ErrorKind::LoanRevoked => None,
        bytes => Some(bytes.unwrap()),
    }
}
