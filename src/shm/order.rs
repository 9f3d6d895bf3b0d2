//! The order of a copy between overlapping ranges.

/// The end of a copy to begin with, so that each byte is read before it is overwritten. The positions in
/// memory decide, because the memory may be mapped twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The bytes move towards the start.
    FromStart,
    /// The bytes move towards the end.
    FromEnd,
}

impl Order {
    /// Returns the steps of at most `step` bytes that copy `len` bytes: the start and the length of each.
    pub(crate) fn steps(self, len: usize, step: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let next = step.min(len - done);
            let at = match self {
                Self::FromStart => done,
                Self::FromEnd => len - done - next,
            };
            done += next;
            (next > 0).then_some((at, next))
        })
    }
}

#[cfg(test)]
mod tests;
