//! The statuses that functions return.

use slipring::ErrorKind;

/// What a function has done. The numbers stay.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum slipring_status {
    /// Done.
    SLIPRING_OK = 0,
    /// With SLIPRING_NONBLOCK: nothing has arrived, or there is no room now. No error.
    SLIPRING_WOULD_BLOCK = 1,
    /// The peer has closed in order, and every message that it sent was received. No error.
    SLIPRING_END = 2,
    /// The time is over. Nothing was sent or received.
    SLIPRING_TIMED_OUT = 3,
    /// The message is longer than the buffer. It stays the next one.
    SLIPRING_BUFFER_TOO_SHORT = 4,
    /// The next message is of another kind than the function receives. It stays the next one.
    SLIPRING_OTHER_KIND = 5,
    /// The peer has closed the connection, and receives no more.
    SLIPRING_PEER_CLOSED = 6,
    /// The peer's process ended without closing. The text names it.
    SLIPRING_PEER_DIED = 7,
    /// The peer broke the protocol. This connection is over, and all others go on.
    SLIPRING_PEER_FAULT = 8,
    /// One side's policy does not admit the other, or the two sides do not fit.
    SLIPRING_REFUSED = 9,
    /// Nobody listens on the address.
    SLIPRING_NOBODY_LISTENS = 10,
    /// Another listener has the address.
    SLIPRING_ADDRESS_IN_USE = 11,
    /// The message or the batch is longer than the connection takes.
    SLIPRING_TOO_LARGE = 12,
    /// A limit is reached, which the text names with the option that raises it.
    SLIPRING_RESOURCE_LIMIT = 13,
    /// There is no memory.
    SLIPRING_OUT_OF_MEMORY = 14,
    /// The peer has taken back the memory of the message: what was read there may be other data.
    SLIPRING_LOAN_REVOKED = 15,
    /// This side has closed the connection.
    SLIPRING_CLOSED = 16,
    /// The handle belongs to the parent of this forked process.
    SLIPRING_FORKED = 17,
    /// The kernel refused a call: slipring_last_error_number() is its errno.
    SLIPRING_OS = 18,
    /// An argument is impossible: a null pointer, an address, an option, a time.
    SLIPRING_INVALID_ARGUMENT = 19,
    /// The handle is null, was freed, or is of another kind.
    SLIPRING_INVALID_HANDLE = 20,
    /// The call does not fit what is open: a message reserved twice, a release without a peek.
    SLIPRING_WRONG_STATE = 21,
    /// Another thread is in this half of the connection, or in this listener.
    SLIPRING_BUSY = 22,
    /// The library has an error: a panic ended the call. The handle can only be freed.
    SLIPRING_PANIC = 23,
    /// An error that has no status of its own. The text says which.
    SLIPRING_OTHER = 24,
    /// A data type, a shape or a tensor that cannot be, or not for this.
    SLIPRING_INVALID_TENSOR = 25,
    /// The publisher has given up waiting for this subscriber.
    SLIPRING_EVICTED = 26,
}

use slipring_status::*;

