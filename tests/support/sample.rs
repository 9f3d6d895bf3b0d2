//! How much a test tries, and whether it judges times.
//!
//! | variable | effect |
//! |---|---|
//! | none | a sample, so that `cargo test` ends in minutes |
//! | `SLIPRING_TESTS=whole` | everything |
//! | `SLIPRING_JUDGE=1` | a time that is too long fails the test; the machine must be idle |

/// Returns whether everything is tried.
pub fn is_whole() -> bool {
    match std::env::var("SLIPRING_TESTS").as_deref() {
        Err(_) => false,
        Ok("whole") => true,
        Ok(other) => panic!("SLIPRING_TESTS may be \"whole\", not {other:?}"),
    }
}

/// Returns whether times are judged.
pub fn is_judged() -> bool {
    std::env::var("SLIPRING_JUDGE").as_deref() == Ok("1")
}

/// Returns the places out of `0..count` that are tried: all of them, or `most` at equal distances, with the first and
/// the last one.
pub fn places(count: usize, most: usize) -> impl Iterator<Item = usize> {
    spread(count, if is_whole() { count } else { most })
}

/// Returns places out of `0..count`: `most` at equal distances, with the first and the last one.
pub fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let tried = count.min(most);
    (0..tried).map(move |number| number * (count - 1) / (tried - 1).max(1))
}

/// Returns the errors that are tried at the place with this number: all of them, or each in turn.
pub fn errors(errors: &[i32], number: usize) -> &[i32] {
    if is_whole() { errors } else { &errors[number % errors.len()..][..1] }
}
