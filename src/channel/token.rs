//! A token: the name of a function that a peer may trigger.

/// The name of a function that one side of a link has registered and the other side may trigger.
///
/// [`Link::register`](crate::Link::register) makes it. A message carries it to the peer as a `u32`. A token is valid
/// on the link that it was registered for, and on no other.
///
/// # Examples
///
/// ```
/// use slipring::message::Token;
///
/// let token = Token::from(7);
/// assert_eq!(u32::from(token), 7);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u32);

impl Token {
    /// The length of a token in a record, in bytes.
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