impl slipring_status {
    /// Every status, in the order of the numbers.
    const ALL: [(Self, &'static std::ffi::CStr); 27] = [
        (SLIPRING_OK, c"SLIPRING_OK"),
        (SLIPRING_WOULD_BLOCK, c"SLIPRING_WOULD_BLOCK"),
        (SLIPRING_END, c"SLIPRING_END"),
        (SLIPRING_TIMED_OUT, c"SLIPRING_TIMED_OUT"),
        (SLIPRING_BUFFER_TOO_SHORT, c"SLIPRING_BUFFER_TOO_SHORT"),
        (SLIPRING_OTHER_KIND, c"SLIPRING_OTHER_KIND"),
        (SLIPRING_PEER_CLOSED, c"SLIPRING_PEER_CLOSED"),
        (SLIPRING_PEER_DIED, c"SLIPRING_PEER_DIED"),
        (SLIPRING_PEER_FAULT, c"SLIPRING_PEER_FAULT"),
        (SLIPRING_REFUSED, c"SLIPRING_REFUSED"),
        (SLIPRING_NOBODY_LISTENS, c"SLIPRING_NOBODY_LISTENS"),
        (SLIPRING_ADDRESS_IN_USE, c"SLIPRING_ADDRESS_IN_USE"),
        (SLIPRING_TOO_LARGE, c"SLIPRING_TOO_LARGE"),
        (SLIPRING_RESOURCE_LIMIT, c"SLIPRING_RESOURCE_LIMIT"),
        (SLIPRING_OUT_OF_MEMORY, c"SLIPRING_OUT_OF_MEMORY"),
        (SLIPRING_LOAN_REVOKED, c"SLIPRING_LOAN_REVOKED"),
        (SLIPRING_CLOSED, c"SLIPRING_CLOSED"),
        (SLIPRING_FORKED, c"SLIPRING_FORKED"),
        (SLIPRING_OS, c"SLIPRING_OS"),
        (SLIPRING_INVALID_ARGUMENT, c"SLIPRING_INVALID_ARGUMENT"),
        (SLIPRING_INVALID_HANDLE, c"SLIPRING_INVALID_HANDLE"),
        (SLIPRING_WRONG_STATE, c"SLIPRING_WRONG_STATE"),
        (SLIPRING_BUSY, c"SLIPRING_BUSY"),
        (SLIPRING_PANIC, c"SLIPRING_PANIC"),
        (SLIPRING_OTHER, c"SLIPRING_OTHER"),
        (SLIPRING_INVALID_TENSOR, c"SLIPRING_INVALID_TENSOR"),
        (SLIPRING_EVICTED, c"SLIPRING_EVICTED"),
    ];

    /// Returns the name of the status with this number.
    pub(crate) fn name(number: i32) -> Option<&'static std::ffi::CStr> {
        let found = usize::try_from(number).ok().and_then(|number| Self::ALL.get(number));
        found.map(|(_, name)| *name)
    }

    /// Returns the status of an error.
    pub(crate) fn of(kind: &ErrorKind) -> Self {
        use ErrorKind::*;
        match kind {
            TimedOut { .. } => SLIPRING_TIMED_OUT,
            BufferTooShort { .. } => SLIPRING_BUFFER_TOO_SHORT,
            ErrorKind::OtherKind { .. } => SLIPRING_OTHER_KIND,
            PeerClosed => SLIPRING_PEER_CLOSED,
            PeerDied => SLIPRING_PEER_DIED,
            Fault(_) => SLIPRING_PEER_FAULT,
            PeerNotAdmitted { .. }
            | UnmappedUser
            | NotAdmittedByPeer
            | RefusedByPeer { .. }
            | WrongService { .. }
            | PolicyRefused
            | NoCommonVersion { .. } => SLIPRING_REFUSED,
            NobodyListens { .. } => SLIPRING_NOBODY_LISTENS,
            AddressInUse { .. } => SLIPRING_ADDRESS_IN_USE,
            MessageTooLarge { .. } | BatchTooLarge { .. } => SLIPRING_TOO_LARGE,
            HoldLimit { .. }
            | HoldBytes { .. }
            | PoolExhausted { .. }
            | BacklogFull { .. }
            | CallsInFlight { .. }
            | WritesFull { .. }
            | TokensSpent
            | NumbersSpent
            | FileSizeLimit { .. }
            | AccountFull { .. }
            | DescriptorLimit { .. } => SLIPRING_RESOURCE_LIMIT,
            OutOfMemory { .. } => SLIPRING_OUT_OF_MEMORY,
            LoanRevoked => SLIPRING_LOAN_REVOKED,
            Tensor(_) => SLIPRING_INVALID_TENSOR,
            Evicted { .. } => SLIPRING_EVICTED,
            LinkClosed | ReactorStopped => SLIPRING_CLOSED,
            Forked => SLIPRING_FORKED,
            Os { .. } => SLIPRING_OS,
            AddressEmpty
            | AddressTooLong { .. }
            | AddressNul { .. }
            | AddressEscape { .. }
            | NotSeqpacket
            | UnknownRequest { .. }
            | InvalidOption { .. } => SLIPRING_INVALID_ARGUMENT,
            _ => SLIPRING_OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_stands_at_its_number_under_its_name() {
        for (number, (status, name)) in slipring_status::ALL.iter().enumerate() {
            assert_eq!(*status as usize, number);
            assert_eq!(format!("{status:?}"), name.to_str().unwrap());
        }
        assert_eq!(slipring_status::name(-1), None);
        assert_eq!(slipring_status::name(slipring_status::ALL.len() as i32), None);
    }
}
