//! Tokens: how a process names a function of its own towards a peer.

/// Names a function that one side of a link has registered, for the other side to trigger. It is
/// made by [`Link::register`](crate::Link::register) and handed over in a message, as its `u32`.
///
/// A token means something only on the link it was registered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u32);

impl Token {
    /// Bytes of a token in a record.
    pub(crate) const LEN: usize = 4;
}

impl From<u32> for Token {
    fn from(token: u32) -> Self {
        Self(token)
    }
}

impl From<Token> for u32 {
    fn from(token: Token) -> Self {
        token.0
    }
}
